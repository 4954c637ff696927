"""A family: a factory of random score networks, and what their output means."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sads.errors import InvalidArgumentError, NetworkError, SadsError
from sads.networks import CNN, MLP, DiT, UNet
from sads.schedule import PREDICTIONS, Schedule

Factory = Callable[[], nn.Module]
ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "iddpm": UNet,
    "dit": DiT,
    "mlp": MLP,
    "cnn": CNN,
}


@dataclass(frozen=True)
class Preset:
    """A column of the paper's Table 1, or our default where the paper has none."""

    name: str
    shape: tuple[int, ...]
    options: Mapping[str, Any]
    source: str
    training: Mapping[str, Any]  # iterations, batch_size, learning_rate
    data: str = "any"  # "sphere" for the column that is about spheres only


_RANK_ONE = {"iterations": 2_000, "batch_size": 1_000, "learning_rate": 1e-4}
_IMAGES = {"iterations": 100_000, "batch_size": 500, "learning_rate": 1e-3}
PRESETS = (
    Preset(
        "iddpm", (1, 16, 16), {"channel_mults": (1, 1), "depth": 1},
        "Table 1, rank-one data", _RANK_ONE,
    ),
    Preset(
        "iddpm", (1, 28, 28), {"channel_mults": (1, 1), "depth": 2}, "Table 1, MNIST", _IMAGES
    ),
    Preset(
        "iddpm", (1, 56, 56), {"channel_mults": (1, 1, 1), "depth": 2},
        "Table 1, CelebA-HQ", _IMAGES,
    ),
    Preset(
        "iddpm", (3, 32, 32), {"channel_mults": (1, 1, 1), "depth": 2},
        "Table 1, CIFAR-10", {**_IMAGES, "iterations": 200_000},
    ),
    Preset("dit", (1, 16, 16), {"patch_size": 2}, "Table 1, rank-one data", _RANK_ONE),
    Preset(
        "dit", (1, 16, 16), {"patch_size": 4},
        "Table 1, rank-one data, DiT/4", {**_RANK_ONE, "iterations": 4_000},
    ),
    Preset(
        "dit", (1, 16, 16), {"patch_size": 2},
        "Table 1, spheres", {**_RANK_ONE, "iterations": 10_000}, data="sphere",
    ),
    Preset("mlp", (1, 16, 16), {"width": 256, "depth": 3}, "Proposition 1", _RANK_ONE),
    Preset("cnn", (1, 16, 16), {"channels": 32, "depth": 3}, "Proposition 2", _RANK_ONE),
)  # fmt: skip


@dataclass(frozen=True)
class ScoreFamily:
    """Networks with random weights, `net(x, t)` on `x` of `(N, *shape)` and `t` of `(N,)`.

    `factory` returns a new network with freshly drawn weights at every call. The score is
    `a_t x + b_t net(x, t)`, where `prediction` fixes `a` and `b` (see `Schedule`).
    """

    factory: Factory
    shape: tuple[int, ...]
    schedule: Schedule = field(default_factory=Schedule)
    prediction: str = "epsilon"
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.shape) < 1 or any(not isinstance(n, int) or n < 1 for n in self.shape):
            raise InvalidArgumentError(
                f"a shape is positive whole numbers (channels, *spatial), got {self.shape}"
            )
        if self.prediction not in PREDICTIONS:
            raise InvalidArgumentError(
                f"unknown prediction {self.prediction!r}; choose one of {', '.join(PREDICTIONS)}"
            )

    @property
    def dimension(self) -> int:
        """D, the number of output coordinates."""
        return math.prod(self.shape)

    def build(self) -> nn.Module:
        """A network with fresh random weights, ready to be evaluated."""
        try:
            network = self.factory()
        except SadsError:
            raise
        except Exception as error:
            raise NetworkError(
                f"the factory of {self.name} failed with {type(error).__name__}: {error}"
            ) from error
        if not isinstance(network, nn.Module):
            raise NetworkError(
                f"the factory returned {type(network).__name__}, expected an nn.Module: "
                "pass a function that builds a new network at every call"
            )
        return network.eval()

    def score(self, network: nn.Module, x: Tensor, levels: Tensor) -> Tensor:
        """`a_t x + b_t net(x, t)` for `x` (N, *shape) at whole-number `levels` (N,)."""
        a, b = self.schedule.score_coefficients(self.prediction)
        column = (-1, *[1] * len(self.shape))
        a, b = (c[levels].to(x).reshape(column) for c in (a, b))
        output = network(x, self.schedule.network_time(levels).to(x.device))
        self.check_output(output, len(x))
        return a * x + b * output

    def check_output(self, output: object, num_samples: int) -> None:
        expected = (num_samples, *self.shape)
        if not isinstance(output, Tensor) or tuple(output.shape) != expected:
            given = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise NetworkError(
                f"the network returned {given} for an input of shape {expected}, expected a "
                "tensor of the input's shape: change the shape or wrap the network"
            )

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()},
            "shape": list(self.shape),
            "prediction": self.prediction,
            "schedule": {"name": self.schedule.name, "num_levels": self.schedule.num_levels},
        }


def family(
    name: str | Factory,
    shape: tuple[int, ...] | None = None,
    *,
    prediction: str = "epsilon",
    schedule: Schedule | str = "linear",
    **overrides: Any,
) -> ScoreFamily:
    """A family of score networks by name, or from any factory of `nn.Module`s.

    A name and a shape that stand in the paper's Table 1 give that column's network; other
    shapes start from the first column. `overrides` are arguments of the network, for instance
    `patch_size=4` or `resample="area"`. See `sads families` for the presets.

    >>> family("iddpm", shape=(1, 16, 16)).dimension
    256
    >>> family(lambda: MyUNet(width=64), shape=(3, 64, 64))  # doctest: +SKIP
    """
    if isinstance(schedule, str):
        schedule = Schedule(schedule)
    if not isinstance(name, str):
        return _custom_family(name, shape, prediction, schedule, overrides)
    if name not in ARCHITECTURES:
        raise InvalidArgumentError(
            f"unknown family {name!r}; choose one of {', '.join(ARCHITECTURES)}, "
            "or pass a function that builds your network"
        )
    presets = [p for p in PRESETS if p.name == name]
    preset = next((p for p in presets if p.shape == shape), presets[0])
    shape = preset.shape if shape is None else tuple(shape)
    architecture = ARCHITECTURES[name]
    known = set(inspect.signature(architecture).parameters) - {"shape"}
    if unknown := set(overrides) - known:
        raise InvalidArgumentError(
            f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
        )
    options = {**preset.options, **overrides}
    result = ScoreFamily(
        lambda: architecture(shape=shape, **options), shape, schedule, prediction, name, options
    )
    try:  # an option or a shape that the architecture cannot take shows here
        with torch.random.fork_rng(devices=[]):
            result.build()
    except NetworkError as error:
        raise InvalidArgumentError(
            f"{name} cannot be built for shape {'x'.join(map(str, shape))} with {options}: {error}"
        ) from error
    return result


def training_preset(score_family: ScoreFamily, data: str) -> Preset:
    """The column of Table 1 that says how to train a family on a kind of data.

    Of the columns of this family and shape, the one with the same options, or else for this kind
    of data (`"sphere"`); for another shape the family's first column, for your own networks the
    first of all.
    """
    named = [p for p in PRESETS if p.name == score_family.name] or list(PRESETS)
    fitting = [p for p in named if p.shape == score_family.shape and p.data in ("any", data)]

    def fit(preset: Preset) -> tuple[bool, bool]:
        same = all(score_family.options.get(k) == v for k, v in preset.options.items())
        return same, preset.data == data

    return max(fitting or named[:1], key=fit)


def _custom_family(
    factory: Factory,
    shape: tuple[int, ...] | None,
    prediction: str,
    schedule: Schedule,
    overrides: Mapping[str, Any],
) -> ScoreFamily:
    if not callable(factory) or isinstance(factory, nn.Module):
        raise InvalidArgumentError(
            f"a family is a name or a function that builds a network, got "
            f"{type(factory).__name__}; write sads.family(lambda: MyNetwork(...), shape=...)"
        )
    if shape is None:
        raise InvalidArgumentError("give the shape of the data: sads.family(factory, shape=...)")
    name = getattr(factory, "__qualname__", type(factory).__name__)
    if overrides:
        return ScoreFamily(
            lambda: factory(**overrides), tuple(shape), schedule, prediction, name, overrides
        )
    return ScoreFamily(factory, tuple(shape), schedule, prediction, name)
