"""A geometry kept without a matrix: energies along bases, and the two ends of its spectrum.

For factors too large to hold (3x256x256 has 65,536 positions: 16 matrices would take 550 GB). Kept
are, for every batch of networks, the energies of all vectors of the pixel, DCT and Haar bases, and
of the data that were measured; and the directions at both ends with their certificate. `passes`
makes one. What cannot be answered from these is refused (`NotKeptError`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from sads.errors import NotKeptError
from sads.estimates import Estimate, Estimates, batch_error, batch_mean, positive_errors
from sads.files import tensor_digest
from sads.geometry.dense import LARGEST
from sads.geometry.ends import End
from sads.geometry.lift import Lift
from sads.geometry.matrixfree.energies import KEPT, single_coefficient
from sads.shapes import format_shape
from sads.tensorfile import TensorFile
from sads.transforms import has_transform
from sads.untrusted import parse_json

MAX_KEPT, MAX_MEASURED = 4096, 1 << 24  # directions at the ends, data that were measured, of a file
ORTHONORMAL = 1e-6  # by which directions of a file may fail to be
ENERGIES, MEASURED = "energies ", "measured "  # names of tensors begin so


@dataclass(frozen=True, eq=False, repr=False)
class JudgedEnds:
    """Directions at the ends, found by some networks and judged by others."""

    vectors: Tensor  # (P, m) float64, orthonormal: the avoided ones first, outermost first
    num_avoided: int
    found: Tensor  # (m,) Ritz values
    residuals: Tensor  # (m,)
    forms: Tensor  # (J, m, m), v_i^T A v_j in every batch of judges
    counts: Tensor  # (J,), networks in each; one batch of none if exact

    def inside(self, side: str, count: int) -> slice:
        """Which of the directions are those of an end; a single one of a space is at both."""
        total = len(self.found)
        if side == "avoided" or len(self.vectors) == 1:
            return slice(0, min(self.num_avoided, count))
        return slice(self.num_avoided, min(total, self.num_avoided + count))

    def end(self, lift: Lift, shape: tuple[int, ...], side: str, count: int) -> End:
        avoided = side == "avoided"
        inside = self.inside(side, count)
        vectors = self.vectors[:, inside].T  # (k, P)
        lifted = torch.zeros(len(vectors), lift.groups, lift.size, dtype=torch.float64)
        lifted[:, 0] = vectors
        forms = self.forms[:, inside, inside]
        energies = forms.diagonal(dim1=1, dim2=2)
        return End(
            side=side,
            vectors=lift.join(lifted).reshape(-1, *shape),
            energies=self._estimates(energies),
            bounds=self._bounds(forms, avoided),
            found=self.found[inside],
            residuals=self.residuals[inside],
            copies=lift.groups,
        )

    def _estimates(self, values: Tensor) -> Estimates:
        mean = batch_mean(values, self.counts)
        return Estimates(mean, positive_errors(mean, batch_error(values, self.counts)))

    def _bounds(self, forms: Tensor, avoided: bool) -> Estimates:
        """Bounds of the j-th eigenvalue: the innermost one of `A` on the first j directions.

        It leans inwards (the extremes of a sample do), so that the inequality stays one.
        """
        mean = batch_mean(forms, self.counts)
        columns = []
        for j in range(1, len(mean) + 1):
            vectors = torch.linalg.eigh(mean[:j, :j]).eigenvectors
            v = vectors[:, 0] if avoided else vectors[:, -1]
            columns.append(((forms[:, :j, :j] @ v) * v).sum(dim=1))
        return self._estimates(torch.stack(columns, dim=1))


@dataclass(frozen=True, eq=False, repr=False)
class MatrixFree:
    """What is known of a geometry of which no matrix was made."""

    counts: Tensor  # (K,) int64, networks in each batch; one batch of none if exact
    lift: Lift
    shape: tuple[int, ...]
    channels: tuple[int, ...]  # the kind of every channel
    energies: Mapping[str, Tensor]  # by basis, (K, kinds, pixels)
    ends: JudgedEnds | None  # none if networks were too few, or parts were merged
    measured: Mapping[str, Tensor] = field(default_factory=dict)  # (K, n) by digest of data (n, D)

    @property
    def is_zero(self) -> bool:
        """Did every network return zero?"""
        return not any(energies.any() for energies in self.energies.values())

    @property
    def factors(self) -> Tensor:
        self._refuse("the factors of its batches")

    def factor(self) -> Tensor:
        self._refuse("the factor")

    @property
    def trace(self) -> float:
        pixels = batch_mean(self.energies["canonical"], self.counts)  # (kinds, pixels)
        return float(pixels.sum(dim=1)[list(self.channels)].sum())

    @property
    def largest(self) -> float:
        """The largest of its numbers."""
        return max(float(e.max()) for e in (*self.energies.values(), *self.measured.values()))

    def quadratic(self, rows: Tensor) -> Tensor:
        """`v^T G_k v` of every batch for data that were measured, or for basis vectors, (K, n)."""
        if (known := self.measured.get(tensor_digest(rows))) is not None:
            return known
        energies = []
        for row in rows:
            if not row.any():
                energies.append(torch.zeros(len(self.counts), dtype=torch.float64))
                continue
            found = single_coefficient(row.to("cpu", torch.float64), self.shape)
            if found is None:
                self._refuse(
                    "the energy of any direction, but of vectors of "
                    f"{', '.join(self.energies)}, and of data that were measured with the networks "
                    "(measure=..., --measure)"
                )
            name, channel, number, value = found
            energies.append(value**2 * self.energies[name][:, self.channels[channel], number])
        return torch.stack(energies, dim=1)

    def basis_energies(self, name: str) -> Tensor:
        """`v^T G_k v` of every batch for all vectors of a basis, (K, D)."""
        if name not in self.energies:
            self._refuse(f"the energies of {name}, but those of {', '.join(self.energies)}")
        return self.energies[name][:, list(self.channels)].flatten(1)

    def directions(
        self, shape: tuple[int, ...], tolerance: float, known: bool, first_order: bool
    ) -> NoReturn:
        self._refuse("all its directions, but those at the ends: geometry.end('preferred')")

    def end(self, side: str, count: int) -> End:
        if self.ends is None:
            self._refuse("its ends: they need 16 networks or more, estimated in one piece")
        if not len(self.ends.found[self.ends.inside(side, count)]):
            self._refuse(f"its {side} end")
        return self.ends.end(self.lift, self.shape, side, count)

    def basis_bound(self, side: str) -> Estimate:
        """A bound of the outermost eigenvalue by one vector of a basis, `v^T G v`.

        It is less tight than that of a direction that was found, but its error is known where that
        of the latter is not: few networks decide the energy of what is nearly invisible to most of
        them. Of every basis the vector is the outermost one of those batches that found the ends,
        and is judged by the others, so that the choice does not bias it. The tightest of these
        (three at most) whose error is known is returned.
        """
        ends = self.ends
        if ends is None:
            self._refuse("its ends: they need 16 networks or more, estimated in one piece")
        first = len(self.counts) - len(ends.counts)  # of the judges
        sign = 1.0 if side == "preferred" else -1.0
        bounds = []
        for energies in self.energies.values():
            flat = energies.flatten(1)
            found = sign * batch_mean(flat[: first or 1], self.counts[: first or 1])
            judged = flat[first:, int(found.argmin())]
            mean = batch_mean(judged, ends.counts)
            error = positive_errors(mean, batch_error(judged, ends.counts))
            bounds.append(Estimate(float(mean), float(error)))
        return min(bounds, key=lambda bound: (not math.isfinite(bound.error), sign * bound))

    def whitened_error(self) -> NoReturn:
        self._refuse("its whitened error, but the error of every energy")

    def merged(self, other: "MatrixFree") -> "MatrixFree":
        """Energies add up. The ends do not: each part has found directions of its own."""
        counts = self.counts + other.counts
        weight = self.counts.double() / counts.clamp(min=1)

        def mean(a: Tensor, b: Tensor) -> Tensor:
            w = weight.reshape(-1, *[1] * (a.ndim - 1))
            return w * a + (1 - w) * b

        return replace(
            self,
            counts=counts,
            energies={n: mean(e, other.energies[n]) for n, e in self.energies.items()},
            ends=None,
            measured={
                n: mean(e, other.measured[n])
                for n, e in self.measured.items()
                if n in other.measured
            },
        )

    def _refuse(self, what: str) -> NoReturn:
        raise NotKeptError(
            f"this geometry of {format_shape(self.shape)} is kept without a matrix of "
            f"{self.lift.size:,} x {self.lift.size:,}: it does not know {what}; see "
            "docs/estimator.md, keep one (--matrix, matrix_free=False), or choose a smaller shape"
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        tensors = {f"{ENERGIES}{name}": e.contiguous() for name, e in self.energies.items()}
        tensors |= {f"{MEASURED}{name}": e.contiguous() for name, e in self.measured.items()}
        if self.ends is not None:
            for name in ("vectors", "found", "residuals", "forms"):
                tensors[name] = getattr(self.ends, name).contiguous()
            tensors["judges"] = self.ends.counts
        return tensors

    def metadata(self) -> Mapping[str, str]:
        ends = {} if self.ends is None else {"avoided": str(self.ends.num_avoided)}
        return {"representation": "matrix-free", **ends}

    @classmethod
    def read(
        cls, file: TensorFile, counts: Tensor, lift: Lift, shape: tuple[int, ...]
    ) -> "MatrixFree":
        """What a file holds; `ValueError` if it says something else."""
        channels, kinds = lift.parts(shape)
        sizes = (len(kinds), lift.dimension // shape[0])
        energies = {}
        for name in KEPT:
            if has_transform(name, shape[1:]):
                energies[name] = _read_positive(file, f"{ENERGIES}{name}", len(counts), *sizes)
        measured = {}
        for name in file:
            if name.startswith(MEASURED):
                count = file.entry(name).shape[-1] if file.entry(name).shape else 0
                if not 1 <= count <= MAX_MEASURED:
                    raise ValueError(f"it measured {count:,} samples")
                measured[name.removeprefix(MEASURED)] = _read_positive(
                    file, name, len(counts), count
                )
        ends = _read_ends(file, lift.size) if "vectors" in file else None
        return cls(counts, lift, shape, channels, energies, ends, measured)


def _read_positive(file: TensorFile, name: str, *sizes: int) -> Tensor:
    file.expect(name, "float64", *sizes)
    numbers = file[name]
    if not (numbers >= 0).all() or not (numbers <= LARGEST).all():
        raise ValueError("its energies are not those of a geometry")
    return numbers


def _read_ends(file: TensorFile, size: int) -> JudgedEnds:
    count = file.expect("vectors", "float64", size, None).shape[1]
    batches = file.expect("judges", "int64", None).shape[0]
    if not 1 <= count <= min(MAX_KEPT, size) or not 1 <= batches <= MAX_KEPT:
        raise ValueError(f"it has {count:,} directions and {batches:,} batches of judges")
    num_avoided: Any = parse_json(file.metadata.get("avoided", ""))
    if type(num_avoided) is not int or not 0 <= num_avoided <= count:
        raise ValueError("it does not say which directions are the avoided ones")
    vectors = file["vectors"]
    gram = vectors.T @ vectors
    if not ((gram - torch.eye(count, dtype=gram.dtype)).abs() <= ORTHONORMAL).all():
        raise ValueError("its directions are not orthonormal")
    file.expect("forms", "float64", batches, count, count)
    forms, judges = file["forms"], file["judges"]
    if not (forms.abs() <= LARGEST).all() or not (forms.diagonal(dim1=1, dim2=2) >= 0).all():
        raise ValueError("its numbers are not those of a geometry")
    if not torch.allclose(forms, forms.mT, rtol=1e-9, atol=1e-12 * float(forms.abs().max())):
        raise ValueError("its forms are not symmetric")
    if int(judges.min()) < 0 or (batches > 1 and not judges.any()):
        raise ValueError("its judges hold no networks")
    return JudgedEnds(
        vectors=vectors,
        num_avoided=num_avoided,
        found=_read_positive(file, "found", count),
        residuals=_read_positive(file, "residuals", count),
        forms=forms,
        counts=judges,
    )
