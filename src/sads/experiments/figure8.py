"""Figure 8: SW2 against the alignment alpha for rotated images, along training.

Beyond the paper's three rotations: random ones (the control) and some between the extremes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sads.experiments.figure import Context, Figure, Outcome, note_cells
from sads.experiments.rotations import (
    PANELS,
    SETTINGS,
    available,
    finished,
    panel_cells,
    whole_seeds,
)
from sads.experiments.spec import Cell
from sads.experiments.store import Record
from sads.experiments.verdict import (
    Claim,
    judge,
    mean_and_error,
    paired_difference,
    rank_correlation,
)

ALIKE = 0.1  # relative difference of SW2 that does not count

Done = Mapping[tuple[int, str], Record]


def cells(context: Context) -> list[Cell]:
    there, _ = available(context)
    return [c for panel in there for c in panel_cells(context, panel).values()]


def draw(context: Context) -> Outcome:
    from sads.experiments import drawing

    there, notes = available(context)
    pictures, claims = {}, []
    table: list[dict[str, Any]] = []
    for panel in there:
        done, total = finished(context, panel)
        kinds = SETTINGS[context.scale][panel].rotations
        seeds = whole_seeds(done, kinds)
        if not seeds:
            notes.append(f"{panel}: no seed is finished")
            continue
        notes += note_cells(done.values(), total, panel)
        rows = panel_rows(panel, done, seeds, kinds)
        table += rows
        claims += judge_panel(panel, done, seeds, kinds)
        notes += practical_numbers(panel, done, seeds, kinds)
        pictures[panel] = drawing.plot_distance_against_alpha(panel, rows)
        pictures[f"{panel}-training"] = drawing.plot_distance_along_training(panel, rows)
    return Outcome(pictures, table, context.tested(claims), notes)


def panel_rows(
    panel: str, done: Done, seeds: Sequence[int], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each rotation and number of updates."""
    rows = []
    for kind in sorted(kinds, key=lambda k: done[seeds[0], k].facts["alpha"]):
        records = [done[seed, kind] for seed in seeds]
        for stage, evaluation in enumerate(records[0].evaluations):
            row = {
                "data": panel,
                "rotation": kind,
                "alpha": records[0].facts["alpha"],
                "updates": evaluation["iterations"],
                "seeds": len(seeds),
            }
            for name in ("SW2", "MSW2"):
                values = [record.metric(name.lower(), stage) for record in records]
                row[name], row[f"{name} error"] = mean_and_error(values)
            if kind != "identity":
                better = [
                    done[s, kind].metric("sw2", stage) < done[s, "identity"].metric("sw2", stage)
                    for s in seeds
                ]
                row["beats identity"] = f"{sum(better)} of {len(better)}"
            rows.append(row)
    return rows


def judge_panel(panel: str, done: Done, seeds: Sequence[int], kinds: Sequence[str]) -> list[Claim]:
    claims = []
    stages = [e["iterations"] for e in done[seeds[0], "min"].evaluations]
    alphas = [done[seeds[0], kind].facts["alpha"] for kind in kinds]
    for stage, updates in enumerate(stages):

        def sw2(kind: str, stage: int = stage) -> list[float]:
            return [done[s, kind].metric("sw2", stage) for s in seeds]

        better = paired_difference(sw2("identity"), sw2("min"))
        claims.append(
            judge(
                f"{panel}, {updates:,} updates: the minimising rotation beats the identity",
                f"SW2 of the identity less that of the rotation: {better}",
                better.interval,
            )
        )
        if random := [sw2(kind) for kind in kinds if kind.startswith("random")]:
            control = paired_difference(np.mean(random, axis=0), sw2("min"))
            claims.append(
                judge(
                    f"{panel}, {updates:,} updates: it beats random rotations (our control)",
                    f"SW2 of random rotations less that of the minimising one: {control}",
                    control.interval,
                )
            )
        rows = [[done[s, k].metric("sw2", stage) for k in kinds] for s in seeds]
        correlation = rank_correlation(alphas, rows)
        claims.append(
            judge(
                f"{panel}, {updates:,} updates: SW2 rises with alpha",
                f"rank correlation {correlation} over {len(kinds)} rotations",
                correlation,
            )
        )
    claims.append(
        judge_alike(
            panel, *([done[s, k].metric("sw2") for s in seeds] for k in ("max", "identity"))
        )
    )
    return claims


def judge_alike(panel: str, largest: Sequence[float], identity: Sequence[float]) -> Claim:
    """From SW2 of each seed. That a difference was not found does not make two things alike."""
    relative = np.array(largest) / np.array(identity) - 1
    difference = paired_difference(relative, np.zeros(len(relative)))
    interval = difference.interval
    reach = max(abs(interval.low), abs(interval.high))
    return judge(
        f"{panel}: maximising alpha scores like the identity, which is already well aligned",
        f"SW2 of the maximising rotation over that of the identity, less 1: {difference}; "
        f"alike means within {ALIKE:g}",
        replace(interval, value=-abs(interval.value), low=-reach, high=0.0),
        -ALIKE,
    )


def practical_numbers(
    panel: str, done: Done, seeds: Sequence[int], kinds: Sequence[str]
) -> list[str]:
    """What the rotation saves in updates, and how much of it any rotation would give."""
    updates = [e["iterations"] for e in done[seeds[0], "min"].evaluations]

    def curve(kind: str) -> np.ndarray:
        """Mean SW2 over seeds at every evaluation."""
        stages = range(len(updates))
        return np.array([[done[s, kind].metric("sw2", k) for k in stages] for s in seeds]).mean(0)

    identity, least = curve("identity"), curve("min")
    target = float(identity[-1])
    reached = updates_to_reach(target, updates, least)
    if reached is None:
        text = f"the minimising rotation does not reach it in {updates[-1]:,}"
    elif reached <= updates[0]:
        text = f"with the minimising rotation at most {updates[0]:,} are enough"
    else:
        text = f"with the minimising rotation about {reached:,.0f} are enough"
    notes = [f"{panel}: the identity has SW2 {target:.3g} after {updates[-1]:,} updates; {text}"]
    if random := [kind for kind in kinds if kind.startswith("random")]:
        for stage, count in enumerate(updates):
            if least[stage] >= identity[stage]:
                notes.append(f"{panel}, {count:,} updates: the minimising rotation gains nothing")
                continue
            share, error = share_of_gain(done, seeds, random, stage)
            spread = "" if math.isnan(error) else f" ± {error:.1g}"
            notes.append(
                f"{panel}, {count:,} updates: a random rotation gives {share:.2f}{spread} of "
                "the minimising rotation's gain over the identity"
            )
    return notes


def share_of_gain(
    done: Done, seeds: Sequence[int], random: Sequence[str], stage: int
) -> tuple[float, float]:
    """`(identity - random) / (identity - min)` of mean SW2, with a jackknife error over seeds."""

    def sw2(kind: str, seed: int) -> float:
        return done[seed, kind].metric("sw2", stage)

    control = np.array([sw2("identity", s) - np.mean([sw2(k, s) for k in random]) for s in seeds])
    gain = np.array([sw2("identity", s) - sw2("min", s) for s in seeds])
    share = float(control.sum() / gain.sum())
    if len(seeds) < 2:
        return share, math.nan
    without = (control.sum() - control) / (gain.sum() - gain)
    error = math.sqrt((len(seeds) - 1) * float(without.var()))
    return share, error


def updates_to_reach(
    target: float, updates: Sequence[int], curve: Sequence[float] | np.ndarray
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


FIGURE = Figure("fig8", "SW2 against alignment on real images", PANELS, cells, draw)
