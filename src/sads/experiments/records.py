"""What is known of a finished cell, and how it is written: as a file of its own, or as a line."""

import re
from dataclasses import dataclass, field
from typing import Any

from sads.decoding import DecodingError, decode
from sads.errors import printable
from sads.estimates import Estimate
from sads.experiments.spec import FORMAT, Cell
from sads.files import plain
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
        return Record(cell=cell, **vars(known))


def is_older(content: Any) -> bool:
    """Whether the JSON of a record is of an older format, whose numbers are not today's."""
    cell = content.get("cell") if isinstance(content, dict) else None
    found = cell.get("format") if isinstance(cell, dict) else None
    return type(found) is int and found < FORMAT


@dataclass(frozen=True)
class _Fields:
    """A record without its cell."""

    evaluations: tuple[Evaluation, ...]
    losses: tuple[float, ...]
    facts: Facts
    seconds: float
    versions: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
