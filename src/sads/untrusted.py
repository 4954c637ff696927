"""Files of others: opened so that none can hang us, JSON that is small, shallow and unambiguous.

What is read here is somebody else's word. A pipe or a device is not opened, nothing is read that is
larger than what we write ourselves, and nothing is unpickled. What does not hold is a `ValueError`
or an `OSError`, which every reader turns into one line.
"""

import json
import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

from sads.errors import printable

JSON_BYTES = 4 << 20  # of one text; ours have some kilobytes, and a byte may become 30 in memory
JSON_DEPTH = 32  # ours are five deep; what is a thousand deep breaks whoever walks through it
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
# What Python, NumPy, PyTorch, zipfile and gzip raise on damaged files, seen with mutated ones.
DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, SyntaxError),
    *(RuntimeError, MemoryError, ArithmeticError, struct.error, zipfile.BadZipFile, zlib.error),
    TokenError,
)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A file to read, or `OSError`; a pipe or a device is refused, as it might never end."""
    _check_regular(os.stat(path))  # before it is opened: that alone can act on a device
    flags = (os.O_RDONLY, *(getattr(os, f, 0) for f in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")))
    file = os.fdopen(os.open(path, sum(flags)), "rb")
    try:
        _check_regular(os.fstat(file.fileno()))  # it may have been exchanged
    except OSError:
        file.close()
        raise
    return file


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something odd")
        raise OSError(f"it is {kind}, not a file; save what it gives to a file first")


def size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_json(path: Path) -> Any:
    """The content of a JSON file: `OSError` or `ValueError` if it is none."""
    with open_regular(path) as file:
        return parse_json(file.read(JSON_BYTES + 1))


def parse_json(text: str | bytes, limit: int = JSON_BYTES) -> Any:
    """JSON in which every key is there once; `ValueError` if it is too long, too deep or no text.

    >>> parse_json('{"shape": [1, 16, 16]}')
    {'shape': [1, 16, 16]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: its key 'a' is there twice
    """
    if len(text) > limit:
        raise ValueError(f"its JSON is longer than {limit:,} bytes")
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    _check_tree(content)
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"its key {printable(name)[:60]!r} is there twice")
        content[name] = value
    return content


def _check_tree(content: Any) -> None:
    """Every branch is short enough for whoever walks through it, every word can be written."""
    level = [content]
    for _ in range(JSON_DEPTH):
        if not level:
            return
        following: list[Any] = []
        for value in level:
            if isinstance(value, str):
                value.encode("utf-8")  # half a character ("\ud800") is a UnicodeEncodeError
            elif isinstance(value, list):
                following += value
            elif isinstance(value, dict):
                following += value.keys()
                following += value.values()
        level = following
    raise ValueError("its JSON is nested too deeply")


def first_line(error: Exception) -> str:
    """What an error says, in one line that can be printed."""
    text = getattr(error, "strerror", None) or str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    return printable(lines[0])
