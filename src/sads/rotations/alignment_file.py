"""How data lie in a geometry, with what a page shows of it: spectra, and samples that one can see.

A portrait is made where geometry and data are at hand, and kept in a file that needs neither.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sads.arguments import as_path
from sads.errors import AlignmentFileError
from sads.estimates import Estimate, Estimates
from sads.files import opening, plain, replacing
from sads.from_json import decode, decode_as, infinite_again
from sads.geometry.lift import MAX_DIMENSION
from sads.rotations.alignment import NUM_PARTS, Alignment, DataSpectrum, Pairing
from sads.shapes import checked_shape
from sads.tensorfile import TensorFile, write_tensors
from sads.untrusted import parse_json

FORMAT = "sads-alignment"
NUM_EXAMPLES = 12  # samples that are kept of each rotation
ROTATIONS = ("identity", "min", "max")


@dataclass(frozen=True, eq=False)
class Portrait:
    """Data in a geometry: alignment, spectra, and the same few samples after some rotations."""

    name: str  # of the data
    geometry: str  # what the geometry is called
    shape: tuple[int, ...]
    alignment: Alignment
    spectrum: DataSpectrum
    data_values: Tensor  # (D,) eigenvalues of the data's second moment, descending
    alphas: Mapping[str, Estimate]  # by rotation
    examples: Mapping[str, Tensor]  # by rotation, (n, *shape) float32

    @classmethod
    def of(cls, both: Pairing, name: str, *more: str) -> "Portrait":
        """The portrait of a pairing; `more` are further rotations to show."""
        kinds = dict.fromkeys((*ROTATIONS, *more))
        rotations = {kind: both.rotation(kind) for kind in kinds}
        shape = both.geometry.shape
        few = both.rows[:NUM_EXAMPLES].reshape(-1, *shape)
        return cls(
            name=name,
            geometry=both.geometry.label,
            shape=shape,
            alignment=both.alignment(),
            spectrum=both.spectrum(),
            data_values=both.data_values,
            alphas={kind: rotation.alpha for kind, rotation in rotations.items()},
            examples={kind: r.apply(few).float() for kind, r in rotations.items()},
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as safetensors, all at once or not at all."""
        path = as_path(path)
        spectrum = self.spectrum
        tensors = {
            "values": spectrum.values,
            "energies": spectrum.energies,
            "shares": spectrum.shares.values,
            "share_errors": spectrum.shares.errors,
            "data_values": self.data_values,
            "examples": torch.stack(list(self.examples.values())),
        }
        metadata = {
            "format": FORMAT,
            "name": self.name,
            "geometry": self.geometry,
            "shape": json.dumps(self.shape),
            "alignment": json.dumps(plain(self.alignment)),
            "alphas": json.dumps(plain(self.alphas)),
        }
        with replacing(path) as temporary:
            write_tensors(temporary, tensors, metadata)
        return path


def load_portrait(path: str | os.PathLike[str]) -> Portrait:
    """Read what `Portrait.save` wrote."""
    with opening(as_path(path), FORMAT, AlignmentFileError) as file:
        shape = checked_shape(parse_json(file.metadata["shape"]))
        size = math.prod(shape)
        if size > MAX_DIMENSION:
            raise ValueError(f"its data have {size:,} coordinates")
        alphas = decode_as(dict[str, Estimate], parse_json(file.metadata["alphas"]), "alphas")
        count = file.entry("examples").shape[1] if len(file.entry("examples").shape) > 1 else 0
        if not 0 < count <= NUM_EXAMPLES or not alphas:
            raise ValueError("it has no samples to show")
        file.expect("examples", "float32", len(alphas), count, *shape)
        examples = dict(zip(alphas, file["examples"], strict=True))
        return Portrait(
            name=file.metadata["name"],
            geometry=file.metadata["geometry"],
            shape=shape,
            alignment=infinite_again(decode(Alignment, parse_json(file.metadata["alignment"]))),
            spectrum=DataSpectrum(
                values=_numbers(file, "values", size),
                energies=_numbers(file, "energies", size),
                shares=Estimates(
                    _numbers(file, "shares", NUM_PARTS), _numbers(file, "share_errors", NUM_PARTS)
                ),
            ),
            data_values=_numbers(file, "data_values", size),
            alphas=infinite_again(alphas),
            examples=examples,
        )


def _numbers(file: TensorFile, name: str, count: int) -> Tensor:
    file.expect(name, "float64", count)
    return file[name]
