"""The paper's way of training and sampling beside common practice, on rotated images.

The paper predicts the noise, does not clip and does not average. An error of such a prediction is
multiplied by up to `1 / sqrt(abar_T)` = 157 on the way to a sample. Here the same networks, data,
rotations and seeds are trained to predict the noise, `v` or `x_0`, on raw or on centred data, with
or without the Gaussian part of the score beside them, and every model is sampled with and without
clipping, from its last weights and from their average. A model is trained once for all of these.

Which comparisons have a verdict stands in `claims.toml`; all others are in the table.
"""

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
    ScoreRow,
    baseline_lines,
    gate,
    mean_known,
    score_cells,
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
from sads.table1 import Column, Training
from sads.tables import column, format_value

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


@dataclass(frozen=True)
class Arm:
    """A way to train, behind some rotations, and how its models are sampled."""

    training: Practice  # that neither clips nor averages
    rotations: tuple[str, ...]
    num_seeds: int
    every_way: bool = False  # clipping and averaging apart, not only none or both

    def practices(self) -> list[Practice]:
        ways = [(False, None), (True, DECAY)]
        if self.every_way:
            ways += [(True, None), (False, DECAY)]
        return [replace(self.training, clip=clip, ema_decay=decay) for clip, decay in ways]


@dataclass(frozen=True)
class Panel:
    """One data set: how long its models are trained, and in which ways, the most telling first."""

    column: Column
    arms: tuple[tuple[Arm, ...], ...]  # groups: of each one all seeds before the next group


NOISE, V, X0 = PAPER, Practice(prediction="v"), Practice(prediction="x0")
DIGITS_ARMS = (
    (
        Arm(NOISE, CORE, MANY_SEEDS, every_way=True),
        Arm(V, CORE, MANY_SEEDS, every_way=True),
        Arm(SKIP, ("identity", "min"), MANY_SEEDS),
    ),
    (Arm(NOISE, BETWEEN, SEEDS), Arm(V, BETWEEN, SEEDS)),
    (Arm(CENTRED, ("identity", "min"), SEEDS), Arm(SKIP, ("max", RANDOM), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS, every_way=True),),
)
MNIST_ARMS = (
    (
        Arm(NOISE, (*CORE, "max"), SEEDS),
        Arm(V, (*CORE, "max"), SEEDS),
        Arm(SKIP, ("identity", "min"), SEEDS),
    ),
    (Arm(X0, (*CORE, "max"), SEEDS),),
)
PLAIN_ARMS = (
    (Arm(NOISE, ("identity",), 2), Arm(V, ("identity",), 2), Arm(SKIP, ("identity",), 2)),
)
SMOKE_ARMS = (
    (
        Arm(NOISE, ("identity", "min"), 1),
        Arm(V, ("identity", "min"), 1),
        Arm(SKIP, ("identity", "min"), 1),
    ),
)


def _panel(scale: str, name: str) -> Panel:
    known = PANELS[scale][name].column
    if scale == "smoke":
        return Panel(known, SMOKE_ARMS)
    arms = {"digits": DIGITS_ARMS, "mnist": MNIST_ARMS}.get(name, PLAIN_ARMS)
    if scale == "laptop" and name == "mnist":  # half of Figure 8's: that is enough for all but one
        known = replace(known, training=Training(400, 64, 1e-3))
    return Panel(known, arms)


Key = tuple[Practice, str, int]  # practice, rotation and seed
Done = Mapping[Key, Record]


def rotation_of(name: str, seed: int) -> str:
    """The rotation of a name for a seed; random ones are drawn anew."""
    drawn = {RANDOM: f"random:{seed}", OTHER_RANDOM: f"random:{100 + seed}"}
    return drawn.get(name, name)


def panel_cells(context: Context, name: str) -> dict[Key, Cell]:
    """Group by group, in a group seed by seed."""
    panel = _panel(context.scale, name)
    images, _ = read_source(name, panel.column.shape, context.sources)
    data_sha256 = digest_images(images)
    keys = [
        (practice, rotation, seed)
        for group in panel.arms
        for seed in context.seeds(max(arm.num_seeds for arm in group))
        for arm in group
        if seed < arm.num_seeds
        for rotation in arm.rotations
        for practice in arm.practices()
    ]
    return {
        (practice, rotation, seed): cell_of(
            panel.column,
            data=DataSpec("images", name),
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
    return seed == 0 and rotation in ("identity", "min") and practice in TESTED.values()


def cells(context: Context) -> list[Cell]:
    there, _ = available(context)
    return [c for name in there for c in panel_cells(context, name).values()]


def draw(context: Context) -> Outcome:
    there, notes = available(context)
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
        rows = ways(name, done)
        table += rows
        claims += judge_practices(name, done)
        pictures[name] = plot_ways(name, rows)
        shown = {key: record for key, record in done.items() if is_shown(*key)}
        if shown:
            samples = {key[:2]: context.store.samples(record) for key, record in shown.items()}
            pictures[f"{name}-samples"] = plot_samples(name, samples, rows)
    return Outcome(pictures, table, context.tested(claims), notes)


@dataclass(frozen=True, kw_only=True)
class Way(ScoreRow):
    """A practice behind a rotation, over all seeds."""

    data: str
    practice: str
    rotation: str
    alpha: float
    loss: Estimate | None = column("held-out loss", default=None)
    along: Estimate | None = column("loss along the data", default=None)
    off: Estimate | None = column("loss off the data", default=None)
    linear: float | None = column("loss, best linear", default=None)
    without_digit: Estimate | None = None
    gaussian_without_digit: Estimate | None = column("without digit, Gaussian", default=None)
    out_of_range: Estimate | None = column("values out of range", default=None)

    @property
    def failed(self) -> bool:
        """Whether a model of it has diverged or is not trained."""
        return self.state != f"{self.seeds} trained"


def ways(name: str, done: Done) -> list[Way]:
    """A row for each practice and rotation, in the order of the cells."""
    pairs = dict.fromkeys((practice, rotation) for practice, rotation, _ in done)
    rows = []
    for practice, rotation in sorted(pairs, key=lambda pair: _place(pair[0])):
        records = [r for (p, kind, _), r in done.items() if (p, kind) == (practice, rotation)]
        last = [record.last for record in records]
        wrong = [e.denoising for e in last if e.denoising is not None]
        rows.append(
            Way(
                data=name,
                practice=str(practice),
                rotation=rotation,
                alpha=float(np.mean([r.facts.alpha.value for r in records])),
                loss=mean_known(d.loss for d in wrong),
                along=mean_known(d.along for d in wrong),
                off=mean_known(d.off for d in wrong),
                linear=float(np.mean([d.linear for d in wrong])) if wrong else None,
                without_digit=mean_known(e.digits.without_digit for e in last if e.digits),
                gaussian_without_digit=mean_known(
                    e.baselines.without_digit for e in last if e.baselines
                ),
                out_of_range=mean_known(e.out_of_range for e in last),
                **score_cells(last, "sw2"),
            )
        )
    return rows


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


def plot_ways(name: str, rows: Sequence[Way]) -> "Picture":
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
        for line, value in baseline_lines(rows).items():
            color = style.GREEN if line.startswith("real") else style.RED
            left.axvline(value, color=color, lw=0.9, ls=":", zorder=0)
            left.text(value, -0.75, line, rotation=50, fontsize=6.5, color=color, va="bottom")
        linear = [row.linear for row in rows if row.linear is not None]
        if linear:
            right.axvline(float(np.mean(linear)), color=style.GREY, lw=0.9, ls=":", zorder=0)
            right.text(
                float(np.mean(linear)),
                -0.75,
                "best linear prediction",
                rotation=50,
                fontsize=6.5,
                color=style.INK,
                va="bottom",
            )
        left.set(xscale="log", xlabel="SW$_2$ (mean ± s.e. over seeds)")
        left.set_yticks(range(len(practices)), practices)
        left.set_ylim(len(practices) - 0.5, -0.8)
        right.set_xlabel("held-out denoising loss, $E|\\hat\\epsilon - \\epsilon|^2/D$")
        handles, labels = left.get_legend_handles_labels()
        picture.legend(handles, labels, frameon=False, fontsize=7.5, loc="outside right upper")
        failed = "; hollow: diverged or not trained" if any(r.failed for r in shown) else ""
        seeds = sorted({row.seeds for row in rows})
        count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        picture.suptitle(f"{name}, {count} seed{'s' * (seeds[-1] > 1)}{failed}", fontsize=9.5)
    return picture


def plot_samples(
    name: str, samples: Mapping[tuple[Practice, str], Tensor], rows: Sequence[Way]
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
            turned = "no rotation" if row.rotation == "identity" else "minimising rotation"
            text = f"{labels[pair[0]]}, {turned}: SW$_2$ {row.sw2}, {row.state}"
            if row.without_digit is not None:
                text += f"; without a digit {row.without_digit.value:.0%}"
            place.set_title(text, fontsize=8.5, loc="left")
        row = rows[0]
        text = (
            f"{name}: SW$_2$ of zeros {format_value(row.zeros)}, "
            f"the mean {format_value(row.mean)}, a Gaussian {format_value(row.gaussian)}, "
            f"real data {format_value(row.real)}"
        )
        if row.gaussian_without_digit is not None:
            text += f"; a Gaussian is without a digit in {row.gaussian_without_digit.value:.0%}"
        picture.suptitle(text, fontsize=9.5)
        picture.supxlabel("red: above the data's range, blue: below it", fontsize=8)
    return picture


FIGURE = Figure(
    "practice",
    "The paper's way and common practice",
    draw,
    cells=cells,
    panels=NAMES,
    images=NAMES,
)
