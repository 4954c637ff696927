"""A row for each practice and rotation, beside what needs no training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.practice.arms import CENTRED, NOISE, SKIP, TESTED, X0, Done, V
from sads.experiments.figures.states import describe_states, mean_known
from sads.experiments.spec import Practice
from sads.tables import Row, format_value, titled


@dataclass(frozen=True)
class Way(Row):
    """A practice behind a rotation, over all seeds, or something that needs no training."""

    data: str
    practice: str
    rotation: str = ""
    seeds: int | None = None
    alpha: float | None = None
    sw2: Estimate | None = titled("SW2", default=None)
    loss: Estimate | None = titled("held-out loss", default=None)
    along: Estimate | None = titled("along the data", default=None)
    off: Estimate | None = titled("off the data", default=None)
    without_digit: Estimate | None = None
    share_of_ones: Estimate | None = titled('share of "1"', default=None)
    out_of_range: Estimate | None = titled("values out of range", default=None)
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
