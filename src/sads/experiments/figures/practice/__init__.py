"""The paper's way of training and sampling beside common practice, on rotated images.

The paper predicts the noise, does not clip and does not average. An error of such a prediction is
multiplied by up to `1 / sqrt(abar_T)` = 157 on the way to a sample. Here the same networks, data,
rotations and seeds are trained to predict the noise, `v` or `x_0`, on raw or on centred data, with
or without the Gaussian part of the score beside them, and every model is sampled with and without
clipping, from its last weights and from their average. A model is trained once for all of these.

Which comparisons have a verdict stands in `claims.toml`; all others are in the table.
"""

from typing import TYPE_CHECKING

from sads.experiments.figures.figure import Context, Figure, Outcome, note_cells
from sads.experiments.figures.practice.arms import (
    ON_REQUEST,
    chosen_panels,
    is_shown,
    panel_cells,
)
from sads.experiments.figures.practice.claims import judge_practices
from sads.experiments.figures.practice.pictures import (
    plot_course,
    plot_levels,
    plot_samples,
    plot_ways,
)
from sads.experiments.figures.practice.table import Way, practical_note, untrained, ways
from sads.experiments.figures.rotated_images import NAMES
from sads.experiments.spec import Cell
from sads.experiments.verdict import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


def cells(context: Context) -> list[Cell]:
    there, _ = chosen_panels(context)
    return [c for name in there for c in panel_cells(context, name).values()]


def draw(context: Context) -> Outcome:
    there, notes = chosen_panels(context)
    pictures: dict[str, Picture] = {}
    claims: list[Claim] = []
    table: list[Way] = []
    for name in there:
        chosen = panel_cells(context, name)
        done = context.finished(chosen)
        if not done:
            notes.append(f"{name}: no cell is finished")
            continue
        notes += note_cells(done.values(), len(chosen), context.layers, name)
        rows, nothing = ways(name, done), untrained(name, done)
        table += [*nothing, *rows]
        claims += judge_practices(name, done, chosen)
        notes += practical_note(name, rows, nothing)
        pictures[name] = plot_ways(name, rows, nothing)
        if any(record.last.denoising for record in done.values()):
            pictures[f"{name}-levels"] = plot_levels(name, done)
        if any(len(record.evaluations) > 1 for record in done.values()):
            pictures[f"{name}-course"] = plot_course(name, done, nothing)
        shown = {key: record for key, record in done.items() if is_shown(*key)}
        if shown:
            samples = {key[:2]: context.store.samples(record) for key, record in shown.items()}
            pictures[f"{name}-samples"] = plot_samples(name, samples, rows, nothing)
    return Outcome(pictures, table, context.tested(claims), notes)


FIGURE = Figure(
    "practice",
    "The paper's way and common practice",
    draw,
    cells=cells,
    panels=(*NAMES, *ON_REQUEST),
    on_request=ON_REQUEST,
    images=NAMES,
)
