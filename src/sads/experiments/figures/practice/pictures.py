"""Pictures: every practice, errors by noise level, samples, and the course of a training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from sads.experiments.figures.practice.arms import RANDOM, SKIP, TESTED, X0, Done, V, data_of
from sads.experiments.figures.practice.table import Way
from sads.experiments.spec import PAPER, Practice
from sads.schedule import Schedule
from sads.tables import format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ACROSS = 24  # samples in a row of the picture
COLOURS = {"identity": "INK", "min": "GREEN", "max": "RED", RANDOM: "BLUE"}


def plot_ways(name: str, rows: Sequence[Way], nothing: Sequence[Way]) -> "Picture":
    """SW2 and the held-out loss of every practice, a mark for each rotation."""
    from sads.plots import style

    practices = list(dict.fromkeys(row.practice for row in rows))
    shown = [row for row in rows if row.rotation in COLOURS]
    with style.styled():
        picture, (left, right) = style.subplots(
            1, 2, figsize=(10.4, 0.34 * len(practices) + 1.7), sharey=True
        )
        for kind, colour in COLOURS.items():
            marks = [row for row in shown if row.rotation == kind]
            if not marks:
                continue
            color = getattr(style, colour)
            places = np.array([practices.index(row.practice) for row in marks])
            places = places + 0.14 * (list(COLOURS).index(kind) - 1.5)
            for axes, numbers in ((left, [r.sw2 for r in marks]), (right, [r.loss for r in marks])):
                known = [i for i, number in enumerate(numbers) if number is not None]
                values = [float(numbers[i] or 0) for i in known]
                errors = [getattr(numbers[i], "error", 0) for i in known]
                axes.errorbar(
                    values,
                    places[known],
                    xerr=np.nan_to_num(errors),
                    fmt="o",
                    ms=4,
                    color=color,
                    capsize=2,
                    label={"identity": "no rotation", RANDOM: "random rotation"}.get(kind, kind),
                )
                hollow = [i for i in known if marks[i].failed]
                if axes is left:
                    axes.plot(
                        [float(numbers[i] or 0) for i in hollow],
                        places[hollow],
                        "o",
                        ms=4,
                        mec=color,
                        mfc="white",
                        zorder=4,
                    )
        for row in nothing:
            color = style.GREEN if row.practice == "real data" else style.RED
            for axes, number in ((left, row.sw2), (right, row.loss)):
                if number is None:
                    continue
                text = "best linear prediction" if axes is right else row.practice
                text = text.removesuffix(" with the data's moments")
                axes.axvline(float(number), color=color, lw=0.9, ls=":", zorder=0)
                axes.text(
                    float(number), -0.75, text, rotation=50, fontsize=6.5, color=color, va="bottom"
                )
        left.set(xscale="log", xlabel="SW$_2$ (mean ± s.e. over seeds)")
        left.set_yticks(range(len(practices)), practices)
        left.set_ylim(len(practices) - 0.5, -0.8)
        right.set_xlabel("held-out denoising loss, $E|\\hat\\epsilon - \\epsilon|^2/D$")
        handles, labels = left.get_legend_handles_labels()
        picture.legend(handles, labels, frameon=False, fontsize=7.5, loc="outside right upper")
        failed = "; hollow: diverged or not trained" if any(r.failed for r in shown) else ""
        seeds = sorted({row.seeds or 0 for row in rows})
        count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        picture.suptitle(f"{name}, {count} seed{'s' * (seeds[-1] > 1)}{failed}", fontsize=9.5)
    return picture


def plot_levels(name: str, done: Done) -> "Picture":
    """The held-out loss by noise level: by rotation in the paper's way, and by practice without.

    At noisy levels a sampler divides the error of a noise prediction by `sqrt(abar)`: dashed is the
    error of the `x_0` that it implies.
    """
    from sads.plots import style

    rotations = {kind: (PAPER, kind) for kind in COLOURS}
    trainings = {"noise": PAPER, "v": V, "$x_0$": X0, "noise, Gaussian skip": SKIP}
    predictions = {f"predicts {label}": (way, "identity") for label, way in trainings.items()}
    schedule = Schedule()
    with style.styled():
        picture, axes = style.subplots(1, 2, figsize=(9.4, 3.6), sharey=True)
        for place, pairs in zip(axes, (rotations, predictions), strict=True):
            colors = (style.INK, style.GREEN, style.RED, style.BLUE)
            for color, (label, pair) in zip(colors, pairs.items(), strict=True):
                wrong = [
                    record.last.denoising
                    for (practice, kind, _), record in done.items()
                    if (practice, kind) == pair and record.last.denoising is not None
                ]
                if not wrong:
                    continue
                levels = list(wrong[0].levels)
                losses = np.mean([found.level_losses for found in wrong], axis=0)
                clean = losses * (1 / schedule.abar[levels] - 1).numpy()
                text = {"identity": "no rotation"}.get(label, label)
                place.plot(levels, losses, color=color, label=f"{text} ({len(wrong)})")
                place.plot(levels, clean, color=color, lw=0.9, ls="--")
            place.plot([], [], color=style.GREY, ls="--", label="as an error of $x_0$")
            place.set(yscale="log", xlabel="noise level")
            place.legend(frameon=False, fontsize=7.5)
        axes[0].set_ylabel("squared error, a coordinate")
        axes[0].set_title("noise prediction, by rotation (number of models)", fontsize=9)
        axes[1].set_title("no rotation, by prediction", fontsize=9)
        picture.suptitle(f"{name}: held-out denoising error by noise level", fontsize=9.5)
    return picture


def plot_samples(
    name: str,
    samples: Mapping[tuple[Practice, str], Tensor],
    rows: Sequence[Way],
    nothing: Sequence[Way],
) -> "Picture":
    """Samples of one seed, a row for each practice and rotation, with what they score beside."""
    from sads.plots.style import styled, subplots
    from sads.plots.training import grid_of

    known = {(row.practice, row.rotation): row for row in rows}
    labels = {practice: label for label, practice in TESTED.items()}
    order = sorted(samples, key=lambda pair: (list(labels).index(pair[0]), pair[1]))
    with styled():
        picture, axes = subplots(len(order), figsize=(8.2, 0.95 * len(order) + 0.8), squeeze=False)
        for place, pair in zip(axes[:, 0], order, strict=True):
            row = known[str(pair[0]), pair[1]]
            place.imshow(grid_of(samples[pair][: 2 * ACROSS], ACROSS), aspect="auto")
            place.set_axis_off()
            turned = {"identity": "no rotation", "min": "minimising rotation"}
            kind = turned.get(row.rotation, "random rotation")
            text = f"{labels[pair[0]]}, {kind}: SW$_2$ {row.sw2}, {row.state}"
            if row.without_digit is not None:
                text += f"; without a digit {row.without_digit.value:.0%}"
            place.set_title(text, fontsize=8.5, loc="left")
        scores = ", ".join(f"{row.practice} {format_value(row.sw2)}" for row in nothing)
        blank = [row for row in nothing if row.without_digit is not None]
        text = f"{data_of(name)}: SW$_2$ of {scores}"
        if blank:
            shares = ", ".join(
                f"{row.practice} {float(row.without_digit or 0):.0%}" for row in blank
            )
            text += f"\nwithout a digit: {shares}"
        picture.suptitle(text, fontsize=9.5)
        picture.supxlabel("red: above the data's range, blue: below it", fontsize=8)
    return picture


def plot_course(name: str, done: Done, nothing: Sequence[Way]) -> "Picture":
    """SW2 and the held-out loss along training, a colour for each rotation."""
    from sads.plots import style

    shown = [(label, way) for label, way in TESTED.items() if any(key[0] == way for key in done)]
    with style.styled():
        picture, axes = style.subplots(
            2, len(shown), figsize=(3.1 * len(shown) + 0.6, 5.4), sharex=True, sharey="row"
        )
        axes = np.reshape(axes, (2, len(shown)))
        for (label, way), (above, below) in zip(shown, axes.T, strict=True):
            for kind, colour in COLOURS.items():
                records = [r for key, r in done.items() if key[:2] == (way, kind)]
                if not records:
                    continue
                stages = records[0].cell.evaluations
                drawn = {"color": getattr(style, colour), "marker": "o", "ms": 3}
                text = {"identity": "no rotation", RANDOM: "random rotation"}.get(kind, kind)
                for row in records:  # a thin line for each seed
                    above.plot(
                        stages, [e.sw2 for e in row.evaluations], **drawn, lw=0.7, label=text
                    )
                    losses = [e.denoising.loss for e in row.evaluations if e.denoising]
                    if len(losses) == len(stages):
                        below.plot(stages, losses, **drawn, lw=0.7)
                    text = ""
            above.set_title(label, fontsize=9)
            above.set(xscale="log", yscale="log")
            style.show_baselines(above, {row.practice: row.sw2.value for row in nothing if row.sw2})
            linear = [row.loss.value for row in nothing if row.loss]
            style.show_baselines(
                below, dict.fromkeys(["best linear prediction"] * bool(linear), *linear)
            )
            below.set_xticks(stages, [f"{count:,}" for count in stages])
            below.set_xticks([], minor=True)
            below.set_xlabel("updates")
        axes[0, 0].set_ylabel("SW$_2$, a line for each seed")
        axes[1, 0].set_ylabel("held-out denoising loss")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        picture.legend(handles, labels, frameon=False, fontsize=7.5, loc="outside right upper")
        picture.suptitle(f"{data_of(name)}, along training", fontsize=9.5)
    return picture
