"""Figure 6: MSW2 of models trained on data along the eigenvectors of four architectures.

Appendix A takes eigenvectors number 0, 31, 63, ... 255. Only a direction that the certificate
resolves is a direction of the architecture; where it is one of a cluster, what is certified is the
cluster's subspace, and every seed trains on another vector of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sads.directions import Directions
from sads.experiments.figure import Context, Figure, Outcome, note_cells
from sads.experiments.spec import Budget, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Record
from sads.experiments.verdict import (
    Claim,
    judge,
    mean_and_error,
    paired_difference,
    rank_correlation,
)

SHAPE = (1, 16, 16)
PANELS = {
    "iddpm-nearest": FamilySpec("iddpm", SHAPE),
    "iddpm-area": FamilySpec("iddpm", SHAPE, (("resample", "area"),)),
    "dit-2": FamilySpec("dit", SHAPE, (("patch_size", 2),)),
    "dit-4": FamilySpec("dit", SHAPE, (("patch_size", 4),)),
}
RANKS = (0, 31, 63, 95, 127, 159, 191, 223, 255)  # Figure 6, counted from 0


@dataclass(frozen=True)
class Settings:
    num_networks: int
    seeds: int
    ranks: tuple[int, ...]
    budgets: Mapping[str, Budget]  # by panel


SMOKE = Budget(500, 20, 50, 1e-3, 100, 10, "ddpm", 16)
SETTINGS = {
    "smoke": Settings(256, 1, (0, 127, 255), dict.fromkeys(PANELS, SMOKE)),
    "laptop": Settings(
        16_384,
        5,
        RANKS,
        {
            **dict.fromkeys(PANELS, Budget(10_000, 200, 64, 1e-3, 400, 25, "ddpm")),
            "dit-2": Budget(10_000, 400, 64, 1e-3, 400, 50, "ddpm"),
            "dit-4": Budget(10_000, 400, 64, 1e-3, 400, 50, "ddpm"),
        },
    ),
    "paper": Settings(
        1_000_000,
        5,
        RANKS,
        {
            **dict.fromkeys(PANELS, Budget(10_000, 2_000, 1_000, 1e-4, 10_000, 1_000, "ddpm")),
            "dit-4": Budget(10_000, 4_000, 1_000, 1e-4, 10_000, 1_000, "ddpm"),
        },
    ),
}


def geometry_spec(panel: str, scale: str) -> GeometrySpec:
    return GeometrySpec(PANELS[panel], SETTINGS[scale].num_networks)


def data_of(rank: int, directions: Directions) -> str:
    """The data of a cell at a rank: the eigenvector if it is one, else its cluster's subspace."""
    cluster = directions.cluster_of(rank)
    if cluster is None:
        return f"eigenvector:{rank}"
    return f"subspace:{cluster.start}:{cluster.stop}:{rank}"


def panel_cells(context: Context, panel: str) -> dict[tuple[int, int], Cell]:
    """By seed and rank, seed by seed, so that an unfinished sweep covers all ranks."""
    settings = SETTINGS[context.scale]
    spec = geometry_spec(panel, context.scale)
    directions = context.geometry(spec).directions()
    return {
        (seed, rank): Cell(spec, data_of(rank, directions), settings.budgets[panel], seed)
        for seed in context.seeds(settings.seeds)
        for rank in settings.ranks
    }


def cells(context: Context) -> list[Cell]:
    return [c for panel in context.panels(PANELS) for c in panel_cells(context, panel).values()]


def draw(context: Context) -> Outcome:
    from sads.experiments import drawing

    pictures, table, claims, notes = {}, [], [], []
    for panel in context.panels(PANELS):
        chosen = panel_cells(context, panel)
        records = context.records(chosen.values())
        done = {key: records[cell] for key, cell in chosen.items() if cell in records}
        if not done:
            notes.append(f"{panel}: no cell is finished")
            continue
        geometry = context.geometry(geometry_spec(panel, context.scale))
        directions = geometry.directions()
        rows = [_row(panel, rank, done, directions) for rank in SETTINGS[context.scale].ranks]
        rows = [row for row in rows if row["seeds"]]
        table += rows
        claims.append(_judge_panel(panel, done, directions))
        pictures[panel] = drawing.plot_training_along_directions(geometry, directions, rows)
        notes += note_cells(done.values(), len(chosen), panel)
    return Outcome(pictures, table, context.tested(claims), notes)


def _row(
    panel: str, rank: int, done: Mapping[tuple[int, int], Record], directions: Directions
) -> dict[str, Any]:
    """One point of a panel."""
    records = [record for (_, r), record in done.items() if r == rank]
    cluster = directions.cluster_of(rank)
    msw2, sw2 = (mean_and_error([r.metric(k) for r in records]) for k in ("msw2", "sw2"))
    return {
        "panel": panel,
        "rank": rank,
        "eigenvalue": float(directions.values[rank]),
        "eigenvalue error": float(directions.value_errors[rank]),
        "cluster of": 1 if cluster is None else len(cluster),
        "seeds": len(records),
        "MSW2": msw2[0],
        "MSW2 error": msw2[1],
        "SW2": sw2[0],
        "SW2 error": sw2[1],
    }


def _judge_panel(
    panel: str, done: Mapping[tuple[int, int], Record], directions: Directions
) -> Claim:
    """Conjecture 1: the larger the eigenvalue, the larger the distance."""
    seeds = sorted({seed for seed, _ in done})
    ranks = sorted({rank for _, rank in done})
    whole = [s for s in seeds if all((s, r) in done for r in ranks)]
    values = [_eigenvalue(directions, r) for r in ranks]
    rows = [[done[s, r].metric("msw2") for r in ranks] for s in whole]
    correlation = rank_correlation(values, rows)
    difference = paired_difference([row[0] for row in rows], [row[-1] for row in rows])
    return judge(
        f"{panel}: directions of small eigenvalue are modelled best (Conjecture 1)",
        f"rank correlation of eigenvalue and MSW2 {correlation}; MSW2 along u_{ranks[0] + 1} less "
        f"along u_{ranks[-1] + 1}: {difference}",
        correlation,
    )


def _eigenvalue(directions: Directions, rank: int) -> float:
    """That of a direction, or of its cluster, so that members of one cluster tie."""
    cluster = directions.cluster_of(rank)
    return float(directions.values[rank]) if cluster is None else cluster.value


FIGURE = Figure("fig6", "Training along the eigenvectors", tuple(PANELS), cells, draw)
