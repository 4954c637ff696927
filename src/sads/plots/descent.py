"""A picture of gradient descent behind rotations: the best, the worst, and what lies between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from sads.errors import counted
from sads.plots.style import GREEN, GREY, INK, RED, as_text, styled, subplots

FLOOR = 1e-4  # of the losses that are shown


@dataclass(frozen=True, eq=False)
class DescentCurves:
    """The loss above its minimum, in units of its start, for one noise level."""

    minimum: Tensor  # (S,), as all others
    maximum: Tensor
    identity: Tensor
    random: Tensor  # (rotations, S)


@dataclass(frozen=True)
class TrainedCurve:
    """The training loss of networks behind a rotation, mean over several of them."""

    updates: Sequence[float]
    losses: Sequence[float]
    count: int


COLOURS = {"min": GREEN, "max": RED, "identity": INK, "random": GREY}


def plot_descent(
    curves: Mapping[float, DescentCurves],
    steps: Sequence[int],
    title: str,
    trained: Mapping[str, TrainedCurve] | None = None,
) -> Figure:
    """One panel a noise level, and one for networks that were trained, by rotation."""
    count = len(curves) + bool(trained)
    with styled():
        figure, axes = subplots(1, count, figsize=(3.6 * count + 0.6, 3.4), squeeze=False)
        for cell, (sigma, found) in zip(axes[0], curves.items(), strict=False):
            low, high = found.random.amin(dim=0), found.random.amax(dim=0)
            count = len(found.random)
            cell.fill_between(
                steps,
                low,
                high,
                color=GREY,
                alpha=0.6,
                lw=0,
                label=counted(count, "random rotation"),
            )
            cell.plot(steps, found.random.mean(dim=0), color=GREY)
            cell.plot(steps, found.maximum, color=RED, label="maximising rotation")
            cell.plot(steps, found.identity, color=INK, ls="--", label="as they are")
            cell.plot(steps, found.minimum, color=GREEN, label="minimising rotation")
            cell.set(xscale="log", yscale="log", xlabel="steps", title=rf"$\sigma$ = {sigma:g}")
            cell.set_ylim(FLOOR, 2)
        axes[0][0].set_ylabel(r"$(L_t - L^*)\ /\ (L_0 - L^*)$")
        axes[0][0].legend(frameon=False, fontsize=8, loc="lower left")
        if trained:
            cell = axes[0][-1]
            for kind, color in COLOURS.items():
                if (curve := trained.get(kind)) is not None:
                    style = "--" if kind == "identity" else "-"
                    label = f"{kind}, {counted(curve.count, 'network')}"
                    cell.plot(curve.updates, curve.losses, style, color=color, label=label)
            cell.set(xscale="log", yscale="log", xlabel="updates", ylabel="training loss")
            cell.set_title("such networks, trained", fontsize=10)
            cell.legend(frameon=False, fontsize=8)
        figure.suptitle(f"{as_text(title, 120)}: a linear network under gradient descent")
    return figure
