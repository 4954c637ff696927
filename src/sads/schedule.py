"""Noise levels of a diffusion, and what a network's output means at each of them.

Level `t` mixes data and noise, `x_t = signal_t x_0 + sigma_t eps`, more noise at every level. The
score of its law is `-eps / sigma_t` in expectation, so whatever a network predicts, its score is
affine in the output, `a_t x + b_t net(x, t)`:

| prediction | the network returns | a | b |
|---|---|---|---|
| epsilon | eps | 0 | -1 / sigma |
| score | the score | 0 | 1 |
| x0 | x_0 | -1 / sigma^2 | signal / sigma^2 |
| v | signal eps - sigma x_0 | -1 / (signal^2 + sigma^2) | -signal / sigma / (signal^2 + sigma^2) |
| flow | eps - x_0 | -1 / sigma / (signal + sigma) | -signal / sigma / (signal + sigma) |
| edm | F in `x_0 = c_skip x + c_out F(c_in x)` | (c_skip - 1) / sigma^2 | c_out / sigma^2 |

The last row is the preconditioning of Karras et al. (2022), for schedules whose signal is 1.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sads.arguments import check_count, check_number
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.table1 import NUM_LEVELS, SCHEDULE

PRESERVING = ("linear", "scaled-linear", "cosine")  # signal^2 + sigma^2 = 1
SCHEDULES = (*PRESERVING, "edm", "ve", "flow")
TRAINABLE = ("epsilon", "score", "x0", "v")  # predictions that `sads.train` knows
PREDICTIONS = (*TRAINABLE, "flow", "edm")
MAX_LEVELS = 1_000_000
RHO = 7.0  # how EDM spaces its levels
RANGES = {  # first and last beta in units of 1 / T, or first and last sigma
    "linear": (0.1, 20.0),  # Ho et al. (2020) at T = 1000
    "scaled-linear": (0.85, 12.0),  # Rombach et al. (2022) at T = 1000
    "edm": (0.002, 80.0),  # Karras et al. (2022), Table 1
    "ve": (0.01, 50.0),  # Song et al. (2021), CIFAR-10
}


@checked
@dataclass(frozen=True)
class Schedule:
    """`x_t = signal_t x_0 + sigma_t eps` for levels `t = 0 .. num_levels - 1`.

    `"linear"`: `beta_t` from `0.1 / T` to `20 / T` (Ho et al., 2020, at T = 1000).
    `"scaled-linear"`: the root of `beta_t` is linear (Stable Diffusion).
    `"cosine"`: `abar_t` a squared cosine, `beta_t` at most 0.999 (Nichol & Dhariwal, 2021).
    `"edm"`: `x_0` plus noise of 0.002 to 80, spaced evenly in its 7th root (Karras et al., 2022).
    `"ve"`: `x_0` plus noise of 0.01 to 50, spaced evenly in its logarithm (Song et al., 2021).
    `"flow"`: from `x_0` to noise on a straight line, `sigma_t = (t + 1) / T`, shifted to
    `shift sigma / (1 + (shift - 1) sigma)` (Esser et al., 2024).

    With `zero_snr` the signal is moved and stretched so that the last level is noise alone and the
    first is as it was (Lin et al., 2024, Algorithm 1), for schedules that preserve variance. Scores
    exist there; an image that is predicted from epsilon does not, so nothing is trained or sampled.

    >>> Schedule("flow", num_levels=4).sigma
    tensor([0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """

    name: str = SCHEDULE
    num_levels: int = NUM_LEVELS
    first: float | None = None  # beta or sigma of level 0; see `RANGES`
    last: float | None = None  # of the last level
    shift: float = 1.0  # of "flow"
    sigma_data: float = 0.5  # of the prediction "edm": Karras et al. (2022), Table 1
    zero_snr: bool = False  # is the last level noise alone?

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in SCHEDULES:
            raise InvalidArgumentError(
                f"unknown noise schedule {self.name!r}; choose one of {', '.join(SCHEDULES)}"
            )
        check_count("num_levels", self.num_levels, 0)
        defaults = self.first is None and self.last is None
        linear = self.name in ("linear", "scaled-linear")
        least = 21 if linear and defaults else 2 if self.name in ("edm", "ve") else 1
        if not least <= self.num_levels <= MAX_LEVELS:
            ends = ", or fewer with a first and a last beta" if linear and defaults else ""
            raise InvalidArgumentError(
                f"a {self.name} schedule cannot have {self.num_levels:,} levels; give {least} to "
                f"{MAX_LEVELS:,}{ends}"
            )
        check_number("the shift of a flow", self.shift, 0)
        check_number("sigma_data", self.sigma_data, 0)
        if self.zero_snr and (self.name not in PRESERVING or self.num_levels < 2):
            raise InvalidArgumentError(
                f"a {self.name} schedule of {self.num_levels} levels cannot be moved to end at "
                f"noise alone; take one of {', '.join(PRESERVING)} with 2 levels or more, or leave "
                "zero_snr out"
            )
        if self.name not in RANGES:
            if not defaults:
                raise InvalidArgumentError(
                    f"a {self.name} schedule has no first and last beta or sigma; leave them out"
                )
        else:
            self._check_ends(linear)
        if not self.sigma.isfinite().all() or not self.sigma.min() > 0:
            raise InvalidArgumentError(
                f"the noise of this {self.name} schedule goes from {float(self.sigma[0]):g} to "
                f"{float(self.sigma[-1]):g} in double precision, expected finite numbers above 0: "
                "give less extreme first and last numbers, or another shift"
            )

    def _check_ends(self, linear: bool) -> None:
        first, last = self._ends
        most = 1.0 if linear else math.inf
        check_number("the first beta or sigma of a schedule", first, 0, most)
        check_number("the last beta or sigma of a schedule", last, 0, most)
        if first > last:
            raise InvalidArgumentError(
                f"noise grows from level to level, from {first:g} to {last:g} it does not; give "
                "the smaller of the two first"
            )

    @property
    def _ends(self) -> tuple[float, float]:
        unit = 1 / self.num_levels if self.name in PRESERVING else 1.0
        first, last = (unit * number for number in RANGES[self.name])
        return (
            first if self.first is None else self.first,
            last if self.last is None else self.last,
        )

    @property
    def preserves_variance(self) -> bool:
        """Is `signal^2 + sigma^2 = 1` at every level?"""
        return self.name in PRESERVING

    @property
    def reaches_noise(self) -> bool:
        """Is there a level of noise alone, at which no image can be told from epsilon?"""
        return not bool((self.signal > 0).all())

    @cached_property
    def betas(self) -> Tensor:
        """(T,) float64."""
        self._check_preserving()
        if not self.zero_snr:
            return self._usual_betas()
        signal = torch.cumprod(1 - self._usual_betas(), dim=0).sqrt()
        signal = (signal - signal[-1]) * (signal[0] / (signal[0] - signal[-1]))
        before = torch.cat([torch.ones_like(signal[:1]), signal[:-1]])
        return 1 - (signal / before).square()

    def _usual_betas(self) -> Tensor:
        levels = self.num_levels
        if self.name == "linear":
            return torch.linspace(*self._ends, levels, dtype=torch.float64, device="cpu")
        if self.name == "scaled-linear":
            first, last = self._ends
            roots = torch.linspace(first**0.5, last**0.5, levels, dtype=torch.float64, device="cpu")
            return roots**2
        time = torch.arange(levels + 1, dtype=torch.float64, device="cpu") / levels
        abar = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
        return (1 - abar[1:] / abar[:-1]).clamp(max=0.999)

    @cached_property
    def abar(self) -> Tensor:
        """The square of the signal, (T,), of a schedule that preserves variance."""
        return torch.cumprod(1 - self.betas, dim=0)

    @cached_property
    def signal(self) -> Tensor:
        """What `x_0` is multiplied with, (T,) float64."""
        if self.preserves_variance:
            return self.abar.sqrt()
        return 1 - self.sigma if self.name == "flow" else torch.ones_like(self.sigma)

    @cached_property
    def sigma(self) -> Tensor:
        """The standard deviation of the noise, (T,) float64, growing."""
        if self.preserves_variance:
            return torch.sqrt(1 - self.abar)
        if self.name == "flow":
            time = (
                torch.arange(1, self.num_levels + 1, dtype=torch.float64, device="cpu")
                / self.num_levels
            )
            return self.shift * time / (1 + (self.shift - 1) * time)
        first, last = self._ends
        time = torch.linspace(0, 1, self.num_levels, dtype=torch.float64, device="cpu")
        if self.name == "ve":
            return first * (last / first) ** time
        return (first ** (1 / RHO) * (1 - time) + last ** (1 / RHO) * time) ** RHO

    def network_time(self, levels: Tensor) -> Tensor:
        """The time as networks see it.

        The level on a scale of 1000 levels; 1000 sigma for a flow, `ln(sigma) / 4` for EDM and
        sigma itself for VE, as their authors' networks do.
        """
        if self.name == "flow":
            return (1000 * self.sigma)[levels].to(torch.float32)
        if self.name == "edm":
            return (self.sigma.log() / 4)[levels].to(torch.float32)
        if self.name == "ve":
            return self.sigma[levels].to(torch.float32)
        return levels.to(torch.float32) * (1000 / self.num_levels)

    def input_scale(self, prediction: str) -> Tensor:
        """What networks see of `x` in units of it, (T,): `c_in` for the prediction "edm", or 1."""
        if prediction != "edm":
            return torch.ones_like(self.sigma)
        return (self.sigma**2 + self.sigma_data**2).rsqrt()

    def network_input(self, x: Tensor, levels: Tensor, prediction: str) -> Tensor:
        """The input as networks see it: `x` (N, ...), scaled at whole-number `levels` (N,)."""
        if prediction != "edm":
            return x
        scale = self.input_scale(prediction)[levels]
        return x * scale.to(x).reshape(-1, *[1] * (x.ndim - 1))

    def score_coefficients(self, prediction: str) -> tuple[Tensor, Tensor]:
        """`(a, b)`, each (T,), with `score(x, t) = a_t x + b_t net(x, t)`; see above."""
        signal, sigma = self.signal, self.sigma
        zero = torch.zeros_like(sigma)
        if prediction == "epsilon":
            return zero, -1 / sigma
        if prediction == "score":
            return zero, zero + 1
        if prediction == "x0":
            return -1 / sigma**2, signal / sigma**2
        if prediction == "v":
            length = 1.0 if self.preserves_variance else signal**2 + sigma**2
            return (zero - 1) / length, -signal / sigma / length
        if prediction == "flow":
            return -1 / sigma / (signal + sigma), -signal / sigma / (signal + sigma)
        if prediction == "edm":
            self._check_unit_signal()
            length = sigma**2 + self.sigma_data**2  # c_skip = sigma_data^2 / length
            return -1 / length, self.sigma_data / sigma / length.sqrt()
        raise InvalidArgumentError(
            f"unknown prediction {prediction!r}; choose one of {', '.join(PREDICTIONS)}"
        )

    def describe(self) -> dict[str, Any]:
        """What a file says of it: the name, the levels, and whatever is not as usual."""
        said = {"name": self.name, "num_levels": self.num_levels}
        more = (
            (field.name, getattr(self, field.name), field.default) for field in fields(self)[2:]
        )
        return said | {name: value for name, value, default in more if value != default}

    def _check_preserving(self) -> None:
        if not self.preserves_variance:
            raise InvalidArgumentError(
                f"the schedule {self.name} does not preserve variance and has no betas; train and "
                f"sample with {', '.join(PRESERVING)}"
            )

    def _check_unit_signal(self) -> None:
        if self.name not in ("edm", "ve"):
            raise InvalidArgumentError(
                f"the prediction edm goes with the schedules edm and ve, whose signal is 1, not "
                f"with {self.name}"
            )
