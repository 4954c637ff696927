"""`sads reproduce`: the paper's figures, from cells in a store. Parsing and printing only."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sads.commands.printing import AsJson, command_line, console, messages, working
from sads.errors import InvalidArgumentError, OutputError
from sads.experiments.figure import SCALES, Context, Figure, Outcome
from sads.experiments.figures import FIGURES
from sads.experiments.page import format_value, read_summary, write_page
from sads.experiments.store import Store
from sads.experiments.sweep import Board, Cluster, Watch, connect, prepare_geometry, sweep
from sads.files import to_json, write_json

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = (
    "**Examples**\n\n- `sads reproduce fig6 --scale smoke` (minutes)\n\n"
    "- `sads reproduce fig6 --scale laptop --only iddpm-nearest,dit-4 --workers 2`\n\n"
    "- `sads reproduce fig8 --images mnist=mnist_10k.npz --only digits,mnist`\n\n"
    "- `sads reproduce all --scale paper --ray 10.0.0.1:6379 --gpus 0.5 --out s3://bucket/sads`\n\n"
    "Stop it at any time; the same command goes on where it was."
)
VERDICT_STYLES = {"supported": "green", "not supported": "red"}


@app.command(epilog=EXAMPLES)
def reproduce(
    figures: Annotated[
        list[str], typer.Argument(help=f"{', '.join(FIGURES)}, or all.", metavar="FIGURE...")
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

    Results of every training go to a store as they finish; what is there is not computed again.
    """
    chosen = read_figures(figures)
    panels = read_panels(only, chosen)
    sources = read_sources(images or [])
    cluster = None if ray is None else Cluster(ray, cpus, gpus)
    if scale not in SCALES:
        raise InvalidArgumentError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
    if cluster is not None:
        connect(cluster)
    folder, store = open_out(out, scale)
    context = Context(
        scale, store, sources, panels, seeds, partial(prepare_geometry, cluster=cluster)
    )
    summaries, failed = {}, {}
    for figure in chosen:
        if figure.panels and not context.panels(figure.panels):
            continue  # --only chooses panels of other figures
        started = time.perf_counter()
        with working(f"{figure.name}: preparing", as_json):
            cells = figure.cells(context)
        try:
            with watching(figure, quiet=as_json) as watch:
                board = sweep(
                    cells, store, num_workers=workers, cluster=cluster, sources=sources, watch=watch
                )
        except KeyboardInterrupt:
            messages.print(
                f"interrupted: what is finished is in {store.url}; go on with\n{command_line()}",
                highlight=False, markup=False, soft_wrap=True,
            )  # fmt: skip
            raise typer.Exit(130) from None
        for note in board.notes:
            messages.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
        for cell, reason in board.failed.items():
            failed[cell.label] = reason
            text = f"failed: {cell.label}: {reason}"
            messages.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
        with working(f"{figure.name}: drawing", as_json):
            drawn = with_earlier_panels(figure, context, folder)
            outcome = figure.draw(drawn)
        summary = write_outcome(figure, outcome, folder, drawn)
        summary["seconds"] = round(time.perf_counter() - started, 1)
        summaries[figure.name] = summary
        if not as_json:
            print_outcome(figure, outcome, summary)
    store.records()  # brings the index up to date
    page = write_page(folder)
    if not as_json:
        console.print(f"wrote {page}", highlight=False, soft_wrap=True)
    if as_json:
        print(to_json({"figures": summaries, "failed": failed}))
    if failed:
        raise typer.Exit(1)


def read_figures(names: list[str]) -> list[Figure]:
    if "all" in names:
        return list(FIGURES.values())
    for name in names:
        if name not in FIGURES:
            raise InvalidArgumentError(
                f"unknown figure {name!r}; choose from {', '.join(FIGURES)}, or all"
            )
    return [FIGURES[name] for name in dict.fromkeys(names)]


def read_panels(text: str | None, figures: list[Figure]) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    known = [panel for figure in figures for panel in figure.panels]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"{', '.join(f.name for f in figures)} has no panel {name!r}; "
                f"--only takes {', '.join(known) or 'nothing here'}"
            )
    return names


def read_sources(texts: list[str]) -> dict[str, str]:
    sources = {}
    for text in texts:
        name, separator, source = text.partition("=")
        if not separator or not name or not source:
            raise InvalidArgumentError(
                f"{text!r} does not say which images are where; write mnist=FILE"
            )
        # Ray's workers start in a directory of their own.
        sources[name] = os.path.abspath(source) if os.path.exists(source) else source
    return sources


def open_out(out: str | None, scale: str) -> tuple[Path, Store]:
    """Pictures and a store go to a folder that is new, empty or already ours."""
    url = out or f"out/reproduce-{scale}"
    if "://" in url:
        return Path(f"out/reproduce-{scale}"), Store(url)
    folder = Path(url)
    if folder.is_file():
        raise OutputError(f"{folder} is a file; choose a folder for --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "store").is_dir():
        raise OutputError(f"{folder} is not empty and holds no store of sads; choose another --out")
    return folder, Store(folder / "store")


@contextmanager
def watching(figure: Figure, quiet: bool) -> Iterator[Watch | None]:
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

    def __init__(self, figure: Figure):
        self._figure, self._last = figure, -1

    def __call__(self, board: Board) -> None:
        ended = board.finished + len(board.failed)
        if ended != self._last and board.total:
            self._last = ended
            print(f"{self._figure.name}: {describe(board)}", file=sys.stderr, flush=True)


def describe(board: Board) -> str:
    text = f"{board.found + board.finished} of {board.total} cells done"
    text += f" ({board.found} were there)" if board.found else ""
    text += f", {len(board.failed)} failed" if board.failed else ""
    left = board.seconds_left()
    return text + (f", {format_seconds(left)} left" if left else "")


def board_table(figure: Figure, board: Board) -> Table:
    table = Table(box=None, show_header=False, title=f"{figure.name}: {describe(board)}")
    for cell, share in board.running.items():
        table.add_row(cell.label, f"{share:4.0%}")
    for cell, reason in list(board.failed.items())[-3:]:
        table.add_row(cell.label, escape(reason), style="red")
    return table


def format_seconds(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def with_earlier_panels(figure: Figure, context: Context, folder: Path) -> Context:
    """To draw what an earlier command made of a figure beside the panels of `--only`."""
    summary = read_summary(folder / f"{figure.name}.json")
    if not context.only or summary is None or summary["scale"] != context.scale:
        return context
    return replace(context, only=(*context.only, *summary["panels"]))


def write_outcome(
    figure: Figure, outcome: Outcome, folder: Path, context: Context
) -> dict[str, Any]:
    from sads import plots

    pictures = {
        name: str(plots.save(picture, folder / f"{_file_name(figure, name)}.png"))
        for name, picture in outcome.pictures.items()
    }
    summary = {
        "figure": figure.name,
        "title": figure.title,
        "scale": context.scale,
        "panels": context.panels(figure.panels),
        "command": command_line(),
        "claims": [vars(claim) for claim in outcome.claims],
        "table": outcome.table,
        "notes": outcome.notes,
        "pictures": pictures,
    }
    write_json(folder / f"{figure.name}.json", summary)
    return summary


def _file_name(figure: Figure, picture: str) -> str:
    return picture if picture.startswith(figure.name) else f"{figure.name}-{picture}"


def print_outcome(figure: Figure, outcome: Outcome, summary: dict[str, Any]) -> None:
    console.rule(f"{figure.name}: {figure.title} ({summary['scale']})", style="dim")
    if outcome.table:
        columns = list(dict.fromkeys(key for row in outcome.table for key in row))
        shown = [c for c in columns if not c.endswith(" error")]
        table = Table(box=None, header_style="bold")
        for column in shown:
            table.add_column(column, justify="right")
        for row in outcome.table:
            table.add_row(*(format_value(row.get(c), row.get(f"{c} error")) for c in shown))
        console.print(table)
    for claim in outcome.claims:
        style = VERDICT_STYLES.get(claim.verdict, "yellow")
        console.print(f"[bold {style}]{claim.verdict}[/]: {escape(claim.text)}", highlight=False)
        console.print(f"  {claim.evidence}", highlight=False, markup=False)
    for note in outcome.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    for path in summary["pictures"].values():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
