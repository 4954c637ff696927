"""The numbers of one network: any parameter, at any time, as often as it is wanted.

A network's numbers come from one random stream (`drawing`), in the order of its parameters; the
order of its layers may be another. So the state of the generator is kept where a parameter begins,
and numbers in between are skipped: the weights are those that `Initialiser.draw` gives, to the
bit.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.cpu.uniform import can_draw, draw_uniform, skip_words
from sads.geometry.drawing import ODD, uniform_scale
from sads.geometry.laws import NORMAL, TRUNCATED, UNIFORM, Recipe, Step, truncated_normal

WORDS = 1 << 14  # of 64 bits that NumPy draws at a time: they stay in the processor's cache


@dataclass(frozen=True)
class Places:
    """Where in a network's random stream the numbers of every step are.

    Uniform entries come first, four to a word of 64 bits; then all others, one step after the
    other, each as many words as it happens to take.
    """

    uniform: Mapping[tuple[str, int], int]  # (parameter, number of the step) to its first entry
    starts: Sequence[int]  # words in which a uniform parameter begins, and their end; ascending
    others: Sequence[tuple[str, int]]


def find_places(recipes: Mapping[str, Recipe]) -> Places:
    uniform: dict[tuple[str, int], int] = {}
    others: list[tuple[str, int]] = []
    position = 0
    for name, recipe in recipes.items():
        for number, step in enumerate(recipe.steps):
            if step.op == UNIFORM:
                uniform[name, number] = position
                position += math.prod(step.size)
            elif step.op in (NORMAL, TRUNCATED):
                others.append((name, number))
    starts = sorted({entry // 4 for entry in uniform.values()} | {-(-position // 4)})
    return Places(uniform, starts, others)


class NetworkStream:
    """The numbers of one network: any parameter, at any time, as often as it is wanted."""

    def __init__(self, recipes: Mapping[str, Recipe], places: Places, stream: np.random.Generator):
        self.recipes, self._places, self._stream = recipes, places, stream
        self._in_c = isinstance(stream.bit_generator, np.random.SFC64) and can_draw()
        self.moves: dict[str, Callable[[Tensor], Tensor]] = {}  # what is done to some parameters
        self._word = 0  # that the generator gives next, where uniform entries are drawn
        self._words = [0]  # where its state is known
        self._states = [stream.bit_generator.state]
        self._other_states: list[Any] = []  # before each step that is not uniform

    def fill(self, name: str, out: Tensor) -> None:
        """Write a parameter into (numel,) memory, on any device and in any precision."""
        self._fill(name, out)
        if name in self.moves:
            weight = out.view(self.recipes[name].shape)
            weight.copy_(self.moves[name](weight).clone())

    def _fill(self, name: str, out: Tensor) -> None:
        recipe = self.recipes[name]
        if recipe.value is not None:
            out.copy_(recipe.value.reshape(-1))
            return
        steps = recipe.steps
        plain = len(steps) == 1 and steps[0].op == UNIFORM and steps[0].covers(recipe.numel)
        if out.dtype != torch.float32 and not plain:
            exact = torch.empty(out.shape, device=out.device)
            self._fill(name, exact)
            out.copy_(exact)  # the numbers of single precision, rounded
            return
        if not steps[0].covers(recipe.numel):
            out.zero_()
        for number, step in enumerate(steps):
            offset = out.storage_offset() + step.offset
            view = out.as_strided(step.size, step.stride, offset)
            if step.op == UNIFORM:
                self._uniform(view, self._places.uniform[name, number], *step.args)
            elif step.op in (NORMAL, TRUNCATED):
                index = self._places.others.index((name, number))
                self._seek_other(index)
                _sequential(self._stream, step, view)
                self._leave_other(index)
            else:
                getattr(view, step.op)(*step.args)

    def _uniform(self, view: Tensor, entry: int, low: float, high: float) -> None:
        """Entries from number `entry` on, as `Initialiser` draws them."""
        self._seek(entry // 4)
        flat = view.view(-1) if view.is_contiguous() else torch.empty(view.numel())
        done, skip = 0, entry % 4
        pieces = flat.device.type == "cpu" and not (self._in_c and flat.dtype == torch.float32)
        words = WORDS if pieces else -(-(len(flat) + skip) // 4)
        while done < len(flat):
            part = flat[done : done + 4 * words - skip]
            numbers = part
            if part.dtype != torch.float32:
                numbers = torch.empty(len(part), device=part.device)
            self._odd_numbers(numbers, skip, uniform_scale(low, high))
            if low != -high:
                numbers.add_((low + high) / 2)
            if numbers is not part:
                part.copy_(numbers)
            done, skip = done + len(part), 0
        if flat.data_ptr() != view.data_ptr():
            view.copy_(flat.view(view.shape))

    def _odd_numbers(self, out: Tensor, skip: int, scale: float) -> None:
        """The next odd numbers times a scale into (n,) memory, from number `skip` of a word on."""
        words = -(-(len(out) + skip) // 4)
        if not self._in_c or out.device.type != "cpu":
            bits = torch.from_numpy(self._raw(words).view(np.int16))[skip:]
            out.copy_(bits[: len(out)]).mul_(scale)
            return
        done = 0
        for stop in self._stops(self._word + words):
            part = out[done : done + 4 * (stop - self._word) - skip]
            draw_uniform(self._stream.bit_generator, skip, scale, part)
            self._arrive(stop)
            done, skip = done + len(part), 0

    def _raw(self, count: int) -> Any:
        """Words from the generator; its state is kept where a parameter begins."""
        parts = []
        for stop in self._stops(self._word + count):
            parts.append(self._stream.bit_generator.random_raw(stop - self._word))
            self._arrive(stop)
        bits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.bitwise_or(bits, ODD, out=bits)

    def _seek(self, word: int) -> None:
        """Bring the generator to a word, from the nearest state before it that is known."""
        if word != self._word:
            nearest = bisect_right(self._words, word) - 1
            self._stream.bit_generator.state = self._states[nearest]
            self._word = self._words[nearest]
        for stop in self._stops(word):
            if self._in_c:
                skip_words(self._stream.bit_generator, stop - self._word)
            else:
                self._stream.bit_generator.random_raw(stop - self._word, output=False)
            self._arrive(stop)

    def _stops(self, end: int) -> list[int]:
        """`end`, and the words before it in which parameters begin."""
        starts = self._places.starts
        first, last = bisect_right(starts, self._word), bisect_left(starts, end)
        return [*starts[first:last], end] if end > self._word else []

    def _arrive(self, word: int) -> None:
        self._word = word
        at = bisect_left(self._words, word)
        known = at < len(self._words) and self._words[at] == word
        starts = self._places.starts
        place = bisect_left(starts, word)
        if not known and place < len(starts) and starts[place] == word:
            self._words.insert(at, word)
            self._states.insert(at, self._stream.bit_generator.state)

    def _seek_other(self, index: int) -> None:
        """Bring the generator to the beginning of a step that is not uniform."""
        if not self._other_states:
            self._seek(self._places.starts[-1])
            self._other_states.append(self._stream.bit_generator.state)
        self._stream.bit_generator.state = self._other_states[min(index, self._known_others)]
        while self._known_others < index:
            name, number = self._places.others[self._known_others]
            _sequential(self._stream, self.recipes[name].steps[number], None)
            self._leave_other(self._known_others)
        self._word = -1  # not in the part of the stream with uniform entries

    def _leave_other(self, index: int) -> None:
        """Keep the state after a step, where the next one begins."""
        if index == self._known_others:
            self._other_states.append(self._stream.bit_generator.state)

    @property
    def _known_others(self) -> int:
        return len(self._other_states) - 1


def _sequential(stream: np.random.Generator, step: Step, view: Tensor | None) -> None:
    """Draw the numbers of a step, a piece at a time, and write them if there is a view."""
    count = math.prod(step.size)
    whole = None if view is None else torch.empty(count)
    if view is not None and view.is_contiguous() and view.device.type == "cpu":
        whole = view.view(-1)
    for start in range(0, count, 4 * WORDS):
        size = min(4 * WORDS, count - start)
        piece = (
            stream.standard_normal(size, dtype=np.float32)
            if step.op == NORMAL
            else truncated_normal(stream.random(size), *step.args)
        )
        if whole is not None:
            whole[start : start + size] = torch.from_numpy(piece)
    if view is None or whole is None:
        return
    if whole.data_ptr() != view.data_ptr():
        view.copy_(whole.view(view.shape))
    if step.op == NORMAL:
        mean, deviation = step.args
        view.mul_(deviation)
        if mean:
            view.add_(mean)
