"""What computes: the device, and the versions of what a result was made with."""

import ctypes
import os
import platform
import re
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from sads.errors import InvalidArgumentError, NotEnoughMemoryError, printable

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in which networks may be evaluated
LARGEST = 1 << 46  # bytes that any machine may have, where nothing is known about this one


def usable_device(name: str | torch.device) -> torch.device:
    """A device that works here, or one line that says why it does not."""
    try:
        tried = torch.zeros(1, device=name)
        tried.cpu()
        return tried.device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InvalidArgumentError(
            f"cannot use device {str(name)!r} here ({str(error).splitlines()[0]}); try 'cpu'"
        ) from error


def usable_dtype(name: str | torch.dtype) -> torch.dtype:
    """A type of floating-point numbers by name, or one line that says which there are."""
    found = getattr(torch, name, None) if isinstance(name, str) else name
    if found not in DTYPES:
        raise InvalidArgumentError(
            f"cannot evaluate networks in {name!r}; choose one of "
            f"{', '.join(str(d).removeprefix('torch.') for d in DTYPES)}"
        )
    return found


def available_memory() -> int | None:
    """Bytes that can be used without swapping: the machine's, or less in a container or a job."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    found += _group_limits(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]  # `ulimit -v`
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(max(0, limit - pages * os.sysconf("SC_PAGE_SIZE")))
    return min(found, default=None)


def _group_limits(root: Path, membership: Path) -> list[int]:
    """What control groups leave to this process: its own group and all that hold it, v1 and v2."""
    places = [(root, "memory.max", "memory.current")]  # of a container, which sees its own as /
    places.append((root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            inside = Path(name.lstrip("/"))
            for group in (inside, *inside.parents):
                if not controllers:
                    places.append((root / group, "memory.max", "memory.current"))
                elif "memory" in controllers.split(","):
                    place = root / "memory" / group
                    places.append((place, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    left = []
    for place, limit, usage in dict.fromkeys(places):
        with suppress(OSError, ValueError):  # not there, or "max": without a limit
            most, used = (int((place / name).read_text()) for name in (limit, usage))
            # Files that are cached count as used, and go when memory is needed.
            cached = 0
            with suppress(OSError, ValueError):
                stat = dict(
                    line.split() for line in (place / "memory.stat").read_text().splitlines()
                )
                cached = int(stat.get("inactive_file", 0))
            left.append(max(0, most - used + cached))
    return left


def used_memory() -> int:
    """Bytes of this process that are in memory now; 0 where that is not known."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def memory_shortage(needed: int) -> str | None:
    """How much there is and how much is wanted, if so many more bytes do not fit."""
    left = available_memory()
    if left is None or needed <= left:
        return None
    return f"{format_bytes(needed)} of memory, {format_bytes(left)} are available"


def reset_peak_memory() -> None:
    """From now on `peak_memory` speaks of what comes, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most bytes of this process that were in memory at once; 0 where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return used_memory()


def return_free_memory() -> None:
    """Give back to the system what the C library keeps of memory that was let go (glibc).

    It keeps blocks below 32 MB in case that they are asked for again. After a large network, with
    activations of all sizes, that is a gigabyte which matrices cannot use.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library, another system
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what this machine cannot hold: `needed` bytes for the whole process, at its largest.

    Args:
        what: the thing that needs it, with the number, as the beginning of a sentence.
        advice: what to do instead.
    """
    left = available_memory()
    here = LARGEST if left is None else left + used_memory()
    if needed > here:
        raise NotEnoughMemoryError(f"{what}, this machine has {gigabytes(here)} left; {advice}")


def check_samples(num_samples: int, dimension: int, copies: float = 3) -> None:
    """Refuse samples that cannot be held, in float32 and so many copies of them."""
    needed = int(4 * copies * num_samples * dimension)
    if needed > 1 << 28:
        check_memory(
            needed + used_memory(),
            f"{num_samples:,} samples of {dimension:,} numbers need about {gigabytes(needed)}",
            "ask for fewer",
        )


def format_bytes(number: int) -> str:
    """
    >>> format_bytes(8_100_000), format_bytes(10**12)
    ('8.1 MB', '1,000.0 GB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number} bytes"


def gigabytes(count: float) -> str:
    """Bytes for people, where they are many.

    >>> gigabytes(4_200_000_000), gigabytes(31_000_000), gigabytes(5e18)
    ('4.2 GB', '0.03 GB', '5,000,000,000 GB')
    """
    size = count / 1e9
    digits = 2 if size < 0.1 else 1 if size < 100 else 0
    return f"{size:,.{digits}f} GB"


def parse_memory(text: int | str) -> int:
    """A budget of memory in bytes, from a number of them or from words.

    >>> parse_memory("2GB"), parse_memory("500 MB"), parse_memory(1024)
    (2000000000, 500000000, 1024)
    """
    found = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)B?", str(text).strip().upper(), re.ASCII)
    with suppress(ValueError, TypeError):  # not a number, or no match
        size = float(found[1]) * 1000 ** " KMGT".index(found[2] or " ")  # type: ignore[index]
        if 1 <= size < LARGEST:
            return int(size)
    raise InvalidArgumentError(
        f"{printable(text)!r} is not an amount of memory; write 2GB, 500MB or a number of bytes"
    )


def versions() -> dict[str, str]:
    """The versions of sads, PyTorch and Python, for the record."""
    return {
        "sads": version("sads"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def note_once(message: str) -> None:
    """Warn that something is slower or different here, once in a process.

    The warning is the caller's: it must look like one of ours, whoever called the caller, for
    commands show our warnings only.
    """
    if message not in _noted:
        _noted.add(message)
        warnings.warn(message, stacklevel=2)


_noted: set[str] = set()
