"""Models of `diffusers` as networks `net(x, t)`, without a wrapper of the user's.

    sads.family("diffusers:stable-diffusion-v1-5/unet")            # a folder as the hub stores it
    sads.family("diffusers:google/ddpm-cifar10-32")                # a name on the hub
    sads.family(diffusers.UNet2DModel, sample_size=32)             # a class, with its options
    sads.family(lambda: diffusers.UNet2DModel(...), shape=(3, 32, 32))

The class is named by the configuration, and so are the shape and the conditions (`conditions`);
what the model predicts is said by the scheduler beside it (`schedulers`). Weights are not read:
networks are drawn by the model's constructor, as those of any other family. Options of the family
are those of the model's constructor and

    condition       "zeros", "normal", the name of a file, or a mapping of tensors
    text_length     tokens of the text
    guidance_scale  w in `(1 - w) net(x, t, nothing) + w net(x, t, condition)`
    drop_variance   take the first half of the channels that a model with a learned variance returns
"""

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sads.adapters import configurations
from sads.adapters.conditions import TEXT, Call, call_of, channels_of, describe, fill, nothing
from sads.adapters.schedulers import Meaning, read_scheduler
from sads.arguments import check_number, shown
from sads.errors import InvalidArgumentError, NetworkError, SadsError, describe_failure, printable
from sads.families import ScoreFamily
from sads.schedule import Schedule
from sads.shapes import format_shape

OURS = ("condition", "text_length", "guidance_scale", "drop_variance")
PREFIX = "diffusers:"
MAX_DIMENSION = 1 << 26  # of the data
FLOWS = ("AuraFlow", "Flux", "SD3", "Sana")  # models of flows, by their classes
DEFAULT_SIZE = 64  # of a model whose configuration does not say: FLUX takes any


class DiffusersNetwork(nn.Module):
    """A model of diffusers, called as `net(x, t)` with its conditions and for its `.sample`."""

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        values: Mapping[str, Tensor],
        guidance_scale: float | None = None,
        drop_variance: bool = False,
    ):
        super().__init__()
        self.model = model
        self._call, self._guidance, self._drop = call, guidance_scale, drop_variance
        # Not buffers: they are not the network's own, and have values on every device.
        self._values = dict(values)
        self._nothing = nothing(call, values)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self._guidance is None:
            return self._evaluate(x, t, [self._values])
        both = self._evaluate(torch.cat([x, x]), torch.cat([t, t]), [self._nothing, self._values])
        without, given = both.chunk(2)
        return (1 - self._guidance) * without + self._guidance * given

    def _evaluate(self, x: Tensor, t: Tensor, values: Sequence[Mapping[str, Tensor]]) -> Tensor:
        arguments: dict[str, Any] = dict(self._call.fixed)
        count = len(x) // len(values)
        for c in self._call.conditions:
            parts = [v[c.name].to(x.device).expand(count, *v[c.name].shape[1:]) for v in values]
            value = torch.cat(parts)
            value = value if c.kind == "label" else value.to(x.dtype)
            place = arguments.setdefault(c.group, {}) if c.group else arguments
            place[c.name] = value
        if not self._call.packed:
            output = self.model(x, timestep=self._time(t), **arguments, return_dict=False)[0]
        else:
            tokens, ids = pack(x, self._call.packed)
            texts = arguments["encoder_hidden_states"].shape[1]
            output = self.model(
                tokens,
                timestep=self._time(t),
                img_ids=ids,
                txt_ids=torch.zeros(texts, 3, device=x.device, dtype=x.dtype),
                **arguments,
                return_dict=False,
            )[0]
            output = unpack(output, self._call.packed, tuple(x.shape[2:]))
        return output.chunk(2, dim=1)[0] if self._drop else output

    def _time(self, t: Tensor) -> Tensor:
        t = t * self._call.time_scale if self._call.time_scale != 1 else t
        return t.round().long() if self._call.whole_times else t


def adapt(
    name: Any,
    shape: tuple[int, ...] | None,
    prediction: str | None,
    schedule: Schedule | None,
    overrides: Mapping[str, Any],
) -> ScoreFamily:
    """The family of `"diffusers:PATH"`, or of a class of diffusers; see the head of this module."""
    if not isinstance(name, str):
        return family_of(name, {}, None, name.__name__, shape, prediction, schedule, overrides)
    found = configurations.find(name.removeprefix(PREFIX))
    kind = model_class(configurations.class_name(found), printable(found.path))
    meaning = None
    if found.scheduler is not None:
        meaning = read_scheduler(found.scheduler, printable(found.scheduler_path))
    return family_of(
        kind,
        found.content,
        meaning,
        found.name,
        shape,
        prediction,
        schedule,
        overrides,
        place=printable(found.path),
    )


def wrap(model: nn.Module) -> nn.Module:
    """A model that a user's factory built as a network `net(x, t)`, with conditions of zeros."""
    return _Settings.read(model, {}).network(model)


def pack(x: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) as tokens of `side` x `side` pixels, with the place of each, (L, 3)."""
    n, c, h, w = x.shape
    rows, columns = h // side, w // side
    tokens = x.reshape(n, c, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    place = torch.zeros(rows, columns, 3, device=x.device, dtype=x.dtype)
    place[..., 1] += torch.arange(rows, device=x.device)[:, None]
    place[..., 2] += torch.arange(columns, device=x.device)
    return tokens.reshape(n, rows * columns, c * side**2), place.reshape(-1, 3)


def unpack(tokens: Tensor, side: int, size: tuple[int, ...]) -> Tensor:
    """The inverse of `pack`."""
    rows, columns = size[0] // side, size[1] // side
    x = tokens.reshape(len(tokens), rows, columns, -1, side, side).permute(0, 3, 1, 4, 2, 5)
    return x.reshape(len(tokens), -1, rows * side, columns * side)


def family_of(
    kind: type,
    content: Mapping[str, Any],
    meaning: Meaning | None,
    title: str,
    shape: tuple[int, ...] | None,
    prediction: str | None,
    schedule: Schedule | None,
    overrides: Mapping[str, Any],
    place: str | None = None,
) -> ScoreFamily:
    """A family from the content of a configuration, and what its output means, if it is known."""
    place = title if place is None else place
    options = {key: value for key, value in overrides.items() if key not in OURS}
    arguments = configurations.checked_arguments(kind, content, place, options)
    with torch.device("meta"):
        model: Any = _built(kind, arguments, place)
    meaning = _usual_meaning(model) if meaning is None else meaning
    settings = _Settings.read(model, {key: overrides[key] for key in OURS if key in overrides})
    chosen = meaning.schedule if schedule is None else schedule
    if chosen.preserves_variance or chosen.name == "flow":  # others have times of their own
        settings = settings.with_time_scale(meaning.time_scale)
    family = ScoreFamily(
        lambda: settings.network(_built(kind, arguments, place)),
        _shape(model, shape, settings.call.packed),
        chosen,
        meaning.prediction if prediction is None else prediction,
        title,
        {"class": kind.__name__, "config": arguments, **settings.describe()},
        zero_readout="default",
        notes=(*meaning.notes, *settings.notes()),
    )
    _check_on_meta(family, settings)
    return family


@dataclass(frozen=True, eq=False)
class _Settings:
    """How the models of a family are called: all that is ours and not the constructor's."""

    call: Call
    values: Mapping[str, Tensor]
    condition: Any = "zeros"
    guidance_scale: float | None = None
    drop_variance: bool = False
    time_scale: float = 1.0  # of the times of training, in units of those on a scale of 1000

    @classmethod
    def read(cls, model: Any, given: Mapping[str, Any]) -> "_Settings":
        call = call_of(model).with_text_length(given.get("text_length"))
        condition = given.get("condition", "zeros")
        values = fill(call, condition)
        guidance = given.get("guidance_scale")
        if guidance is not None:
            check_number("guidance_scale", guidance)
            none = nothing(call, values)
            if all(torch.equal(none[name], values[name]) for name in values):
                raise InvalidArgumentError(
                    "guidance moves from no condition to one, and here the two are the same; give "
                    "a condition (--condition normal, or a file)"
                )
        drop = given.get("drop_variance", False)
        if not isinstance(drop, bool):
            raise InvalidArgumentError(f"drop_variance is {shown(drop)}, expected True or False")
        return cls(call, values, condition, guidance, drop)

    def with_time_scale(self, scale: float) -> "_Settings":
        """A call for a model that was trained with another number of levels than 1000."""
        call = replace(self.call, time_scale=scale * self.call.time_scale)
        return replace(self, call=call, time_scale=scale)

    def network(self, model: nn.Module) -> "DiffusersNetwork":
        return DiffusersNetwork(
            model, self.call, self.values, self.guidance_scale, self.drop_variance
        )

    def describe(self) -> dict[str, Any]:
        """What a provenance says of them, beside what is as usual."""
        said: dict[str, Any] = {"condition": describe(self.condition, self.values)}
        text = self.values.get(TEXT)
        if text is not None:
            said["text_length"] = text.shape[1]
        if self.guidance_scale is not None:
            said["guidance_scale"] = self.guidance_scale
        if self.drop_variance:
            said["drop_variance"] = True
        if self.time_scale != 1:
            said["time_scale"] = self.time_scale
        return said

    def notes(self) -> list[str]:
        """What a reader of a result should know."""
        told = []
        if self.values:
            parts = (
                f"{name} {format_shape(value.shape[1:])}".strip()
                for name, value in self.values.items()
            )
            given = self.condition if self.condition in ("zeros", "normal") else "given"
            told.append(f"conditions ({', '.join(parts)}) are {given}")
        if self.guidance_scale is not None:
            told.append(f"guided with a scale of {self.guidance_scale:g}")
        if self.drop_variance:
            told.append("the learned variance, the second half of the channels, is left out")
        return told


def _shape(model: Any, given: tuple[int, ...] | None, packed: int) -> tuple[int, ...]:
    """The shape of the data: what is asked for, or what the configuration says."""
    channels = channels_of(model)
    axes = 1 if type(model).__name__ == "UNet1DModel" else 2
    if given is None:
        size = model.config.get("sample_size")
        size = DEFAULT_SIZE if size is None and packed else size
        sizes = list(size) if isinstance(size, list | tuple) else [size] * axes
        if not all(isinstance(n, int) and n > 0 for n in sizes):
            raise InvalidArgumentError(
                f"the configuration of {type(model).__name__} does not say the size of its images "
                f"(sample_size is {size!r}); give --shape {channels}x64x64 or the like"
            )
        given = (channels, *sizes)
    elif given[0] != channels:
        raise InvalidArgumentError(
            f"{type(model).__name__} takes {channels} channels, the shape {format_shape(given)} "
            f"has {given[0]}; give --shape {format_shape((channels, *given[1:]))}"
        )
    if torch.Size(given).numel() > MAX_DIMENSION:
        raise InvalidArgumentError(f"data of shape {format_shape(given)} are too large to look at")
    if packed and any(n % packed for n in given[1:]):
        raise InvalidArgumentError(
            f"{type(model).__name__} takes images in patches of {packed} x {packed}; give a shape "
            f"whose sides are multiples of {packed}, not {format_shape(given)}"
        )
    return given


def _check_on_meta(family: ScoreFamily, settings: _Settings) -> None:
    """One evaluation without numbers: does the model take its arguments, and return its input?"""
    with torch.device("meta"):
        network = family.build()
    x = torch.zeros(1, *family.shape, device="meta")
    t = torch.zeros(1, device="meta")
    try:
        with _quiet(), torch.no_grad(), torch.device("meta"):
            output = network(x, t)
    except NotImplementedError:
        return  # a model that looks at numbers: it is checked when it has some
    except SadsError:
        raise
    except Exception as error:
        raise NetworkError(
            f"{family.name} cannot be evaluated for data of {format_shape(family.shape)}"
            f"{_reason(network.get_submodule('model'), family.shape, settings.call, error)}"
        ) from error
    returned = tuple(output.shape)
    if returned == (1, *family.shape):
        return
    half = (1, 2 * family.shape[0], *family.shape[1:])
    if not settings.drop_variance and returned == half:
        raise NetworkError(
            f"{family.name} returns {returned[1]} channels for {family.shape[0]}: the second half "
            "is a learned variance; take the first with --drop-variance (drop_variance=True)"
        )
    raise NetworkError(
        f"{family.name} returns data of {format_shape(returned[1:])} for "
        f"{format_shape(family.shape)}; a score network returns what it is given"
    )


def _reason(model: nn.Module, shape: tuple[int, ...], call: Call, error: Exception) -> str:
    """Why a model may have failed, and what to do."""
    name = type(model).__name__
    videos = any(isinstance(layer, nn.Conv3d) for layer in model.modules())
    if videos and len(shape) == 3:
        example = format_shape((shape[0], 8, *shape[1:]))
        return f": {name} takes videos, channels x frames x height x width; give --shape {example}"
    if call.left_out is None:
        return f": {describe_failure(error)}"
    needed = f" It may need {', '.join(call.left_out)}." if call.left_out else ""
    return (
        f" ({describe_failure(error)}). sads does not know {name}, and gave it only the arguments "
        f"without a default.{needed} Wrap it as net(x, t) yourself: sads.family(lambda: "
        "Wrapped(...), shape=...)"
    )


def _usual_meaning(model: Any) -> Meaning:
    """What a model predicts that has no scheduler beside it."""
    if model.config.get("time_embedding_type") == "fourier":  # of Song et al. (2021)
        return Meaning("score", Schedule("ve"))
    if any(name in type(model).__name__ for name in FLOWS):
        return Meaning("flow", Schedule("flow"))
    return Meaning()


def _built(kind: type, arguments: Mapping[str, Any], place: str) -> nn.Module:
    try:
        with _quiet():
            model = kind(**arguments)
    except Exception as error:
        raise InvalidArgumentError(
            f"{place} does not describe a {kind.__name__}: {describe_failure(error)}"
        ) from error
    assert isinstance(model, nn.Module)
    return model


def model_class(name: str, place: str) -> type:
    """A class of diffusers' own models by name, and nothing else."""
    try:
        models = importlib.import_module("diffusers.models")
        base = importlib.import_module("diffusers.models.modeling_utils").ModelMixin
    except ImportError as error:
        raise InvalidArgumentError(
            f"diffusers is not installed ({error}): pip install 'sads[diffusers]'"
        ) from error
    found = getattr(models, name, None) if name in dir(models) else None
    if not isinstance(found, type) or not issubclass(found, base):
        version = getattr(importlib.import_module("diffusers"), "__version__", "here")
        raise InvalidArgumentError(
            f"{place} is of the class {printable(name)[:80]!r}, which diffusers {version} does not "
            "have among its models; is it of a newer version, or of another library?"
        )
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what diffusers says about options that are deprecated."""
    log = logging.getLogger("diffusers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
