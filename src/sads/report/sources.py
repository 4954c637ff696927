"""What a path holds that a report can be made of.

A file says itself what it is. A folder is known by the files that the commands write to it; one may
hold several results, such as a training run that was sampled and evaluated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sads.errors import GeometryFileError, ReportError, printable
from sads.geometry.result import FORMAT as GEOMETRY
from sads.geometry.result import Geometry, load_geometry
from sads.tensorfile import TensorFile
from sads.untrusted import DAMAGE, first_line, open_regular, read_json

GEOMETRY_FILE = "geometry.safetensors"
WHAT = (
    "give a geometry.safetensors, or a folder that sads geometry, align, train, evaluate, "
    "reproduce or atlas wrote"
)


@dataclass(frozen=True, eq=False)
class GeometrySource:
    """A geometry, and the command that made it if it is known."""

    geometry: Geometry
    command: str | None = None


Source = GeometrySource


def read_source(path: Path) -> list[Source]:
    """All results at a path; `ReportError` if there is none."""
    if path.is_dir():
        found = list(_in_folder(path))
        if not found:
            raise ReportError(f"{printable(path)} holds no result of sads; {WHAT}")
        return found
    if path.suffix == ".json" and path.is_file():
        return read_source(path.parent)
    form = _format_of(path)
    if form == GEOMETRY:
        return [_read_geometry(path)]
    raise ReportError(f"{printable(path)} is no result that a report can show; {WHAT}")


def _in_folder(folder: Path) -> Iterator[Source]:
    if (folder / GEOMETRY_FILE).exists():
        yield _read_geometry(folder / GEOMETRY_FILE)


def _format_of(path: Path) -> str:
    """What a safetensors file of ours says that it is."""
    try:
        with open_regular(path) as file:
            return TensorFile(file).metadata.get("format", "")
    except FileNotFoundError as error:
        raise ReportError(f"there is no {printable(path)}; {WHAT}") from error
    except DAMAGE as error:
        raise ReportError(
            f"{printable(path)} cannot be read as a result of sads ({first_line(error)[:200]}); "
            f"{WHAT}"
        ) from error


def _read_geometry(path: Path) -> GeometrySource:
    try:
        geometry = load_geometry(path)
    except GeometryFileError as error:
        raise ReportError(str(error)) from error
    return GeometrySource(geometry, _command_beside(path))


def _command_beside(path: Path) -> str | None:
    """The command in the `geometry.json` beside a geometry, if there is one."""
    try:
        command = read_json(path.with_name("geometry.json")).get("command")
    except (OSError, ValueError, AttributeError):
        return None
    return command if isinstance(command, str) else None
