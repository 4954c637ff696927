"""A page of Markdown over all figures that were made in a folder: claims, pictures, tables."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sads.files import replacing

MARKS = {"supported": "✅", "not supported": "❌"}
KEYS = {"figure", "title", "scale", "panels", "command", "claims", "table", "notes", "pictures"}


def write_page(folder: Path) -> Path:
    """Write `README.md` from the JSON of the figures in a folder."""
    read = [read_summary(path) for path in sorted(folder.glob("fig[1-9].json"))]
    figures = [figure for figure in read if figure is not None]
    lines = [
        "# The paper's figures",
        "",
        "Made by `sads reproduce`; every number is in the JSON.",
        "",
    ]
    lines += ["| figure | claim | verdict | evidence |", "|---|---|---|---|"]
    for figure in figures:
        for claim in figure["claims"]:
            verdict = f"{MARKS.get(claim['verdict'], '❔')} {claim['verdict']}"
            cells = (figure["figure"], claim["text"], verdict, claim["evidence"])
            lines.append(f"| {' | '.join(_escape(cell) for cell in cells)} |")
    for figure in figures:
        lines += ["", f"## {figure['figure']}: {figure['title']} ({figure['scale']})", ""]
        lines += ["```sh", figure["command"], "```", ""]
        lines += [f"![{name}]({Path(path).name})" for name, path in figure["pictures"].items()]
        lines += [""] + [f"- {_escape(note)}" for note in figure["notes"]]
        lines += ["", *table_lines(figure["table"])]
    page = folder / "README.md"
    with replacing(page) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def read_summary(path: Path) -> dict[str, Any] | None:
    """What `sads reproduce` wrote of a figure, or None if it is not there or damaged."""
    try:
        summary = json.loads(path.read_text())
        return summary if set(summary) >= KEYS else None
    except (OSError, ValueError, TypeError):
        return None


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table; a column `x error` is shown in column `x`."""
    if not rows:
        return []
    columns = list(dict.fromkeys(k for row in rows for k in row if not k.endswith(" error")))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = (format_value(row.get(c), row.get(f"{c} error")) for c in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def format_value(value: object, error: object = None) -> str:
    """A number to four digits with its error, anything else as it is."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if not isinstance(error, float) or math.isnan(error):
        return f"{value:.4g}"
    return f"{value:.4g} ± {error:.2g}"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
