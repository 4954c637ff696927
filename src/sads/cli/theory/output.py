"""What the commands of `sads theory` share: what they take, and how results are shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish
from sads.cli.given_options import refuse_given
from sads.cli.printing import print_table, print_written
from sads.cli.reading import read_dataset
from sads.errors import InvalidArgumentError
from sads.tables import Row

if TYPE_CHECKING:
    from torch import Tensor

Source = Annotated[
    str,
    typer.Argument(
        help="geometry.safetensors, a name from `sads families`, or FILE.py:FUNCTION.",
        metavar="GEOMETRY",
    ),
]
Images = Annotated[
    str | None,
    typer.Option(help="Data as in `sads align`; else scikit-learn's digits, resized."),
]


def check_images(images: str | None) -> None:
    """How images are read says nothing without any; checked before anything takes time."""
    if images is None:
        refuse_given("how --images are read, and none are given", "value_range", "layout", "resize")


def pair_with_images(
    geometry: "sads.Geometry",
    images: str | None,
    seed: int,
    resize: bool,
    value_range: str | None,
    layout: str | None,
) -> "tuple[sads.Pairing, Tensor, str]":
    """A geometry paired with `--images`, these images, and what to call them."""
    from sads.rotations.alignment import check_defined

    check_defined(geometry)  # before data are read
    data = read_dataset(
        images or "digits",
        geometry.shape,
        None,
        seed,
        images is None or resize,
        value_range,
        layout,
    )
    name = "digits" if images is None else Path(images.partition(":")[0]).stem
    return sads.pair(geometry, data.samples), data.samples, name


def read_numbers(text: str, what: str, example: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidArgumentError(f"{text!r} {what}; write {example}") from error


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
    saved: Mapping[str, Path] | None = None,
) -> None:
    """Write the picture and the JSON; print the table and all that was saved, or the JSON."""
    from sads.files import to_json, write_json
    from sads.plots.style import save

    png, json = (folder / file for file in files_of(name))
    files = {**(saved or {}), "picture": save(picture, png), "json": json}
    summary = {**summary, "files": files}
    write_json(json, summary)
    finish(folder)
    if as_json:
        print(to_json(summary))
        return
    if table:
        print_table(table)
    print_written(*files.values())
