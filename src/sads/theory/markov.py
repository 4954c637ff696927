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

from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate, Estimates, batch_mean, positive_errors
from sads.geometry.result import Geometry
from sads.rotations.alignment import check_defined, inner_products
from sads.samples import as_samples
from sads.scales import moderate_rows
from sads.theory.lemmas import LARGEST, SMALLEST

RANK = 1e-10  # singular values below this share of the largest are 0


@dataclass(frozen=True, eq=False)
class MarkovBound:
    """Bounds for n directions, each scaled to length 1."""

    threshold: float  # eta
    energies: Estimates  # (n,), v^T G v
    _geometry: Geometry
    _rows: Tensor  # (n, D)

    @property
    def bounds(self) -> Tensor:
        """Bounds on `P(|v^T F| >= eta)` for each direction; 1 where the inequality says nothing."""
        return (self.energies.values / self.threshold**2).clamp(max=1)

    @cached_property
    def span_energy(self) -> Estimate:
        """Trace of `G` on the span of the directions."""
        q, singular, _ = torch.linalg.svd(self._rows.T, full_matrices=False)
        span = self._geometry.lift.split(q[:, singular > RANK * singular[0]].T).flatten(0, 1)
        traces = inner_products(self._geometry, [span.T @ span])  # (K, 1)
        values = batch_mean(traces, self._geometry.counts)
        return Estimates(values, positive_errors(values, self._geometry.batch_errors(traces)))[0]

    @property
    def joint(self) -> float:
        """The bound on `P(|V^T F| >= eta)`, `V` an orthonormal basis of the directions' span."""
        return min(1.0, self.span_energy.value / self.threshold**2)


@checked
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
    directions = as_samples(directions, "the directions", geometry.shape, flat=True)
    rows = moderate_rows(directions.double().flatten(1))
    lengths = rows.norm(dim=1)
    if not len(rows) or not lengths.isfinite().all():
        raise InvalidArgumentError("there is no direction, or one of NaN or infinity: give others")
    if not (lengths > 0).all():
        raise InvalidArgumentError(
            f"direction {int((lengths > 0).int().argmin())} has length 0; give directions that "
            "point somewhere"
        )
    if threshold is None:
        threshold = 3 * math.sqrt(geometry.trace / geometry.dimension)
    if not SMALLEST < threshold < LARGEST:
        raise InvalidArgumentError(
            f"the threshold is a number above 0 ({SMALLEST:g} to {LARGEST:g}), got {threshold:g}"
        )
    rows = rows / lengths[:, None]
    return MarkovBound(
        threshold=threshold, energies=geometry.quadratic(rows), _geometry=geometry, _rows=rows
    )
