"""An array of an open file, read some rows at a time, in their order, and checked to its end."""

import math
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sads.data.sources import check_room, reading_file
from sads.errors import DataError, printable

Array = NDArray[Any]
CHUNK = 1 << 20  # bytes that are read at a time


class Rows:
    """The numbers of an array that follow in a stream, whose header was read.

    `by_rows` says whether `read` can give some of them. Those that nobody asks for are not read.
    """

    def __init__(
        self,
        stream: BinaryIO | IO[bytes],
        path: Path,
        shape: tuple[int, ...],
        dtype: "np.dtype[Any]",
        fortran: bool = False,
    ):
        self.shape, self.dtype = shape, dtype
        self.by_rows = not fortran and len(shape) > 0
        self.left = shape[0] if shape else 0  # rows
        self._stream, self._path, self._order = stream, path, "F" if fortran else "C"
        self._size = math.prod(shape) * dtype.itemsize
        self._done = 0  # bytes

    def read(self, count: int) -> Array:
        """The next rows, so many if there are."""
        count = min(count, self.left)
        self.left -= count
        shape = (count, *self.shape[1:])
        return self._numbers(math.prod(shape) * self.dtype.itemsize).reshape(shape)

    def whole(self) -> Array:
        """All of them, if none were read before."""
        self.left = 0
        return self._numbers(self._size).reshape(self.shape, order=self._order)  # type: ignore[call-overload]

    def _numbers(self, size: int) -> Array:
        name = printable(self._path)
        check_room(size, name)
        numbers = np.empty(size, np.uint8)
        with reading_file(self._path):
            read = self._fill(numbers)
            self._done += read
            if read < size:
                check_size(self._size, self._done, name)
            elif not self.left:  # the end of an archive is where its checksum is compared
                check_size(self._size, self._done + len(self._stream.read(1) or b""), name)
        # A byte of a bool may be any number in a damaged file.
        return numbers != 0 if self.dtype.kind == "b" else numbers.view(self.dtype)

    def _fill(self, numbers: Array) -> int:
        done = 0
        while done < len(numbers):
            chunk = self._stream.read(min(CHUNK, len(numbers) - done))
            if not chunk:
                break
            numbers[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        return done


def check_size(expected: int, found: int, name: str) -> None:
    """Refuse a file that has more or fewer numbers than its header says."""
    if found != expected:
        raise DataError(
            f"{name} is damaged: its header says {expected:,} bytes of numbers, the file has "
            + (f"{found:,}" if found < expected else "more")
        )
