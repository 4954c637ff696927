"""The paper's way of training and sampling beside common practice, on rotated images.

The paper predicts the noise, does not clip and does not average. An error of such a prediction is
multiplied by up to `1 / sqrt(abar_T)` = 157 on the way to a sample. Here the same networks, data,
rotations and seeds are trained to predict the noise, `v` or `x_0`, on raw or on centred data, with
or without the Gaussian part of the score beside them, and every model is sampled with and without
clipping, from its last weights and from their average. A model is trained once for all of these.

Which comparisons have a verdict stands in `claims.toml`; all others are in the table.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from sads.data.spec import DataSpec
from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.figure import Context, Figure, Outcome, note_cells
from sads.experiments.figures.rotated_images import NAMES, PANELS, SHOWN, available
from sads.experiments.figures.states import (
    describe_states,
    gate,
    mean_known,
)
from sads.experiments.records import Record
from sads.experiments.run import digest_images, read_source
from sads.experiments.spec import DECAY, PAPER, Cell, Practice, cell_of
from sads.experiments.verdict import (
    Claim,
    correlation_over_units,
    correlation_test,
    judge,
    paired_difference,
    sign_flip_test,
)
from sads.pipeline import Evaluation
from sads.schedule import Schedule
from sads.table1 import Column, Training
from sads.tables import Row, column, format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COMMON = Practice(prediction="v", clip=True, ema_decay=DECAY)
SKIP = Practice(skip="gaussian")
CENTRED = Practice(centre=True)
TESTED = {"the paper's way": PAPER, "common practice": COMMON, "Gaussian skip": SKIP}

RANDOM, OTHER_RANDOM = "random", "random, another"  # drawn anew for each seed
CORE = ("identity", "min", RANDOM)
BETWEEN = ("max", OTHER_RANDOM, "share:0.25", "share:0.5", "partial:0.5")
MANY_SEEDS = 8  # a sign test of eight reaches 1/256, which a page of a dozen claims needs
SEEDS = 5
ACROSS = 24  # samples in a row of the picture


Sampled = tuple[bool, float | None]  # whether x_0 is clipped, and the average of the weights
PLAIN: tuple[Sampled, ...] = ((False, None),)
NONE_OR_BOTH = (*PLAIN, (True, DECAY))
EVERY_WAY = (*NONE_OR_BOTH, (True, None), (False, DECAY))


@dataclass(frozen=True)
class Arm:
    """A way to train, behind some rotations, and how its models are sampled."""

    training: Practice  # that neither clips nor averages
    rotations: tuple[str, ...]
    num_seeds: int
    ways: tuple[Sampled, ...] = NONE_OR_BOTH

    def practices(self) -> list[Practice]:
        return [replace(self.training, clip=clip, ema_decay=decay) for clip, decay in self.ways]


@dataclass(frozen=True)
class Panel:
    """One data set: how long its models are trained, and in which ways, the most telling first."""

    column: Column
    arms: tuple[tuple[Arm, ...], ...]  # groups: of each one all seeds before the next group


NOISE, V, X0 = PAPER, Practice(prediction="v"), Practice(prediction="x0")
DIGITS_ARMS = (
    (
        Arm(NOISE, CORE, MANY_SEEDS, EVERY_WAY),
        Arm(V, CORE, MANY_SEEDS, EVERY_WAY),
        Arm(SKIP, ("identity", "min"), MANY_SEEDS),
    ),
    (Arm(NOISE, BETWEEN, SEEDS), Arm(V, BETWEEN, SEEDS)),
    (Arm(CENTRED, ("identity", "min"), SEEDS), Arm(SKIP, ("max", RANDOM), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS, EVERY_WAY),),
)
MNIST_ARMS = (
    (Arm(V, ("identity", "min"), SEEDS), Arm(SKIP, ("identity", "min"), SEEDS)),
    (Arm(NOISE, (*CORE, "max"), SEEDS), Arm(V, (RANDOM, "max"), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS),),
)
PLAIN_ARMS = (
    (Arm(NOISE, ("identity",), 2), Arm(V, ("identity",), 2), Arm(SKIP, ("identity",), 2)),
)
BRIEF_ARMS = ((Arm(NOISE, ("identity", "min"), 1, PLAIN), Arm(SKIP, ("identity",), 1, PLAIN)),)
SMOKE_ARMS = (
    (
        Arm(NOISE, ("identity", "min"), 1),
        Arm(V, ("identity", "min"), 1),
        Arm(SKIP, ("identity", "min"), 1),
    ),
)


BRIEF = "digits-brief"  # three models of digits, for those who are in a hurry


def _panel(scale: str, name: str) -> Panel:
    known = PANELS[scale][data_of(name)].column
    if name == BRIEF:
        return Panel(known, BRIEF_ARMS)
    if scale == "smoke":
        return Panel(known, SMOKE_ARMS)
    arms = {"digits": DIGITS_ARMS, "mnist": MNIST_ARMS}.get(name, PLAIN_ARMS)
    if scale == "laptop" and name == "mnist":  # half of Figure 8's: that is enough for all but one
        known = replace(known, training=Training(400, 64, 1e-3))
    return Panel(known, arms)


def data_of(panel: str) -> str:
    """The images of a panel."""
    return "digits" if panel == BRIEF else panel


def chosen_panels(context: Context) -> tuple[list[str], list[str]]:
    """Panels whose images are known, and a note for each of the others; the brief one if asked."""
    there, notes = available(replace(context, only=tuple(n for n in context.only if n != BRIEF)))
    if BRIEF not in context.only:
        return there, notes
    return ([BRIEF], []) if set(context.only) == {BRIEF} else ([*there, BRIEF], notes)


Key = tuple[Practice, str, int]  # practice, rotation and seed
Done = Mapping[Key, Record]


def rotation_of(name: str, seed: int) -> str:
    """The rotation of a name for a seed; random ones are drawn anew."""
    drawn = {RANDOM: f"random:{seed}", OTHER_RANDOM: f"random:{100 + seed}"}
    return drawn.get(name, name)


def panel_cells(context: Context, name: str) -> dict[Key, Cell]:
    """Group by group, in a group seed by seed."""
    panel = _panel(context.scale, name)
    data = data_of(name)
    images, _ = read_source(data, panel.column.shape, context.sources)
    data_sha256 = digest_images(images)
    keys = [
        (practice, rotation, seed)
        for group in panel.arms
        for seed in context.seeds(max(arm.num_seeds for arm in group))
        for arm in group
        if seed in context.seeds(arm.num_seeds)
        for rotation in arm.rotations
        for practice in arm.practices()
    ]
    return {
        (practice, rotation, seed): cell_of(
            panel.column,
            data=DataSpec("images", data),
            seed=seed,
            layers=context.layers,
            rotation=rotation_of(rotation, seed),
            keep_samples=SHOWN if is_shown(practice, rotation, seed) else 0,
            data_sha256=data_sha256,
            practice=practice,
        )
        for practice, rotation, seed in keys
    }


def is_shown(practice: Practice, rotation: str, seed: int) -> bool:
    """Whether some of a model's samples are kept for the picture."""
    shown = ("identity", "min", RANDOM) if practice == PAPER else ("identity", "min")
    return seed == 0 and rotation in shown and practice in TESTED.values()


def cells(context: Context) -> list[Cell]:
    there, _ = chosen_panels(context)
    return [c for name in there for c in panel_cells(context, name).values()]


def draw(context: Context) -> Outcome:
    there, notes = chosen_panels(context)
    pictures: dict[str, Picture] = {}
    claims: list[Claim] = []
    table: list[Way] = []
    for name in there:
        chosen = panel_cells(context, name)
        done = context.finished(chosen)
        if not done:
            notes.append(f"{name}: no cell is finished")
            continue
        notes += note_cells(done.values(), len(chosen), context.layers, name)
        rows, nothing = ways(name, done), untrained(name, done)
        table += [*nothing, *rows]
        claims += judge_practices(name, done)
        notes += practical_note(name, rows, nothing)
        pictures[name] = plot_ways(name, rows, nothing)
        if any(record.last.denoising for record in done.values()):
            pictures[f"{name}-levels"] = plot_levels(name, done)
        shown = {key: record for key, record in done.items() if is_shown(*key)}
        if shown:
            samples = {key[:2]: context.store.samples(record) for key, record in shown.items()}
            pictures[f"{name}-samples"] = plot_samples(name, samples, rows, nothing)
    return Outcome(pictures, table, context.tested(claims), notes)


@dataclass(frozen=True)
class Way(Row):
    """A practice behind a rotation, over all seeds, or something that needs no training."""

    data: str
    practice: str
    rotation: str = ""
    seeds: int | None = None
    alpha: float | None = None
    sw2: Estimate | None = column("SW2", default=None)
    loss: Estimate | None = column("held-out loss", default=None)
    along: Estimate | None = column("along the data", default=None)
    off: Estimate | None = column("off the data", default=None)
    without_digit: Estimate | None = None
    share_of_ones: Estimate | None = column('share of "1"', default=None)
    out_of_range: Estimate | None = column("values out of range", default=None)
    state: str = ""

    @property
    def failed(self) -> bool:
        """Whether a model of it has diverged or is not trained."""
        return self.state != f"{self.seeds} trained"


def ways(name: str, done: Done) -> list[Way]:
    """A row for each practice and rotation, each prediction from the paper's way on."""
    pairs = dict.fromkeys((practice, rotation) for practice, rotation, _ in done)
    rows = []
    for practice, rotation in sorted(pairs, key=lambda pair: _place(pair[0])):
        records = [r for (p, kind, _), r in done.items() if (p, kind) == (practice, rotation)]
        last = [record.last for record in records]
        wrong = [e.denoising for e in last if e.denoising is not None]
        digits = [e.digits for e in last if e.digits is not None]
        rows.append(
            Way(
                data=name,
                practice=str(practice),
                rotation=rotation,
                seeds=len(records),
                alpha=float(np.mean([r.facts.alpha.value for r in records])),
                sw2=mean_estimate([e.sw2 for e in last]),
                loss=mean_known(d.loss for d in wrong),
                along=mean_known(d.along for d in wrong),
                off=mean_known(d.off for d in wrong),
                without_digit=mean_known(d.without_digit for d in digits),
                share_of_ones=mean_known(d.share_of(1) for d in digits if d.classes),
                out_of_range=mean_known(e.out_of_range for e in last),
                state=describe_states(last),
            )
        )
    return rows


def untrained(name: str, done: Done) -> list[Way]:
    """What needs no training, as rows of the same table: means over all models' test sets."""
    last = [record.last for record in done.values()]
    known = [e.baselines for e in last if e.baselines is not None]
    linear = mean_known(e.denoising.linear for e in last if e.denoising is not None)
    real = mean_known(e.digits.without_digit_of_real for e in last if e.digits is not None)
    none = mean_known(b.without_digit for b in known)
    return [
        Way(name, "zeros", sw2=_exactly(mean_known(b.zeros.sw2 for b in known))),
        Way(name, "the mean", sw2=_exactly(mean_known(b.mean.sw2 for b in known))),
        Way(
            name,
            "Gaussian with the data's moments",
            sw2=_exactly(mean_known(b.gaussian.sw2 for b in known)),
            loss=_exactly(linear),
            without_digit=_exactly(none),
        ),
        Way(
            name,
            "real data",
            sw2=_exactly(mean_known(b.real.sw2 for b in known if b.real is not None)),
            without_digit=_exactly(real),
        ),
    ]


def practical_note(name: str, rows: Sequence[Way], nothing: Sequence[Way]) -> list[str]:
    """What somebody who trains a model wants to know, in one line of numbers."""
    known = {(row.practice, row.rotation): row for row in rows}
    parts = []
    for kind, place in (("identity", "without a rotation"), ("min", "behind the minimising one")):
        found = [(label, known.get((str(way), kind))) for label, way in TESTED.items()]
        texts = [f"{label} {row.sw2} ({row.state})" for label, row in found if row is not None]
        if texts:
            parts.append(f"{place} {', '.join(texts)}")
    if not parts:
        return []
    scale = ", ".join(f"{row.practice} {format_value(row.sw2)}" for row in nothing)
    return [f"{name}, SW2 {'; '.join(parts)}; {scale}"]


def _exactly(estimate: Estimate | None) -> Estimate | None:
    """Without an error: cells of one seed share their baselines, they do not repeat them."""
    return None if estimate is None else Estimate(estimate.value, math.nan)


def _place(practice: Practice) -> tuple[int, int, int]:
    """Noise prediction first, each prediction from the paper's way of sampling to both options."""
    trained = replace(practice, clip=False, ema_decay=None)
    order = (NOISE, V, X0, CENTRED, SKIP)
    return order.index(trained), practice.clip, practice.ema_decay is not None


def judge_practices(name: str, done: Done) -> list[Claim]:
    """The registered claims, for as many seeds as have all that a claim compares."""
    claims: list[Claim] = []
    for label, practice in TESTED.items():
        claims += _judge_pair(
            f"{name}, {label}: the minimising rotation beats the identity",
            done,
            (practice, "identity"),
            (practice, "min"),
            "seeds",
        )
        claims += _judge_pair(
            f"{name}, {label}: the minimising rotation beats random rotations",
            done,
            (practice, RANDOM),
            (practice, "min"),
            "random rotations",
        )
        claims += _judge_alpha(f"{name}, {label}", practice, done)
    for label, practice in list(TESTED.items())[1:]:
        claims += _judge_pair(
            f"{name}: without a rotation, {label} beats the paper's way behind the minimising "
            "rotation",
            done,
            (PAPER, "min"),
            (practice, "identity"),
            "seeds",
        )
    return claims


def _judge_pair(
    text: str, done: Done, worse: tuple[Practice, str], better: tuple[Practice, str], unit: str
) -> list[Claim]:
    """That one of two has the smaller SW2, seed by seed; nothing if no seed has both."""
    seeds = [s for p, r, s in done if (p, r) == worse and (*better, s) in done]
    first, second = ([done[*pair, s].last for s in seeds] for pair in (worse, better))
    if not seeds:
        return []
    high, low = (np.array([e.sw2 for e in side]) for side in (first, second))
    difference = paired_difference(high, low)
    return [
        judge(
            text,
            f"SW2 {mean_estimate(high)} less {mean_estimate(low)}: {difference}",
            sign_flip_test(high - low, unit),
            difference.interval,
            gate([*first, *second]),
        )
    ]


def _judge_alpha(place: str, practice: Practice, done: Done) -> list[Claim]:
    """Whether SW2, and the held-out loss, rise with alpha over all rotations of a practice."""
    kinds = list(dict.fromkeys(r for p, r, _ in done if p == practice))
    seeds = sorted({s for p, _, s in done if p == practice})
    whole = [s for s in seeds if all((practice, kind, s) in done for kind in kinds)]
    if len(kinds) < len((*CORE, "max")) or not whole:
        return []
    records = [[done[practice, kind, s] for kind in kinds] for s in whole]
    alphas = np.mean([[r.facts.alpha.value for r in row] for row in records], axis=0)
    closed = gate([r.last for row in records for r in row])

    def rises(text: str, number: Callable[[Evaluation], float], closed: str) -> Claim:
        rows = [[number(record.last) for record in row] for row in records]
        correlation = correlation_over_units(alphas, rows)
        return judge(
            f"{place}: {text} rises with alpha",
            f"rank correlation {correlation}, {len(whole)} seeds",
            correlation_test(alphas, rows, "rotations"),
            correlation,
            closed,
        )

    claims = [rises("SW2", lambda e: e.sw2, closed)]
    if all(r.last.denoising is not None for row in records for r in row):
        # A loss is what it is, whatever a sampler makes of it.
        claims.append(rises("the held-out denoising loss", _loss, ""))
    return claims


def _loss(evaluation: Evaluation) -> float:
    return float("nan") if evaluation.denoising is None else evaluation.denoising.loss.value


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


FIGURE = Figure(
    "practice",
    "The paper's way and common practice",
    draw,
    cells=cells,
    panels=(*NAMES, BRIEF),
    on_request=(BRIEF,),
    images=NAMES,
)
