"""Arrays in npy, npz and IDX files, read without trust in what their headers say.

An array is read only if its header, the size of the file and the memory of the machine agree.
Nothing is unpickled.
"""

import gzip
import io
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from sads.data.rows import Array, Rows, check_size
from sads.data.sources import check_unpacked, open_file
from sads.errors import DataError, printable
from sads.untrusted import size_of

MAX_AXES = 8
MAX_HEADER = 10_000  # bytes, as for NumPy
MAX_NAMED = 5  # arrays of an archive, in one line
IMAGES = (
    "numbers of shape (N, height, width), (N, channels, height, width) or (N, height, width, "
    "channels)"
)
ZIP = (b"PK\3\4", b"PK\5\6")
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def images_of(names: Sequence[str]) -> str | None:
    """Which array of an archive holds the images."""
    return "images" if "images" in names else names[0] if len(names) == 1 else None


def load_array(
    path: Path, choose: Callable[[Sequence[str]], str | None], expected: str = IMAGES
) -> Array | None:
    """The array of an npy file; of an npz file the one that is chosen, or None.

    Args:
        expected: what a line says that refuses an array of anything but numbers.
    """
    with open_array(path, choose, expected) as rows:
        return None if rows is None else rows.whole()


@contextmanager
def open_array(
    path: Path, choose: Callable[[Sequence[str]], str | None], expected: str = IMAGES
) -> Iterator[Rows | None]:
    """As `load_array`, to be read as long as the file is open."""
    with open_file(path) as file:
        start = file.read(4)
        file.seek(0)
        if start not in ZIP:
            yield _open_npy(file, size_of(file), size_of(file), path, expected)
            return
        with zipfile.ZipFile(file) as archive:
            suffix = ".npy"
            members = {
                member.filename.removesuffix(suffix): member
                for member in archive.infolist()
                if member.filename.endswith(suffix)
            }
            name = choose(list(members))
            if name is None:
                yield None
                return
            member = members[name]
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(
                    f"{printable(path)} is compressed in a way that NumPy does not use; save it "
                    "with np.savez_compressed"
                )
            with archive.open(member) as stream:
                packed = min(member.compress_size, size_of(file))
                yield _open_npy(stream, member.file_size, packed, path, expected)


def array_names(path: Path) -> list[str]:
    """The names of the arrays in an npz file."""
    names: list[str] = []

    def note(found: Sequence[str]) -> None:
        names.extend(found)

    load_array(path, note)
    return names


def load_images_array(path: Path) -> Array:
    """The array of an npy file; of an npz file `images`, or its only array."""
    with open_images_array(path) as rows:
        return rows.whole()


@contextmanager
def open_images_array(path: Path) -> Iterator[Rows]:
    """As `load_images_array`, to be read as long as the file is open."""
    with open_array(path, images_of) as rows:
        if rows is not None:
            yield rows
    if rows is None:
        names = [printable(name) for name in array_names(path)]
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        raise DataError(
            f"{printable(path)} has the arrays {', '.join(names[:MAX_NAMED]) or '(none)'}{more}, "
            "expected one named 'images' or a single one: save it with np.savez(path, images=...)"
        )


def load_idx(path: Path) -> Array:
    """The format of MNIST's files: two zero bytes, type, number of axes, sizes, numbers."""
    with open_file(path) as file:
        packed = size_of(file)
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not zipped:
            return _read_idx(file, packed, path)
        with gzip.GzipFile(fileobj=file) as stream:
            return _read_idx(stream, packed, path, zipped=True)


def _read_idx(stream: Any, packed: int, path: Path, zipped: bool = False) -> Array:
    name = printable(path)
    head = stream.read(4) or b""
    num_axes = head[3] if len(head) == 4 else 0
    sizes = stream.read(4 * num_axes) or b""
    known = len(head) == 4 and head[:2] == b"\0\0" and head[2] in IDX_TYPES
    if not known or len(sizes) < 4 * num_axes:
        raise DataError(
            f"cannot tell what {name} is; give an npz, npy, IDX or Parquet file or a folder of "
            "pictures"
        )
    dtype = np.dtype(IDX_TYPES[head[2]])
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    _check_shape(shape, dtype, name, IMAGES)
    expected = math.prod(shape) * dtype.itemsize
    if zipped:
        check_unpacked(expected, packed, name)
    else:
        check_size(expected, packed - 4 - len(sizes), name)
    return Rows(stream, path, shape, dtype).whole()


def _open_npy(stream: IO[bytes], size: int, packed: int, path: Path, expected: str) -> Rows:
    """An array in the npy format, in a stream of `size` bytes that take `packed` on the disk."""
    name = printable(path)
    start = stream.read(len(npy.MAGIC_PREFIX)) or b""
    if start != npy.MAGIC_PREFIX:
        if start[:1] == b"\x80":
            raise _pickled(name)
        raise DataError(f"cannot read {name}: it is not an array as NumPy saves it")
    shape, fortran, dtype = _read_header(stream, name)
    if dtype.hasobject:
        raise _pickled(name)
    _check_shape(shape, dtype, name, expected)
    length = math.prod(shape) * dtype.itemsize
    check_size(length, size - stream.tell(), name)
    check_unpacked(length, packed, name)
    return Rows(stream, path, shape, dtype, fortran)


def _read_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Shape, order and type, of a header whose size is bounded before it is read."""
    version = tuple(stream.read(2) or b"")
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"cannot read {name}: it is of a version of npy that is not known")
    length = stream.read(2 if version == (1, 0) else 4)
    size = int.from_bytes(length, "little")
    if size > MAX_HEADER:
        raise DataError(f"{name} is damaged: it says that its header has {size:,} bytes")
    header = io.BytesIO(length + stream.read(size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        if version == (1, 0):
            return npy.read_array_header_1_0(header)
        return npy.read_array_header_2_0(header)


def _check_shape(shape: tuple[int, ...], dtype: "np.dtype[Any]", name: str, expected: str) -> None:
    if len(shape) > MAX_AXES or min(shape, default=0) < 0 or dtype.kind not in "buif":
        raise DataError(
            f"{name} has an array of shape {shape if len(shape) <= MAX_AXES else '(...)'} and type "
            f"{printable(dtype)}, expected {expected}"
        )


def _pickled(name: str) -> DataError:
    return DataError(
        f"{name} holds pickled objects, which can run code when they are loaded: refused; save "
        "the images as an array of numbers"
    )
