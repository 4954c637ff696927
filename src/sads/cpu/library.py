"""The C code of our layers: compiled on first use, kept in a private folder, checked, loaded.

The cache is a folder that only its owner can read or write. What is in it was written by the user,
or by somebody who can do everything as that user anyway; a folder that others own or could have
written to is refused. A file's name holds the SHA-256 of its content, so that a damaged one is
noticed before it is loaded and made again. The folder is opened once and all files are reached
through it: what was checked is what is loaded.
"""

import ctypes
import functools
import os
import platform
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sads.files import digest

NAME = "sads-cpu-1"  # raise the number whenever `kernels.c` or `layers.py` give other numbers
SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-funroll-loops", "-march=native", "-std=gnu11", "-shared", "-fPIC")


class NoLibraryError(RuntimeError):
    """The C code cannot be compiled, kept or loaded here; the message says why."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled C code: from the cache, or compiled now."""
    if not hasattr(os, "O_NOFOLLOW"):
        raise NoLibraryError(f"{platform.system()} is not supported")
    try:
        loaded = _from_cache(cache_folder())
    except OSError as error:
        raise NoLibraryError(f"the compiled layers cannot be kept or loaded: {error}") from error
    p, n = ctypes.c_void_p, ctypes.c_int64
    loaded.kernel_points.argtypes = [p, p, n, n, ctypes.c_int]
    loaded.convolve.argtypes = [p, n, p, p, n, p, p, n, n, n, n, n]
    loaded.weight_gradient.argtypes = [p, n, p, n, p, n, n, n, n, n]
    loaded.norm_silu.argtypes = [*[p] * 5, n, n, n, n, ctypes.c_float]
    loaded.norm_silu_gradient.argtypes = [*[p] * 8, n, n, n, n]
    return loaded


def cache_folder() -> Path:
    """Where compiled code is kept; the user's `XDG_CACHE_HOME` counts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sads"


def _from_cache(folder: Path) -> ctypes.CDLL:
    key = digest("\n".join([SOURCE.read_text(), *FLAGS, _processor()]).encode())
    prefix = f"kernels-{key[:16]}-"
    with _private(folder) as opened:
        for name in os.listdir(opened):
            if name.startswith(prefix):
                loaded = _load(opened, folder, name)
                if loaded is not None:
                    return loaded
                os.unlink(name, dir_fd=opened)  # it is damaged
        content = _compile()
        name = f"{prefix}{digest(content)[:32]}.so"
        _write(opened, name, content)
        loaded = _load(opened, folder, name)
    if loaded is None:
        raise NoLibraryError(f"{folder / name} is not what was written to it")
    return loaded


@contextmanager
def _private(folder: Path) -> Iterator[int]:
    """The folder, opened, made if it is not there; refused unless it is the user's alone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise NoLibraryError(f"the cache {folder} is a link, or no folder: remove it") from error
    try:
        _check_owner(folder, os.fstat(opened))
        os.fchmod(opened, 0o700)
        yield opened
    finally:
        os.close(opened)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """What others own, or may write to, can hold any code."""
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        whose = "belongs to" if status.st_uid != os.geteuid() else "can be written by"
        raise NoLibraryError(
            f"{path} {whose} other users, who could put any code there; "
            "remove it, or set XDG_CACHE_HOME to a folder of your own"
        )


def _load(opened: int, folder: Path, name: str) -> ctypes.CDLL | None:
    """A library of the cache; None if its content is not what its name says."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=opened), "rb") as file:
        _check_owner(folder / name, os.fstat(file.fileno()))
        content = file.read()
    if name.removesuffix(".so").rpartition("-")[2] != digest(content)[:32]:
        return None
    # Functions of a CDLL run without the interpreter's lock.
    return ctypes.CDLL(_in_memory(content) or str(folder / name))


def _in_memory(content: bytes) -> str | None:
    """A path of a copy that nobody can change; None where the system has no such thing.

    What was verified is then what is loaded, and a cache that is emptied later takes no page away
    from a process that runs its code (it would die by SIGBUS). The copy stays open to the end: a
    loader knows libraries by their path.
    """
    if not hasattr(os, "memfd_create"):
        return None
    try:
        copy = os.memfd_create("sads-kernels")
    except OSError:
        return None
    with os.fdopen(os.dup(copy), "wb") as file:
        file.write(content)
    return f"/proc/self/fd/{copy}"


def _write(opened: int, name: str, content: bytes) -> None:
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


def _compile() -> bytes:
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise NoLibraryError("there is no C compiler")
    with tempfile.TemporaryDirectory(prefix="sads-") as folder:  # the user's alone
        made = Path(folder) / "kernels.so"
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoLibraryError(f"{compiler}: {(done.stderr.splitlines() or ['failed'])[0]}")
        return made.read_bytes()


def _processor() -> str:
    """What `-march=native` depends on: homes are shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
