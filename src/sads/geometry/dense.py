"""A geometry kept as matrices: the factor of every batch of networks.

All questions can be answered from it. It takes 16 matrices of P x P in float64: 3.2 GB for 5,000
positions, which is where geometries without a matrix begin (`matrixfree`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.estimates import Estimates, batch_mean
from sads.geometry.directions import EQUAL, Directions, find_directions, form_errors
from sads.geometry.end import End
from sads.geometry.lift import Lift
from sads.tensorfile import TensorFile, expect_room

CHUNK = 1 << 22  # numbers of directions that are converted at a time
LARGEST = 1e60  # a number of a factor; its fourth power can still be computed with
ROUNDING = 1e-6  # by which a correlation in a factor may exceed 1


@dataclass(frozen=True, eq=False, repr=False)
class Dense:
    """The factors of independent batches, and how they are lifted to all coordinates."""

    factors: Tensor  # (K, P, P) float64, the mean over the networks of each batch
    counts: Tensor  # (K,) int64, networks in each batch; one batch of none if exact
    lift: Lift

    def factor(self) -> Tensor:
        """The mean over all networks, (P, P)."""
        return batch_mean(self.factors, self.counts)

    @property
    def trace(self) -> float:
        return float(self.factor().diagonal().sum()) * self.lift.groups

    def quadratic(self, rows: Tensor) -> Tensor:
        """`v^T G_k v` of every batch for every row of (n, D), (K, n)."""
        energies = torch.empty(len(self.factors), len(rows), dtype=torch.float64)
        for part in torch.arange(len(rows)).split(max(1, CHUNK // self.lift.dimension)):
            chunk = rows[part].to("cpu", torch.float64)
            for energy, factor in zip(energies, self.factors, strict=True):
                energy[part] = self.lift.quadratic(factor, chunk)
        return energies

    def directions(
        self, shape: tuple[int, ...], tolerance: float, known: bool, first_order: bool
    ) -> Directions:
        return find_directions(
            self.factors,
            self.counts,
            self.lift,
            shape,
            tolerance,
            known=known,
            first_order=first_order,
        )

    def end(self, directions: Directions, side: str, count: int) -> End:
        """Directions at one end, a copy of each; eigenvalues are known as what they are."""
        copies = self.lift.groups
        ranks = torch.arange(0, len(directions.values), copies)
        ranks = (ranks if side == "avoided" else ranks.flip(0))[:count]
        values = Estimates(directions.values[ranks], directions.value_errors[ranks])
        return End(
            side=side,
            vectors=directions.select(ranks.tolist()),
            energies=values,
            bounds=values,
            found=values.values,
            residuals=torch.zeros(len(ranks), dtype=torch.float64),
            copies=copies,
        )

    def whitened_error(self) -> float:
        """See `Geometry.whitened_error`, for networks whose errors are known."""
        values, basis = torch.linalg.eigh(self.factor())
        if int(self.counts.sum()) < len(values) and values[0] <= EQUAL * values[-1]:
            return math.inf  # too few networks to see all directions
        kept = values > EQUAL * values[-1]
        if not kept.any():
            return math.inf
        values, basis = values[kept], basis[:, kept]
        variance = form_errors(self.factors, self.counts, basis)[0].square()
        return float((variance / values[:, None] / values).sum().div(len(values)).sqrt())

    def merged(self, other: "Dense") -> "Dense":
        counts = self.counts + other.counts
        weight = (self.counts.double() / counts.clamp(min=1))[:, None, None]
        return Dense(weight * self.factors + (1 - weight) * other.factors, counts, self.lift)

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        rows, columns = torch.triu_indices(self.lift.size, self.lift.size)
        return {"factors": self.factors[:, rows, columns].contiguous()}  # one triangle

    def metadata(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def read(cls, file: TensorFile, counts: Tensor, lift: Lift) -> "Dense":
        """The factor of each batch, (K, P, P): second moments, up to rounding."""
        batches, size = len(counts), lift.size
        file.expect("factors", "float64", batches, size * (size + 1) // 2)
        expect_room(2 * 8 * batches * size**2)
        packed = file["factors"]
        rows, columns = torch.triu_indices(size, size)
        factors = torch.empty(batches, size, size, dtype=torch.float64)
        for factor, triangle in zip(factors, packed, strict=True):
            factor[rows, columns] = triangle
            factor[columns, rows] = triangle
            variances = factor.diagonal()
            if not (triangle.abs() <= LARGEST).all() or (variances < 0).any():
                raise ValueError("its numbers are not those of a geometry")
            deviations = variances.sqrt()
            most = (1 + ROUNDING) * deviations[:, None] * deviations + ROUNDING * variances.max()
            if (factor.abs() > most).any():
                raise ValueError("its factors are not second moments")
        return cls(factors, counts, lift)
