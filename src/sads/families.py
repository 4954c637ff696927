"""A family: a factory of random score networks, and what their output means.

Families are known by name once they are registered, ours at the end of this file and yours from
anywhere:

    sads.register_family("mine", MyNetwork)   # MyNetwork(shape=..., **options)
    sads.estimate_geometry(sads.family("mine", shape=(3, 32, 32), width=64))

What another library calls a model is made a network of ours by an *adapter* (`sads.adapters`), a
module that is imported when somebody asks for it: by a name with its prefix, such as
`"diffusers:unet/config.json"`, or with a class or a function that builds such a model.
"""

import importlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sads import table1
from sads.arguments import MOST, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError, NetworkError, SadsError, describe_failure
from sads.files import plain
from sads.networks import CNN, MLP, DiT, UNet
from sads.networks.construction import TooManyLayersError, limited_construction
from sads.networks.gaussian import GaussianPart, check_dimension
from sads.schedule import PREDICTIONS, TRAINABLE, Schedule
from sads.seeds import generators_kept
from sads.shapes import MAX_AXES, format_shape
from sads.table1 import Column

Factory = Callable[[], nn.Module]
Architecture = Callable[..., nn.Module]  # takes `shape=` and the options of a network

ARCHITECTURES: dict[str, Architecture] = {}
_COLUMNS: dict[str, tuple[Column, ...]] = {}
ADAPTERS = {  # modules that make families, by the prefix of names
    "diffusers": "sads.adapters.diffusers",
    "atlas": "sads.adapters.presets",
}
PACKAGES = {"diffusers": "sads.adapters.diffusers"}  # and by the package of a class


@dataclass(frozen=True)
class Description:
    """What files say of a family: the fields of `ScoreFamily.describe`, which somebody changed."""

    name: str = "unnamed"
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    prediction: str = "epsilon"
    schedule: Schedule = field(default_factory=Schedule)


def is_same_network(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two descriptions of families are of one network, whatever it predicts."""

    def facts(said: Mapping[str, Any]) -> object:
        return plain((said.get("name"), said.get("options", {}), said.get("shape")))

    return facts(one) == facts(other)


@checked
@dataclass(frozen=True)
class ScoreFamily:
    """Networks with random weights, `net(x, t)` on `x` of `(N, *shape)` and `t` of `(N,)`.

    `factory` returns a new network with freshly drawn weights at every call. The score is
    `a_t x + b_t net(x, t)`, where `prediction` fixes `a` and `b` (see `Schedule`). With a `skip`,
    what it predicts is added to what the network returns (see `sads.gaussian_skip`).
    `zero_readout` says what becomes of an output layer that starts at zero, unless
    `estimate_geometry` is told, and `notes` what every result should say.
    """

    factory: Factory
    shape: tuple[int, ...]
    schedule: Schedule = field(default_factory=Schedule)
    prediction: str = "epsilon"
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict)
    skip: GaussianPart | None = None
    zero_readout: str = "error"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", whole_numbers(self.shape))
        if self.prediction not in PREDICTIONS:
            raise InvalidArgumentError(
                f"unknown prediction {self.prediction!r}; choose one of {', '.join(PREDICTIONS)}"
            )
        self._check_score()
        if self.skip is not None:
            self.check_trainable()
            check_dimension(self.skip, self.shape)

    def _check_score(self) -> None:
        """Refuse a prediction that does not go with the schedule, or says nothing of its scores."""
        a, b = (c.square() for c in self.schedule.score_coefficients(self.prediction))
        if not a.isfinite().all() or not b.isfinite().all() or not b.any():
            said = "infinite" if b.any() else "nothing but 0"
            raise InvalidArgumentError(
                f"under this {self.schedule.name} schedule of {self.schedule.num_levels:,} levels, "
                f"noise from {float(self.schedule.sigma[0]):g} to "
                f"{float(self.schedule.sigma[-1]):g}, what networks that predict {self.prediction} "
                f"add to a score is {said}; choose another prediction or other levels"
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
        except (Exception, SystemExit) as error:
            raise NetworkError(
                f"the factory of {self.name} failed: {describe_failure(error)}"
                f"{_missing_arguments(self.factory)}"
            ) from error
        if not isinstance(network, nn.Module):
            raise NetworkError(
                f"the factory returned {type(network).__name__}, expected an nn.Module: "
                "pass a function that builds a new network at every call"
            )
        return network.eval()

    def check_trainable(self) -> None:
        """Refuse what sads can look at but not train."""
        if not self.schedule.preserves_variance or self.prediction not in TRAINABLE:
            raise InvalidArgumentError(
                f"sads does not train networks that predict {self.prediction} under the schedule "
                f"{self.schedule.name}; it trains predictions of {', '.join(TRAINABLE)} under "
                "schedules that preserve variance (linear, scaled-linear, cosine)"
            )
        if self.schedule.reaches_noise:
            raise InvalidArgumentError(
                "sads does not train networks or sample under a schedule that ends at noise alone "
                "(zero_snr, rescale_betas_zero_snr, betas near 1): images are found by dividing by "
                "the signal, which is 0 there; choose a schedule without it"
            )

    def score(self, network: nn.Module, x: Tensor, levels: Tensor) -> Tensor:
        """`a_t x + b_t net(x, t)` for `x` (N, *shape) at whole-number `levels` (N,)."""
        _check_levels(levels, self.schedule.num_levels)
        a, b = self.schedule.score_coefficients(self.prediction)
        column = (-1, *[1] * len(self.shape))
        a, b = (c[levels].to(x).reshape(column) for c in (a, b))
        seen = self.schedule.network_input(x, levels, self.prediction)
        output = network(seen, self.schedule.network_time(levels).to(x.device))
        self.check_output(output, len(x))
        return a * x + b * self.with_skip(output, x, levels)

    def with_skip(self, output: Tensor, x: Tensor, levels: Tensor) -> Tensor:
        """A network's output for `x` (N, *shape) at `levels` (N,) or (1,), and the skip's."""
        if self.skip is None:
            return output
        return output + self.skip.predict(self.prediction, self.schedule, x, levels)

    def check_output(self, output: object, num_samples: int) -> None:
        expected = (num_samples, *self.shape)
        if not isinstance(output, Tensor) or tuple(output.shape) != expected:
            given = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise NetworkError(
                f"the network returned {given} for an input of shape {expected}, expected a "
                "tensor of the input's shape: change the shape or wrap the network"
            )
        if not output.is_floating_point():
            raise NetworkError(
                f"the network returned numbers of type {str(output.dtype).removeprefix('torch.')}, "
                "expected real floating-point ones: convert them at its end"
            )

    def describe(self) -> dict[str, Any]:
        """What a `Description` holds, as JSON has it."""
        skip = {} if self.skip is None else {"skip": {"kind": "gaussian", "rank": self.skip.rank}}
        return {
            "name": self.name,
            "options": plain(self.options),
            "shape": list(self.shape),
            "prediction": self.prediction,
            "schedule": self.schedule.describe(),
            **skip,
        }


@checked
def register_family(
    name: str, architecture: Architecture, columns: Sequence[Column] = (), *, again: bool = False
) -> None:
    """Make an architecture known by name to `sads.family`, and to the commands in this process.

    Args:
        architecture: called as `architecture(shape=..., **options)`, it returns a new network with
            fresh random weights.
        columns: settings as in the paper's Table 1. The first one with the shape that is asked
            for gives the options of a network that are not given; the first of all if none has.
        again: replace an architecture of this name.
    """
    if not isinstance(name, str) or not name or not callable(architecture):
        raise InvalidArgumentError(
            f"a family has a name such as 'mine' and a function that builds a network, got "
            f"{name!r} and {type(architecture).__name__}"
        )
    if name in ARCHITECTURES and not again:
        raise InvalidArgumentError(
            f"there is a family {name!r} already; choose another name, or pass again=True"
        )
    ARCHITECTURES[name] = architecture
    _COLUMNS[name] = tuple(replace(column, family=name) for column in columns)


def columns(name: str | None = None) -> tuple[Column, ...]:
    """The settings that are known for a family, or for all of them: Table 1 and what was added."""
    if name is not None:
        return _COLUMNS.get(name, ())
    return tuple(column for known in _COLUMNS.values() for column in known)


@checked
def family(
    name: str | Factory,
    shape: Sequence[int] | None = None,
    *,
    prediction: str | None = None,
    schedule: Schedule | str | None = None,
    **overrides: Any,
) -> ScoreFamily:
    """A family of score networks by name, or from any factory of `nn.Module`s.

    A name and a shape that stand in the paper's Table 1 give that column's network; other
    shapes start from the first column. `overrides` are arguments of the network, for instance
    `patch_size=4` or `resample="area"`. See `sads families` for the presets. `"diffusers:PATH"` is
    the model of a configuration, with a shape, a prediction and a schedule of its own (see
    `sads.adapters.diffusers`); else networks predict `"epsilon"` under the schedule `"linear"`.

    >>> family("iddpm", shape=(1, 16, 16)).dimension
    256
    >>> family(lambda: MyUNet(width=64), shape=(3, 64, 64))  # doctest: +SKIP
    >>> family("diffusers:stable-diffusion-v1-5/unet")  # doctest: +SKIP
    """
    if schedule is not None and not isinstance(schedule, Schedule):
        schedule = Schedule(schedule)
    sizes = None if shape is None else whole_numbers(shape)
    if (module := adapter_of(name)) is not None:
        adapter = importlib.import_module(module)
        return adapter.adapt(name, sizes, prediction, schedule, overrides)
    prediction = "epsilon" if prediction is None else prediction
    schedule = Schedule() if schedule is None else schedule
    if not isinstance(name, str):
        return _custom_family(name, sizes, prediction, schedule, overrides)
    if name not in ARCHITECTURES:
        raise InvalidArgumentError(
            f"unknown family {name!r}; choose one of {', '.join(ARCHITECTURES)}, "
            "or pass a function that builds your network"
        )
    known = columns(name)
    column = next((c for c in known if c.shape == sizes), known[0] if known else None)
    if sizes is None:
        if column is None:
            raise InvalidArgumentError(
                f"{name} has no preset to take the shape of the data from; "
                f"give it: sads.family({name!r}, shape=...)"
            )
        sizes = column.shape
    architecture = ARCHITECTURES[name]
    _check_options(name, architecture, overrides)
    options = {**dict(column.options if column else ()), **overrides}
    result = ScoreFamily(
        partial(architecture, shape=sizes, **options), sizes, schedule, prediction, name, options
    )
    try:  # an option or a shape that the architecture cannot take shows here
        _try_to_build(result)
    except NetworkError as error:
        raise InvalidArgumentError(
            f"{name} cannot be built for shape {format_shape(sizes)} with {options}: {error}"
        ) from error
    return result


def adapter_of(name: object) -> str | None:
    """The module that makes families of a name (`diffusers:PATH`) or of a class, if there is one.

    >>> adapter_of("diffusers:unet/config.json"), adapter_of("iddpm")
    ('sads.adapters.diffusers', None)
    """
    if isinstance(name, str):
        prefix, colon, _ = name.partition(":")
        return ADAPTERS.get(prefix) if colon else None
    return _adapter_of_class(name) if isinstance(name, type) else None


def _adapter_of_class(kind: type) -> str | None:
    packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((PACKAGES[package] for package in packages if package in PACKAGES), None)


def _try_to_build(given: ScoreFamily) -> None:
    """Build a network without its numbers, or with them if its constructor needs them."""
    with generators_kept(), limited_construction():
        try:
            with torch.device("meta"):
                given.build()
        except TooManyLayersError:
            raise
        except NetworkError:
            given.build()


def as_family(given: ScoreFamily | str | Factory) -> ScoreFamily:
    """What may stand where a family is taken: a family, or the name of one."""
    return given if isinstance(given, ScoreFamily) else family(given)


def training_column(score_family: ScoreFamily, data: str) -> Column:
    """The column of Table 1 that says how to train a family on a kind of data.

    Of the columns of this family and shape, the one with the same options, or else for this kind
    of data (`"sphere"`); for another shape the family's first column, for your own networks the
    first of all.
    """
    named = columns(score_family.name) or columns()
    fitting = [c for c in named if c.shape == score_family.shape and c.data in ("any", data)]

    def fit(column: Column) -> tuple[bool, bool]:
        same = all(score_family.options.get(k) == v for k, v in column.options)
        return same, column.data == data

    return max(fitting or named[:1], key=fit)


def _check_levels(levels: Tensor, count: int) -> None:
    """Whole numbers of levels that there are: -1 would be the last one in secret."""
    whole = not (levels.is_floating_point() or levels.is_complex() or levels.dtype == torch.bool)
    if not whole or not levels.numel() or not 0 <= int(levels.min()) <= int(levels.max()) < count:
        raise InvalidArgumentError(
            f"levels are whole numbers from 0 to {count - 1:,}, got {shown(levels.tolist())}"
        )


def _check_options(name: str, architecture: Architecture, given: Mapping[str, Any]) -> None:
    parameters = inspect.signature(architecture).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = set(parameters) - {"shape"}
    if unknown := set(given) - known:
        raise InvalidArgumentError(
            f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
        )


def _missing_arguments(factory: Factory) -> str:
    """What to do if a factory cannot be called without arguments."""
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return "; it is called without arguments: write lambda: Network(width=...) or the like"
    except ValueError:  # it has no signature
        pass
    return ""


def whole_numbers(shape: object) -> tuple[int, ...]:
    """A shape from anything that holds whole numbers, NumPy's too."""
    try:
        sizes = tuple(0 if isinstance(n, bool) else operator.index(n) for n in shape)  # type: ignore[attr-defined]
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= MAX_AXES or min(sizes) < 1 or math.prod(sizes) > MOST:
        raise InvalidArgumentError(
            f"a shape is 1 to {MAX_AXES} positive whole numbers (channels, *spatial), such as "
            f"(1, 16, 16), got {shown(shape)}"
        )
    return sizes


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
    build = _CustomFactory(factory, overrides)
    return ScoreFamily(build, shape, schedule, prediction, name, overrides)


@dataclass(frozen=True)
class _CustomFactory:
    """A user's factory; models of other libraries that it builds are made networks of ours."""

    __wrapped__: Factory  # where `inspect` looks for the arguments
    options: Mapping[str, Any]

    def __call__(self) -> nn.Module:
        network = self.__wrapped__(**self.options)
        module = _adapter_of_class(type(network))
        if module is None or not isinstance(network, nn.Module):
            return network
        return importlib.import_module(module).wrap(network)


register_family("iddpm", UNet, [table1.IDDPM, table1.MNIST, table1.CELEBA, table1.CIFAR10])
register_family("dit", DiT, [table1.DIT_2, table1.DIT_4, table1.SPHERE])
register_family("mlp", MLP, [table1.MLP])
register_family("cnn", CNN, [table1.CNN])
