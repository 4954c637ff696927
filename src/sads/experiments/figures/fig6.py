"""Figure 6: MSW2 of models trained on data along the eigenvectors of four architectures.

Appendix A takes eigenvectors number 0, 31, 63, ... 255. Only a direction that is resolved is a
direction of the architecture; where it is one of a cluster, every seed trains on another vector of
the cluster's span. Clusters are those of `Geometry.data_directions`, after which cells are named; a
note says where the certificate is less sure.

Panels that end in `-common` train and sample the same networks on the same data as people do today:
v-prediction, clipped, averaged. They are made if `--only` names them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sads.data.spec import DataSpec
from sads.errors import counted
from sads.estimates import Estimate
from sads.experiments.figures.figure import Context, Figure, Outcome, note_cells, smoke
from sads.experiments.figures.states import (
    ScoreRow,
    baseline_lines,
    gate,
    mean_known,
    note_states,
    score_cells,
)
from sads.experiments.records import Record
from sads.experiments.spec import COMMON, PAPER, Cell, GeometrySpec, Practice, cell_of
from sads.experiments.verdict import (
    Claim,
    correlation_over_units,
    correlation_test,
    judge,
    paired_difference,
    until_finished,
)
from sads.geometry.directions import Directions
from sads.geometry.eigenbasis import EQUAL
from sads.geometry.result import Geometry
from sads.table1 import DIT_2, DIT_4, IDDPM, Column, Sampling, Training, figure6_ranks
from sads.tables import titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TABLE1 = {
    "iddpm-nearest": IDDPM,
    "iddpm-area": replace(IDDPM, options=(*IDDPM.options, ("resample", "area"))),
    "dit-2": DIT_2,
    "dit-4": DIT_4,
}


RANKS = tuple(figure6_ranks())


def _laptop(paper: Column) -> Column:
    transformer = paper.family == "dit"
    return replace(
        paper,
        num_networks=16_384,
        training=Training(400 if transformer else 200, 64, 1e-3),
        sampling=Sampling(400, 50 if transformer else 25),
    )


@dataclass(frozen=True)
class Panel:
    """A network, how its models are trained and sampled, and along which eigenvectors."""

    column: Column
    practice: Practice = PAPER
    ranks: tuple[int, ...] = RANKS

    def shrink(self) -> "Panel":
        """A panel that tests the programs and nothing else."""
        least = self.ranks[:: max(1, len(self.ranks) // 2)]
        return replace(self, column=smoke(self.column), ranks=least)


# The two ends of the spectrum, once at the paper's full training: an hour or two a cell on a core,
# which says whether the paper's own models have diverged.
ENDS = "iddpm-ends"
FULL = replace(IDDPM, num_networks=16_384, num_seeds=1, sampling=Sampling(steps=100))


def _panels(columns: Mapping[str, Column]) -> dict[str, Panel]:
    """The paper's panels, the same in common practice, and the two ends."""
    return {
        **{name: Panel(found) for name, found in columns.items()},
        **{f"{name}-common": Panel(found, COMMON) for name, found in columns.items()},
        ENDS: Panel(FULL, ranks=RANKS[:: len(RANKS) - 1]),
    }


PANELS = {
    "smoke": {name: panel.shrink() for name, panel in _panels(TABLE1).items()},
    "laptop": _panels({name: _laptop(paper) for name, paper in TABLE1.items()}),
    "paper": _panels(TABLE1),
}
NAMES = tuple(PANELS["paper"])
ON_REQUEST = tuple(name for name in NAMES if name not in TABLE1)


@dataclass(frozen=True)
class Point(ScoreRow):
    """One direction of a panel, over all seeds."""

    panel: str
    rank: int
    eigenvalue: Estimate
    cluster_of: int  # 1 for an individual direction
    along: Estimate | None = titled("W2 along v", default=None)
    ascent: Estimate | None = titled("MSW2 by ascent", default=None)
    _: KW_ONLY
    zeros: float | None = titled("MSW2 of zeros", default=None)


Done = Mapping[tuple[int, int], Record]


def panel_cells(context: Context, panel: str) -> dict[tuple[int, int], Cell]:
    """The cells by seed and rank, seed by seed, so that an unfinished sweep covers all ranks."""
    chosen = PANELS[context.scale][panel]
    directions = context.geometry(GeometrySpec.of(chosen.column)).data_directions()
    return {
        (seed, rank): cell_of(
            chosen.column,
            data=DataSpec.along(rank, directions),
            seed=seed,
            layers=context.layers,
            practice=chosen.practice,
        )
        for seed in context.seeds(chosen.column.num_seeds, panel)
        for rank in chosen.ranks
    }


def chosen_panels(context: Context) -> list[str]:
    return context.panels(NAMES, on_request=ON_REQUEST)


def cells(context: Context) -> list[Cell]:
    return [c for panel in chosen_panels(context) for c in panel_cells(context, panel).values()]


def draw(context: Context) -> Outcome:
    pictures: dict[str, Picture] = {}
    table: list[Point] = []
    claims, notes = [], []
    for panel in chosen_panels(context):
        chosen = panel_cells(context, panel)
        done = context.finished(chosen)
        if not done:
            notes.append(f"{panel}: no cell is finished")
            continue
        settings = PANELS[context.scale][panel]
        geometry = context.geometry(GeometrySpec.of(settings.column))
        directions = geometry.data_directions()
        ranks = sorted({rank for _, rank in done})
        rows = [_row(panel, rank, done, directions) for rank in ranks]
        table += rows
        claims.append(until_finished(judge_panel(panel, done, directions), chosen, done))
        pictures[panel] = plot_panel(geometry, directions, rows, settings.practice)
        notes += note_cells(done.values(), len(chosen), context.layers, panel)
        notes += note_states(done.values(), panel)
        notes += _note_doubtful(panel, ranks, geometry)
    return Outcome(pictures, table, context.tested(claims), notes)


def _row(panel: str, rank: int, done: Done, directions: Directions) -> Point:
    records = [record for (_, r), record in done.items() if r == rank]
    cluster = directions.cluster_of(rank)
    return Point(
        panel=panel,
        rank=rank,
        eigenvalue=directions.eigenvalue(rank),
        cluster_of=1 if cluster is None else len(cluster),
        along=mean_known(r.last.along for r in records),
        ascent=mean_known(r.last.ascent_msw2 for r in records),
        **score_cells([r.last for r in records], "msw2"),
    )


def _note_doubtful(panel: str, ranks: Sequence[int], geometry: Geometry) -> list[str]:
    """Which directions that were trained along as individual ones are not that sure."""
    drawn, certified = geometry.data_directions(), geometry.directions()
    doubtful = [r for r in ranks if drawn.cluster_of(r) is None and not certified.resolved[r]]
    if not doubtful:
        return []
    angles = ", ".join(f"u_{r + 1} {certified.angle_errors[r]:.2g}" for r in doubtful)
    return [
        f"{panel}: trained along as individual directions, by angles of first order, but not sure "
        f"to {certified.tolerance:g} rad; their angle errors: {angles}"
    ]


def judge_panel(panel: str, done: Done, directions: Directions) -> Claim:
    """Conjecture 1: the larger the eigenvalue, the larger the distance.

    It is about directions, so eigenvalues are permuted over directions, all seeds together.
    """
    seeds = sorted({seed for seed, _ in done})
    ranks = sorted({rank for _, rank in done})
    whole = [s for s in seeds if all((s, r) in done for r in ranks)]
    values = [_shared_eigenvalue(directions, r) for r in ranks]
    rows = [[done[s, r].last.msw2 for r in ranks] for s in whole]
    if not rows:
        rows = [[np.nan] * len(ranks)]
    correlation = correlation_over_units(values, rows)
    difference = paired_difference([row[0] for row in rows], [row[-1] for row in rows])
    return judge(
        f"{panel}: directions of small eigenvalue are modelled best (Conjecture 1)",
        f"rank correlation of eigenvalue and MSW2 {correlation}; MSW2 along u_{ranks[0] + 1} less "
        f"along u_{ranks[-1] + 1}: {difference}",
        correlation_test(values, rows, "directions"),
        correlation,
        gate([done[s, r].last for s in whole for r in ranks]),
    )


def _shared_eigenvalue(directions: Directions, rank: int) -> float:
    """The eigenvalue of a direction, or that of its cluster, so that its members tie."""
    cluster = directions.cluster_of(rank)
    return float(directions.values[rank]) if cluster is None else cluster.value


def _worst_state(rows: Sequence[Point]) -> str:
    return "diverged" if any("diverged" in row.state for row in rows) else "not trained"


def plot_panel(
    geometry: Geometry, directions: Directions, rows: Sequence[Point], practice: Practice
) -> "Picture":
    """MSW2 against rank, eigenvalues, eigenvectors and their spectra.

    A hollow point stands for a cluster: every seed trained on another vector of its subspace.
    """
    from matplotlib.figure import Figure as Picture

    from sads.plots.style import (
        BLUE,
        INK,
        ORANGE,
        show_baselines,
        show_vector,
        show_vector_energy,
        styled,
        title_of,
    )

    ranks = [row.rank for row in rows]
    places = np.arange(len(rows))
    means = np.array([row.msw2.value for row in rows])
    errors = np.nan_to_num(np.array([row.msw2.error for row in rows]))
    values = directions.values[ranks].numpy() / float(directions.values[0])
    positive = values > EQUAL
    seeds = max(row.seeds for row in rows)
    with styled():
        picture = Picture(figsize=(0.75 * len(rows) + 1.6, 5.0), layout="constrained")
        grid = picture.add_gridspec(3, len(rows), height_ratios=(3.2, 1, 1))
        axes = picture.add_subplot(grid[0, :])
        axes.errorbar(places, means, errors, color=BLUE, lw=1.5, capsize=3, zorder=3)
        for place, row in enumerate(rows):
            face = BLUE if row.cluster_of == 1 else "white"
            axes.plot(place, row.msw2.value, "o", ms=6, mec=BLUE, mfc=face, zorder=4)
        axes.set_ylabel("MSW$_2$ (mean ± s.e.)", color=BLUE)
        lines = baseline_lines(rows)
        axes.set_ylim(0, 1.12 * float(np.nanmax([*(means + errors), *lines.values(), 1e-9])))
        axes.set_xticks(places, [f"$u_{{{rank + 1}}}$" for rank in ranks])
        axes.set_xlim(-0.5, len(rows) - 0.5)
        show_baselines(axes, lines)
        failed = sum(row.state != f"{row.seeds} trained" for row in rows)
        title = f"{title_of(geometry)}; {counted(seeds, 'seed')}"
        if practice != PAPER:
            title += f"; {practice}"
        if failed:
            title += (
                f"\nof {failed} of {counted(len(rows), 'direction')} not all models are trained: "
            )
            title += _worst_state(rows)
        axes.set_title(title, fontsize=10)
        right = axes.twinx()
        right.plot(places[positive], values[positive], "s--", ms=4, lw=1, color=ORANGE)
        right.set(yscale="log")
        right.set_ylabel("eigenvalue / largest", color=ORANGE)
        right.spines["right"].set_visible(True)
        if not positive.all():
            last = int(positive.sum()) - 1
            text = f"  λ = 0 from $u_{{{ranks[last + 1] + 1}}}$ on"
            right.text(places[last], values[last], text, color=ORANGE, va="center", fontsize=8)
        for place, row in enumerate(rows):
            top, bottom = (picture.add_subplot(grid[i, place]) for i in (1, 2))
            show_vector(top, directions.vectors[row.rank])
            show_vector_energy(bottom, directions.vectors[row.rank])
            of = row.cluster_of
            bottom.set_xlabel("resolved" if of == 1 else f"one of {of}", fontsize=7)
            if place == 0:
                top.set_ylabel("vector", fontsize=8)
                bottom.set_ylabel("Fourier\nenergy", fontsize=8)
        if any(row.cluster_of > 1 for row in rows):
            text = "hollow: a cluster; each seed trains on another vector of its span"
            picture.supxlabel(text, fontsize=7.5, color=INK)
    return picture


FIGURE = Figure(
    "fig6",
    "Training along the eigenvectors",
    draw,
    cells=cells,
    panels=NAMES,
    on_request=ON_REQUEST,
)
