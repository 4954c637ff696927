"""What a model of diffusers predicts and at which noise levels, from the scheduler beside it.

| setting of a scheduler | what it means here |
|---|---|
| `num_train_timesteps` | levels, and the scale of the times that networks see |
| `prediction_type` | the prediction: `PREDICTED` |
| `beta_start`, `beta_end`, `beta_schedule`, `rescale_betas_zero_snr` | the schedule |
| `shift`, `flow_shift`, `use_flow_sigmas` | the schedule of a flow |
| `sigma_min`, `sigma_max`, `sigma_data` | the schedule, of EDM and VE |
| `use_dynamic_shifting` | levels as they are before sampling, not shifted; a note says so |
| `sigma_schedule`, `rho`, `trained_betas`, `snr_shift_scale` | usual ones only; else a note |
| `invert_sigmas`, `timestep_type` | usual ones only; else refused |
| `SAMPLING` | steps of a sampler, which a score does not depend on: a note where they are unusual |
| all others | a note says that they are not known |

A setting that is left out is what its class has by default, as diffusers has it.
"""

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sads.errors import InvalidArgumentError, printable
from sads.schedule import RANGES, RHO, Schedule

PREDICTED = {
    "epsilon": "epsilon",
    "sample": "x0",
    "v_prediction": "v",
    "flow_prediction": "flow",
}
BETAS = {"linear": "linear", "scaled_linear": "scaled-linear", "squaredcos_cap_v2": "cosine"}
USUAL = {"num_train_timesteps": 1000, "beta_start": 1e-4, "beta_end": 0.02}  # of most classes
TOKENS = "of a model of tokens that are classes: its output is no score"
OWN_LEVELS = "of a kind whose noise levels sads does not have"
REFUSED = {
    "AmusedScheduler": TOKENS,
    "BlockRefinementScheduler": TOKENS,
    "CMStochasticIterativeScheduler": "of a consistency model, which leads from noise to images at "
    "once: its output is no score",
    "ConsistencyDecoderScheduler": "of a consistency model, which leads from noise to images at "
    "once: its output is no score",
    "CosineDPMSolverMultistepScheduler": OWN_LEVELS,
    "DDPMWuerstchenScheduler": OWN_LEVELS,
    "DiscreteDDIMScheduler": TOKENS,
    "EntropyBoundScheduler": TOKENS,
    "FlowMapEulerDiscreteScheduler": "of a flow map, which leads from one time to another: its "
    "output is no score",
    "HeliosDMDScheduler": OWN_LEVELS,
    "HeliosScheduler": OWN_LEVELS,
    "IPNDMScheduler": OWN_LEVELS,
    "KarrasVeScheduler": OWN_LEVELS,
    "MiniMaxH3Scheduler": OWN_LEVELS,
    "PiflowScheduler": OWN_LEVELS,
    "RFD4ProteinaScheduler": OWN_LEVELS,
    "SCMScheduler": OWN_LEVELS,
    "VQDiffusionScheduler": TOKENS,
}
READ = {  # by the kind of scheduler
    "flow": {"num_train_timesteps", "shift", "use_dynamic_shifting", "invert_sigmas"},
    "edm": {"num_train_timesteps", "prediction_type", "sigma_schedule", "rho"}
    | {"sigma_min", "sigma_max", "sigma_data"},
    "ve": {"num_train_timesteps", "sigma_min", "sigma_max"},
    "betas": {"num_train_timesteps", "prediction_type", "beta_start", "beta_end", "beta_schedule"}
    | {"trained_betas", "rescale_betas_zero_snr", "snr_shift_scale", "timestep_type"}
    | {"use_flow_sigmas", "flow_shift", "use_dynamic_shifting"},
}
SAMPLING = {
    *("clip_sample", "clip_sample_range", "thresholding", "dynamic_thresholding_ratio"),
    *("sample_max_value", "variance_type", "eta", "s_noise", "noise_sampler_seed"),
    *("timestep_spacing", "steps_offset", "set_alpha_to_one", "skip_prk_steps"),
    *("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"),
    *("final_sigmas_type", "sigma_min", "sigma_max", "interpolation_type", "lambda_min_clipped"),
    *("shift_terminal", "time_shift_type", "base_shift", "max_shift", "base_image_seq_len"),
    *("max_image_seq_len", "stochastic_sampling", "scale_factors", "upscale_mode"),
    *("algorithm_type", "solver_type", "solver_order", "solver_p", "lower_order_final"),
    *("euler_at_final", "predict_x0", "disable_corrector", "predictor_order", "corrector_order"),
    *("tau_func", "original_inference_steps", "timestep_scaling", "snr", "correct_steps"),
    *("sampling_eps", "skip_type"),
}


@dataclass(frozen=True)
class Meaning:
    """What the output of a model means: a prediction, under a schedule."""

    prediction: str = "epsilon"
    schedule: Schedule = field(default_factory=Schedule)
    notes: tuple[str, ...] = ()
    time_scale: float = 1.0  # of the times that the model was trained with, in units of ours


def read_scheduler(content: Mapping[str, Any], place: str) -> Meaning:
    """The meaning of a model's output from a `scheduler_config.json`; every value is checked."""
    name = content.get("_class_name", "")
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{place} does not say of which class it is")
    if name in REFUSED:
        raise InvalidArgumentError(f"{place} is {REFUSED[name]}")
    defaults = _defaults(name)
    said = _Settings({**USUAL, **defaults, **content}, place)
    kind = "flow" if "FlowMatch" in name or name.startswith("LTXEuler") else "betas"
    kind = "edm" if name.startswith("EDM") else "ve" if name == "ScoreSdeVeScheduler" else kind
    read = {"flow": _flow, "edm": _edm, "ve": _ve, "betas": _betas}[kind]
    notes = []
    if name and not defaults and kind == "betas":
        notes.append(
            f"{place} is a {printable(name)[:60]}, which this diffusers does not have: it is read "
            "as one with betas"
        )
    return read(said, (*notes, *_unread(content, defaults, READ[kind], place)))


@dataclass(frozen=True)
class _Settings:
    """What a scheduler says of itself, looked up with checks."""

    content: Mapping[str, Any]
    place: str

    def number(self, key: str, default: float | None = None) -> Any:
        value = self.content.get(key)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= 1_000_000:
            raise self.wrong(key, "a positive number")
        return value

    def flag(self, key: str) -> bool:
        value = self.content.get(key)
        if not isinstance(value, bool | None):
            raise self.wrong(key, "true or false")
        return bool(value)

    def wrong(self, key: str, expected: str) -> InvalidArgumentError:
        value = printable(repr(self.content.get(key)))[:60]
        return InvalidArgumentError(f"{self.place}: {key} is {value}, expected {expected}")

    def usual(self, key: str, *usual: Any) -> bool:
        """Is a setting left out, or one of its usual values?"""
        value = self.content.get(key)
        return value is None or any(value == one for one in usual)

    @property
    def levels(self) -> int:
        levels = self.number("num_train_timesteps", 1000)
        if levels != int(levels):
            raise self.wrong("num_train_timesteps", "a whole number")
        return int(levels)

    @property
    def time_scale(self) -> float:
        """Our times are on a scale of 1000 levels; a model of diffusers is trained with levels."""
        return self.levels / 1000

    @property
    def sigmas(self) -> tuple[float | None, float | None]:
        return self.number("sigma_min"), self.number("sigma_max")


def _flow(
    said: _Settings, notes: tuple[str, ...], prediction: str = "flow", shift: str = "shift"
) -> Meaning:
    if said.flag("invert_sigmas"):
        raise InvalidArgumentError(
            f"{said.place} counts time from noise to images (invert_sigmas): sads knows flows with "
            "times from images to noise"
        )
    shifted = said.number(shift, 1.0)
    if said.flag("use_dynamic_shifting"):
        shifted = 1.0
        notes += (
            f"{said.place} shifts levels by the size of an image when it samples "
            "(use_dynamic_shifting): here they are not shifted",
        )
    schedule = Schedule("flow", said.levels, shift=shifted)
    return Meaning(prediction, schedule, notes, said.time_scale)


def _edm(said: _Settings, notes: tuple[str, ...]) -> Meaning:
    if not said.usual("prediction_type", "epsilon"):
        raise said.wrong("prediction_type", "epsilon, which is F of the preconditioning of EDM")
    if not said.usual("sigma_schedule", "karras") or not said.usual("rho", RHO):
        notes += (f"{said.place} spaces its levels otherwise than EDM",)
    data = said.number("sigma_data", 0.5)
    return Meaning("edm", _between("edm", said.levels, *said.sigmas, sigma_data=data), notes)


def _ve(said: _Settings, notes: tuple[str, ...]) -> Meaning:
    return Meaning("score", _between("ve", said.levels, *said.sigmas), notes)


def _betas(said: _Settings, notes: tuple[str, ...]) -> Meaning:
    place = said.place
    named = said.content.get("prediction_type", "epsilon")
    if not isinstance(named, str) or named not in PREDICTED:
        raise InvalidArgumentError(
            f"{place}: the prediction_type {printable(named)[:60]!r} is not known; "
            f"expected {', '.join(PREDICTED)}"
        )
    prediction = PREDICTED[named]
    if said.flag("use_flow_sigmas") or prediction == "flow":
        return _flow(said, notes, prediction, shift="flow_shift")
    if not said.usual("timestep_type", "discrete"):
        raise InvalidArgumentError(
            f"{place} tells its networks logarithms of noise instead of times (timestep_type is "
            f"{printable(repr(said.content['timestep_type']))[:60]}), which sads does not"
        )
    zero_snr = said.flag("rescale_betas_zero_snr")
    if zero_snr and prediction == "epsilon":
        notes += (
            f"{place} ends at noise alone, where an epsilon says nothing about an image: the score "
            "exists there, the image that epsilon predicts does not",
        )
    if not said.usual("snr_shift_scale", 1.0):
        notes += (f"{place} moves its levels by snr_shift_scale: here they are where betas say",)
    betas = said.content.get("beta_schedule", "linear")
    usual = isinstance(betas, str) and betas in BETAS and said.usual("trained_betas")
    if not usual:
        notes += (f"the betas of {place} are of a kind that is not known: the schedule is linear",)
        schedule = Schedule("linear", said.levels, zero_snr=zero_snr)
    elif BETAS[betas] == "cosine":
        schedule = Schedule("cosine", said.levels, zero_snr=zero_snr)
    else:
        ends = said.number("beta_start"), said.number("beta_end")
        schedule = _between(BETAS[betas], said.levels, *ends, zero_snr=zero_snr)
    return Meaning(prediction, schedule, notes, said.time_scale)


def _between(
    name: str, levels: int, first: float | None, last: float | None, **more: Any
) -> Schedule:
    """A schedule between two numbers; those that it has anyway are not said again."""
    unit = 1 / levels if name in BETAS.values() else 1.0
    usual = [unit * end for end in RANGES[name]]
    given = [None if end is None else float(end) for end in (first, last)]
    if all(
        g is None or math.isclose(g, u, rel_tol=1e-9) for g, u in zip(given, usual, strict=True)
    ):
        return Schedule(name, levels, **more)
    return Schedule(name, levels, first=given[0], last=given[1], **more)


def _defaults(name: str) -> dict[str, Any]:
    """The settings that a class of diffusers has by default; none if it is not known."""
    if not name.endswith("Scheduler"):
        return {}
    try:
        kind = getattr(importlib.import_module("diffusers.schedulers"), name, None)
    except (ImportError, RuntimeError):  # the class needs a package that is not there
        return {}
    if not isinstance(kind, type):
        return {}
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _unread(
    content: Mapping[str, Any], defaults: Mapping[str, Any], read: set[str], place: str
) -> list[str]:
    """What was said and is not read: settings of samplers, and those that are not known."""
    nothing = (None, False)
    others = [k for k in content if not k.startswith("_") and k not in read]
    unusual = [k for k in others if content[k] not in (*nothing, defaults.get(k))]
    ours = [k for k in unusual if k in SAMPLING]
    strange = [k for k in unusual if k not in SAMPLING]
    notes = []
    if ours:
        notes.append(f"of {place} it does not matter how it samples: {_listed(ours)}")
    if strange:
        notes.append(f"of {place} it is not known what they mean: {_listed(strange)}")
    return notes


def _listed(keys: Sequence[str]) -> str:
    """Names that somebody else wrote, in words: the first of them, if they are many."""
    named = [printable(key)[:40] for key in sorted(keys)]
    return ", ".join(named[:12]) + (f" and {len(named) - 12} more" if len(named) > 12 else "")
