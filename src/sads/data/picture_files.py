"""Encoded pictures (PNG, JPEG, GIF, TIFF and the like), decoded by Pillow.

Grey pictures have one channel, others three. Eight and sixteen bits and floats keep their values;
palettes, CMYK and other spaces of colour become RGB. Opacity is ignored, and this is noted if a
picture is not opaque. Of animated pictures and of the pages of a TIFF file every frame is an image.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from sads.data.rows import Array, Rows
from sads.data.sources import check_unpacked
from sads.untrusted import first_line, open_regular, size_of

PICTURES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
)
# What a file may be, whatever its name says; PostScript is not among them, which Pillow would run.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
WITH_FRAMES = ("GIF", "TIFF", "WEBP", "PNG")  # others have previews and depths, not images
MAX_FRAMES = 10_000
SUBFILE_TYPE, SAMPLE_FORMAT = 254, 339  # tags of TIFF
FRAME = "are frames of animated pictures"
OPACITY = "have their opacity ignored"


@dataclass(frozen=True)
class Skipped:
    """Why one image of a source was left out."""

    reason: str


@dataclass(frozen=True, eq=False)
class Found:
    """Images of a source, with what is known of them."""

    array: Array | Rows
    laid_out: bool = True  # (n, channels, *spatial); if not, the axes must be found out
    layout: str | None = None  # that of the format, if they are not laid out and nobody says
    value_range: tuple[float, float] | None = None  # of black and white, if the reader knows
    notes: tuple[str, ...] = ()  # what was done, as what follows "3 ...": "have no colour"

    @property
    def pixels(self) -> Array:
        """The array of a picture, which is in memory."""
        assert isinstance(self.array, np.ndarray)
        return self.array


Items = Iterator[tuple[str, Array | Found | Skipped]]


def read_picture(name: str, source: Path | bytes) -> Items:
    """The images of an encoded picture, `(1, 1 or 3, height, width)` each, turned as EXIF says."""
    frames: list[Found] = []
    reason = None
    try:
        with _opened(source) as (file, packed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata
            with Image.open(file, formats=FORMATS) as picture:
                for frame in _frames(picture, packed):
                    frames.append(frame)
    except Exception as error:  # Pillow raises whatever a damaged file leads to
        # It repeats the file in its message; the caller names it.
        reason = re.sub(r" (file )?('.*'|<_io.*>)$", "", first_line(error))
    alone = len(frames) == 1 and reason is None
    for number, frame in enumerate(_alike(frames)):
        yield (name, frame) if alone else (f"{name}[{number}]", _noted(frame, FRAME))
    if reason is not None:
        yield f"{name}[{len(frames)}]" if frames else name, Skipped(reason)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[tuple[BinaryIO, int]]:
    """A file and its size."""
    file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    with file:
        yield file, len(source) if isinstance(source, bytes) else size_of(file)


def _frames(picture: Image.Image, packed: int) -> Iterator[Found]:
    unpacked = 0
    for number in range(MAX_FRAMES + 1):
        if number:
            try:
                picture.seek(number)
            except EOFError:
                return
        if number == MAX_FRAMES:
            raise ValueError(f"it has more than {MAX_FRAMES:,} frames")
        if getattr(picture, "tag_v2", {}).get(SUBFILE_TYPE, 0) & 1 and number:
            continue  # a smaller copy of another page
        unpacked += picture.width * picture.height * (1 if picture.mode in ("1", "L", "P") else 4)
        check_unpacked(unpacked, packed, "it")
        yield _pixels(picture)
        if picture.format not in WITH_FRAMES:
            return


def _pixels(picture: Image.Image) -> Found:
    upright = ImageOps.exif_transpose(picture)
    if upright.mode == "F":
        return Found(np.array(upright)[None, None])
    if upright.mode.startswith("I"):  # "L" would clip it
        return Found(_whole_numbers(upright, picture)[None, None])
    notes: tuple[str, ...] = ()
    if upright.has_transparency_data and _min_opacity(upright) < 255:
        notes = (OPACITY,)
    if upright.mode in ("1", "L", "LA", "La"):
        return Found(np.asarray(_plain_grey(upright))[None, None], notes=notes)
    if upright.mode not in ("P", "RGB", "RGBA"):
        notes = (*notes, f"are converted from {upright.mode}")
    return Found(np.moveaxis(np.asarray(upright.convert("RGB")), -1, 0)[None], notes=notes)


def _plain_grey(picture: Image.Image) -> Image.Image:
    return (picture.convert("LA") if picture.mode == "La" else picture).convert("L")


def _min_opacity(picture: Image.Image) -> int:
    return int(np.asarray(picture.convert("RGBA"))[..., 3].min())


def _whole_numbers(upright: Image.Image, picture: Image.Image) -> Array:
    """Values of 16 bits, or of 32 as a TIFF file can have them."""
    values = np.array(upright)
    if upright.mode != "I" or picture.format in ("PNG", "PPM"):
        return values.astype(np.uint16)
    unsigned = getattr(picture, "tag_v2", {}).get(SAMPLE_FORMAT, (1,)) in (1, (1,))
    return values.view(np.uint32) if unsigned else values


def _alike(frames: list[Found]) -> list[Found]:
    """Frames of one picture with as many channels each; Pillow gives the first of a GIF as grey."""
    if len({frame.pixels.shape[1] for frame in frames}) < 2:
        return frames
    if all((frame.pixels == frame.pixels[:, :1]).all() for frame in frames):
        return [_with(frame, frame.pixels[:, :1]) for frame in frames]
    repeats = {1: 3, 3: 1}
    return [_with(f, f.pixels.repeat(repeats[f.pixels.shape[1]], axis=1)) for f in frames]


def _with(frame: Found, array: Array) -> Found:
    return Found(array, notes=frame.notes)


def _noted(frame: Found, note: str) -> Found:
    return Found(frame.pixels, notes=(note, *frame.notes))
