"""Noise levels of a diffusion, and what a network's output means at each of them."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.arguments import check_count
from sads.errors import InvalidArgumentError
from sads.table1 import NUM_LEVELS, SCHEDULE

SCHEDULES = ("linear", "cosine")
PREDICTIONS = ("epsilon", "score", "x0", "v")
MAX_LEVELS = 1_000_000


@dataclass(frozen=True)
class Schedule:
    """`x_t = sqrt(abar_t) x_0 + sigma_t eps` for levels `t = 0 .. num_levels - 1`.

    `"linear"`: `beta_t` from `0.1 / T` to `20 / T` (Ho et al., 2020, at T = 1000).
    `"cosine"`: `abar_t` a squared cosine, `beta_t` at most 0.999 (Nichol & Dhariwal, 2021).
    """

    name: str = SCHEDULE
    num_levels: int = NUM_LEVELS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in SCHEDULES:
            raise InvalidArgumentError(
                f"unknown noise schedule {self.name!r}; choose one of {', '.join(SCHEDULES)}"
            )
        check_count("num_levels", self.num_levels, 0)
        least = 21 if self.name == "linear" else 1
        if not least <= self.num_levels <= MAX_LEVELS:
            raise InvalidArgumentError(
                f"a {self.name} schedule cannot have {self.num_levels} levels; "
                f"give more than 20 (linear) or at least 1 (cosine), {MAX_LEVELS:,} at most"
            )

    @cached_property
    def betas(self) -> Tensor:
        """(T,) float64."""
        levels = self.num_levels
        if self.name == "linear":
            return torch.linspace(0.1 / levels, 20 / levels, levels, dtype=torch.float64)
        time = torch.arange(levels + 1, dtype=torch.float64) / levels
        abar = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
        return (1 - abar[1:] / abar[:-1]).clamp(max=0.999)

    @cached_property
    def abar(self) -> Tensor:
        return torch.cumprod(1 - self.betas, dim=0)

    @cached_property
    def sigma(self) -> Tensor:
        return torch.sqrt(1 - self.abar)

    def network_time(self, levels: Tensor) -> Tensor:
        """The timestep as networks see it: always on the scale of 1000 levels."""
        return levels.to(torch.float32) * (1000 / self.num_levels)

    def score_coefficients(self, prediction: str) -> tuple[Tensor, Tensor]:
        """`(a, b)`, each (T,), with `score(x, t) = a_t x + b_t net(x, t)`."""
        zero = torch.zeros_like(self.sigma)
        if prediction == "epsilon":
            return zero, -1 / self.sigma
        if prediction == "score":
            return zero, zero + 1
        if prediction == "x0":
            return -1 / self.sigma**2, self.abar.sqrt() / self.sigma**2
        if prediction == "v":
            return zero - 1, -self.abar.sqrt() / self.sigma
        raise InvalidArgumentError(
            f"unknown prediction {prediction!r}; choose one of {', '.join(PREDICTIONS)}"
        )
