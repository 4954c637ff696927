"""Compute an entry of the atlas, or go on where an earlier process was.

Beside the entries, in `work/`, lie the geometries themselves and the moments of one under way. A
geometry that holds fewer networks than are asked for is kept, and the missing ones are added.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import sads.geometry.estimate as estimates
from sads.adapters.presets import Preset, adapt
from sads.atlas.entry import Directions, Entry, describe, load, save
from sads.environment import peak_memory, reset_peak_memory, return_free_memory
from sads.errors import InvalidArgumentError, printable
from sads.families import ScoreFamily
from sads.geometry.job import Progress
from sads.geometry.plan import Stage
from sads.geometry.result import Geometry, load_geometry

Estimate = Callable[[ScoreFamily, int, int], Geometry]  # first network, count


def finished(folder: Path, preset: Preset, networks: int) -> tuple[Entry, Directions] | None:
    """An entry that holds as many networks as are asked for, or is exact."""
    found = load(folder, preset.name)
    if found is None or not (found[0].exact or found[0].networks >= networks):
        return None
    return found


def under_way(folder: Path, preset: Preset) -> Path:
    """The file from which an estimate goes on."""
    return folder / "work" / f"{preset.name}.partial.safetensors"


def compute(
    preset: Preset,
    networks: int,
    folder: Path,
    *,
    seed: int = 0,
    command: str = "",
    keep: bool = True,
    estimate: Estimate | None = None,
    progress: Progress | None = None,
    stage: Stage | None = None,
) -> tuple[Entry, Directions]:
    """Draw the networks that are missing, and write the entry.

    Args:
        keep: leave the geometry in `work/`, so that networks can be added to it.
        estimate: draws networks in another way, on a cluster for instance.
    """
    return_free_memory()  # what the network before has left is not this one's
    reset_peak_memory()
    family = adapt(preset.name, None, None, None, {})
    kept = folder / "work" / f"{preset.name}.safetensors"
    partial = under_way(folder, preset)
    geometry = load_geometry(kept) if kept.exists() else None
    done = 0 if geometry is None else geometry.num_networks
    if geometry is not None and not (geometry.exact or done >= networks):
        _check_more(geometry, family, kept)
    if geometry is None or not (geometry.exact or done >= networks):
        if estimate is not None:
            drawn = estimate(family, done, networks - done)
        else:
            partial.parent.mkdir(parents=True, exist_ok=True)
            drawn = estimates.estimate_geometry(
                family,
                networks - done,
                seed=seed,
                first_network=done,
                checkpoint=partial,
                checkpoint_seconds=120,
                progress=progress,
                stage=stage,
            )
        geometry = drawn if geometry is None else geometry.merge(drawn)
        del drawn
        geometry.save(kept)
        partial.unlink(missing_ok=True)
    if stage:
        stage("finding directions")
    return_free_memory()  # what networks have left
    entry, directions = describe(preset, geometry, _parameters(family), command)
    memory = max(peak_memory(), geometry.provenance.memory)  # an earlier process may have had more
    entry = replace(entry, memory=memory)
    save(entry, directions, folder)
    if not keep:
        kept.unlink()
    return entry, directions


def _check_more(geometry: Geometry, family: ScoreFamily, kept: Path) -> None:
    """Refuse to draw more networks for a geometry that they could not be added to."""
    why = ""
    if geometry.matrix_free:
        why = "is kept without a matrix, and would lose its ends if networks were added"
    elif geometry.provenance.family != family.describe():
        why = "is of other networks than this version knows by that name"
    if why:
        raise InvalidArgumentError(
            f"{printable(kept)} with its {geometry.num_networks:,} networks {why}; move it away to "
            "draw all of them anew"
        )


def _parameters(family: ScoreFamily) -> int:
    with torch.device("meta"):
        network = family.build()
    return sum(p.numel() for p in network.parameters())
