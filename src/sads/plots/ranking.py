"""A picture of candidates before training: what every predictor says of each of them."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sads.plots.style import INK, ORANGE, as_text, styled, subplots


def plot_ranking(
    labels: Sequence[str],
    columns: Mapping[str, Sequence[float]],
    ranked_by: Sequence[str],
    title: str,
) -> Figure:
    """A table in colours: candidates in rows, predictors in columns, dark where a number is large.

    Args:
        labels: of the candidates, the best expected first.
        columns: the numbers of each predictor.
        ranked_by: predictors that the order rests on, which are framed; none if there is no order.
    """
    ranks = np.stack([_shares(values) for values in columns.values()], axis=1)  # (rows, columns)
    height, width = ranks.shape
    with styled():
        figure, axes = subplots(figsize=(2.6 + 1.15 * width, 1.3 + 0.27 * height))
        axes.imshow(ranks, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
        for column, (name, values) in enumerate(columns.items()):
            for row, value in enumerate(values):
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=7.5)
            if name in ranked_by:
                frame = axes.axvspan(column - 0.5, column + 0.5, fill=False, ec=ORANGE, lw=2)
                frame.set_clip_on(False)
        axes.set_xticks(range(width), [as_text(name) for name in columns], rotation=20, ha="left")
        axes.xaxis.tick_top()
        axes.set_yticks(range(height), [as_text(label) for label in labels], fontsize=8)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.suptitle(as_text(title, 120), fontsize=9.5, color=INK)
    return figure


def _shares(values: Sequence[float]) -> np.ndarray:
    """The share of the others that each number exceeds, (n,)."""
    numbers = np.asarray(values, dtype=float)
    below = (numbers[:, None] > numbers).sum(axis=1) + (numbers[:, None] == numbers).sum(axis=1) / 2
    return np.asarray((below - 0.5) / max(1, len(numbers) - 1))
