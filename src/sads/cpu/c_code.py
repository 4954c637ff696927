"""The C code of our layers and of random weights: compiled at first use, checked, loaded.

It is kept in the private folder. A file's name holds the SHA-256 of its content, so that a damaged
one is noticed before it is loaded and made again. What was checked is what is loaded.
"""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from sads.files import digest
from sads.private_folder import (
    NotPrivateError,
    cache_folder,
    private_folder,
    read_private,
    write_private,
)

NAME = "sads-cpu-1"  # raise the number whenever `kernels.c` or `layers.py` give other numbers
SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "random.c"))
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
    except NotPrivateError as error:
        raise NoLibraryError(str(error)) from error
    except OSError as error:
        raise NoLibraryError(f"the compiled layers cannot be kept or loaded: {error}") from error
    p, n = ctypes.c_void_p, ctypes.c_int64
    loaded.kernel_points.argtypes = [p, p, n, n, ctypes.c_int]
    loaded.convolve.argtypes = [p, n, p, p, n, p, p, n, n, n, n, n]
    loaded.weight_gradient.argtypes = [p, n, p, n, p, n, n, n, n, n]
    loaded.norm_silu.argtypes = [*[p] * 5, n, n, n, n, ctypes.c_float]
    loaded.norm_silu_gradient.argtypes = [*[p] * 8, n, n, n, n]
    loaded.survey.argtypes = [p, n, p]
    loaded.draw_uniform.argtypes = [p, n, n, ctypes.c_float, p]
    loaded.draw_normal.argtypes = [p, n, p]
    loaded.prepare_normal()
    return loaded


def _from_cache(folder: Path) -> ctypes.CDLL:
    prefix = f"kernels-{_key()[:16]}-"
    with private_folder(folder) as opened:
        for name in os.listdir(opened):
            if name.startswith(prefix):
                loaded = _load(opened, folder, name)
                if loaded is not None:
                    return loaded
                os.unlink(name, dir_fd=opened)  # it is damaged
        content = _compile()
        name = f"{prefix}{digest(content)[:32]}.so"
        write_private(opened, name, content)
        loaded = _load(opened, folder, name)
    if loaded is None:
        raise NoLibraryError(f"{folder / name} is not what was written to it")
    return loaded


def _key() -> str:
    """A digest of everything that the compiled code depends on."""
    return digest("\n".join([*(s.read_text() for s in SOURCES), *FLAGS, _processor()]).encode())


def _load(opened: int, folder: Path, name: str) -> ctypes.CDLL | None:
    """A library of the cache; None if its content is not what its name says."""
    content = read_private(opened, folder, name)
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


def _compile() -> bytes:
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise NoLibraryError("there is no C compiler")
    with tempfile.TemporaryDirectory(prefix="sads-") as folder:  # the user's alone
        made = Path(folder) / "kernels.so"
        command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(made), "-lm"]
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
