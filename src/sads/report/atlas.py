"""The atlas on a page: geometries of published networks beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sads.atlas.entry import Curve, Directions, Entry, load
from sads.atlas.page import findings, made, seen
from sads.report.images import signed_data
from sads.report.page import Section, render
from sads.report.paper import sortable
from sads.tables import Row, titles
from sads.untrusted import read_json


@dataclass(frozen=True, eq=False)
class AtlasSource:
    """A folder of `sads atlas`."""

    entries: tuple[tuple[Entry, Directions], ...]


def is_entry(path: Path) -> bool:
    """Does a JSON file say that it is an entry of an atlas? Whether it is whole is seen later."""
    if not path.with_suffix(".npz").exists():
        return False
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"title", "spectrum", "border"} <= content.keys()


def read_atlas(folder: Path) -> AtlasSource | None:
    """The entries of an atlas in the order of their names; None if there are none."""
    names = sorted(path.stem for path in folder.glob("*.json") if is_entry(path))
    found = [pair for name in names if (pair := load(folder, name)) is not None]
    return AtlasSource(tuple(found)) if found else None


def atlas_section(source: AtlasSource, id: str) -> Section:
    """What a page says of the atlas."""
    entries = [entry for entry, _ in source.entries]
    html = render(
        "atlas.html",
        id=id,
        findings=findings(entries),
        made=row_table([made(entry) for entry in entries]),
        seen=row_table([seen(entry) for entry in entries]),
        entries=entries,
    )
    data = {
        "entries": [
            {
                "number": number,
                "title": entry.title,
                "spectrum": _curve(entry.spectrum),
                "frequency": _curve(entry.frequency),
                "border": _curve(entry.border),
                "avoided": signed_data(directions.avoided),
                "preferred": signed_data(directions.preferred),
            }
            for number, (entry, directions) in enumerate(source.entries)
        ]
    }
    return Section("atlas", id, "The atlas", html, data)


def row_table(rows: Sequence[Row]) -> Any:
    """Typed rows as a table that sorts."""
    shown = titles(rows)
    return sortable(shown.values(), ([getattr(row, name) for name in shown] for row in rows))


def _curve(curve: Curve) -> dict[str, Any]:
    return {"x": curve.places, "y": curve.values, "errors": curve.errors}
