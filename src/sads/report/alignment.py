"""Data in a geometry on a page: spectra, alpha and its extremes, shares, samples and rotations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sads.estimates import Estimate
from sads.markup import facts, unfolded
from sads.report.images import image_data
from sads.report.page import Section, render
from sads.rotations.alignment import Alignment
from sads.rotations.alignment_file import Portrait


@dataclass(frozen=True, eq=False)
class AlignmentSource:
    """What the folder of `sads align` holds."""

    alignment: Alignment
    tenths: tuple[Estimate, ...]  # shares of the energy, most avoided directions first
    command: str
    data: str  # what the data are
    geometry: str
    note: str | None = None  # few samples
    portrait: Portrait | None = None  # None of results that are older than portraits


def alignment_section(source: AlignmentSource, id: str) -> Section:
    """What a page says of data in a geometry."""
    portrait = source.portrait
    kinds = [] if portrait is None else list(portrait.alphas.items())
    html = render(
        "alignment.html",
        id=id,
        facts=facts(unfolded(source.alignment.describe())),
        data=source.data,
        note=source.note,
        portrait=portrait,
        rotations=[{"kind": kind, "alpha": str(alpha)} for kind, alpha in kinds],
        line=source.command,
    )
    data: dict[str, Any] = {
        "points": points(source.alignment),
        "tenths": source.tenths,
    }
    if portrait is not None:
        data |= {
            "values": portrait.spectrum.values,
            "energies": portrait.spectrum.energies,
            "dataValues": portrait.data_values,
            "examples": [image_data(images) for images in portrait.examples.values()],
        }
    name = "data" if portrait is None else portrait.name
    return Section("alignment", id, f"{name} in the geometry of {source.geometry}", html, data)


def points(alignment: Alignment) -> Sequence[dict[str, Any]]:
    """Where alpha stands, and between what."""
    named = {
        "minimum": alignment.minimum,
        "held-out minimum": alignment.held_out_minimum,
        "as they are": alignment.alpha,
        "random rotations": alignment.random,
        "held-out maximum": alignment.held_out_maximum,
        "maximum": alignment.maximum,
    }
    return [{"name": name, "alpha": alpha} for name, alpha in named.items()]
