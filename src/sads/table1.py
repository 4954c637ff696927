"""The paper's Table 1 and the numbers of its Appendix A: each stands here and nowhere else.

A column of the table is an object. Smaller experiments are `replace()` of a column, so that what
they change is what they say. The table has no column for the architectures of Propositions 1 and 2:
`MLP` and `CNN` are ours, of the shape and training of the others with rank-one data. Which
eigenvectors Figure 6 trains along (Appendix A) says `figure6_ranks`; the panels of that figure are
in `experiments/figures/fig6.py`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from sads.errors import InvalidArgumentError

NUM_LEVELS = 1000  # diffusion_steps
SCHEDULE = "linear"  # noise_schedule
NUM_DATA = 10_000  # "Each dataset we consider consists of 10k samples"
NUM_SEEDS = 5  # "repeated five times with different random seeds"
NUM_NETWORKS = 1_000_000  # "we use 1M randomly initialized networks"
PROJECTIONS_PER_DIMENSION = 64  # "an overcomplete set of L = 64 D random directions"
SPHERE_DIRECTIONS = 3  # "the first three and the last three SADs"
IDDPM_CHANNELS = 32  # of the first level, in all columns
DIT_WIDTH, DIT_DEPTH, DIT_HEADS = 48, 8, 4  # in all columns
RANK_ONE_SHAPE = (1, 16, 16)


def figure6_ranks(dimension: int = math.prod(RANK_ONE_SHAPE)) -> list[int]:
    """Nine eigenvectors as Figure 6 has them, counted from 0 and evenly spread; all, if fewer.

    >>> figure6_ranks()
    [0, 31, 63, 95, 127, 159, 191, 223, 255]
    """
    if dimension <= 9:
        return list(range(dimension))
    return [0, *(round(k * dimension / 8) - 1 for k in range(1, 9))]


@dataclass(frozen=True)
class Training:
    """How long and how fast to train."""

    iterations: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn from a trained model, and how many are compared with fresh data."""

    num_samples: int = NUM_DATA
    steps: int = NUM_LEVELS
    sampler: str = "ddpm"
    projections_per_dimension: int = PROJECTIONS_PER_DIMENSION


@dataclass(frozen=True)
class Column:
    """A column of Table 1, or our default for an architecture that the paper has none for.

    `data` is the kind of data that the column is about; `"any"` where it serves for others too.
    """

    source: str
    family: str
    shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]  # of the network, beyond its own defaults
    training: Training
    data: str = "any"
    num_data: int = NUM_DATA
    sampling: Sampling = field(default_factory=Sampling)
    num_networks: int = NUM_NETWORKS
    num_seeds: int = NUM_SEEDS

    def __post_init__(self) -> None:
        numbers = {
            "iterations": self.training.iterations,
            "batch_size": self.training.batch_size,
            "learning_rate": self.training.learning_rate,
            "num_data": self.num_data,
            "num_samples": self.sampling.num_samples,
            "steps": self.sampling.steps,
            "num_networks": self.num_networks,
            "num_seeds": self.num_seeds,
        }
        for name, value in numbers.items():
            if not value > 0:
                raise InvalidArgumentError(f"{name} must be positive, got {value}")


RANK_ONE = Training(iterations=2_000, batch_size=1_000, learning_rate=1e-4)
IMAGES = Training(iterations=100_000, batch_size=500, learning_rate=1e-3)

IDDPM = Column(
    "Table 1, rank-one data",
    "iddpm",
    RANK_ONE_SHAPE,
    (("channel_mults", (1, 1)), ("depth", 1)),
    RANK_ONE,
)
MNIST = Column(
    "Table 1, MNIST",
    "iddpm",
    (1, 28, 28),
    (("channel_mults", (1, 1)), ("depth", 2)),
    IMAGES,
)
CELEBA = Column(
    "Table 1, CelebA-HQ",
    "iddpm",
    (1, 56, 56),
    (("channel_mults", (1, 1, 1)), ("depth", 2)),
    IMAGES,
)
CIFAR10 = Column(
    "Table 1, CIFAR-10",
    "iddpm",
    (3, 32, 32),
    (("channel_mults", (1, 1, 1)), ("depth", 2)),
    Training(iterations=200_000, batch_size=500, learning_rate=1e-3),
)
DIT_2 = Column(
    "Table 1, rank-one data",
    "dit",
    RANK_ONE_SHAPE,
    (("patch_size", 2),),
    RANK_ONE,
)
DIT_4 = Column(
    "Table 1, rank-one data, DiT/4",
    "dit",
    RANK_ONE_SHAPE,
    (("patch_size", 4),),
    Training(iterations=4_000, batch_size=1_000, learning_rate=1e-4),
)
SPHERE = Column(
    "Table 1, spheres",
    "dit",
    RANK_ONE_SHAPE,
    (("patch_size", 2),),
    Training(iterations=10_000, batch_size=1_000, learning_rate=1e-4),
    data="sphere",
)
MLP = Column(
    "Proposition 1",
    "mlp",
    RANK_ONE_SHAPE,
    (("width", 256), ("depth", 3)),
    RANK_ONE,
)
CNN = Column(
    "Proposition 2",
    "cnn",
    RANK_ONE_SHAPE,
    (("channels", 32), ("depth", 3)),
    RANK_ONE,
)
