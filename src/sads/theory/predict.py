"""Predictions before training: `v^T G v` for every vector of the bases of Figure 2.

By Conjecture 1 a direction is the harder to learn the larger its `v^T G v`. The mean over any
orthonormal basis is `tr(G) / D`, so that bases differ in how unevenly they share it out, not in
the mean.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.alignment import check_defined
from sads.data.bases import BASES, Basis, basis
from sads.errors import InvalidArgumentError
from sads.geometry.geometry import Geometry
from sads.theory.markov import direction_energies

FREQUENCY_BASES = ("dct", "dst", "hadamard")


@dataclass(frozen=True, eq=False)
class Prediction:
    """`v^T G v` for the D vectors of one basis, in the basis' order."""

    basis: Basis
    energies: Tensor  # (D,)
    energy_errors: Tensor  # (D,)
    mean_energy: float  # tr(G) / D, the same for every basis

    @property
    def relative(self) -> Tensor:
        """Energies in units of their mean: above 1 is harder than average, (D,)."""
        return self.energies / self.mean_energy

    def mean_over(self, chosen: Tensor) -> tuple[float, float]:
        """Mean relative energy of some vectors (a mask, (D,)), and its standard error at most.

        Errors of vectors are not independent: their mean bounds the error of the mean.
        """
        return (
            float(self.relative[chosen].mean()),
            float(self.energy_errors[chosen].mean()) / self.mean_energy,
        )


def predict(geometry: Geometry, names: tuple[str, ...] = BASES) -> dict[str, Prediction]:
    """Which vectors of each basis a geometry says are hard, by name of the basis."""
    check_defined(geometry)
    predictions = {}
    for name in names:
        vectors = basis(name, geometry.shape)
        energies, errors = direction_energies(geometry, vectors.vectors.double().flatten(1))
        mean = float(geometry.factor().diagonal().mean())
        predictions[name] = Prediction(vectors, energies, errors, mean)
    return predictions


def claims(predictions: dict[str, Prediction]) -> dict[str, dict[str, float]]:
    """The paper's reading of Figure 2, in numbers of the geometry (relative energies).

    Low frequencies are hard: mean over the lower half of all axes' frequencies against the upper
    half. Borders are easier: the canonical vectors at the border against those inside. Localised
    vectors are easier: the hardest vector of each basis, and the median.
    """
    if not predictions:
        raise InvalidArgumentError("no predictions were given; call predict first")
    result: dict[str, dict[str, float]] = {}
    for name, prediction in predictions.items():
        positions = torch.tensor([e.position for e in prediction.basis.index])
        sizes = torch.tensor(prediction.basis.shape[1:])
        row = {
            "hardest": float(prediction.relative.max()),
            "median": float(prediction.relative.median()),
            "easiest": float(prediction.relative.min()),
        }
        if name in FREQUENCY_BASES:
            low, high = (positions < sizes / 2).all(dim=1), (positions >= sizes / 2).all(dim=1)
            row["low frequencies"], row["low frequencies error"] = prediction.mean_over(low)
            row["high frequencies"], row["high frequencies error"] = prediction.mean_over(high)
        if name == "canonical":
            border = ((positions == 0) | (positions == sizes - 1)).any(dim=1)
            row["border"], row["border error"] = prediction.mean_over(border)
            row["inside"], row["inside error"] = prediction.mean_over(~border)
        result[name] = row
    return result


def layout(prediction: Prediction) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Relative energies as Figure 2 lays them out, (rows, columns)."""
    return np.asarray(prediction.basis.layout(prediction.relative))
