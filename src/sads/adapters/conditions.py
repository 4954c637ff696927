"""What models of diffusers are given beside `x` and the time, read off their configuration.

| | filled with by default | by `"normal"` |
|---|---|---|
| text states, pooled embeddings | zeros | independent normal numbers, the same for all networks |
| class labels | class 0 | class 0 |
| sizes ("time ids"), guidance, resolution | zeros | zeros |

A file (`.npz`, `.safetensors`) or a mapping of tensors gives any of them by name; the others stay
zeros.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sads.arguments import as_tensor, shown
from sads.data.arrays import array_names, load_array
from sads.errors import InvalidArgumentError, printable
from sads.files import ANYTHING_WRONG, tensor_digest
from sads.seeds import torch_stream
from sads.tensorfile import TensorFile
from sads.untrusted import first_line, open_regular

TEXT = "encoder_hidden_states"
CLIP, T5 = 77, 256  # tokens of their texts
MAX_TOKENS = 1 << 14


@dataclass(frozen=True)
class Condition:
    """One thing that a model is given: the name of its argument and the shape for one sample."""

    name: str
    shape: tuple[int, ...] = ()
    kind: str = "number"  # "features" are what "normal" draws, "label" is a class
    classes: int = 0  # of a label
    none: int = 0  # the label that stands for no class
    group: str = ""  # the dictionary of arguments that it belongs to


@dataclass(frozen=True)
class Call:
    """How a model is called: `model(x, time_scale * t, **conditions)`."""

    conditions: tuple[Condition, ...] = ()
    time_scale: float = 1.0
    packed: int = 0  # of a model of tokens: pixels that make one, along each side
    fixed: tuple[tuple[str, Any], ...] = ()  # arguments that are always the same
    whole_times: bool = False  # it has an embedding for every level
    left_out: tuple[str, ...] | None = None  # what it may need too, if its class is not known

    def with_text_length(self, length: int | None) -> "Call":
        """This call with texts of another number of tokens."""
        if length is None:
            return self
        whole = isinstance(length, int) and not isinstance(length, bool)
        if not whole or not 1 <= length <= MAX_TOKENS or not self.has_text:
            raise InvalidArgumentError(
                f"text_length is {shown(length)}, expected 1 to {MAX_TOKENS:,} tokens of a "
                "model that takes a text"
            )
        changed = (
            replace(c, shape=(length, *c.shape[1:])) if c.name == TEXT else c
            for c in self.conditions
        )
        return replace(self, conditions=tuple(changed))

    @property
    def has_text(self) -> bool:
        return any(condition.name == TEXT for condition in self.conditions)


def call_of(model: Any) -> Call:
    """How a model of diffusers is called, from its class and its configuration."""
    config = model.config
    known = {
        "UNet2DModel": _unet,
        "UNet1DModel": lambda _: Call(),
        "UNet2DConditionModel": _conditional_unet,
        "DiTTransformer2DModel": _dit,
        "PixArtTransformer2DModel": _pixart,
        "SD3Transformer2DModel": _sd3,
        "FluxTransformer2DModel": _flux,
        "AuraFlowTransformer2DModel": _aura_flow,
        "SanaTransformer2DModel": _sana,
    }
    for base in type(model).__mro__:
        if base.__name__ in known and base.__module__.startswith("diffusers."):
            return known[base.__name__](config)
    return _by_signature(model)


def channels_of(model: Any) -> int:
    """The channels of the images that a model denoises."""
    channels = model.config.get("in_channels")
    packed = call_of(model).packed
    if not isinstance(channels, int) or channels < 1 or channels % max(1, packed**2):
        raise InvalidArgumentError(
            f"{type(model).__name__} does not say how many channels it takes; give --shape"
        )
    return channels // packed**2 if packed else channels


def fill(call: Call, condition: Any) -> dict[str, Tensor]:
    """Values of all conditions for one sample, (1, ...), on the CPU."""
    given: dict[str, Tensor] = {}
    if isinstance(condition, Mapping):
        given = {str(k): as_tensor(v, f"the condition {k}") for k, v in condition.items()}
    elif condition not in ("zeros", "normal"):
        given = _read(condition)
    if unknown := set(given) - {c.name for c in call.conditions}:
        names = ", ".join(c.name for c in call.conditions) or "none: it takes no condition"
        raise InvalidArgumentError(
            f"the model takes no condition {', '.join(sorted(map(printable, unknown)))}; it takes "
            f"{names}"
        )
    values = {}
    for c in call.conditions:
        if c.name in given:
            values[c.name] = _checked(c, given[c.name])
        elif condition == "normal" and c.kind == "features":
            values[c.name] = torch.randn(1, *c.shape, generator=torch_stream("condition", c.name))
        else:
            kind = torch.int64 if c.kind == "label" else torch.float32
            values[c.name] = torch.zeros(1, *c.shape, dtype=kind, device="cpu")
    return values


def nothing(call: Call, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands for no condition, beside which guidance moves: no text, no class."""
    empty = {c.name: values[c.name] for c in call.conditions}
    for c in call.conditions:
        if c.kind == "features":
            empty[c.name] = torch.zeros_like(values[c.name])
        elif c.kind == "label" and c.none:
            empty[c.name] = torch.full_like(values[c.name], c.none)
    return empty


def describe(condition: Any, values: Mapping[str, Tensor]) -> Any:
    """A condition as a provenance has it: its name, or a digest of its numbers."""
    if condition in ("zeros", "normal"):
        return condition
    return {name: tensor_digest(value) for name, value in sorted(values.items())}


def _checked(condition: Condition, value: Tensor) -> Tensor:
    """A condition that somebody gave, (1, *shape); texts may be of any length."""
    shape = tuple(value.shape)
    if len(shape) == len(condition.shape) + 1 and shape[0] == 1:
        shape = shape[1:]
    free = condition.name == TEXT and 1 <= (shape[0] if shape else 0) <= MAX_TOKENS
    wanted = (shape[0], *condition.shape[1:]) if free and len(shape) == 2 else condition.shape
    if shape != wanted:
        expected = ("any", *condition.shape[1:]) if condition.name == TEXT else condition.shape
        raise InvalidArgumentError(
            f"the condition {condition.name} is of shape {tuple(value.shape)}, the model takes "
            f"({', '.join(map(str, expected))})"
        )
    value = value.reshape(1, *shape).to("cpu")
    if condition.kind == "label":
        if value.is_floating_point() or not 0 <= int(value.min()) <= max(
            condition.none, condition.classes - 1
        ):
            raise InvalidArgumentError(
                f"the condition {condition.name} is a whole number from 0 to "
                f"{condition.classes - 1}, got {value.flatten().tolist()[:4]}"
            )
        return value.long()
    value = value.float()
    if not value.isfinite().all():
        raise InvalidArgumentError(f"the condition {condition.name} has NaN or infinite entries")
    return value


def _read(given: Any) -> dict[str, Tensor]:
    """Tensors by name from a file; nothing in it is unpickled."""
    path = Path(str(given))
    hint = "write zeros, normal, or the name of an npz or safetensors file"
    kinds = {".safetensors": _tensors, ".npz": _arrays}
    if path.suffix not in kinds or not path.exists():
        raise InvalidArgumentError(f"there are no conditions {printable(path)!r}; {hint}")
    try:
        return kinds[path.suffix](path)
    except ANYTHING_WRONG as error:
        raise InvalidArgumentError(
            f"the conditions in {printable(path)} cannot be read ({first_line(error)}); {hint}"
        ) from error


def _tensors(path: Path) -> dict[str, Tensor]:
    with open_regular(path) as file:
        return {str(name): tensor for name, tensor in TensorFile(file).items()}


def _arrays(path: Path) -> dict[str, Tensor]:
    return {name: _array(path, name) for name in array_names(path)}


def _array(path: Path, name: str) -> Tensor:
    return as_tensor(load_array(path, lambda _: name), f"the condition {printable(name)}")


def _text(length: int, width: Any) -> Condition:
    width = width[0] if isinstance(width, list | tuple) and width else width
    return Condition(TEXT, (length, _size(width, "the width of its text states")), "features")


def _size(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgumentError(f"the model's configuration does not say {what}: {value!r}")
    return value


def _label(config: Any, classes: Any) -> tuple[Condition, ...]:
    """The class, as U-Nets take it: a number, or features that stand for it."""
    kind = config.get("class_embed_type")
    if kind is None:
        if classes is None:
            return ()
        classes = _size(classes, "its number of classes")
        return (Condition("class_labels", (), "label", classes=classes),)
    if kind == "timestep":
        return (Condition("class_labels"),)
    if kind == "identity":
        width = config.get("time_embedding_dim") or 4 * config.block_out_channels[0]
        return (Condition("class_labels", (_size(width, "its width of time"),), "features"),)
    width = config.get("projection_class_embeddings_input_dim")
    return (Condition("class_labels", (_size(width, "its width of classes"),), "features"),)


def _unet(config: Any) -> Call:
    learned = config.get("time_embedding_type") == "learned"
    return Call(_label(config, config.get("num_class_embeds")), whole_times=learned)


def _conditional_unet(config: Any) -> Call:
    if config.get("encoder_hid_dim_type") not in (None, "text_proj"):
        _refuse(f"an encoder_hid_dim_type of {config.encoder_hid_dim_type!r}")
    width = config.get("encoder_hid_dim") or config.cross_attention_dim
    conditions = [_text(CLIP, width), *_label(config, config.get("num_class_embeds"))]
    kind = config.get("addition_embed_type")
    if kind == "text_time":  # SDXL: the pooled text, and sizes and crops as six numbers
        total = _size(config.projection_class_embeddings_input_dim, "its added width")
        pooled = total - 6 * _size(config.addition_time_embed_dim, "its width of sizes")
        pooled = _size(pooled, "its width of pooled text")
        group = "added_cond_kwargs"
        conditions.append(Condition("text_embeds", (pooled,), "features", group=group))
        conditions.append(Condition("time_ids", (6,), group=group))
    elif kind not in (None, "text"):
        _refuse(f"an addition_embed_type of {kind!r}")
    return Call(tuple(conditions))


def _dit(config: Any) -> Call:
    classes = _size(config.num_embeds_ada_norm, "its number of classes")
    return Call((Condition("class_labels", (), "label", classes=classes, none=classes),))


def _pixart(config: Any) -> Call:
    width = config.get("caption_channels") or config.cross_attention_dim
    conditions = [_text(120, width)]
    sizes = config.get("use_additional_conditions")
    if sizes or (sizes is None and config.sample_size == 128):
        group = "added_cond_kwargs"
        conditions.append(Condition("resolution", (2,), group=group))
        conditions.append(Condition("aspect_ratio", (1,), group=group))
        return Call(tuple(conditions))
    none = {"resolution": None, "aspect_ratio": None}
    return Call(tuple(conditions), fixed=(("added_cond_kwargs", none),))


def _pooled(config: Any) -> Condition:
    width = _size(config.pooled_projection_dim, "its width of pooled text")
    return Condition("pooled_projections", (width,), "features")


def _sd3(config: Any) -> Call:
    return Call((_text(CLIP + T5, config.joint_attention_dim), _pooled(config)))


def _flux(config: Any) -> Call:
    conditions = [_text(2 * T5, config.joint_attention_dim), _pooled(config)]
    if config.get("guidance_embeds"):
        conditions.append(Condition("guidance"))
    return Call(tuple(conditions), time_scale=1e-3, packed=2)


def _aura_flow(config: Any) -> Call:
    return Call((_text(T5, config.joint_attention_dim),), time_scale=1e-3)


def _sana(config: Any) -> Call:
    conditions = [_text(300, config.caption_channels)]
    if config.get("guidance_embeds"):
        conditions.append(Condition("guidance"))
    return Call(tuple(conditions))


def _by_signature(model: Any) -> Call:
    """How a model is called of which we know no more than the arguments that it needs."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    names = [p.name for p in parameters]
    if "timestep" not in names or names[:1] not in (["sample"], ["hidden_states"]):
        raise InvalidArgumentError(
            f"{type(model).__name__} is no score network: it is not called with a noisy image and "
            f"a timestep, but with {', '.join(names[:4])}"
        )
    config, conditions = model.config, []
    for p in parameters[1:]:
        if p.name == "timestep" or p.default is not p.empty:
            continue
        widths = (config.get(k) for k in ("joint_attention_dim", "caption_channels"))
        width = next((w for w in (*widths, config.get("cross_attention_dim")) if w), None)
        if p.name == TEXT and width is not None:
            conditions.append(_text(CLIP, width))
        elif p.name == "pooled_projections":
            conditions.append(_pooled(config))
        elif p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            _refuse(f"{type(model).__name__}, which needs {p.name!r}")
    optional = tuple(p.name for p in parameters[1:] if p.default is None)
    return Call(tuple(conditions), left_out=optional)


def _refuse(what: str) -> None:
    raise InvalidArgumentError(
        f"sads does not know how to call a model with {what}; wrap it as net(x, t) yourself: "
        "sads.family(lambda: Wrapped(...), shape=...)"
    )
