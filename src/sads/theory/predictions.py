"""Predictions before training: `v^T G v` for every vector of the bases of Figure 2.

By Conjecture 1 a direction is the harder to learn the larger its `v^T G v`. The mean over any
orthonormal basis is `tr(G) / D`, so that bases differ in how unevenly they share it out, not in
the mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.checked import checked
from sads.data.bases import BASES, Basis, basis
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate, Estimates
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.result import Geometry
from sads.rotations.alignment import check_defined
from sads.tables import Row, Table, titled
from sads.transforms import has_transform


@dataclass(frozen=True, eq=False)
class Prediction:
    """`v^T G v` for the D vectors of one basis, in the basis' order."""

    basis: Basis
    energies: Estimates  # (D,)
    mean_energy: float  # tr(G) / D, the same for every basis

    @property
    def relative(self) -> Tensor:
        """Energies in units of their mean: above 1 is harder than average, (D,)."""
        return self.energies.values / self.mean_energy

    def mean_over(self, chosen: Tensor) -> Estimate:
        """Mean relative energy of some vectors (a mask, (D,)), with a bound on its standard error.

        Errors of vectors are not independent: their mean bounds the error of the mean.
        """
        error = float(self.energies.errors[chosen].mean()) / self.mean_energy
        return Estimate(float(self.relative[chosen].mean()), error)


@dataclass(frozen=True)
class Difficulty(Row):
    """What the paper reads off Figure 2 for one basis, in relative energies.

    Low frequencies are hard: the mean over the lower half of all axes' frequencies against the
    upper half. Borders are easier: the canonical vectors at the border against those inside.
    Localised vectors are easier: the hardest vector of each basis, and the median.
    """

    basis: str
    easiest: float
    median: float
    hardest: float
    low: Estimate | None = titled("low frequencies", default=None)
    high: Estimate | None = titled("high frequencies", default=None)
    border: Estimate | None = None
    inside: Estimate | None = None


@checked
def predict(geometry: Geometry, names: tuple[str, ...] | None = None) -> dict[str, Prediction]:
    """Which vectors of each basis a geometry says are hard, by name of the basis.

    All bases if none are named, but Hadamard's and Haar's only for sizes that are powers of two; of
    a geometry without a matrix those whose energies it keeps.
    """
    check_defined(geometry)
    if names is None:
        kept = isinstance(geometry.moments, MatrixFree) and tuple(geometry.moments.energies)
        names = kept or tuple(n for n in BASES if has_transform(n, geometry.shape[1:]))
    mean = geometry.trace / geometry.dimension
    predictions = {}
    for name in names:
        vectors = basis(name, geometry.shape)
        if geometry.matrix_free:
            energies = geometry.basis_energies(name)
        else:
            energies = geometry.quadratic(vectors.vectors)
        predictions[name] = Prediction(basis=vectors, energies=energies, mean_energy=mean)
    return predictions


def claims(predictions: Mapping[str, Prediction]) -> Table[Difficulty]:
    """The paper's reading of Figure 2 in numbers of the geometry, a row for each basis."""
    if not predictions:
        raise InvalidArgumentError("no predictions were given; call predict first")
    return Table(
        Difficulty(
            basis=name,
            easiest=float(prediction.relative.min()),
            median=float(prediction.relative.median()),
            hardest=float(prediction.relative.max()),
            **{
                group: prediction.mean_over(torch.from_numpy(mask))
                for group, mask in prediction.basis.groups().items()
            },
        )
        for name, prediction in predictions.items()
    )
