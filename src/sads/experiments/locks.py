"""Locks on files, which the system lets go when the process that holds them dies, however it dies.

Whoever holds a lock may remove its file. Who has waited for it then holds a lock on a file that is
nobody's any more, which protects nothing; so this is looked at after every wait. Where there are no
locks (Windows, some network file systems) everybody gets one.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sads.errors import OutputError, printable
from sads.files import check_folder

try:
    import fcntl
except ImportError:  # not on Windows, where nobody warns two processes of each other
    fcntl = None  # type: ignore[assignment]

FOLDER_LOCK = ".sads-lock"
MOST_SECONDS = 600.0  # that somebody writes pictures and records to a folder
POLL_SECONDS = 0.05


@contextlib.contextmanager
def lock(path: Path) -> Iterator[TextIO | None]:
    """The open file of a lock, which is ours in the block; None if another process has it."""
    try:
        file = path.open("a", encoding="ascii")
    except FileNotFoundError:  # its folder was removed by its owner
        yield None
        return
    with file:
        yield file if _take(file) and _is_there(path, file) else None


@contextlib.contextmanager
def wait_for(path: Path, seconds: float = math.inf) -> Iterator[None]:
    """Wait until no other process has a lock, so long at most; its file does not stay behind."""
    until = time.monotonic() + seconds
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(path) as mine:
            if mine is not None:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() > until:
            raise OutputError(
                f"another process has written to {printable(path.parent)} for {seconds:g} seconds; "
                "run this again when it has ended: nothing is computed twice"
            )
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to the results of a folder."""
    check_folder(folder)
    path = folder / FOLDER_LOCK
    if os.path.lexists(path) and not path.is_file():
        raise OutputError(f"{printable(path)} is not a file of ours; move it away")
    with wait_for(path, MOST_SECONDS):
        yield


def _take(file: TextIO) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_there(path: Path, file: TextIO) -> bool:
    """Whether a file that is open is still the one of this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
