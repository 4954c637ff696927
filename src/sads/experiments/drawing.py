"""Pictures of the figures that training makes: 1, 2, 6, 7 and 8 of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from sads.directions import EQUAL, Directions
from sads.geometry.geometry import Geometry
from sads.plots import BLUE, INK, ORANGE, STYLE, show_vector, show_vector_energy, title_of


def plot_training_along_directions(
    geometry: Geometry, directions: Directions, rows: Sequence[Mapping[str, Any]]
) -> Figure:
    """A panel of Figure 6: MSW2 against rank, eigenvalues, eigenvectors and their spectra.

    A hollow point stands for a cluster: every seed trained on another vector of its subspace.
    """
    ranks = [row["rank"] for row in rows]
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(0.75 * len(rows) + 1.6, 5.0), layout="constrained")
        grid = figure.add_gridspec(3, len(rows), height_ratios=(3.2, 1, 1))
        axes = figure.add_subplot(grid[0, :])
        means = np.array([row["MSW2"] for row in rows])
        errors = np.nan_to_num(np.array([row["MSW2 error"] for row in rows], dtype=float))
        places = np.arange(len(rows))
        axes.errorbar(places, means, errors, color=BLUE, lw=1.5, capsize=3, zorder=3)
        for place, row in enumerate(rows):
            face = BLUE if row["cluster of"] == 1 else "white"
            axes.plot(place, row["MSW2"], "o", ms=6, mec=BLUE, mfc=face, zorder=4)
        axes.set_ylabel("MSW$_2$ (mean ± s.e.)", color=BLUE)
        axes.set_ylim(bottom=0)
        axes.set_xticks(places, [f"$u_{{{rank + 1}}}$" for rank in ranks])
        axes.set_xlim(-0.5, len(rows) - 0.5)
        right = axes.twinx()
        values = directions.values[ranks].numpy() / float(directions.values[0])
        shown = values > EQUAL
        right.plot(places[shown], values[shown], "s--", ms=4, lw=1, color=ORANGE)
        right.set(yscale="log")
        right.set_ylabel("eigenvalue / largest", color=ORANGE)
        right.spines["right"].set_visible(True)
        if not shown.all():
            right.text(
                0.98, 0.03, f"λ = 0 from $u_{{{ranks[int(shown.sum())] + 1}}}$ on", color=ORANGE,
                transform=right.transAxes, ha="right", fontsize=8,
            )  # fmt: skip
        seeds = max(row["seeds"] for row in rows)
        axes.set_title(f"{title_of(geometry)}; {seeds} seed{'s' * (seeds > 1)}", fontsize=10)
        for place, row in enumerate(rows):
            top, bottom = (figure.add_subplot(grid[i, place]) for i in (1, 2))
            show_vector(top, directions.vectors[row["rank"]])
            show_vector_energy(bottom, directions.vectors[row["rank"]])
            of = row["cluster of"]
            bottom.set_xlabel("resolved" if of == 1 else f"one of {of}", fontsize=7)
            if place == 0:
                top.set_ylabel("vector", fontsize=8)
                bottom.set_ylabel("Fourier\nenergy", fontsize=8)
        if any(row["cluster of"] > 1 for row in rows):
            figure.supxlabel(
                "hollow: a cluster that cannot be told apart; each seed another vector of its span",
                fontsize=7.5, color=INK,
            )  # fmt: skip
    return figure
