"""Pictures of a geometry: its spectrum with the certificate, and its directions."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sads.geometry.directions import Directions
from sads.geometry.eigenbasis import EQUAL
from sads.geometry.result import Geometry
from sads.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    show_vector,
    show_vector_energy,
    styled,
    subplots,
    title_of,
)
from sads.table1 import figure6_ranks


def plot_spectrum(geometry: Geometry, directions: Directions) -> Figure:
    """Eigenvalues with a band of two standard errors; below, how sure each direction is."""
    rank = np.arange(1, geometry.dimension + 1)
    values, errors = directions.values.numpy(), directions.value_errors.numpy()
    positive = values > EQUAL * values[0]
    with styled():
        figure, (top, bottom) = subplots(2, 1, figsize=(7, 4.8), sharex=True, height_ratios=(3, 2))
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
                len(rank) - zeros / 2,
                np.sqrt(values[positive].min() * values[0]),
                f"{zeros} zero\neigenvalues",
                ha="center",
                va="center",
            )
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
        loc="upper center",
        ncols=3,
        frameon=False,
        fontsize=8,
        bbox_to_anchor=(0.5, 1.22),
        handlelength=1.2,
    )


def plot_directions(geometry: Geometry, directions: Directions) -> Figure:
    """Eigenvectors, and below each its energy over spatial frequencies (zero in the centre)."""
    ranks = figure6_ranks(geometry.dimension)
    with styled():
        figure, axes = subplots(2, len(ranks), figsize=(1.15 * len(ranks), 3.1), squeeze=False)
        for column, rank, vector in zip(axes.T, ranks, directions.select(ranks), strict=True):
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
