"""Pictures of geometries, their directions, and of training runs."""

import matplotlib

matplotlib.use("Agg")

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from sads.alignment import Alignment, DataSpectrum
from sads.data.bases import Basis
from sads.directions import EQUAL, Directions
from sads.files import replacing
from sads.geometry.geometry import Geometry

INK, BLUE, ORANGE, GREY = "#1b1f24", "#2563a8", "#d9730d", "#b4bac2"
GREEN, RED = "#2f855a", "#c53030"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
}


def save(figure: Figure, path: Path) -> Path:
    with replacing(path) as temporary:
        figure.savefig(temporary)
    plt.close(figure)
    return path


def title_of(geometry: Geometry) -> str:
    """`iDDPM 1x16x16, 1,024 networks` and the like."""
    name = str(geometry.provenance["family"]["name"])
    options = geometry.provenance["family"]["options"]
    if "patch_size" in options:
        name = f"{name}/{options['patch_size']}"
    if options.get("resample", "nearest") != "nearest":
        name = f"{name} ({options['resample']})"
    size = "exact" if geometry.exact else f"{geometry.num_networks:,} networks"
    return f"{name}  {'x'.join(map(str, geometry.shape))}, {size}"


def plot_spectrum(geometry: Geometry, directions: Directions) -> Figure:
    """Eigenvalues with a band of two standard errors; below, how sure each direction is."""
    rank = np.arange(1, geometry.dimension + 1)
    values, errors = directions.values.numpy(), directions.value_errors.numpy()
    positive = values > EQUAL * values[0]
    with plt.rc_context(STYLE):
        figure, (top, bottom) = plt.subplots(
            2, 1, figsize=(7, 4.8), sharex=True, height_ratios=(3, 2), layout="constrained"
        )
        shown, value, error = rank[positive], values[positive], errors[positive]
        low = np.maximum(value - 2 * error, value.min() / 10)
        top.fill_between(shown, low, value + 2 * error, color=BLUE, alpha=0.3, lw=0)
        top.plot(shown, value, color=BLUE, lw=1.2)
        top.set(yscale="log", ylabel="eigenvalue $\\lambda_i$", title=title_of(geometry))
        top.text(0.01, 0.04, "← most avoided", transform=top.transAxes, ha="left")
        top.text(0.99, 0.90, "most preferred →", transform=top.transAxes, ha="right")
        if not positive.all():
            zeros = int((~positive).sum())
            top.axvspan(positive.sum() + 0.5, len(rank) + 0.5, color=GREY, alpha=0.3, lw=0)
            top.text(
                len(rank) - zeros / 2, np.sqrt(values[positive].min() * values[0]),
                f"{zeros} zero\neigenvalues", ha="center", va="center",
            )  # fmt: skip
        _plot_certificate(bottom, directions, rank)
    return figure


def _plot_certificate(axes: Axes, directions: Directions, rank: np.ndarray) -> None:
    resolved = directions.resolved.numpy()
    angles = np.maximum(directions.angle_errors.numpy(), 1e-4)
    axes.axhline(directions.tolerance, color=INK, lw=0.8, ls=":")
    subspace = np.full(len(rank), np.nan)
    for cluster in directions.clusters:
        axes.axvspan(cluster.start + 0.5, cluster.stop + 0.5, color=GREY, alpha=0.25, lw=0.3)
        subspace[cluster.start : cluster.stop] = max(cluster.angle_error, 1e-4)
    if not resolved.all():
        axes.plot(rank[~resolved], angles[~resolved], ".", ms=2.5, color=GREY, label="alone")
        axes.plot(rank, subspace, color=ORANGE, lw=1.2, label="its cluster's subspace")
    if resolved.any():
        axes.plot(rank[resolved], angles[resolved], ".", ms=3.5, color=BLUE, label="resolved")
    axes.set(yscale="log", xlabel="rank $i$", ylabel="angle error (rad)", ylim=(7e-5, 3))
    axes.set_xlim(0.5, len(rank) + 0.5)
    axes.legend(
        loc="upper center", ncols=3, frameon=False, fontsize=8, bbox_to_anchor=(0.5, 1.22),
        handlelength=1.2,
    )  # fmt: skip


def figure6_ranks(dimension: int, count: int = 9) -> list[int]:
    """Evenly spread ranks, counted from 0, as in Figure 6: 0, 31, 63, ... 255 of 256."""
    if dimension <= count:
        return list(range(dimension))
    return [0, *(round(k * dimension / (count - 1)) - 1 for k in range(1, count))]


def plot_directions(
    geometry: Geometry, directions: Directions, ranks: Sequence[int] | None = None
) -> Figure:
    """Eigenvectors, and below each its energy over spatial frequencies (zero in the centre)."""
    ranks = figure6_ranks(geometry.dimension) if ranks is None else ranks
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            2, len(ranks), figsize=(1.15 * len(ranks), 3.1), squeeze=False, layout="constrained"
        )
        for column, rank in zip(axes.T, ranks, strict=True):
            vector = directions.vectors[rank]
            show_vector(column[0], vector)
            show_vector_energy(column[1], vector)
            cluster = directions.cluster_of(rank)
            column[0].set_title(
                f"$u_{{{rank + 1}}}$\n$\\lambda$ = {directions.values[rank]:.3g}", fontsize=8
            )
            certificate = (
                f"± {directions.angle_errors[rank]:.2g} rad"
                if cluster is None
                else f"one of {len(cluster)}"
            )
            column[1].set_xlabel(certificate, fontsize=7)
        axes[0, 0].set_ylabel("eigenvector")
        axes[1, 0].set_ylabel("Fourier energy")
        figure.suptitle(
            f"{title_of(geometry)}: from most avoided (left) to most preferred", fontsize=10
        )
    return figure


def plot_basis_values(basis: Basis, values: ArrayLike, label: str) -> Figure:
    """One number for each vector of a basis, laid out as in the paper's Figure 2.

    Args:
        values: (D,), such as the MSW2 of models trained on each vector.
        label: what the numbers are, for the colour bar.
    """
    rows, columns = basis.layout(values).shape
    with plt.rc_context(STYLE):
        height = 0.5 + 2.6 * max(0.3, min(rows / columns, 1.5))
        figure, axes = plt.subplots(figsize=(3.6, height), layout="constrained")
        image = show_basis_values(axes, basis, values)
        figure.colorbar(image, label=label, shrink=0.85)
    return figure


def show_basis_values(
    axes: Axes, basis: Basis, values: ArrayLike, low: float | None = None, high: float | None = None
) -> AxesImage:
    """One number a vector, in colours from `low` to `high`, with the axes of its layout."""
    picture = basis.layout(values)
    axis = {"canonical": "pixel", "hadamard": "sequency", "haar": ""}.get(basis.name, "frequency")
    extent = _extent(basis, *picture.shape)
    image = axes.imshow(picture, cmap="viridis", extent=extent, vmin=low, vmax=high)
    _bare(axes)
    axes.set_title(f"{basis.name}  {'x'.join(map(str, basis.shape))}", fontsize=10)
    if basis.name == "haar":
        _mark_scales(axes, basis)
    if basis.shape[0] == 1 and len(basis.spatial) == 2 and axis:
        axes.tick_params(length=2, labelsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set(xlabel=f"horizontal {axis}", ylabel=f"vertical {axis}")
    return image


def _extent(basis: Basis, rows: int, columns: int) -> tuple[float, float, float, float]:
    """Edges of the picture, in frequencies where zero is in its centre, else in pixels."""
    right, bottom = columns - 0.5, rows - 0.5
    if basis.name in ("dct", "dst", "hadamard"):
        right, bottom = columns / 2, rows / 2
    return right - columns, right, bottom, bottom - rows


def _mark_scales(axes: Axes, basis: Basis) -> None:
    """Lines between the bands of a nested wavelet picture."""
    bands = [(e.channel, e.scale, e.band) for e in basis.index]
    numbers = {band: number for number, band in enumerate(dict.fromkeys(bands))}
    picture = basis.layout([numbers[band] for band in bands])
    y, x = np.nonzero(np.diff(picture, axis=1))
    axes.vlines(x + 0.5, y - 0.5, y + 0.5, color="white", lw=0.6)
    y, x = np.nonzero(np.diff(picture, axis=0))
    axes.hlines(y + 0.5, x - 0.5, x + 0.5, color="white", lw=0.6)


def plot_losses(losses: Tensor, title: str) -> Figure:
    """The loss of every update, and its mean over a hundredth of the run."""
    values = losses.double().numpy()
    updates = np.arange(1, len(values) + 1)
    window = max(1, len(values) // 100)
    count = len(values) // window * window
    means, centres = (a[:count].reshape(-1, window).mean(axis=1) for a in (values, updates))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
        axes.plot(updates, values, color=GREY, lw=0.5)
        axes.plot(centres, means, color=BLUE, lw=1.4, marker="o" if len(means) == 1 else None)
        axes.set(xlabel="update", ylabel="loss", title=title, yscale="log")
        axes.set_xlim(0.5, len(values) + 0.5)
        axes.text(0.99, 0.93, f"mean of {window:,}" if window > 1 else "every update",
                  transform=axes.transAxes, ha="right", color=BLUE)  # fmt: skip
    return figure


def plot_alignment(
    geometry: Geometry,
    alignment: Alignment,
    spectrum: DataSpectrum,
    data_values: Tensor,
    data_name: str,
) -> Figure:
    """The energy of data along each direction of a network against its eigenvalue.

    Beside it where the extremes of alpha put the same energies, and the share of every tenth.
    """
    values, energies, sorted_energies = (
        z.numpy() for z in (spectrum.values, spectrum.energies, data_values)
    )
    floor = 1e-9 * max(float(energies.max()), float(sorted_energies.max()), 1e-300)
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9, 3.8), width_ratios=(3, 2), layout="constrained"
        )
        for order, color, name, alpha in (
            (sorted_energies, RED, "maximum", alignment.maximum),
            (sorted_energies[::-1], GREEN, "minimum", alignment.minimum),
        ):
            shown = (order > floor) & (values > EQUAL * values[0])
            left.plot(values[shown], order[shown], color=color, lw=1.6, alpha=0.9,
                      label=f"{name}: $\\alpha$ = {alpha:.3g}")  # fmt: skip
        shown = (energies > floor) & (values > EQUAL * values[0])
        left.plot(values[shown], energies[shown], ".", ms=3.5, color=BLUE, alpha=0.7,
                  label=f"as it is: $\\alpha$ = {alignment.alpha:.3g}")  # fmt: skip
        left.set(
            xscale="log", yscale="log", xlabel="eigenvalue of the network, $\\lambda_i$",
            ylabel="energy of the data along $u_i$",
        )  # fmt: skip
        left.legend(
            frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1),
            handlelength=1.2, columnspacing=1,
        )  # fmt: skip
        left.text(0.01, 0.02, "← preferred", transform=left.transAxes)
        left.text(0.99, 0.02, "avoided →", transform=left.transAxes, ha="right")
        shares, errors = 100 * spectrum.shares.numpy(), 100 * spectrum.share_errors.numpy()
        finite = np.where(np.isfinite(errors), errors, 0)
        tenth = np.arange(1, len(shares) + 1)
        right.bar(tenth, shares, color=BLUE, yerr=2 * finite, ecolor=INK)
        for x, share, error in zip(tenth, shares, finite, strict=True):
            right.text(x, share + 2 * error, f"{share:.2g}", ha="center", va="bottom", fontsize=7)
        right.set(xlabel="tenth of the directions", ylabel="energy of the data (%)", xticks=[1, 10])
        right.set_xticklabels(["most avoided", "most preferred"])
        right.invert_xaxis()  # as on the left
        figure.suptitle(
            f"{data_name} in the geometry of {title_of(geometry)}: "
            f"{alignment.share:.1%} of the way from least to most aligned",
            fontsize=10,
        )
    return figure


GRID = (6, 12)  # rows and columns of samples, at most


def plot_samples(samples: Tensor, title: str) -> Figure:
    """A grid of samples on one scale of values, which is shown; lines if they are 1-D."""
    rows = min(GRID[0], int(np.ceil(len(samples) / GRID[1])))
    columns = min(GRID[1], len(samples))
    shown = samples[: rows * columns]
    # -1 is black and 1 white, as in images, unless more than a few outliers go beyond
    low = min(-1.0, float(shown.flatten().quantile(0.02)))
    high = max(1.0, float(shown.flatten().quantile(0.98)))
    image = None
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            rows, columns, figsize=(0.62 * columns + 0.9, 0.62 * rows + 0.5), squeeze=False,
            gridspec_kw={"wspace": 0.06, "hspace": 0.06, "left": 0.02, "right": 0.9,
                         "bottom": 0.03, "top": 1 - 0.42 / (0.62 * rows + 0.5)},
        )  # fmt: skip
        for axes, sample in zip(grid.flat, shown, strict=False):
            if sample.ndim == 3 and len(sample) == 3:
                axes.imshow(((sample - low) / (high - low)).clamp(0, 1).permute(1, 2, 0).numpy())
            elif sample.ndim == 3:
                image = axes.imshow(sample[0].numpy(), cmap="gray", vmin=low, vmax=high)
            else:
                axes.plot(sample.reshape(len(sample), -1).T.numpy(), lw=0.7, color=BLUE)
                axes.set_ylim(1.1 * low, 1.1 * high)
            _bare(axes)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        if image is not None:
            bar = figure.colorbar(image, ax=grid, fraction=0.03, pad=0.02, aspect=8 + 4 * rows)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=7, length=2)
        figure.suptitle(title, fontsize=9, y=0.995)
    return figure


def show_vector(axes: Axes, vector: Tensor) -> None:
    """A direction as a picture: white to black through grey at zero; a line if 1-D."""
    vector = vector if vector.ndim > 1 else vector[None]
    if vector.ndim != 3:
        axes.plot(vector.flatten(1).T.numpy(), lw=0.8)
    else:
        limit = float(vector.abs().max()) or 1.0
        if len(vector) == 3:
            axes.imshow((0.5 + vector / limit / 2).permute(1, 2, 0).numpy())
        else:
            image = vector[vector.flatten(1).norm(dim=1).argmax()]
            axes.imshow(image.numpy(), cmap="gray", vmin=-limit, vmax=limit)
    _bare(axes)


def show_vector_energy(axes: Axes, vector: Tensor) -> None:
    vector = vector if vector.ndim > 1 else vector[None]
    dims = tuple(range(1, vector.ndim))
    energy = torch.fft.fftshift(torch.fft.fftn(vector, dim=dims).abs() ** 2, dim=dims).sum(dim=0)
    if energy.ndim == 2:
        axes.imshow(energy.numpy(), cmap="magma")
    else:
        axes.plot(energy.flatten().numpy(), lw=0.8, color=ORANGE)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
