"""A picture of how data lie in a geometry."""

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from sads.geometry.eigenbasis import EQUAL
from sads.geometry.result import Geometry
from sads.plots.style import BLUE, GREEN, INK, RED, as_text, styled, subplots, title_of
from sads.rotations.alignment import Alignment, DataSpectrum


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
    with styled():
        figure, (left, right) = subplots(1, 2, figsize=(9, 3.8), width_ratios=(3, 2))
        for order, color, name, alpha in (
            (sorted_energies, RED, "maximum", alignment.maximum),
            (sorted_energies[::-1], GREEN, "minimum", alignment.minimum),
        ):
            shown = (order > floor) & (values > EQUAL * values[0])
            left.plot(
                values[shown],
                order[shown],
                color=color,
                lw=1.6,
                alpha=0.9,
                label=f"{name}: $\\alpha$ = {alpha:.3g}",
            )
        shown = (energies > floor) & (values > EQUAL * values[0])
        left.plot(
            values[shown],
            energies[shown],
            ".",
            ms=3.5,
            color=BLUE,
            alpha=0.7,
            label=f"as it is: $\\alpha$ = {alignment.alpha:.3g}",
        )
        scale = "log" if energies.any() else "linear"  # data that are all zero have no energy
        left.set(
            xscale="log",
            yscale=scale,
            xlabel="eigenvalue of the network, $\\lambda_i$",
            ylabel="energy of the data along $u_i$",
        )
        left.legend(
            frameon=False,
            fontsize=8,
            ncols=3,
            loc="lower center",
            bbox_to_anchor=(0.5, 1),
            handlelength=1.2,
            columnspacing=1,
        )
        left.invert_xaxis()  # as in all pictures of a spectrum: from most avoided to most preferred
        left.text(0.01, 0.02, "← most avoided", transform=left.transAxes)
        left.text(0.99, 0.02, "most preferred →", transform=left.transAxes, ha="right")
        shares, errors = (100 * z.numpy() for z in (spectrum.shares.values, spectrum.shares.errors))
        finite = np.where(np.isfinite(errors), errors, 0)
        tenth = np.arange(1, len(shares) + 1)
        right.bar(tenth, shares, color=BLUE, yerr=2 * finite, ecolor=INK)
        for x, share, error in zip(tenth, shares, finite, strict=True):
            right.text(x, share + 2 * error, f"{share:.2g}", ha="center", va="bottom", fontsize=7)
        right.set(xlabel="tenth of the directions", ylabel="energy of the data (%)", xticks=[1, 10])
        right.set_xticklabels(["most avoided", "most preferred"])
        figure.suptitle(
            f"{as_text(data_name)} in the geometry of {title_of(geometry)}: {alignment.place}",
            fontsize=10,
        )
    return figure
