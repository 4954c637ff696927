"""Draw a figure in a folder where it was drawn before, perhaps by another process at this moment.

A command says what is computed; what is drawn is all that is finished, with the panels, seeds and
images of earlier commands. So nothing that was shown is lost, and if it had to be, that is refused.
"""

import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sads.errors import OutputError, counted, printable
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.locks import folder_lock
from sads.experiments.page import Summary, plain_rows
from sads.experiments.preregistration import note_registration
from sads.experiments.records import Record
from sads.experiments.spec import Cell
from sads.files import replacing
from sads.tables import titles


def draw_figure(
    figure: Figure, context: Context, folder: Path, command: str, asked: Collection[Cell]
) -> tuple[Outcome, Summary]:
    """Draw a figure and write it; again, if another process has meanwhile drawn other panels.

    From records as the archive has them, so that whoever draws it again gets the same numbers.
    """
    store = context.store
    if store.is_local:
        store.to_archive(record for cell in asked if (record := store.find(cell)))
    while True:
        earlier = Summary.load(folder, figure.name)
        drawn = to_draw(figure, context, earlier)
        outcome = figure.draw(drawn)
        done = drawn.used_records
        if store.is_local:
            store.to_archive(done)  # those that have got baselines
        older = note_registration([record.versions for record in done], figure.name)
        outcome = replace(outcome, notes=[*outcome.notes, *older])
        commands = commands_of(earlier, command, {cell.twin_hash for cell in asked}, done)
        with folder_lock(folder):
            if _shown(Summary.load(folder, figure.name)) == _shown(earlier):
                return outcome, write_outcome(figure, outcome, folder, drawn, commands)


def commands_of(
    earlier: Summary | None, command: str, asked: Collection[str], done: Collection[Record]
) -> str:
    """What made a figure: this command, after those before it if it did not ask for all cells."""
    if earlier is None or all(record.cell.twin_hash in asked for record in done):
        return command
    return "\n".join(dict.fromkeys([*earlier.command.splitlines(), command]))


def _shown(summary: Summary | None) -> object:
    """What a figure shows, whatever the words of its claims have become on the page."""
    return summary and (summary.panels, summary.num_seeds, summary.cells)


def to_draw(figure: Figure, context: Context, earlier: Summary | None) -> Context:
    """The context that draws a figure, with the panels and seeds that it had already."""
    panels = context.panels(figure.panels, figure.on_request)
    known = () if earlier is None else earlier.panels
    seeds = dict((earlier and earlier.num_seeds) or {})
    if context.num_seeds is not None:
        seeds |= {name: max(context.num_seeds, seeds.get(name, 0)) for name in panels}
    return context.to_draw((*panels, *known), seeds)


def refuse_to_lose(figure: Figure, context: Context, folder: Path) -> None:
    """One line if a figure would be drawn without cells that it shows and that are still there.

    Those of images that are not given any more, or that are others now.
    """
    earlier = Summary.load(folder, figure.name)
    if earlier is None or not earlier.cells:
        return
    cells = figure.cells(to_draw(figure, context, earlier))
    drawn, twins = {cell.hash for cell in cells}, {cell.twin_hash for cell in cells}
    others = (context.store.find_hash(name) for name in earlier.cells if name not in drawn)
    lost = [r.cell for r in others if r is not None and r.cell.twin_hash not in twins]
    if lost:
        data = ", ".join(sorted({str(cell.data) for cell in lost})[:3])
        raise OutputError(
            f"{printable(folder / figure.name)}.json shows {counted(len(lost), 'cell')} that would "
            f"be left out ({printable(data)}); give what it was made with ("
            f"{printable('; '.join(earlier.command.splitlines()))}), or another --out"
        )


def write_outcome(
    figure: Figure, outcome: Outcome, folder: Path, context: Context, command: str
) -> Summary:
    """Write the pictures of a figure and its `figN.json`: all of them, or none if one fails."""
    from sads.plots.style import save

    pictures = {name: f"{_file_name(figure, name)}.png" for name in outcome.pictures}
    check_pictures(folder, figure.name, list(pictures.values()))
    summary = Summary(
        figure=figure.name,
        title=figure.title,
        scale=context.scale,
        panels=tuple(context.panels(figure.panels, figure.on_request)),
        command=command,
        claims=tuple(outcome.claims),
        columns=titles(outcome.table),
        table=plain_rows(outcome.table),
        notes=tuple(outcome.notes),
        pictures=pictures,
        cells=tuple(sorted(record.cell.hash for record in context.used_records)),
        num_seeds=dict(context.drawn_seeds or {}),
    )
    with ExitStack() as written:
        for name, picture in outcome.pictures.items():
            save(picture, written.enter_context(replacing(folder / pictures[name])))
        summary.save(folder)  # first of all that takes its place: it says which pictures are ours
    return summary


def check_pictures(folder: Path, figure: str, pictures: Collection[str]) -> None:
    """One line if a figure would lose a picture of its own, or replace one of somebody else."""
    earlier = Summary.load(folder, figure)
    lost = [] if earlier is None else [p for p in earlier.pictures.values() if p not in pictures]
    if lost:
        raise OutputError(
            f"{figure} would lose {', '.join(map(printable, lost[:3]))}, for which cells of today "
            f"are missing; compute them, or move {printable(folder / figure)}.json away"
        )
    ours = set() if earlier is None else set(earlier.pictures.values())
    for name in pictures:
        if name not in ours and os.path.lexists(folder / name):
            raise OutputError(
                f"{printable(folder / name)} is there already and not of this figure; move it away "
                "and run this again: nothing is computed twice"
            )


def _file_name(figure: Figure, picture: str) -> str:
    return picture if picture.startswith(figure.name) else f"{figure.name}-{picture}"
