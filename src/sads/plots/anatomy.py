"""One picture of where a model is wrong: by noise level, by direction, and while sampling."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor

from sads.diffusion.anatomy import Anatomy, Spectrum, Walk
from sads.errors import counted
from sads.plots.style import BLUE, GREY, INK, ORANGE, as_text, styled, subplots

FEW = 8  # components that are drawn as lines; more are a map
LEAST = 1e-8  # below that is rounding
DECADES = 2.0  # of the colours, either way


def plot_anatomy(
    anatomy: Anatomy, title: str, walk: Walk | None = None, spectrum: Spectrum | None = None
) -> Figure:
    """Loss by level, error along and off the data, the sampler's states, and maps by direction."""
    with styled():
        figure, axes = subplots(2, 3, figsize=(12.4, 6.6))
        _plot_loss(axes[0, 0], anatomy)
        _plot_parts(axes[0, 1], anatomy)
        _plot_walk(axes[0, 2], walk)
        _plot_components(figure, axes[1, 0], anatomy)
        _plot_directions(figure, axes[1, 1], anatomy)
        _plot_spectrum(axes[1, 2], spectrum)
        summary = anatomy.summary
        figure.suptitle(
            f"{as_text(title, 120)}\nloss {summary.loss} = {summary.along} along the data "
            f"({counted(summary.num_along, 'component')}) + {summary.off} off them; best linear "
            f"prediction {summary.linear:.4g}",
            fontsize=10,
        )
    return figure


def _plot_loss(axes: Axes, anatomy: Anatomy) -> None:
    summary = anatomy.summary
    axes.plot(summary.levels, _positive(summary.level_losses), "o-", ms=3, color=BLUE)
    axes.plot(summary.levels, _positive(anatomy.linear_losses), color=GREY, label="best linear")
    axes.axhline(1, color=INK, lw=0.8, ls=":", label="to say nothing")
    axes.set(yscale="log", xlabel="noise level", ylabel=r"$E|\hat\epsilon - \epsilon|^2 / D$")
    axes.set_title("denoising loss by level", fontsize=9)
    axes.legend(frameon=False, fontsize=7.5)


def _plot_parts(axes: Axes, anatomy: Anatomy) -> None:
    levels = anatomy.summary.levels
    for values, color, name in (
        (anatomy.along, BLUE, "along the data"),
        (anatomy.off, ORANGE, "off the data"),
    ):
        axes.plot(levels, _positive(values), "o-", ms=3, color=color, label=name)
        axes.plot(levels, _positive(values * anatomy.amplification**2), ls="--", color=color)
    axes.plot([], [], ls="--", color=INK, label="as an error of $x_0$")
    axes.set(yscale="log", xlabel="noise level", ylabel="squared error, a coordinate")
    axes.set_title("error of the noise, and of the $x_0$ it implies", fontsize=9)
    axes.legend(frameon=False, fontsize=7.5)


def _plot_walk(axes: Axes, walk: Walk | None) -> None:
    if walk is None:
        axes.set_axis_off()
        return
    levels = np.array(walk.levels) + 1  # the sample itself is at 0
    for values, right, color, name in (
        (walk.along, walk.right_along, BLUE, "along the data"),
        (walk.off, walk.right_off, ORANGE, "off the data"),
    ):
        axes.plot(levels, _positive(values), color=color, label=name)
        axes.plot(levels, _positive(right), ls=":", lw=1.6, color=color)
    axes.plot([], [], ls=":", color=INK, label="if all were right")
    axes.invert_xaxis()
    axes.set(yscale="log", xlabel="noise level, downwards", ylabel="energy, a coordinate")
    axes.set_title(f"states of the sampler ({as_text(walk.described)})", fontsize=9)
    axes.legend(frameon=False, fontsize=7.5)


def _plot_components(figure: Figure, axes: Axes, anatomy: Anatomy) -> None:
    ratio = anatomy.components.numpy() / np.maximum(anatomy.linear.numpy(), LEAST)
    axes.set_title("error along the data's components / best linear", fontsize=9)
    if ratio.shape[1] > FEW:
        _show_map(figure, axes, ratio, anatomy, "component, largest variance first")
        return
    for i, column in enumerate(ratio.T):
        axes.plot(anatomy.summary.levels, _positive(column), label=f"component {i + 1}")
    axes.axhline(1, color=INK, lw=0.8, ls=":")
    axes.set(yscale="log", xlabel="noise level", ylabel="ratio")
    axes.legend(frameon=False, fontsize=7.5)


def _plot_directions(figure: Figure, axes: Axes, anatomy: Anatomy) -> None:
    if anatomy.directions is None:
        axes.set_axis_off()
        return
    values = anatomy.directions.numpy()
    ratio = values / np.maximum(values.mean(axis=1, keepdims=True), LEAST)
    axes.set_title("error along the directions $u_i$ / mean of the level", fontsize=9)
    _show_map(figure, axes, ratio, anatomy, "direction, most avoided first")


def _show_map(figure: Figure, axes: Axes, ratio: Any, anatomy: Anatomy, what: str) -> None:
    """Ratios (L, n) in colours: red above one, blue below."""
    levels = anatomy.summary.levels
    shown = np.log10(_positive(ratio))
    image = axes.imshow(
        shown,
        aspect="auto",
        origin="lower",
        cmap="RdBu_r",
        norm=TwoSlopeNorm(0, -DECADES, DECADES),
        extent=(0.5, ratio.shape[1] + 0.5, levels[0], levels[-1]),
        interpolation="nearest",
    )
    axes.set(xlabel=what, ylabel="noise level")
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, extend="both")
    ticks = (-2, -1, 0, 1, 2)
    bar.set_ticks(ticks, labels=[f"{10.0**tick:g}" for tick in ticks])
    bar.ax.tick_params(labelsize=7, length=2)


def _plot_spectrum(axes: Axes, spectrum: Spectrum | None) -> None:
    if spectrum is None:
        axes.set_axis_off()
        return
    places = np.arange(1, len(spectrum.data) + 1)
    few = len(places) <= FEW
    axes.plot(places, _positive(spectrum.data), "o" if few else "-", color=INK, label="data")
    axes.plot(places, _positive(spectrum.samples), "o" if few else "-", color=BLUE, label="samples")
    if spectrum.samples_off > LEAST:
        axes.axhline(spectrum.samples_off, color=ORANGE, lw=1, label="samples, off all of these")
    axes.set(yscale="log", xlabel="component, largest variance first", ylabel="energy")
    axes.set_title("energy of samples and data by component", fontsize=9)
    axes.legend(frameon=False, fontsize=7.5)


def _positive(values: Tensor | Any) -> Any:
    """Values for a logarithmic scale: what is too small for it is raised to its least."""
    return np.maximum(np.asarray(values, dtype=float), LEAST)
