"""What a model of diffusers predicts and at which noise levels, from the scheduler beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sads.errors import InvalidArgumentError, printable
from sads.schedule import RANGES, Schedule

PREDICTED = {
    "epsilon": "epsilon",
    "sample": "x0",
    "v_prediction": "v",
    "flow_prediction": "flow",
}
BETAS = {"linear": "linear", "scaled_linear": "scaled-linear", "squaredcos_cap_v2": "cosine"}


@dataclass(frozen=True)
class Meaning:
    """What the output of a model means: a prediction, under a schedule."""

    prediction: str = "epsilon"
    schedule: Schedule = field(default_factory=Schedule)
    notes: tuple[str, ...] = ()
    time_scale: float = 1.0  # of the times that the model was trained with, in units of ours


def read_scheduler(content: Mapping[str, Any], place: str) -> Meaning:
    """The meaning of a model's output from a `scheduler_config.json`; every value is checked."""
    kind = content.get("_class_name", "")
    levels = _number(content, "num_train_timesteps", 1000, place)
    if levels != int(levels):
        raise InvalidArgumentError(f"{place}: num_train_timesteps is {levels}, no whole number")
    levels = int(levels)
    if not isinstance(kind, str):
        raise InvalidArgumentError(f"{place} does not say of which class it is")
    # Our times are on a scale of 1000 levels; a model of diffusers is trained with the levels.
    time_scale = levels / 1000
    if "FlowMatch" in kind:
        shift = _number(content, "shift", 1.0, place)
        return Meaning("flow", Schedule("flow", levels, shift=shift), time_scale=time_scale)
    if kind == "CMStochasticIterativeScheduler":
        raise InvalidArgumentError(
            f"{place} is of a consistency model, which leads from noise to images at once: its "
            "output is no score"
        )
    if kind.startswith("EDM"):
        ends = (_number(content, f"sigma_{end}", None, place) for end in ("min", "max"))
        data = _number(content, "sigma_data", 0.5, place)
        spacing = content.get("sigma_schedule", "karras")
        others = () if spacing == "karras" else (f"{place} spaces its levels otherwise than EDM",)
        schedule = _with_ends(Schedule("edm", levels, sigma_data=data), *ends)
        return Meaning("edm", schedule, others)
    if kind == "ScoreSdeVeScheduler":
        ends = (_number(content, f"sigma_{end}", None, place) for end in ("min", "max"))
        return Meaning("score", _with_ends(Schedule("ve", levels), *ends))
    said = content.get("prediction_type", "epsilon")
    if not isinstance(said, str) or said not in PREDICTED:
        raise InvalidArgumentError(
            f"{place}: the prediction_type {printable(said)[:60]!r} is not known; give --prediction"
        )
    prediction = PREDICTED[said]
    if prediction == "flow":
        return Meaning("flow", Schedule("flow", levels), time_scale=time_scale)
    notes: tuple[str, ...] = ()
    moved = content.get("rescale_betas_zero_snr", False)
    if not isinstance(moved, bool | None):
        raise InvalidArgumentError(
            f"{place}: rescale_betas_zero_snr is {printable(repr(moved))[:60]}, expected true or "
            "false"
        )
    zero_snr = bool(moved)
    if zero_snr and prediction == "epsilon":
        notes += (
            f"{place} ends at noise alone, where an epsilon says nothing about an image: the score "
            "exists there, the image that epsilon predicts does not",
        )
    betas = content.get("beta_schedule", "linear")
    if not isinstance(betas, str) or betas not in BETAS or content.get("trained_betas") is not None:
        notes += (f"the betas of {place} are of a kind that is not known: the schedule is linear",)
        schedule = Schedule("linear", levels, zero_snr=zero_snr)
        return Meaning(prediction, schedule, notes, time_scale)
    if BETAS[betas] == "cosine":
        schedule = Schedule("cosine", levels, zero_snr=zero_snr)
        return Meaning(prediction, schedule, notes, time_scale)
    usual = {"beta_start": 1e-4, "beta_end": 0.02}  # of all schedulers of diffusers
    ends = (_number(content, key, default, place) for key, default in usual.items())
    schedule = _with_ends(Schedule(BETAS[betas], max(levels, 21), zero_snr=zero_snr), *ends)
    return Meaning(prediction, schedule, notes, schedule.num_levels / 1000)


def _with_ends(schedule: Schedule, first: float | None, last: float | None) -> Schedule:
    """A schedule between two numbers; those that it has anyway are not said again."""
    unit = 1 / schedule.num_levels if schedule.preserves_variance else 1.0
    usual = [unit * end for end in RANGES[schedule.name]]
    given = [None if end is None else float(end) for end in (first, last)]
    if all(
        g is None or math.isclose(g, u, rel_tol=1e-9) for g, u in zip(given, usual, strict=True)
    ):
        return schedule
    return replace(schedule, first=given[0], last=given[1])


def _number(content: Mapping[str, Any], key: str, default: Any, place: str) -> Any:
    value = content.get(key, default)
    if value is None:
        return None if default is None else default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= 1_000_000:
        raise InvalidArgumentError(
            f"{place}: {key} is {printable(repr(value))[:60]}, expected a positive number"
        )
    return value
