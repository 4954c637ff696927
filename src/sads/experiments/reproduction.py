"""Make figures in a folder: compute their cells, draw them, and write one page over all of them.

What is in the store, or in the `records.jsonl` of the folder, is not computed again; cells that
were finished here go to that file.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from sads.cpu import layers_name
from sads.errors import InvalidArgumentError, OutputError, printable
from sads.experiments.archive import RECORDS
from sads.experiments.figures.figure import Context, Figure, Outcome, check_scale
from sads.experiments.page import Summary, plain_rows
from sads.experiments.preregistration import note_registration
from sads.experiments.run import Sources
from sads.experiments.store import MARK, Store
from sads.experiments.sweep import RayCluster, Watch, connect, prepare_geometry, sweep
from sads.tables import titles

MOST_ASKED = 1024  # seeds of a cell, or workers on one machine


@dataclass(frozen=True)
class Request:
    """Which figures to make, how large, and by whom.

    Args:
        only: panels to make; all if empty.
        sources: where the images of a name are.
        num_seeds: repetitions; as many as the scale has if not given.
        num_workers: local processes, one thread each; one a core if not given.
        cluster: compute on Ray instead.
        out: a folder of pictures and store, or the fsspec URL of a store alone.
        compute: whether cells that are missing are computed, or left out of the figures.
    """

    figures: tuple[Figure, ...]
    scale: str = "smoke"
    only: tuple[str, ...] = ()
    sources: Sources = field(default_factory=dict)
    num_seeds: int | None = None
    num_workers: int | None = None
    cluster: RayCluster | None = None
    out: str | None = None
    compute: bool = True

    def __post_init__(self) -> None:
        check_scale(self.scale)
        for what, count in (("worker", self.num_workers), ("seed", self.num_seeds)):
            if count is not None and count < 1:
                raise InvalidArgumentError(f"give at least 1 {what}, got {count}")
            if count is not None and count > MOST_ASKED:
                raise InvalidArgumentError(
                    f"{count:,} {what}s are more than the {MOST_ASKED:,} that we run; give fewer"
                )

    @property
    def folder(self) -> Path:
        """Where pictures and the page go."""
        url = self.out or ""
        return Path(f"out/reproduce-{self.scale}" if "://" in url or not url else url)

    def open_store(self) -> Store:
        """A store elsewhere, or in the folder, which is new, empty or already ours.

        Nothing is written if there is a cluster to compute on and it does not answer.
        """
        if self.cluster is not None:
            connect(self.cluster)
        if self.out is not None and "://" in self.out:
            return Store(self.out)
        folder = self.folder
        if os.path.lexists(folder) and not folder.is_dir():
            raise OutputError(f"{printable(folder)} is not a folder; choose a folder for --out")
        ours = (folder / "store" / MARK).is_file() or (folder / RECORDS).is_file()
        if folder.is_dir() and any(folder.iterdir()) and not ours:
            raise OutputError(
                f"{printable(folder)} is not empty and holds no store of sads; choose another --out"
            )
        return Store(folder / "store", archive=folder)


class Observer(Protocol):
    """Whoever wants to see how a figure gets on."""

    def stage(self, text: str) -> AbstractContextManager[None]:
        """Entered while something is done that nobody can count."""

    def watching(self, figure: Figure) -> AbstractContextManager[Watch | None]:
        """Entered while cells are computed; called with the board whenever something happens."""


@dataclass(frozen=True)
class Made:
    """A figure that was made; `failed` has reasons by the labels of cells."""

    figure: Figure
    outcome: Outcome
    summary: Summary
    failed: dict[str, str]
    notes: list[str]  # of the sweep
    seconds: float


def make_figures(
    request: Request, store: Store, command: str, observer: Observer
) -> Iterator[Made]:
    """Each of the figures once it is made; those of which no panel was asked for are left out."""
    context = Context(
        scale=request.scale,
        store=store,
        layers=layers_name(on_gpu=request.cluster is not None and request.cluster.gpus > 0),
        sources=request.sources,
        only=request.only,
        num_seeds=request.num_seeds,
        make_geometry=partial(prepare_geometry, cluster=request.cluster),
    )
    for figure in request.figures:
        if figure.panels and not context.panels(figure.panels, figure.on_request):
            continue
        started = time.perf_counter()
        with observer.stage(f"{figure.name}: preparing"):
            cells = figure.cells(context)
        with observer.watching(figure) as watch:
            board = sweep(
                cells if request.compute else [],
                store,
                num_workers=request.num_workers,
                cluster=request.cluster,
                sources=request.sources,
                watch=watch,
            )
        with observer.stage(f"{figure.name}: drawing"):
            drawn = _with_earlier_panels(figure, context, request.folder)
            outcome = figure.draw(drawn)
            done = drawn.used_records
            if store.is_local:
                store.to_archive(done)
            older = note_registration([record.versions for record in done], figure.name)
            outcome = replace(outcome, notes=[*outcome.notes, *older])
            summary = write_outcome(figure, outcome, request.folder, drawn, command)
        yield Made(
            figure=figure,
            outcome=outcome,
            summary=summary,
            failed={cell.label: reason for cell, reason in board.failed.items()},
            notes=board.notes,
            seconds=time.perf_counter() - started,
        )


def _with_earlier_panels(figure: Figure, context: Context, folder: Path) -> Context:
    """The context that draws panels of an earlier command beside those of `--only`."""
    summary = Summary.load(folder / f"{figure.name}.json")
    if not context.only or summary is None or summary.scale != context.scale:
        return context.anew()
    return context.anew((*context.only, *summary.panels))


def write_outcome(
    figure: Figure, outcome: Outcome, folder: Path, context: Context, command: str
) -> Summary:
    """Write the pictures of a figure and its `figN.json`."""
    from sads.plots.style import save

    pictures = {name: f"{_file_name(figure, name)}.png" for name in outcome.pictures}
    refuse_others_files(folder, f"{figure.name}.json", pictures.values())
    summary = Summary(
        figure=figure.name,
        title=figure.title,
        scale=context.scale,
        panels=tuple(context.panels(figure.panels, figure.on_request)),
        command=command,
        claims=tuple(outcome.claims),
        columns=titles(outcome.table),
        table=plain_rows(outcome.table),
        notes=tuple(outcome.notes),
        pictures=pictures,
        cells=tuple(sorted(record.cell.hash for record in context.used_records)),
    )
    summary.save(folder)  # first: it says which pictures are ours
    for name, picture in outcome.pictures.items():
        save(picture, folder / pictures[name])
    return summary


def refuse_others_files(folder: Path, summary: str, pictures: Iterable[str]) -> None:
    """One line if a figure would replace a file that no earlier one has written."""
    earlier = Summary.load(folder / summary)
    ours = set() if earlier is None else {summary, *earlier.pictures.values()}
    for name in (summary, *pictures):
        if name not in ours and os.path.lexists(folder / name):
            raise OutputError(
                f"{printable(folder / name)} is there already and not of this figure; move it away "
                "and run this again: nothing is computed twice"
            )


def _file_name(figure: Figure, picture: str) -> str:
    return picture if picture.startswith(figure.name) else f"{figure.name}-{picture}"
