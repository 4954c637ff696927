"""What commands show: tables, notes and progress."""

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sads.cli.interrupts import raise_if_lost
from sads.errors import printable
from sads.tables import Row, cells, format_value, titles

LONG_WORD = 16  # characters that a column gives a word on a narrow terminal
# Files and pipes have no width; a table's columns should fit all the same.
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
console = Console(width=_width, emoji=False)
messages = Console(stderr=True, emoji=False)

Update = Callable[[int, int, float], None]
Summary = TypeVar("Summary")


def clean(text: str) -> str:
    """Lines without what moves the cursor, rings or colours, as names from outside may contain."""
    return "\n".join(map(printable, text.split("\n")))


def print_rows(rows: Mapping[str, str]) -> None:
    """A table of names and values."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold", overflow="fold", min_width=_least_width("", [*rows]))
    table.add_column(overflow="fold", min_width=_least_width("", [*rows.values()]))
    for name, value in rows.items():
        table.add_row(name, Text(clean(value)))
    console.print(table, crop=False)


def print_table(rows: Sequence[Row]) -> None:
    """Typed rows under their titles."""
    shown = titles(rows)
    table = Table(box=None, header_style="bold")
    for name, title in shown.items():
        values = [getattr(row, name, None) for row in rows]
        table.add_column(title, overflow="fold", min_width=_least_width(title, values))
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in cells(row, list(shown))))
    console.print(table, crop=False)


def _least_width(title: str, values: Iterable[object]) -> int:
    """Of a column: numbers stay whole, however narrow the terminal, and words if they are short."""
    numbers = [format_value(value) for value in values if not isinstance(value, str)]
    words = [
        *title.split(),
        *(word for text in values if isinstance(text, str) for word in text.split()),
    ]
    return max(map(len, [*numbers, *(word[:LONG_WORD] for word in words)]), default=1)


def print_line(text: str) -> None:
    """A line of output as it is, whatever is in it."""
    _print(console, text)


def print_written(*paths: Path) -> None:
    for path in paths:
        print_line(f"wrote {printable(path)}")


def print_summary(summary: Summary, show: Callable[[Summary], None], as_json: bool) -> None:
    """The JSON of a summary, if that was asked for, or what `show` prints of it."""
    from sads.files import to_json

    if as_json:
        print(to_json(summary))
    else:
        show(summary)


def print_note(text: str) -> None:
    """A line on the side, which does not disturb what a script reads."""
    _print(messages, f"note: {text}")


def print_message(text: str, style: str | None = None) -> None:
    """A line on the side, as it is."""
    _print(messages, text, style)


def print_error(text: str) -> None:
    """What a user can mend, in one line, whatever it quotes."""
    print_message(f"error: {' '.join(text.splitlines())}", style="red")


def _print(place: Console, text: str, style: str | None = None) -> None:
    place.print(
        clean(text), style=style, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Warnings of ours as one line each, such as the reason for running uncompiled."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print_note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=r"sads\.")
        warnings.showwarning = show
        yield


class Bar:
    """Called with the count so far, the count in all and one number, it shows all three."""

    def __init__(self, show: Callable[..., None], text: str):
        self._show, self._text = show, text

    def __call__(self, done: int, total: int, number: float) -> None:
        raise_if_lost()
        shown = self._text.format(number) if math.isfinite(number) else "…"
        self._show(completed=done, total=total, number=shown)

    def stage(self, what: str) -> None:
        """Show what is being done before there is anything to count."""
        raise_if_lost()
        self._show(number=what)


@contextmanager
def progress_bar(unit: str, text: str, quiet: bool) -> Iterator[Bar | None]:
    """A bar on the terminal with the count and one number."""
    if quiet or not messages.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + " · {task.fields[number]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as bar:
        task = bar.add_task(unit, total=None, number="…")
        yield Bar(partial(bar.update, task), text)


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """A sign of life on the terminal."""
    if quiet or not messages.is_terminal:
        yield
        return
    with messages.status(what):
        yield
