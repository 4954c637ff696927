"""A comparison in one picture: spectra, energies against frequency, principal angles."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sads.estimates import Estimates
from sads.geometry.compare import Comparison, Pair
from sads.geometry.profile import frequency_profile
from sads.geometry.result import Geometry
from sads.plots.style import BLUE, GREEN, GREY, INK, ORANGE, RED, as_text, styled, subplots

SHORT = 24  # characters of a name beside another one
COLORS = (BLUE, ORANGE, GREEN, RED, INK, GREY)


def plot_comparison(comparison: Comparison, geometries: Sequence[Geometry]) -> Figure:
    """Dots above a curve mark where the first two geometries differ significantly."""
    with styled():
        figure, axes = subplots(1, 3, figsize=(11, 3.4))
        for color, name, geometry in zip(
            np.resize(COLORS, len(geometries)), comparison.names, geometries, strict=True
        ):
            found, mean = geometry.directions(), geometry.trace / geometry.dimension
            ranks = (np.arange(geometry.dimension) + 0.5) / geometry.dimension
            spectrum = Estimates(found.values / mean, found.value_errors / mean)
            _draw(axes[0], ranks, spectrum, color, name)
            if len(geometry.shape) == 1:
                continue  # no frequencies
            profile = frequency_profile(geometry)
            _draw(axes[1], profile.places.numpy(), profile.energies, color, name)
        _mark(axes[0], comparison.pairs[0], "spectrum")
        _mark(axes[1], comparison.pairs[0], "frequency")
        for place in axes[:2]:
            place.axhline(1, color=GREY, lw=0.8, ls=":")
            place.set_yscale("log")
        axes[0].set(xlabel="rank / dimension", ylabel="in units of the mean", title="spectrum")
        axes[1].set(xlabel="frequency (1: checkerboard)", title="energy against frequency")
        axes[0].legend(fontsize=7, frameon=False)
        _plot_angles(axes[2], comparison)
    return figure


def _draw(axes: Axes, places: np.ndarray, curve: Estimates, color: str, name: str) -> None:
    values, errors = curve.values.numpy(), curve.errors.numpy()
    positive = values > 0
    places, values, errors = places[positive], values[positive], errors[positive]
    known = np.where(np.isfinite(errors), errors, 0.0)
    low = np.maximum(values - 2 * known, values / 10)
    axes.fill_between(places, low, values + 2 * known, color=color, alpha=0.25, lw=0)
    axes.plot(places, values, color=color, lw=1.2, label=as_text(name))


def _mark(axes: Axes, pair: Pair, what: str) -> None:
    """Dots where a difference is significant."""
    found = [d for d in pair.differences if d.what == what and d.significant]
    tops = [1.6 * max(d.first, d.second) for d in found]
    label = "the first two differ" if found else None
    axes.plot([d.place for d in found], tops, ".", color=INK, ms=3, label=label)


def _plot_angles(axes: Axes, comparison: Comparison) -> None:
    for color, pair in zip(np.resize(COLORS, len(comparison.pairs)), comparison.pairs, strict=True):
        for end, style in ((pair.avoided, "-"), (pair.preferred, "--")):
            if end.unknown is not None:
                continue
            angles = np.degrees(end.angles)
            axes.plot(
                np.arange(1, len(angles) + 1),
                angles,
                color=color,
                ls=style,
                marker=".",
                lw=1,
                label=f"{as_text(pair.first, SHORT)}, {as_text(pair.second, SHORT)}: {end.side}",
            )
            if math.isfinite(end.noise):
                each = math.degrees(min(end.noise / math.sqrt(len(angles)), math.pi / 2))
                axes.axhline(each, color=color, ls=style, lw=0.5, alpha=0.6)
    axes.set(
        xlabel="principal angle (thin: of noise alone)",
        ylabel="degrees",
        title="ends",
        ylim=(-3, 93),
    )
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=6.5, frameon=False)
    else:
        axes.text(0.5, 0.5, "unknown", ha="center", transform=axes.transAxes)
