"""The output layer, integrated out in closed form.

Condition on the features `h` that enter the output layer. Its weights are independent of `h`,
iid with mean 0 and variance `s2_w` (biases `s2_b`), so the expectation over them is exact, and
linear in the Gram matrix `C = sum h h^T` of the features over positions: only `C` is accumulated.
(This is how the paper proves Propositions 1 to 3.) `readouts/` has a file for every kind of layer,
with its formula.

Nothing is assumed about the network: the layer is found by running it, the rearrangement of its
output is read off by sending numbered values through the rest of the network, and the formula is
compared with derivatives of the network itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from sads.errors import InvalidArgumentError, SadsError, ZeroReadoutError
from sads.families import ScoreFamily
from sads.geometry.after_readout import NoTail, Tail, find_tail
from sads.geometry.drawing import Blueprint
from sads.geometry.flow import NOTHING, Flow, Following, tensors_in
from sads.geometry.laws import Law
from sads.geometry.lift import Lift
from sads.geometry.recorder import named_tensors

LARGE = 256 << 20  # bytes of a factor; of a larger one no matrix is made to check its formula


class NoFactorRows(SadsError):
    """A kind of output layer that can only be integrated out with a matrix."""


@dataclass(frozen=True)
class NoReadout:
    """Why the output layer cannot be integrated out."""

    reason: str


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The last layer of a network as it was found; from this a readout says whether it fits."""

    path: str  # as in `network.named_modules()`
    layer: nn.Module
    features: Tensor  # what enters it, for one input of the network
    index: Tensor  # (D,): network_output.flatten() == layer_output.flatten()[index]
    laws: Mapping[str, Law]  # of its parameters, whose entries are iid with mean zero


class Readout(Protocol):
    """A kind of output layer whose weights can be integrated out.

    Derive from it, and `register_readout` the class. `estimate_geometry` uses it for networks
    that end in one of its `layers`, after comparing its formula with derivatives of the network.
    """

    layers: ClassVar[tuple[type[nn.Module], ...]]  # by their own `forward`, not a changed one
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")  # all that the layer has
    spatial: ClassVar[bool] = False  # are positions of the factor those of the image, in order?

    path: str
    lift: Lift

    @classmethod
    def fit(cls, found: OutputLayer) -> "Readout | NoReadout":
        """The readout for a layer, or why there is none."""
        ...

    def rows(self, h: Tensor) -> Tensor:
        """The layer's input in n networks, (n, ...), as (n, features, in positions)."""
        ...

    def factor(self, gram: Tensor) -> Tensor:
        """The factor of `E[F F^T | h]`, (P, P), from `C = sum h h^T` (in positions)."""
        ...

    def factor_rows(self, h: Tensor) -> Iterator[Tensor]:
        """Rows, (r, P) at a time, whose Gram matrix is the factor, from those of one network.

        Without them a factor that is too large for a matrix cannot be estimated.
        """
        raise NoFactorRows(
            f"{type(self).__name__} gives no rows of its factor (method factor_rows), and a "
            "matrix of it would be too large; choose a smaller shape"
        )


@dataclass(frozen=True, eq=False)
class Followed(Readout):
    """A readout whose output is scaled, beside the input, or combined over passes (`Tail`)."""

    layers = ()

    path: str
    lift: Lift
    inner: Readout
    tail: Tail

    @classmethod
    def fit(cls, found: OutputLayer) -> NoReadout:
        return NoReadout(f"{cls.__name__} goes around another readout")

    @property
    def spatial(self) -> bool:  # type: ignore[override]
        return self.inner.spatial

    @property
    def num_features(self) -> int:
        return getattr(self.inner, "num_features", 1)

    def rows(self, h: Tensor) -> Tensor:
        return self.inner.rows(self.tail.combine(h))

    def factor(self, gram: Tensor) -> Tensor:
        return self.inner.factor(gram)

    def factor_rows(self, h: Tensor) -> Iterator[Tensor]:
        return self.inner.factor_rows(h)


def score_coefficients(family: ScoreFamily, readout: Readout) -> tuple[Tensor, Tensor]:
    """What `x` and the output of the layer that is integrated out count in the score, each (T,)."""
    a, b = family.schedule.score_coefficients(family.prediction)
    if not isinstance(readout, Followed):
        return a, b
    seen = family.schedule.input_scale(family.prediction)  # the network's x is that of the score
    return a + b * readout.tail.skip * seen, b * readout.tail.gain


Kind = TypeVar("Kind", bound=type[Readout])
_REGISTERED: list[type[Readout]] = []  # asked before ours
_OURS: list[type[Readout]] = []


def register_readout(kind: Kind) -> Kind:
    """Let `estimate_geometry` know a kind of output layer; the newest is asked first."""
    layers = getattr(kind, "layers", ())
    if not layers or not all(issubclass(layer, nn.Module) for layer in layers):
        raise InvalidArgumentError(
            f"{getattr(kind, '__name__', kind)}.layers names the types of layers that it is for, "
            f"got {layers!r}"
        )
    if kind not in _REGISTERED:
        _REGISTERED.insert(0, kind)
    return kind


def our_readout(kind: Kind) -> Kind:
    """One of the kinds in `readouts`, which users' own go before."""
    _OURS.append(kind)
    return kind


def find_readout(
    family: ScoreFamily, initialiser: Blueprint, path: str | None = None
) -> Readout | NoReadout:
    """Find the output layer of a family's networks and check that it can be integrated out.

    `path` names the layer, as in `network.named_modules()`; it is found by running if None.
    Raises `ZeroReadoutError` if the layer starts at zero.
    """
    network = initialiser.module
    if path is not None and path not in dict(network.named_modules()):
        names = [n for n, m in network.named_modules() if _kind_of(m)]
        raise InvalidArgumentError(
            f"the network has no layer {path!r} to integrate out; it has {', '.join(names)}"
        )
    x, level = _random_input(family, seed=0)
    t = family.schedule.network_time(torch.tensor([level]))
    runs = _executed_layers(network, x, t)
    executed = [run.path for run in runs]
    if path is None:
        if not executed:
            return NoReadout("no convolution or linear layer was run")
        path = executed[-1]
    layer = network.get_submodule(path)
    kind = _kind_of(layer)
    if kind is None:
        return NoReadout(f"{path} is a {type(layer).__name__}, not a convolution or linear layer")
    if executed.count(path) != 1:
        return NoReadout(f"{path} is run {executed.count(path)} times in one evaluation")
    if runs[executed.index(path)].depends_on_itself:
        return NoReadout(f"what enters {path} depends on its weights")
    initialiser.make_solid(path)
    try:
        varying = [name for name, recipe in initialiser.recipes.items() if recipe.value is None]
        tail = find_tail(family, network, layer, varying)
    except NoTail as reason:
        return NoReadout(f"{reason} {path}")
    laws = _laws(initialiser, layer, path, kind)
    if isinstance(laws, NoReadout):
        return laws

    with torch.no_grad():
        features = capture_input(network, layer, x, t)
    one = features.chunk(len(tail.weights))[0]
    shared = float(tail.weights.sum()) ** 2  # of passes that have the same bias
    seen = {k: Law(v.mean, v.variance * shared) if k == "bias" else v for k, v in laws.items()}
    readout = kind.fit(OutputLayer(path, layer, one, tail.index, seen))
    if isinstance(readout, NoReadout):
        return readout
    if not tail.is_plain:
        readout = Followed(readout.path, readout.lift, readout, tail)
    if not _formula_holds(network, layer, readout, laws, x, t, float(tail.gain[level])):
        return NoReadout(f"the closed form for {path} does not agree with its derivatives")
    return readout


def capture_input(network: nn.Module, layer: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """What enters `layer` when the network is evaluated; nothing after it is computed."""

    class Reached(Exception):
        pass

    captured: list[Tensor] = []

    def capture(_module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        captured.append(inputs[0] if inputs else named["input"])
        raise Reached

    handle = layer.register_forward_pre_hook(capture, with_kwargs=True)
    try:
        network(x, t)
    except Reached:
        pass
    finally:
        handle.remove()
    return captured[0]


def with_default_readout(family: ScoreFamily, path: str) -> ScoreFamily:
    """The networks of a family, with one layer drawn by its type's default initialisation."""

    def factory() -> nn.Module:
        network = family.factory()
        network.get_submodule(path).reset_parameters()  # type: ignore[operator]
        return network

    return replace(family, factory=factory)


def _kind_of(module: nn.Module) -> type[Readout] | None:
    """The kind of readout for a layer: the newest that was registered for its type, or ours."""

    def fits(kind: type[Readout]) -> bool:
        types = kind.layers
        return isinstance(module, types) and any(type(module).forward is k.forward for k in types)

    return next((kind for kind in (*_REGISTERED, *_OURS) if fits(kind)), None)


def _random_input(family: ScoreFamily, seed: int) -> tuple[Tensor, int]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *family.shape, generator=generator)
    return x, int(torch.randint(family.schedule.num_levels, (1,), generator=generator))


@dataclass(frozen=True)
class _Run:
    """A layer that a readout is for was run."""

    path: str
    depends_on_itself: bool  # were its weights used for what entered it?


def _executed_layers(network: nn.Module, x: Tensor, t: Tensor) -> list[_Run]:
    """The layers that a readout is for, in the order in which they are run."""
    flow = Flow(spreads=False)
    for name, tensor in named_tensors(network):
        flow.mark(tensor, name)
    runs: list[_Run] = []

    def ran(path: str, module: nn.Module, inputs: Any, named: Any, _output: Any) -> None:
        own = NOTHING.union(*map(flow.of, module.parameters()))
        entered = NOTHING.union(*map(flow.of, tensors_in((inputs, named))))
        runs.append(_Run(path, bool(own & entered)))

    handles = [
        module.register_forward_hook(partial(ran, name), with_kwargs=True)
        for name, module in network.named_modules()
        if _kind_of(module)
    ]
    try:
        with Following(flow), torch.no_grad():
            network(x, t)
    finally:
        for handle in handles:
            handle.remove()
    return runs


def _laws(
    initialiser: Blueprint, layer: nn.Module, path: str, kind: type[Readout]
) -> dict[str, Law] | NoReadout:
    """The laws of the layer's parameters; one that is missing is one that is always zero."""
    prefix = f"{path}." if path else ""
    known = {
        name: Law(0.0, 0.0)
        if getattr(layer, name, None) is None
        else initialiser.law(prefix + name)
        for name in kind.parameters
    }
    laws = {name: law for name, law in known.items() if law is not None}
    if len(laws) == len(known) and all(law == Law(0.0, 0.0) for law in laws.values()):
        raise ZeroReadoutError(
            f"the output layer {path or type(layer).__name__} starts at zero, so the geometry is "
            "0 and its directions are undefined; pass zero_readout='default' (--zero-readout "
            "default) to draw that layer by its type's default initialisation",
            path,
        )
    others = {name for name, _ in layer.named_parameters()} - set(kind.parameters)
    if len(laws) < len(known) or others:
        return NoReadout(f"the weights of {path} are not independent and identically distributed")
    if any(abs(law.mean) > 1e-9 * math.sqrt(law.variance) for law in laws.values()):
        return NoReadout(f"the weights of {path} do not have mean zero")
    return laws


def _formula_holds(
    network: nn.Module,
    layer: nn.Module,
    readout: Readout,
    laws: Mapping[str, Law],
    x: Tensor,
    t: Tensor,
    gain: float = 1.0,
) -> bool:
    """Compare `v^T G|h v` with the derivatives of the network, for random `v`.

    The output is linear in the layer's parameters `p`, so for given features
    `v^T G|h v = sum_p s2_p |d(v^T F)/dp|^2`, exactly. Only what comes after the layer is
    differentiated.
    """
    flags = [(p, p.requires_grad) for p in network.parameters()]
    parameters = [getattr(layer, name) for name in laws if getattr(layer, name, None) is not None]
    variances = [
        law.variance for name, law in laws.items() if getattr(layer, name, None) is not None
    ]
    try:
        network.requires_grad_(False)
        layer.requires_grad_(True)
        with torch.enable_grad():
            output = network(x, t).flatten()
        entered = capture_input(network, layer, x, t).detach()
        energy = _energy(readout, readout.rows(entered[None])[0].double())
        largest = gain**2 * max(variances) * float(entered.double().square().sum())
        for seed in range(3):
            v = torch.randn(len(output), generator=torch.Generator().manual_seed(seed))
            gradients = torch.autograd.grad(v @ output, parameters, retain_graph=True)
            expected = sum(
                s2 * float(g.double().square().sum())
                for s2, g in zip(variances, gradients, strict=True)
            )
            given = gain**2 * energy(v.double())
            rounding = 1e-12 * largest * float(v.square().sum())  # where passes cancel
            if not math.isclose(given, expected, rel_tol=1e-3, abs_tol=rounding):
                return False
    except RuntimeError:  # the network cannot be differentiated
        return False
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    return True


def _energy(readout: Readout, h: Tensor) -> Callable[[Tensor], float]:
    """`v^T G|h v` for `v` of (D,) by the closed form: by a matrix if that is small."""
    if 8 * readout.lift.size**2 <= LARGE:
        factor = readout.factor(h.T @ h)
        return lambda v: float(readout.lift.quadratic(factor, v[None]))
    return lambda v: sum(
        float((rows @ readout.lift.split(v).T).square().sum()) for rows in readout.factor_rows(h)
    )
