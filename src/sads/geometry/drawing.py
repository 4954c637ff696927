"""Parameters of many networks at once, drawn by the recipes of their constructor.

A network's parameters come from its own random stream. They do not depend on which networks are
drawn together.
"""

import math
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sads.cpu.random import ODD
from sads.files import digest
from sads.geometry.laws import NORMAL, TRUNCATED, UNIFORM, Law, truncated_normal
from sads.geometry.recorder import named_tensors
from sads.geometry.recording import Recording, build_network, record
from sads.seeds import other_generators, seeded


class Blueprint:
    """A network of a family, and the recipes by which the parameters of others are drawn."""

    def __init__(self, recording: Recording):
        self.module = recording.module
        self.recipes = recording.recipes
        self.reason = recording.reason  # why recipes are not used, if they are not
        self.alike = recording.alike  # have all networks the same parameters?
        self.hidden = recording.hidden  # did random numbers go where nobody can follow them?

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters and buffers of one network, in single precision."""
        return 4 * sum(recipe.numel for recipe in self.recipes.values())

    @property
    def is_constant(self) -> bool:
        """Do all networks have the same parameters?"""
        return all(recipe.value is not None for recipe in self.recipes.values())

    def make_solid(self, path: str) -> None:
        """Let a layer compute with numbers, where others do not; here all of them do."""

    def law(self, name: str) -> Law | None:
        """The law of a parameter's entries if it is known and iid."""
        recipe = self.recipes.get(name)
        if recipe is None or (recipe.value is None and not recipe.steps):
            return None
        return recipe.law()

    def fingerprint(self) -> str:
        """A digest of the law of the parameters: equal for families with equal initialisation."""
        parts = []
        for name, recipe in self.recipes.items():
            parts.append(repr((name, recipe.shape, recipe.steps)).encode())
            if recipe.value is not None:
                parts.append(recipe.value.cpu().contiguous().numpy().tobytes())
        return digest(*parts)[:16]


class Initialiser(Blueprint):
    """Draws the parameters and buffers of many networks of a family at once.

    Args:
        build: makes a network.
        limit: bytes that it may fill; `LargeNetwork` if there are more.
    """

    def __init__(self, build: Callable[[], nn.Module], limit: float = math.inf):
        super().__init__(record(build, limit))
        self._build = build
        steps = [step for recipe in self.recipes.values() for step in recipe.steps]
        self._num_uniform = sum(math.prod(s.size) for s in steps if s.op == UNIFORM)
        self._thread = threading.local()  # memory for a stack, kept for the next one

    def build(self, seed: int) -> nn.Module:
        """A network made by the constructor; that of seed 0 is the recorded one again."""
        return build_network(self._build, seed)

    def holds_all_randomness(self, x: Tensor, t: Tensor) -> bool:
        """Do parameters and buffers make a network, with nothing random beside them?

        Another network must be the first one with its own tensors put in, and give the same output
        when it is evaluated again. Where random numbers went out of sight, eight others must.
        """
        return self.alike and all(
            self._is_made_of_tensors(self.build(seed), x, t)
            for seed in range(1, 9 if self.hidden else 2)
        )

    def _is_made_of_tensors(self, other: nn.Module, x: Tensor, t: Tensor) -> bool:
        tensors = dict(named_tensors(other))
        if {k: v.shape for k, v in tensors.items()} != {
            k: v.shape for k, v in named_tensors(self.module)
        }:
            return False
        with seeded(0), torch.no_grad():
            before = other_generators()
            again = [other(x, t) for _ in range(2)]
            replaced = torch.func.functional_call(self.module, tensors, (x, t))
            drawn_elsewhere = other_generators() != before
        return torch.equal(*again) and agree(replaced, again[0]) and not drawn_elsewhere

    def draw(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        """Parameters and buffers of one network per random stream, each (n, ...).

        They are valid until the next call from the same thread, which uses their memory again.
        """
        if self.reason is not None:
            return self._construct(streams)
        uniform = self._draw_uniform(streams)  # (n, all uniform entries of a network)
        stacks, position = {}, 0
        for name, recipe in self.recipes.items():
            if recipe.value is not None:
                stacks[name] = recipe.value.expand(len(streams), *recipe.shape)
                continue
            stack = self._buffer(name, len(streams), recipe.numel, torch.float32)
            if not recipe.steps[0].covers(recipe.numel):
                stack.zero_()  # as the replay did that was compared with the constructor
            for step in recipe.steps:
                view = stack.as_strided(
                    (len(streams), *step.size), (recipe.numel, *step.stride), step.offset
                )
                if step.op == UNIFORM:
                    count = math.prod(step.size)
                    view.copy_(uniform[:, position : position + count].view(view.shape))
                    scale_uniform(view, *step.args)
                    position += count
                elif step.op == NORMAL:
                    _fill_normal(view, streams, *step.args)
                elif step.op == TRUNCATED:
                    for row, stream in zip(view, streams, strict=True):
                        u = stream.random(step.size)
                        row.copy_(torch.from_numpy(truncated_normal(u, *step.args)))
                else:
                    getattr(view, step.op)(*step.args)
            stacks[name] = stack.view(len(streams), *recipe.shape)
        return stacks

    def _draw_uniform(self, streams: list[np.random.Generator]) -> Tensor:
        """Odd numbers, uniform over -32767 .. 32767: four of them from 64 random bits.

        Scaled to an interval they have the mean of the continuous uniform law and its variance
        to one part in 2^30, for a quarter of the bits; drawing those is a large part of the
        time of an estimate.
        """
        words = -(-self._num_uniform // 4)
        numbers = self._buffer(" uniform", len(streams), 4 * words, torch.int16)
        bits = numbers.numpy().view(np.uint64)  # (n, words)
        for row, stream in zip(bits, streams, strict=True):
            np.bitwise_or(stream.bit_generator.random_raw(words), ODD, out=row)
        return numbers

    def _buffer(self, name: str, n: int, numel: int, dtype: torch.dtype) -> Tensor:
        memory: dict[str, Tensor] = self._thread.__dict__
        if name not in memory or len(memory[name]) < n:
            memory[name] = torch.empty(n, numel, dtype=dtype)
        return memory[name][:n]

    def release_memory(self) -> None:
        """Let go of the memory that this thread keeps for its next stack."""
        self._thread.__dict__.clear()

    def _construct(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        drawn: list[dict[str, Tensor]] = []
        for stream in streams:
            network = self.build(int(stream.integers(2**63)))
            drawn.append({k: v.detach() for k, v in named_tensors(network)})
        return {k: torch.stack([d[k] for d in drawn]) for k in drawn[0]}


def agree(output: Tensor, expected: Tensor) -> bool:
    """Are two outputs of one network the same, but for rounding?"""
    size = float(expected.abs().max())
    return torch.allclose(output, expected, rtol=1e-4, atol=1e-6 * size)


def uniform_scale(low: float, high: float) -> float:
    """What makes odd numbers from -32767 to 32767 as wide as an interval."""
    return (high - low) / 2 / 32768


def scale_uniform(odd: Tensor, low: float, high: float) -> None:
    """Odd numbers from -32767 to 32767, to the interval from `low` to `high`."""
    odd.mul_(uniform_scale(low, high))
    if low != -high:
        odd.add_((low + high) / 2)


def _fill_normal(
    view: Tensor, streams: list[np.random.Generator], mean: float, deviation: float
) -> None:
    for row, stream in zip(view, streams, strict=True):
        row.copy_(torch.from_numpy(stream.standard_normal(tuple(row.shape), dtype=np.float32)))
    view.mul_(deviation)
    if mean:
        view.add_(mean)
