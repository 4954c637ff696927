"""Weights in the order in which layers ask for them, drawn some layers ahead."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from sads.geometry.streaming.streams import PIECE, NetworkStream

AHEAD_BYTES = 96 << 20  # of weights that are drawn together; at least one parameter is
SMALL = 1 << 14  # entries; parameters up to this size stay until the network is done


class Memory:
    """A ring of memory for weights: new pages would cost more than the numbers in them.

    Weights are used in the order in which they are drawn, so that pieces become free in the order
    in which they were taken. If there is no room (a view of some weights lives on), a piece gets
    memory of its own.
    """

    def __init__(self, numel: int, device: torch.device, dtype: torch.dtype):
        self._ring = torch.empty(numel, device=device, dtype=dtype)
        self.itemsize = dtype.itemsize
        self._lock = threading.Lock()
        self._taken: deque[tuple[int, int]] = deque()  # pieces, from the oldest on
        self._free: set[int] = set()  # beginnings of pieces that wait for older ones

    def take(self, numel: int) -> Tensor:
        """(numel,) of memory that nobody uses."""
        with self._lock:
            start = self._room(numel)
            if start is None:
                return self._ring.new_empty(numel)
            self._taken.append((start, start + numel))
        return self._ring[start : start + numel]

    def give_back(self, piece: Tensor) -> None:
        """The piece may be used again."""
        if piece.untyped_storage()._cdata != self._ring.untyped_storage()._cdata:
            return
        with self._lock:
            self._free.add(int(piece.storage_offset()))
            while self._taken and self._taken[0][0] in self._free:
                self._free.remove(self._taken.popleft()[0])

    def clear(self) -> None:
        """All pieces are free: a network is done."""
        with self._lock:
            self._taken.clear()
            self._free.clear()

    def _room(self, numel: int) -> int | None:
        if not self._taken:
            return 0 if numel <= len(self._ring) else None
        oldest, newest = self._taken[0][0], self._taken[-1][1]
        if oldest < newest:  # free: behind the newest, and before the oldest
            if newest + numel <= len(self._ring):
                return newest
            return 0 if numel < oldest else None
        return newest if newest + numel < oldest else None


class Supply:
    """Parameters in the order in which they are asked for.

    When one is asked for that is not there, those that come after it are drawn as well, by all
    threads; then layers compute, on all threads, until these are used up. To draw while a layer
    computes would take one of its threads, for which the others wait.
    """

    def __init__(
        self,
        stream: NetworkStream,
        expected: Sequence[str],
        memory: Memory,
        helpers: ThreadPoolExecutor,
        threads: int,
    ):
        self.used: list[str] = []
        self._stream, self._memory = stream, memory
        self._helpers, self._threads = helpers, threads
        self._expected = deque(expected)
        self._drawn: deque[tuple[str, Tensor]] = deque()  # and not yet asked for
        self._small: dict[str, Tensor] = {}

    def take(self, name: str) -> Tensor:
        """(numel,) numbers of a parameter."""
        if name in self._small:
            return self._small[name]
        self.used.append(name)
        if self._expected_next() != name:  # another way through the network
            self._expected.clear()
            while self._drawn:
                self._memory.give_back(self._drawn.popleft()[1])
        if not self._drawn:
            self._draw(name)
        _, numbers = self._drawn.popleft()
        if len(numbers) <= SMALL:
            self._small[name] = numbers.clone()
            self._memory.give_back(numbers)
            return self._small[name]
        return numbers

    def done(self, name: str, numbers: Tensor) -> None:
        """Nobody uses these numbers any more."""
        if name not in self._small:
            self._memory.give_back(numbers)

    def _expected_next(self) -> str | None:
        if self._drawn:
            return self._drawn[0][0]
        return self._expected[0] if self._expected else None

    def _draw(self, name: str) -> None:
        """Draw a parameter, and those that are expected after it."""
        names, numel = [name], self._numel(name)
        if self._expected:
            self._expected.popleft()  # the same
        most = AHEAD_BYTES // self._memory.itemsize
        while self._expected:
            more = self._numel(self._expected[0])
            if more > SMALL and numel + more > most:
                break
            names.append(self._expected.popleft())
            numel += more
        self._drawn.extend((n, self._memory.take(self._numel(n))) for n in names)
        parts = [self._stream.tasks(n, memory) for n, memory in self._drawn]
        parts.sort(key=len)  # what cannot be divided begins first
        waiting = deque(task for tasks in parts for task in tasks)
        helpers = self._threads - 1 if numel > PIECE else 0
        helping = [self._helpers.submit(_work_through, waiting) for _ in range(helpers)]
        _work_through(waiting)
        for helper in helping:
            helper.result()

    def _numel(self, name: str) -> int:
        return self._stream.recipes[name].numel


def _work_through(tasks: deque[Callable[[], None]]) -> None:
    """Do what nobody else does, until nothing is left."""
    while True:
        try:
            task = tasks.popleft()
        except IndexError:
            return
        task()


@contextmanager
def drawing_ahead(
    stream: NetworkStream, expected: Sequence[str], memory: Memory
) -> Iterator[Supply]:
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as helpers:
        try:
            yield Supply(stream, expected, memory, helpers, threads)
        finally:
            memory.clear()
