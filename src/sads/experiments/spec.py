"""An experiment as data: a cell is one training and its evaluation, with a stable hash.

A cell names everything that its numbers depend on, the layers that compute them included. Its hash
is that of its canonical JSON, so the same cell has the same name in every process, on every
machine, in every session. `FORMAT` is part of it and is raised whenever the same specification
would give other numbers (`tests/test_golden.py` notices).
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sads.data.spec import DataSpec
from sads.errors import InvalidArgumentError, counted
from sads.families import ScoreFamily, family
from sads.files import digest, plain
from sads.from_json import DecodingError, decode
from sads.schedule import TRAINABLE
from sads.shapes import format_shape
from sads.table1 import Column, Sampling, Training

FORMAT = 2
DECAY = 0.99  # of the average that a training keeps beside its weights, if the cell asks for none
MOST_SEEDS = 1024  # of a panel, which nobody trains
SKIPS = ("none", "gaussian")


@dataclass(frozen=True)
class FamilySpec:
    """A family that sads knows by name."""

    name: str
    shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, column: Column) -> "FamilySpec":
        return cls(column.family, column.shape, column.options)

    def build(self) -> ScoreFamily:
        return family(self.name, self.shape, **dict(self.options))

    @property
    def arguments(self) -> str:
        """How a command is told of it."""
        pairs = [f"{k}={_option(v)}" for k, v in self.options]
        options = "".join(f" -o {shlex.quote(pair)}" for pair in pairs)
        return f"{self.name} --shape {format_shape(self.shape)}{options}"

    def __str__(self) -> str:
        options = dict(self.options)
        text = f"{self.name}/{options['patch_size']}" if "patch_size" in options else self.name
        if "resample" in options:
            text += f" ({options['resample']})"
        return f"{text} {format_shape(self.shape)}"


@dataclass(frozen=True)
class GeometrySpec:
    """A geometry under the default probe."""

    family: FamilySpec
    num_networks: int
    seed: int = 0

    @classmethod
    def of(cls, column: Column) -> "GeometrySpec":
        return cls(FamilySpec.of(column), column.num_networks)

    @property
    def hash(self) -> str:
        return _hash({"format": FORMAT, "geometry": plain(self)})

    @property
    def command(self) -> str:
        """What makes it."""
        return (
            f"sads geometry {self.family.arguments} --networks {self.num_networks} "
            f"--seed {self.seed}"
        )


@dataclass(frozen=True)
class Practice:
    """How models are trained and sampled; the defaults are the paper's way."""

    prediction: str = "epsilon"
    clip: bool = False  # x_0 at every sampling step, to the range of the training data
    ema_decay: float | None = None
    centre: bool = False
    skip: str = "none"  # "gaussian": the Gaussian part of the score beside the network

    def __post_init__(self) -> None:
        if self.prediction not in TRAINABLE or self.skip not in SKIPS:
            raise InvalidArgumentError(
                f"unknown prediction {self.prediction!r} or skip {self.skip!r}; choose from "
                f"{', '.join(TRAINABLE)} and from {', '.join(SKIPS)}"
            )
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InvalidArgumentError(f"ema_decay lies between 0 and 1, got {self.ema_decay}")

    def changes(self) -> dict[str, Any]:
        """What is not as in the paper."""
        paper = vars(Practice())
        return {name: value for name, value in vars(self).items() if value != paper[name]}

    def __str__(self) -> str:
        words = {
            "prediction": f"{self.prediction}-prediction",
            "clip": "clipped",
            "ema_decay": f"EMA {self.ema_decay}",
            "centre": "centred",
            "skip": f"{self.skip} skip",
        }
        return ", ".join(words[name] for name in self.changes()) or "as in the paper"


PAPER = Practice()
COMMON = Practice(prediction="v", clip=True, ema_decay=DECAY)  # what people do


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation.

    `data` of the source `geometry` lie along directions of the cell's own geometry. The rotation is
    applied to the data before training and undone on the samples. The model is evaluated after
    each number of updates in `evaluate_at`, of which the last ends the training.

    The geometry, and with it the rotation, is that of the family's noise predictions whatever the
    `practice`, so that cells of different practices train on the same data.
    """

    geometry: GeometrySpec
    data: DataSpec
    num_data: int  # training samples
    training: Training
    sampling: Sampling
    seed: int
    layers: str  # what computes: see sads.cpu
    rotation: str = "identity"
    evaluate_at: tuple[int, ...] = ()
    keep_samples: int = 0  # of the last evaluation
    data_sha256: str = ""  # of images, which a name alone does not tell
    practice: Practice = PAPER

    def __post_init__(self) -> None:
        at = self.evaluate_at
        end = self.training.iterations
        if at and (list(at) != sorted(set(at)) or at[0] < 1 or at[-1] != end):
            raise InvalidArgumentError(
                f"evaluate_at must rise to the {counted(end, 'update')} of the training, got {at}"
            )

    @property
    def family(self) -> FamilySpec:
        return self.geometry.family

    @property
    def evaluations(self) -> tuple[int, ...]:
        return self.evaluate_at or (self.training.iterations,)

    @property
    def hash(self) -> str:
        return _hash(self.to_json())

    @property
    def twin_hash(self) -> str:
        """The hash of this cell whatever computes it."""
        return replace(self, layers="").hash

    @property
    def average_decay(self) -> float:
        """The decay of the average of weights that is kept, sampled from or not."""
        decay = self.practice.ema_decay
        return DECAY if decay is None else decay

    @property
    def training_hash(self) -> str:
        """The hash of all that the weights depend on: cells that only sample otherwise share it.

        Nor do weights depend on how long the training goes on after them. Of images, the size of
        the test set says which ones are left for training.
        """
        images = self.data.kind == "images"
        weights = replace(
            self,
            training=replace(self.training, iterations=0),
            sampling=Sampling(self.sampling.num_samples if images else 0),
            practice=replace(self.practice, clip=False, ema_decay=self.average_decay),
            evaluate_at=(),
            keep_samples=0,
        )
        return weights.hash

    @property
    def label(self) -> str:
        rotated = "" if self.rotation == "identity" else f", rotation {self.rotation}"
        practice = "" if self.practice == PAPER else f", {self.practice}"
        return f"{self.family}, {self.data}{rotated}{practice}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        fields = plain(self)
        assert isinstance(fields, dict)
        fields["data"] = str(self.data)
        fields["practice"] = self.practice.changes()
        if not fields["practice"]:  # such cells are older than the other practices
            del fields["practice"]
        return {"format": FORMAT, **fields}

    @staticmethod
    def from_json(content: Any) -> "Cell":
        """The cell that `to_json` wrote."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise DecodingError(f"it is not a cell of format {FORMAT}")
        return decode(Cell, {k: v for k, v in content.items() if k != "format"})


def cell_of(column: Column, **fields: Any) -> Cell:
    """A cell that trains and samples as a column of Table 1, or of a smaller copy of it, says."""
    return Cell(
        geometry=GeometrySpec.of(column),
        num_data=column.num_data,
        training=column.training,
        sampling=column.sampling,
        **fields,
    )


def _option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _hash(content: object) -> str:
    return digest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())[:20]
