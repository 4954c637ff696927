"""Figure 7: uncurated samples of models that were trained on rotated images.

The table has all rotations; samples are kept of the paper's three and of a random one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from sads.errors import counted
from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.figures.rotated_images import (
    NAMES,
    PANELS,
    PICTURED,
    available,
    cells,
    finished_seeds,
)
from sads.experiments.figures.states import ScoreRow, gate, mean_known, score_cells
from sads.experiments.records import Record
from sads.experiments.verdict import Claim, judge, paired_difference, sign_flip_test
from sads.pipeline import DigitShares
from sads.tables import format_value, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SIDE = 8  # samples in a row of the grid
TITLES = {
    "min": "$W_{min}$",
    "identity": "no rotation",
    "max": "$W_{max}$",
    "random:0": "a random rotation",
}


@dataclass(frozen=True)
class Rotated(ScoreRow):
    """The samples behind one rotation, over all seeds."""

    data: str
    rotation: str
    alpha: float
    without_digit: Estimate | None = None
    share_of_ones: Estimate | None = None
    class_entropy: Estimate | None = None
    gaussian_without_digit: Estimate | None = titled("without digit, Gaussian", default=None)
    out_of_range: Estimate | None = titled("values out of range", default=None)


def draw(context: Context) -> Outcome:
    there, notes = available(context)
    pictures: dict[str, Picture] = {}
    claims: list[Claim] = []
    table: list[Rotated] = []
    for name in there:
        found = finished_seeds(context, name, notes)
        done, seeds = found.done, found.seeds
        if not seeds or seeds[0] != 0:
            notes.append(f"{name}: the first seed is not finished")
            continue
        kinds = PANELS[context.scale][name].rotations
        records = {kind: [done[seed, kind] for seed in seeds] for kind in kinds}
        rows = [_row(name, kind, records[kind]) for kind in kinds]
        table += rows
        claims += found.tested(judge_digits(name, records))
        kept = [kind for kind in PICTURED if kind in kinds]
        samples = {kind: context.store.samples(records[kind][0]) for kind in kept}
        updates = records["min"][0].cell.training.iterations
        by_kind = {row.rotation: row for row in rows}
        shown = [by_kind[kind] for kind in kept]
        pictures[name] = plot_samples(name, samples, shown, updates)
    return Outcome(pictures, table, context.tested(claims), notes)


def _row(name: str, kind: str, records: Sequence[Record]) -> Rotated:
    judged = [r.last.digits for r in records if r.last.digits is not None]
    labelled = [digits for digits in judged if digits.classes]

    def mean(
        digits: Sequence[DigitShares], number: Callable[[DigitShares], float]
    ) -> Estimate | None:
        return mean_estimate([number(d) for d in digits]) if digits else None

    return Rotated(
        data=name,
        rotation=kind,
        alpha=records[0].facts.alpha.value,
        without_digit=mean(judged, lambda d: d.without_digit),
        share_of_ones=mean(labelled, lambda d: d.share_of(1)),
        class_entropy=mean(labelled, lambda d: d.entropy or 0.0),
        gaussian_without_digit=mean_known(
            r.last.baselines.without_digit for r in records if r.last.baselines is not None
        ),
        out_of_range=mean_known(r.last.out_of_range for r in records),
        **score_cells([r.last for r in records], "sw2"),
    )


def judge_digits(name: str, records: Mapping[str, Sequence[Record]]) -> list[Claim]:
    """What the paper says in words about the samples of digits; nothing about other images."""

    def numbers(kind: str, number: Callable[[DigitShares], float]) -> list[float]:
        return [number(r.last.digits) for r in records[kind] if r.last.digits is not None]

    def closed(*kinds: str) -> str:
        return gate([r.last for kind in kinds for r in records[kind]])

    if any(r.last.digits is None for chosen in records.values() for r in chosen):
        return []
    identity, least = (numbers(kind, lambda d: d.without_digit) for kind in ("identity", "min"))
    blank = paired_difference(identity, least)
    claims = [
        judge(
            f"{name}: without a rotation, more samples have no digit than with the minimising one",
            f"share without a digit, difference: {blank}",
            sign_flip_test(np.subtract(identity, least), "seeds"),
            blank.interval,
            closed("identity", "min"),
        )
    ]
    if all(r.last.digits and r.last.digits.classes for r in records["max"]):
        largest, least = (numbers(kind, lambda d: d.share_of(1)) for kind in ("max", "min"))
        ones = paired_difference(largest, least)
        claims.append(
            judge(
                f'{name}: maximising alpha leads towards the digit "1"',
                f'share of "1" less that of the minimising rotation: {ones}',
                sign_flip_test(np.subtract(largest, least), "seeds"),
                ones.interval,
                closed("max", "min"),
            )
        )
    return claims


def plot_samples(
    name: str, samples: Mapping[str, Tensor], rows: Sequence[Rotated], updates: int
) -> "Picture":
    """A grid of samples for each rotation, as they come, on the scale of the data.

    Values out of the data's range are coloured, the stronger the further they are out.
    """
    from sads.plots.style import styled, subplots
    from sads.plots.training import grid_of

    with styled():
        size = (3.1 * len(samples), 4.5)
        picture, axes = subplots(1, len(samples), figsize=size, squeeze=False)
        for place, row, images in zip(axes[0], rows, samples.values(), strict=True):
            place.imshow(grid_of(images[: SIDE * SIDE], SIDE))
            place.set_axis_off()
            text = f"{TITLES[row.rotation]}\n$\\alpha$ = {row.alpha:.4g}, MSW$_2$ = {row.msw2}"
            out = float((images.abs() > 1).double().mean())
            text += f"\n{row.state}; {out:.0%} of values out of range"
            if row.without_digit is not None:
                text += f"\nwithout a digit: {row.without_digit.value:.0%}"
                if row.gaussian_without_digit is not None:
                    text += f" (a Gaussian: {row.gaussian_without_digit.value:.0%})"
            place.set_title(text, fontsize=8.5)
        known = rows[0]
        picture.suptitle(
            f"{name}: uncurated samples after {counted(updates, 'update')}; SW$_2$ of zeros "
            f"{format_value(known.zeros)}, the mean {format_value(known.mean)}, real data "
            f"{format_value(known.real)}",
            fontsize=9.5,
        )
        picture.supxlabel("red: above the data's range, blue: below it", fontsize=8)
    return picture


FIGURE = Figure(
    "fig7", "Samples of rotated image data", draw, cells=cells, panels=NAMES, images=NAMES
)
