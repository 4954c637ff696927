"""Make figures in a folder: compute their cells, draw them, and write one page over all of them.

What is in the store, or in the `records.jsonl` of the folder, is not computed again; cells that
were finished here go to that file.
"""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from sads.cpu import layers_name
from sads.errors import InvalidArgumentError, OutputError, printable
from sads.experiments.archive import RECORDS
from sads.experiments.drawing import draw_figure, refuse_to_lose
from sads.experiments.figures import all_figures
from sads.experiments.figures.figure import Context, Figure, Outcome, check_scale
from sads.experiments.locks import FOLDER_LOCK
from sads.experiments.page import Summary, find_page
from sads.experiments.run import Sources
from sads.experiments.spec import MOST_SEEDS
from sads.experiments.store import MARK, Store
from sads.experiments.sweep import RayCluster, Watch, connect, prepare_geometry, sweep
from sads.files import TEMPORARY, check_folder, check_folder_name

MOST_WORKERS = 1024  # on one machine


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
        asked = (("worker", self.num_workers, MOST_WORKERS), ("seed", self.num_seeds, MOST_SEEDS))
        for what, count, most in asked:
            if count is not None and count < 1:
                raise InvalidArgumentError(f"give at least 1 {what}, got {count}")
            if count is not None and count > most:
                raise InvalidArgumentError(
                    f"{count:,} {what}s are more than the {most:,} that we run; give fewer"
                )

    @property
    def folder(self) -> Path:
        """Where pictures and the page go."""
        url = self.out or ""
        return Path(f"out/reproduce-{self.scale}" if "://" in url or not url else url)

    def open_store(self) -> Store:
        """A store elsewhere, or in the folder, which is new, empty or already ours.

        Nothing is written if there is a cluster to compute on and it does not answer, or if what is
        made could not stand in the folder.
        """
        if self.cluster is not None:
            connect(self.cluster)
        folder = self.folder
        if os.path.lexists(folder) and not folder.is_dir():
            raise OutputError(f"{printable(folder)} is not a folder; choose a folder for --out")
        if self.out is not None and "://" in self.out:
            self._check_earlier()
            return Store(self.out)
        ours = (folder / "store" / MARK).is_file() or (folder / RECORDS).is_file()
        if not ours and folder.is_dir() and any(map(_is_others, folder.iterdir())):
            raise OutputError(
                f"{printable(folder)} is not empty and holds no store of sads; choose another --out"
            )
        self._check_earlier()
        check_folder_name(folder)
        check_folder(folder)
        return Store(folder / "store", archive=folder)

    def _check_earlier(self) -> None:
        """Refuse a folder whose figures are of another scale or damaged, or whose page is not ours.

        Before anything is computed: claims of a page are corrected for each other, so that figures
        of a smoke test beside others would change the words of these.
        """
        find_page(self.folder)
        for name in {**all_figures(), **{figure.name: figure for figure in self.figures}}:
            summary = Summary.load(self.folder, name)
            if summary is not None and summary.scale != self.scale:
                raise OutputError(
                    f"{printable(self.folder / name)}.json is of --scale {summary.scale}, not "
                    f"{self.scale}, and all figures of a folder are of one; give --scale "
                    f"{summary.scale} or another --out"
                )


def _is_others(path: Path) -> bool:
    """Is it nothing that another process makes of a new folder at this moment?"""
    return path.name != "store" and not path.name.startswith((TEMPORARY, FOLDER_LOCK))


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
    chosen = [
        figure
        for figure in request.figures
        if not figure.panels or context.panels(figure.panels, figure.on_request)
    ]
    for figure in (figure for figure in chosen if figure.images):
        with observer.stage(f"{figure.name}: reading images"):
            figure.cells(context)  # before hours go into the first figure
            refuse_to_lose(figure, context, request.folder)
    for figure in chosen:
        started = time.perf_counter()
        with observer.stage(f"{figure.name}: preparing"):
            cells = figure.cells(context)
            refuse_to_lose(figure, context, request.folder)
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
            outcome, summary = draw_figure(figure, context, request.folder, command, cells)
        yield Made(
            figure=figure,
            outcome=outcome,
            summary=summary,
            failed={cell.label: reason for cell, reason in board.failed.items()},
            notes=board.notes,
            seconds=time.perf_counter() - started,
        )
