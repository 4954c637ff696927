"""The Score Anisotropy Directions: eigenvectors of a geometry, and how sure each of them is.

A geometry keeps the moments of K independent batches of networks. In the eigenbasis
`u_1, u_2, ...` of their mean, the spread of the batches gives `Var_ij = Var(u_i^T G u_j)`, and
perturbation theory to first order (second for eigenvalues) gives

    angle_i^2 = sum_{j != i} Var_ij / (lambda_i - lambda_j)^2
    error_i^2 = Var_ii + ( sum_{j != i} shift_ij )^2

where `shift_ij` is how far the noise pushes `lambda_i` away from `lambda_j`: that of the two by
two problem, `+-(sqrt(d^2 + 4 Var_ij) - |d|) / 2` with `d` their distance. It is a bias (large
eigenvalues come out too large, small ones too small), counted here as an error.

Directions that are not sure enough on their own are gathered into clusters of neighbouring
eigenvalues until what remains, the subspace of each cluster, is.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.errors import InvalidArgumentError
from sads.geometry.structure import Lift

EQUAL = 1e-12  # eigenvalues this close, in units of the largest, are the same number

MIN_BATCHES = 8  # below this, their spread says too little
UNDETERMINED = 10.0  # squared angle, far beyond the quarter turn that means no information


@dataclass(frozen=True)
class Cluster:
    """Directions `start .. stop - 1` (descending order) whose common subspace is certified.

    `reason`: `"multiplicity"` (equal by the structure of the output layer), `"equal"` (their
    eigenvalues agree within the errors, perhaps by symmetry), or `"unresolved"` (different
    eigenvalues, but more networks are needed to separate the directions).
    """

    start: int
    stop: int
    value: float  # mean eigenvalue
    value_error: float
    angle_error: float  # radians by which a direction of the cluster may leave the subspace
    reason: str

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class Directions:
    """Eigenvectors of a geometry in descending order of eigenvalue, with their errors.

    `vectors[0]` is the most avoided direction, `vectors[-1]` the most preferred one.
    """

    values: Tensor  # (D,) float64, descending
    value_errors: Tensor  # (D,)
    angle_errors: Tensor  # (D,) radians, at most pi / 2: not determined
    resolved: Tensor  # (D,) bool: an individual direction at the tolerance
    clusters: tuple[Cluster, ...]
    tolerance: float  # radians
    shape: tuple[int, ...]
    _basis: Tensor  # (P, P), columns are eigenvectors of the factor
    _lift: Lift

    @cached_property
    def vectors(self) -> Tensor:
        """(D, *shape) float64."""
        return self._lifted(torch.arange(len(self.values)))

    def preferred(self, count: int = 1) -> Tensor:
        """The `count` most preferred directions, best first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(len(self.values)).flip(0)[:count])

    def avoided(self, count: int = 1) -> Tensor:
        """The `count` most avoided directions, worst first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(count))

    def cluster_of(self, index: int) -> Cluster | None:
        """The cluster that direction `index` belongs to; None if it is resolved."""
        index = range(len(self.values))[index]
        return next((c for c in self.clusters if c.start <= index < c.stop), None)

    def _check_count(self, count: int) -> None:
        if not 1 <= count <= len(self.values):
            raise InvalidArgumentError(
                f"asked for {count} directions of {len(self.values)}; give a number from 1 to D"
            )

    def _lifted(self, indices: Tensor) -> Tensor:
        groups = self._lift.groups
        z = torch.zeros(len(indices), groups, self._lift.size, dtype=torch.float64)
        z[torch.arange(len(indices)), indices % groups] = self._basis[:, indices // groups].T
        return self._lift.join(z).reshape(len(indices), *self.shape)


def find_directions(
    factors: Tensor, counts: Tensor, lift: Lift, shape: tuple[int, ...], tolerance: float
) -> Directions:
    """Eigenvectors, errors and clusters from the batches of a geometry.

    Args:
        factors: (K, P, P), the factor of each batch. One batch of zero networks is exact.
        counts: (K,), networks in each batch.
    """
    if not tolerance > 0:
        raise InvalidArgumentError(f"the tolerance is an angle in radians above 0, got {tolerance}")
    exact = int(counts.sum()) == 0
    mean = batch_mean(factors, counts)
    values, basis = torch.linalg.eigh(mean)
    values, basis = values.flip(0), _fix_signs(basis.flip(1))
    values = torch.where(values > EQUAL * values[0], values, 0.0)  # the rest is rounding
    variance = torch.zeros_like(mean) if exact else batch_variance(factors, counts, mean, basis)
    unseen = values == 0
    if not exact and unseen.any() and int(counts.sum()) < len(values):
        # Fewer networks than directions: batches vanish where their mean does, whatever the truth.
        variance[unseen], variance[:, unseen] = math.inf, math.inf

    distance = values[:, None] - values  # (P, P)
    same = distance.abs() <= EQUAL * values[0]
    shift = (torch.sqrt(distance**2 + 4 * variance) - distance.abs()) / 2
    bias = torch.where(same, 0.0, shift * distance.sign()).sum(dim=1)
    value_errors = torch.sqrt(variance.diagonal() + bias**2)
    value_errors = value_errors.nan_to_num(nan=math.inf, posinf=math.inf)
    rotation = torch.where(same, 0.0, variance / distance**2)  # squared angles between pairs
    rotation = rotation.clamp(max=UNDETERMINED)  # so that sums and differences stay accurate
    alone = (same.sum(dim=1) == 1) & (lift.groups == 1)
    angles = rotation.sum(dim=1).sqrt().clamp(max=math.pi / 2)
    angles = torch.where(alone, angles, math.pi / 2)

    parts = _partition(rotation, same, tolerance)
    resolved = torch.zeros(len(values), dtype=torch.bool)
    clusters = []
    for start, stop, leak in parts:
        if stop - start == 1 and lift.groups == 1:
            resolved[start] = leak <= tolerance
            if resolved[start]:
                continue
        inside = slice(start, stop)
        error = float(variance[inside, inside].diagonal().mean().sqrt())
        spread = float(values[start] - values[stop - 1])
        noise = float(value_errors[start] + value_errors[stop - 1])
        clusters.append(
            Cluster(
                start * lift.groups,
                stop * lift.groups,
                float(values[inside].mean()),
                error,
                min(leak, math.pi / 2),
                "multiplicity"
                if stop - start == 1
                else "equal"
                if noise <= 0.2 * float(values[inside].mean())
                and spread <= max(2 * noise, float(EQUAL * values[0] * (stop - start)))
                else "unresolved",
            )
        )
    return Directions(
        values.repeat_interleave(lift.groups),
        value_errors.repeat_interleave(lift.groups),
        angles.repeat_interleave(lift.groups),
        resolved.repeat_interleave(lift.groups),
        tuple(clusters),
        tolerance,
        shape,
        basis,
        lift,
    )


def batch_mean(factors: Tensor, counts: Tensor) -> Tensor:
    """Mean over all networks, (P, P)."""
    total = int(counts.sum())
    if total == 0:
        return factors[0]
    return torch.einsum("k,kij->ij", counts.double() / total, factors)


def batch_variance(factors: Tensor, counts: Tensor, mean: Tensor, basis: Tensor) -> Tensor:
    """`Var(u_i^T G u_j)` of the mean over batches, from their spread; `u` columns of the basis.

    With weights `w_k = n_k / n`, `sum_k w_k (w_k / (1 - w_k)) (M_k - M)^2` is unbiased up to
    the inequality of the weights. Infinite if there are too few batches to say.
    """
    used = counts > 0
    if int(used.sum()) < MIN_BATCHES:
        return torch.full((basis.shape[1],) * 2, math.inf, dtype=mean.dtype)
    weights = counts.double() / counts.sum()
    center = basis.T @ mean @ basis
    variance = torch.zeros_like(center)
    for factor, weight in zip(factors[used], weights[used], strict=True):
        deviation = basis.T @ factor @ basis - center
        variance += weight**2 / (1 - weight) * deviation**2
    return variance


def _partition(rotation: Tensor, same: Tensor, tolerance: float) -> list[tuple[int, int, float]]:
    """Runs `[start, stop)` of neighbours whose subspaces are sure to the tolerance, with angles.

    Greedy: while some run leaks more than the tolerance, merge the leakiest one with the
    neighbour that it leaks into most. A run's leak is the largest among its members.
    """
    size = len(rotation)
    starts = [0] + [i for i in range(1, size) if not same[i - 1, i]]
    runs = [[a, b] for a, b in zip(starts, [*starts[1:], size], strict=True)]
    outside = rotation.sum(dim=1)  # squared angle by which each direction leaves its run
    for a, b in runs:
        if b - a > 1:
            outside[a:b] = rotation[a:b].sum(dim=1) - rotation[a:b, a:b].sum(dim=1)

    def leak(run: list[int]) -> float:
        return float(outside[run[0] : run[1]].max())

    leaks = [leak(run) for run in runs]
    while len(runs) > 1 and max(leaks) > tolerance**2:
        i = max(range(len(runs)), key=leaks.__getitem__)
        mine = slice(*runs[i])

        def into(k: int, mine: slice = mine) -> float:
            if not 0 <= k < len(runs):
                return -1.0
            return float(rotation[mine, slice(*runs[k])].sum())

        j = max((i - 1, i + 1), key=into)
        other = slice(*runs[j])
        outside[mine] -= rotation[mine, other].sum(dim=1)
        outside[other] -= rotation[other, mine].sum(dim=1)
        low, high = min(i, j), max(i, j)
        runs[low : high + 1] = [[runs[low][0], runs[high][1]]]
        outside[slice(*runs[low])].clamp_(min=0)
        leaks[low : high + 1] = [leak(runs[low])]
    if len(runs) == 1:
        leaks = [0.0]
    return [(a, b, math.sqrt(max(0.0, x))) for (a, b), x in zip(runs, leaks, strict=True)]


def _fix_signs(basis: Tensor) -> Tensor:
    """The entry of largest magnitude of every column is positive."""
    largest = basis.abs().argmax(dim=0)
    return basis * torch.sign(basis[largest, torch.arange(basis.shape[1])])
