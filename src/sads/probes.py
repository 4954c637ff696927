"""Where networks are probed: the law of the input `x` at each noise level.

The level itself is always uniform over the schedule; how the estimator draws it is its own
affair. A probe draws one input at a time from the random stream of one network, so that
results do not depend on how networks are batched.

A probe of your own is any object with a method `draw`. What else an estimate could use (`Probe`
says what) has defaults that are right for every probe:

    class Checkerboard:
        def draw(self, shape, level, schedule, rng):
            rows, columns = torch.meshgrid(*map(torch.arange, shape[1:]), indexing="ij")
            return rng.choice([-1.0, 1.0]) * ((rows + columns) % 2).expand(shape)

    sads.estimate_geometry(family, probe=Checkerboard())
"""

import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sads.arguments import as_tensor, check_number, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError, SadsError, describe_failure
from sads.files import tensor_digest
from sads.samples import check_values
from sads.schedule import Schedule
from sads.seeds import generators_kept, seed_generators

KINDS = ("zero", "gaussian", "forward")  # names of our own probes
_DRAWING = threading.RLock()  # threads share the generators that probes may draw from
Sampler = Callable[[int, torch.Generator], Tensor]


class Probe(Protocol):
    """The law of the networks' input. Derive from it to inherit the defaults."""

    isotropic: bool = False
    """Is the law the same for flipped and transposed inputs? Symmetries are used only then."""

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        """One input of this shape for a network at a level, from the network's own stream."""
        ...

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float | Tensor | None:
        """`sum_t weights_t E[x x^T | t]`: (D, D), or the factor of the identity; None: unknown.

        Scores that hold a part of `x` itself (predictions `x0` and `v`) need it to integrate the
        output layer out; without it, whole networks are averaged.
        """
        return None

    def describe(self) -> Mapping[str, Any]:
        """What a result says about its probe; estimates merge only if they say the same."""
        return {"name": type(self).__qualname__}


@dataclass(frozen=True)
class ZeroProbe(Probe):
    """`x = 0` at every level: the paper's default."""

    isotropic = True

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return torch.zeros(shape)

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        return 0.0

    def describe(self) -> dict[str, Any]:
        return {"name": "zero"}


@dataclass(frozen=True)
class GaussianProbe(Probe):
    """`x ~ N(0, width^2 I)` at every level."""

    width: float = 1.0

    isotropic = True

    def __post_init__(self) -> None:
        check_number("the width of a Gaussian probe must be positive: it", self.width, 0)

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return self.width * torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        return self.width**2 * float(weights.sum())

    def describe(self) -> dict[str, Any]:
        return {"name": "gaussian", "width": self.width}


@checked
@dataclass(frozen=True, eq=False)
class ForwardProbe(Probe):
    """`x = signal_t x_0 + sigma_t eps`, with `x_0` one of the given images (Figure 9)."""

    images: Tensor  # (N, *shape)

    def __post_init__(self) -> None:
        if self.images.ndim < 2:
            raise InvalidArgumentError(
                "a forward probe needs images of shape (N, channels, ...), got a tensor of shape "
                f"{tuple(self.images.shape)}"
            )
        check_values(self.images, "the images of a forward probe")

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        image = self.images[int(rng.integers(len(self.images)))]
        if tuple(image.shape) != tuple(shape):
            raise InvalidArgumentError(
                f"the probe's images have shape {tuple(image.shape)}, the networks take "
                f"{tuple(shape)}: resize the images or change the family's shape"
            )
        noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
        signal, spread = schedule.signal[level].float(), schedule.sigma[level].float()
        return signal * image.float() + spread * noise

    def second_moment(self, schedule: Schedule, weights: Tensor) -> Tensor:
        flat = self.images.double().flatten(1)
        signal = (weights * schedule.signal**2).sum()
        noise = (weights * schedule.sigma**2).sum()
        identity = torch.eye(flat.shape[1], dtype=torch.float64)
        return signal * flat.T @ flat / len(flat) + noise * identity

    def describe(self) -> dict[str, Any]:
        return {
            "name": "forward",
            "num_images": len(self.images),
            "images_sha256": tensor_digest(self.images),
        }


@checked
@dataclass(frozen=True, eq=False)
class SamplerProbe(Probe):
    """`x = sampler(level, generator)`: one input of the networks' shape per call."""

    sampler: Sampler

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return self.sampler(level, torch.Generator().manual_seed(int(rng.integers(2**63))))

    def describe(self) -> dict[str, Any]:
        return _not_ours({"name": getattr(self.sampler, "__qualname__", "custom")})


class _Completed(Probe):
    """A user's object that can `draw`, with the defaults for whatever else it does not say.

    What a class has inherited from one of ours with another `draw` is not said of its own inputs:
    ones drawn by a class derived from `ZeroProbe` are no zeros.
    """

    def __init__(self, given: Any):
        self._given = given
        self.isotropic = bool(self._own("isotropic", False))

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return self._given.draw(shape, level, schedule, rng)

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float | Tensor | None:
        known = self._own("second_moment", None)
        moment = None if known is None else known(schedule, weights)
        if moment is not None and not _is_moment(moment):
            raise InvalidArgumentError(
                f"the second moment of the probe is {shown(moment)}, expected None, a number of at "
                "least 0, or a square matrix of finite numbers"
            )
        return moment

    def describe(self) -> Mapping[str, Any]:
        said = self._own("describe", None)
        content = {"name": type(self._given).__qualname__} if said is None else said()
        try:
            content = dict(json.loads(json.dumps(content, allow_nan=False)))  # as a file has it
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"the probe describes itself as {shown(content)}, expected a mapping of names to "
                "numbers and texts that JSON can hold"
            ) from None
        return _not_ours(content)

    def _own(self, name: str, default: Any) -> Any:
        """What the object says of the inputs that it draws, or the default."""
        kind = type(self._given)
        says = next((base for base in kind.__mro__ if name in vars(base)), None)
        if says is None or getattr(says, "draw", None) in (None, getattr(kind, "draw", None)):
            return getattr(self._given, name, default)
        return default  # of inputs that are drawn otherwise


def _is_moment(value: Any) -> bool:
    """Is it a number or a matrix that `E[x x^T]` may be?"""
    if isinstance(value, Tensor) and value.ndim == 2:
        return len(value) == value.shape[1] and bool(value.isfinite().all())
    try:
        return 0 <= float(value) < math.inf
    except (TypeError, ValueError, RuntimeError):
        return False


def _not_ours(said: dict[str, Any]) -> dict[str, Any]:
    """What a user's probe says of itself, under a name that is not one of our own."""
    return said | {"name": f"custom {said['name']}"} if said.get("name") in KINDS else said


OURS = (ZeroProbe, GaussianProbe, ForwardProbe, SamplerProbe, _Completed)


@checked
def probe(kind: Any = "zero", *, width: float | None = None, images: Tensor | None = None) -> Probe:
    """Make a probe.

    Args:
        kind: `"zero"`, `"gaussian"` (with `width`), `"forward"` (with `images`), a function
            `sampler(level, generator)` that returns one input, or an object (or its class) with
            a method `draw(shape, level, schedule, rng)`.
        width: standard deviation of the Gaussian probe, 1 if not given.
        images: (N, channels, ...) for the forward process.
    """
    for name, value, owner in (("width", width, "gaussian"), ("images", images, "forward")):
        if value is not None and not (isinstance(kind, str) and kind == owner):
            raise InvalidArgumentError(
                f"{name} is for the {owner} probe: leave it out, or write sads.probe('{owner}', "
                f"{name}=...)"
            )
    if isinstance(kind, type) and hasattr(kind, "draw"):
        kind = kind()
    if hasattr(kind, "draw"):
        return kind if type(kind) in OURS else _Completed(kind)
    if callable(kind):
        return SamplerProbe(kind)
    word = kind if isinstance(kind, str) else None
    if word == "zero":
        return ZeroProbe()
    if word == "gaussian":
        return GaussianProbe(1.0 if width is None else width)
    if word == "forward":
        if images is None:
            raise InvalidArgumentError("the forward probe starts from images: pass images=...")
        return ForwardProbe(as_tensor(images, "images"))
    raise InvalidArgumentError(
        f"unknown probe {shown(kind)}; choose zero, gaussian or forward, or pass a function or an "
        "object with a method draw(shape, level, schedule, rng)"
    )


def draw_inputs(
    where: Probe,
    shape: tuple[int, ...],
    levels: Iterable[int],
    schedule: Schedule,
    streams: Sequence[np.random.Generator],
) -> Tensor:
    """An input for each network, (n, *shape), from its own stream, in single precision.

    A probe of the user's may draw from PyTorch's own generator or NumPy's all the same: those are
    seeded from the stream, and are the caller's again afterwards.
    """
    pairs = zip(levels, streams, strict=True)
    if type(where) in (ZeroProbe, GaussianProbe, ForwardProbe):
        return torch.stack([_draw_input(where, shape, int(t), schedule, rng) for t, rng in pairs])
    inputs = []
    with _DRAWING, generators_kept():
        for level, rng in pairs:
            seed_generators(int(rng.bit_generator.state["state"]["state"][0]))
            inputs.append(_draw_input(where, shape, int(level), schedule, rng))
    return torch.stack(inputs)


def _draw_input(
    where: Probe, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
) -> Tensor:
    """One input in single precision; a probe that returns anything else is an error."""
    try:
        x = where.draw(shape, level, schedule, rng)
    except SadsError:
        raise
    except Exception as error:
        raise InvalidArgumentError(f"the probe failed: {describe_failure(error)}") from error
    if not isinstance(x, Tensor) or tuple(x.shape) != tuple(shape):
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidArgumentError(
            f"the probe returned {given}, expected a tensor of shape {tuple(shape)}"
        )
    if x.is_complex():
        raise InvalidArgumentError(f"the probe returned {x.dtype}, expected real numbers")
    x = x.detach().float()
    if not x.isfinite().all():
        raise InvalidArgumentError(
            f"the probe returned NaN or infinity at level {level}; expected finite numbers in "
            "single precision"
        )
    return x
