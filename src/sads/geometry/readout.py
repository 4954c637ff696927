"""The output layer, integrated out in closed form.

Condition on the features `h` that enter the output layer. Its weights are independent of `h`,
iid with mean 0 and variance `s2_w` (biases `s2_b`), so the expectation over them is exact:

    convolution   G|h = I (x) [ s2_w sum_{c,d} S_d h_c h_c^T S_d^T + s2_b 11^T ]
    linear layer  G|h = Q ( [ s2_w h h^T + s2_b 11^T ] (x) I ) Q^T

with `S_d` the shift of kernel tap `d` (padding included), `h` of (tokens, features) and `Q` the
rearrangement after the layer; a dense layer is one token. The bias vector is shared by all
positions, hence `11^T`. Both are linear in the Gram matrix `C = sum h h^T` of the features over
positions, so only `C` is accumulated. (This is how the paper proves Propositions 1 to 3.)

Nothing is assumed about the network: the layer is found by running it, the rearrangement is
read off by sending numbered outputs through the rest of the network, and the formula is
compared with derivatives of the network itself.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sads.errors import InvalidArgumentError, ZeroReadoutError
from sads.family import ScoreFamily
from sads.geometry.initialise import Initialiser, Law
from sads.geometry.structure import Lift
from sads.networks.layers import CONVOLUTIONS

ANY_CONVOLUTION = tuple(CONVOLUTIONS.values())


@dataclass(frozen=True, eq=False)
class Readout:
    """An output layer whose weights are integrated out."""

    path: str
    kind: str  # "convolution" or "linear"
    num_features: int  # that enter the layer at each position
    weight_variance: float
    bias_variance: float
    taps: Tensor  # (num_taps, out positions): the in position that each tap reads, -1 for padding
    lift: Lift

    def rows(self, h: Tensor) -> Tensor:
        """The layer's input in n networks, (n, ...), as (n, features, in positions)."""
        if self.kind == "convolution":
            return h.reshape(len(h), self.num_features, -1)
        return h.reshape(len(h), -1, self.num_features).transpose(1, 2)

    def factor(self, gram: Tensor) -> Tensor:
        """`s2_w sum_d S_d C S_d^T + s2_b 11^T` for `C` (in, in), as (out, out)."""
        padded = F.pad(gram, (0, 1, 0, 1))  # the last row and column are what padding reads
        total = torch.zeros(self.taps.shape[1], self.taps.shape[1], dtype=gram.dtype)
        for tap in self.taps:
            total += padded[tap[:, None], tap]
        return self.weight_variance * total + self.bias_variance


@dataclass(frozen=True)
class NoReadout:
    """Why the output layer cannot be integrated out."""

    reason: str


def find_readout(
    family: ScoreFamily, initialiser: Initialiser, path: str | None = None
) -> Readout | NoReadout:
    """Find the output layer of a family's networks and check that it can be integrated out.

    `path` names the layer, as in `network.named_modules()`; it is found by running if None.
    Raises `ZeroReadoutError` if the layer starts at zero.
    """
    network = initialiser.module
    if path is not None and path not in dict(network.named_modules()):
        names = [n for n, m in network.named_modules() if _is_candidate(m)]
        raise InvalidArgumentError(
            f"the network has no layer {path!r} to integrate out; it has {', '.join(names)}"
        )
    x, t = _random_input(family, seed=0)
    executed = _executed_layers(network, x, t)
    if path is None:
        if not executed:
            return NoReadout("no convolution or linear layer was run")
        path = executed[-1]
    layer = network.get_submodule(path)
    if not _is_candidate(layer):
        return NoReadout(f"{path} is a {type(layer).__name__}, not a convolution or linear layer")
    if executed.count(path) != 1:
        return NoReadout(f"{path} is run {executed.count(path)} times in one evaluation")

    index = _rearrangement(family, network, layer)
    if index is None:
        return NoReadout(f"the output is not a rearrangement of the output of {path}")
    weight, bias = _laws(initialiser, layer, path)
    if weight == bias == Law(0.0, 0.0):
        raise ZeroReadoutError(
            f"the output layer {path or type(layer).__name__} starts at zero, so the geometry is "
            "0 and its directions are undefined; pass zero_readout='default' (--zero-readout "
            "default) to draw that layer by its type's default initialisation",
            path,
        )
    if weight is None or bias is None:
        return NoReadout(f"the weights of {path} are not independent and identically distributed")
    if any(abs(law.mean) > 1e-9 * math.sqrt(law.variance) for law in (weight, bias)):
        return NoReadout(f"the weights of {path} do not have mean zero")

    h = capture_input(network, layer, x, t)
    if isinstance(layer, nn.Linear):
        kind, num_features = "linear", layer.in_features
        taps = torch.arange(h.numel() // num_features)[None]
        position, group = index // layer.out_features, index % layer.out_features
    else:
        assert isinstance(layer, ANY_CONVOLUTION)
        if layer.groups != 1 or h.shape[0] != 1:
            return NoReadout(f"{path} is a grouped convolution, or mixes samples")
        kind, num_features = "convolution", layer.in_channels
        taps = _kernel_taps(layer, tuple(h.shape[2:]))
        group, position = index // taps.shape[1], index % taps.shape[1]
    lift = _lift(group, position, taps.shape[1])
    if lift is None:
        return NoReadout(f"the output holds only parts of the channels of {path}")
    readout = Readout(path, kind, num_features, weight.variance, bias.variance, taps, lift)
    if not _formula_holds(network, layer, readout, x, t):
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


def _is_candidate(module: nn.Module) -> bool:
    kinds = (*ANY_CONVOLUTION, nn.Linear)
    return isinstance(module, kinds) and any(type(module).forward is k.forward for k in kinds)


def _random_input(family: ScoreFamily, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *family.shape, generator=generator)
    level = torch.randint(family.schedule.num_levels, (1,), generator=generator)
    return x, family.schedule.network_time(level)


def _executed_layers(network: nn.Module, x: Tensor, t: Tensor) -> list[str]:
    """Names of the convolutions and linear layers in the order in which they are run."""
    executed: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: executed.append(name))
        for name, module in network.named_modules()
        if _is_candidate(module)
    ]
    try:
        with torch.no_grad():
            network(x, t)
    finally:
        for handle in handles:
            handle.remove()
    return executed


def _rearrangement(family: ScoreFamily, network: nn.Module, layer: nn.Module) -> Tensor | None:
    """`index` with `output.flatten() == layer_output.flatten()[index]`, or None.

    Numbered values in place of the layer's output give the candidate; random values, with
    another input at another level, confirm it.
    """

    def run_with(values: Any, seed: int) -> tuple[Tensor, Tensor]:
        sent: list[Tensor] = []

        def replace(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            sent.append(values(output).reshape(output.shape))
            return sent[-1]

        handle = layer.register_forward_hook(replace)
        try:
            with torch.no_grad():
                result = network(*_random_input(family, seed))
        finally:
            handle.remove()
        family.check_output(result, 1)
        return sent[-1].flatten(), result.flatten()

    sent, result = run_with(lambda z: torch.arange(1.0, z.numel() + 1), seed=1)
    index = result.round().long() - 1
    inside = bool(((index >= 0) & (index < len(sent))).all())
    if not inside or len(index.unique()) != len(index) or not torch.equal(sent[index], result):
        return None
    generator = torch.Generator().manual_seed(0)
    sent, result = run_with(lambda z: torch.randn(z.shape, generator=generator), seed=2)
    return index if torch.equal(sent[index], result) else None


def _laws(initialiser: Initialiser, layer: nn.Module, path: str) -> tuple[Law | None, Law | None]:
    """The laws of the layer's weight and bias; no bias is a bias that is always zero."""
    prefix = f"{path}." if path else ""
    bias = Law(0.0, 0.0) if layer.bias is None else initialiser.law(f"{prefix}bias")
    return initialiser.law(f"{prefix}weight"), bias


def with_default_readout(family: ScoreFamily, path: str) -> ScoreFamily:
    """The same networks, with one layer drawn by its type's default initialisation."""

    def factory() -> nn.Module:
        network = family.factory()
        network.get_submodule(path).reset_parameters()  # type: ignore[operator]
        return network

    return replace(family, factory=factory)


def _kernel_taps(layer: nn.Module, size: tuple[int, ...]) -> Tensor:
    """For every kernel tap and out position, the in position that is read, or -1 for padding."""
    assert isinstance(layer, ANY_CONVOLUTION)
    numbers = torch.arange(1.0, math.prod(size) + 1).reshape(1, 1, *size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(numbers, layer._reversed_padding_repeated_twice, mode=mode)[0, 0]
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    taps = []
    for offsets in itertools.product(*map(range, layer.kernel_size)):
        window = tuple(
            slice(o * d, n - r + o * d, s)
            for o, d, n, r, s in zip(
                offsets, layer.dilation, padded.shape, reach, layer.stride, strict=True
            )
        )
        taps.append(padded[window].flatten())
    return torch.stack(taps).long() - 1


def _lift(group: Tensor, position: Tensor, size: int) -> Lift | None:
    """The lift in which coordinate i has this group and position; None if a group has gaps."""
    groups = group.unique()
    if len(groups) * size != len(group):
        return None
    order = torch.argsort(torch.searchsorted(groups, group) * size + position)
    return Lift(len(groups), size, order)


def _formula_holds(
    network: nn.Module, layer: nn.Module, readout: Readout, x: Tensor, t: Tensor
) -> bool:
    """Compare `v^T G|h v` with the derivatives of the network, for random `v`.

    The output is linear in the layer's parameters, so for given features
    `v^T G|h v = s2_w |d(v^T F)/dw|^2 + s2_b |d(v^T F)/db|^2`, exactly.
    """
    trainable = [p.requires_grad for p in network.parameters()]
    network.requires_grad_(True)
    try:
        return _compare_with_derivatives(network, layer, readout, x, t)
    except RuntimeError:  # the network cannot be differentiated
        return False
    finally:
        for parameter, flag in zip(network.parameters(), trainable, strict=True):
            parameter.requires_grad_(flag)


def _compare_with_derivatives(
    network: nn.Module, layer: nn.Module, readout: Readout, x: Tensor, t: Tensor
) -> bool:
    parameters: Any = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    variances = [readout.weight_variance, readout.bias_variance]
    with torch.enable_grad():
        output = network(x, t).flatten()
        h = readout.rows(capture_input(network, layer, x, t)[None])[0].detach().double()
        factor = readout.factor(h.T @ h)
        for seed in range(3):
            v = torch.randn(len(output), generator=torch.Generator().manual_seed(seed))
            gradients = torch.autograd.grad(v @ output, parameters, retain_graph=True)
            expected = sum(
                s2 * float(g.double().square().sum())
                for s2, g in zip(variances, gradients, strict=False)
            )
            split = readout.lift.split(v.double())
            given = float(((split @ factor) * split).sum())
            if not math.isclose(given, expected, rel_tol=1e-3, abs_tol=1e-12):
                return False
    return True
