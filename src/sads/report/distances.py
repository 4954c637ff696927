"""Distances of samples beside those of what needs no training, as rows and in words."""

from dataclasses import dataclass

from sads.estimates import Estimate
from sads.metrics.baselines import Distance
from sads.pipeline import Evaluation
from sads.tables import Row, titled


@dataclass(frozen=True)
class DistanceRow(Row):
    """A distance as it is printed."""

    name: str = titled("")
    sw2: Estimate | None = titled("SW2")
    msw2: float | None = titled("MSW2")
    projections: int | None = None
    along: float | None = titled("W2 along v", default=None)


def rows_of(evaluation: Evaluation) -> list[DistanceRow]:
    """The distances of samples, then those of what needs no training, best first."""

    def row(name: str, distance: Distance | None, along: float | None = None) -> list[DistanceRow]:
        if distance is None:
            return []
        return [DistanceRow(name, distance.sw2, distance.msw2, distance.num_projections, along)]

    rows = row("samples", evaluation.distance, evaluation.along)
    rows += row("samples, closed-form target", evaluation.closed_form)
    if evaluation.ascent_msw2 is not None:
        rows.append(DistanceRow("samples, largest by ascent", None, evaluation.ascent_msw2))
    if (known := evaluation.baselines) is None:
        return rows + row("fresh data (a perfect model)", evaluation.fresh_data)
    along, halves = known.along, known.moments_of == "test data"

    def near(name: str) -> float | None:
        return None if along is None else getattr(along, name)

    real = "real against real, halves of the data" if halves else "fresh data (a perfect model)"
    rows += row(real, known.real, near("real"))
    rows += row("Gaussian with the data's moments", known.gaussian, near("gaussian"))
    rows += row("the data's mean", known.mean, near("mean"))
    return rows + row("zeros", known.zeros, near("zeros"))


STATES = {
    "trained": "trained: the samples are nearer to the data than zeros and the mean",
    "not trained": "not trained: the samples are no nearer to the data than zeros or the mean",
    "diverged": "diverged: the samples are no nearer to the data than zeros or the mean, far out",
}


def statements_of(evaluation: Evaluation) -> list[str]:
    """What the numbers say of the model, in words."""
    lines = [] if evaluation.state is None else [STATES[evaluation.state]]
    if evaluation.energy is not None and evaluation.data_energy is not None:
        lines.append(
            f"energy E|y|^2/D of the samples {evaluation.energy:.4g}, of the data "
            f"{evaluation.data_energy:.4g}"
        )
    if evaluation.out_of_range is not None:
        lines.append(f"{evaluation.out_of_range:.1%} of all values lie beyond the data's range")
    if (wrong := evaluation.denoising) is not None:
        lines.append(f"denoising loss E|e|^2/D {wrong}; best linear prediction {wrong.linear:.4g}")
    if (parts := evaluation.energies) is not None:
        lines.append(
            f"energy of the samples along the data {parts.along} (data {parts.data_along:.4g}), "
            f"off them {parts.off} (data {parts.data_off:.4g})"
        )
    if evaluation.baselines is not None and evaluation.baselines.moments_of == "test data":
        lines.append("mean and Gaussian are those of the test data, for want of training data")
    return lines
