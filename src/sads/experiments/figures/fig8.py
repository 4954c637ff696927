"""Figure 8: SW2 against the alignment alpha for rotated images, along training.

Beyond the paper's three rotations: random ones (the control) and some between the extremes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sads.errors import counted
from sads.estimates import Estimate
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.figures.rotated_images import (
    EXTREMES,
    NAMES,
    PANELS,
    Done,
    available,
    cells,
    finished_seeds,
)
from sads.experiments.figures.states import ScoreRow, baseline_lines, gate, score_cells
from sads.experiments.verdict import (
    Claim,
    correlation_over_units,
    correlation_test,
    judge,
    means_by_unit,
    paired_difference,
    sign_flip_test,
    within_test,
)
from sads.pipeline import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

ALIKE = 0.1  # relative difference of SW2 that does not count

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Stage(ScoreRow):
    """A rotation after some updates, over all seeds."""

    data: str
    rotation: str
    alpha: float
    updates: int
    beats_identity: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a model of it has diverged or is not trained."""
        return "diverged" in self.state or "not trained" in self.state


@dataclass(frozen=True)
class Curves:
    """SW2 and MSW2 of one data set, for all rotations, seeds and numbers of updates."""

    name: str
    kinds: tuple[str, ...]
    updates: tuple[int, ...]
    alphas: dict[str, float]
    rotations: dict[str, tuple[str, ...]]  # of each seed: a random one may be drawn anew
    evaluations: dict[str, list[tuple[Evaluation, ...]]]  # of each seed, for all stages
    sw2: dict[str, Array]  # (seeds, stages) by rotation
    msw2: dict[str, Array]

    @classmethod
    def of(cls, name: str, done: Done, seeds: Sequence[int], kinds: Sequence[str]) -> "Curves":
        def table(kind: str, metric: str) -> Array:
            records = [done[seed, kind] for seed in seeds]
            return np.array([[getattr(e, metric) for e in r.evaluations] for r in records])

        first = done[seeds[0], kinds[0]].cell
        return cls(
            name=name,
            kinds=tuple(kinds),
            updates=first.evaluations,
            alphas={kind: done[seeds[0], kind].facts.alpha.value for kind in kinds},
            rotations={k: tuple(done[seed, k].cell.rotation for seed in seeds) for k in kinds},
            evaluations={k: [done[seed, k].evaluations for seed in seeds] for k in kinds},
            sw2={kind: table(kind, "sw2") for kind in kinds},
            msw2={kind: table(kind, "msw2") for kind in kinds},
        )

    @property
    def random_kinds(self) -> list[str]:
        """The rotations that are drawn at random: the control."""
        return [kind for kind in self.kinds if kind.startswith("random")]

    def at(self, kinds: Iterable[str], stage: int) -> list[Evaluation]:
        """The evaluations of some rotations at one stage."""
        return [seed[stage] for kind in kinds for seed in self.evaluations[kind]]

    @property
    def num_seeds(self) -> int:
        return len(self.sw2[self.kinds[0]])


def draw(context: Context) -> Outcome:
    there, notes = available(context)
    pictures: dict[str, Picture] = {}
    claims: list[Claim] = []
    table: list[Stage] = []
    for name in there:
        found = finished_seeds(context, name, notes)
        if not found.seeds:
            notes.append(f"{name}: no seed is finished")
            continue
        kinds = PANELS[context.scale][name].rotations
        curves = Curves.of(name, found.done, found.seeds, kinds)
        rows = stages(curves)
        table += rows
        claims += found.tested(judge_curves(curves))
        notes += practical_numbers(curves)
        pictures[name] = plot_against_alpha(name, rows)
        pictures[f"{name}-training"] = plot_along_training(name, rows)
    return Outcome(pictures, table, context.tested(claims), notes)


def stages(curves: Curves) -> list[Stage]:
    """A row for each rotation, the least alpha first, and each number of updates."""
    rows = []
    for kind in sorted(curves.kinds, key=curves.alphas.__getitem__):
        for stage, updates in enumerate(curves.updates):
            better = curves.sw2[kind][:, stage] < curves.sw2["identity"][:, stage]
            rows.append(
                Stage(
                    data=curves.name,
                    rotation=kind,
                    alpha=curves.alphas[kind],
                    updates=updates,
                    beats_identity=None
                    if kind == "identity"
                    else f"{better.sum()} of {len(better)}",
                    **score_cells(curves.at([kind], stage), "sw2"),
                )
            )
    return rows


def judge_curves(curves: Curves) -> list[Claim]:
    """The claims, from the end of training; checkpoints of a run are shown as evidence only."""
    updates = curves.updates[-1]
    place = f"{curves.name}, {counted(updates, 'update')}"
    sw2 = {kind: values[:, -1] for kind, values in curves.sw2.items()}
    better = paired_difference(sw2["identity"], sw2["min"])
    alphas = [curves.alphas[kind] for kind in curves.kinds]

    def rows(stage: int) -> Array:
        return np.stack([curves.sw2[kind][:, stage] for kind in curves.kinds], axis=1)

    def median(stage: int) -> float:
        return float(np.median(curves.sw2["identity"][:, stage] - curves.sw2["min"][:, stage]))

    claims = [
        judge(
            f"{place}: the minimising rotation beats the identity",
            f"SW2 of the identity less that of the rotation: {better}"
            + _earlier(curves.updates, median),
            sign_flip_test(sw2["identity"] - sw2["min"], "seeds"),
            better.interval,
            gate(curves.at(("identity", "min"), -1)),
        )
    ]
    if curves.random_kinds:
        claims.append(judge_control(curves, place))
    correlation = correlation_over_units(alphas, rows(-1))
    claims.append(
        judge(
            f"{place}: SW2 rises with alpha",
            f"rank correlation {correlation}"
            + _earlier(curves.updates, lambda i: correlation_over_units(alphas, rows(i)).value),
            correlation_test(alphas, rows(-1), "rotations"),
            correlation,
            gate(curves.at(curves.kinds, -1)),
        )
    )
    closed = gate(curves.at(("max", "identity"), -1))
    return [*claims, judge_alike(curves.name, sw2["max"], sw2["identity"], closed)]


def _earlier(updates: Sequence[int], number: Callable[[int], float]) -> str:
    """What the number was at earlier checkpoints."""
    if len(updates) == 1:
        return ""
    parts = (f"{number(i):.3g} after {count:,}" for i, count in enumerate(updates[:-1]))
    return f"; earlier {', '.join(parts)}"


def judge_control(curves: Curves, place: str) -> Claim:
    """Random rotations are a population: a rotation that all seeds share is one member of it."""
    least = curves.sw2["min"][:, -1]
    drawn = [rotation for kind in curves.random_kinds for rotation in curves.rotations[kind]]
    gains = np.concatenate([curves.sw2[kind][:, -1] - least for kind in curves.random_kinds])
    means = means_by_unit(drawn, gains)
    difference = paired_difference(means, np.zeros(len(means)))
    return judge(
        f"{place}: it beats random rotations (our control)",
        f"SW2 of random rotations less that of the minimising one: {difference}",
        sign_flip_test(means, "random rotations"),
        difference.interval,
        gate(curves.at((*curves.random_kinds, "min"), -1)),
    )


def judge_alike(
    name: str,
    largest: Sequence[float] | Array,
    identity: Sequence[float] | Array,
    gate: str = "",
) -> Claim:
    """The claim, from SW2 of each seed. No difference found does not make two things alike."""
    relative = np.array(largest) / np.array(identity) - 1
    difference = paired_difference(relative, np.zeros(len(relative)))
    return judge(
        f"{name}: maximising alpha scores like the identity, which is already well aligned",
        f"SW2 of the maximising rotation over that of the identity, less 1: {difference}; "
        f"alike means within {ALIKE:g}",
        within_test(relative, ALIKE, "seeds"),
        difference.interval,
        gate,
    )


def practical_numbers(curves: Curves) -> list[str]:
    """What the rotation saves in updates, and how much of it any rotation would give.

    Nothing is said of models that are not trained.
    """
    updates = curves.updates
    identity, least = (curves.sw2[kind].mean(axis=0) for kind in ("identity", "min"))
    target = float(identity[-1])
    reached = updates_to_reach(target, updates, least)
    if reached is None:
        text = f"the minimising rotation does not reach it in {updates[-1]:,}"
    elif reached <= updates[0]:
        text = f"with the minimising rotation at most {updates[0]:,} are enough"
    else:
        text = f"with the minimising rotation about {reached:,.0f} are enough"
    name = curves.name
    notes = []
    if not gate(curves.at(("identity", "min"), -1)):
        after = counted(updates[-1], "update")
        notes = [f"{name}: the identity has SW2 {target:.3g} after {after}; {text}"]
    if curves.random_kinds:
        for stage, count in enumerate(updates):
            if gate(curves.at(("identity", "min", *curves.random_kinds), stage)):
                continue
            place = f"{name}, {counted(count, 'update')}"
            if least[stage] >= identity[stage]:
                notes.append(f"{place}: the minimising rotation gains nothing")
                continue
            notes.append(
                f"{place}: a random rotation gives {share_of_gain(curves, stage)} of the "
                "minimising rotation's gain over the identity"
            )
    return notes


def share_of_gain(curves: Curves, stage: int) -> Estimate:
    """`(identity - random) / (identity - min)` of mean SW2, with a jackknife error over seeds."""
    sw2 = {kind: values[:, stage] for kind, values in curves.sw2.items()}
    control = sw2["identity"] - np.mean([sw2[kind] for kind in curves.random_kinds], axis=0)
    gain = sw2["identity"] - sw2["min"]
    share = float(control.sum() / gain.sum())
    if len(gain) < 2:
        return Estimate(share, math.nan)
    without = (control.sum() - control) / (gain.sum() - gain)
    return Estimate(share, math.sqrt((len(gain) - 1) * float(without.var())))


def updates_to_reach(
    target: float, updates: Sequence[int], curve: Sequence[float] | Array
) -> float | None:
    """Where a curve first comes down to a target, on straight lines between logarithms."""
    for i, value in enumerate(curve):
        if value <= target:
            if i == 0:
                return float(updates[0])
            x, y = np.log(updates[i - 1 : i + 1]), np.log(curve[i - 1 : i + 1])
            share = (y[0] - math.log(target)) / (y[0] - y[1])
            return float(np.exp(x[0] + share * (x[1] - x[0])))
    return None


def _title(name: str, rows: Sequence[Stage]) -> str:
    text = f"{name}, {counted(rows[0].seeds, 'seed')}"
    if not any(row.failed for row in rows):
        return text
    return f"{text}; hollow: diverged or not trained"


def _show_curve(
    axes: "Axes", rows: Sequence[Stage], places: Sequence[float], style: dict[str, Any]
) -> None:
    """SW2 with its errors at these places; hollow where a model has diverged or is not trained."""
    values = [row.sw2.value for row in rows]
    errors = np.nan_to_num([row.sw2.error for row in rows])
    axes.errorbar(places, values, errors, capsize=2, marker="o", **style)
    hollow = [(x, y) for x, y, row in zip(places, values, rows, strict=True) if row.failed]
    if hollow:
        mark = {"ms": style["ms"], "mec": style["color"], "mfc": "white"}
        axes.plot(*zip(*hollow, strict=True), "o", zorder=4, **mark)


def plot_against_alpha(name: str, rows: Sequence[Stage]) -> "Picture":
    """SW2 against alpha, one curve for each number of updates."""
    from matplotlib import colormaps

    from sads.plots.style import GREY, INK, show_baselines, styled, subplots

    updates = sorted({row.updates for row in rows})
    colors = colormaps["viridis"](np.linspace(0.85, 0, len(updates)))
    with styled():
        picture, axes = subplots(figsize=(7.4, 4.2))
        for count, color in zip(updates, colors, strict=True):
            points = [row for row in rows if row.updates == count]
            style = {"color": color, "lw": 1, "ms": 4, "label": counted(count, "update")}
            _show_curve(axes, points, [row.alpha for row in points], style)
        show_baselines(axes, baseline_lines(rows))
        axes.set(xscale="log", yscale="log")
        top = axes.get_ylim()[1]
        labels: list[tuple[float, str]] = []  # neighbours that would overlap share one
        for row in (row for row in rows if row.updates == updates[0]):
            axes.axvline(row.alpha, color=GREY, lw=0.5, zorder=0)
            if labels and row.alpha < 1.06 * labels[-1][0]:
                labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {row.rotation}")
            else:
                labels.append((row.alpha, row.rotation))
        for place, text in labels:
            axes.text(place, top, f" {text}", rotation=60, fontsize=7, va="bottom", color=INK)
        axes.set(xlabel="alignment $\\alpha$", ylabel="SW$_2$ (mean ± s.e.)")
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")
        above = 12 + 3.6 * max(len(text) for _, text in labels)  # points that the labels take
        axes.set_title(_title(name, rows), fontsize=9.5, pad=above, loc="left")
    return picture


def plot_along_training(name: str, rows: Sequence[Stage]) -> "Picture":
    """SW2 against updates, a curve for each rotation, coloured by alpha."""
    from matplotlib import colormaps

    from sads.plots.style import INK, show_baselines, styled, subplots

    kinds = list(dict.fromkeys(row.rotation for row in rows))  # by alpha
    colors = colormaps["coolwarm"](np.linspace(0, 1, len(kinds)))
    updates = sorted({row.updates for row in rows})
    with styled():
        picture, axes = subplots(figsize=(6.4, 3.8))
        for kind, color in zip(kinds, colors, strict=True):
            points = [row for row in rows if row.rotation == kind]
            ours = kind not in EXTREMES
            style = {
                "color": INK if kind == "identity" else color,
                "lw": 1 if ours else 2,
                "ls": "--" if ours else "-",
                "ms": 3,
                "label": f"{kind}, $\\alpha$ = {points[0].alpha:.3g}",
            }
            _show_curve(axes, points, [row.updates for row in points], style)
        axes.set(xscale="log", yscale="log", xlabel="updates", ylabel="SW$_2$ (mean ± s.e.)")
        axes.set_xticks(updates, [f"{count:,}" for count in updates])
        axes.set_xticks([], minor=True)
        axes.legend(frameon=False, fontsize=7.5, bbox_to_anchor=(1, 1), loc="upper left")
        show_baselines(axes, baseline_lines(rows))
        axes.set_title(_title(name, rows), fontsize=9.5)
    return picture


FIGURE = Figure(
    "fig8", "SW2 against alignment on real images", draw, cells=cells, panels=NAMES, images=NAMES
)
