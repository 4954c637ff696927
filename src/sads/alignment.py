"""How well data is aligned with a geometry, and the rotations that make it more or less so.

    alpha = E[ (W x)^T G (W x) ] = tr(W^T G W C),   C = E[x x^T],   W orthogonal     (Equation 6)

Theorem 2. With `G = U diag(lambda) U^T` and `C = V diag(s) V^T`, both in descending order, `alpha`
is a sum of `lambda_i s_j` with doubly stochastic weights, so that permutations are extreme:

    maximum  sum_i lambda_i s_i        at  W = U V^T
    minimum  sum_i lambda_i s_{D+1-i}  at  W = U R V^T,  R the reversal of order.

`G = Q (I (x) A) Q^T` is used as such: its eigenvectors are copies of those of the small factor
`A`, and no D x D matrix is made of it. Data are read in chunks, moments summed in float64.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sads.directions import EQUAL
from sads.errors import InvalidArgumentError, RotationFileError, UndefinedGeometryError
from sads.files import replacing
from sads.geometry.geometry import Geometry
from sads.geometry.structure import Lift

KINDS = ("min", "max", "identity")
FORMAT = "sads-rotation"
FORMAT_VERSION = 1
CHUNK_BYTES = 64 << 20  # of data in float64 at a time


@dataclass(frozen=True)
class Alignment:
    """`alpha` of data with a geometry, and where it stands between its extremes.

    Errors are standard errors. Two independent sources add up in them: the data are a sample
    (taken as independent: duplicates count as if they were new), and the geometry is an estimate.
    They are first-order; the extremes of a sample also lean outwards, as its eigenvalues spread.
    With a single sample the data's part is unknown and the error infinite.
    """

    alpha: float
    error: float
    data_error: float
    geometry_error: float
    minimum: float  # over all rotations of the data
    minimum_error: float
    maximum: float
    maximum_error: float
    share: float  # (alpha - minimum) / (maximum - minimum); NaN where these are equal
    share_error: float
    num_samples: int


def alignment(geometry: Geometry, x: Tensor) -> Alignment:
    """`alpha = E[x^T G x]` of data `x` (N, *shape), its extremes over rotations, its share.

    Data whose second moment has a rank below D, a constant pixel, or copies of one image are
    no special case. Where `G` or `C` is a multiple of the identity (or the data are all zero),
    minimum and maximum coincide and the share is NaN.
    """
    rows = as_rows(geometry, x)
    pairing = _pair(geometry, rows)
    energies = _energies(rows, pairing.factor, geometry.lift)
    data = torch.cat([energies[:, None], pairing.extremes_per_sample(rows)], dim=1)  # (N, 3)
    batches = pairing.per_batch(geometry)  # (K, 3)
    alpha, minimum, maximum = data.mean(dim=0).tolist()
    width = maximum - minimum
    if width > EQUAL * maximum:
        share = (alpha - minimum) / width
        slope = torch.tensor([[1.0, share - 1, -share]], dtype=torch.float64).T / width  # (3, 1)
    else:
        share, slope = math.nan, torch.full((3, 1), math.nan, dtype=torch.float64)
    data, batches = (torch.cat([z, z @ slope], dim=1) for z in (data, batches))  # 4 columns
    from_data, from_batches = _data_errors(data), batch_errors(batches, geometry)
    errors = torch.hypot(from_data, from_batches).tolist()
    return Alignment(
        alpha, errors[0], float(from_data[0]), float(from_batches[0]),
        minimum, errors[1], maximum, errors[2], share, errors[3], len(rows),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Rotation:
    """An orthogonal matrix `W` on data of a shape, with the `alpha` that the rotated data reach.

    `W = U V^T` ("max") or `U R V^T` ("min"), kept as `V` (D, D) and the eigenvectors of the
    geometry's factor. Where eigenvalues repeat, or the data's second moment has a null space,
    `W` is one of many with the same `alpha`.
    """

    kind: str
    shape: tuple[int, ...]
    alpha: float
    alpha_error: float
    provenance: Mapping[str, Any]
    _basis: Tensor  # (P, P), columns; empty for the identity
    _axes: Tensor  # (D, D), columns; empty for the identity
    _lift: Lift

    def apply(self, x: Tensor) -> Tensor:
        """`z = W x` for `x` (N, *shape), of the dtype and shape of `x`."""
        return self._map(x, self._forward)

    def undo(self, z: Tensor) -> Tensor:
        """`x = W^T z`: the inverse of `apply`."""
        return self._map(z, self._backward)

    def matrix(self) -> Tensor:
        """`W`, (D, D) float64."""
        return self._forward(torch.eye(self._lift.dimension, dtype=torch.float64)).T.contiguous()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as safetensors, all at once or not at all."""
        path = Path(path)
        tensors = {"basis": self._basis, "axes": self._axes, "order": self._lift.order}
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "kind": self.kind,
            "shape": json.dumps(self.shape),
            "groups": str(self._lift.groups),
            "alpha": json.dumps([self.alpha, self.alpha_error]),
            "provenance": json.dumps(self.provenance),
        }
        with replacing(path) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, metadata)
        return path

    def _map(self, x: Tensor, rotate: Callable[[Tensor], Tensor]) -> Tensor:
        rows = _flatten(x, self.shape, self._lift.dimension)
        if self.kind == "identity":
            return x.clone()
        result = torch.empty_like(rows)
        start = 0
        for chunk in _chunks(rows):
            result[start : start + len(chunk)] = rotate(chunk).to(result.dtype)
            start += len(chunk)
        return result.reshape(x.shape)

    def _forward(self, rows: Tensor) -> Tensor:
        """(n, D) float64: coordinates along `V`, reversed for the minimum, along `U`."""
        if self.kind == "identity":
            return rows
        y = rows @ self._axes
        y = y.flip(-1) if self.kind == "min" else y
        z = y.reshape(-1, self._lift.size, self._lift.groups).mT  # (n, groups, P)
        return self._lift.join(z @ self._basis.T)

    def _backward(self, rows: Tensor) -> Tensor:
        if self.kind == "identity":
            return rows
        y = (self._lift.split(rows) @ self._basis).mT.flatten(1)
        y = y.flip(-1) if self.kind == "min" else y
        return y @ self._axes.T


def rotation(geometry: Geometry, x: Tensor, kind: str) -> Rotation:
    """The rotation of data `x` (N, *shape) that makes `alpha` least ("min") or largest ("max").

    `"identity"` leaves data alone; it is there so that all three can be treated alike.

    Theorem 2 for the second moment of these samples; `alpha` is what they reach.
    """
    if kind not in KINDS:
        raise InvalidArgumentError(f"unknown rotation {kind!r}; choose one of {', '.join(KINDS)}")
    rows = as_rows(geometry, x)
    if kind == "identity":
        energies = _energies(rows, geometry.factor(), geometry.lift)[:, None]  # (N, 1)
        split = _split_moment(rows, geometry.lift)
        batches = torch.einsum("kij,ij->k", geometry.factors, split)[:, None]
        basis = axes = torch.empty(0, 0, dtype=torch.float64)
    else:
        pairing = _pair(geometry, rows)
        column = 0 if kind == "min" else 1
        energies = pairing.extremes_per_sample(rows)[:, [column]]
        batches = pairing.per_batch(geometry)[:, [1 + column]]
        basis, axes = pairing.basis.contiguous(), pairing.axes.contiguous()
    error = torch.hypot(_data_errors(energies), batch_errors(batches, geometry))
    provenance = {
        "geometry": dict(geometry.provenance),
        "data": {"num_samples": len(rows), "sha256": _digest(rows)},
        "versions": {"sads": version("sads"), "torch": torch.__version__},
    }
    alpha = float(energies.mean())
    return Rotation(
        kind, geometry.shape, alpha, float(error), provenance, basis, axes, geometry.lift
    )


def load_rotation(path: str | os.PathLike[str]) -> Rotation:
    """Read a rotation that `Rotation.save` wrote."""
    path = Path(path)
    if not path.is_file():
        raise RotationFileError(f"there is no file {path}; give a rotation written by sads")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise RotationFileError(f"{path} is not a rotation written by sads")
            if int(metadata["format_version"]) > FORMAT_VERSION:
                raise RotationFileError(
                    f"{path} was written by a newer sads (format {metadata['format_version']}, "
                    f"this one reads {FORMAT_VERSION}): upgrade sads"
                )
            basis, axes, order = (file.get_tensor(k) for k in ("basis", "axes", "order"))
        lift = Lift(int(metadata["groups"]), len(order) // int(metadata["groups"]), order)
        alpha, alpha_error = json.loads(metadata["alpha"])
        shape = tuple(json.loads(metadata["shape"]))
        kind = metadata["kind"]
        sizes = (0, 0) if kind == "identity" else (lift.size, lift.dimension)
        if kind not in KINDS or math.prod(shape) != len(order) or (len(basis), len(axes)) != sizes:
            raise ValueError("its parts do not fit together")
        provenance = json.loads(metadata["provenance"])
    except RotationFileError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise RotationFileError(
            f"{path} cannot be read as a rotation ({error}): it is damaged or another program's"
        ) from error
    return Rotation(kind, shape, alpha, alpha_error, provenance, basis, axes, lift)


def as_rows(geometry: Geometry, x: Tensor) -> Tensor:
    """Data or directions (N, *shape) or (N, D) as (N, D), checked against a geometry."""
    check_defined(geometry)
    rows = _flatten(x, geometry.shape, geometry.dimension)
    if not all(chunk.isfinite().all() for chunk in _chunks(rows)):
        raise InvalidArgumentError("the data hold NaN or infinity; remove or mend those samples")
    return rows


def check_defined(geometry: Geometry) -> None:
    """Refuse a geometry that says nothing about directions."""
    factor = geometry.factor()
    if not factor.isfinite().all() or not float(factor.diagonal().sum()) > 0:
        raise UndefinedGeometryError(
            "the geometry is 0 or not finite, so every direction is as good as any other; "
            "estimate it again, with zero_readout='default' if the output layer starts at zero"
        )


def eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (descending, at least 0) and eigenvectors (columns) of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0).clamp(min=0), vectors.flip(1)


@dataclass(frozen=True, eq=False)
class _Pairing:
    """The eigenvectors of a geometry and of the second moment of data, rank by rank."""

    geometry_values: Tensor  # (P,) descending, of the factor
    basis: Tensor  # (P, P)
    data_values: Tensor  # (D,) descending
    axes: Tensor  # (D, D)
    factor: Tensor  # (P, P)
    split_moment: Tensor  # (P, P), E[sum over groups of z z^T]
    lift: Lift

    def extremes_per_sample(self, rows: Tensor) -> Tensor:
        """Terms whose means are the minimum and the maximum of alpha, (N, 2).

        An eigenvalue of `C` moves by `v_i^T dC v_i`, so sample `x` adds
        `sum_i lambda_i (v_i . x)^2`, with the eigenvalues of `G` in the paired order.
        """
        values = self.geometry_values.repeat_interleave(self.lift.groups)
        paired = torch.stack([values.flip(0), values], dim=1)  # (D, 2)
        return torch.cat([(chunk @ self.axes).square() @ paired for chunk in _chunks(rows)])

    def per_batch(self, geometry: Geometry) -> Tensor:
        """Alpha, minimum and maximum to first order in the geometry, for each batch, (K, 3)."""
        weights = [self.data_values.flip(0), self.data_values]
        sums = [w.reshape(-1, self.lift.groups).sum(dim=1) for w in weights]  # each (P,)
        targets = [self.split_moment, *((self.basis * s) @ self.basis.T for s in sums)]
        return torch.stack(
            [torch.stack([(f * t).sum() for t in targets]) for f in geometry.factors]
        )


def _pair(geometry: Geometry, rows: Tensor) -> _Pairing:
    factor = geometry.factor()
    values, basis = eigenbasis(factor)
    data_values, axes = _principal_axes(rows)
    split = _split_moment(rows, geometry.lift)
    return _Pairing(values, basis, data_values, axes, factor, split, geometry.lift)


def _principal_axes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (D,) and eigenvectors (D, D) of `E[x x^T]`, descending.

    From the second moment, or, for fewer samples than coordinates, from the samples themselves:
    `X^T = Q R`, and the singular vectors of the small `R` complete `Q` to all of the space.
    """
    num_samples, dimension = rows.shape
    if num_samples >= dimension:
        moment = torch.zeros(dimension, dimension, dtype=torch.float64)
        for chunk in _chunks(rows):
            moment.addmm_(chunk.T, chunk)
        return eigenbasis(moment / num_samples)
    q, r = torch.linalg.qr(rows.double().T, mode="complete")  # (D, D), (D, N)
    left, singular, _ = torch.linalg.svd(r[:num_samples])
    values = torch.zeros(dimension, dtype=torch.float64)
    values[:num_samples] = singular**2 / num_samples
    q[:, :num_samples] = q[:, :num_samples] @ left
    return values, q


def _split_moment(rows: Tensor, lift: Lift) -> Tensor:
    """`E[sum over groups of z_g z_g^T]`, (P, P): alpha is its inner product with the factor."""
    moment = torch.zeros(lift.size, lift.size, dtype=torch.float64)
    for chunk in _chunks(rows):
        z = lift.split(chunk).flatten(0, 1)
        moment.addmm_(z.T, z)
    return moment / len(rows)


def _energies(rows: Tensor, factor: Tensor, lift: Lift) -> Tensor:
    """`x^T G x` of every row, (N,)."""
    parts = []
    for chunk in _chunks(rows):
        z = lift.split(chunk)  # (n, groups, P)
        parts.append(((z @ factor) * z).sum(dim=(1, 2)))
    return torch.cat(parts)


def _data_errors(samples: Tensor) -> Tensor:
    """Standard errors of the columns' means, (columns,)."""
    if len(samples) < 2:
        return torch.full((samples.shape[1],), math.inf, dtype=torch.float64)
    return samples.std(dim=0) / math.sqrt(len(samples))


def batch_errors(batches: Tensor, geometry: Geometry) -> Tensor:
    """Standard errors from the spread of the geometry's batches (K, columns), (columns,)."""
    if geometry.exact:
        return torch.zeros(batches.shape[1], dtype=torch.float64)
    used = geometry.counts > 0
    if int(used.sum()) < 2:
        return torch.full((batches.shape[1],), math.inf, dtype=torch.float64)
    weights = (geometry.counts.double() / geometry.num_networks)[used][:, None]
    deviation = batches[used] - (weights * batches[used]).sum(dim=0)
    return (weights**2 / (1 - weights) * deviation**2).sum(dim=0).sqrt()


def _flatten(x: Tensor, shape: tuple[int, ...], dimension: int) -> Tensor:
    if x.ndim < 2 or len(x) == 0 or x[0].numel() != dimension:
        raise InvalidArgumentError(
            f"data have shape {tuple(x.shape)}, the geometry is of {'x'.join(map(str, shape))}: "
            f"give samples of {dimension} numbers, (N, {', '.join(map(str, shape))})"
        )
    if not x.is_floating_point():
        raise InvalidArgumentError(
            f"data are of type {x.dtype}, expected floating point: scale images to [-1, 1]"
        )
    return x.reshape(len(x), dimension)


def _chunks(rows: Tensor) -> Iterator[Tensor]:
    """Rows in float64, a chunk at a time."""
    size = max(1, CHUNK_BYTES // (8 * rows.shape[1]))
    for chunk in rows.split(size):
        yield chunk.double()


def _digest(rows: Tensor) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(rows):
        digest.update(chunk.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
