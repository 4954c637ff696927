"""Figure 7: uncurated samples of models that were trained on rotated images."""

from typing import Any

from sads.experiments.figure import Context, Figure, Outcome, note_cells
from sads.experiments.rotations import (
    EXTREMES,
    PANELS,
    available,
    finished,
    panel_cells,
    whole_seeds,
)
from sads.experiments.spec import Cell
from sads.experiments.verdict import Claim, judge, mean_and_error, paired_difference


def cells(context: Context) -> list[Cell]:
    there, _ = available(context)
    return [c for panel in there for c in panel_cells(context, panel, EXTREMES).values()]


def draw(context: Context) -> Outcome:
    from sads.experiments import drawing

    there, notes = available(context)
    pictures, claims = {}, []
    table: list[dict[str, Any]] = []
    for panel in there:
        done, total = finished(context, panel, EXTREMES)
        seeds = whole_seeds(done, EXTREMES)
        if not seeds:
            notes.append(f"{panel}: no seed is finished")
            continue
        notes += note_cells(done.values(), total, panel)
        rows = []
        for kind in EXTREMES:
            records = [done[seed, kind] for seed in seeds]
            row: dict[str, Any] = {"data": panel, "rotation": kind, "seeds": len(seeds)}
            row["alpha"] = records[0].facts["alpha"]
            for name in ("SW2", "MSW2", "without digit", "share of ones", "class entropy"):
                key = name.lower().replace(" ", "_")
                if any(key in record.evaluations[-1] for record in records):
                    row[name], row[f"{name} error"] = mean_and_error(
                        [record.metric(key) for record in records]
                    )
            rows.append(row)
        table += rows
        if "without digit" in rows[0]:
            claims += _judge_digits(panel, {k: [done[s, k] for s in seeds] for k in EXTREMES})
        samples = {kind: context.store.samples(done[seeds[0], kind]) for kind in EXTREMES}
        iterations = done[seeds[0], "min"].evaluations[-1]["iterations"]
        pictures[panel] = drawing.plot_rotated_samples(panel, samples, rows, iterations)
    return Outcome(pictures, table, context.tested(claims), notes)


def _judge_digits(panel: str, records: dict[str, list[Any]]) -> list[Claim]:
    """What the paper says in words about the samples."""

    def values(kind: str, key: str) -> list[float]:
        return [record.metric(key) for record in records[kind]]

    claims = []
    blank = paired_difference(values("identity", "without_digit"), values("min", "without_digit"))
    claims.append(
        judge(
            f"{panel}: without a rotation, more samples have no digit than with the minimising one",
            f"share without a digit, difference: {blank}",
            blank.interval,
        )
    )
    if any("share_of_ones" in record.evaluations[-1] for record in records["max"]):
        ones = paired_difference(values("max", "share_of_ones"), values("min", "share_of_ones"))
        claims.append(
            judge(
                f'{panel}: maximising alpha leads towards the digit "1"',
                f'share of "1" less that of the minimising rotation: {ones}',
                ones.interval,
            )
        )
    return claims


FIGURE = Figure("fig7", "Samples of rotated image data", PANELS, cells, draw)
