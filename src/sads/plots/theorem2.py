"""A picture of Theorem 2: the extremes of alpha, and what data rotated to them look like."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from sads.geometry.result import Geometry
from sads.plots.style import GREEN, GREY, INK, RED, as_text, show_image, styled, title_of
from sads.rotations.alignment import Alignment


def plot_theorem2(
    geometry: Geometry,
    alignment: Alignment,
    random_alphas: Tensor,
    samples: Mapping[str, Tensor],
    data_name: str,
) -> Figure:
    """Where data stand between the extremes of alpha, above rows of rotated samples.

    Args:
        random_alphas: of random rotations, drawn as ticks.
        samples: for "min", "identity" and "max", (N, *shape).
    """
    columns = min(10, len(samples["identity"]))
    points = {
        "min": ("$W_{min}$", alignment.minimum, GREEN),
        "identity": ("$I$ (as they are)", alignment.alpha, INK),
        "max": ("$W_{max}$", alignment.maximum, RED),
    }
    with styled():
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1, 2.6))
        top, bottom = halves
        axes = top.subplots()
        axes.axhline(0, color=GREY, lw=2, zorder=0)
        ticks = {"marker": "|", "ms": 14, "mew": 0.6, "ls": "", "color": GREY}
        axes.plot(random_alphas, np.zeros(len(random_alphas)), **ticks)
        middle = (float(random_alphas.median()), 0)
        words = {"xytext": (0, 11), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate("random rotations", middle, color=INK, **words)
        for _, alpha, color in points.values():
            reach = 2 * alpha.error if np.isfinite(alpha.error) else 0.0
            low = min(reach, 0.9 * alpha)  # the axis is logarithmic
            axes.errorbar(alpha, 0, xerr=[[low], [reach]], fmt="o", ms=8, color=color, capsize=4)
        scale = "log" if alignment.maximum > 0 else "linear"  # data that are all zero have no alpha
        axes.set(xscale=scale, yticks=[], ylim=(-1, 1), xlabel=r"alignment $\alpha$")
        axes.spines["left"].set_visible(False)
        title = f"{as_text(data_name)} and {title_of(geometry)}: {alignment.place}"
        axes.set_title(title, fontsize=10)
        grid = bottom.subplots(3, columns, squeeze=False)
        for row, (name, (symbol, alpha, color)) in zip(grid, points.items(), strict=True):
            for cell, image in zip(row, samples[name], strict=False):
                show_image(cell, image)
            text = f"{symbol}\n$\\alpha$ = {alpha:.4g}"
            row[0].set_ylabel(text, color=color, fontsize=9, rotation=0, labelpad=52)
            row[0].yaxis.label.set_verticalalignment("center")
    return figure
