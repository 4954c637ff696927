"""A geometry without a matrix on a page: both ends of its spectrum, and energies along bases."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.data.bases import Basis
from sads.geometry.profile import Profile, border_profile, frequency_profile
from sads.geometry.result import Geometry
from sads.geometry.summary import command_of, describe, has_ends, why_unknown
from sads.markup import facts, unfolded
from sads.report.geometry import provenance_rows
from sads.report.images import signed_data
from sads.report.page import Section, pack, render
from sads.transforms import has_transform

SHOWN = 6  # directions of each end
SIDES = ("avoided", "preferred")
MAPS = ("canonical", "dct", "haar")
CURVES = {
    "frequency": "Energy against frequency",
    "border": "Energy against the distance from the border",
}


def ends_section(geometry: Geometry, id: str, name: str, *, command: str | None = None) -> Section:
    """What a page says of a geometry of which only the ends are known."""
    sides = SIDES if has_ends(geometry) else ()
    maps = [name for name in MAPS if has_transform(name, geometry.shape[1:])]
    html = render(
        "ends.html",
        id=id,
        facts=facts(unfolded(describe(geometry))),
        unknown=why_unknown(geometry),
        remarks=geometry.provenance.notes,
        sides=sides,
        curves=CURVES,
        maps=maps,
        line=command or command_of(geometry),
        provenance=facts(provenance_rows(geometry)),
    )
    data = {
        "title": name,
        "ends": {side: _end(geometry, side) for side in sides},
        "curves": {
            "frequency": curve_data(frequency_profile(geometry)),
            "border": curve_data(border_profile(geometry)),
        },
        "maps": [_map(geometry, name) for name in maps],
    }
    return Section("ends", id, name, html, data)


def curve_data(profile: Profile) -> dict[str, Any]:
    return {"x": profile.places, "y": profile.energies.values, "errors": profile.energies.errors}


def strongest(vectors: Tensor) -> Tensor:
    """The channel of every direction (k, C, *spatial) that has most of it, (k, *spatial)."""
    return torch.stack([v[v.flatten(1).norm(dim=1).argmax()] for v in vectors])


def _end(geometry: Geometry, side: str) -> dict[str, Any]:
    end = geometry.end(side, SHOWN)
    return {
        "images": signed_data(strongest(end.vectors)),
        "bounds": list(end.bounds),
        "found": end.found,
        "residuals": end.residuals,
    }


def _map(geometry: Geometry, name: str) -> dict[str, Any]:
    """Energies of the vectors of a basis, as their mean over channels."""
    channels, *spatial = geometry.shape
    one = Basis(name, (1, *spatial))
    count = math.prod(spatial)
    found = geometry.basis_energies(name)
    energies = found.values.reshape(channels, count).mean(dim=0)
    errors = found.errors.reshape(channels, count).mean(dim=0)  # a bound: they go together
    places = one.layout(np.arange(count)).astype(np.int32)
    return {
        "name": name,
        "rows": len(places),
        "columns": places.shape[1],
        "layout": pack(places),
        "labels": spatial,  # the place of a vector in the picture of its basis stands for it
        "energies": pack(energies.float().numpy()),
        "errors": pack(errors.float().numpy()),
        "mean": geometry.trace / geometry.dimension,
    }
