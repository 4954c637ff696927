"""Files of others, opened so that none can hang us or fill the memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sads.environment import format_bytes, memory_shortage
from sads.errors import DataError, printable
from sads.untrusted import DAMAGE, first_line, open_regular

SMALL = 32 << 20  # bytes that any file may unpack to
RATIO = 200  # how often its size a larger file may unpack to; MNIST's does 5 times, masks do 50


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A file to read; whatever goes wrong while it is read is a `DataError` of one line."""
    with reading_file(path), open_regular(path) as file:
        yield file


@contextmanager
def reading_file(path: Path, *more: type[Exception]) -> Iterator[None]:
    """Turns what can go wrong in reading a file into one line."""
    try:
        yield
    except (*DAMAGE, *more) as error:
        raise DataError(f"cannot read {printable(path)}: {first_line(error)}") from error


def check_unpacked(unpacked: int, packed: int, what: str) -> None:
    """Refuse what unpacks to more than images do, before it is unpacked.

    A few megabytes of a compressed file can hold gigabytes of zeros (deflate packs them 1,032
    times), which a header declares with all honesty.
    """
    if unpacked > max(SMALL, RATIO * packed):
        raise DataError(
            f"{what} unpacks from {format_bytes(packed)} to {format_bytes(unpacked)}, more than "
            f"{RATIO} times its size, as images do not: it is damaged or a trap; if not, save it "
            "without compression"
        )


def check_room(needed: int, what: str) -> None:
    """Refuse images that do not fit into memory, before they are read."""
    if shortage := memory_shortage(needed):
        raise DataError(
            f"{what} needs {shortage}: read fewer images (limit=) or smaller ones (size=)"
        )
