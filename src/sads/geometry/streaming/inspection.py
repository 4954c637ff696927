"""What must be known about large networks before any is drawn, found in a few evaluations.

A network that is drawn layer by layer is set up like any other: does it give finite numbers of the
right shape, do its parameters hold all that is random, which symmetries has its law? Small ones
are evaluated some forty times for that. Here one network is evaluated once and every question is
asked of that evaluation and of as few others as it takes: a second network of the constructor
with the same weights, and one for every symmetry, given up at the first layer that does not agree.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sads.families import ScoreFamily
from sads.geometry.drawing import agree
from sads.geometry.invariance import ANY_CONVOLUTION, Move, candidates, positions_after
from sads.geometry.memory import peak_activations
from sads.geometry.recorder import named_tensors
from sads.geometry.streaming.networks import Streamed, StreamedNetwork
from sads.geometry.streaming.streams import NetworkStream
from sads.seeds import numpy_stream

SAME_SIZE = 1e-4  # by which the length of a layer's output may differ, relatively
SET_UP = 4  # the key of set-up's random streams; networks of an estimate have 0


@dataclass(frozen=True, eq=False)
class Look:
    """One evaluation of one network, and what was seen on the way."""

    x: Tensor
    t: Tensor
    output: Tensor
    activation_bytes: int  # that were held at the same time, without weights
    lengths: tuple[float, ...]  # of the outputs of its convolutions, in order
    wrote: bool  # did it change its own buffers?


class Inspector:
    """Looks at one network of a family, whose weights are drawn layer by layer."""

    def __init__(self, family: ScoreFamily, networks: Streamed, device: torch.device):
        self.family, self.networks, self.device = family, networks, device
        self._network = StreamedNetwork(networks, device)

    def look(self, x: Tensor, t: Tensor) -> Look:
        """Evaluate the network."""
        tensors = [tensor for _, tensor in named_tensors(self._network.module)]
        before = [tensor._version for tensor in tensors]
        with _lengths(self._network.module) as lengths:
            output, held = peak_activations(lambda: self._network(self._stream(), x, t))
        wrote = before != [tensor._version for tensor in tensors]
        return Look(x, t, output.cpu(), held, tuple(lengths), wrote)

    def holds_all_randomness(self, first: Look) -> bool:
        """Do parameters and buffers make a network, with nothing random beside them?

        Another network of the constructor must give the same output with the same numbers, and none
        may count how often it is evaluated.
        """
        if first.wrote:
            return False
        other = StreamedNetwork(self.networks, self.device, module=self.networks.other)
        again = other(self._stream(), first.x, first.t).cpu()
        return agree(again, first.output)

    def symmetries(self, first: Look) -> dict[str, Tensor]:
        """The symmetries of the family's law, by name, each a permutation of positions.

        See `invariance`; one network is looked at, and the lengths of its layers' outputs do not
        change under a symmetry.
        """
        names = self._kernels()
        if names is None or not first.output.any():
            return {}
        size = self.family.shape[1:]
        return {
            name: positions_after(move, size)
            for name, move in candidates(size).items()
            if self._is_symmetric(move, names, first)
        }

    def _is_symmetric(self, move: Move, names: list[str], first: Look) -> bool:
        shapes = [self.networks.recipes[name].shape for name in names]
        if any(move(torch.empty(shape, device="meta"), 2).shape != shape for shape in shapes):
            return False
        stream = self._stream()
        stream.moves = dict.fromkeys(names, lambda weight: move(weight, 2))
        try:
            with _lengths(self._network.module, first.lengths):
                given = self._network(stream, move(first.x, 2), first.t).cpu()
        except (_Differs, RuntimeError):
            return False
        expected = move(first.output, 2)
        return torch.allclose(given, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))

    def _kernels(self) -> list[str] | None:
        """Parameters that are moved with the image; None if the law of one of them may change."""
        axes = len(self.family.shape) - 1
        names = [
            f"{path}.weight" if path else "weight"
            for path, module in self.networks.module.named_modules()
            if isinstance(module, ANY_CONVOLUTION) and module.weight.ndim == axes + 2
        ]
        names = [name for name in names if name in self.networks.recipes]
        return names if all(self.networks.law(name) for name in names) else None

    def _stream(self) -> NetworkStream:
        (stream,) = self.networks.draw([numpy_stream(0, SET_UP)])
        return stream


class _Differs(Exception):
    """A layer's output has another length than it had."""


@contextmanager
def _lengths(
    network: nn.Module, expected: tuple[float, ...] | None = None
) -> Iterator[list[float]]:
    """The lengths of the outputs of all convolutions that run in the block.

    `_Differs` is raised at the first one that is not as expected.
    """
    seen: list[float] = []

    def measure(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        seen.append(float(output.norm()))
        if expected is None:
            return
        wanted = expected[len(seen) - 1] if len(seen) <= len(expected) else float("nan")
        if not abs(seen[-1] - wanted) <= SAME_SIZE * wanted:
            raise _Differs

    layers = [m for m in network.modules() if isinstance(m, ANY_CONVOLUTION)]
    handles = [layer.register_forward_hook(measure) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
