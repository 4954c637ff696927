"""What comes after the output layer: a rearrangement, perhaps scaled, perhaps beside the input.

    net(x, t) = gain_t sum_j weight_j z_j[index] + skip_t x

where `z_j` is the layer's output in pass `j` of the network. Most networks have one pass, a gain of
1 and no skip. A preconditioned one returns `c_skip x + c_out net`; a guided one combines a pass
with its condition and one without it. All of that is linear in the layer's weights still, so they
can be integrated out: the features of passes add up by their weights, and the score `a_t x + b_t
net` becomes `(a_t + b_t skip_t) x + (b_t gain_t) z`.

Nothing is assumed. Numbers are sent through the rest of the network in place of the layer's output:
ones find the gain, zeros the skip, numbered values the rearrangement, and random values at several
levels must come out as the formula says. Where the time goes into what comes after the layer
(`flow`), gain and skip are read off at every level, if that takes no longer than a minute.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sads.families import ScoreFamily
from sads.geometry.flow import Flow, Following, Sources
from sads.geometry.recorder import named_tensors
from sads.seeds import following

MAX_PASSES = 2
TIME = "the time"
SECONDS = 60.0  # for reading off gains and skips that change with the level
EQUATIONS = 8  # at least, for the scales of two passes and of the input
CLOSE = 2e-5  # of the largest number: what float32 may be wrong by
WHOLE = 0.25  # numbered values are whole numbers, up to this

Values = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Tail:
    """How a network's output is made of the output of its last layer."""

    index: Tensor  # (D,): places in the output of one pass
    weights: Tensor  # (m,) float64, of passes; the largest is 1
    gain: Tensor  # (T,) float64
    skip: Tensor  # (T,)

    @property
    def is_plain(self) -> bool:
        """Is the output a rearrangement of the layer's, and nothing else?"""
        return len(self.weights) == 1 and bool((self.gain == 1).all()) and not self.skip.any()

    def combine(self, h: Tensor) -> Tensor:
        """What enters the layer in n networks, (n, m k, ...), as if there were one pass."""
        if len(self.weights) == 1:
            return h
        passes = h.unflatten(1, (len(self.weights), -1))
        weights = self.weights.to(h).reshape(1, -1, *[1] * (passes.ndim - 2))
        return (weights * passes).sum(dim=1)


@dataclass(frozen=True)
class _Followed:
    """What goes into a network's output after its last layer."""

    result: Sources
    knows_time: bool  # may that change with the level?


class NoTail(Exception):
    """Why the rest of a network is not of this form; the name of the layer follows."""


def find_tail(
    family: ScoreFamily, network: nn.Module, layer: nn.Module, varying: Collection[str] = ()
) -> Tail:
    """What comes after a layer that is run once; `NoTail` says why it cannot be told.

    Args:
        varying: the parameters and buffers that are not the same in every network.
    """
    tried = _Probe(family, network, layer)
    flow = tried.follow(varying)
    if random := sorted(flow.result & set(varying)):
        raise NoTail(f"{random[0]} is not the same in every network, and comes after")
    for passes in range(1, MAX_PASSES + 1):
        if tried.rows % passes == 0 and (index := _rearrangement(tried, passes)) is not None:
            return _levels(tried, index, passes, flow.knows_time)
    raise NoTail("the output is not a rearrangement of the output of")


class _Probe:
    """Runs a network with other numbers in place of its layer's output."""

    def __init__(self, family: ScoreFamily, network: nn.Module, layer: nn.Module):
        self.family, self.network, self.layer = family, network, layer
        self.middle = family.schedule.num_levels // 2
        self.rows = 0  # known as soon as it was run

    def follow(self, varying: Collection[str]) -> "_Followed":
        """What goes into the output beside that of the layer."""
        flow = Flow(spreads=False)
        for name, tensor in named_tensors(self.network):
            if name in varying:
                flow.mark(tensor, name)
        with Following(flow):
            _, result, _ = self.run(torch.ones_like, self.middle, seed=1, flow=flow)
        return _Followed(flow.of(result), TIME in flow.of(result) | flow.escaped)

    def run(
        self, values: Values, level: int, seed: int, flow: Flow | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What was sent (rows, ...), what came out, (D,), and the input, (D,)."""
        sent: list[Tensor] = []

        def replace(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            empty = torch.empty(output.shape, dtype=output.dtype, device="cpu")
            sent.append(values(empty).reshape(output.shape))
            return sent[-1]

        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, *self.family.shape, generator=generator)
        t = self.family.schedule.network_time(torch.tensor([level]))
        if flow is not None:
            flow.mark(t, TIME)
        handle = self.layer.register_forward_hook(replace)
        try:
            with torch.no_grad():
                result = self.network(x, t)
        finally:
            handle.remove()
        self.family.check_output(result, 1)
        self.rows = len(sent[-1])
        return sent[-1], result.flatten(), x.flatten()


def _rearrangement(tried: _Probe, passes: int) -> Tensor | None:
    """Places in one pass, (D,), if every output takes one of them, alike in all passes."""
    level = tried.middle
    _, rest, _ = tried.run(torch.zeros_like, level, seed=1)
    scales = []
    for number in range(passes):
        _, result, _ = tried.run(_in_pass(number, passes, torch.ones_like), level, seed=1)
        scale = result - rest
        spread = float((scale - scale.mean()).abs().max())
        if spread > CLOSE * max(float(scale.abs().max()), float(result.abs().max())):
            return None
        scales.append(float(scale.mean()))
    strongest = max(range(passes), key=lambda j: abs(scales[j]))
    if abs(scales[strongest]) <= CLOSE * float(rest.abs().max()) or not scales[strongest]:
        return None

    def numbered(part: Tensor) -> Tensor:
        return torch.arange(1.0, part.numel() + 1).reshape(part.shape)

    sent, result, _ = tried.run(_in_pass(strongest, passes, numbered), level, seed=1)
    numbers = (result - rest) / scales[strongest]
    index = numbers.round().long() - 1
    size = sent.numel() // passes
    inside = bool(((index >= 0) & (index < size)).all())
    near = bool(((numbers - numbers.round()).abs() < WHOLE).all())
    return index if inside and near and len(index.unique()) == len(index) else None


def _in_pass(number: int, passes: int, values: Values) -> Values:
    """Values in one pass, zeros in the others."""

    def make(output: Tensor) -> Tensor:
        filled = torch.zeros_like(output)
        part = filled.chunk(passes)[number]
        part.copy_(values(part))
        return filled

    return make


def _levels(tried: _Probe, index: Tensor, passes: int, knows_time: bool) -> Tail:
    """Gains, skips and weights, confirmed with random values at several levels."""
    count = tried.family.schedule.num_levels
    started = time.perf_counter()
    some = sorted({0, count // 3, 2 * count // 3, count - 1})
    found = [_at_level(tried, index, passes, level, seed) for seed, level in enumerate(some)]
    seconds = (time.perf_counter() - started) / len(some)
    weights = found[0][:-1] / _largest(found[0][:-1])
    for numbers in found[1:]:
        if not torch.allclose(numbers[:-1], _largest(numbers[:-1]) * weights, rtol=CLOSE):
            raise NoTail("passes are weighed differently at each level after")
    table = torch.stack([torch.stack([_largest(n[:-1]), n[-1]]) for n in found])  # (some, 2)
    scale = table[:, 0].abs().max()
    if not knows_time and bool(((table - table[:1]).abs() <= CLOSE * scale).all()):
        table = table[:1].expand(count, 2)
    elif seconds * count > SECONDS:
        raise NoTail(
            f"reading off the scale at {count:,} levels would take {seconds * count:,.0f} s, as it "
            "may change with the level after"
        )
    else:
        every = [_at_level(tried, index, passes, level, level) for level in range(count)]
        table = torch.stack([torch.stack([_largest(n[:-1]), n[-1]]) for n in every])
    gain, skip = table.T.clone()
    gain[(gain - 1).abs() <= CLOSE] = 1.0
    skip[skip.abs() <= CLOSE * float(scale)] = 0.0
    return Tail(index, weights, gain, skip)


def _at_level(tried: _Probe, index: Tensor, passes: int, level: int, seed: int) -> Tensor:
    """The scale of every pass, and that of the input, (m + 1,), by least squares.

    Of data with few coordinates several outputs are looked at: one would fit any scales.
    """
    generator = torch.Generator().manual_seed(seed)
    columns, results = [], []
    for run in range(-(-EQUATIONS // len(index))):
        sent, result, x = tried.run(
            lambda z: torch.randn(z.shape, generator=generator),
            level,
            seed=following(seed, 2 + run),
        )
        parts = [part.flatten()[index].double() for part in sent.chunk(passes)]
        columns.append(torch.stack([*parts, x.double()], dim=1))  # (D, m + 1)
        results.append(result.double())
    return _scales(torch.cat(columns), torch.cat(results))


def _scales(columns: Tensor, result: Tensor) -> Tensor:
    """Least squares of what was sent (n, m + 1) and came out (n,), which must leave nothing."""
    numbers = torch.linalg.lstsq(columns, result[:, None]).solution[:, 0]
    rest = (columns @ numbers - result).abs().max()
    if not float(rest) <= CLOSE * float(result.abs().max()):
        raise NoTail("the output is not a rearrangement of the output of")
    return numbers


def _largest(numbers: Tensor) -> Tensor:
    return numbers[numbers.abs().argmax()]
