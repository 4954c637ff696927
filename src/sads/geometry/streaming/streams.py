"""The numbers of one network: any parameter, at any time, as often as it is wanted.

A network's numbers come from one random stream (`drawing`), in the order of its parameters; the
order of its layers may be another. So a generator first runs through the stream, which takes a
third of the time of drawing, and its state is kept where pieces of parameters begin. From there any
piece can be drawn, by any thread: the weights are those that `Initialiser.draw` gives, to the bit.
"""

import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.cpu.random import Survey, draw_normal
from sads.geometry.drawing import uniform_scale
from sads.geometry.laws import NORMAL, TRUNCATED, UNIFORM, Recipe, Step, truncated_normal

PIECE = 1 << 20  # numbers that one thread draws at a time


@dataclass(frozen=True)
class Places:
    """Where in a network's random stream the numbers of every step are.

    Uniform entries come first, four to a word of 64 bits; then all others, one step after the
    other, each as many words as it happens to take.
    """

    uniform: Mapping[tuple[str, int], int]  # (parameter, number of the step) to its first entry
    starts: Sequence[int]  # words in which a piece begins, and the end of all; ascending
    others: Mapping[tuple[str, int], int]  # which of the steps that are not uniform it is


def find_places(recipes: Mapping[str, Recipe]) -> Places:
    uniform: dict[tuple[str, int], int] = {}
    others: dict[tuple[str, int], int] = {}
    starts: set[int] = set()
    position = 0
    for name, recipe in recipes.items():
        for number, step in enumerate(recipe.steps):
            if step.op == UNIFORM:
                uniform[name, number] = position
                end = position + math.prod(step.size)
                starts.update(range(position // 4, end // 4, PIECE // 4))
                position = end
            elif step.op in (NORMAL, TRUNCATED):
                others[name, number] = len(others)
    return Places(uniform, sorted({0, *starts, -(-position // 4)}), others)


class NetworkStream:
    """The numbers of one network: any parameter, at any time, as often as it is wanted."""

    def __init__(self, recipes: Mapping[str, Recipe], places: Places, stream: np.random.Generator):
        self.recipes, self._places, self._stream = recipes, places, stream
        self.moves: dict[str, Callable[[Tensor], Tensor]] = {}  # what is done to some parameters
        self._lock = threading.Lock()  # of the generator and what is known of it
        self._known: Survey | None = None
        self._other_states: list[Any] = []  # before each step that is not uniform

    def fill(self, name: str, out: Tensor) -> None:
        """Write a parameter into (numel,) memory, on any device and in any precision."""
        for task in self.tasks(name, out):
            task()

    def tasks(self, name: str, out: Tensor) -> list[Callable[[], None]]:
        """What together fills a parameter's memory; each can be done by any thread."""
        recipe = self.recipes[name]
        if name in self.moves or not _is_uniform(recipe):
            return [partial(self._fill_moved, name, out)]
        return self._pieces(out, self._places.uniform[name, 0], *recipe.steps[0].args)

    def _fill_moved(self, name: str, out: Tensor) -> None:
        self._fill(name, out)
        if name in self.moves:
            weight = out.view(self.recipes[name].shape)
            weight.copy_(self.moves[name](weight).clone())

    def _fill(self, name: str, out: Tensor) -> None:
        recipe = self.recipes[name]
        if recipe.value is not None:
            out.copy_(recipe.value.reshape(-1))
            return
        if out.dtype != torch.float32 and not _is_uniform(recipe):
            exact = torch.empty(out.shape, device=out.device)
            self._fill(name, exact)
            out.copy_(exact)  # the numbers of single precision, rounded
            return
        if not recipe.steps[0].covers(recipe.numel):
            out.zero_()
        for number, step in enumerate(recipe.steps):
            offset = out.storage_offset() + step.offset
            view = out.as_strided(step.size, step.stride, offset)
            if step.op == UNIFORM:
                self._fill_uniform(view, self._places.uniform[name, number], *step.args)
            elif step.op in (NORMAL, TRUNCATED):
                self._fill_other(view, self._places.others[name, number], step)
            else:
                getattr(view, step.op)(*step.args)

    def _fill_uniform(self, view: Tensor, entry: int, low: float, high: float) -> None:
        flat = view.view(-1) if view.is_contiguous() else view.new_empty(view.numel())
        for piece in self._pieces(flat, entry, low, high):
            piece()
        if flat.data_ptr() != view.data_ptr():
            view.copy_(flat.view(view.shape))

    def _pieces(
        self, flat: Tensor, entry: int, low: float, high: float
    ) -> list[Callable[[], None]]:
        """Pieces of uniform entries from number `entry` of the stream on."""
        starts, end = self._places.starts, entry + len(flat)
        pieces: list[Callable[[], None]] = []
        for i in range(bisect_right(starts, entry // 4) - 1, bisect_left(starts, -(-end // 4))):
            first, last = max(entry, 4 * starts[i]), min(end, 4 * starts[i + 1])
            part, skip = flat[first - entry : last - entry], first - 4 * starts[i]
            pieces.append(partial(self._fill_piece, part, i, skip, low, high))
        return pieces

    def _fill_piece(self, out: Tensor, i: int, skip: int, low: float, high: float) -> None:
        """Uniform entries from number `skip` of a piece on, as `Initialiser` draws them."""
        exact = out if out.dtype == torch.float32 else torch.empty(out.shape, device=out.device)
        if self._known is None:
            with self._lock:
                self._survey()
        self._survey().draw_uniform(i, skip, uniform_scale(low, high), exact)
        if low != -high:
            exact.add_((low + high) / 2)
        if exact is not out:
            out.copy_(exact)

    def _survey(self) -> Survey:
        """Where pieces begin; the generator is brought to what is not uniform."""
        if self._known is None:
            self._known = Survey(self._stream.bit_generator, self._places.starts)
            self._other_states = [self._stream.bit_generator.state]
        return self._known

    def _fill_other(self, view: Tensor, index: int, step: Step) -> None:
        """The numbers of a step that is not uniform: those before it are drawn, too."""
        with self._lock:
            self._survey()
            steps = list(self._places.others)
            for i in range(len(self._other_states) - 1, index):
                name, number = steps[i]
                self._draw_other(i, self.recipes[name].steps[number], None)
            self._draw_other(index, step, view)

    def _draw_other(self, index: int, step: Step, view: Tensor | None) -> None:
        self._stream.bit_generator.state = self._other_states[index]
        _draw_in_turn(self._stream, step, view)
        if index == len(self._other_states) - 1:
            self._other_states.append(self._stream.bit_generator.state)


def _is_uniform(recipe: Recipe) -> bool:
    """Are all entries of a parameter uniform, in the order of its memory?"""
    steps = recipe.steps
    is_one = recipe.value is None and len(steps) == 1
    return is_one and steps[0].op == UNIFORM and steps[0].covers(recipe.numel)


def _draw_in_turn(stream: np.random.Generator, step: Step, view: Tensor | None) -> None:
    """Draw the numbers of a step that is not uniform, and write them if there is a view."""
    is_memory = view is not None and view.is_contiguous() and view.device.type == "cpu"
    flat = view.view(-1) if view is not None and is_memory else torch.empty(math.prod(step.size))
    if step.op == NORMAL:
        draw_normal(stream.bit_generator, flat)
        mean, deviation = step.args
        flat.mul_(deviation)
        if mean:
            flat.add_(mean)
    else:
        for part in flat.split(PIECE):
            numbers = truncated_normal(stream.random(len(part)), *step.args)
            part.copy_(torch.from_numpy(numbers))
    if view is not None and not is_memory:
        view.copy_(flat.view(view.shape))
