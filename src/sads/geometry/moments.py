"""Sums of Gram matrices of networks, batch by batch, and the order in which networks come.

Network number `n` of a seed belongs to batch `n mod 16`. Sums grow a stack of networks at a time
and can be kept in a file, from which another process goes on.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sads.errors import CheckpointError, printable
from sads.estimates import MIN_BATCHES, batch_error, batch_mean
from sads.geometry.cost import NOTHING, Spent
from sads.geometry.estimators import NUM_BATCHES, BatchGram, Estimator
from sads.geometry.response import same_response
from sads.threads import map_on_cores
from sads.unfinished import Partial
from sads.untrusted import DAMAGE


def _stacks(first: int, count: int, size: int) -> Iterator[tuple[int, list[int]]]:
    """Numbers of networks to evaluate together, with the end of the block that they are from.

    Blocks double from 64 networks, so that a tolerance is checked often at first; inside a block
    networks are arranged so that a stack has few batches.
    """
    start, length = first, 4 * NUM_BATCHES
    while start < first + count:
        stop = min(start + length, first + count)
        numbers = sorted(range(start, stop), key=lambda n: (n % NUM_BATCHES, n))
        for i in range(0, len(numbers), size):
            yield stop, numbers[i : i + size]
        length = min(stop - first, NUM_BATCHES * max(size, 4))
        start = stop


def draw_grams(
    estimator: Estimator, stacks: Iterator[tuple[int, list[int]]]
) -> Iterator[tuple[int, list[BatchGram]]]:
    """Gram matrices of stacks of networks, in order, each with the end of its block.

    One stack per core at a time, each on one thread: small operations do not fill a machine.
    """

    def work(stack: tuple[int, list[int]]) -> list[BatchGram]:
        return estimator.grams(estimator.draw(stack[1]))

    for (stop, _), grams in map_on_cores(work, stacks, None if estimator.concurrent else 1):
        yield stop, grams


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of Gram matrices in float64, one per independent batch, over some first stacks."""

    counts: tuple[int, ...] = (0,) * NUM_BATCHES
    grams: tuple[Tensor | None, ...] = (None,) * NUM_BATCHES
    num_stacks: int = 0
    stop: int = 0  # the end of the block of the last stack


class Moments:
    """What is known after some stacks of networks.

    All of it changes in one assignment: an interrupt, which may come between any two steps, finds
    a stack in all of it or in nothing.
    """

    def __init__(
        self,
        size: int,
        sums: Sums,
        response: tuple[float, ...],
        earlier: Spent = NOTHING,
    ):
        self.size = size  # networks in a stack
        self.response = response  # by which networks and probes are told apart
        self.earlier = earlier  # what other processes have spent
        self._sums = sums

    @classmethod
    def load(
        cls, partial: Partial, size: int, first: int, budget: int, response: tuple[float, ...]
    ) -> "Moments":
        """The sums in the file of an earlier process, or none if there is no file."""
        tensors = partial.load()
        if tensors is None:
            return cls(size, Sums(stop=first), response)
        try:
            if not same_response(tensors["response"].tolist(), response):
                raise ValueError("the networks or the probe were others")
            num_stacks, stop, size = (int(n) for n in tensors["position"])
            counts = tuple(tensors["counts"].tolist())
            grams = [tensors.get(f"gram {batch}") for batch in range(len(counts))]
            stacks = list(itertools.islice(_stacks(first, budget, max(1, size)), num_stacks))
            networks = [n for _, numbers in stacks for n in numbers]
            expected = tuple(
                sum(n % len(counts) == batch for n in networks) for batch in range(len(counts))
            )
            there = [gram for gram in grams if gram is not None]
            if counts != expected or len(counts) not in (NUM_BATCHES, MIN_BATCHES):
                raise ValueError("its parts do not fit together")
            if [gram is not None for gram in grams] != [count > 0 for count in counts]:
                raise ValueError("its parts do not fit together")
            if any(g.dtype != torch.float64 or g.shape != there[0].shape for g in there):
                raise ValueError("its parts do not fit together")
            if stop != (stacks[-1][0] if stacks else first):
                raise ValueError("it ends elsewhere")
            if not all(gram.isfinite().all() for gram in there):
                raise ValueError("its numbers are not finite")
            sums = Sums(counts, tuple(grams), num_stacks, stop)
            return cls(size, sums, response, Spent.read(tensors))
        except DAMAGE as error:
            raise CheckpointError(
                f"{printable(partial.path)} cannot be continued ({error}); remove it to start "
                "afresh"
            ) from error

    def check(self, estimator: Estimator, path: Path | None) -> None:
        """One line if what was loaded is not what this estimator adds up."""
        some = next((gram for gram in self._sums.grams if gram is not None), None)
        try:
            fits = some is None or len(estimator.factor(some)) == estimator.lift.size
        except DAMAGE:
            fits = False
        if not fits:
            raise CheckpointError(
                f"{printable(path)} cannot be continued (its numbers are of another size); remove "
                "it to start afresh"
            )

    def tensors(self, spent: Spent) -> dict[str, Tensor]:
        """What `load` reads."""
        sums = self._sums
        grams = {f"gram {batch}": gram for batch, gram in enumerate(sums.grams) if gram is not None}
        return {
            **grams,
            "position": torch.tensor([sums.num_stacks, sums.stop, self.size]),
            "counts": torch.tensor(sums.counts),
            "response": torch.tensor(self.response, dtype=torch.float64),
            **spent.tensors(),
        }

    def add(self, grams: list[BatchGram], stop: int) -> None:
        """Add the Gram matrices of the next stack, which are used up: sums are made in them.

        So a third matrix is never needed, and an interrupt still finds the sums as they were.
        """
        sums = self._sums
        counts, totals = list(sums.counts), list(sums.grams)
        for number, count, gram in grams:
            batch = number % len(counts)
            total, gram = totals[batch], gram.double()
            totals[batch] = gram if total is None else gram.add_(total)
            counts[batch] += count
        self._sums = Sums(tuple(counts), tuple(totals), sums.num_stacks + 1, stop)

    def keep_batches(self, count: int) -> None:
        """Add up batches whose numbers are equal modulo `count`, if there are more."""
        if len(self._sums.counts) <= count:
            return
        counts, totals = [0] * count, [None] * count
        folded = replace(self._sums, counts=tuple(counts), grams=tuple(totals))
        earlier, self._sums = self._sums, folded
        for batch, (networks, gram) in enumerate(zip(earlier.counts, earlier.grams, strict=True)):
            if gram is not None:
                self.add([(batch, networks, gram)], earlier.stop)
        self._sums = replace(self._sums, num_stacks=earlier.num_stacks)

    @property
    def num_networks(self) -> int:
        return sum(self._sums.counts)

    @property
    def stop(self) -> int:
        return self._sums.stop

    def stacks_left(self, first: int, budget: int) -> Iterator[tuple[int, list[int]]]:
        return itertools.islice(_stacks(first, budget, self.size), self._sums.num_stacks, None)

    def factors(self, estimator: Estimator, last: bool) -> tuple[Tensor, Tensor]:
        """The factor of every batch, (K, P, P), zero where it has no networks; and the counts.

        The last time that they are asked for every sum is let go when its factor is made: together
        they may fill the memory.
        """
        counts, totals = self._sums.counts, list(self._sums.grams)
        if last:
            self._sums = replace(self._sums, grams=(None,) * len(counts))
        size = estimator.lift.size
        # Not zeros: memory is taken when it is written, and sums are let go meanwhile.
        factors = torch.empty(len(counts), size, size, dtype=torch.float64)
        for batch, count in enumerate(counts):
            total, totals[batch] = totals[batch], None
            factors[batch] = 0.0 if total is None else estimator.factor(total / count)
        return factors, torch.tensor(counts)

    def relative_error(self) -> float:
        """Standard error of the mean Gram matrix in units of it, by its diagonal."""
        sums = self._sums
        means = [
            gram.diagonal() / count
            for gram, count in zip(sums.grams, sums.counts, strict=True)
            if gram is not None
        ]
        if not means:
            return math.inf
        counts = torch.tensor([count for count in sums.counts if count])
        diagonals = torch.stack(means)
        mean = batch_mean(diagonals, counts).clamp(min=1e-300)
        return float((batch_error(diagonals, counts) / mean).mean())
