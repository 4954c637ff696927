"""Data by one line of text, as the commands take it: images, or samples of a known law.

    digits, faces/, mnist.npz, hub:NAME     images, as `load_images` takes them
    rank-one:geometry.safetensors:RANK      N(0, D v v^T) along an eigenvector of a geometry
    rank-one:BASIS:INDEX                    the same along a vector of a basis, e.g. dct:17
    sphere:geometry.safetensors:preferred   the sphere in the span of three directions of one end

RANK counts eigenvectors from 0 in descending order of eigenvalue: 0 is the most avoided direction
and -1 the most preferred one.
"""

import hashlib
from dataclasses import dataclass

from torch import Tensor

from sads.data.bases import BASES, basis
from sads.data.images import read_images
from sads.data.synthetic import rank_one, sphere
from sads.directions import Directions
from sads.errors import DataError, InvalidArgumentError
from sads.geometry.geometry import Geometry, load_geometry

SPHERE_DIRECTIONS = 3  # Appendix A: the first three and the last three


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples and the statement of where they are from."""

    samples: Tensor  # (N, *shape) float32
    kind: str  # "images", "rank-one" or "sphere"
    statement: str
    vector: Tensor | None = None  # of N(0, D v v^T), (*shape)
    skipped: int = 0  # images that could not be read


def read_data(
    text: str, shape: tuple[int, ...], num_samples: int, seed: int = 0, *, resize: bool = False
) -> DataSet:
    """Samples of `shape` from a line of text.

    Args:
        text: see the module's head.
        num_samples: how many to draw; of images, how many to read at most.
        seed: of the draw; images are taken in their order.
        resize: resize, crop and recolour images to the shape, which they must have otherwise.
    """
    if num_samples < 1:
        raise InvalidArgumentError(f"the number of samples must be at least 1, got {num_samples}")
    _check_seed(seed)
    kind, separator, rest = text.partition(":")
    if kind in ("rank-one", "sphere") and separator:
        source, _, which = rest.rpartition(":")
        if not source:
            raise DataError(
                f"{text!r} does not say which direction; write rank-one:GEOMETRY:RANK, "
                "rank-one:BASIS:INDEX or sphere:GEOMETRY:preferred"
            )
        read = _read_rank_one if kind == "rank-one" else _read_sphere
        return read(source, which, shape, num_samples, seed)
    return _read_images(text, shape, num_samples, resize)


def fresh_seed(seed: int) -> int:
    """A seed for test samples, so that no seed draws the training samples again."""
    _check_seed(seed)
    return int.from_bytes(hashlib.sha256(f"test,{seed}".encode()).digest()[:8], "little")


def _read_rank_one(
    source: str, which: str, shape: tuple[int, ...], num_samples: int, seed: int
) -> DataSet:
    if source in BASES:
        vectors = basis(source, shape)
        index = _place(which, vectors.dimension, f"the {source} basis")
        vector = vectors.vectors[index]
        name = f"vector {index} of the {source} basis ({vectors.index[index]})"
    else:
        geometry, directions = _read_directions(source, shape)
        index = _place(which, geometry.dimension, source)
        vector = directions.vectors[index]
        name = f"eigenvector {index} of {source} ({_certificate(directions, index)})"
    statement = f"{num_samples:,} samples of N(0, D v v^T), v = {name}, seed {seed}"
    return DataSet(rank_one(vector, num_samples, seed), "rank-one", statement, vector)


def _read_sphere(
    source: str, which: str, shape: tuple[int, ...], num_samples: int, seed: int
) -> DataSet:
    if which not in ("preferred", "avoided"):
        raise DataError(f"a sphere lies in preferred or avoided directions, not in {which!r}")
    _, directions = _read_directions(source, shape)
    ends = directions.preferred if which == "preferred" else directions.avoided
    statement = (
        f"{num_samples:,} samples of the sphere in the {SPHERE_DIRECTIONS} most {which} "
        f"directions of {source}, seed {seed}"
    )
    return DataSet(sphere(ends(SPHERE_DIRECTIONS), num_samples, seed), "sphere", statement)


def _read_directions(source: str, shape: tuple[int, ...]) -> tuple[Geometry, Directions]:
    geometry = load_geometry(source)
    if geometry.shape != shape:
        raise DataError(
            f"{source} is a geometry of {_format(geometry.shape)}, the samples are to be "
            f"{_format(shape)}: give a geometry of that shape or change the shape"
        )
    return geometry, geometry.directions()


def _read_images(text: str, shape: tuple[int, ...], num_samples: int, resize: bool) -> DataSet:
    if resize and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise InvalidArgumentError(
            f"images can be resized to shapes such as 1x16x16 or 3x32x32, not to {_format(shape)}"
        )
    result = read_images(
        text,
        size=(shape[1], shape[2]) if resize else None,
        channels=shape[0] if resize else None,
        shape=shape,
        limit=num_samples,
    )
    return DataSet(result.images, "images", result.statement(), skipped=len(result.skipped))


def _place(text: str, count: int, what: str) -> int:
    """A place in a list of `count`, counted from 0, or from the end if negative."""
    number = int(text) if text.lstrip("-").isdigit() else None
    if number is None or not -count <= number < count:
        raise DataError(
            f"{what} has directions 0 to {count - 1} (or -1 to {-count} from the end), not {text!r}"
        )
    return number % count


def _certificate(directions: Directions, index: int) -> str:
    value, error = float(directions.values[index]), float(directions.value_errors[index])
    text = f"eigenvalue {value:.4g} ± {error:.2g}" if error else f"eigenvalue {value:.6g}"
    cluster = directions.cluster_of(index)
    if cluster is None:
        return f"{text}, angle ± {float(directions.angle_errors[index]):.2g} rad"
    return f"{text}, one of a cluster of {len(cluster)}"


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InvalidArgumentError(f"the seed cannot be negative, got {seed}")


def _format(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
