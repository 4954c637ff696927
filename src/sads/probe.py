"""Where networks are probed: the law of the input `x` at each noise level.

The level itself is always uniform over the schedule; how the estimator draws it is its own
affair. A probe draws one input at a time from the random stream of one network, so that
results do not depend on how networks are batched.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sads.errors import InvalidArgumentError
from sads.schedule import Schedule

Sampler = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class ZeroProbe:
    """`x = 0` at every level: the paper's default."""

    isotropic = True

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return torch.zeros(shape)

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        """`sum_t weights_t E[x x^T | t]`, as the factor of the identity."""
        return 0.0

    def describe(self) -> dict[str, object]:
        return {"name": "zero"}


@dataclass(frozen=True)
class GaussianProbe:
    """`x ~ N(0, width^2 I)` at every level."""

    width: float = 1.0

    isotropic = True

    def __post_init__(self) -> None:
        if not self.width > 0 or not np.isfinite(self.width):
            raise InvalidArgumentError(
                f"the width of a Gaussian probe must be positive and finite, got {self.width}"
            )

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return self.width * torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        return self.width**2 * float(weights.sum())

    def describe(self) -> dict[str, object]:
        return {"name": "gaussian", "width": self.width}


@dataclass(frozen=True, eq=False)
class ForwardProbe:
    """`x = sqrt(abar_t) x_0 + sigma_t eps`, with `x_0` one of the given images (Figure 9)."""

    images: Tensor  # (N, *shape)

    isotropic = False

    def __post_init__(self) -> None:
        if self.images.ndim < 2 or len(self.images) == 0 or not self.images.isfinite().all():
            raise InvalidArgumentError(
                "a forward probe needs finite images of shape (N, channels, ...) with N >= 1, "
                f"got a tensor of shape {tuple(self.images.shape)}"
            )

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        image = self.images[int(rng.integers(len(self.images)))]
        if tuple(image.shape) != tuple(shape):
            raise InvalidArgumentError(
                f"the probe's images have shape {tuple(image.shape)}, the networks take "
                f"{tuple(shape)}: resize the images or change the family's shape"
            )
        noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
        signal, spread = schedule.abar[level].sqrt().float(), schedule.sigma[level].float()
        return signal * image.float() + spread * noise

    def second_moment(self, schedule: Schedule, weights: Tensor) -> Tensor:
        """`sum_t weights_t E[x x^T | t]`, (D, D)."""
        flat = self.images.double().flatten(1)
        signal = (weights * schedule.abar).sum()
        noise = (weights * schedule.sigma**2).sum()
        identity = torch.eye(flat.shape[1], dtype=torch.float64)
        return signal * flat.T @ flat / len(flat) + noise * identity

    def describe(self) -> dict[str, object]:
        content = self.images.float().cpu().contiguous().numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        return {"name": "forward", "num_images": len(self.images), "images_sha256": digest}


@dataclass(frozen=True, eq=False)
class CustomProbe:
    """`x = sampler(level, generator)`: one input of the networks' shape per call."""

    sampler: Sampler
    name: str = "custom"

    isotropic = False

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        x = self.sampler(level, generator)
        if not isinstance(x, Tensor) or tuple(x.shape) != tuple(shape):
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InvalidArgumentError(
                f"the probe's sampler returned {given}, expected a tensor of shape {tuple(shape)}"
            )
        return x.float()

    def second_moment(self, schedule: Schedule, weights: Tensor) -> None:
        """Unknown: the estimator cannot add `E[a^2 x x^T]` in closed form."""
        return

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


Probe = ZeroProbe | GaussianProbe | ForwardProbe | CustomProbe


def probe(
    kind: str | Sampler | Probe = "zero",
    *,
    width: float | None = None,
    images: Tensor | None = None,
) -> Probe:
    """Make a probe.

    Args:
        kind: `"zero"`, `"gaussian"` (with `width`), `"forward"` (with `images`), or a function
            `sampler(level, generator)` that returns one input.
        width: standard deviation of the Gaussian probe, 1 if not given.
        images: (N, channels, ...) for the forward process.
    """
    if isinstance(kind, ZeroProbe | GaussianProbe | ForwardProbe | CustomProbe):
        return kind
    if callable(kind):
        return CustomProbe(kind, name=getattr(kind, "__qualname__", "custom"))
    if kind == "zero":
        return ZeroProbe()
    if kind == "gaussian":
        return GaussianProbe(1.0 if width is None else width)
    if kind == "forward":
        if images is None:
            raise InvalidArgumentError("the forward probe starts from images: pass images=...")
        return ForwardProbe(images)
    raise InvalidArgumentError(
        f"unknown probe {kind!r}; choose zero, gaussian or forward, or pass a function"
    )
