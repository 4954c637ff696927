"""Whether the models behind a claim are trained, and what doing nothing would score beside them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sads.errors import counted
from sads.estimates import Estimate, mean_estimate
from sads.experiments.records import Record
from sads.pipeline import Evaluation
from sads.tables import Row, titled

if TYPE_CHECKING:
    from sads.metrics.baselines import Distance

STATES = ("diverged", "not trained", "trained")


def describe_states(evaluations: Iterable[Evaluation]) -> str:
    """How many are in which state, the worst first: `4 diverged, 1 trained`."""
    counts = Counter(str(evaluation.state or "unknown") for evaluation in evaluations)
    return ", ".join(f"{counts[name]} {name}" for name in (*STATES, "unknown") if counts[name])


def gate(evaluations: Collection[Evaluation]) -> str:
    """Why no claim can rest on these models; nothing if they are all trained."""
    counts = Counter(evaluation.state for evaluation in evaluations)
    models = counted(len(evaluations), "model")
    parts = []
    if counts["diverged"]:
        verb = "has" if counts["diverged"] == 1 else "have"
        parts.append(f"{counts['diverged']} of {models} {verb} diverged")
    if counts["not trained"]:
        verb = "is" if counts["not trained"] == 1 else "are"
        parts.append(f"{counts['not trained']} of {models} {verb} not trained")
    if counts[None]:
        parts.append(f"of {counts[None]} of {models} no baselines are known")
    if not parts:
        return ""
    bad = [e for e in evaluations if e.state in ("diverged", "not trained")]
    ratios = [
        e.sw2 / e.baselines.best_constant.sw2.value for e in bad if e.baselines and e.distance
    ]
    if not ratios:
        return " and ".join(parts)
    least, median, most = (_times(ratio) for ratio in np.quantile(ratios, [0, 0.5, 1]))
    return (
        f"{' and '.join(parts)} (their SW2 is {median} times that of the best constant, "
        f"{least} to {most})"
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def note_states(records: Collection[Record], panel: str = "") -> list[str]:
    """The states of records as a note of a figure, or of one of its panels."""
    reason = gate([record.last for record in records])
    return [f"{panel}: {reason}" if panel else reason] if reason else []


@dataclass(frozen=True, kw_only=True)
class BaselineRow(Row):
    """A row of a table with what doing nothing would score: the fields of `baseline_cells`."""

    zeros: float | None = None
    mean: float | None = None
    gaussian: float | None = titled("Gaussian", default=None)
    real: float | None = titled("real against real", default=None)
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class DistanceRow(Row):
    """A row of a table with the distances of models over several seeds."""

    seeds: int
    sw2: Estimate = titled("SW2")
    msw2: Estimate = titled("MSW2")


class ScoreRow(BaselineRow, DistanceRow):
    """A row with both, the distances first: the fields of `score_cells`."""


def score_cells(evaluations: Sequence[Evaluation], metric: str) -> dict[str, Any]:
    """All that a `ScoreRow` has beyond its own fields, from an evaluation of every seed."""
    return {
        "seeds": len(evaluations),
        "sw2": mean_estimate([e.sw2 for e in evaluations]),
        "msw2": mean_estimate([e.msw2 for e in evaluations]),
        **baseline_cells(evaluations, metric),
    }


def mean_known(values: Iterable[float | None]) -> Estimate | None:
    """The mean of those that are known; older records do not have every number."""
    known = [value for value in values if value is not None]
    return mean_estimate(known) if known else None


def baseline_cells(evaluations: Sequence[Evaluation], metric: str) -> dict[str, Any]:
    """The columns `zeros`, `mean`, `gaussian`, `real` and `state` of a table's row.

    Args:
        metric: "sw2" or "msw2"; the numbers are means over the evaluations.
    """
    known = [e.baselines for e in evaluations if e.baselines is not None]

    def mean(name: str) -> float | None:
        found: list[Distance] = [d for b in known if (d := getattr(b, name)) is not None]
        return float(np.mean([float(getattr(d, metric)) for d in found])) if found else None

    names = ("zeros", "mean", "gaussian", "real")
    return {**{name: mean(name) for name in names}, "state": describe_states(evaluations)}


def baseline_lines(rows: Iterable[Any]) -> dict[str, float]:
    """Floor and ceilings for a picture, from rows with such columns: means over the rows."""
    titles = {"zeros": "zeros", "mean": "the mean", "real": "real against real"}
    given = list(rows)
    found = {title: [getattr(row, name) for row in given] for name, title in titles.items()}
    return {
        title: float(np.mean([v for v in values if v is not None]))
        for title, values in found.items()
        if any(v is not None for v in values)
    }
