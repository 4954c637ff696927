"""A rotation of data: the orthogonal matrix `W = U M V^T`, applied, undone, saved and read.

`V` holds the eigenvectors of the data's second moment and `U` those of the geometry. `M`, which
says which of the one goes to which of the other, is named and explained in `kinds`.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sads.arguments import as_path, check_type
from sads.checked import checked
from sads.errors import InvalidArgumentError, RotationFileError
from sads.estimates import Estimate
from sads.files import opening, plain, replacing
from sads.from_json import decode_as, decode_known
from sads.geometry.lift import Lift
from sads.rotations.kinds import Kind, Middle
from sads.samples import as_samples, check_floating
from sads.shapes import checked_shape
from sads.tensorfile import TensorFile, write_tensors
from sads.untrusted import parse_json

FORMAT = "sads-rotation"
FORMAT_VERSION = 1
CHUNK_BYTES = 64 << 20  # of data in float64 at a time


@dataclass(frozen=True)
class DataProvenance:
    """The data that a rotation was found on."""

    num_samples: int = 0
    sha256: str = ""
    statement: str = ""  # where they are from, if somebody said so


@dataclass(frozen=True)
class RotationProvenance:
    """How a rotation was found."""

    geometry: Mapping[str, Any] = field(default_factory=dict)  # what its provenance says
    data: DataProvenance = DataProvenance()
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Rotation:
    """An orthogonal matrix `W` on data of a shape, with the `alpha` that the rotated data reach.

    `alpha` is that of the very samples that the rotation was found on, and its error does not
    count that other samples, to which `W` was not fitted, reach less extreme ones.

    Kept as `V` (D, D), the name of `M`, and the eigenvectors of the geometry's factor. Where
    eigenvalues repeat, or the data's second moment has a null space, `W` is one of many with the
    same `alpha`.
    """

    kind: str
    shape: tuple[int, ...]
    alpha: Estimate
    provenance: RotationProvenance
    _axes: Tensor  # V, (D, D), columns; empty stands for the identity
    _middle: Middle
    _basis: Tensor  # (P, P), columns; empty stands for U = identity
    _lift: Lift

    @checked
    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`z = W x` for `x` (N, *shape), of the dtype and shape of `x`.

        Works in chunks, in float32, or in float64 if `x` is. `out=x` rotates in place, so that
        there is never a second copy of the data.
        """
        return self._map(x, out, self._forward)

    @checked
    def undo(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        """`x = W^T z`: the inverse of `apply`."""
        return self._map(z, out, self._backward)

    def matrix(self) -> Tensor:
        """`W`, (D, D) float64."""
        return self._forward(torch.eye(self._lift.dimension, dtype=torch.float64)).T.contiguous()

    def with_source(self, statement: str, command: str) -> "Rotation":
        """This rotation with a word on where its data are from, and by which command."""
        data = replace(self.provenance.data, statement=statement)
        return replace(self, provenance=replace(self.provenance, data=data, command=command))

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as safetensors, all at once or not at all."""
        path = as_path(path)
        tensors = {"basis": self._basis, "axes": self._axes, "order": self._lift.order}
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "kind": self.kind,
            "shape": json.dumps(self.shape),
            "groups": str(self._lift.groups),
            "alpha": json.dumps([self.alpha.value, self.alpha.error]),
            "provenance": json.dumps(plain(self.provenance)),
        }
        with replacing(path) as temporary:
            write_tensors(temporary, tensors, metadata)
        return path

    def _map(self, x: Tensor, out: Tensor | None, rotate: Callable[[Tensor], Tensor]) -> Tensor:
        x = as_samples(x, "the data", self.shape, flat=True)
        check_floating(x, "the data")
        rows = x.reshape(len(x), self._lift.dimension)
        if out is not None:
            check_type(out, Tensor, "out", "leave it out, or give x itself")
        result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
        fits = result.shape == x.shape and result.is_contiguous() and result.is_floating_point()
        if not fits:
            raise InvalidArgumentError(
                f"out has shape {tuple(result.shape)} and type {result.dtype}, expected a "
                f"contiguous floating-point tensor of {tuple(x.shape)}: leave it out, or give x "
                "itself"
            )
        rotated = result.detach().view(rows.shape)
        start = 0
        with torch.inference_mode(result.is_inference()):  # which only then can be written to
            for chunk in chunks(rows, working_type(rows)):
                rotated[start : start + len(chunk)] = rotate(chunk).to(result)
                start += len(chunk)
        return result

    def _forward(self, rows: Tensor) -> Tensor:
        """(n, D): coordinates along `V`, mixed, along `U`."""
        axes, basis = self._factors(rows)
        y = self._middle.forward(rows @ axes if len(axes) else rows)
        if not len(basis):
            return y
        z = y.reshape(-1, self._lift.size, self._lift.groups).mT.contiguous()  # (n, groups, P)
        return self._lift.join(z @ basis.T)

    def _backward(self, rows: Tensor) -> Tensor:
        axes, basis = self._factors(rows)
        y = (self._lift.split(rows) @ basis).mT.flatten(1) if len(basis) else rows
        y = self._middle.backward(y)
        return y @ axes.T if len(axes) else y

    def _factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._single if rows.dtype == torch.float32 else (self._axes, self._basis)

    @cached_property
    def _single(self) -> tuple[Tensor, Tensor]:
        return self._axes.float(), self._basis.float()


@checked
def load_rotation(path: str | os.PathLike[str]) -> Rotation:
    """Read a rotation that `Rotation.save` wrote."""
    with opening(as_path(path), FORMAT, RotationFileError, FORMAT_VERSION) as file:
        metadata = file.metadata
        shape = checked_shape(parse_json(metadata["shape"]))
        kind = Kind.parse(metadata["kind"])
        alpha = decode_as(tuple[float, float], parse_json(metadata["alpha"]), "alpha")
        provenance = decode_known(RotationProvenance, parse_json(metadata["provenance"]))
        lift = Lift.read(file, shape)
        return Rotation(
            kind=str(kind),
            shape=shape,
            alpha=Estimate(*alpha),
            provenance=provenance,
            _axes=_read_axes(file, "axes", 0 if kind.name == "identity" else lift.dimension),
            _middle=Middle.of(kind, lift.dimension),
            _basis=_read_axes(file, "basis", lift.size if kind.paired else 0),
            _lift=lift,
        )


def _read_axes(file: TensorFile, name: str, size: int) -> Tensor:
    """An orthogonal matrix of a file, (size, size); an empty one stands for the identity."""
    if size == 0 and math.prod(file.entry(name).shape) == 0:
        return torch.empty(0, 0, dtype=torch.float64)
    file.expect(name, "float64", size, size)
    axes = file[name]
    # `Q^T Q v = v` and `Q Q^T v = v` for a few vectors: the products of all pairs take minutes.
    v = torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not all(torch.allclose(q.T @ (q @ v), v, rtol=0, atol=1e-6) for q in (axes, axes.T)):
        raise ValueError(f"its {name} are not orthogonal")
    return axes


def working_type(rows: Tensor) -> torch.dtype:
    """The type of what is computed with data: float32, or float64 if they are."""
    return torch.promote_types(rows.dtype, torch.float32)


def chunks(rows: Tensor, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """Rows in float64 (or another type) in main memory, a chunk at a time."""
    size = max(1, CHUNK_BYTES // (8 * rows.shape[1]))
    for chunk in rows.split(size):
        yield chunk.to("cpu", dtype)
