"""What every figure of the paper is to `sads reproduce`: cells to compute, and a drawing."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from sads.errors import InvalidArgumentError, counted
from sads.experiments.missing_baselines import Known, with_baselines
from sads.experiments.records import Record
from sads.experiments.run import Sources, check_enough, digest_images, get_geometry, read_source
from sads.experiments.spec import Cell, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.verdict import Claim, untested
from sads.geometry.result import Geometry
from sads.table1 import Column, Sampling, Training
from sads.tables import Row

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure as Picture

SCALES = ("smoke", "laptop", "paper")

Key = TypeVar("Key", bound=Hashable)


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise InvalidArgumentError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")


def smoke(column: Column) -> Column:
    """A column made so small that it tests the programs and nothing else."""
    return replace(
        column,
        num_networks=256,
        num_seeds=1,
        num_data=500,
        training=Training(20, 50, 1e-3),
        sampling=Sampling(100, 10, projections_per_dimension=16),
    )


@dataclass(frozen=True)
class Context:
    """What figures are made from and with."""

    scale: str
    store: Store
    layers: str  # what computes new cells
    sources: Sources = field(default_factory=dict)
    only: tuple[str, ...] = ()  # panels to make; all if empty
    num_seeds: int | None = None  # repetitions, if not as many as the scale has
    drawn_seeds: Mapping[str, int] | None = None  # by panel, of a drawing: what is finished counts
    make_geometry: Callable[[GeometrySpec, Store], Geometry] = get_geometry
    _geometries: dict[GeometrySpec, Geometry] = field(default_factory=dict)
    _baselines: Known = field(default_factory=dict)
    _digests: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    _used: dict[Cell, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def to_draw(self, panels: tuple[str, ...], seeds: Mapping[str, int]) -> "Context":
        """This context for the drawing of one figure.

        Args:
            panels: those that it shows.
            seeds: repetitions of panels of which more than the scale has were asked for once.
        """
        return replace(self, only=panels, drawn_seeds=seeds, _used={})

    @property
    def used_records(self) -> list[Record]:
        """The records that a figure has asked for."""
        return list(self._used.values())

    def geometry(self, spec: GeometrySpec) -> Geometry:
        """A geometry from the store, or estimated and kept there; loaded once."""
        if spec not in self._geometries:
            self._geometries[spec] = self.make_geometry(spec, self.store)
        return self._geometries[spec]

    def seeds(self, count: int, panel: str) -> range:
        """The seeds of a panel whose scale has so many, or as many as were asked for.

        What is drawn is drawn of them all, so that fewer than a claim is about do not look whole.
        """
        if self.drawn_seeds is None:
            return range(count if self.num_seeds is None else self.num_seeds)
        return range(max(count, self.drawn_seeds.get(panel, 0)))

    def panels(self, names: Iterable[str], on_request: Collection[str] = ()) -> list[str]:
        """The panels among these that were asked for; some are made only if they are named."""
        return [
            name
            for name in names
            if name in self.only or (not self.only and name not in on_request)
        ]

    def with_images(
        self, names: Iterable[str], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> tuple[list[str], list[str]]:
        """The sets of images among these that are known, and a note for each of the others.

        Args:
            shapes: of the images that cells are made of; what is finished of them is drawn without
                the images themselves.
        """
        known: list[str] = []
        notes: list[str] = []
        for name in names:
            if self._is_given(name) or (shapes and self._digest_of_finished(name, shapes[name])):
                known.append(name)
            else:
                why = "not run, its images are not known"
                notes.append(f"{name}: {why}; give --images {name}=SOURCE")
        return known, notes

    def digest(self, name: str, shape: tuple[int, ...]) -> str:
        """The digest of the images of a name; of those of finished cells if none are given."""
        if (name, shape) not in self._digests:
            finished = None if self._is_given(name) else self._digest_of_finished(name, shape)
            self._digests[name, shape] = finished or self._digest_of_given(name, shape)
        return self._digests[name, shape]

    def _digest_of_given(self, name: str, shape: tuple[int, ...]) -> str:
        images, _ = read_source(name, shape, self.sources)
        check_enough(name, images)
        return digest_images(images)

    def _is_given(self, name: str) -> bool:
        return name == "digits" or name in self.sources

    def _digest_of_finished(self, name: str, shape: tuple[int, ...]) -> str | None:
        """Of the images behind finished cells, for a drawing; None if they are not all the same."""
        if self.drawn_seeds is None:
            return None
        found = {
            cell.data_sha256
            for cell in (record.cell for record in self.store.archive.records.values())
            if cell.data.kind == "images" and cell.data.source == name
            if cell.family.shape == shape
        }
        return found.pop() if len(found) == 1 else None

    def tested(self, claims: Iterable[Claim]) -> list[Claim]:
        """Claims about training; a smoke test trains too little to test any of them."""
        if self.scale != "smoke":
            return list(claims)
        return [untested(claim, "a smoke test trains next to nothing") for claim in claims]

    def finished(self, cells: Mapping[Key, Cell]) -> dict[Key, Record]:
        """The records of those cells that are finished, with baselines, by the key of the cell."""
        found = {key: self.store.find(cell) for key, cell in cells.items()}
        done = {
            key: with_baselines(record, self.geometry, self.sources, self._baselines)
            for key, record in found.items()
            if record is not None
        }
        self._used.update((cells[key], record) for key, record in done.items())
        return done


@dataclass(frozen=True)
class Outcome:
    """A figure as made: pictures by name, a table, and what it says about the paper's claims."""

    pictures: dict[str, "Picture"]
    table: Sequence[Row]
    claims: list[Claim]
    notes: list[str] = field(default_factory=list)


def joined(parts: Iterable[Outcome]) -> Outcome:
    """The panels of a figure, each made by itself, as one figure."""
    pictures: dict[str, Picture] = {}
    table: list[Row] = []
    claims: list[Claim] = []
    notes: list[str] = []
    for part in parts:
        pictures |= part.pictures
        table += part.table
        claims += part.claims
        notes += part.notes
    return Outcome(pictures, table, claims, notes)


def no_cells(context: Context) -> list[Cell]:
    """The cells of a figure that trains nothing."""
    return []


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Args:
        panels: what `--only` may choose from.
        on_request: those of them that are made only if `--only` names them.
        cells: what must be computed for it.
        draw: the figure from the cells that are done.
        images: names of the sets of images that it is made of; `--images` says where they are.
    """

    name: str
    title: str
    draw: Callable[[Context], Outcome]
    cells: Callable[[Context], list[Cell]] = no_cells
    panels: tuple[str, ...] = ()
    on_request: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def note_cells(records: Collection[Record], total: int, layers: str, panel: str = "") -> list[str]:
    """What a reader must know of the cells behind a figure, or behind one of its panels."""
    prefix = f"{panel}: " if panel else ""
    notes = []
    if len(records) < total:
        notes.append(f"{prefix}{len(records)} of {counted(total, 'cell')} are finished")
    broken = sum(record.last.finite_share < 1 for record in records)
    if broken:
        notes.append(
            f"{prefix}in {broken} of {counted(len(records), 'cell')} some samples are not finite; "
            "distances are those of the others"
        )
    kinds = {
        kind: sum(r.cell.layers == kind for r in records)
        for kind in sorted({r.cell.layers for r in records})
    }
    if set(kinds) - {layers}:
        counts = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
        notes.append(f"{prefix}cells were computed by different layers: {counts}")
    return notes
