"""A geometry on a page: spectrum, directions with their certificate, energies in five bases.

Directions are drawn by the browser when they are looked at. It is given the eigenvectors of the
small factor, in whole numbers of 16 or 8 bits, and how they are lifted to all coordinates.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sads.data.bases import BASES, FREQUENCY_BASES
from sads.environment import versions
from sads.geometry.result import Geometry
from sads.geometry.summary import command_of, describe, why_unknown
from sads.markup import facts
from sads.report.page import Section, pack, render
from sads.shapes import format_shape
from sads.theory.predictions import Prediction, predict

FINE = 1 << 21  # numbers of eigenvectors up to which they have 16 bits
MAX_BASES = 4096  # coordinates up to which energies in bases are computed


def geometry_section(
    geometry: Geometry,
    id: str,
    name: str,
    *,
    command: str | None = None,
    max_directions: int | None = None,
) -> Section:
    """What a page says of one geometry.

    Args:
        name: that tells it from the others on the page.
        command: that made it, if it is known.
        max_directions: how many have pictures, spread over all ranks with more at the ends.
    """
    energies, why_not = basis_energies(geometry)
    channels = geometry.shape[0] if len(geometry.shape) == 3 else 1
    html = render(
        "geometry.html",
        id=id,
        dimension=geometry.dimension,
        channels=channels,
        facts=facts(describe(geometry)),
        unknown=why_unknown(geometry),
        remarks=geometry.provenance.notes,
        bases=list(energies),
        why_no_bases=why_not,
        line=command or command_of(geometry),
        provenance=facts(provenance_rows(geometry)),
    )
    data = {
        "title": name,
        **spectrum_data(geometry),
        **vector_data(geometry, max_directions),
        "bases": [basis_data(name, found) for name, found in energies.items()],
    }
    return Section("geometry", id, name, html, data)


def spectrum_data(geometry: Geometry) -> dict[str, Any]:
    """Eigenvalues and their certificate, in descending order; an unknown error is null."""
    directions = geometry.directions()
    return {
        "shape": geometry.shape,
        "values": directions.values,
        "valueErrors": directions.value_errors,
        "angleErrors": directions.angle_errors,
        "resolved": directions.resolved,
        "rankLow": directions.rank_low,
        "rankHigh": directions.rank_high,
        "clusters": directions.clusters,
        "tolerance": directions.tolerance,
    }


def vector_data(geometry: Geometry, max_directions: int | None) -> dict[str, Any]:
    """Eigenvectors of the factor as whole numbers, each in units of its largest entry."""
    directions, lift = geometry.directions(), geometry.lift
    kept = shown_ranks(lift.size, max_directions)
    basis = directions._basis[:, torch.as_tensor(kept)].T.numpy()  # (kept, P)
    bits = np.int16 if basis.size <= FINE else np.int8
    scales = np.abs(basis).max(axis=1, keepdims=True) / np.iinfo(bits).max
    identity = torch.equal(lift.order, torch.arange(lift.dimension))
    return {
        "groups": lift.groups,
        "size": lift.size,
        "order": None if identity else pack(lift.order.numpy().astype(np.int32)),
        "kept": None if len(kept) == lift.size else kept,
        "vectors": pack(np.rint(basis / scales).astype(bits)),
        "scales": scales[:, 0],
    }


def shown_ranks(count: int, most: int | None) -> list[int]:
    """At most so many of `count` ranks: a third of them at each end, the rest between.

    >>> shown_ranks(100, 9)
    [0, 1, 2, 26, 50, 73, 97, 98, 99]
    """
    if most is None or most >= count:
        return list(range(count))
    end = max(1, most // 3)
    middle = np.linspace(end - 1, count - end, max(0, most - 2 * end) + 2).round()
    chosen = {*range(end), *map(int, middle), *range(count - end, count)}
    return sorted(chosen)


def basis_energies(geometry: Geometry) -> tuple[Mapping[str, Prediction], str]:
    """`v^T G v` in those of the five bases that the shape has; or why there are none."""
    if geometry.dimension > MAX_BASES:
        return {}, f"Energies in bases are left out above {MAX_BASES:,} coordinates."
    if len(geometry.shape) not in (2, 3) or not geometry.directions().values[0] > 0:
        return {}, ""
    halves = all(n & (n - 1) == 0 for n in geometry.shape[1:])
    names = [name for name in BASES if halves or name not in ("hadamard", "haar")]
    return predict(geometry, tuple(names)), ""


def basis_data(name: str, prediction: Prediction) -> dict[str, Any]:
    basis = prediction.basis
    places = basis.layout(np.arange(basis.dimension)).astype(np.int32)  # which vector is where
    return {
        "name": name,
        "axis": "frequency" if name in FREQUENCY_BASES else "place",
        "rows": len(places),
        "columns": places.shape[1],
        "layout": pack(places),
        "labels": [str(element) for element in basis.index],
        "energies": prediction.energies.values,
        "errors": prediction.energies.errors,
        "mean": prediction.mean_energy,
    }


def provenance_rows(geometry: Geometry) -> dict[str, object]:
    """How a geometry was made, in the words of its provenance."""
    made = geometry.provenance
    family = made.family
    options = family.get("options") or {}
    schedule = family.get("schedule") or {}
    return {
        "family": family.get("name", "unnamed"),
        "shape": format_shape(geometry.shape),
        **{f"option {key}": value for key, value in options.items()},
        "prediction": family.get("prediction", "epsilon"),
        "noise schedule": ", ".join(map(str, schedule.values())),
        "estimator": made.estimator,
        "output layer integrated out": made.readout or "none",
        "symmetries averaged over": ", ".join(made.symmetries) or "none",
        "probe": ", ".join(f"{key} {value}" for key, value in made.probe.items()),
        "networks of seeds": "; ".join(
            f"{start:,} to {stop - 1:,} of seed {seed}" for seed, start, stop in made.draws
        )
        or "none",
        "seconds": f"{made.seconds:.2f}",
        "fingerprint": made.fingerprint,
        "versions": ", ".join(f"{k} {v}" for k, v in made.versions.items()) or "not known",
        "page made by": ", ".join(f"{k} {v}" for k, v in versions().items()),
    }
