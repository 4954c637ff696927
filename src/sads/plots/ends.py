"""Pictures of a geometry without a matrix: what is known of its spectrum, and both of its ends."""

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from sads.estimates import format_error
from sads.geometry.ends import End
from sads.geometry.result import Geometry
from sads.geometry.summary import has_ends
from sads.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    frame,
    show_vector,
    styled,
    subplots,
    title_of,
)

SHOWN = 4  # directions of each end
ZOOM = 24  # pixels around the centre of a local direction
LOCAL = 0.75  # share of a direction in a window of this size that makes it local
BINS = 32  # of frequencies


def plot_known(geometry: Geometry) -> Figure:
    """Both ends of the spectrum, energies against frequency, and maps of energies."""
    with styled():
        two = len(geometry.shape) == 3
        figure, axes = subplots(
            1, 4 if two else 2, figsize=(12.4 if two else 7.6, 3.1), squeeze=False
        )
        _show_spectrum(axes[0, 0], geometry)
        _show_frequencies(axes[0, 1], geometry)
        if two:
            _show_map(figure, axes[0, 2], geometry, "canonical", "energy of pixels")
            _show_map(figure, axes[0, 3], geometry, "dct", "energy of cosines (0, 0: upper left)")
        figure.suptitle(f"{title_of(geometry)}, without a matrix", fontsize=10)
    return figure


def plot_ends(geometry: Geometry) -> Figure:
    """The outermost directions of both ends; those that are local are shown close up."""
    with styled():
        figure, axes = subplots(2, SHOWN, figsize=(1.75 * SHOWN, 4.4), squeeze=False)
        for row, side in zip(axes, ("avoided", "preferred"), strict=True):
            end = geometry.end(side, SHOWN) if has_ends(geometry) else None
            for place, cell in enumerate(row):
                if end is None or place >= len(end):
                    cell.axis("off")
                    continue
                _show_direction(cell, end, place, geometry.lift.size)
            row[0].set_ylabel(f"most {side}")
        figure.suptitle(f"{title_of(geometry)}: both ends of its spectrum", fontsize=10)
    return figure


def _show_direction(axes: Axes, end: End, place: int, size: int) -> None:
    vector = end.vectors[place]
    image = vector[vector.flatten(1).norm(dim=1).argmax()]  # the channel that it is in
    corner = _local(image) if image.ndim == 2 else None
    sign = r"\geq" if end.side == "avoided" else r"\leq"
    bound = end.bounds[place]
    error = f" ± {format_error(bound.error, '.1g')}"
    rank = place + 1 if end.side == "avoided" else size - place
    axes.set_title(f"$\\lambda_{{{rank}}} {sign}$ {bound.value:.3g}{error}", fontsize=8)
    if corner is None:
        show_vector(axes, image[None])
        return
    top, left = corner
    show_vector(axes, image[None, top : top + ZOOM, left : left + ZOOM])
    where = f"rows {top} to {top + ZOOM - 1},\ncolumns {left} to {left + ZOOM - 1}"
    axes.set_xlabel(where, fontsize=6.5)


def _local(image: Tensor) -> tuple[int, int] | None:
    """Where the window that holds most of an image begins, if it holds nearly all of it."""
    if min(image.shape) < 2 * ZOOM:
        return None
    windows = torch.nn.functional.avg_pool2d(image.square()[None], ZOOM, stride=1)[0] * ZOOM**2
    best = int(windows.argmax())
    if float(windows.flatten()[best]) < LOCAL * float(image.square().sum()):
        return None
    return best // windows.shape[1], best % windows.shape[1]


def _show_spectrum(axes: Axes, geometry: Geometry) -> None:
    """Bounds and what was found at both ends; between them the sorted energies of cosines."""
    size = geometry.lift.size
    energies = geometry.basis_energies("dct").values[: math.prod(geometry.shape[1:])]
    sorted_energies = energies.sort(descending=True).values.numpy()
    share = (np.arange(len(sorted_energies)) + 0.5) / len(sorted_energies)
    axes.plot(share, sorted_energies, color=GREY, lw=1, label="energies of cosines, sorted")
    if has_ends(geometry):
        for side, color, marker in (("avoided", ORANGE, "v"), ("preferred", BLUE, "^")):
            end = geometry.end(side)
            ranks = np.arange(len(end)) if side == "avoided" else size - 1 - np.arange(len(end))
            place = (ranks + 0.5) / size
            found, bounds = end.found.numpy(), end.bounds.values.numpy()
            name = "at least" if side == "avoided" else "at most"
            axes.vlines(place, np.minimum(found, bounds), np.maximum(found, bounds), color=color)
            axes.plot(place, bounds, "_", ms=8, color=color, label=f"{side}: {name}")
            axes.plot(place, found, marker, ms=3, color=color, alpha=0.6)
    axes.set(yscale="log", xlabel="rank, as a share", ylabel="eigenvalue", xlim=(-0.05, 1.05))
    axes.legend(frameon=False, fontsize=7)


def _show_frequencies(axes: Axes, geometry: Geometry) -> None:
    """Energies of cosines, and of Haar wavelets where they exist, against their frequency."""
    for name, color in (("dct", GREEN), ("haar", INK)):
        if name not in geometry.moments.energies:  # type: ignore[union-attr]
            continue
        values = _first_channel(geometry, name)
        radius = _frequency(name, geometry.shape[1:])
        edges = np.linspace(0, 1, BINS + 1)
        bins = np.clip(np.digitize(radius.flatten(), edges) - 1, 0, BINS - 1)
        counts = np.bincount(bins, minlength=BINS)
        means = np.bincount(bins, values.flatten(), BINS) / np.maximum(counts, 1)
        centre = np.bincount(bins, radius.flatten(), BINS) / np.maximum(counts, 1)
        kept = counts > 0
        label = "cosines" if name == "dct" else "Haar wavelets"
        axes.plot(centre[kept], means[kept], ".-", ms=3, lw=1, color=color, label=label)
    mean = geometry.trace / geometry.dimension
    axes.axhline(mean, color=GREY, lw=0.8, ls=":")
    axes.set(yscale="log", xlabel="frequency (1: the highest)", ylabel="energy $v^T G v$")
    axes.legend(frameon=False, fontsize=7)


def _frequency(name: str, spatial: tuple[int, ...]) -> NDArray[np.float64]:
    """The frequency of every vector, between 0 and 1; of a Haar wavelet that of its scale."""
    axes = [np.arange(n) / max(1, n - 1) for n in spatial]
    if name == "haar":
        axes = [2.0 ** np.ceil(np.log2(np.arange(n) + 1)) / n for n in spatial]
        axes = [np.where(np.arange(n) == 0, 0, a) for n, a in zip(spatial, axes, strict=True)]
        return np.maximum.reduce(np.meshgrid(*axes, indexing="ij"))
    squares: Any = sum(f**2 for f in np.meshgrid(*axes, indexing="ij"))
    return np.sqrt(squares / len(spatial))


def _first_channel(geometry: Geometry, name: str) -> NDArray[np.float64]:
    pixels = math.prod(geometry.shape[1:])
    return geometry.basis_energies(name).values[:pixels].reshape(geometry.shape[1:]).numpy()


def _show_map(figure: Figure, axes: Axes, geometry: Geometry, name: str, title: str) -> None:
    values = _first_channel(geometry, name)
    image = axes.imshow(np.log10(np.maximum(values, 1e-300)), cmap="magma")
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.ax.tick_params(labelsize=6)
    bar.set_label("$\\log_{10}$ energy", fontsize=7)
    axes.set_title(title, fontsize=8)
    frame(axes)
