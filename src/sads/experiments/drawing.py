"""Pictures of the figures that training makes: 1, 2, 6, 7 and 8 of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from sads.data.bases import basis
from sads.directions import EQUAL, Directions
from sads.geometry.geometry import Geometry
from sads.plots import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    STYLE,
    show_basis_values,
    show_vector,
    show_vector_energy,
    title_of,
)


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
        axes.set_ylim(0, 1.12 * float(np.nanmax(means + errors, initial=1e-9)))
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
                "hollow: a cluster; each seed trains on another vector of its span",
                fontsize=7.5, color=INK,
            )  # fmt: skip
    return figure


def plot_spheres(
    spheres: Mapping[str, Tensor], rows: Sequence[Mapping[str, Any]], radius: float
) -> Figure:
    """Figure 1: samples in the span of each sphere, coloured by their distance from the span.

    Args:
        spheres: (N, 4), three coordinates in the subspace and the distance from it.
    """
    limit = 1.35 * radius
    turn, height = np.meshgrid(np.linspace(0, 2 * np.pi, 37), np.linspace(0, np.pi, 19))
    ball = radius * np.stack(
        [np.cos(turn) * np.sin(height), np.sin(turn) * np.sin(height), np.cos(height)]
    )
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(8, 4.4), layout="constrained")
        largest = max(float(s[:, 3].quantile(0.95)) for s in spheres.values())
        for place, (row, (end, sphere)) in enumerate(
            zip(rows, spheres.items(), strict=True), start=1
        ):
            axes: Any = figure.add_subplot(1, 2, place, projection="3d")
            axes.plot_wireframe(*ball, color=GREY, lw=0.3, alpha=0.7)
            points = axes.scatter(
                *sphere[:, :3].T.numpy(), c=sphere[:, 3].numpy(), s=4, cmap="viridis",
                vmin=0, vmax=largest, depthshade=False,
            )  # fmt: skip
            axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
            axes.set_box_aspect((1, 1, 1))
            axes.set(xticklabels=[], yticklabels=[], zticklabels=[])
            axes.set_title(
                f"sphere in the most {end} directions\n"
                f"SW$_2$ = {_measured(row, 'SW2')}, MSW$_2$ = {_measured(row, 'MSW2')}",
                fontsize=9,
            )
        figure.colorbar(points, ax=figure.axes, shrink=0.6, label="distance from the subspace")
    return figure


def plot_bases(values: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> Figure:
    """Figure 2: one picture a basis, on one scale of colours; white where nothing was run."""
    known = np.concatenate([v[np.isfinite(v)] for v in values.values()])
    low, high = known.min(), known.max()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(values), figsize=(2.3 * len(values) + 0.8, 2.8), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for place, (name, numbers) in zip(axes[0], values.items(), strict=True):
            image = show_basis_values(place, basis(name, shape), numbers, low, high)
        figure.colorbar(image, ax=axes, label="MSW$_2$", shrink=0.85)
    return figure


def plot_energy_against_distance(
    values: Mapping[str, np.ndarray], energies: Mapping[str, np.ndarray]
) -> Figure:
    """What the geometry says before training against what training gave, vector by vector."""
    colors = dict(zip(values, plt.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
        for name, numbers in values.items():
            axes.plot(
                energies[name], numbers, ".", ms=5, alpha=0.75, color=colors[name], label=name
            )
        axes.set(
            xscale="log", xlabel="$v^T G\\,v$ before training", ylabel="MSW$_2$ after training"
        )
        axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def plot_rotated_samples(
    panel: str, samples: Mapping[str, Tensor], rows: Sequence[Mapping[str, Any]], iterations: int
) -> Figure:
    """Figure 7: a grid of samples for each rotation, as they come, on the scale of the data."""
    side = 8
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(samples), figsize=(3.1 * len(samples), 4.05), squeeze=False, layout="constrained"
        )
        for place, row, images in zip(axes[0], rows, samples.values(), strict=True):
            place.imshow(_grid(images[: side * side], side), cmap="gray", vmin=0, vmax=1)
            place.set_axis_off()
            text = f"{ROTATIONS[row['rotation']]}\n$\\alpha$ = {row['alpha']:.4g}, "
            text += f"MSW$_2$ = {_measured(row, 'MSW2')}"
            if "without digit" in row:
                text += f"\nwithout a digit: {row['without digit']:.0%}"
            place.set_title(text, fontsize=9)
        figure.suptitle(f"{panel}: uncurated samples after {iterations:,} updates", fontsize=10)
    return figure


def plot_distance_against_alpha(panel: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Figure 8: SW2 against alpha, one curve for each number of updates."""
    stages = sorted({row["updates"] for row in rows})
    colors = plt.get_cmap("viridis")(np.linspace(0.85, 0, len(stages)))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
        for stage, color in zip(stages, colors, strict=True):
            points = [row for row in rows if row["updates"] == stage]
            alpha = [row["alpha"] for row in points]
            errors = np.nan_to_num([row["SW2 error"] for row in points])
            axes.errorbar(
                alpha, [row["SW2"] for row in points], errors, color=color, lw=1, capsize=2,
                marker="o", ms=4, label=f"{stage:,} updates",
            )  # fmt: skip
        axes.set(xscale="log", yscale="log")
        top = axes.get_ylim()[1]
        labels: list[tuple[float, str]] = []  # neighbours that would overlap share one
        for row in (row for row in rows if row["updates"] == stages[0]):
            axes.axvline(row["alpha"], color=GREY, lw=0.5, zorder=0)
            if labels and row["alpha"] < 1.06 * labels[-1][0]:
                labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {row['rotation']}")
            else:
                labels.append((row["alpha"], row["rotation"]))
        for place, text in labels:
            axes.text(place, top, f" {text}", rotation=60, fontsize=7, va="bottom", color=INK)
        axes.set(xlabel="alignment $\\alpha$", ylabel="SW$_2$ (mean ± s.e.)")
        axes.legend(frameon=False, fontsize=8)
        axes.set_title(f"{panel}, {rows[0]['seeds']} seeds", fontsize=10, pad=44, loc="left")
    return figure


def plot_distance_along_training(panel: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """SW2 against updates, a curve for each rotation, coloured by alpha."""
    kinds = list(dict.fromkeys(row["rotation"] for row in rows))  # by alpha
    colors = dict(zip(kinds, plt.get_cmap("coolwarm")(np.linspace(0, 1, len(kinds))), strict=True))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        for kind in kinds:
            points = [row for row in rows if row["rotation"] == kind]
            errors = np.nan_to_num([row["SW2 error"] for row in points])
            axes.errorbar(
                [row["updates"] for row in points], [row["SW2"] for row in points], errors,
                color=INK if kind == "identity" else colors[kind], capsize=2, marker="o", ms=3,
                lw=2 if kind in ROTATIONS else 1, ls="-" if kind in ROTATIONS else "--",
                label=f"{kind}, $\\alpha$ = {points[0]['alpha']:.3g}",
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="updates", ylabel="SW$_2$ (mean ± s.e.)")
        stages = sorted({row["updates"] for row in rows})
        axes.set_xticks(stages, [f"{stage:,}" for stage in stages])
        axes.set_xticks([], minor=True)
        axes.legend(frameon=False, fontsize=7.5, bbox_to_anchor=(1, 1), loc="upper left")
        axes.set_title(f"{panel}, {rows[0]['seeds']} seeds", fontsize=10)
    return figure


ROTATIONS = {"min": "$W_{min}$", "identity": "no rotation", "max": "$W_{max}$"}


def _grid(images: Tensor, side: int) -> np.ndarray:
    """Images in [-1, 1] as one picture in [0, 1], (rows, columns[, 3]), with seams between."""
    shown = (0.5 + images / 2).clamp(0, 1)
    channels, height, width = shown.shape[1:]
    count = -(-len(shown) // side)
    canvas = torch.full((channels, count * (height + 1) - 1, side * (width + 1) - 1), 0.7)
    for i, image in enumerate(shown):
        y, x = (i // side) * (height + 1), (i % side) * (width + 1)
        canvas[:, y : y + height, x : x + width] = image
    return canvas.permute(1, 2, 0).squeeze(-1).numpy()


def _measured(row: Mapping[str, Any], name: str) -> str:
    error = row[f"{name} error"]
    return f"{row[name]:.3g}" + ("" if np.isnan(error) else f" ± {error:.1g}")
