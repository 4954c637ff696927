"""`sads reproduce`: the paper's figures, from cells in a store."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sads.cli.interrupts import Interrupted, command_line
from sads.cli.options import AsJson
from sads.cli.printing import (
    clean,
    console,
    messages,
    print_line,
    print_message,
    print_note,
    print_table,
    print_written,
    working,
)
from sads.errors import InvalidArgumentError, OutputError, printable

if TYPE_CHECKING:
    from sads.experiments.figures.figure import Context, Figure, Outcome
    from sads.experiments.page import Summary
    from sads.experiments.store import Store
    from sads.experiments.sweep import Board, Watch

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = (
    "**Examples**\n\n- `sads reproduce fig6 --scale smoke` (minutes)\n\n"
    "- `sads reproduce fig6 --scale laptop --only iddpm-nearest,dit-4 --workers 2`\n\n"
    "- `sads reproduce fig8 --images mnist=mnist_10k.npz --only digits,mnist`\n\n"
    "- `sads reproduce all --scale paper --ray 10.0.0.1:6379 --gpus 0.5 --out s3://bucket/sads`\n\n"
    "Stop it at any time; the same command goes on where it was."
)
VERDICT_STYLES = {"supported": "green", "contradicted": "red", "inconclusive": "yellow"}


@app.command(epilog=EXAMPLES, rich_help_panel="The paper")
def reproduce(
    figures: Annotated[
        list[str], typer.Argument(help="fig1 ... fig9, or all.", metavar="FIGURE...")
    ],
    scale: Annotated[
        str, typer.Option(help="smoke (minutes), laptop (hours) or paper (Table 1 exactly).")
    ] = "smoke",
    only: Annotated[
        str | None, typer.Option(help="Panels to make, with commas, such as dit-4,digits.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SOURCE of real images: mnist, cifar10, faces; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Repetitions; as many as the scale has if not given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Local processes, one thread each; else one a core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster to run on, or auto.")
    ] = None,
    cpus: Annotated[float, typer.Option(help="CPUs of a cell on Ray.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPUs of a cell on Ray.")] = 0.0,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of pictures and store, or fsspec URL of a store alone."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make figures of the paper, each with a table and a verdict for its claims.

    A verdict is one of four words: supported, contradicted, inconclusive, not tested. All claims in
    the folder are corrected for each other.

    Results of every training go to a store as they finish; what is there is not computed again.
    So is what stands in the `records.jsonl` of the folder, into which all finished cells go.
    """
    from sads.cpu import layers_name
    from sads.experiments.figures import all_figures
    from sads.experiments.figures.figure import Context
    from sads.experiments.page import judge_page, write_page
    from sads.experiments.registration import note_registration
    from sads.experiments.sweep import RayCluster, connect, prepare_geometry, sweep
    from sads.files import to_json

    known = all_figures()
    chosen = read_figures(figures, known)
    panels = read_panels(only, chosen)
    sources = read_sources(images or [], chosen)
    cluster = None if ray is None else RayCluster(ray, cpus, gpus)
    check_scale(scale)
    check_counts(workers, seeds)
    if cluster is not None:
        connect(cluster)
    folder, store = open_out(out, scale)
    context = Context(
        scale=scale,
        store=store,
        layers=layers_name(on_gpu=gpus > 0),
        sources=sources,
        only=panels,
        max_seeds=seeds,
        make_geometry=partial(prepare_geometry, cluster=cluster),
    )
    summaries, failed = {}, {}
    with continued_by_itself(store):
        for figure in chosen:
            if figure.panels and not context.panels(figure.panels):
                continue  # --only chooses panels of other figures
            started = time.perf_counter()
            with working(f"{figure.name}: preparing", as_json):
                cells = figure.cells(context)
            with watching(figure, quiet=as_json) as watch:
                board = sweep(
                    cells, store, num_workers=workers, cluster=cluster, sources=sources, watch=watch
                )
            for note in board.notes:
                print_note(note)
            for cell, reason in board.failed.items():
                failed[cell.label] = reason
                print_message(f"failed: {cell.label}: {reason}", style="red")
            with working(f"{figure.name}: drawing", as_json):
                drawn = with_earlier_panels(figure, context, folder)
                outcome = figure.draw(drawn)
                done = drawn.finished(dict(enumerate(figure.cells(drawn)))).values()
                if store.is_local:
                    store.to_archive(done)
                older = note_registration([record.versions for record in done])
                outcome = replace(outcome, notes=[*outcome.notes, *older])
            summary = write_outcome(figure, outcome, folder, drawn)
            summaries[figure.name] = summary
            if not as_json:
                print_outcome(figure, outcome, summary, folder, time.perf_counter() - started)
    page = write_page(folder, known)
    summaries = {name: s for name, s in judge_page(folder, known).items() if name in summaries}
    if as_json:
        print(to_json({"figures": summaries, "failed": failed}))
    else:
        print_claims(summaries)
        print_written(page)
    if failed:
        raise typer.Exit(1)


@contextmanager
def continued_by_itself(store: "Store") -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"what is finished is in {printable(store.url)}; continue with: {command_line()}"
        ) from None


def read_figures(names: list[str], known: "dict[str, Figure]") -> "list[Figure]":
    if "all" in names:
        return list(known.values())
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"unknown figure {name!r}; choose from {', '.join(known)}, or all"
            )
    return [known[name] for name in dict.fromkeys(names)]


def read_panels(text: str | None, figures: "list[Figure]") -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    known = [panel for figure in figures for panel in figure.panels]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"{', '.join(f.name for f in figures)} has no panel {name!r}; "
                f"--only takes {', '.join(known) or 'nothing here'}"
            )
    return names


def read_sources(texts: list[str], figures: "list[Figure]") -> dict[str, str]:
    """Where the images of a name are; names that no figure has are refused."""
    known = list(dict.fromkeys(panel for figure in figures for panel in figure.images))
    sources = {}
    for text in texts:
        name, separator, source = text.partition("=")
        if not separator or not name or not source:
            raise InvalidArgumentError(
                f"{text!r} does not say which images are where; write mnist=FILE"
            )
        if name not in known:
            raise InvalidArgumentError(
                f"{', '.join(f.name for f in figures)} has no images {name!r}; --images takes "
                f"{', '.join(known) or 'nothing here'}"
            )
        # Ray's workers start in a directory of their own.
        sources[name] = os.path.abspath(source) if os.path.exists(source) else source
    return sources


def check_scale(scale: str) -> None:
    from sads.experiments.figures.figure import SCALES

    if scale not in SCALES:
        raise InvalidArgumentError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")


def check_counts(workers: int | None, seeds: int | None) -> None:
    for what, count in (("worker", workers), ("seed", seeds)):
        if count is not None and count < 1:
            raise InvalidArgumentError(f"give at least 1 {what}, got {count}")


def open_out(out: str | None, scale: str) -> "tuple[Path, Store]":
    """Pictures and a store go to a folder that is new, empty or already ours."""
    from sads.experiments.archive import RECORDS
    from sads.experiments.store import MARK, Store

    url = out or f"out/reproduce-{scale}"
    if "://" in url:
        return Path(f"out/reproduce-{scale}"), Store(url)
    folder = Path(url)
    if os.path.lexists(folder) and not folder.is_dir():
        raise OutputError(f"{printable(folder)} is not a folder; choose a folder for --out")
    ours = (folder / "store" / MARK).is_file() or (folder / RECORDS).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise OutputError(
            f"{printable(folder)} is not empty and holds no store of sads; choose another --out"
        )
    return folder, Store(folder / "store", archive=folder)


@contextmanager
def watching(figure: "Figure", quiet: bool) -> "Iterator[Watch | None]":
    """A live table on a terminal; elsewhere a line now and then."""
    if quiet:
        yield None
    elif messages.is_terminal:
        with Live(console=messages, refresh_per_second=4, transient=True) as live:
            yield lambda board: live.update(board_table(figure, board))
    else:
        yield _LineWriter(figure)


class _LineWriter:
    """One line whenever a cell has ended."""

    def __init__(self, figure: "Figure"):
        self._figure, self._last = figure, -1

    def __call__(self, board: "Board") -> None:
        ended = board.finished + len(board.failed)
        if ended != self._last and board.total:
            self._last = ended
            print(f"{self._figure.name}: {describe(board)}", file=sys.stderr, flush=True)


def describe(board: "Board") -> str:
    text = f"{board.found + board.finished} of {board.total} cells done"
    text += f" ({board.found} were there)" if board.found else ""
    text += f", {len(board.failed)} failed" if board.failed else ""
    left = board.seconds_left()
    return text + (f", {format_seconds(left)} left" if left else "")


def board_table(figure: "Figure", board: "Board") -> Table:
    table = Table(box=None, show_header=False, title=f"{figure.name}: {describe(board)}")
    for cell, share in board.running.items():
        table.add_row(Text(clean(cell.label)), f"{share:4.0%}")
    for cell, reason in list(board.failed.items())[-3:]:
        table.add_row(Text(clean(cell.label)), Text(clean(reason)), style="red")
    return table


def format_seconds(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def with_earlier_panels(figure: "Figure", context: "Context", folder: Path) -> "Context":
    """To draw what an earlier command made of a figure beside the panels of `--only`."""
    from sads.experiments.page import Summary

    summary = Summary.load(folder / f"{figure.name}.json")
    if not context.only or summary is None or summary.scale != context.scale:
        return context
    return replace(context, only=(*context.only, *summary.panels))


def write_outcome(
    figure: "Figure", outcome: "Outcome", folder: Path, context: "Context"
) -> "Summary":
    from sads.experiments.page import Summary, plain_rows
    from sads.plots.style import save
    from sads.tables import titles

    pictures = {name: f"{_file_name(figure, name)}.png" for name in outcome.pictures}
    refuse_others_files(folder, f"{figure.name}.json", pictures.values())
    summary = Summary(
        figure=figure.name,
        title=figure.title,
        scale=context.scale,
        panels=tuple(context.panels(figure.panels)),
        command=command_line(),
        claims=tuple(outcome.claims),
        columns=titles(outcome.table),
        table=plain_rows(outcome.table),
        notes=tuple(outcome.notes),
        pictures=pictures,
    )
    summary.save(folder)  # first: it says which pictures are ours
    for name, picture in outcome.pictures.items():
        save(picture, folder / pictures[name])
    return summary


def refuse_others_files(folder: Path, summary: str, pictures: Iterable[str]) -> None:
    """One line if a figure would replace a file that no earlier one has written."""
    from sads.experiments.page import Summary

    earlier = Summary.load(folder / summary)
    ours = set() if earlier is None else {summary, *earlier.pictures.values()}
    for name in (summary, *pictures):
        if name not in ours and os.path.lexists(folder / name):
            raise OutputError(
                f"{printable(folder / name)} is there already and not of this figure; move it away "
                "and run this again: nothing is computed twice"
            )


def _file_name(figure: "Figure", picture: str) -> str:
    return picture if picture.startswith(figure.name) else f"{figure.name}-{picture}"


def print_claim(verdict: str, text: str, style: str) -> None:
    line = Text.assemble((clean(verdict), f"bold {style}"), f": {clean(text)}")
    console.print(line, highlight=False)


def print_outcome(
    figure: "Figure", outcome: "Outcome", summary: "Summary", folder: Path, seconds: float
) -> None:
    title = f"{figure.name}: {figure.title} ({summary.scale}, {format_seconds(seconds)})"
    console.rule(title, style="dim")
    if outcome.table:
        print_table(outcome.table)
    for note in outcome.notes:
        print_line(f"note: {note}")
    print_written(*(folder / file for file in summary.pictures.values()))


def print_claims(summaries: "dict[str, Summary]") -> None:
    """The words of all claims, when no figure of the page is missing any more."""
    console.rule("claims, corrected for all on the page", style="dim")
    for name, summary in summaries.items():
        for claim in summary.claims:
            style = VERDICT_STYLES.get(claim.verdict, "dim")
            print_claim(claim.verdict, f"{name}, {claim.text}", style)
            if claim.reason:
                print_line(f"  {claim.reason}")
            print_line(f"  {claim.evidence}")
