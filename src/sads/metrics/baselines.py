"""What doing nothing scores, and what a perfect model would: the scale beside every distance.

A distance alone says little. On the same projections, against the same test data, are measured:

- *zeros* and the data's *mean*, the two constants that need no model at all;
- a *Gaussian* with the data's mean and covariance, which knows nothing but two moments;
- *real* data, which stand for a perfect model: two sets of samples of one law are apart, too.

The Gaussian is drawn as `mu + Xc^T g / sqrt(N)`, with `Xc` (N, D) the centred data and `g` (N,)
standard normal. Its covariance is that of the data exactly, and no D x D matrix is made.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sads.arguments import as_tensor
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate
from sads.metrics.sliced_wasserstein import SlicedWasserstein, sliced_wasserstein
from sads.scales import scale_of
from sads.seeds import torch_stream

State = Literal["trained", "not trained", "diverged"]

CHUNK = 1024  # samples of the Gaussian that are drawn at a time
MUCH_ENERGY = 2.0  # times the data's: more than that did not come from the data
MUCH_DISTANCE = 1.5  # times that of the best constant, where the energy is not known


@dataclass(frozen=True)
class Distance:
    """How far two laws are apart, over all projections and along the worst of them."""

    sw2: Estimate  # its error is that of the projections
    msw2: float
    num_projections: int

    @classmethod
    def of(cls, measured: SlicedWasserstein) -> "Distance":
        return cls(measured.sw2, measured.msw2, measured.num_projections)


@dataclass(frozen=True)
class AlongVector:
    """W2 along the direction `v` of rank-one data, which random projections meet by chance only."""

    zeros: float
    mean: float
    gaussian: float
    real: float | None


@dataclass(frozen=True)
class Baselines:
    """Distances of what needs no training to the test data."""

    zeros: Distance
    mean: Distance
    gaussian: Distance
    real: Distance | None  # two halves of the test data if there are no others; None of one image
    moments_of: str  # whose mean and covariance they are: "training data" or "test data"
    along: AlongVector | None = None  # of rank-one data
    without_digit: Estimate | None = None  # of digits: the share of Gaussian samples without one

    @property
    def best_constant(self) -> Distance:
        """The nearer one of zeros and the mean."""
        return min(self.zeros, self.mean, key=lambda distance: distance.sw2.value)


@checked
def measure_baselines(
    test: Tensor,
    train: Tensor | None = None,
    *,
    num_samples: int | None = None,
    num_projections: int | None = None,
    seed: int = 0,
    vector: Tensor | None = None,
) -> Baselines:
    """The baselines of samples that are measured against `test` (M, *shape).

    Args:
        train: (N, *shape), data of the same law that are not in `test`. Without them mean and
            Gaussian are those of the test data, which flatters both, and real against real is one
            half of them against the other.
        num_samples: of the Gaussian and of real data, as many as the samples; `M` if not given.
        num_projections, seed: of the distances of the samples, so that projections are the same.
        vector: `v` of the law `N(0, D v v^T)` of the data, if that is their law.
    """
    test = as_tensor(test, "the test data", floating=True)
    train = None if train is None else as_tensor(train, "the training data", floating=True)
    count = len(test) if num_samples is None else num_samples
    known = test if train is None else train
    drawn = gaussian_like(known, count, seed)
    mean = known.double().mean(dim=0, keepdim=True).to(test.dtype)
    pairs = {
        "zeros": (test, torch.zeros_like(mean)),
        "mean": (test, mean),
        "gaussian": (test, drawn),
    }
    if train is not None:
        pairs["real"] = (test, train[:count])
    elif len(test) > 1:
        pairs["real"] = (test[::2], test[1::2])
    found = {
        name: Distance.of(sliced_wasserstein(*pair, num_projections=num_projections, seed=seed))
        for name, pair in pairs.items()
    }
    along = None
    if vector is not None:
        near = {name: along_vector(*pair, vector) for name, pair in pairs.items()}
        along = AlongVector(near["zeros"], near["mean"], near["gaussian"], near.get("real"))
    return Baselines(
        zeros=found["zeros"],
        mean=found["mean"],
        gaussian=found["gaussian"],
        real=found.get("real"),
        moments_of="test data" if train is None else "training data",
        along=along,
    )


def along_vector(x: Tensor, y: Tensor, vector: Tensor) -> float:
    """W2 between two sets of samples along one direction (*shape)."""
    return sliced_wasserstein(x, y, projections=vector[None]).msw2


@checked
def gaussian_like(x: Tensor, num_samples: int, seed: int = 0) -> Tensor:
    """Samples (num_samples, *shape) of the normal law with mean and covariance of data `x`.

    >>> gaussian_like(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), 2)
    tensor([[1., 2.],
            [1., 2.]])
    """
    if num_samples < 1 or x.ndim < 2 or len(x) == 0:
        raise InvalidArgumentError(
            f"a Gaussian like samples {tuple(x.shape)} cannot be drawn {num_samples} times: give "
            "one of each or more, (N, *shape)"
        )
    x = as_tensor(x, "the data", floating=True)
    scale = scale_of(x)
    rows = (x if scale == 1 else x.double() / scale).flatten(1).float()
    mean = rows.double().mean(dim=0).float()
    centred = (rows - mean) / math.sqrt(len(rows))
    stream = torch_stream("gaussian like the data", seed)
    drawn = torch.empty(num_samples, rows.shape[1])
    for start in range(0, num_samples, CHUNK):
        stop = min(start + CHUNK, num_samples)
        drawn[start:stop] = mean + torch.randn(stop - start, len(rows), generator=stream) @ centred
    drawn = drawn.reshape(num_samples, *x.shape[1:])
    return drawn.to(x.dtype) if scale == 1 else (drawn.double() * scale).to(x.dtype)


def energy_of(x: Tensor) -> float:
    """`E|x|^2 / D`."""
    return float(x.double().square().mean())


def judge_state(
    distance: Distance | None,
    baselines: Baselines,
    *,
    finite_share: float = 1.0,
    energy: float | None = None,
    data_energy: float | None = None,
) -> State:
    """Whether a model is better than the best constant, by more than two standard errors.

    If it is not, it has *diverged* where its samples have much more energy than the data, or are
    not finite; otherwise it is *not trained*. Records of older runs do not have the energy: there a
    distance far beyond that of the constant says the same.
    """
    if distance is None or finite_share < 1:
        return "diverged"
    best = baselines.best_constant.sw2
    errors = [e for e in (distance.sw2.error, best.error) if math.isfinite(e)]
    if distance.sw2.value + 2 * math.hypot(*errors) < best.value:
        return "trained"
    if energy is None or data_energy is None:
        much = distance.sw2.value > MUCH_DISTANCE * best.value
    else:
        much = energy > MUCH_ENERGY * data_energy
    return "diverged" if much else "not trained"
