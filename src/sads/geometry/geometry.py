"""The result of an estimate: a geometry that knows how it was made and how sure it is."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sads.directions import (
    EQUAL,
    MIN_BATCHES,
    Directions,
    batch_mean,
    batch_variance,
    find_directions,
)
from sads.errors import GeometryFileError, InvalidArgumentError, MergeError
from sads.files import reading, replacing
from sads.geometry.structure import Lift

FORMAT = "sads-geometry"
FORMAT_VERSION = 1
DEFAULT_TOLERANCE = 0.1  # radians
IDENTITY = ("family", "fingerprint", "probe", "estimator", "readout", "symmetries")


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Geometry:
    """The average geometry `G = E[F F^T]` of a family of score networks.

    Kept as the factors of independent batches of networks and the lift that makes a D x D
    matrix of a factor, so that errors can be had and shards added up.
    """

    factors: Tensor  # (K, P, P) float64, the mean over the networks of each batch
    counts: Tensor  # (K,) int64, networks in each batch; one batch of none if exact
    lift: Lift
    shape: tuple[int, ...]
    provenance: Mapping[str, Any]

    @property
    def dimension(self) -> int:
        """D."""
        return self.lift.dimension

    @property
    def num_networks(self) -> int:
        """How many random networks went into the estimate; 0 if it is exact."""
        return int(self.counts.sum())

    @property
    def exact(self) -> bool:
        """No randomness was left: every network of the family has the same features."""
        return self.num_networks == 0

    @property
    def estimator(self) -> str:
        """`"exact"`, `"integrated"`, `"outer-product"` or `"monte-carlo"`."""
        return str(self.provenance["estimator"])

    def factor(self) -> Tensor:
        """The small matrix `A`, (P, P) float64."""
        return batch_mean(self.factors, self.counts)

    def matrix(self) -> Tensor:
        """The dense geometry, (D, D) float64."""
        return self.lift.dense(self.factor())

    def directions(self, tolerance: float | None = None) -> Directions:
        """Eigenvalues and eigenvectors with their certificate.

        A direction counts as resolved if its angle is sure to `tolerance` radians; by default
        the tolerance that the estimate was asked for, or 0.1.
        """
        if tolerance is None:
            tolerance = self.provenance.get("tolerance") or DEFAULT_TOLERANCE
        return find_directions(self.factors, self.counts, self.lift, self.shape, tolerance)

    def energy(self, v: Tensor) -> Estimate:
        """`v^T G v` with its standard error, for `v` of shape (D,) or `shape`.

        Not normalised: for a unit vector this is what the Markov bound compares.
        """
        flat = v.double().flatten()
        if len(flat) != self.dimension or not flat.isfinite().all():
            raise InvalidArgumentError(
                f"a direction of this geometry has {self.dimension} finite entries "
                f"(shape {'x'.join(map(str, self.shape))}), got {tuple(v.shape)}"
            )
        z = self.lift.split(flat)  # (groups, P)
        energies = torch.einsum("gi,kij,gj->k", z, self.factors, z)
        if self.exact:
            return Estimate(float(energies[0]), 0.0)
        weights = self.counts.double() / self.num_networks
        mean = (weights * energies).sum()
        if int((weights > 0).sum()) < MIN_BATCHES:
            return Estimate(float(mean), math.inf)
        error = (weights**2 / (1 - weights) * (energies - mean) ** 2).sum().sqrt()
        return Estimate(float(mean), float(error))

    def whitened_error(self) -> float:
        """Expected error in units of the geometry, `|L^-1 (G - truth) L^-T|_F / sqrt(D)`.

        `L L^T = G`, on the subspace where `G` is not zero; infinite where the batches are too
        few to say. Two independent estimates differ by sqrt(2) times as much.
        """
        if self.exact:
            return 0.0
        values, basis = torch.linalg.eigh(self.factor())
        if self.num_networks < len(values) and values[0] <= EQUAL * values[-1]:
            return math.inf  # too few networks to see all directions
        kept = values > EQUAL * values[-1]
        values, basis = values[kept], basis[:, kept]
        variance = batch_variance(self.factors, self.counts, self.factor(), basis)
        return float((variance / values[:, None] / values).sum().div(len(values)).sqrt())

    def merge(self, *others: "Geometry") -> "Geometry":
        """Add up estimates of the same family that hold different networks."""
        merged = self
        for other in others:
            merged = _merge_two(merged, other)
        return merged

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as safetensors, all at once or not at all."""
        path = Path(path)
        rows, columns = torch.triu_indices(self.lift.size, self.lift.size)
        tensors = {
            "factors": self.factors[:, rows, columns].contiguous(),  # symmetric: one triangle
            "counts": self.counts,
            "order": self.lift.order,
        }
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "groups": str(self.lift.groups),
            "shape": json.dumps(self.shape),
            "provenance": json.dumps(self.provenance),
        }
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata)
        return path


def load_geometry(path: str | os.PathLike[str]) -> Geometry:
    """Read a geometry that `Geometry.save` wrote."""
    with reading(Path(path), FORMAT, GeometryFileError, FORMAT_VERSION) as (tensors, metadata):
        packed, counts, order = (tensors[k] for k in ("factors", "counts", "order"))
        groups = int(metadata["groups"])
        size = len(order) // groups
        rows, columns = torch.triu_indices(size, size)
        factors = torch.empty(len(packed), size, size, dtype=torch.float64)
        factors[:, rows, columns] = packed
        factors[:, columns, rows] = packed
        shape = tuple(json.loads(metadata["shape"]))
        provenance = json.loads(metadata["provenance"])
        if math.prod(shape) != len(order) or len(counts) != len(packed):
            raise ValueError("its parts do not fit together")
    return Geometry(factors, counts, Lift(groups, size, order), shape, provenance)


def _merge_two(a: Geometry, b: Geometry) -> Geometry:
    for key in IDENTITY:
        if a.provenance.get(key) != b.provenance.get(key):
            raise MergeError(
                f"geometries of different {key} do not add up: {a.provenance.get(key)} and "
                f"{b.provenance.get(key)}; merge estimates of one family under one probe"
            )
    responses = zip(a.provenance["response"], b.provenance["response"], strict=True)
    if not all(math.isclose(p, q, rel_tol=1e-2, abs_tol=1e-4) for p, q in responses):
        raise MergeError(
            "geometries of different families do not add up: the networks or the probes of the "
            "two give different numbers; merge estimates of one family under one probe"
        )
    if a.exact:
        return a
    draws = [*a.provenance["draws"], *b.provenance["draws"]]
    for i, (seed, start, stop) in enumerate(draws):
        for other_seed, other_start, other_stop in draws[:i]:
            if seed == other_seed and start < other_stop and other_start < stop:
                raise MergeError(
                    f"both geometries hold networks {max(start, other_start)} to "
                    f"{min(stop, other_stop) - 1} of seed {seed}; merge estimates with other "
                    "seeds, or of other networks (first_network=...)"
                )
    counts = a.counts + b.counts
    weight = (a.counts.double() / counts.clamp(min=1))[:, None, None]
    factors = weight * a.factors + (1 - weight) * b.factors
    provenance = {
        **a.provenance,
        "draws": draws,
        "seconds": a.provenance["seconds"] + b.provenance["seconds"],
        "interrupted": a.provenance["interrupted"] or b.provenance["interrupted"],
    }
    return replace(a, factors=factors, counts=counts, provenance=provenance)
