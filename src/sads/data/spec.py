"""Data by one line of text, everywhere: on the command line, in Python, in experiments.

    digits, faces/, mnist.npz, hub:NAME        images, as `load_images` takes them
    mnist.npz:7                                one of them, counted from 0
    rank-one:SOURCE:WHICH                      N(0, D v v^T), the paper's rank-one data
    sphere:SOURCE:preferred|avoided            the sphere in three directions of one end

SOURCE is a basis (`dct`), a file (`geometry.safetensors`), or the word `geometry` for the geometry
at hand, which experiments have. WHICH is a number: of the vector of a basis, or of an eigenvector,
from 0 in descending order of eigenvalue, so that 0 is the most avoided direction and -1 the most
preferred one. `48-63/50` is a vector drawn uniformly in the span of eigenvectors 48 to 63, standing
for number 50: what a cluster of directions that cannot be told apart has in place of number 50. So
is a sphere whose three directions are only some of a cluster.
"""

import os
import re
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sads.arguments import check_seed, shown
from sads.checked import checked
from sads.data.bases import BASES, basis
from sads.data.images import read_images
from sads.data.labels import load_labels
from sads.data.synthetic import rank_one, sphere
from sads.errors import DataError, InvalidArgumentError, counted
from sads.geometry.directions import Directions
from sads.geometry.result import Geometry, load_geometry
from sads.seeds import derive_seed
from sads.shapes import format_shape
from sads.table1 import NUM_DATA, SPHERE_DIRECTIONS

OWN_GEOMETRY = "geometry"  # the one at hand, such as that of an experiment
ENDS = ("preferred", "avoided")
NUMBER = re.compile(r"-?[0-9]{1,18}")
SPAN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


@dataclass(frozen=True)
class DataSpec:
    """What data are, taken apart; `str` gives the text again.

    >>> spec = DataSpec.parse("rank-one:dct:17")
    >>> spec.kind, spec.source, spec.which, str(spec)
    ('rank-one', 'dct', '17', 'rank-one:dct:17')
    """

    kind: Literal["images", "rank-one", "sphere"]
    source: str
    which: str = ""  # of the source; of images, the number of one of them

    def __post_init__(self) -> None:
        words = isinstance(self.source, str) and isinstance(self.which, str)
        if self.kind not in ("images", "rank-one", "sphere") or not words or not self.source:
            raise DataError(
                f"data are images, rank-one or sphere of a source, got {shown(self.kind)} of "
                f"{shown(self.source)}"
            )
        if self.kind == "sphere" and self.which not in ENDS:
            raise DataError(
                f"a sphere lies in preferred or avoided directions, not in {self.which!r}"
            )
        if self.kind == "rank-one" and not (NUMBER.fullmatch(self.which) or self.span):
            raise DataError(
                f"{self.which!r} is not the number of a direction; write 0 for the first, -1 for "
                "the last, or 48-63/50 for a vector in the span of several"
            )
        if self.kind == "images" and self.which and not NUMBER.fullmatch(self.which):
            raise DataError(f"{self.which!r} is not the number of an image, counted from 0")

    @classmethod
    def parse(cls, text: str) -> "DataSpec":
        if not text.strip():
            raise DataError("the data have no name; give digits, a file, a folder or hub:NAME")
        kind, separator, rest = text.partition(":")
        if separator and kind in ("rank-one", "sphere"):
            source, _, which = rest.rpartition(":")
            if not source:
                raise DataError(
                    f"{text!r} does not say which direction; write rank-one:GEOMETRY:RANK, "
                    "rank-one:BASIS:INDEX or sphere:GEOMETRY:preferred"
                )
            return cls("rank-one" if kind == "rank-one" else "sphere", source, which)
        source, _, which = text.rpartition(":")
        if source and NUMBER.fullmatch(which) and not os.path.exists(text):
            return cls("images", source, which)
        return cls("images", text)

    @classmethod
    def along(cls, rank: int, directions: Directions) -> "DataSpec":
        """Rank-one data for an eigenvector of the geometry at hand.

        The eigenvector itself if it is an individual direction, else a vector of its cluster, both
        by `Geometry.data_directions`: names of data do not change with what is known of errors.
        """
        cluster = directions.cluster_of(rank)
        which = str(rank) if cluster is None else f"{cluster.start}-{cluster.stop - 1}/{rank}"
        return cls("rank-one", OWN_GEOMETRY, which)

    def __str__(self) -> str:
        prefix = "" if self.kind == "images" else f"{self.kind}:"
        return f"{prefix}{self.source}" + (f":{self.which}" if self.which else "")

    @property
    def span(self) -> tuple[int, int, int] | None:
        """First and last eigenvector of a span, and the one it stands for."""
        found = SPAN.fullmatch(self.which)
        return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples, what they are, and the statement of where they are from."""

    samples: Tensor  # (N, *shape) float32
    spec: DataSpec
    statement: str
    vector: Tensor | None = None  # of N(0, D v v^T), (*shape)
    labels: Tensor | None = None  # (N,), of images whose source has them
    skipped: tuple[tuple[str, str], ...] = field(default=())  # images not read: name and reason

    @property
    def kind(self) -> str:
        return self.spec.kind


@checked
def read_data(
    data: str | DataSpec,
    shape: tuple[int, ...],
    num_samples: int | None = NUM_DATA,
    seed: int = 0,
    *,
    resize: bool = False,
    value_range: tuple[float, float] | None = None,
    layout: str | None = None,
    geometry: Geometry | None = None,
    direction_seed: int = 0,
) -> DataSet:
    """Samples of `shape` from a line of text.

    Args:
        data: see the head of this module.
        num_samples: how many to draw; of images, how many to read at most, all if None.
        seed: of the draw; images are taken in their order.
        resize: resize, crop and recolour images to the shape, which they must have otherwise.
        value_range, layout: of images, as `load_images` takes them.
        geometry: the one at hand, for which `geometry` stands.
        direction_seed: of directions that are drawn in a span. Not `seed`, so that training and
            test data lie along the same.
    """
    spec = DataSpec.parse(data) if isinstance(data, str) else data
    if num_samples is not None and num_samples < 1:
        raise InvalidArgumentError(f"the number of samples must be at least 1, got {num_samples}")
    check_seed(seed)
    if spec.kind == "images":
        return _read_images(spec, shape, num_samples, resize, value_range, layout)
    if value_range is not None or layout is not None or resize:
        raise InvalidArgumentError(
            f"a range of values, a layout and resizing are for images, {str(spec)!r} is drawn: "
            "leave them out"
        )
    count = NUM_DATA if num_samples is None else num_samples
    if spec.kind == "sphere":
        spanned = _geometry(spec, shape, geometry).data_directions()
        return _draw_sphere(spec, spanned, count, seed, direction_seed)
    return _draw_rank_one(spec, shape, count, seed, geometry, direction_seed)


def fresh_seed(seed: int) -> int:
    """A seed for test samples, so that no seed draws the training samples again."""
    check_seed(seed)
    return derive_seed("test", seed)


def _read_images(
    spec: DataSpec,
    shape: tuple[int, ...],
    num_samples: int | None,
    resize: bool,
    value_range: tuple[float, float] | None,
    layout: str | None,
) -> DataSet:
    if resize and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise InvalidArgumentError(
            "images can be resized to shapes such as 1x16x16 or 3x32x32, not to "
            f"{format_shape(shape)}"
        )
    result = read_images(
        spec.source,
        size=(shape[1], shape[2]) if resize else None,
        channels=shape[0] if resize else None,
        shape=shape,
        limit=None if spec.which else num_samples,
        value_range=value_range,
        layout=layout,
    )
    images, statement = result.images, result.statement()
    labels = None if result.skipped else load_labels(spec.source)
    if labels is not None:
        all_read = spec.which or num_samples is None or len(images) < num_samples
        if len(labels) < len(images) or (all_read and len(labels) > len(images)):
            raise DataError(
                f"{result.source} has {len(labels):,} labels for {len(images):,} images, expected "
                "one for each: mend or remove them"
            )
        labels = labels[: len(images)]
    if spec.which:
        index = _place(spec.which, len(images), spec.source, "images")
        images = images[index : index + 1]
        statement = f"image {index} of {result.source} ({result.understood})"
        labels = None if labels is None else labels[index : index + 1]
    return DataSet(images, spec, statement, labels=labels, skipped=result.skipped)


def _draw_rank_one(
    spec: DataSpec,
    shape: tuple[int, ...],
    num_samples: int,
    seed: int,
    geometry: Geometry | None,
    direction_seed: int,
) -> DataSet:
    if spec.source in BASES:
        vectors = basis(spec.source, shape)
        index = _place(spec.which, vectors.dimension, f"the {spec.source} basis")
        vector = vectors.vectors[index]
        name = f"vector {index} of the {spec.source} basis ({vectors.index[index]})"
    else:
        directions = _geometry(spec, shape, geometry).directions()
        if (span := spec.span) is None:
            index = _place(spec.which, len(directions.values), spec.source)
            vector = directions.vectors[index]
            name = f"eigenvector {index} of {spec.source} ({_certificate(directions, index)})"
        else:
            start, last, index = span
            if not start <= index <= last < len(directions.values):
                raise DataError(
                    f"{spec.which!r} is not a span of eigenvectors 0 to "
                    f"{len(directions.values) - 1} that holds number {index}"
                )
            vector = _draw_in_span(directions.vectors[start : last + 1], 1, direction_seed)[0]
            name = f"a vector in the span of eigenvectors {start} to {last} of {spec.source}"
    statement = f"{counted(num_samples, 'sample')} of N(0, D v v^T), v = {name}, seed {seed}"
    return DataSet(rank_one(vector, num_samples, seed), spec, statement, vector)


def _draw_sphere(
    spec: DataSpec, directions: Directions, num_samples: int, seed: int, direction_seed: int
) -> DataSet:
    statement = (
        f"{counted(num_samples, 'sample')} of the sphere in the {SPHERE_DIRECTIONS} most "
        f"{spec.which} directions of {spec.source}, seed {seed}"
    )
    vectors = sphere_directions(directions, spec.which, direction_seed)
    return DataSet(sphere(vectors, num_samples, seed), spec, statement)


def sphere_directions(directions: Directions, end: str, seed: int = 0) -> Tensor:
    """Three directions of one end whose span holds the paper's sphere, (3, *shape).

    Where they are only some of a cluster of directions that cannot be told apart, they are drawn
    in its span: which of its vectors come first there is an accident of rounding.
    """
    size = len(directions.values)
    first = 0 if end == "avoided" else size - SPHERE_DIRECTIONS
    last = first + SPHERE_DIRECTIONS
    chosen: list[Tensor] = []
    rank = first
    while rank < last:
        cluster = directions.cluster_of(rank)
        start, stop = (rank, rank + 1) if cluster is None else (cluster.start, cluster.stop)
        members = directions.vectors[start:stop]
        count = min(stop, last) - rank
        whole = count == len(members)
        chosen.append(members if whole else _draw_in_span(members, count, seed))
        rank = stop
    return torch.cat(chosen)


def _draw_in_span(span: Tensor, count: int, seed: int) -> Tensor:
    """Orthonormal vectors (count, *shape), uniform in the span of (k, *shape) orthonormal ones.

    They are projected Gaussian vectors, so that they do not depend on the basis of the span.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn: list[Tensor] = []
    rows = span.flatten(1)  # (k, D)
    for _ in range(count):
        ambient = torch.randn(span.shape[1:], generator=generator, dtype=torch.float64)
        vector = (rows @ ambient.flatten()) @ rows
        for other in drawn:
            vector = vector - (other @ vector) * other
        drawn.append(vector / vector.norm())
    return torch.stack(drawn).reshape(count, *span.shape[1:])


def _geometry(spec: DataSpec, shape: tuple[int, ...], geometry: Geometry | None) -> Geometry:
    if spec.source != OWN_GEOMETRY or (geometry is None and os.path.exists(spec.source)):
        geometry = load_geometry(spec.source)
    elif geometry is None:
        raise DataError(
            f"{str(spec)!r} needs a geometry at hand; give a file such as geometry.safetensors"
        )
    if geometry.shape != shape:
        raise DataError(
            f"{spec.source} is a geometry of {format_shape(geometry.shape)}, the samples are to "
            f"be {format_shape(shape)}: give a geometry of that shape or change the shape"
        )
    return geometry


def _place(text: str, count: int, what: str, things: str = "directions") -> int:
    """A place in a list of `count`, counted from 0, or from the end if negative."""
    number = int(text) if NUMBER.fullmatch(text) else None
    if number is None or not -count <= number < count:
        raise DataError(
            f"{what} has {things} 0 to {count - 1} (or -1 to {-count} from the end), not {text!r}"
        )
    return number % count


def _certificate(directions: Directions, index: int) -> str:
    text = f"eigenvalue {directions.eigenvalue(index)}"
    cluster = directions.cluster_of(index)
    if cluster is None:
        return f"{text}, angle ± {float(directions.angle_errors[index]):.2g} rad"
    return f"{text}, one of a cluster of {len(cluster)}"
