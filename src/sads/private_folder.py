"""The user's private folder: what processes remember of each other's work.

The cache is a folder that only its owner can read or write. What is in it was written by the user,
or by somebody who can do everything as that user anyway; a folder that others own or could have
written to is refused. The folder is opened once and all files are reached through it: what was
checked is what is read.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NotPrivateError(RuntimeError):
    """The folder is not the user's alone, or cannot be; the message says why."""


def cache_folder() -> Path:
    """Where the private folder is; the user's `XDG_CACHE_HOME` counts, if it is absolute."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "sads"
    try:
        return Path.home() / ".cache" / "sads"
    except RuntimeError as error:
        raise NotPrivateError(
            "this user has no home folder: set XDG_CACHE_HOME to a folder of your own"
        ) from error


@contextmanager
def private_folder(folder: Path) -> Iterator[int]:
    """The folder, opened, made if it is not there; refused unless it is the user's alone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise NotPrivateError(f"the cache {folder} is a link, or no folder: remove it") from error
    try:
        _check_owner(folder, os.fstat(opened))
        os.fchmod(opened, 0o700)
        yield opened
    finally:
        os.close(opened)


def read_private(opened: int, folder: Path, name: str) -> bytes:
    """The content of a file in an opened folder, which must be the user's too."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=opened), "rb") as file:
        _check_owner(folder / name, os.fstat(file.fileno()))
        return file.read()


def write_private(opened: int, name: str, content: bytes) -> None:
    """Under a temporary name first: what is there is whole."""
    temporary = f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=opened), "wb") as stream:
            stream.write(content)
        os.replace(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=opened)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """What others own, or may write to, can hold anything, code too."""
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        whose = "belongs to" if status.st_uid != os.geteuid() else "can be written by"
        raise NotPrivateError(
            f"{path} {whose} other users, who could put any code there; "
            "remove it, or set XDG_CACHE_HOME to a folder of your own"
        )
