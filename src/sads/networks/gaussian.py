"""The Gaussian part of a score, in closed form.

Data `x_0 ~ N(mu, C)` noised to `x = sqrt(abar) x_0 + sigma eps` are Gaussian, and all predictions
of a network are linear in `d = x - sqrt(abar) mu`. With `C = V diag(lambda) V^T + rho (I - V V^T)`
and `w = abar lambda + sigma^2`, along an eigenvector of eigenvalue `lambda`

    score      -1 / w                       d
    epsilon    sigma / w                    d
    x0         sqrt(abar) lambda / w        d  +  mu
    v          sqrt(abar) sigma (1 - lambda) / w  d  -  sigma mu

as `score = -eps / sigma`, `x0 = (x - sigma eps) / sqrt(abar)`, `v = sqrt(abar) eps - sigma x0`. So
two thin matrix products and a gain for each eigenvector are all that it takes.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sads.errors import InvalidArgumentError
from sads.schedule import Schedule

ORTHOGONAL = 1e-3  # how far from orthonormal the vectors of a file may be


@dataclass(frozen=True, eq=False)
class GaussianPart:
    """What a network would predict of Gaussian data with this mean and covariance.

    The covariance has the eigenvalues `values` along the columns of `vectors` and `rest` along
    everything that is orthogonal to them.
    """

    mean: Tensor  # (D,) float64
    vectors: Tensor  # (D, r) float32, orthonormal columns
    values: Tensor  # (r,) float64
    rest: float = 0.0
    _copies: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        dimension, rank = self.vectors.shape if self.vectors.ndim == 2 else (0, 0)
        fits = (
            self.mean.shape == (dimension,)
            and self.values.shape == (rank,)
            and 1 <= rank <= dimension
        )
        numbers = [self.mean.float(), self.vectors, self.values, torch.tensor(self.rest)]
        if not fits or not all(n.isfinite().all() for n in numbers):
            raise InvalidArgumentError(
                "a Gaussian has a mean (D,), eigenvectors (D, r) and eigenvalues (r,), all finite, "
                f"got {', '.join(str(tuple(n.shape)) for n in numbers[:3])}"
            )
        if (self.values < 0).any() or self.rest < 0:
            raise InvalidArgumentError("a covariance has no negative eigenvalues, this one has")
        direction = torch.linspace(1, 2, rank)
        turned = self.vectors.T @ (self.vectors @ direction) - direction
        if turned.abs().max() > ORTHOGONAL * direction.norm():
            raise InvalidArgumentError("the eigenvectors of a covariance are orthonormal")

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @property
    def rank(self) -> int:
        """How many eigenvectors are kept."""
        return len(self.values)

    def moved(self, by: Tensor) -> "GaussianPart":
        """This Gaussian for data that are all moved by a vector (D,)."""
        return replace(self, mean=self.mean + by.double(), _copies={})

    def covariance(self) -> Tensor:
        """`C`, (D, D) float64, for those who want to see it."""
        vectors = self.vectors.double()
        rest = self.rest * torch.eye(self.dimension, dtype=torch.float64)
        return (vectors * (self.values - self.rest)) @ vectors.T + rest

    def predict(self, prediction: str, schedule: Schedule, x: Tensor, levels: Tensor) -> Tensor:
        """What stands for a network's output for `x` (N, *shape), at `levels` (N,) or (1,)."""
        mean, vectors = self._on(x.device, x.dtype)
        levels = levels.cpu()
        signal = schedule.abar[levels].sqrt()[:, None]  # (N, 1) float64
        sigma = schedule.sigma[levels][:, None]
        complete = self.rank == self.dimension  # nothing is orthogonal to all eigenvectors
        rest = 0 * signal if complete else _gain(prediction, signal, sigma, self.rest)
        gain = _gain(prediction, signal, sigma, self.values) - rest  # (N, r)
        offset = {"x0": 1 + 0 * sigma, "v": -sigma}.get(prediction)
        d = x.flatten(1) - signal.to(x) * mean  # (N, D)
        y = (d @ vectors * gain.to(x)) @ vectors.T
        if not complete:
            y = torch.addcmul(y, rest.to(x), d)
        if offset is not None:
            y = y + offset.to(x) * mean
        return y.reshape(x.shape)

    def optimal_loss(self, prediction: str, schedule: Schedule) -> float:
        """The least mean squared error, a coordinate, that any network can reach on such data.

        The noise given `x` has the variance `abar lambda / w` along an eigenvector; the error of
        any prediction is that of the noise, scaled. Levels are uniform.
        """
        abar, sigma = schedule.abar[:, None], schedule.sigma[:, None]
        rest = torch.full((self.dimension - self.rank,), self.rest, dtype=torch.float64)
        values = torch.cat([self.values, rest])
        noise = (abar * values / (abar * values + sigma**2)).mean(dim=1, keepdim=True)  # (T, 1)
        scale = {
            "epsilon": 1 + 0 * sigma,
            "score": 1 / sigma,
            "x0": sigma / abar.sqrt(),
            "v": 1 / abar.sqrt(),  # v = (eps - sigma x) / sqrt(abar)
        }[prediction]
        return float((noise * scale**2).mean())

    def tensors(self) -> dict[str, Tensor]:
        """What a file keeps."""
        return {
            "mean": self.mean,
            "vectors": self.vectors.contiguous(),
            "values": self.values,
            "rest": torch.tensor(self.rest, dtype=torch.float64),
        }

    def _on(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean and vectors where they are needed, copied once."""
        place = (device, dtype)
        if place not in self._copies:
            self._copies[place] = self.mean.to(device, dtype), self.vectors.to(device, dtype)
        return self._copies[place]


def _gain(prediction: str, signal: Tensor, sigma: Tensor, value: Tensor | float) -> Tensor:
    """What a prediction multiplies `d` with along an eigenvector, (N, r)."""
    spread = signal**2 * value + sigma**2
    if prediction == "score":
        return -1 / spread
    if prediction == "epsilon":
        return sigma / spread
    if prediction == "x0":
        return signal * value / spread
    assert prediction == "v"
    return signal * sigma * (1 - value) / spread


def check_dimension(part: GaussianPart, shape: tuple[int, ...]) -> None:
    """Raise an error if a Gaussian is not one of data of a shape."""
    if part.dimension != math.prod(shape):
        raise InvalidArgumentError(
            f"the Gaussian part has {part.dimension} coordinates, the family has "
            f"{math.prod(shape)}: fit it to data of the family's shape"
        )
