"""Readers of image files, one a format.

Each reader yields `(name, images)` until its source is read, in order: the images a NumPy array
`(number, channels, height, width)`, one at a time where they are separate files, or a `Skipped`
with the reason if one cannot be read. A source that cannot be read at all is a `DataError`.
No reader unpickles anything.
"""

import gzip
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sads.errors import DataError

PICTURES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
)
BLOCK = 1024  # images of an array that are converted at a time
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class Skipped:
    """Why one image of a source was left out."""

    reason: str


Array = NDArray[Any]
Items = Iterator[tuple[str, Array | Skipped]]


def read_numpy(path: Path) -> Items:
    """The array of an npy file; of an npz file `images`, or its only array."""
    with reading_file(path), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            images = loaded
        elif "images" in loaded.files or len(loaded.files) == 1:
            images = loaded["images" if "images" in loaded.files else loaded.files[0]]
        else:
            raise DataError(
                f"{path} has the arrays {', '.join(loaded.files) or '(none)'}, expected one named "
                "'images' or a single one: save it with np.savez(path, images=...)"
            )
    yield from _blocks(path, images)


def read_idx(path: Path) -> Items:
    """The format of MNIST's files: two zero bytes, type, number of axes, sizes, numbers."""
    with reading_file(path):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    num_axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * num_axes
    if content[:2] != b"\0\0" or content[2] not in IDX_TYPES or len(content) < start:
        raise DataError(
            f"cannot tell what {path} is; give an npz, npy, IDX or Parquet file or a folder of "
            "pictures"
        )
    shape = np.frombuffer(content, ">u4", num_axes, offset=4)
    dtype = np.dtype(IDX_TYPES[content[2]])
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(content) - start != expected:
        raise DataError(
            f"{path} is damaged: its header says {expected:,} bytes of numbers, "
            f"the file has {len(content) - start:,}"
        )
    numbers = np.frombuffer(content, dtype, offset=start).astype(dtype.newbyteorder("="))
    yield from _blocks(path, numbers.reshape(shape))


def read_digits() -> Items:
    """Scikit-learn's bundled 1,797 handwritten digits of 8x8 pixels, values 0 to 16."""
    from sklearn.datasets import load_digits  # slow to import

    yield "digits", load_digits().images[:, None] / 16


def read_folder(folder: Path) -> Items:
    """Every picture below a folder, in the order of their paths; other files are skipped."""

    def refuse(error: OSError) -> None:
        raise DataError(
            f"cannot read the folder {error.filename or folder}: {error.strerror}"
        ) from error

    paths = [Path(top, f) for top, _, files in os.walk(folder, onerror=refuse) for f in files]
    for path in sorted(p for p in paths if not p.name.startswith(".")):
        name = str(path.relative_to(folder))
        if path.suffix.lower() in PICTURES:
            yield name, _decode(path)
        else:
            yield name, Skipped("not a picture")


def read_parquet(path: Path) -> Items:
    """The images of a Parquet file as the hub writes them: encoded files in a column of bytes."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise _missing("Parquet files") from error
    with reading_file(path, ArrowException):
        table = parquet.ParquetFile(path)
        column = _bytes_column(table.schema_arrow)
        if column is None:
            raise DataError(
                f"{path} has no column of encoded images, only "
                f"{', '.join(table.schema_arrow.names)}; expected bytes or {{bytes, path}}"
            )
        number = 0
        for batch in table.iter_batches(batch_size=256, columns=[column]):
            for cell in batch.column(column).to_pylist():
                content = cell["bytes"] if isinstance(cell, dict) else cell
                name = f"{path.name}[{number}]"
                yield name, Skipped("empty") if not content else _decode(io.BytesIO(content))
                number += 1


def _bytes_column(schema: Any) -> str | None:
    from pyarrow import types

    for field in schema:
        kind = field.type
        if types.is_struct(kind):
            inner = kind.get_field_index("bytes")
            kind = kind.field(inner).type if inner >= 0 else kind
        if types.is_binary(kind) or types.is_large_binary(kind):
            return str(field.name)
    return None


def read_hub(text: str) -> Items:
    """`NAME` or `NAME:SPLIT` of a data set on the Hugging Face hub; the split is train if not."""
    try:
        import datasets
    except ImportError as error:
        raise _missing("data sets of the hub") from error
    name, _, split = text.partition(":")
    try:
        rows = datasets.load_dataset(name, split=split or "train", streaming=True)
        columns = rows.features or {}
        column = next(k for k, v in columns.items() if isinstance(v, datasets.Image))
        rows = rows.select_columns(column).cast_column(column, datasets.Image(decode=False))
        for number, row in enumerate(rows):
            cell = row[column]
            source = io.BytesIO(cell["bytes"]) if cell["bytes"] else Path(cell["path"])
            yield f"{name}[{number}]", _decode(source)
    except StopIteration as error:
        raise DataError(
            f"the data set {name!r} has no column of images, only {', '.join(columns)}"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"cannot read {text!r} from the hub: {_first_line(error)}; check the name and the "
            "split, or download its Parquet file and give that"
        ) from error


def reader_of(source: str | Path) -> Callable[[], Items]:
    """The reader of a source, by its name."""
    text = str(source)
    if text == "digits":
        return read_digits
    if text.startswith("hub:"):
        return lambda: read_hub(text.removeprefix("hub:"))
    path = Path(source)
    if path.is_dir():
        return lambda: read_folder(path)
    if path.suffix.lower() in PICTURES:
        return lambda: iter([(path.name, _decode(path))])
    readers = {".npz": read_numpy, ".npy": read_numpy, ".parquet": read_parquet}
    read = readers.get(path.suffix.lower(), read_idx)
    return lambda: read(path)


def _blocks(path: Path, images: Array) -> Items:
    if images.ndim not in (3, 4) or images.dtype.kind not in "buif":
        raise DataError(
            f"{path} has an array of shape {images.shape} and type {images.dtype}, expected "
            "numbers of shape (N, height, width), (N, channels, height, width) or "
            "(N, height, width, channels)"
        )
    channels = (1, 3, 4)
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[-1] in channels and images.shape[1] not in channels:
        images = np.moveaxis(images, -1, 1)
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK]
        yield f"{path.name}[{start}:{start + len(block)}]", block


def _decode(source: Path | io.BytesIO) -> Array | Skipped:
    """An encoded picture as `(1, 1 or 3, height, width)`, turned as EXIF says."""
    try:
        with Image.open(source) as picture:
            upright = ImageOps.exif_transpose(picture)
            if upright.mode.startswith("I"):  # 16 bits, which "L" would clip
                return np.asarray(upright).astype(np.uint16)[None, None]
            if upright.mode in ("1", "L", "LA"):
                return np.asarray(upright.convert("L"))[None, None]
            return np.moveaxis(np.asarray(upright.convert("RGB")), -1, 0)[None]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow repeats the file in its message; the caller names it.
        return Skipped(re.sub(r" (file )?('.*'|<_io.*>)$", "", _first_line(error)))


@contextmanager
def reading_file(path: Path, *more: type[Exception]) -> Iterator[None]:
    """Turns what can go wrong in opening a file into one line."""
    errors: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, KeyError)
    errors += (zipfile.BadZipFile, zlib.error, *more)
    try:
        yield
    except errors as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds pickled objects, which can run code when they are loaded: "
                "refused; save the images as an array of numbers"
            ) from error
        raise DataError(f"cannot read {path}: {_first_line(error)}") from error


def _missing(what: str) -> DataError:
    return DataError(f"{what} need the datasets extra: pip install 'sads[datasets]'")


def _first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]
