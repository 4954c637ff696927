"""Figure 1: spheres in the three most preferred and the three most avoided directions of a DiT.

A DiT's directions come in clusters of equal eigenvalues, of which three are a choice: every seed
has another subspace of each cluster.

The panel `spheres-common` trains and samples the same networks on the same data as people do today:
v-prediction, clipped, averaged. It is made if `--only` names it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sads.data.spec import ENDS, OWN_GEOMETRY, DataSpec, sphere_directions
from sads.experiments.figures.figure import Context, Figure, Outcome, joined, note_cells, smoke
from sads.experiments.figures.states import ScoreRow, gate, note_states, score_cells
from sads.experiments.records import Record
from sads.experiments.run import seed_of
from sads.experiments.spec import COMMON, PAPER, Cell, GeometrySpec, Practice, cell_of
from sads.experiments.store import Store
from sads.experiments.verdict import (
    SEEDS_FOR_SIGNS,
    Claim,
    judge,
    paired_difference,
    sign_flip_test,
    until_finished,
)
from sads.geometry.result import Geometry
from sads.table1 import SPHERE, Sampling, Training
from sads.tables import format_value, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COLUMNS = {
    "smoke": smoke(SPHERE),
    "laptop": replace(
        SPHERE,
        num_networks=4096,
        num_seeds=SEEDS_FOR_SIGNS,
        training=Training(1_500, 64, 1e-3),
        sampling=Sampling(500, 25),
    ),
    "paper": SPHERE,
}
PANELS = {"spheres": PAPER, "spheres-common": COMMON}
ON_REQUEST = ("spheres-common",)
RADIUS = math.sqrt(math.prod(SPHERE.shape))
SHOWN = 1000  # samples of the first seed that are kept for the picture


@dataclass(frozen=True)
class Sphere(ScoreRow):
    """One of the two spheres, over all seeds; its shape is that of the first."""

    panel: str
    sphere: str
    radius: float = titled("radius / true, first seed")
    spread: float = titled("its spread")
    off: float = titled("off the subspace / radius")


def panel_cells(context: Context, panel: str) -> dict[tuple[int, str], Cell]:
    """The cells of both spheres, by seed and end of the spectrum."""
    chosen = COLUMNS[context.scale]
    return {
        (seed, end): cell_of(
            chosen,
            data=DataSpec("sphere", OWN_GEOMETRY, end),
            seed=seed,
            layers=context.layers,
            keep_samples=min(SHOWN, chosen.sampling.num_samples) if seed == 0 else 0,
            practice=PANELS[panel],
        )
        for seed in context.seeds(chosen.num_seeds, panel)
        for end in ENDS
    }


def chosen_panels(context: Context) -> list[str]:
    return context.panels(PANELS, on_request=ON_REQUEST)


def cells(context: Context) -> list[Cell]:
    return [c for panel in chosen_panels(context) for c in panel_cells(context, panel).values()]


def draw(context: Context) -> Outcome:
    return joined(draw_panel(context, panel) for panel in chosen_panels(context))


def draw_panel(context: Context, panel: str) -> Outcome:
    chosen = panel_cells(context, panel)
    done = context.finished(chosen)
    whole = sorted({seed for seed, _ in done if all((seed, end) in done for end in ENDS)})
    if not whole or whole[0] != 0:
        return Outcome({}, [], [], [f"{panel}: the first pair of spheres is not finished"])
    geometry = context.geometry(GeometrySpec.of(COLUMNS[context.scale]))
    shown = {end: coordinates(geometry, end, context.store, done[0, end]) for end in ENDS}
    rows = [_row(panel, end, [done[s, end] for s in whole], shown[end]) for end in ENDS]
    claim = judge_spheres(
        panel,
        {end: [done[s, end].last.sw2 for s in whole] for end in ENDS},
        gate([done[s, end].last for s in whole for end in ENDS]),
    )
    notes = note_cells(done.values(), len(chosen), context.layers, panel)
    notes += note_states(done.values(), panel)
    picture = plot_spheres(shown, rows, PANELS[panel])
    claims = context.tested([until_finished(claim, chosen, done)])
    return Outcome({panel: picture}, rows, claims, notes)


def coordinates(geometry: Geometry, end: str, store: Store, record: Record) -> Tensor:
    """Samples in the coordinates of their three directions, and how far they are off, (N, 4)."""
    seed = seed_of(record.cell, "directions")
    span = sphere_directions(geometry.data_directions(), end, seed).flatten(1)  # (3, D)
    y = store.samples(record).double().flatten(1)
    inside = y @ span.T
    off = (y - inside @ span).norm(dim=1, keepdim=True)
    return torch.cat([inside, off], dim=1)


def _row(panel: str, end: str, records: Sequence[Record], sphere: Tensor) -> Sphere:
    radii = sphere[:, :3].norm(dim=1) / RADIUS
    return Sphere(
        panel=panel,
        sphere=end,
        radius=float(radii.mean()),
        spread=float(radii.std()),
        off=float(sphere[:, 3].mean()) / RADIUS,
        **score_cells([r.last for r in records], "sw2"),
    )


def judge_spheres(panel: str, sw2: Mapping[str, Sequence[float]], gate: str = "") -> Claim:
    """The claim, by SW2 of every seed and end; a seed has its own subspace of each cluster."""
    difference = paired_difference(sw2["avoided"], sw2["preferred"])
    units = "seeds with a subspace each"
    return judge(
        f"{panel}: a sphere in the preferred subspace is modelled better than one in the avoided "
        "subspace",
        f"SW2 of the avoided less that of the preferred sphere: {difference}",
        sign_flip_test(np.subtract(sw2["avoided"], sw2["preferred"]), units),
        difference.interval,
        gate,
    )


def plot_spheres(
    spheres: Mapping[str, Tensor], rows: Sequence[Sphere], practice: Practice = PAPER
) -> "Picture":
    """Samples in the span of each sphere, coloured by their distance from the span."""
    from matplotlib.figure import Figure as Picture

    from sads.plots.style import GREY, styled

    limit = 1.35 * RADIUS
    turn, height = np.meshgrid(np.linspace(0, 2 * np.pi, 37), np.linspace(0, np.pi, 19))
    ball = RADIUS * np.stack(
        [np.cos(turn) * np.sin(height), np.sin(turn) * np.sin(height), np.cos(height)]
    )
    with styled():
        picture = Picture(figsize=(8, 4.4), layout="constrained")
        largest = max(float(s[:, 3].quantile(0.95)) for s in spheres.values())
        for place, (row, sphere) in enumerate(zip(rows, spheres.values(), strict=True), start=1):
            axes: Any = picture.add_subplot(1, 2, place, projection="3d")
            axes.plot_wireframe(*ball, color=GREY, lw=0.3, alpha=0.7)
            points = axes.scatter(
                *sphere[:, :3].T.numpy(),
                c=sphere[:, 3].numpy(),
                s=4,
                cmap="viridis",
                vmin=0,
                vmax=largest,
                depthshade=False,
            )
            axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
            axes.set_box_aspect((1, 1, 1))
            axes.set(xticklabels=[], yticklabels=[], zticklabels=[])
            axes.set_title(
                f"sphere in the most {row.sphere} directions\n"
                f"SW$_2$ = {row.sw2}, MSW$_2$ = {row.msw2}\n"
                f"SW$_2$ of zeros {format_value(row.zeros)}, of real data "
                f"{format_value(row.real)}; {row.state}",
                fontsize=9,
            )
        if practice != PAPER:
            picture.suptitle(str(practice), fontsize=9.5)
        picture.colorbar(points, ax=picture.axes, shrink=0.6, label="distance from the subspace")
    return picture


FIGURE = Figure(
    "fig1",
    "Spheres in preferred and avoided subspaces of a DiT",
    draw,
    cells=cells,
    panels=tuple(PANELS),
    on_request=ON_REQUEST,
)
