"""Locks on files, which the system lets go when the process that holds them dies, however it dies.

Whoever holds a lock may remove its file. Who has waited for it then holds a lock on a file that is
nobody's any more, which protects nothing; so this is looked at after every wait. Where there are no
locks (Windows, some network file systems) everybody gets one.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sads.files import check_folder

try:
    import fcntl
except ImportError:  # not on Windows, where nobody warns two processes of each other
    fcntl = None  # type: ignore[assignment]

FOLDER_LOCK = ".sads-lock"


@contextlib.contextmanager
def lock(path: Path, *, wait: bool) -> Iterator[TextIO | None]:
    """The open file of a lock, which is ours in the block; None if another process has it."""
    while True:
        try:
            file = path.open("a", encoding="ascii")
        except FileNotFoundError:  # its folder was removed by its owner
            if wait:
                raise
            yield None
            return
        with file:
            taken = _take(file, wait) and _is_there(path, file)
            if taken or not wait:
                yield file if taken else None
                return


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to the results of a folder; nothing of it stays behind."""
    check_folder(folder)
    with wait_for(folder / FOLDER_LOCK):
        yield


@contextlib.contextmanager
def wait_for(path: Path) -> Iterator[None]:
    """Wait until no other process has a lock; its file does not stay behind."""
    with lock(path, wait=True):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _take(file: TextIO, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
