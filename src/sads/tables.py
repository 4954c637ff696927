"""Tables of typed rows: a row is a frozen dataclass, its fields are the columns.

    @dataclass(frozen=True)
    class Point(Row):
        rank: int
        sw2: Estimate = titled("SW2")

A field is titled by its name, with spaces for underscores, unless `titled` says otherwise. An
`Estimate` is one cell, its error included. Nothing is ever looked up by a title.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Any, TypeVar

from sads import markup
from sads.estimates import Estimate


@dataclasses.dataclass(frozen=True)
class Row:
    """Base of all rows of tables."""


def titled(title: str, **options: Any) -> Any:
    """A field of a row with a title of its own; `options` are those of `dataclasses.field`."""
    return dataclasses.field(metadata={"title": title}, **options)


RowKind = TypeVar("RowKind", bound=Row)


def titles(rows: Sequence[Row]) -> dict[str, str]:
    """The columns in which at least one row has something, by the name of their field.

    What a row shares with other tables (keyword-only fields, of its base) comes last.
    """
    found: dict[str, str] = {}
    fields = (f for row in rows for f in dataclasses.fields(row))
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):
        found.setdefault(field.name, field.metadata.get("title", field.name.replace("_", " ")))
    return {
        name: title
        for name, title in found.items()
        if any(getattr(row, name, None) is not None for row in rows)
    }


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """The cells of a row in the columns that are shown."""
    return [format_value(getattr(row, name, None)) for name in names]


def format_value(value: object) -> str:
    """A number to four digits with its error, whole numbers with commas, nothing as nothing.

    >>> format_value(Estimate(1.23456, 0.01)), format_value(12345), format_value(None)
    ('1.235 ± 0.01', '12,345', '')
    """
    if value is None:
        return ""
    if isinstance(value, Estimate):
        return str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def distinct(names: Iterable[str]) -> list[str]:
    """Names that tell things apart: one that is taken gets a number.

    >>> distinct(["a", "b", "a", "a (2)"])
    ['a', 'b', 'a (2)', 'a (2) (2)']
    """
    found: list[str] = []
    for name in names:
        others = (f"{name} ({number})" for number in count(2))
        found.append(next(other for other in chain([name], others) if other not in found))
    return found


class Table(list[RowKind]):
    """A list of rows that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        shown = titles(self)
        return str(markup.table(list(shown.values()), (cells(row, list(shown)) for row in self)))


def markdown(rows: Sequence[Row]) -> list[str]:
    """The lines of a Markdown table."""
    shown = titles(rows)
    if not shown:
        return []
    lines = [_line(list(shown.values())), f"|{'---|' * len(shown)}"]
    return lines + [_line(cells(row, list(shown))) for row in rows]


def _line(texts: Sequence[str]) -> str:
    escaped = (text.replace("|", "\\|") for text in texts)
    return f"| {' | '.join(escaped)} |"
