"""The Markov bound of Equation 4: how likely is a steep change of the log-density along `v`?

    P( |v^T grad log p| >= eta )  <=  v^T G v / eta^2,   |v| = 1.

It is Markov's inequality for the square of `v^T F`, whose mean over networks and probe is
`v^T G v`, where the network `F` stands for the gradient. For a set of directions the bound on the
length of the projection onto their span is the sum over an orthonormal basis of it.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.alignment import as_rows, batch_errors, check_defined
from sads.errors import InvalidArgumentError
from sads.geometry.geometry import Estimate, Geometry
from sads.geometry.structure import Lift

CHUNK = 256  # directions at a time
RANK = 1e-10  # singular values below this share of the largest are 0


@dataclass(frozen=True, eq=False)
class MarkovBound:
    """Bounds for n directions, each scaled to length 1."""

    threshold: float  # eta
    energies: Tensor  # (n,), v^T G v
    energy_errors: Tensor  # (n,), standard errors
    _geometry: Geometry
    _rows: Tensor  # (n, D)

    @property
    def bounds(self) -> Tensor:
        """On `P(|v^T F| >= eta)` for each direction; 1 where the inequality says nothing."""
        return (self.energies / self.threshold**2).clamp(max=1)

    @cached_property
    def span_energy(self) -> Estimate:
        """Trace of `G` on the span of the directions."""
        q, singular, _ = torch.linalg.svd(self._rows.T, full_matrices=False)
        span = q[:, singular > RANK * singular[0]].T
        totals = _per_batch(self._geometry, span).sum(dim=1, keepdim=True)  # (K, 1)
        value, error = _with_error(self._geometry, totals)
        return Estimate(float(value), float(error))

    @property
    def joint(self) -> float:
        """On `P(|V^T F| >= eta)`, `V` an orthonormal basis of the span of the directions."""
        return min(1.0, self.span_energy.value / self.threshold**2)


def markov_bound(
    geometry: Geometry, directions: Tensor, threshold: float | None = None
) -> MarkovBound:
    """Equation 4 for one direction (`shape` or (D,)), or a set or basis of them (n, *shape).

    Args:
        threshold: `eta`; three times the root mean square of a score's coordinate if not given,
            so that the bound of an average direction is 1/9.
    """
    check_defined(geometry)
    if tuple(directions.shape) in (geometry.shape, (geometry.dimension,)):
        directions = directions[None]
    rows = as_rows(geometry, directions.double())
    lengths = rows.norm(dim=1)
    if not (lengths > 0).all():
        raise InvalidArgumentError(
            f"direction {int((lengths > 0).int().argmin())} has length 0; give directions that "
            "point somewhere"
        )
    if threshold is None:
        threshold = 3 * math.sqrt(float(geometry.factor().diagonal().mean()))
    if not 0 < threshold < math.inf:
        raise InvalidArgumentError(f"the threshold is a number above 0, got {threshold}")
    rows = rows / lengths[:, None]
    energies, errors = direction_energies(geometry, rows)
    return MarkovBound(threshold, energies, errors, geometry, rows)


def direction_energies(geometry: Geometry, rows: Tensor) -> tuple[Tensor, Tensor]:
    """`v^T G v` and its standard error for every row of (n, D), each (n,)."""
    return _with_error(geometry, _per_batch(geometry, rows))


def _per_batch(geometry: Geometry, rows: Tensor) -> Tensor:
    """`v^T G_k v` for each batch of the geometry, (K, n)."""
    energies = torch.empty(len(geometry.factors), len(rows), dtype=torch.float64)
    for start in range(0, len(rows), CHUNK):
        z = geometry.lift.split(rows[start : start + CHUNK])  # (n, groups, P)
        for energy, factor in zip(energies, geometry.factors, strict=True):
            energy[start : start + CHUNK] = _quadratic(z, factor, geometry.lift)
    return energies


def _quadratic(z: Tensor, factor: Tensor, lift: Lift) -> Tensor:
    flat = z.reshape(-1, lift.size)
    return ((flat @ factor) * flat).sum(dim=1).reshape(-1, lift.groups).sum(dim=1)


def _with_error(geometry: Geometry, energies: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over networks of (K, n), and its standard error from the spread of the batches."""
    if geometry.exact:
        return energies[0], torch.zeros_like(energies[0])
    weights = geometry.counts.double() / geometry.num_networks
    return weights @ energies, batch_errors(energies, geometry)
