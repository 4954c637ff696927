"""What is known of a finished cell, and how it is written: as a file of its own, or as a line."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sads.errors import printable
from sads.estimates import Estimate, mean_estimate
from sads.experiments.spec import FORMAT, PAPER, Cell, FamilySpec
from sads.files import plain
from sads.from_json import DecodingError, decode, infinite_again
from sads.pipeline import Evaluation

LOSS_POINTS = 20  # of the loss curve that a record keeps


@dataclass(frozen=True)
class Facts:
    """What is known of a cell's data before training."""

    alpha: Estimate  # of the data as the network sees them
    energy: Estimate | None = None  # v^T G v along rank-one data; of a sphere's first direction
    num_train: int | None = None
    num_test: int | None = None


@dataclass(frozen=True)
class Record:
    """A finished cell."""

    cell: Cell
    evaluations: tuple[Evaluation, ...]  # one for each of the cell's evaluations
    losses: tuple[float, ...]  # means over equal parts of the training
    facts: Facts
    seconds: float
    versions: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)  # digests by name

    @property
    def last(self) -> Evaluation:
        """The evaluation at the end of the training."""
        return self.evaluations[-1]

    @property
    def has_baselines(self) -> bool:
        """Whether it says what doing nothing would score; older records do not."""
        return all(evaluation.baselines is not None for evaluation in self.evaluations)

    def to_json(self) -> dict[str, Any]:
        fields = plain(self)
        assert isinstance(fields, dict)
        return {"hash": self.cell.hash, **fields, "cell": self.cell.to_json()}

    @staticmethod
    def from_json(content: Any) -> "Record":
        """The record that `to_json` wrote; its cell must have the hash that it says."""
        if not isinstance(content, dict) or "cell" not in content:
            raise DecodingError("it is not a record of a cell")
        fields = {k: v for k, v in content.items() if k not in ("hash", "cell")}
        cell = Cell.from_json(content["cell"])
        if cell.hash != content.get("hash"):
            raise DecodingError("its specification does not have its hash")
        known = decode(_Fields, fields)
        if len(known.evaluations) != len(cell.evaluations) or not known.losses:
            raise DecodingError("it does not hold the evaluations of its cell")
        for name in known.files:
            if not re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII):
                raise DecodingError(f"it has the file {printable(name)[:60]!r}, which is no name")
        return Record(cell=cell, **vars(replace(known, facts=infinite_again(known.facts))))


@dataclass(frozen=True)
class TrainedLosses:
    """Training losses of models behind one kind of rotation, over all its seeds."""

    num_updates: int
    updates: tuple[float, ...]  # the middle of each part of the training
    means: tuple[float, ...]  # the loss of that part, mean over models
    last: Estimate  # the last part, with its error over models
    num_models: int


def trained_families(
    records: Iterable[Record], data: str, shape: tuple[int, ...]
) -> dict[FamilySpec, list[Record]]:
    """The records of models of some data that were trained as in the paper, by family."""
    found: dict[FamilySpec, list[Record]] = {}
    for record in records:
        cell = record.cell
        if (
            str(cell.data) == data
            and cell.family.shape == shape
            and replace(cell.practice, clip=False, ema_decay=None) == PAPER
        ):
            found.setdefault(cell.family, []).append(record)
    return found


def losses_by_rotation(records: Iterable[Record]) -> dict[str, TrainedLosses]:
    """The losses of models of one family and one set of data, by rotation.

    Random rotations are one kind. Of trainings of different settings the most frequent count, and
    of those that are as frequent the shortest, wherever they stand in the records.
    """
    # A training that was sampled in several ways, or computed by several layers, counts once; one
    # that went on from it is another.
    once = {
        (replace(r.cell, layers="").training_hash, r.cell.training.iterations): r for r in records
    }
    settings: dict[tuple[str, int, int], list[Record]] = {}
    for record in once.values():
        settings.setdefault(_setting(record), []).append(record)
    (_, length, parts), chosen = max(settings.items(), key=lambda s: (len(s[1]), -s[0][1]))
    groups: dict[str, list[tuple[float, ...]]] = {}
    for record in chosen:
        kind = record.cell.rotation
        groups.setdefault("random" if kind.startswith("random:") else kind, []).append(
            record.losses
        )
    return {
        kind: TrainedLosses(
            num_updates=length,
            updates=tuple((part + 0.5) * length / parts for part in range(parts)),
            means=tuple(sum(column) / len(column) for column in zip(*losses, strict=True)),
            last=mean_estimate([curve[-1] for curve in losses]),
            num_models=len(losses),
        )
        for kind, losses in groups.items()
    }


def _setting(record: Record) -> tuple[str, int, int]:
    """All that a training depends on but its seed and rotation, and how its losses were kept."""
    alike = replace(record.cell, seed=0, rotation="identity", layers="")
    return alike.training_hash, record.cell.training.iterations, len(record.losses)


def format_of(content: Any) -> int:
    """The format of a record's JSON, ours if it does not say; numbers of others are not today's."""
    cell = content.get("cell") if isinstance(content, dict) else None
    found = cell.get("format") if isinstance(cell, dict) else None
    return found if type(found) is int else FORMAT


@dataclass(frozen=True)
class _Fields:
    """A record without its cell."""

    evaluations: tuple[Evaluation, ...]
    losses: tuple[float, ...]
    facts: Facts
    seconds: float
    versions: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
