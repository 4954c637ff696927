"""What all tests need."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# A shell ignores Ctrl-C in its background jobs, and so would everything that these tests start.
# A handler of our own, because a command gives such a one back at its end.
signal.signal(signal.SIGINT, _interrupt)

# Workers of pytest-xdist are told a width, by which tables would be folded.
os.environ.pop("COLUMNS", None)

# PyTorch and others make a million objects that stay; to look through them at every turn takes a
# tenth of the time of all tests.
gc.set_threshold(100_000, 50, 100)


def _in_memory() -> bool:
    """Is there a folder in memory, with room for what tests write, from which libraries load?"""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        return False
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize > 4e9 and not found.f_flag & os.ST_NOEXEC


# Tests write tens of thousands of small files; on a disk half of their time would be waiting.
if _in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

pytest_plugins = ["browsing", "commands", "killing", "pictures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """Whoever draws from PyTorch's own stream gets what he got the last time."""
    import torch

    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: sharing them among threads takes several times as long."""
    from sads.threads import pinned_threads

    with pinned_threads(1):
        yield
