"""Rotations and gradient descent: for a linear network the minimising rotation is best, always.

The network is `Omega = Phi Theta` with `Phi` fixed and `Theta` trained from zero; `K = Phi Phi^T`
has eigenvalues `lambda_i` and eigenvectors `u_i`. Data `x` with second moment `C` are noised to
`q = x + sigma eps`, whose second moment `M = C + sigma^2 I` has eigenvalues `m_a` and those of `C`
as eigenvectors, `v_a`. The loss of score matching is

    L(Omega) = E |Omega q + eps / sigma|^2 = tr(Omega M Omega^T) + 2 tr(Omega) + D / sigma^2,

as `E[eps q^T] = sigma I`. It is least at `Omega* = -M^-1`, and `L - L* = tr(E M E^T)` with the
error `E = Omega + M^-1`. A step of size `eta` down the gradient `2 Phi^T (Omega M + I)` in `Theta`
makes `E - 2 eta K E M` of `E`. So in the two eigenbases every entry of `E` is a geometric sequence,
from `(u_i . v_a) / m_a` at `Omega = 0`, and after `t` steps

    L_t - L* = sum_ia P_ia f_t(lambda_i, m_a),    f_t(lambda, m) = (1 - 2 eta lambda m)^(2t) / m,

where the squared overlaps `P_ia = (u_i . v_a)^2` are doubly stochastic: their rows and columns add
up to 1. A rotation of the data changes `P` and nothing else. `docs/theory.md` has the proof that
follows from `d^2 f_t / (d lambda d m) >= 0`: eigenvalues paired in opposite order are best and
eigenvalues paired in order are worst, at every `t`, every `sigma` and every `eta`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.arguments import check_count, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.seeds import torch_stream
from sads.theory.lemmas import check_sigma
from sads.theory.theorem1 import check_steps

CHUNK = 1 << 22  # numbers of random matrices at a time


@checked
@dataclass(frozen=True, eq=False)
class GaussianDescent:
    """Gradient descent from zero of a linear score network, for data of known second moment.

    Eigenvalues may be given in any order and are kept in descending order, as everywhere.
    """

    eigenvalues: Tensor  # lambda_i of K, (D,), at least 0
    energies: Tensor  # eigenvalues of the second moment C of the data, (D,), at least 0
    sigma: float = 1.0
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        if not 0 < self.learning_rate < math.inf:
            raise InvalidArgumentError(
                f"the learning rate is a number above 0, got {self.learning_rate}"
            )
        for name in ("eigenvalues", "energies"):
            values = getattr(self, name).detach().double()
            if values.ndim != 1 or not len(values) or not values.isfinite().all():
                raise InvalidArgumentError(
                    f"{name} are a list of finite numbers, got {shown(values)}"
                )
            if (values < 0).any():
                raise InvalidArgumentError(f"{name} are at least 0, got {float(values.min()):g}")
            object.__setattr__(self, name, values.sort(descending=True).values)
        if len(self.eigenvalues) != len(self.energies):
            raise InvalidArgumentError(
                f"{len(self.eigenvalues)} eigenvalues of the network do not fit "
                f"{len(self.energies)} of the data: give as many"
            )

    @property
    def dimension(self) -> int:
        return len(self.eigenvalues)

    @cached_property
    def noisy(self) -> Tensor:
        """`m_a`, the second moments of noisy data, (D,)."""
        return self.energies + self.sigma**2

    def terms(self, step: int) -> Tensor:
        """`f_t(lambda_i, m_a)`, (D, D)."""
        check_count("the step", step, 0)
        factors = 1 - 2 * self.learning_rate * torch.outer(self.eigenvalues, self.noisy)
        return factors ** (2 * step) / self.noisy

    @checked
    def excess(self, overlaps: Tensor, steps: Sequence[int]) -> Tensor:
        """`L_t - L*` for squared overlaps (..., D, D) of both eigenbases, (..., len(steps))."""
        steps = check_steps(steps)
        if tuple(overlaps.shape[-2:]) != (self.dimension, self.dimension):
            raise InvalidArgumentError(
                f"overlaps have shape {tuple(overlaps.shape)}, expected (..., {self.dimension}, "
                f"{self.dimension}): one for each pair of eigenvectors"
            )
        flat = overlaps.detach().double().flatten(-2)
        return torch.stack([flat @ self.terms(t).flatten() for t in steps], dim=-1)

    def minimum(self, steps: Sequence[int]) -> Tensor:
        """The least `L_t - L*` of all rotations, (len(steps),): paired in opposite order."""
        return self.excess(torch.eye(self.dimension).flip(0), steps)

    def maximum(self, steps: Sequence[int]) -> Tensor:
        """The largest `L_t - L*` of all rotations, (len(steps),): paired in order."""
        return self.excess(torch.eye(self.dimension), steps)

    def average(self, steps: Sequence[int]) -> Tensor:
        """The mean of `L_t - L*` over all rotations: `E[P_ia] = 1 / D`."""
        evenly = torch.full((self.dimension,) * 2, 1 / self.dimension, dtype=torch.float64)
        return self.excess(evenly, steps)

    @checked
    def random(self, steps: Sequence[int], count: int, seed: int = 0) -> Tensor:
        """`L_t - L*` after rotations from Haar measure, (count, len(steps))."""
        check_count("count", count)
        size = max(1, CHUNK // self.dimension**2)
        parts = []
        for number, start in enumerate(range(0, count, size)):
            overlaps = random_overlaps(self.dimension, min(size, count - start), seed, number)
            parts.append(self.excess(overlaps, steps))
        return torch.cat(parts)


def overlaps(network: Tensor, data: Tensor) -> Tensor:
    """`P_ia = (u_i . v_a)^2` of two orthonormal bases, each (D, D) with vectors as columns."""
    if network.ndim != 2 or len({*network.shape, *data.shape}) != 1 or data.ndim != 2:
        raise InvalidArgumentError(
            f"the bases have shapes {tuple(network.shape)} and {tuple(data.shape)}, expected "
            "(D, D) each: vectors as columns"
        )
    return (network.double().T @ data.double()).square()


def random_overlaps(dimension: int, count: int, seed: int = 0, part: int = 0) -> Tensor:
    """Squared entries of orthogonal matrices from Haar measure, (count, D, D)."""
    generator = torch_stream("descent", seed, part)
    normal = torch.randn(count, dimension, dimension, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(normal).Q.square()  # signs, which QR does not fix, do not matter
