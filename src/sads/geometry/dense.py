"""A geometry kept as matrices: the factor of every batch of networks.

All questions can be answered from it. It takes 16 matrices of P x P in float64: 3.2 GB for 5,000
positions, which is where geometries without a matrix begin (`matrixfree`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sads.estimates import Estimates, batch_mean
from sads.geometry.directions import Directions, find_directions
from sads.geometry.eigenbasis import Spread
from sads.geometry.ends import End
from sads.geometry.lift import Lift
from sads.tensorfile import Pieces, TensorFile, expect_room

CHUNK = 1 << 22  # numbers of directions that are converted at a time
LARGEST = 1e60  # a number of a factor; its fourth power can still be computed with
ROUNDING = 1e-6  # by which a correlation in a factor may exceed 1
CHECKING = 6  # matrices that are made of a factor which is read


@dataclass(frozen=True, eq=False, repr=False)
class Dense:
    """The factors of independent batches, and how they are lifted to all coordinates."""

    factors: Tensor  # (K, P, P) float64, the mean over the networks of each batch
    counts: Tensor  # (K,) int64, networks in each batch; one batch of none if exact
    lift: Lift
    _known: dict[str, float] = field(default_factory=dict, init=False)  # what took long

    def factor(self) -> Tensor:
        """The mean over all networks, (P, P)."""
        return batch_mean(self.factors, self.counts)

    @property
    def is_zero(self) -> bool:
        """Did every network return zero?"""
        return not self.factors.any()

    @property
    def trace(self) -> float:
        return float(self.factor().diagonal().sum()) * self.lift.groups

    @property
    def largest(self) -> float:
        """The largest of its numbers."""
        return max(max(map(abs, map(float, factor.aminmax()))) for factor in self.factors)

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
        spread = self._spread()
        return find_directions(
            spread, self.counts, self.lift, shape, tolerance, known=known, first_order=first_order
        )

    def _spread(self) -> Spread:
        """How batches spread in the eigenbasis; minutes of work, so a number of it is kept."""
        spread = Spread.of(self.factors, self.counts)
        self._known["whitened error"] = spread.whitened_error(self.counts)
        return spread

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
        """What `Geometry.whitened_error` says, for networks whose errors are known."""
        if "whitened error" not in self._known:
            self._spread()
        return self._known["whitened error"]

    def merged(self, other: "Dense") -> "Dense":
        """Batches add up, network `n` to those of batch `n` modulo their number.

        Of two numbers of batches the smaller one is kept, which divides the larger.
        """
        if len(self.counts) != len(other.counts):
            batches = min(len(self.counts), len(other.counts))
            return self._in_batches(batches).merged(other._in_batches(batches))
        counts = self.counts + other.counts
        weights = self.counts.double() / counts.clamp(min=1)
        factors = torch.empty_like(self.factors)
        for batch, weight in enumerate(weights):  # one at a time: all of them may fill the memory
            factors[batch] = weight * self.factors[batch] + (1 - weight) * other.factors[batch]
        return Dense(factors, counts, self.lift)

    def _in_batches(self, number: int) -> "Dense":
        """The same networks in fewer batches: of 16, batches 1 and 9 are the first of 8."""
        if number == len(self.counts):
            return self
        groups = torch.arange(len(self.counts)).reshape(-1, number).T  # (number, of one batch)
        factors = torch.stack([batch_mean(self.factors[g], self.counts[g]) for g in groups])
        return Dense(factors, self.counts[groups].sum(dim=1), self.lift)

    def tensors(self) -> "dict[str, Pieces]":
        """What a file holds of it."""
        size = self.lift.size
        shape = len(self.factors), size * (size + 1) // 2
        return {"factors": Pieces("float64", shape, self._triangles)}

    def _triangles(self) -> Iterator[Tensor]:
        """The upper triangle of one factor after the other, row by row."""
        for factor in self.factors:
            yield torch.cat([row[i:] for i, row in enumerate(factor)])

    def metadata(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def read(cls, file: TensorFile, counts: Tensor, lift: Lift) -> "Dense":
        """The factor of each batch, (K, P, P): second moments, up to rounding."""
        batches, size = len(counts), lift.size
        file.expect("factors", "float64", batches, size * (size + 1) // 2)
        expect_room(8 * (batches + CHECKING) * size**2)
        rows, columns = torch.triu_indices(size, size)
        factors = torch.empty(batches, size, size, dtype=torch.float64)
        for factor, triangle in zip(factors, file.rows("factors"), strict=True):
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
