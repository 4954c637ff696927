"""What commands show: tables, notes and progress."""

import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Files and pipes have no width; a table's columns should fit all the same.
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
console = Console(width=_width)
messages = Console(stderr=True)

Update = Callable[[int, int, float], None]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command_line() -> str:
    """What the user typed, for the record."""
    return shlex.join(["sads", *sys.argv[1:]])


def print_rows(rows: Mapping[str, str], files: Sequence[str] = ()) -> None:
    """A table of names and values, then the files that were written."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for path in files:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Warnings of ours as one line each, such as the reason for running uncompiled."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        messages.print(f"note: {message}", highlight=False, soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=r"sads\.")
        warnings.showwarning = show
        yield


@contextmanager
def progress_bar(unit: str, text: str, quiet: bool) -> Iterator[Update | None]:
    """A bar on the terminal with the count and one number."""
    if quiet or not messages.is_terminal:
        yield None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + " · {task.fields[number]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as bar:
        task = bar.add_task(unit, total=None, number="…")

        def update(done: int, total: int, number: float) -> None:
            shown = text.format(number) if math.isfinite(number) else "…"
            bar.update(task, completed=done, total=total, number=shown)

        yield update


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    if quiet or not messages.is_terminal:
        yield
        return
    with messages.status(what):
        yield
