"""Figure 1: spheres in the three most preferred and the three most avoided directions of a DiT."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sads.data.source import SPHERE_DIRECTIONS
from sads.experiments.figure import Context, Figure, Outcome, note_cells
from sads.experiments.spec import Budget, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Record, Store
from sads.experiments.verdict import judge, mean_and_error, paired_difference
from sads.geometry.geometry import Geometry

FAMILY = FamilySpec("dit", (1, 16, 16), (("patch_size", 2),))
ENDS = ("preferred", "avoided")
RADIUS = math.sqrt(math.prod(FAMILY.shape))
SHOWN = 1000  # samples kept for the picture


@dataclass(frozen=True)
class Settings:
    num_networks: int
    seeds: int
    budget: Budget


SETTINGS = {
    "smoke": Settings(256, 1, Budget(500, 20, 50, 1e-3, 100, 10, "ddpm", 16)),
    "laptop": Settings(4096, 5, Budget(10_000, 1_500, 64, 1e-3, 500, 25, "ddpm")),
    "paper": Settings(1_000_000, 5, Budget(10_000, 10_000, 1000, 1e-4, 10_000, 1000, "ddpm")),
}


def geometry_spec(scale: str) -> GeometrySpec:
    return GeometrySpec(FAMILY, SETTINGS[scale].num_networks)


def all_cells(context: Context) -> dict[tuple[int, str], Cell]:
    settings = SETTINGS[context.scale]
    spec = geometry_spec(context.scale)
    return {
        (seed, end): Cell(
            spec, f"sphere:{end}", settings.budget, seed,
            keep_samples=min(SHOWN, settings.budget.num_samples),
        )
        for seed in context.seeds(settings.seeds)
        for end in ENDS
    }  # fmt: skip


def draw(context: Context) -> Outcome:
    from sads.experiments import drawing

    chosen = all_cells(context)
    records = context.records(chosen.values())
    done = {key: records[cell] for key, cell in chosen.items() if cell in records}
    whole = sorted({seed for seed, _ in done if all((seed, end) in done for end in ENDS)})
    if not whole:
        return Outcome({}, [], [], ["no pair of spheres is finished"])
    geometry = context.geometry(geometry_spec(context.scale))
    shown = {end: _sphere(geometry, end, context.store, done[whole[0], end]) for end in ENDS}
    table: list[dict[str, Any]] = []
    for end in ENDS:
        row: dict[str, Any] = {"sphere": end, "seeds": len(whole)}
        for name in ("SW2", "MSW2"):
            values = [done[s, end].metric(name.lower()) for s in whole]
            row[name], row[f"{name} error"] = mean_and_error(values)
        row |= _radius(shown[end])
        table.append(row)
    difference = paired_difference(
        *([done[s, end].metric("sw2") for s in whole] for end in ("avoided", "preferred"))
    )
    claim = judge(
        "a sphere in the preferred subspace is modelled better than one in the avoided subspace",
        f"SW2 of the avoided less that of the preferred sphere: {difference}",
        difference.interval,
    )
    notes = note_cells(done.values(), len(chosen))
    return Outcome(
        {"fig1": drawing.plot_spheres(shown, table, RADIUS)}, table, context.tested([claim]), notes
    )


def _sphere(geometry: Geometry, end: str, store: Store, record: Record) -> Tensor:
    """Samples in the coordinates of their three directions, and how far they are off, (N, 4)."""
    directions = geometry.directions()
    vectors = directions.preferred if end == "preferred" else directions.avoided
    span = vectors(SPHERE_DIRECTIONS).flatten(1)  # (3, D)
    y = store.samples(record).double().flatten(1)
    inside = y @ span.T
    off = (y - inside @ span).norm(dim=1, keepdim=True)
    return torch.cat([inside, off], dim=1)


def _radius(sphere: Tensor) -> dict[str, float]:
    """In units of the true radius: of the samples in the subspace, and their distance from it."""
    radii = sphere[:, :3].norm(dim=1) / RADIUS
    return {
        "radius, first seed": float(radii.mean()),
        "its spread": float(radii.std()),
        "off the subspace": float(sphere[:, 3].mean()) / RADIUS,
    }


FIGURE = Figure(
    "fig1",
    "Spheres in preferred and avoided subspaces of a DiT",
    (),
    lambda context: list(all_cells(context).values()),
    draw,
)
