"""The result of an estimate: a geometry that knows how it was made and how sure it is."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from sads.arguments import as_path, as_tensor, check_count, check_number, check_type
from sads.checked import checked
from sads.errors import GeometryFileError, InvalidArgumentError, MergeError, counted
from sads.estimates import (
    MIN_BATCHES,
    Estimate,
    Estimates,
    batch_error,
    batch_mean,
    batch_skewness,
    positive_errors,
    skew_factor,
)
from sads.families import Description
from sads.files import opening, replacing
from sads.from_json import decode_known
from sads.geometry.dense import LARGEST, Dense
from sads.geometry.directions import Directions
from sads.geometry.ends import End
from sads.geometry.lift import Lift
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.response import same_response
from sads.markup import card, facts
from sads.samples import as_samples
from sads.schedule import Schedule
from sads.shapes import checked_shape, format_shape
from sads.tensorfile import Pieces, TensorFile, write_tensors
from sads.transforms import ANALYSIS, SYNTHESIS, has_transform
from sads.untrusted import parse_json

FORMAT = "sads-geometry"
FORMAT_VERSION = 2  # of geometries without a matrix; those with one are still written as 1
DEFAULT_TOLERANCE = 0.1  # radians
CHUNK = 1 << 22  # numbers of basis vectors that are made at a time
SIDES = ("avoided", "preferred")
MAX_BATCHES, MAX_NETWORKS = 1 << 16, 1 << 53  # of a file
MIN_EFFECTIVE = 512  # networks that must count where their weights are uneven, 32 a batch
MIN_EFFECTIVE_EACH = 16  # and for every direction of the factor
MERGED_ENDS = (
    "the ends of the spectrum are not known: parts were merged, and each had found its own"
)
IDENTITY = ("family", "fingerprint", "probe", "estimator", "readout", "symmetries")


@dataclass(frozen=True)
class Provenance:
    """How a geometry was made: whatever a reader needs to make it again, or to doubt it."""

    family: Mapping[str, Any]  # what `ScoreFamily.describe` says
    estimator: str  # "exact", "integrated", "outer-product" or "monte-carlo"
    fingerprint: str = ""  # of the law of the parameters
    probe: Mapping[str, Any] = field(default_factory=lambda: {"name": "zero"})
    readout: str | None = None  # the layer that was integrated out
    dtype: str | None = None  # in which networks were evaluated; where it is not said: "float32"
    response: tuple[float, ...] = ()  # a few numbers by which networks and probes are told apart
    zero_readout: str = "error"
    symmetries: tuple[str, ...] = ()  # over which the estimate is averaged
    notes: tuple[str, ...] = ()  # what a reader should know about the way that was taken
    versions: Mapping[str, str] = field(default_factory=dict)
    tolerance: float | None = None  # radians, if one was asked for
    interrupted: bool = False
    draws: tuple[tuple[int, int, int], ...] = ()  # (seed, first network, last + 1) of each part
    seconds: float = 0.0
    processor_seconds: float | None = None  # of all cores, if they are known
    memory: int = 0  # bytes of the largest process that worked on it

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        """Read what `to_json` wrote; names that this version does not know are left out.

        `ValueError` if it says something else.
        """
        known = decode_known(cls, parse_json(text))
        decode_known(Description, known.family)
        if known.tolerance is not None and not 0 < known.tolerance < math.inf:
            raise ValueError(f"its tolerance is {known.tolerance}")
        return known


@dataclass(frozen=True, eq=False, repr=False)
class Geometry:
    """The average geometry `G = E[F F^T]` of a family of score networks.

    Kept as the moments of independent batches of networks, so that errors can be had and shards
    added up: as matrices (`Dense`), or without one where it would be too large (`MatrixFree`). The
    latter knows energies along bases and the two ends of the spectrum, and refuses other questions
    with a `NotKeptError`.
    """

    moments: Dense | MatrixFree
    shape: tuple[int, ...]
    provenance: Provenance
    _directions: dict[tuple[float, bool], Directions] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        """Short, for people.

        >>> import sads
        >>> sads.estimate_geometry("dit")
        Geometry(dit 1x16x16, exact)
        """
        name = f"{self.provenance.family.get('name', 'unnamed')} {format_shape(self.shape)}"
        if self.exact:
            return f"Geometry({name}, exact)"
        return f"Geometry({name}, {counted(self.num_networks, 'network')}, {self.estimator})"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from sads.geometry.summary import describe

        shown = "" if self.matrix_free else self.directions()._repr_html_()
        return card(self.label, facts(describe(self)), Markup(shown))

    @classmethod
    def dense(
        cls,
        factors: Tensor,
        counts: Tensor,
        lift: Lift,
        shape: tuple[int, ...],
        provenance: Provenance,
    ) -> "Geometry":
        """A geometry from the factors of batches, (K, P, P), and the networks in each, (K,)."""
        return cls(Dense(factors, counts, lift), shape, provenance)

    @property
    def matrix_free(self) -> bool:
        """Is it kept without a matrix?"""
        return isinstance(self.moments, MatrixFree)

    @property
    def factors(self) -> Tensor:
        """The factor of each batch, (K, P, P) float64: the mean over its networks."""
        return self.moments.factors

    @property
    def counts(self) -> Tensor:
        """Networks in each batch, (K,) int64; one batch of none if exact."""
        return self.moments.counts

    @property
    def lift(self) -> Lift:
        """How a factor becomes a matrix of D x D."""
        return self.moments.lift

    @property
    def label(self) -> str:
        """What to call it: `dit/2 1x16x16, exact`, with what tells it from others of its name."""
        name = str(self.provenance.family.get("name", "unnamed"))
        options = self.provenance.family.get("options", {})
        if "patch_size" in options:
            name = f"{name}/{options['patch_size']}"
        if options.get("resample", "nearest") != "nearest":
            name = f"{name} ({options['resample']})"
        size = "exact" if self.exact else counted(self.num_networks, "network")
        return f"{name} {format_shape(self.shape)}, {size}"

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
        return self.provenance.estimator

    @property
    def effective_networks(self) -> float:
        """How many networks of equal weight would be as good, by the weights of noise levels.

        The plain loop draws levels evenly, and its scores weigh `b_t^2`: of n networks
        `n E[b^2]^2 / E[b^4]` count, 0.74 % of them for 1000 linear levels. The other estimators
        draw levels by their weight, and all networks count.
        """
        said = self.provenance.family.get("schedule")
        if self.estimator != "monte-carlo" or not said:
            return float(self.num_networks)
        schedule = decode_known(Schedule, dict(said))
        a, b = schedule.score_coefficients(self.provenance.family.get("prediction", "epsilon"))
        weights = b**2 if self.provenance.probe.get("name") == "zero" else a**2 + b**2
        return self.num_networks * float(weights.mean() ** 2 / weights.square().mean())

    @property
    def errors_unknown(self) -> str | None:
        """Why nobody can know the errors of this geometry, in words; None if they are known."""
        if self.exact:
            return None
        batches = int((self.counts > 0).sum())
        if batches < MIN_BATCHES:
            return (
                f"{self.num_networks} networks are too few to see how they spread; "
                f"draw at least {MIN_BATCHES}"
            )
        effective = self.effective_networks
        wanted = max(MIN_EFFECTIVE, MIN_EFFECTIVE_EACH * self.lift.size)
        if effective < min(wanted, 0.99 * self.num_networks):
            needed = math.ceil(self.num_networks / effective * wanted)
            return (
                f"noise levels were drawn evenly and few of them carry the weight, so that "
                f"{self.num_networks:,} networks count as {effective:.1f} of equal "
                f"weight; draw about {needed:,}, or use another estimator"
            )
        return None

    def batch_errors(self, values: Tensor) -> Tensor:
        """Standard errors of what is linear in `G`, from its value for every batch, (K, ...).

        Wider where the batches are skewed; infinite where the errors are not known.
        """
        errors = batch_error(values, self.counts)
        errors = errors * skew_factor(batch_skewness(values, self.counts))
        return errors if self.errors_unknown is None else torch.full_like(errors, math.inf)

    def factor(self) -> Tensor:
        """The small matrix `A`, (P, P) float64."""
        return self.moments.factor()

    def matrix(self) -> Tensor:
        """The dense geometry, (D, D) float64."""
        return self.lift.dense(self.factor())

    @checked
    def directions(self, tolerance: float | None = None) -> Directions:
        """Eigenvalues and eigenvectors with their certificate, computed once for a tolerance.

        A direction counts as resolved if its angle is sure to `tolerance` radians; by default
        the tolerance that the estimate was asked for, or 0.1.
        """
        return self._find_directions(tolerance, first_order=False)

    def data_directions(self) -> Directions:
        """The directions in the clusters that data along a direction are drawn in.

        They differ in how they are gathered: by angles of first order, which in a crowd are too
        small to be errors. Data and the experiments on them are named after these clusters, so
        that they must not change when it is better known how sure an angle is.
        """
        return self._find_directions(None, first_order=True)

    def _find_directions(self, tolerance: float | None, first_order: bool) -> Directions:
        if tolerance is None:
            tolerance = self.provenance.tolerance or DEFAULT_TOLERANCE
            if tolerance >= math.pi / 2:  # older versions took any number
                tolerance = DEFAULT_TOLERANCE
        name = "the tolerance, an angle between 0 and pi/2 radians,"
        tolerance = check_number(name, tolerance, 0, math.pi / 2)
        if (key := (tolerance, first_order)) not in self._directions:
            self._directions[key] = self.moments.directions(
                self.shape, tolerance, self.errors_unknown is None, first_order
            )
        return self._directions[key]

    @checked
    def end(self, side: str, count: int = 8) -> End:
        """Up to `count` directions at the `"avoided"` or the `"preferred"` end, outermost first.

        With what is certain about each; also of a geometry without a matrix.
        """
        if side not in SIDES:
            raise InvalidArgumentError(f"unknown end {side!r}; choose {' or '.join(SIDES)}")
        check_count("the number of directions", count)
        if isinstance(self.moments, MatrixFree):
            return self.moments.end(side, count)
        return self.moments.end(self.directions(), side, count)

    @property
    def trace(self) -> float:
        """The sum of all eigenvalues: the mean squared length of a score."""
        return self.moments.trace

    @property
    def rank(self) -> int:
        """How many eigenvalues are not zero."""
        return int((self.directions().values > 0).sum())

    @property
    def condition_number(self) -> float:
        """The largest eigenvalue in units of the smallest; infinite if that is zero."""
        values = self.directions().values
        return float(values[0] / values[-1]) if values[-1] > 0 else math.inf

    @property
    def effective_rank(self) -> float:
        """`exp(-sum p log p)` with `p` the eigenvalues' shares of the trace: D if all are equal.

        0 if they are all zero.
        """
        values = self.directions().values
        if not values.any():
            return 0.0
        shares = values[values > 0] / values.sum()
        return float(torch.exp(-(shares * shares.log()).sum()))

    @checked
    def quadratic(self, rows: Tensor) -> Estimates:
        """`v^T G v` with standard errors for every row, of (n, *shape) or (n, D).

        Not normalised: for unit vectors this is what the Markov bound compares.
        """
        rows = as_samples(rows, "directions", self.shape, flat=True)
        if not rows.isfinite().all():
            raise InvalidArgumentError("directions have finite entries, got NaN or infinity")
        return self._positive(self.moments.quadratic(rows.reshape(len(rows), self.dimension)))

    @checked
    def basis_energies(self, name: str) -> Estimates:
        """`v^T G v` with standard errors for all D vectors of `"canonical"`, `"dct"` or `"haar"`.

        In the order of `sads.basis(name, shape)`; also of a geometry without a matrix.
        """
        if isinstance(self.moments, MatrixFree) and name in ANALYSIS and name not in SYNTHESIS:
            return self._positive(self.moments.basis_energies(name))  # which refuses
        if name not in SYNTHESIS or not has_transform(name, self.shape[1:]):
            raise InvalidArgumentError(
                f"there are no energies of {name!r} for {format_shape(self.shape)}; choose "
                f"{', '.join(SYNTHESIS)} (haar for powers of two)"
            )
        if isinstance(self.moments, MatrixFree):
            return self._positive(self.moments.basis_energies(name))
        spatial = self.shape[1:] or (1,)
        pixels = math.prod(spatial)
        parts = []
        for numbers in torch.arange(self.dimension).split(max(1, CHUNK // self.dimension)):
            rows = torch.zeros(len(numbers), self.shape[0], pixels, dtype=torch.float64)
            unit = torch.nn.functional.one_hot(numbers % pixels, pixels).double()
            images = SYNTHESIS[name](unit.reshape(-1, *spatial).numpy())
            rows[torch.arange(len(rows)), numbers // pixels] = torch.from_numpy(images).flatten(1)
            parts.append(self.moments.quadratic(rows.flatten(1)))
        return self._positive(torch.cat(parts, dim=1))

    def _positive(self, energies: Tensor) -> Estimates:
        """Means and errors of energies that every batch has, (K, n)."""
        values = batch_mean(energies, self.counts).clamp(min=0)  # rounding goes below
        return Estimates(values, positive_errors(values, self.batch_errors(energies)))

    @checked
    def energy(self, v: Tensor) -> Estimate:
        """`v^T G v` with its standard error, for one `v` of shape (D,) or `shape`."""
        return self.quadratic(as_tensor(v, "the direction")[None])[0]

    def whitened_error(self) -> float:
        """Expected error in units of the geometry, `|L^-1 (G - truth) L^-T|_F / sqrt(D)`.

        `L L^T = G`, on the subspace where `G` is not zero; infinite where the batches are too
        few to say. Two independent estimates differ by sqrt(2) times as much.
        """
        if self.exact:
            return 0.0
        if self.errors_unknown:
            return math.inf  # too few networks to see how they spread
        return self.moments.whitened_error()

    def merge(self, *others: "Geometry") -> "Geometry":
        """Add up estimates of the same family that hold different networks."""
        merged = self
        for other in others:
            check_type(other, Geometry, "what is merged", "give geometries of the same family")
            merged = _merge_two(merged, other)
        return merged

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as safetensors, all at once or not at all."""
        path = as_path(path)
        if not self.moments.largest <= LARGEST:
            raise InvalidArgumentError(
                f"this geometry has numbers up to {self.moments.largest:.2g}, a file holds those "
                f"up to {LARGEST:g}; scale the networks or the data that were measured"
            )
        tensors: dict[str, Tensor | Pieces] = {
            **self.moments.tensors(),
            "counts": self.counts,
            "order": self.lift.order,
        }
        metadata = {
            **self.moments.metadata(),
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION if self.matrix_free else 1),
            "groups": str(self.lift.groups),
            "shape": json.dumps(self.shape),
            "provenance": self.provenance.to_json(),
        }
        with replacing(path) as temporary:
            write_tensors(temporary, tensors, metadata)
        return path


@checked
def load_geometry(path: str | os.PathLike[str]) -> Geometry:
    """Read a geometry that `Geometry.save` wrote."""
    with opening(as_path(path), FORMAT, GeometryFileError, FORMAT_VERSION) as file:
        shape = checked_shape(parse_json(file.metadata["shape"]))
        provenance = Provenance.from_json(file.metadata["provenance"])
        if tuple(provenance.family.get("shape", shape)) != shape:
            raise ValueError("its family is of another shape")
        lift = Lift.read(file, shape)
        counts = _read_counts(file)
        kept = file.metadata.get("representation", "dense")
        if kept not in ("dense", "matrix-free"):
            raise ValueError("it is kept in a way that this version does not know")
        moments: Dense | MatrixFree
        if kept == "dense":
            moments = Dense.read(file, counts, lift)
        else:
            moments = MatrixFree.read(file, counts, lift, shape)
    return Geometry(moments, shape, provenance)


def _read_counts(file: TensorFile) -> Tensor:
    """The networks of each batch, (K,); a batch of none is exact, and alone."""
    batches = file.expect("counts", "int64", None).shape[0]
    if not 1 <= batches <= MAX_BATCHES:
        raise ValueError(f"it has {batches:,} batches")
    counts = file["counts"]
    if int(counts.min()) < 0 or int(counts.max()) > MAX_NETWORKS:
        raise ValueError("its numbers of networks are none")
    if batches > 1 and not counts.any():
        raise ValueError("its batches hold no networks")
    return counts


def _both(a: float | None, b: float | None) -> float | None:
    """A sum, if both are known."""
    return None if a is None or b is None else a + b


def _merge_two(a: Geometry, b: Geometry) -> Geometry:
    for name in IDENTITY:
        mine, theirs = getattr(a.provenance, name), getattr(b.provenance, name)
        if mine != theirs:
            raise MergeError(
                f"geometries of different {name} do not add up: {mine} and {theirs}; "
                "merge estimates of one family under one probe"
            )
    types = [one.provenance.dtype or "float32" for one in (a, b)]
    if types[0] != types[1]:
        raise MergeError(
            f"geometries of networks in {types[0]} and in {types[1]} do not add up; estimate both "
            "in the same way (dtype=...)"
        )
    if not same_response(a.provenance.response, b.provenance.response):
        raise MergeError(
            "geometries of different families do not add up: the networks or the probes of the "
            "two give different numbers; merge estimates of one family under one probe"
        )
    if a.exact and b.exact:
        return a
    if not a.lift.same(b.lift):
        raise MergeError(
            f"the geometries are of factors of other forms, {a.lift} and {b.lift}; merge estimates "
            "of one family under one probe"
        )
    if a.matrix_free != b.matrix_free:
        raise MergeError(
            "one of the geometries is kept without a matrix, the other with one; estimate both in "
            "the same way (matrix_free=...)"
        )
    batches = sorted((len(a.counts), len(b.counts)))
    if batches[1] % batches[0] or (a.matrix_free and batches[0] != batches[1]):
        raise MergeError(
            f"the geometries keep {len(a.counts)} and {len(b.counts)} batches of networks, which "
            "do not fit into each other; estimate both in the same way (memory=...)"
        )
    draws = (*a.provenance.draws, *b.provenance.draws)
    for i, (seed, start, stop) in enumerate(draws):
        for other_seed, other_start, other_stop in draws[:i]:
            if seed == other_seed and start < other_stop and other_start < stop:
                raise MergeError(
                    f"both geometries hold networks {max(start, other_start)} to "
                    f"{min(stop, other_stop) - 1} of seed {seed}; merge estimates with other "
                    "seeds, or of other networks (first_network=...)"
                )
    notes = dict.fromkeys((*a.provenance.notes, *b.provenance.notes))
    merged: Dense | MatrixFree
    if isinstance(a.moments, MatrixFree) and isinstance(b.moments, MatrixFree):
        merged = a.moments.merged(b.moments)
        if a.moments.ends or b.moments.ends:
            notes[MERGED_ENDS] = None
    else:
        assert isinstance(a.moments, Dense)
        assert isinstance(b.moments, Dense)
        merged = a.moments.merged(b.moments)
    provenance = replace(
        a.provenance,
        draws=draws,
        notes=tuple(notes),
        seconds=a.provenance.seconds + b.provenance.seconds,
        processor_seconds=_both(a.provenance.processor_seconds, b.provenance.processor_seconds),
        memory=max(a.provenance.memory, b.provenance.memory),
        interrupted=a.provenance.interrupted or b.provenance.interrupted,
    )
    return replace(a, moments=merged, provenance=provenance)
