"""Threads: how many an operation may use, and work for every core.

PyTorch shares each operation out over all cores, which pays for large ones only. Here every core
works at things of its own instead, each in one thread.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def pinned_threads(count: int = 1) -> Iterator[None]:
    """Operations of this thread use so many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def worker_pool(num_workers: int) -> Iterator[ThreadPoolExecutor | None]:
    """Workers whose operations use one thread each, as do the caller's; None for a single worker.

    Workers that share nothing need not wait for each other after every operation.
    """
    if num_workers < 2:
        yield None
        return
    pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))
    with pinned_threads(1):
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def map_on_cores(
    function: Callable[[Item], Result], items: Iterable[Item], num_workers: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in order; one item a core at a time, in one thread each.

    Items are taken as they are needed, so that they may be made on the way and need not all be
    in memory. Only functions that let go of the interpreter's lock gain from it.
    """
    num_workers = torch.get_num_threads() if num_workers is None else num_workers
    with worker_pool(num_workers) as pool:
        if pool is None:
            yield from ((item, function(item)) for item in items)
            return
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) > num_workers:
                item, future = waiting.popleft()
                yield item, future.result()
        yield from ((item, future.result()) for item, future in waiting)
