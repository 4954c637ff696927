"""What the atlas keeps of a geometry: curves, a few directions, and how it was made.

A geometry of Stable Diffusion takes a gigabyte, what a picture or a table needs of it some
kilobytes. `NAME.json` has the numbers, `NAME.npz` the outermost directions of both ends.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.fft import dctn
from torch import Tensor

from sads.adapters.presets import TRANSFORMER, UNET, Preset
from sads.arguments import as_tensor
from sads.data.arrays import load_array
from sads.environment import return_free_memory
from sads.errors import DataError, printable
from sads.estimates import Estimate
from sads.files import ANYTHING_WRONG, replacing, write_json
from sads.from_json import decode
from sads.geometry.dense import LARGEST
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.profile import Profile, border_profile, frequency_profile
from sads.geometry.result import Geometry
from sads.shapes import checked_shape
from sads.untrusted import first_line, read_json

SHOWN = 4  # directions of each end
POINTS = 256  # of a spectrum
MOST = 1 << 53  # networks, parameters or bytes
ROUNDING = 1e-6  # by which a share may leave 0 to 1
RIM = 1 / 8  # of the side of an image: what counts as its border


@dataclass(frozen=True)
class Curve:
    """Numbers with errors against places between 0 and 1."""

    places: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]


@dataclass(frozen=True)
class Look:
    """What a direction looks like, in two numbers."""

    frequency: float  # mean over its DCT: 0 is constant, 1 the finest checkerboard
    border: float  # share of its squares within an eighth of the side from the border


@dataclass(frozen=True)
class Entry:
    """A geometry of the atlas."""

    name: str
    title: str
    kind: str  # "U-Net" or "transformer"
    model: str  # its class in diffusers
    source: str
    like: str  # in which way it is not quite the published network
    shape: tuple[int, ...]
    parameters: int
    prediction: str
    schedule: Mapping[str, Any]
    networks: int
    exact: bool
    estimator: str
    seconds: float
    memory: int  # bytes of the process at its largest
    trace: float
    largest: Estimate
    smallest: Estimate
    effective_rank: float | None
    whitened_error: float | None
    copies: int  # of every eigenvalue
    spectrum: Curve  # in units of the mean eigenvalue, against the rank
    frequency: Curve
    border: Curve
    avoided: Look
    preferred: Look
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    command: str = ""
    processor_seconds: float | None = None  # of all cores; older entries do not know them

    @property
    def mean(self) -> float:
        """The mean eigenvalue."""
        return self.trace / math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        """Whether there is no matrix: the largest may be larger, the smallest smaller."""
        return self.effective_rank is None


@dataclass(frozen=True, eq=False)
class Directions:
    """The outermost directions of both ends, outermost first, one channel of each."""

    avoided: Tensor  # (k, *spatial) float32
    preferred: Tensor


def describe(
    preset: Preset, geometry: Geometry, parameters: int, command: str
) -> tuple[Entry, Directions]:
    """What the atlas keeps of a geometry."""
    family = geometry.provenance.family
    ends = {side: _end(geometry, side) for side in ("avoided", "preferred")}
    whole = not geometry.matrix_free
    whitened_error = _finite(geometry.whitened_error()) if whole else None
    spectrum = _spectrum(geometry)
    return_free_memory()  # directions take as much as all that follows
    entry = Entry(
        name=preset.name,
        title=preset.title,
        kind=preset.kind,
        model=preset.model,
        source=preset.source,
        like=preset.like,
        shape=geometry.shape,
        parameters=parameters,
        prediction=family["prediction"],
        schedule=family["schedule"],
        networks=geometry.num_networks,
        exact=geometry.exact,
        estimator=geometry.estimator,
        seconds=geometry.provenance.seconds,
        memory=geometry.provenance.memory,
        trace=geometry.trace,
        largest=ends["avoided"][0],
        smallest=ends["preferred"][0],
        effective_rank=geometry.effective_rank if whole else None,
        whitened_error=whitened_error,
        copies=geometry.lift.groups,
        spectrum=spectrum,
        frequency=_curve(frequency_profile(geometry)),
        border=_curve(border_profile(geometry)),
        avoided=_look(ends["avoided"][1][0]),
        preferred=_look(ends["preferred"][1][0]),
        notes=(*geometry.provenance.notes, *_bound_notes(geometry)),
        versions=geometry.provenance.versions,
        command=command,
        processor_seconds=geometry.provenance.processor_seconds,
    )
    return entry, Directions(ends["avoided"][1].float(), ends["preferred"][1].float())


def save(entry: Entry, directions: Directions, folder: Path) -> list[Path]:
    """Write `NAME.json` and `NAME.npz`."""
    arrays = folder / f"{entry.name}.npz"
    with replacing(arrays) as temporary:
        np.savez_compressed(
            temporary, avoided=directions.avoided.numpy(), preferred=directions.preferred.numpy()
        )
    return [write_json(folder / f"{entry.name}.json", entry), arrays]


def load(folder: Path, name: str) -> tuple[Entry, Directions] | None:
    """An entry that was written; None if there is none, an error if it is damaged."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        entry = decode(Entry, read_json(path))
        _check(entry, name)
        arrays = {side: _array(path, side) for side in ("avoided", "preferred")}
        for array in arrays.values():
            if array.ndim != len(entry.shape) or tuple(array.shape[1:]) != entry.shape[1:]:
                raise ValueError("its directions are of another shape")
            if not len(array) or not array.isfinite().all():
                raise ValueError("its directions are none")
    except ANYTHING_WRONG as error:
        raise DataError(
            f"{printable(path)} is not an entry of the atlas ({first_line(error)}); remove it to "
            "compute it again"
        ) from error
    return entry, Directions(**arrays)


def _check(entry: Entry, name: str) -> None:
    """`ValueError` if the numbers of an entry, which a file has, are not those of a geometry."""
    words = (
        *map(str, entry.schedule.values()),
        entry.title,
        entry.model,
        entry.source,
        entry.like,
        entry.prediction,
        entry.estimator,
    )
    if entry.name != name or entry.kind not in (UNET, TRANSFORMER):
        raise ValueError("it is of another network, or of none")
    controls = (unicodedata.category(c) == "Cc" for word in (*words, *entry.notes) for c in word)
    if not entry.title or any(controls):
        raise ValueError("its words cannot be printed")
    size = math.prod(checked_shape(list(entry.shape)))
    counts = (entry.parameters, entry.networks, entry.memory)
    if not all(0 <= count <= MOST for count in counts) or not 1 <= entry.copies <= size:
        raise ValueError("its numbers of networks, parameters or bytes are none")
    known = [entry.trace, float(entry.largest), float(entry.smallest), entry.seconds]
    known += [n for n in (entry.processor_seconds, entry.effective_rank) if n is not None]
    shares = [
        share
        for look in (entry.avoided, entry.preferred)
        for share in (look.frequency, look.border)
    ]
    errors = [entry.largest.error, entry.smallest.error]
    errors += [] if entry.whitened_error is None else [entry.whitened_error]
    for curve in (entry.spectrum, entry.frequency, entry.border):
        if not 0 < len(curve.places) == len(curve.values) == len(curve.errors):
            raise ValueError("one of its curves has lost numbers")
        known += curve.values
        shares += curve.places
        errors += curve.errors
    finite = all(0 <= number <= LARGEST for number in known)
    if not finite or not entry.trace > 0 or not all(map(_is_error, errors)):
        raise ValueError("its numbers are not those of a geometry")
    if not all(-ROUNDING <= share <= 1 + ROUNDING for share in shares):
        raise ValueError("its places and shares are not between 0 and 1")


def _is_error(number: float) -> bool:
    """One of an estimate: what is not known is infinite, or NaN where a file had to say it."""
    return not math.isfinite(number) or 0 <= number <= LARGEST


def _array(path: Path, name: str) -> Tensor:
    return as_tensor(load_array(path.with_suffix(".npz"), lambda _: name), name)


def _end(geometry: Geometry, side: str) -> tuple[Estimate, Tensor]:
    """The outermost eigenvalue, or its bound, and some directions of one end: (k, *spatial)."""
    if isinstance(geometry.moments, MatrixFree):
        end = geometry.end(side, SHOWN)
        vectors = torch.stack([_strongest(v) for v in end.vectors])
        if math.isfinite(end.bounds[0].error):
            return end.bounds[0], vectors
        return geometry.moments.basis_bound(side), vectors
    directions, copies = geometry.directions(), geometry.lift.groups
    count = min(SHOWN, geometry.lift.size)
    ranks = [i * copies for i in range(count)]
    if side == "preferred":
        ranks = [-1 - rank for rank in ranks]
    vectors = torch.stack([_strongest(v) for v in directions.select(ranks)])
    return directions.eigenvalue(ranks[0]), vectors


def _bound_notes(geometry: Geometry) -> list[str]:
    """Which bounds are those of basis vectors, as what was found has no known error."""
    if not isinstance(geometry.moments, MatrixFree):
        return []
    notes = []
    for side, least in (("avoided", "at least"), ("preferred", "at most")):
        found = geometry.end(side, 1).bounds[0]
        if not math.isfinite(found.error):
            known = geometry.moments.basis_bound(side)
            notes.append(
                f"the energy of the most {side} direction that was found, {float(found):.2g}, has "
                f"no known error: that the eigenvalue is {least} {known} is known from a vector of "
                "a basis"
            )
    return notes


def _strongest(vector: Tensor) -> Tensor:
    """The channel of a direction that has most of it, of length 1."""
    channel = vector[vector.flatten(1).norm(dim=1).argmax()]
    return channel / channel.norm()


def _look(image: Tensor) -> Look:
    energy = torch.from_numpy(dctn(image.double().numpy(), norm="ortho")) ** 2
    axes = (torch.arange(n, dtype=torch.float64) / max(1, n - 1) for n in image.shape)
    squares = sum(f**2 for f in torch.meshgrid(*axes, indexing="ij")) / image.ndim
    frequency = float((energy * torch.as_tensor(squares).sqrt()).sum() / energy.sum())
    rim = max(1, round(RIM * min(image.shape)))
    inside = image[tuple(slice(rim, n - rim) for n in image.shape)]
    border = 1 - float(inside.double().square().sum() / image.double().square().sum())
    return Look(frequency, border)


def _spectrum(geometry: Geometry) -> Curve:
    """Eigenvalues of the factor in units of their mean; only the ends of one without a matrix."""
    mean = geometry.trace / geometry.dimension
    if geometry.matrix_free:
        size = geometry.dimension // geometry.lift.groups
        ends = [geometry.end(side, 32).bounds for side in ("avoided", "preferred")]
        places = torch.cat([torch.arange(len(ends[0])), size - 1 - torch.arange(len(ends[1]))])
        values = torch.cat([end.values for end in ends])
        errors = torch.cat([end.errors for end in ends])
    else:
        directions, copies = geometry.directions(), geometry.lift.groups
        values, errors = directions.values[::copies], directions.value_errors[::copies]
        size = len(values)
        places = _ranks(size)
        values, errors = values[places], errors[places]
    relative = (places.double() + 0.5) / size
    order = relative.argsort()
    return Curve(*(_numbers(x[order]) for x in (relative, values / mean, errors / mean)))


def _ranks(size: int) -> Tensor:
    """All of few ranks; of many the outermost ones, and some between them."""
    if size <= POINTS:
        return torch.arange(size)
    middle = torch.linspace(0, size - 1, POINTS // 2).round().long()
    rim = torch.arange(POINTS // 4)
    return torch.cat([rim, middle, size - 1 - rim]).unique()


def _curve(profile: Profile) -> Curve:
    energies = profile.energies
    return Curve(*(_numbers(x) for x in (profile.places, energies.values, energies.errors)))


def _numbers(values: Tensor | Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{float(v):.6g}") for v in values)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
