"""Theorem 1: linear denoising score matching behind a fixed anisotropic layer (appendix D.2).

The network is `Omega = Phi Theta` with `Phi` fixed, the data `N(0, v v^T)`, the noise level fixed.
With `K = Phi Phi^T`, `M = v v^T + sigma^2 I` and the optimum `Omega* = -M^-1` (Lemma 1), the error
`E_t = Omega_t - Omega*` of gradient descent obeys `E_t = E_{t-1} - 2 eta K E_{t-1} M`.

Stochastic gradients. A sample `x = g v`, `eps` gives `q = x + sigma eps` and the residual
`r = Omega* q + eps / sigma`. Both are linear in the same Gaussian, and
`E[r q^T] = Omega* M + I = 0`, so they are independent, with `E[q q^T] = M` and
`E[r r^T] = Omega* + I / sigma^2 = s v v^T`, `s = 1 / (sigma^2 (sigma^2 + 1))`. A step with B
samples is

    E_t = E_{t-1} - 2 eta K ( E_{t-1} S + N ),   S = mean(q q^T),  N = mean(r q^T).

Its mean is gradient descent. For the second moment take row `i` in the eigenbasis `u_i` of `K`
(eigenvalue `k`): `e <- e - 2 eta k (S e + n)`. Rows do not mix. With Isserlis' formula
`E[q q^T P q q^T] = 2 M P M + tr(P M) M`, the moment `P = E[e e^T]` becomes

    P - 2 eta k (M P + P M) + 4 eta^2 k^2 { M P M + [ M P M + tr(M P) M + s (u_i . v)^2 M ] / B }.

In the eigenbasis of `M` (eigenvalues `m_a`) the diagonal `p_a = P_aa` obeys a recursion of its own,

    p_a <- [ 1 - 4 eta k m_a + 4 eta^2 k^2 (1 + 1/B) m_a^2 ] p_a
           + (4 eta^2 k^2 / B) m_a ( sum_c m_c p_c + s (u_i . v)^2 ),

and `E |E_t|_F^2` is the sum of all `p_a` of all rows. Its fixed point is the plateau of Figure 4:

    p_a = (eta k / B) (s (u_i . v)^2 + tau) / (1 - eta k (1 + 1/B) m_a),   tau = sum_a m_a p_a,

to first order `eta k s (u_i . v)^2 / B`, hence `eta lambda_i D s / B` in all for `v = u_i`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.arguments import check_count, check_number, shown
from sads.checked import checked
from sads.environment import check_memory, check_samples, gigabytes, used_memory
from sads.errors import InvalidArgumentError
from sads.seeds import user_stream
from sads.theory.lemmas import MOST_COLUMNS, check_sigma, check_variance, optimal_score, unit
from sads.threads import pinned_threads


@checked
def rates(eigenvalues: Tensor, sigma: float) -> Tensor:
    """`rho_i` of Theorem 1: gradient descent's error for `v = u_i` decays as `(1 - 2 eta rho_i)^t`.

    `rho_i = min[ (sigma^2 + 1) lambda_i, sigma^2 min_{j != i} lambda_j ]`: along `u_i` the data
    adds curvature, along all others the noise alone provides it. All `rho_i` are equal, but for
    that of the smallest eigenvalue if it is simple. Returns (D,), in the order given.

    >>> rates(torch.tensor([1.0, 0.5, 0.25]), sigma=1.0).tolist()
    [0.25, 0.25, 0.5]
    """
    check_sigma(sigma)
    values = eigenvalues.detach().double()
    if values.ndim != 1 or len(values) < 2 or not ((values > 0) & values.isfinite()).all():
        raise InvalidArgumentError(
            "rates need at least two eigenvalues, finite and above 0, got "
            f"{shown(eigenvalues.tolist())}"
        )
    least, second = values.sort()
    others = least[0].repeat(len(values))  # the least eigenvalue of all others
    others[second[0]] = least[1]
    return torch.minimum((sigma**2 + 1) * values, sigma**2 * others)


@checked
@dataclass(frozen=True, eq=False)
class LinearDSM:
    """The setting of Theorem 1: `Omega = Phi Theta` learns the score of `N(0, v v^T)`.

    `v` need not be an eigenvector of `Phi Phi^T`; it is scaled to length 1.
    """

    phi: Tensor  # (D, M), Phi Phi^T positive definite
    v: Tensor  # (D,)
    sigma: float = 1.0  # Figure 4

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        if self.phi.ndim != 2 or not self.phi.isfinite().all():
            raise InvalidArgumentError(
                f"Phi is a finite matrix (D, M), got a tensor of shape {tuple(self.phi.shape)}"
            )
        object.__setattr__(self, "phi", self.phi.detach().double())
        object.__setattr__(self, "v", unit(self.v))
        if len(self.v) != self.dimension:
            raise InvalidArgumentError(
                f"the direction has {len(self.v)} entries, Phi has {self.dimension} rows: "
                "give a direction of the output space"
            )
        if not self.eigenvalues[-1] > 1e-12 * self.eigenvalues[0]:
            raise InvalidArgumentError(
                "Phi Phi^T is singular, so the optimal score is out of reach; "
                "Theorem 1 needs all its eigenvalues above 0"
            )

    @property
    def dimension(self) -> int:
        return len(self.phi)

    @property
    def eigenvalues(self) -> Tensor:
        """`lambda_i` of `Phi Phi^T`, (D,) descending."""
        return self._spectrum[0]

    @property
    def eigenvectors(self) -> Tensor:
        """`u_i` of `Phi Phi^T` as columns, (D, D)."""
        return self._spectrum[1]

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.phi @ self.phi.T)
        return values.flip(0), vectors.flip(1)

    @cached_property
    def covariance(self) -> Tensor:
        """`M = v v^T + sigma^2 I`, of the noisy data, (D, D)."""
        identity = torch.eye(self.dimension, dtype=torch.float64)
        return torch.outer(self.v, self.v) + self.sigma**2 * identity

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of `M`; the last of them is `v`."""
        values = torch.full((self.dimension,), self.sigma**2, dtype=torch.float64)
        values[-1] += 1
        return values, torch.linalg.eigh(self.covariance)[1]

    @cached_property
    def optimum(self) -> Tensor:
        """`Omega*` of Lemma 1, (D, D)."""
        return optimal_score(self.v, self.sigma)

    @property
    def residual_variance(self) -> float:
        """`s` with `E[r r^T] = s v v^T`: what no network can know of the noise along `v`."""
        return 1 / (self.sigma**2 * (self.sigma**2 + 1))

    @checked
    def gradient(self, theta: Tensor) -> Tensor:
        """`2 Phi^T [ Phi Theta (v v^T + sigma^2 I) + I ]`, Equation 14, for (..., M, D)."""
        expected = (self.phi.shape[1], self.dimension)
        if tuple(theta.shape[-2:]) != expected:
            raise InvalidArgumentError(
                f"Theta has shape {tuple(theta.shape)}, expected (..., M, D) with M and D of "
                f"{expected}"
            )
        theta = theta.double()
        identity = torch.eye(self.dimension, dtype=torch.float64)
        return 2 * self.phi.T @ (self.phi @ theta @ self.covariance + identity)

    @property
    def rate(self) -> float:
        """`rho` such that the expected error decays as `(1 - 2 eta rho)^t`, for any `v`."""
        curvature = self.eigenvalues[:, None] * self._modes[0]  # (D, D)
        present = self._in_modes(self.optimum).abs() > 1e-12 * self.optimum.abs().max()
        return float(curvature[present].min())

    @checked
    def expected_errors(self, steps: Sequence[int], learning_rate: float) -> Tensor:
        """`E[E_t]` under (stochastic) gradient descent from a zero-mean start, exactly.

        In the eigenbases of `K` (rows) and `M` (columns) every entry is a geometric sequence,
        `(1 - 2 eta k_i m_a)^t` times its start; for `v = u_i` this is Equation 17.
        Returns (len(steps), D, D).
        """
        steps = _check_run(steps, learning_rate)
        factor = 1 - 2 * learning_rate * self.eigenvalues[:, None] * self._modes[0]
        start = -self._in_modes(self.optimum)
        path = torch.stack([factor**t * start for t in steps])
        return self.eigenvectors @ path @ self._modes[1].T

    def gradient_covariance(self) -> Tensor:
        """Covariance of `vec` of one sample's gradient at the optimum, Equation 19, for any `v`.

        `4 s (v v^T + sigma^2 I) (x) (Phi^T v v^T Phi)`: the gradient is `2 p q^T` with
        `p = Phi^T r` independent of `q`. For `v = u_i` the second factor has one eigenvalue that
        is not 0, `|Phi^T u_i|^2 = lambda_i`; so the size of the covariance, its trace for one, is
        proportional to `lambda_i`, while its directions change with `i`. `vec` stacks columns.
        Returns (M D, M D).
        """
        needed = 2 * 8 * self.phi.numel() ** 2
        if needed > 1 << 28:
            what = f"a covariance of {self.phi.numel():,} numbers needs about {gigabytes(needed)}"
            check_memory(needed + used_memory(), what, "give fewer eigenvalues")
        p = self.phi.T @ self.v
        return 4 * self.residual_variance * torch.kron(self.covariance, torch.outer(p, p))

    @checked
    def second_moments(
        self,
        steps: Sequence[int],
        learning_rate: float,
        batch_size: int = 1,
        init_variance: float = 0.0,
    ) -> Tensor:
        """`E[ (u_i^T E_t w_a)^2 ]` under SGD by its recursion, (len(steps), D, D).

        `u_i` is an eigenvector of `Phi Phi^T`, `w_a` one of `M`. `Theta_0` has iid entries of mean
        zero and variance `init_variance`. The derivation heads this module.
        """
        steps = _check_run(steps, learning_rate, batch_size)
        check_variance(init_variance)
        k, m = self.eigenvalues[:, None], self._modes[0]
        step = learning_rate * k
        keep = 1 - 4 * step * m + 4 * step**2 * (1 + 1 / batch_size) * m**2  # (D, D)
        spread = 4 * step**2 / batch_size * m
        noise = self._row_noise[:, None]
        p = self._in_modes(self.optimum) ** 2 + init_variance * k
        recorded, done = [], 0
        for t in steps:
            for _ in range(t - done):
                p = keep * p + spread * ((p @ m)[:, None] + noise)
            done = t
            recorded.append(p)
        return torch.stack(recorded)

    def squared_errors(
        self,
        steps: Sequence[int],
        learning_rate: float,
        batch_size: int = 1,
        init_variance: float = 0.0,
    ) -> Tensor:
        """`E |Omega_t - Omega*|_F^2` under SGD, exactly, (len(steps),)."""
        return self.second_moments(steps, learning_rate, batch_size, init_variance).sum(dim=(1, 2))

    @checked
    def plateau(self, learning_rate: float, batch_size: int = 1) -> float:
        """The value that `squared_errors` tends to; infinite if the learning rate is too large.

        The recursion's fixed point. With `g_i = (eta k_i / B) sum_a m_a / (1 - eta k_i (1 + 1/B)
        m_a)` it exists if every denominator is positive and every `g_i < 1`, and then
        `s (u_i . v)^2 + tau = s (u_i . v)^2 / (1 - g_i)`.
        """
        _check_run([0], learning_rate, batch_size)
        m = self._modes[0]
        step = learning_rate * self.eigenvalues
        room = 1 - step[:, None] * (1 + 1 / batch_size) * m  # (D, D)
        gain = step / batch_size * (m / room).sum(dim=1)
        if not (room > 0).all() or not (gain < 1).all():
            return math.inf
        rows = step / batch_size * self._row_noise / (1 - gain) * (1 / room).sum(dim=1)
        return float(rows.sum())

    @checked
    def simulate(
        self,
        steps: Sequence[int],
        learning_rate: float,
        num_runs: int,
        *,
        batch_size: int = 1,
        init_variance: float = 0.0,
        seed: int = 0,
    ) -> "Simulation":
        """Run SGD `num_runs` times side by side, on `Theta`, with fresh samples at every step.

        Uses nothing of the closed forms: samples, residuals and their outer products only.
        """
        steps = _check_run(steps, learning_rate, batch_size)
        check_variance(init_variance)
        if check_count("num_runs", num_runs) < 2:
            raise InvalidArgumentError(f"a spread needs at least 2 runs, got {num_runs}")
        state = self.phi.shape[1] * self.dimension + 3 * batch_size * self.dimension + len(steps)
        check_samples(num_runs, state, 6)  # a run is a sample in float64, and work on it
        generator = user_stream(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        size = (num_runs, self.phi.shape[1], self.dimension)
        theta = math.sqrt(init_variance) * normal(*size)
        scale = 2 * learning_rate / batch_size
        recorded, done = [], 0
        with pinned_threads():  # thousands of small products: sharing each costs more than it saves
            for t in steps:
                for _ in range(t - done):
                    eps = normal(num_runs, batch_size, self.dimension)
                    q = normal(num_runs, batch_size, 1) * self.v + self.sigma * eps
                    residual = q @ theta.mT @ self.phi.T + eps / self.sigma  # (runs, B, D)
                    theta = theta - _outer(scale * (residual @ self.phi), q)
                done = t
                recorded.append(self.phi @ theta - self.optimum)
        return Simulation(tuple(steps), torch.stack(recorded))

    @property
    def _row_noise(self) -> Tensor:
        """`s (u_i . v)^2`, the variance of the residual along each `u_i`, (D,)."""
        return self.residual_variance * (self.eigenvectors.T @ self.v) ** 2

    def _in_modes(self, matrix: Tensor) -> Tensor:
        return self.eigenvectors.T @ matrix @ self._modes[1]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Errors `Omega_t - Omega*` of many runs of SGD at the recorded steps."""

    steps: tuple[int, ...]
    errors: Tensor  # (len(steps), runs, D, D)

    @property
    def squared(self) -> Tensor:
        """`|Omega_t - Omega*|_F^2` of every run, (len(steps), runs)."""
        return self.errors.square().sum(dim=(2, 3))

    @property
    def mean(self) -> Tensor:
        """(len(steps),)."""
        return self.squared.mean(dim=1)

    @property
    def mean_error(self) -> Tensor:
        """Standard error of `mean`, (len(steps),)."""
        return self.squared.std(dim=1) / math.sqrt(self.errors.shape[1])


@checked
def conditioning(eigenvalues: Sequence[float], seed: int | None = None) -> Tensor:
    """A `Phi` (D, D) with `Phi Phi^T` of these eigenvalues: diagonal, or rotated at random."""
    check_count("the number of eigenvalues", len(eigenvalues), most=MOST_COLUMNS)
    values = torch.tensor([float(value) for value in eigenvalues], dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not values.isfinite().all() or not (values > 0).all():
        raise InvalidArgumentError(
            f"eigenvalues are finite numbers above 0, got {shown(list(eigenvalues))}"
        )
    if seed is None:
        return values.sqrt().diag()
    generator = user_stream(seed)
    normal = torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    return torch.linalg.qr(normal).Q * values.sqrt()


def check_steps(steps: Sequence[int]) -> list[int]:
    """Steps at which something is looked at: whole numbers that do not decrease."""
    found = [check_count("each of the steps", step, 0) for step in steps]
    if not found or any(a > b for a, b in itertools.pairwise(found)):
        raise InvalidArgumentError(
            f"steps are whole numbers from 0 in increasing order, got {found[:5]}"
        )
    return found


def _check_run(steps: Sequence[int], learning_rate: float, batch_size: int = 1) -> list[int]:
    found = check_steps(steps)
    check_number("the learning rate", learning_rate, 0)
    check_count("the batch size", batch_size)
    return found


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """`sum_b left_b right_b^T` for every run, of (runs, B, M) and (runs, B, D)."""
    if left.shape[1] == 1:  # to the bit the same, in half the time
        return left.mT * right
    return left.mT @ right
