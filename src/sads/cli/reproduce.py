"""`sads reproduce`: the paper's figures, from cells in a store."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sads.cli.given_options import refuse_given
from sads.cli.interrupts import Interrupted, command_line
from sads.cli.options import AsJson, WithReport
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
from sads.cli.reading import read_cluster
from sads.cli.report import REPORT, add_report
from sads.errors import InvalidArgumentError, counted, printable

if TYPE_CHECKING:
    from sads.experiments.figures.figure import Figure
    from sads.experiments.page import Summary
    from sads.experiments.reproduction import Made
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
        list[str], typer.Argument(help="fig1 ... fig9, practice, ... or all.", metavar="FIGURE...")
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
    cpus: Annotated[
        float | None, typer.Option(help="CPUs of a cell on Ray; 1 if not given.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(help="GPUs of a cell on Ray; none if not given.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Draw what is finished; train nothing.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of pictures and store, or fsspec URL of a store alone."),
    ] = None,
    report: WithReport = False,
    as_json: AsJson = False,
) -> None:
    """Make figures of the paper, each with a table and a verdict for its claims.

    A verdict is one of four words: supported, contradicted, inconclusive, not tested. All claims in
    the folder are corrected for each other.

    Results of every training go to a store as they finish; what is there is not computed again.
    So is what stands in the `records.jsonl` of the folder, into which all finished cells go.
    """
    from sads.experiments.figures import all_figures
    from sads.experiments.page import judge_page, write_page
    from sads.experiments.reproduction import Request, make_figures
    from sads.files import to_json
    from sads.report.page import check_ours

    if finished:
        refuse_given("--finished computes nothing", "workers", "ray", "cpus", "gpus")
    known = all_figures()
    chosen = read_figures(figures, known)
    request = Request(
        figures=tuple(chosen),
        scale=scale,
        only=read_panels(only, chosen),
        sources=read_sources(images or [], chosen),
        num_seeds=seeds,
        num_workers=workers,
        cluster=read_cluster(ray, cpus, gpus, workers),
        out=out,
        compute=not finished,
    )
    if report:
        check_ours(request.folder / REPORT)  # before anything is computed
    store = request.open_store()
    failed: dict[str, str] = {}
    made = []
    with continued_by_itself(store):
        for figure in make_figures(request, store, command_line(), Terminal(quiet=as_json)):
            made.append(figure.summary.figure)
            failed |= figure.failed
            write_page(request.folder, known)  # now: the next figure may take hours
            print_made(figure, request.folder, quiet=as_json)
    page = write_page(request.folder, known)
    judged = judge_page(request.folder, known)
    written = [page]
    if report:
        written.append(add_report(request.folder, quiet=as_json))
    summaries = {name: judged[name] for name in made}
    if as_json:
        print(to_json({"figures": summaries, "failed": failed}))
    else:
        print_claims(summaries)
        print_written(*written)
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
        if name in sources:
            raise InvalidArgumentError(f"--images says twice where {name} is; give it once")
        # Ray's workers start in a directory of their own.
        sources[name] = os.path.abspath(source) if os.path.exists(source) else source
    return sources


class Terminal:
    """Shows how a figure gets on: a live table on a terminal; elsewhere a line now and then."""

    def __init__(self, quiet: bool):
        self._quiet = quiet

    def stage(self, text: str) -> AbstractContextManager[None]:
        return working(text, self._quiet)

    @contextmanager
    def watching(self, figure: "Figure") -> "Iterator[Watch | None]":
        if self._quiet:
            yield None
        elif messages.is_terminal:
            with Live(console=messages, refresh_per_second=4, transient=True) as live:
                yield lambda board: live.update(board_table(figure, board))
        else:
            yield _LineWriter(figure)


class _LineWriter:
    """One line whenever a cell has ended, or begins to wait for another process."""

    def __init__(self, figure: "Figure"):
        self._figure, self._last = figure, (-1, 0)

    def __call__(self, board: "Board") -> None:
        now = board.finished + len(board.failed), len(board.elsewhere)
        if now != self._last and board.total:
            self._last = now
            print(f"{self._figure.name}: {describe(board)}", file=sys.stderr, flush=True)


def describe(board: "Board") -> str:
    text = f"{board.found + board.finished} of {counted(board.total, 'cell')} done"
    text += f" ({board.found} {'was' if board.found == 1 else 'were'} there)" if board.found else ""
    text += f", {len(board.failed)} failed" if board.failed else ""
    text += f", {len(board.elsewhere)} in another process" if board.elsewhere else ""
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


def print_claim(verdict: str, text: str, style: str) -> None:
    line = Text.assemble((clean(verdict), f"bold {style}"), f": {clean(text)}")
    console.print(line, highlight=False)


def print_made(made: "Made", folder: Path, quiet: bool) -> None:
    for note in made.notes:
        print_note(note)
    for label, reason in made.failed.items():
        print_message(f"failed: {label}: {reason}", style="red")
    if quiet:
        return
    figure, outcome, summary = made.figure, made.outcome, made.summary
    title = f"{figure.name}: {figure.title} ({summary.scale}, {format_seconds(made.seconds)})"
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
