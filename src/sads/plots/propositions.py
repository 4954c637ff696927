"""A picture of Propositions 1 to 3: geometries, and what their closed forms leave out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sads.geometry.result import Geometry
from sads.plots.style import GREEN, RED, frame, styled
from sads.theory.proposition_examples import Example
from sads.theory.propositions import Form, token_lift

FORMULAS = {
    1: "Proposition 1\n$a I + b\\,11^T$",
    2: "Proposition 2\n$I\\otimes A + 11^T\\otimes B$",
    3: "Proposition 3\n$Q\\,(A\\otimes I)\\,Q^T$",
}


def plot_propositions(results: Sequence[tuple[Example, Geometry, Form]]) -> Figure:
    """Every geometry above what the closed form of its proposition leaves unexplained."""
    groups = [
        [r for r in results if r[2].proposition == number]
        for number in sorted({form.proposition for _, _, form in results})
    ]
    with styled():
        figure = Figure(figsize=(1.3 * len(results) + 0.4, 3.9), layout="constrained")
        parts = figure.subfigures(
            1, len(groups), width_ratios=[len(g) for g in groups], squeeze=False
        )
        for part, group in zip(parts[0], groups, strict=True):
            axes = part.subplots(2, len(group), squeeze=False)
            for column, (example, geometry, form) in zip(axes.T, group, strict=True):
                _compare(column, example, geometry, form)
            part.suptitle(FORMULAS[group[0][2].proposition], fontsize=10, fontweight="bold")
            if part is parts[0, 0]:
                axes[0, 0].set_ylabel("estimate of $G$")
                axes[1, 0].set_ylabel("left out by the form")
    return figure


def _compare(column: Any, example: Example, geometry: Geometry, form: Form) -> None:
    matrix = geometry.matrix().numpy()
    limit = np.abs(matrix).max()
    for cell, image in zip(column, (matrix, matrix - _rebuild(form, geometry)), strict=True):
        cell.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        frame(cell)
    head, _, tail = example.name.partition(", ")
    column[0].set_title(f"{head}\n{tail}", fontsize=8)
    text = f"{form.status}\nz = {form.residual_errors:.1f}"
    column[1].set_xlabel(text, fontsize=8, color=GREEN if form.holds else RED)


def _rebuild(form: Form, geometry: Geometry) -> np.ndarray[Any, Any]:
    """The dense matrix that a fitted form stands for."""
    f = form.factors
    size = geometry.dimension
    if form.name == "mlp":
        return float(f["a"]) * np.eye(size) + float(f["b"])
    if form.name == "cnn":
        channels = geometry.shape[0]
        ones = np.ones((channels, channels))
        return np.kron(np.eye(channels), f["A"].numpy()) + np.kron(ones, f["B"].numpy())
    patch = round((size // geometry.shape[0] // len(f["A"])) ** (1 / (len(geometry.shape) - 1)))
    return token_lift(geometry.shape, patch).dense(f["A"]).numpy()
