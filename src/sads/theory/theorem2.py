"""Theorem 2 by running it: no rotation of the data leaves the two extremes of alpha.

    alpha(W) = tr(W^T G W C) = sum_ij lambda_i s_j P_ij,   P_ij = (u_i . W v_j)^2

for data with second moment `C = V diag(s) V^T` in a geometry `G = U diag(lambda) U^T`. `P` is
doubly stochastic, so alpha is largest and smallest at permutations (Birkhoff), and of these where
`lambda` and `s` are in the same and in opposite order (rearrangement). The rotations themselves,
for data and with errors, are in `rotations/alignment.py` (`sads.alignment`, `sads.rotation`); here
the theorem stands on its own, beside random rotations that try to break it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sads.arguments import check_count, check_seed
from sads.checked import checked
from sads.environment import check_memory, gigabytes, used_memory
from sads.errors import InvalidArgumentError
from sads.rotations.kinds import random_axes
from sads.seeds import torch_stream


@dataclass(frozen=True)
class RandomRotations:
    """What random rotations make of alpha, beside what Theorem 2 allows."""

    minimum: float
    maximum: float
    alphas: Tensor  # (num_rotations,)

    @property
    def num_outside(self) -> int:
        """How many leave the extremes by more than rounding: 0, or the theorem is wrong."""
        slack = 1e-9 * max(abs(self.minimum), abs(self.maximum))
        outside = (self.alphas < self.minimum - slack) | (self.alphas > self.maximum + slack)
        return int(outside.sum())


@checked
def extremes(values: Tensor, moments: Tensor) -> tuple[float, float]:
    """The least and the largest alpha, from eigenvalues of `G` and of `C`, (D,) each.

    >>> extremes(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 5.0]))
    (11.0, 17.0)
    """
    values, moments = _as_spectra(values, moments)
    large, small = values.sort(descending=True)[0], moments.sort(descending=True)[0]
    return float(large @ small.flip(0)), float(large @ small)


@checked
def try_rotations(
    values: Tensor, moments: Tensor, num_rotations: int = 100, seed: int = 0
) -> RandomRotations:
    """Alpha after rotations from Haar measure.

    With `W` also `U^T W V` has Haar's law, so eigenvalues of `G` and of `C`, (D,) each, are enough.
    """
    check_count("num_rotations", num_rotations)
    check_seed(seed)
    values, moments = _as_spectra(values, moments)
    needed = used_memory() + 5 * 8 * len(values) ** 2
    what = f"a rotation in {len(values):,} dimensions needs about {gigabytes(needed)}"
    check_memory(needed, what, "give fewer eigenvalues")
    generator = torch_stream("rotations of Theorem 2", seed)
    seeds = torch.randint(2**62, (num_rotations,), generator=generator).tolist()
    alphas = [values @ random_axes(len(values), s).square() @ moments for s in seeds]
    return RandomRotations(*extremes(values, moments), torch.stack(alphas))


def _as_spectra(values: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64, in which no product of two moderate ones overflows."""
    if values.ndim != 1 or not len(values) or values.shape != moments.shape:
        raise InvalidArgumentError(
            "Theorem 2 takes as many eigenvalues of the network as of the data, (D,) each, got "
            f"{tuple(values.shape)} and {tuple(moments.shape)}"
        )
    if not (values.isfinite().all() and moments.isfinite().all()):
        raise InvalidArgumentError(
            "Theorem 2 takes eigenvalues that are finite, got NaN or infinity among them"
        )
    return values.detach().double(), moments.detach().double()
