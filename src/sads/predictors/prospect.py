"""What is known before a training: the network, its geometry, the data, and the plan."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from sads.arguments import check_count
from sads.errors import InvalidArgumentError
from sads.families import ScoreFamily
from sads.geometry.result import Geometry
from sads.predictors.kernel import LearningRates, learning_rates
from sads.rotations.rotation import Rotation, chunks
from sads.samples import as_samples, check_values
from sads.schedule import TRAINABLE
from sads.shapes import format_shape

SAMPLERS = ("ddpm", "ddim")  # whose recursions are known here


@dataclass(frozen=True)
class Plan:
    """How the network will be trained and sampled."""

    prediction: str = "epsilon"
    skip: bool = False  # the Gaussian part of the score in closed form beside it
    iterations: int = 300
    learning_rate: float = 1e-3
    steps: int = 20
    sampler: str = "ddpm"

    def __post_init__(self) -> None:
        if self.prediction not in TRAINABLE or self.sampler not in SAMPLERS:
            raise InvalidArgumentError(
                f"unknown prediction {self.prediction!r} or sampler {self.sampler!r}; choose from "
                f"{', '.join(TRAINABLE)} and from {', '.join(SAMPLERS)}"
            )
        if not 0 < self.learning_rate < math.inf:
            raise InvalidArgumentError(
                f"the learning rate is a number above 0, got {self.learning_rate}"
            )
        check_count("iterations", self.iterations)
        check_count("steps", self.steps)


@dataclass(frozen=True, eq=False)
class Untrained:
    """An architecture before training, with what is costly to find out about it."""

    family: ScoreFamily
    geometry: Geometry  # of its noise predictions at x = 0
    num_networks: int = 2  # for rates of learning
    seed: int = 0
    _rates: dict[str, LearningRates] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.family.shape != self.geometry.shape:
            raise InvalidArgumentError(
                f"the geometry is of {format_shape(self.geometry.shape)}, the family of "
                f"{format_shape(self.family.shape)}: give the family's own"
            )

    @cached_property
    def matrix(self) -> Tensor:
        """`G`, (D, D) float64."""
        return self.geometry.matrix()

    @cached_property
    def basis(self) -> Tensor:
        """The geometry's eigenvectors as columns, (D, D), in descending order of eigenvalue."""
        return self.geometry.directions().vectors.flatten(1).double().T

    def rates(self, energy: float) -> LearningRates:
        """`u_i^T K u_i` and what goes with it, for data of this `E|x|^2 / D`.

        It depends on the data by their energy alone, so that all rotations share it.
        """
        key = f"{energy:.6g}"
        if key not in self._rates:
            self._rates[key] = learning_rates(
                self.family,
                self.basis,
                energy,
                num_networks=self.num_networks,
                seed=self.seed,
            )
        return self._rates[key]


@dataclass(frozen=True, eq=False)
class Prospect:
    """A network and the data that it is to be trained on, as it will see them: rotated."""

    network: Untrained
    data: Tensor  # (N, *shape)
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        data = as_samples(self.data, "the data", self.network.family.shape)
        check_values(data, "the data")
        levels = self.network.family.schedule.num_levels
        if self.plan.steps > levels:
            raise InvalidArgumentError(
                f"a sampler takes 1 to {levels} steps, one a level at most, got {self.plan.steps}"
            )
        object.__setattr__(self, "data", data)

    @classmethod
    def rotated(
        cls, network: Untrained, x: Tensor, rotation: Rotation, plan: Plan | None = None
    ) -> "Prospect":
        return cls(network, rotation.apply(x), plan or Plan())

    @property
    def dimension(self) -> int:
        return math.prod(self.network.family.shape)

    @cached_property
    def moment(self) -> Tensor:
        """`C = E[z z^T]`, (D, D) float64."""
        total = torch.zeros(self.dimension, self.dimension, dtype=torch.float64)
        for chunk in chunks(self.data.flatten(1)):
            total.addmm_(chunk.T, chunk)
        return total / len(self.data)

    @cached_property
    def mean(self) -> Tensor:
        """`E[z]`, (D,) float64."""
        return self.data.flatten(1).double().mean(dim=0)

    @property
    def energy(self) -> float:
        """`E|z|^2 / D`."""
        return float(self.moment.diagonal().mean())
