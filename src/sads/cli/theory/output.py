"""What the commands of `sads theory` share: how results are shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sads.cli.folders import finish
from sads.cli.printing import print_table, print_written
from sads.tables import Row

Source = Annotated[
    str,
    typer.Argument(
        help="geometry.safetensors, a name from `sads families`, or FILE.py:FUNCTION.",
        metavar="GEOMETRY",
    ),
]


def files_of(name: str) -> tuple[str, str]:
    """What a command writes to its folder."""
    return f"{name}.png", f"{name}.json"


def show_result(
    folder: Path,
    name: str,
    picture: Any,  # of matplotlib, which commands do not import
    summary: Mapping[str, Any],
    table: Sequence[Row],
    as_json: bool,
) -> None:
    """Write the picture and the JSON; print the table, or the JSON."""
    from sads.files import to_json, write_json
    from sads.plots.style import save

    png, json = (folder / file for file in files_of(name))
    summary = {**summary, "files": {"picture": save(picture, png), "json": json}}
    write_json(json, summary)
    finish(folder)
    if as_json:
        print(to_json(summary))
        return
    if table:
        print_table(table)
    print_written(png, json)
