"""What every figure of the paper is to `sads reproduce`: cells to compute, and a drawing."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sads.errors import InvalidArgumentError
from sads.experiments.run import Sources, get_geometry
from sads.experiments.spec import Cell, GeometrySpec
from sads.experiments.store import Record, Store
from sads.experiments.verdict import NOT_TESTED, Claim
from sads.geometry.geometry import Geometry

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure as Picture

SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Context:
    """What figures are made from and with."""

    scale: str
    store: Store
    sources: Sources = field(default_factory=dict)
    only: tuple[str, ...] = ()  # panels to make; all if empty
    max_seeds: int | None = None  # fewer repetitions than the scale has
    make_geometry: Callable[[GeometrySpec, Store], Geometry] = get_geometry

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InvalidArgumentError(
                f"unknown scale {self.scale!r}; choose one of {', '.join(SCALES)}"
            )
        if self.max_seeds is not None and self.max_seeds < 1:
            raise InvalidArgumentError(f"give at least 1 seed, got {self.max_seeds}")

    def geometry(self, spec: GeometrySpec) -> Geometry:
        return self.make_geometry(spec, self.store)

    def seeds(self, count: int) -> range:
        """The seeds of a scale that has so many."""
        return range(count if self.max_seeds is None else min(count, self.max_seeds))

    def panels(self, names: Iterable[str]) -> list[str]:
        """Those that were asked for."""
        return [name for name in names if not self.only or name in self.only]

    def tested(self, claims: Iterable[Claim]) -> list[Claim]:
        """Claims about training; a smoke test trains too little to test any of them."""
        if self.scale != "smoke":
            return list(claims)
        return [replace(claim, verdict=NOT_TESTED) for claim in claims]

    def records(self, cells: Iterable[Cell]) -> dict[Cell, Record]:
        """Of the cells that are done."""
        found = {cell: self.store.get(cell) for cell in cells}
        return {cell: record for cell, record in found.items() if record is not None}


@dataclass(frozen=True)
class Outcome:
    """A figure as made: pictures by name, a table, and what it says about the paper's claims."""

    pictures: dict[str, "Picture"]
    table: list[dict[str, Any]]
    claims: list[Claim]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Args:
        panels: what `--only` may choose from.
        cells: what must be computed for it.
        draw: the figure from the cells that are done.
    """

    name: str
    title: str
    panels: tuple[str, ...]
    cells: Callable[[Context], list[Cell]]
    draw: Callable[[Context], Outcome]


def note_cells(records: Collection[Record], total: int, panel: str = "") -> list[str]:
    """What a reader must know of the cells behind a figure, or behind one of its panels."""
    prefix = f"{panel}: " if panel else ""
    notes = []
    if len(records) < total:
        notes.append(f"{prefix}{len(records)} of {total} cells are finished")
    broken = sum(record.metric("finite_share") < 1 for record in records)
    if broken:
        notes.append(
            f"{prefix}in {broken} of {len(records)} cells some samples are not finite; distances "
            "are those of the others"
        )
    return notes
