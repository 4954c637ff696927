"""Weights in the order in which layers ask for them, drawn ahead by another thread."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from sads.geometry.streams import NetworkStream

AHEAD_BYTES = 64 << 20  # of weights that wait for their layer; at least one parameter does
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
    """Parameters in the order in which they are asked for, drawn ahead by another thread."""

    def __init__(
        self,
        stream: NetworkStream,
        expected: Sequence[str],
        memory: Memory,
        worker: ThreadPoolExecutor,
    ):
        self.used: list[str] = []
        self._stream, self._memory, self._worker = stream, memory, worker
        self._expected = deque(expected)
        self._waiting: deque[tuple[str, Future[Tensor]]] = deque()
        self._waiting_numel = 0
        self._small: dict[str, Tensor] = {}
        self._look_ahead()

    def take(self, name: str) -> Tensor:
        """(numel,) numbers of a parameter."""
        if name in self._small:
            return self._small[name]
        self.used.append(name)
        if self._waiting and self._waiting[0][0] != name:  # another way through the network
            self._expected.clear()
            while self._waiting:
                _, drawn = self._waiting.popleft()
                if not drawn.cancel():
                    self._memory.give_back(drawn.result())
        if self._waiting:
            _, drawn = self._waiting.popleft()
            self._waiting_numel -= self._numel(name)
            numbers = drawn.result()
            self._look_ahead()
        else:
            numbers = self._worker.submit(self._draw, name).result()
        if len(numbers) <= SMALL:
            self._small[name] = numbers.clone()
            self._memory.give_back(numbers)
            return self._small[name]
        return numbers

    def done(self, name: str, numbers: Tensor) -> None:
        """Nobody uses these numbers any more."""
        if name not in self._small:
            self._memory.give_back(numbers)

    def close(self) -> None:
        for _, drawn in self._waiting:
            if not drawn.cancel():
                with suppress(Exception):
                    self._memory.give_back(drawn.result())

    def _look_ahead(self) -> None:
        most = AHEAD_BYTES // self._memory.itemsize
        while self._expected:
            numel = self._numel(self._expected[0])
            if self._waiting and self._waiting_numel + numel > most:
                return
            name = self._expected.popleft()
            self._waiting.append((name, self._worker.submit(self._draw, name)))
            self._waiting_numel += numel

    def _numel(self, name: str) -> int:
        return self._stream.recipes[name].numel

    def _draw(self, name: str) -> Tensor:
        memory = self._memory.take(self._numel(name))
        self._stream.fill(name, memory)
        return memory


@contextmanager
def drawing_ahead(
    stream: NetworkStream, expected: Sequence[str], memory: Memory
) -> Iterator[Supply]:
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        supply = Supply(stream, expected, memory, worker)
        try:
            yield supply
        finally:
            supply.close()
            memory.clear()
