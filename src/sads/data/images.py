"""Images from anywhere, as one tensor in [-1, 1], and what was read and skipped."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from sads.data.readers import Array, Skipped, reader_of
from sads.errors import DataError, InvalidArgumentError

GREY = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601, as Pillow's "L"
RANGES = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535)}
NUM_NAMED = 3  # of the skipped, in one line


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and the statement of how they were read."""

    images: Tensor  # (N, C, H, W) float32 in [-1, 1]
    source: str
    skipped: tuple[tuple[str, str], ...]  # (name, reason)

    @property
    def num_read(self) -> int:
        return len(self.images)

    def statement(self) -> str:
        """`read 100 images of 1x28x28 from faces; skipped 1: b.png (cannot identify ...)`."""
        shape = _format(tuple(self.images.shape[1:]))
        text = f"read {self.num_read:,} images of {shape} from {self.source}"
        return f"{text}; {_name_skipped(self.skipped)}" if self.skipped else text


def load_images(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    shape: tuple[int, ...] | None = None,
    limit: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> Tensor:
    """Images as (N, channels, height, width) float32 in [-1, 1]; warns if any were skipped.

    Args:
        source: an `.npz` (its array `images`, or the only one), `.npy`, `.parquet` or IDX file
            (also gzipped), a folder of pictures (searched through, in the order of their paths),
            `hub:NAME` or `hub:NAME:SPLIT` for a data set of the Hugging Face hub, or `digits` for
            the digits that come with scikit-learn. Parquet and the hub need the `datasets` extra.
        size: resize the shorter side to this and crop the centre; a number, or (height, width).
            Images of different sizes need it.
        channels: 1 for grey, 3 for colour; as the images are if not given.
        shape: (channels, height, width) that the images must then have.
        limit: read no more than so many images.
        value_range: the values that become -1 and 1. If not given, it is the range of 8 or 16
            bits, 0 and 1 for floats without negative values, -1 and 1 for those with. Given, it
            is not enforced: (-1, 1) loads samples of a model as they are.

    >>> load_images("digits", limit=100).shape
    torch.Size([100, 1, 8, 8])
    """
    result = read_images(
        source, size=size, channels=channels, shape=shape, limit=limit, value_range=value_range
    )
    if result.skipped:
        warnings.warn(result.statement(), stacklevel=2)
    return result.images


def read_images(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    shape: tuple[int, ...] | None = None,
    limit: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> ImageSet:
    """As `load_images`, with the statement of what was read, what was skipped and why."""
    size = (size, size) if isinstance(size, int) else size
    _check(size, channels, limit, value_range)
    images: list[Tensor] = []  # blocks of (n, C, H, W)
    names: list[str] = []
    skipped: list[tuple[str, str]] = []
    floats, missing = False, limit or math.inf
    for name, block in reader_of(source)():
        if isinstance(block, Skipped):
            skipped.append((name, block.reason))
            continue
        block = block[: int(min(missing, len(block)))]
        images.append(_fit(_recolour(_scale(name, block, value_range), channels), size))
        names.append(name)
        floats = block.dtype.kind == "f"
        missing -= len(block)
        if missing <= 0:
            break
    if not images:
        found = _name_skipped(skipped) if skipped else "it is empty"
        raise DataError(f"no images in {source}: {found}")
    _check_shapes(images, names, shape)
    joined = torch.cat(images)
    if floats and value_range is None:
        joined = _scale_floats(joined, source)
    return ImageSet(joined, str(source), tuple(skipped))


def _scale(name: str, images: Array, value_range: tuple[float, float] | None) -> Tensor:
    """(n, C, H, W) float32 in [-1, 1]; floats of unknown range as they are."""
    value_range = value_range or RANGES.get(images.dtype.name)
    if value_range is None and images.dtype.kind != "f":
        raise DataError(
            f"{name} has values of type {images.dtype}, whose range is not known: give it as "
            "value_range, for instance (0, 255)"
        )
    pixels = torch.from_numpy(images.astype(np.float32))
    if not bool(pixels.isfinite().all()):
        raise DataError(f"{name} has NaN or infinity: mend or remove it")
    low, high = value_range or (-1, 1)
    return (2 * pixels - (low + high)) / (high - low)


def _scale_floats(images: Tensor, source: str | Path) -> Tensor:
    low, high = float(images.min()), float(images.max())
    if low < -1 or high > 1:
        raise DataError(
            f"{source} has floats from {low:.4g} to {high:.4g}, expected 0 to 1 or -1 to 1: give "
            "the values of black and white as value_range, for instance (0, 255)"
        )
    return images if low < 0 else 2 * images - 1


def _recolour(images: Tensor, channels: int | None) -> Tensor:
    given = images.shape[1]
    if channels is None or channels == given:
        return images
    if given in (2, 4):  # the last one is opacity
        return _recolour(images[:, :-1], channels)
    if (given, channels) == (3, 1):
        return (GREY[:, None, None] * images).sum(dim=1, keepdim=True)
    if (given, channels) == (1, 3):
        return images.expand(-1, 3, -1, -1)
    raise DataError(f"cannot turn images of {given} channels into {channels}")


def _fit(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Resize so that the images just cover `size`, then crop the centre."""
    if size is None or images.shape[2:] == size:
        return images
    height, width = images.shape[2:]
    scale = max(size[0] / height, size[1] / width)
    covering = (max(size[0], round(scale * height)), max(size[1], round(scale * width)))
    resized = interpolate(images, covering, mode="bilinear", antialias=True)
    top, left = (covering[0] - size[0]) // 2, (covering[1] - size[1]) // 2
    return resized[:, :, top : top + size[0], left : left + size[1]]


def _check_shapes(images: list[Tensor], names: list[str], shape: tuple[int, ...] | None) -> None:
    first = tuple(images[0].shape[1:])
    for block, name in zip(images, names, strict=True):
        if tuple(block.shape[1:]) != first:
            raise DataError(
                f"images of different shapes: {names[0]} is {_format(first)}, {name} is "
                f"{_format(tuple(block.shape[1:]))}; resize them with size= and recolour them with "
                "channels=, or both with --resize"
            )
    if shape is not None and first != tuple(shape):
        raise DataError(
            f"the images are {_format(first)}, expected {_format(tuple(shape))}: resize them with "
            "size=, recolour them with channels= (both: --resize), or change the shape"
        )


def _check(
    size: tuple[int, int] | None,
    channels: int | None,
    limit: int | None,
    value_range: tuple[float, float] | None,
) -> None:
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise InvalidArgumentError(f"size is a number or (height, width), got {size}")
    if channels not in (None, 1, 3):
        raise InvalidArgumentError(f"channels is 1 (grey) or 3 (colour), got {channels}")
    if limit is not None and limit < 1:
        raise InvalidArgumentError(f"limit must be at least 1, got {limit}")
    if value_range is not None and not value_range[0] < value_range[1]:
        raise InvalidArgumentError(f"value_range is (low, high) with low < high, got {value_range}")


def _name_skipped(skipped: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{name} ({reason})" for name, reason in skipped[:NUM_NAMED])
    more = len(skipped) - NUM_NAMED
    return f"skipped {len(skipped):,}: {named}" + (f" and {more:,} more" if more > 0 else "")


def _format(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
