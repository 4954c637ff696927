"""Symmetries of a family's law, found and checked, by which an estimate may be averaged.

Let `g` flip or transpose the image. If `net_{g theta}(g x) = g net_theta(x)`, where `g theta` is
`theta` with every convolution kernel flipped or transposed alike, and if the entries of every
kernel are iid and none changes its shape, then `g theta` has the law of `theta`; under a probe
whose law does not change under `g` either, `G = P G P^T` for the permutation `P` of the pixels.
Averaging an estimate with its image under `g` is then free of bias and lowers its variance. The
identity is checked on real networks; nothing is assumed from their type.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from sads.families import ScoreFamily
from sads.geometry.drawing import Initialiser
from sads.networks.layers import CONVOLUTIONS
from sads.seeds import seeded

ANY_CONVOLUTION = tuple(CONVOLUTIONS.values())


def find_symmetries(family: ScoreFamily, initialiser: Initialiser) -> dict[str, Tensor]:
    """The symmetries of a family's law, by name, each a permutation of spatial positions."""
    size = family.shape[1:]
    moves = candidates(size)
    for seed in (0, 1):
        if moves:
            example = _Example(family, seed)
            moves = {n: m for n, m in moves.items() if example.has_symmetry(m, initialiser)}
    return {name: positions_after(move, size) for name, move in moves.items()}


def positions_after(move: "Move", size: tuple[int, ...]) -> Tensor:
    """The permutation of spatial positions that a move is."""
    return move(torch.arange(math.prod(size)).reshape(size), 0).flatten()


def average(factor: Tensor, group: Sequence[Tensor]) -> Tensor:
    """The mean of a (P, P) matrix over a group of permutations."""
    if len(group) <= 1:
        return factor
    return sum(factor[p].index_select(1, p) for p in group) / len(group)  # type: ignore[return-value]


def generate_group(generators: list[Tensor]) -> list[Tensor]:
    """All products of the generators, the identity first."""
    if not generators:
        return []
    group = [torch.arange(len(generators[0]))]
    for element in group:  # grows while we walk over it
        for generator in generators:
            product = element[generator]
            if not any(torch.equal(product, known) for known in group):
                group.append(product)
    return group


def candidates(size: tuple[int, ...]) -> dict[str, "Move"]:
    """What may be a symmetry of images of this size."""
    moves: dict[str, Move] = {}
    for axis in range(len(size)):
        moves[f"flip of axis {axis}"] = Move(axis, None)
    if len(size) == 2 and size[0] == size[1]:
        moves["transposition"] = Move(0, 1)
    return moves


class Move:
    """A flip of one spatial axis, or a transposition of two; `skip` leading axes stay."""

    def __init__(self, axis: int, other: int | None):
        self.axis, self.other = axis, other

    def __call__(self, x: Tensor, skip: int) -> Tensor:
        if self.other is None:
            return x.flip(skip + self.axis)
        return x.transpose(skip + self.axis, skip + self.other)


class _Example:
    """One network with its output at one input."""

    def __init__(self, family: ScoreFamily, seed: int):
        with seeded(seed), torch.no_grad():
            self.network = family.build()
            self.x = torch.randn(1, *family.shape)
            level = torch.randint(family.schedule.num_levels, (1,))
            self.t = family.schedule.network_time(level)
            self.output = self.network(self.x, self.t)

    def has_symmetry(self, move: Move, initialiser: Initialiser) -> bool:
        """Does the network with its kernels moved give the moved output?"""
        moved = {}
        for path, module in self.network.named_modules():
            if isinstance(module, ANY_CONVOLUTION) and module.weight.ndim == self.x.ndim:
                name = f"{path}.weight" if path else "weight"
                moved[name] = move(module.weight, 2)
                another_law = moved[name].shape != module.weight.shape
                if another_law or initialiser.law(name) is None:
                    return False
        expected = move(self.output, 2)
        try:
            with torch.no_grad():
                given = functional_call(self.network, moved, (move(self.x, 2), self.t))
        except RuntimeError:
            return False
        if not expected.any():
            return False
        return torch.allclose(given, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
