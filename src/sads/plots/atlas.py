"""The atlas in one picture: directions of every network, and its three curves on common axes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sads.atlas.entry import Curve, Directions, Entry
from sads.errors import counted
from sads.plots.style import GREY, INK, as_text, frame, styled, subplots

UNETS = ("#0b3c6f", "#2563a8", "#4f93d2", "#8fc1ea", "#2a9d8f", "#6b7f99")
GAP = 0.25  # between the places of two numbers that no line connects
WINDOW = 10  # pixels of a side that are shown larger
TRANSFORMERS = ("#b3400a", "#e07b1a", "#f2b134", "#a3315f", "#d46a8c")


def plot_atlas(entries: Sequence[tuple[Entry, Directions]]) -> Figure:
    """Two rows of directions, and spectra and energies of all networks below them."""
    colors = _colors([entry for entry, _ in entries])
    columns = max(3, len(entries))
    with styled():
        figure = Figure(figsize=(max(9.0, 1.45 * columns), 7.4), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.08, 1.0), squeeze=False)[:, 0]
        _show_directions(upper, entries, colors)
        axes = lower.subplots(1, 3)
        for entry, _ in entries:
            style = "-" if entry.kind == "U-Net" else (0, (4, 1.2))
            for place, curve in zip(
                axes, (entry.spectrum, entry.frequency, entry.border), strict=True
            ):
                _draw(place, curve, colors[entry.name], style, entry.title)
        _label(axes)
    return figure


def plot_portrait(entry: Entry, directions: Directions) -> Figure:
    """One network: its outermost directions, and energy against frequency between them."""
    with styled():
        count = min(3, len(directions.avoided), len(directions.preferred))
        figure, axes = subplots(
            1, 2 * count + 1, figsize=(1.75 * 2 * count + 3.4, 2.5), width_ratios=_widths(count)
        )
        shown = [*directions.avoided[:count], *directions.preferred[:count].flip(0)]
        places = [*axes[:count], *axes[count + 1 :]]
        for number, (place, image) in enumerate(zip(places, shown, strict=True)):
            if number < count or entry.smallest > 0:
                _image(place, image)
            else:
                _unresolved(place)
        largest, smallest = _eigenvalues(entry)
        places[0].set_title(f"most avoided, {largest} mean", fontsize=8)
        places[-1].set_title(f"most preferred, {smallest} mean", fontsize=8)
        middle = axes[count]
        _draw(middle, entry.frequency, UNETS[1], "-", entry.title)
        middle.axhline(1, color=GREY, lw=0.8, ls=":")
        middle.set(yscale="log", xlabel="frequency (1: checkerboard)", ylabel="energy / mean")
        middle.tick_params(labelsize=7)
        size = "exact" if entry.exact else counted(entry.networks, "untrained network")
        figure.suptitle(
            f"{as_text(entry.title)}: {_count(entry.parameters)} parameters, {size}", fontsize=10
        )
    return figure


def _widths(count: int) -> list[float]:
    return [1.0] * count + [2.0] + [1.0] * count


def _show_directions(
    figure: Figure, entries: Sequence[tuple[Entry, Directions]], colors: dict[str, str]
) -> None:
    axes = figure.subplots(2, len(entries), squeeze=False)
    for column, (entry, directions) in zip(axes.T, entries, strict=True):
        _image(column[0], directions.avoided[0])
        if entry.smallest > 0:
            _image(column[1], directions.preferred[0])
        else:
            _unresolved(column[1])
        size = "exact" if entry.exact else counted(entry.networks, "network")
        column[0].set_title(
            f"{as_text(entry.title)}\n{_count(entry.parameters)}, {size}",
            fontsize=7.5,
            color=colors[entry.name],
        )
        for place, eigenvalue in zip(column, _eigenvalues(entry), strict=True):
            place.set_xlabel(eigenvalue, fontsize=7)
    axes[0, 0].set_ylabel("most avoided")
    axes[1, 0].set_ylabel("most preferred")


def _image(axes: Axes, image: Tensor) -> None:
    """A direction; of a fine one some pixels again, so large that they can be told apart."""
    limit = float(image.abs().max()) or 1.0
    gray: dict[str, Any] = {"cmap": "gray", "vmin": -limit, "vmax": limit}
    axes.imshow(image.numpy(), interpolation="nearest", **gray)
    frame(axes)
    rough = float((image[1:] - image[:-1]).square().sum() / image.square().sum())
    if min(image.shape) < 3 * WINDOW or rough < 1:  # 4 for a checkerboard, 0 for a constant
        return
    place = int(image.abs().flatten().argmax())
    row, column = (
        min(max(0, n - WINDOW // 2), size - WINDOW)
        for n, size in zip(divmod(place, image.shape[1]), image.shape, strict=True)
    )
    inset = axes.inset_axes((0.62, 0.02, 0.36, 0.36))
    inset.imshow(image[row : row + WINDOW, column : column + WINDOW].numpy(), **gray)
    frame(inset)
    for spine in inset.spines.values():
        spine.set_color("white")
        spine.set_linewidth(1.2)


def _unresolved(axes: Axes) -> None:
    """Where eigenvalues cannot be told from zero, and directions are accidents."""
    axes.text(0.5, 0.5, "not\nresolved", ha="center", va="center", fontsize=8, color=GREY)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    frame(axes)


def _draw(axes: Axes, curve: Curve, color: str, style: object, label: str) -> None:
    places, values, errors = (np.array(x, dtype=float) for x in vars(curve).values())
    gaps = np.flatnonzero(np.diff(places) > GAP) + 1  # between the ends of what has no matrix
    places, values, errors = (np.insert(x, gaps, np.nan) for x in (places, values, errors))
    positive = ~(values <= 0)
    places, values, errors = places[positive], values[positive], errors[positive]
    sure = np.isfinite(errors)
    known = np.where(sure, errors, 0.0)
    low = np.maximum(values - 2 * known, values / 10)
    axes.fill_between(places, low, values + 2 * known, color=color, alpha=0.2, lw=0)
    axes.plot(places, values, color=color, ls=style, lw=1.0, alpha=0.35)  # errors not known
    shown = np.where(sure, values, np.nan)
    axes.plot(places, shown, color=color, ls=style, lw=1.3, label=as_text(label))


def _label(axes: Sequence[Axes]) -> None:
    spectrum, frequency, border = axes
    for place in axes:
        place.axhline(1, color=GREY, lw=0.8, ls=":")
        place.set_yscale("log")
    spectrum.set(xlabel="rank / number of ranks", title="spectrum")
    spectrum.set_ylabel("in units of the mean eigenvalue")
    frequency.set(xlabel="frequency (1: checkerboard)", title="energy against frequency")
    border.set(xlabel="distance from the border (1: centre)", title="energy against the border")
    many = len(spectrum.get_legend_handles_labels()[1]) > 5
    spectrum.legend(  # above the curves, which fall at once
        loc="upper right",
        ncols=2 if many else 1,
        fontsize=6.5,
        frameon=False,
        labelcolor=INK,
    )


def _colors(entries: Sequence[Entry]) -> dict[str, str]:
    colors, used = {}, {"U-Net": 0, "transformer": 0}
    for entry in entries:
        palette = UNETS if entry.kind == "U-Net" else TRANSFORMERS
        colors[entry.name] = palette[used[entry.kind] % len(palette)]
        used[entry.kind] += 1
    return colors


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _eigenvalues(entry: Entry) -> tuple[str, str]:
    """The largest and the smallest in units of the mean one, or what bounds them."""
    least, most = ("\\geq", "\\leq") if entry.bounded else ("=", "=")
    return (
        f"$\\lambda {least}$ {_short(entry.largest / entry.mean)}",
        f"$\\lambda {most}$ {_short(entry.smallest / entry.mean)}",
    )


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 1e-3 or value == 0:
        return f"{value:.2g}"
    exponent = math.floor(math.log10(value))
    return f"{value / 10**exponent:.1f}$\\cdot 10^{{{exponent}}}$"
