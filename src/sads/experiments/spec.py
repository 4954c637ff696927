"""An experiment as data: a cell is one training and its evaluation, with a stable hash.

A cell names everything that its numbers depend on. Its hash is that of its canonical JSON, so the
same cell has the same name in every process, on every machine, in every session. `FORMAT` is part
of it and is raised whenever the same specification would give other numbers.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sads.errors import InvalidArgumentError
from sads.family import ScoreFamily, family

FORMAT = 1


@dataclass(frozen=True)
class FamilySpec:
    """A family that sads knows by name."""

    name: str
    shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def build(self) -> ScoreFamily:
        return family(self.name, self.shape, **dict(self.options))

    def __str__(self) -> str:
        options = dict(self.options)
        text = f"{self.name}/{options['patch_size']}" if "patch_size" in options else self.name
        if "resample" in options:
            text += f" ({options['resample']})"
        return f"{text} {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class GeometrySpec:
    """A geometry under the default probe."""

    family: FamilySpec
    num_networks: int
    seed: int = 0

    @property
    def hash(self) -> str:
        return _hash({"format": FORMAT, "geometry": asdict(self)})


@dataclass(frozen=True)
class Budget:
    """How much one cell may cost: training, samples, and how they are measured."""

    num_data: int  # training samples
    iterations: int
    batch_size: int
    learning_rate: float
    num_samples: int  # of the model, and of fresh data to compare them with
    steps: int  # network evaluations per sample
    sampler: str
    projections_per_dimension: int = 64  # Appendix A: L = 64 D

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, str) and not value > 0:
                raise InvalidArgumentError(f"{name} of a cell must be positive, got {value}")


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation.

    `data` is one of

        eigenvector:RANK          N(0, D v v^T) along an eigenvector of the geometry, rank from 0
        subspace:START:STOP:RANK  the same, `v` uniform in the span of eigenvectors START to
                                  STOP - 1, another one for each seed and each RANK that it
                                  stands for
        basis:NAME:INDEX          the same, along a vector of a basis
        sphere:preferred|avoided  on the sphere in the three directions of that end
        images:NAME               real images; `data_sha256` says which

    and `rotation` is applied to the data before training and undone on the samples. The model is
    evaluated after each number of updates in `evaluate_at`, of which the last ends the training.
    """

    geometry: GeometrySpec
    data: str
    budget: Budget
    seed: int
    rotation: str = "identity"
    evaluate_at: tuple[int, ...] = ()
    keep_samples: int = 0  # of the last evaluation
    data_sha256: str = ""

    def __post_init__(self) -> None:
        at = self.evaluate_at
        if at and (list(at) != sorted(set(at)) or at[0] < 1 or at[-1] != self.budget.iterations):
            raise InvalidArgumentError(
                f"evaluate_at must rise to the {self.budget.iterations} updates of the budget, "
                f"got {at}"
            )

    @property
    def family(self) -> FamilySpec:
        return self.geometry.family

    @property
    def evaluations(self) -> tuple[int, ...]:
        return self.evaluate_at or (self.budget.iterations,)

    @property
    def hash(self) -> str:
        return _hash(self.to_json())

    @property
    def label(self) -> str:
        rotated = "" if self.rotation == "identity" else f", rotation {self.rotation}"
        return f"{self.family}, {self.data}{rotated}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps({"format": FORMAT, **asdict(self)}))

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Cell":
        """The cell that `to_json` wrote."""
        fields = {k: v for k, v in content.items() if k != "format"}
        geometry = dict(fields["geometry"])
        described = geometry["family"]
        geometry["family"] = FamilySpec(
            described["name"],
            tuple(described["shape"]),
            tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in described["options"]),
        )
        return Cell(
            **{
                **fields,
                "geometry": GeometrySpec(**geometry),
                "budget": Budget(**fields["budget"]),
                "evaluate_at": tuple(fields["evaluate_at"]),
            }
        )


def _hash(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]
