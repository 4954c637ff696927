"""Images from anywhere, as one tensor in [-1, 1], and how they were understood."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from sads.arguments import as_path, shown
from sads.checked import checked
from sads.data.layouts import arrange, count_images, find_layout, image_shape, parse_layout, spell
from sads.data.ranges import Range, Ranges
from sads.data.readers import Array, Found, Items, Skipped, reader_of
from sads.data.rows import Rows
from sads.data.sources import SMALL, check_room
from sads.errors import (
    DataError,
    InvalidArgumentError,
    SadsError,
    describe_failure,
    printable,
)
from sads.shapes import format_shape

GREY = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601, as Pillow's "L"
BLOCK = 1024  # images of an array that are converted at a time
MAX_CROP = 64  # how many times the size asked for may be resized, then cropped
NUM_NAMED = 3  # of the skipped, in one line
FLOAT_BYTES = 4
COPIES = 2  # of the images in memory while they are joined


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and the statement of how they were read."""

    images: Tensor  # (N, C, H, W) float32 in [-1, 1]; (N, C, L) of lines
    source: str
    skipped: tuple[tuple[str, str], ...] = ()  # (name, reason)
    understood: str = ""  # layout and range
    notes: tuple[str, ...] = ()  # what was done to some of them

    @property
    def num_read(self) -> int:
        return len(self.images)

    def statement(self) -> str:
        """What was read, how it was understood, what was skipped.

        `read 100 images of 3x28x28 from x.npy (N x H x W x C, values 0 to 255)`
        """
        shape = format_shape(self.images.shape[1:])
        what = "images" if self.images.ndim == 4 else "samples"
        text = f"read {self.num_read:,} {what} of {shape} from {printable(self.source)}"
        text += f" ({self.understood})" if self.understood else ""
        parts = [text, *self.notes, *([_name_skipped(self.skipped)] if self.skipped else [])]
        return "; ".join(parts)


@checked
def load_images(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    shape: tuple[int, ...] | None = None,
    limit: int | None = None,
    value_range: Range | None = None,
    layout: str | None = None,
) -> Tensor:
    """Images as (N, channels, height, width) float32 in [-1, 1]; warns if any were skipped.

    Args:
        source: an `.npz` (its array `images`, or the only one), `.npy`, `.parquet` or IDX file
            (also gzipped), a picture (every frame, if it is animated), a folder of pictures
            (searched through, in the order of their paths), `hub:NAME` or `hub:NAME:SPLIT` for a
            data set of the Hugging Face hub, or `digits` for the digits that come with
            scikit-learn. Parquet and the hub need the `datasets` extra. Other sources can be
            registered, see `sads.data.readers`.
        size: resize the shorter side to this and crop the centre; a number, or (height, width).
            Images of different sizes need it.
        channels: 1 for grey, 3 for colour; as the images are if not given.
        shape: (channels, height, width) that the images must then have; (channels, length) for
            lines, from arrays (N, length) or (N, channels, length).
        limit: read no more than so many images.
        value_range: the values that become -1 and 1. If not given, it is the range of 8 or 16
            bits, and for floats 0 to 1 or -1 to 1, whichever holds all of them; what is not clear
            is refused (`sads.data.ranges` has the rules). Given, it is not enforced: (-1, 1) loads
            samples of a model as they are.
        layout: which axis of an array is what, such as NHWC, CHW, HW or NCL; N are the images, C
            the channels, L is the length of lines. If not given, it is found out from the sizes;
            what is not clear is refused (`sads.data.layouts` has the rules).

    >>> load_images("digits", limit=100).shape
    torch.Size([100, 1, 8, 8])
    """
    result = read_images(
        source,
        size=size,
        channels=channels,
        shape=shape,
        limit=limit,
        value_range=value_range,
        layout=layout,
    )
    if result.skipped:
        warnings.warn(result.statement(), stacklevel=2)
    return result.images


@checked
def read_images(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    shape: tuple[int, ...] | None = None,
    limit: int | None = None,
    value_range: Range | None = None,
    layout: str | None = None,
) -> ImageSet:
    """As `load_images`, with the statement of what was read, how, what was skipped and why."""
    as_path(source)
    asked = _Asked.check(source, size, channels, shape, limit, value_range, layout)
    images, skipped = _Images(asked), []
    for name, item in _items(reader_of(source), asked.source):
        name = printable(name)
        if isinstance(item, Skipped):
            skipped.append((name, printable(item.reason)))
        else:
            images.add(name, item if isinstance(item, Found) else Found(item))
        if images.missing <= 0:
            break
    if not images.blocks:
        found = _name_skipped(skipped) if skipped else "it is empty"
        raise DataError(f"no images in {asked.source}: {found}")
    _check_shapes(images.blocks, images.names, shape)
    return images.joined(tuple(skipped))


def _items(read: Callable[[], Items], source: str) -> Items:
    """What a reader yields; what it does wrong, as one of the user's may, is one line."""
    try:
        for pair in read():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DataError(
                    f"the reader of {source} yields {type(pair).__name__}, expected pairs of a "
                    "name and an array"
                )
            name, item = pair
            yield name, item.numpy(force=True) if isinstance(item, Tensor) else item
    except SadsError:
        raise
    except Exception as error:
        raise DataError(f"the reader of {source} failed: {describe_failure(error)}") from error


@dataclass(frozen=True)
class _Asked:
    """What a caller asks for, checked."""

    source: str
    size: tuple[int, int] | None
    channels: int | None
    shape: tuple[int, ...] | None
    limit: int | None
    value_range: Range | None
    layout: str | None

    @classmethod
    def check(
        cls,
        source: str | Path,
        size: Any,
        channels: int | None,
        shape: tuple[int, ...] | None,
        limit: int | None,
        value_range: Range | None,
        layout: str | None,
    ) -> "_Asked":
        size = (size, size) if isinstance(size, int) else size
        if size is not None and (not _are_whole(size) or len(size) != 2 or min(size) < 1):
            raise InvalidArgumentError(f"size is a number or (height, width), got {shown(size)}")
        if channels not in (None, 1, 3):
            raise InvalidArgumentError(f"channels is 1 (grey) or 3 (colour), got {shown(channels)}")
        if limit is not None and (not _are_whole([limit]) or limit < 1):
            raise InvalidArgumentError(f"limit must be at least 1, got {shown(limit)}")
        if shape is not None and (not _are_whole(shape) or not shape or min(shape) < 1):
            raise InvalidArgumentError(
                f"shape is (channels, height, width) or the like, got {shown(shape)}"
            )
        if value_range is not None and not _is_range(value_range):
            raise InvalidArgumentError(
                f"value_range is (low, high) with low < high, both finite, got {shown(value_range)}"
            )
        layout = None if layout is None else parse_layout(layout)
        sizes = None if size is None else (int(size[0]), int(size[1]))
        shape = None if shape is None else tuple(map(int, shape))
        if value_range is not None:
            value_range = float(value_range[0]), float(value_range[1])
        return cls(printable(source), sizes, channels, shape, limit, value_range, layout)

    @property
    def exact_shape(self) -> tuple[int, ...] | None:
        """The shape that images must have as they are, which tells how they are laid out."""
        return self.shape if self.size is None and self.channels is None else None


@dataclass
class _Images:
    """Images while they are gathered, block by block, floats of unknown range as they are."""

    asked: _Asked
    blocks: list[Tensor] = field(default_factory=list)  # (n, C, H, W) each
    names: list[str] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)  # blocks whose range is still unknown
    ranges: Ranges = field(default_factory=Ranges)
    notes: Counter[str] = field(default_factory=Counter)
    layout: str | None = None
    num_read: int = 0
    num_values: int = 0

    def __post_init__(self) -> None:
        self.ranges.given = self.asked.value_range

    @property
    def missing(self) -> float:
        return (self.asked.limit or math.inf) - self.num_read

    def add(self, name: str, found: Found) -> None:
        asked, raw = self.asked, found.array
        if not isinstance(raw, np.ndarray | Rows) or raw.dtype.kind not in "buif":
            raise DataError(f"{name} does not hold numbers: expected images as an array of them")
        if 0 in raw.shape:
            if raw.shape[0] == 0:
                return
            raise DataError(
                f"{name} has images of no pixels, its shape is {raw.shape}: mend or remove it"
            )
        layout = self._find_layout(name, found)
        shape = image_shape(raw.shape, layout) if layout else raw.shape[1:]
        if len(shape) != 3 and (asked.size is not None or asked.channels is not None):
            raise DataError(
                f"{name} has samples of {format_shape(shape)}, which are no images: they "
                "cannot be resized or recoloured"
            )
        number = count_images(raw.shape, layout) if layout else raw.shape[0]
        number = int(min(self.missing, number))
        self._check_room(number, shape)
        self.notes.update(dict.fromkeys(found.notes, number))
        start = 0
        for block in _blocks(raw, layout, number):
            part = name if found.laid_out else f"{name}[{start}:{start + len(block)}]"
            self._add(part, block, found.value_range)
            start += len(block)

    def _find_layout(self, name: str, found: Found) -> str | None:
        """That of an array of a file; None if it is laid out already."""
        asked, array = self.asked, found.array
        if not found.laid_out:
            lines = asked.shape is not None and len(asked.shape) != 3
            layout = asked.layout or (None if lines else found.layout)
            self.layout = find_layout(name, array.shape, layout, asked.exact_shape)
            return self.layout
        if asked.layout is not None:
            raise InvalidArgumentError(
                f"a layout is for arrays in files; that of {asked.source} is known, leave it out"
            )
        if len(array.shape) < 3:
            raise DataError(
                f"{name} has an array of shape {array.shape}, expected (N, channels, height, width)"
            )
        return None

    def _add(self, name: str, block: Array, known: Range | None) -> None:
        with np.errstate(over="ignore"):
            # Numbers of 32 bits and more are not exact in float32.
            wide = block.dtype.kind in "iu" and block.dtype.itemsize > 2
            pixels = torch.from_numpy(block.astype(np.float64 if wide else np.float32))
        if not bool(pixels.isfinite().all()):
            raise DataError(f"{name} has NaN or infinity: mend or remove it")
        used = self.ranges.add(name, block, known)
        low, high = used or (-1, 1)
        scaled = ((2 * pixels - (low + high)) / (high - low)).float()
        if used is None:
            self.undecided.append(len(self.blocks))
        fitted = _fit(_recolour(scaled, self.asked.channels), self.asked.size, name)
        if self.asked.channels is not None and block.shape[1] in (2, 4):
            self.notes["have their last channel, opacity, ignored"] += len(block)
        self.blocks.append(fitted)
        self.names.append(name)
        self.num_read += len(fitted)
        self.num_values += fitted.numel()

    def _check_room(self, number: int, shape: tuple[int, ...]) -> None:
        """Refuse images before they are read; those before them are in memory already."""
        size = self.asked.size
        pixels = math.prod(shape[1:] if size is None else size)
        num_new = number * shape[0] * pixels
        needed = FLOAT_BYTES * (COPIES * num_new + (COPIES - 1) * self.num_values)
        if needed > SMALL:
            check_room(needed, self.asked.source)

    def joined(self, skipped: tuple[tuple[str, str], ...]) -> ImageSet:
        decided = self.ranges.decide(self.asked.source)
        for number in self.undecided:
            if decided["float"] == (0, 1):
                self.blocks[number] = 2 * self.blocks[number] - 1
        layout = [spell(self.layout)] if self.layout else []
        return ImageSet(
            images=torch.cat(self.blocks),
            source=self.asked.source,
            skipped=skipped,
            understood=", ".join([*layout, self.ranges.statement(decided)]),
            notes=tuple(f"{count:,} {note}" for note, count in self.notes.items()),
        )


def _blocks(raw: Array | Rows, layout: str | None, number: int) -> Iterator[Array]:
    """The first images of an array, (n, C, *spatial), some at a time."""
    if isinstance(raw, Rows):
        if raw.by_rows and layout is not None and layout[0] == "N":
            for start in range(0, number, BLOCK):
                yield arrange(raw.read(min(BLOCK, number - start)), layout)
            return
        raw = raw.whole()
    array = raw if layout is None else arrange(raw, layout)
    for start in range(0, number, BLOCK):
        yield array[start : min(start + BLOCK, number)]


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


def _fit(images: Tensor, size: tuple[int, int] | None, name: str) -> Tensor:
    """Resize so that the images just cover `size`, then crop the centre."""
    if size is None or images.shape[2:] == size:
        return images
    height, width = images.shape[2:]
    scale = max(size[0] / height, size[1] / width)
    covering = (max(size[0], round(scale * height)), max(size[1], round(scale * width)))
    if math.prod(covering) > MAX_CROP * math.prod(size):
        raise DataError(
            f"{name} is {height}x{width}, of which hardly anything is left when it is cropped to "
            f"{format_shape(size)}: crop or remove it"
        )
    resized = interpolate(images, covering, mode="bilinear", antialias=True)
    top, left = (covering[0] - size[0]) // 2, (covering[1] - size[1]) // 2
    return resized[:, :, top : top + size[0], left : left + size[1]]


def _check_shapes(images: list[Tensor], names: list[str], shape: tuple[int, ...] | None) -> None:
    first = tuple(images[0].shape[1:])
    for block, name in zip(images, names, strict=True):
        if tuple(block.shape[1:]) != first:
            raise DataError(
                f"images of different shapes: {names[0]} is {format_shape(first)}, {name} is "
                f"{format_shape(block.shape[1:])}; resize them with size= and recolour them with "
                "channels=, or both with --resize"
            )
    if shape is not None and first != tuple(shape):
        raise DataError(
            f"the images are {format_shape(first)}, expected {format_shape(shape)}: resize them "
            "with size=, recolour them with channels= (both: --resize), or change the shape"
        )


def _are_whole(numbers: Any) -> bool:
    try:
        return all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in numbers)
    except TypeError:
        return False


def _is_range(given: Any) -> bool:
    try:
        low, high = given
        return low < high and math.isfinite(high - low)
    except (TypeError, ValueError):
        return False


def _name_skipped(skipped: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{name} ({reason})" for name, reason in skipped[:NUM_NAMED])
    more = len(skipped) - NUM_NAMED
    return f"skipped {len(skipped):,}: {named}" + (f" and {more:,} more" if more > 0 else "")
