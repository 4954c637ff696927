"""The recipe by which a constructor draws a parameter, and the law of the entries that it gives.

A recipe is a chain of in-place operations, as `recording` saw them: a draw, perhaps scaled,
shifted or clamped. If every step acts on all entries alike they are independent and identically
distributed, and their mean and variance, which is all that `readout` needs, follow from the chain.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

UNIFORM, NORMAL, TRUNCATED, CONSTANT = "uniform_", "normal_", "trunc_normal_", "fill_"
RANDOM = (UNIFORM, NORMAL, TRUNCATED)
AFFINE = ("mul_", "div_", "add_", "sub_")
QUANTILES = 1 << 16
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One in-place operation on a view of a parameter's storage."""

    op: str
    args: tuple[Any, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def covers(self, numel: int) -> bool:
        """Does the view reach every element of a storage of `numel` elements once?"""
        dense = sorted((s, n) for s, n in zip(self.stride, self.size, strict=True) if n > 1)
        expected = 1
        for stride, length in dense:
            if stride != expected:
                return False
            expected *= length
        return self.offset == 0 and math.prod(self.size) == numel == expected

    @property
    def is_fill(self) -> bool:
        return self.op in (*RANDOM, CONSTANT, "zero_")


@dataclass(frozen=True)
class Law:
    """Mean and variance of the independent, identically distributed entries of a parameter."""

    mean: float
    variance: float


@dataclass(frozen=True)
class Recipe:
    """The steps that draw one parameter. A parameter that never varies has a `value` instead."""

    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    value: Tensor | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def law(self) -> Law | None:
        """The law of the entries if they are iid, else None.

        Entries are iid if every step acts on all of them alike. A single draw has moments in
        closed form; for a longer chain (a truncated normal, say) the chain is a function of one
        draw, and its moments are integrals over the quantiles of that draw.
        """
        if self.value is not None:
            entry = float(self.value.flatten()[0]) if self.numel else 0.0
            return Law(entry, 0.0) if bool((self.value == entry).all()) else None
        if not all(step.covers(self.numel) for step in self.steps):
            return None
        first, *chain = self.steps
        if first.op in RANDOM and all(s.op in AFFINE for s in chain):
            return _affine_law(first, chain)
        grid = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
        if first.op == UNIFORM:
            low, high = first.args
            grid = low + (high - low) * grid
        elif first.op in (NORMAL, TRUNCATED):
            grid = torch.from_numpy(truncated_normal(grid.numpy(), *first.args))
        else:
            return None
        for step in chain:
            getattr(grid, step.op)(*step.args)
        return Law(float(grid.mean()), float(grid.var(correction=0)))


def _affine_law(first: Step, chain: list[Step]) -> Law:
    """Moments of one draw that was scaled and shifted, in closed form."""
    if first.op == UNIFORM:
        low, high = first.args
        mean, variance = (low + high) / 2, (high - low) ** 2 / 12
    else:
        center, deviation, *bounds = first.args
        a, b = ((z - center) / deviation for z in bounds or (-math.inf, math.inf))
        weight = float(special.ndtr(b) - special.ndtr(a))
        density_a, density_b = (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b))
        shift = (density_a - density_b) / weight
        slope = sum(
            s * z * d for s, z, d in ((1, a, density_a), (-1, b, density_b)) if math.isfinite(z)
        )
        mean = center + deviation * shift
        variance = deviation**2 * (1 + slope / weight - shift**2)
    for step in chain:
        (value,) = step.args
        if step.op in ("mul_", "div_"):
            factor = value if step.op == "mul_" else 1 / value
            mean, variance = mean * factor, variance * factor**2
        else:
            mean += value if step.op == "add_" else -value
    return Law(mean, variance)


def truncated_normal(
    u: FloatArray, mean: float, deviation: float, low: float = -math.inf, high: float = math.inf
) -> FloatArray:
    """Quantiles `u` of a normal law restricted to [low, high]."""
    start, stop = special.ndtr([(low - mean) / deviation, (high - mean) / deviation])
    quantiles: FloatArray = mean + deviation * special.ndtri(start + (stop - start) * u)
    return quantiles.clip(low, high)
