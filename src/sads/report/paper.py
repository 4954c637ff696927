"""The paper's claims on a page: verdicts, evidence, figures, tables, and the cells behind them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sads.errors import ReportError, StoreError
from sads.estimates import Estimate
from sads.experiments.archive import Archive
from sads.experiments.page import Summary, describe_claim, format_p, read_cell
from sads.experiments.preregistration import describe_commit, registered_claims
from sads.experiments.records import Record
from sads.experiments.verdict import CONTRADICTED, INCONCLUSIVE, LEVEL, NOT_TESTED, SUPPORTED
from sads.markup import element
from sads.report.images import picture_url
from sads.report.page import Section, render
from sads.tables import format_value

VERDICTS = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)
CELL_TITLES = ("cell", "state", "SW2", "MSW2", "loss at the end", "alpha", "seconds", "hash")


@dataclass(frozen=True, eq=False)
class PaperSource:
    """A folder of `sads reproduce`."""

    folder: Path
    summaries: tuple[Summary, ...]
    records: Mapping[str, Record]  # by hash


def find_summaries(folder: Path) -> tuple[Summary, ...]:
    """The figures in a folder, in the order of their names; `ReportError` if one is damaged."""
    ours = {claim.figure for claim in registered_claims()}
    found = []
    for path in folder.glob("*.json"):
        try:
            summary = Summary.load(folder, path.stem)
        except StoreError as error:
            if path.stem in ours:  # other files may hold anything
                raise ReportError(str(error)) from error
            continue
        found += [] if summary is None else [summary]
    return tuple(sorted(found, key=lambda summary: (len(summary.figure), summary.figure)))


def read_paper(folder: Path) -> PaperSource:
    return PaperSource(folder, find_summaries(folder), Archive.read(folder).records)


def paper_section(source: PaperSource, id: str) -> Section:
    """All claims of a folder, and every figure with what it rests on."""
    claims = [
        {
            "figure": summary.figure,
            "text": describe_claim(summary.figure, claim),
            "verdict": claim.verdict if claim.verdict in VERDICTS else INCONCLUSIVE,
            "p_for": format_p(claim, claim.p_for),
            "p_against": format_p(claim, claim.p_against),
            "units": claim.units,
            "reason": claim.reason,
            "evidence": claim.evidence,
        }
        for summary in source.summaries
        for claim in summary.claims
    ]
    known = source.records
    figures = [
        {
            "summary": summary,
            "id": f"{id}-{number}",
            "pictures": {
                name: picture_url(source.folder, file) for name, file in summary.pictures.items()
            },
            "table": sortable(
                list(summary.columns.values()),
                ([read_cell(row.get(name)) for name in summary.columns] for row in summary.table),
            ),
            "cells": cell_table(known[hash] for hash in summary.cells if hash in known),
            "num_cells": sum(hash in known for hash in summary.cells),
        }
        for number, summary in enumerate(source.summaries, start=1)
    ]
    told = {hash for summary in source.summaries for hash in summary.cells}
    others = [record for hash, record in known.items() if hash not in told]
    html = render(
        "paper.html",
        id=id,
        claims=claims,
        verdicts=VERDICTS,
        counts={verdict: sum(c["verdict"] == verdict for c in claims) for verdict in VERDICTS},
        names=[summary.figure for summary in source.summaries],
        level=f"{LEVEL:.0%}",
        commit=describe_commit(),
        figures=figures,
        others=cell_table(others),
        num_others=len(others),
    )
    name = source.folder.resolve().name
    return Section("paper", id, f"Claims and figures in {name}", html)


def cell_table(records: Iterable[Record]) -> Markup:
    """Trained cells, one a row."""
    return sortable(
        CELL_TITLES,
        (
            [
                record.cell.label,
                record.last.state,
                None if record.last.distance is None else record.last.distance.sw2,
                record.last.msw2,
                record.losses[-1],
                record.facts.alpha,
                round(record.seconds),
                record.cell.hash,
            ]
            for record in sorted(records, key=lambda record: record.cell.label)
        ),
    )


def sortable(titles: Iterable[str], rows: Iterable[list[Any]]) -> Markup:
    """A table whose columns the scripts can sort by, and whose rows they can filter."""
    buttons = (
        element("th", element("button", title or "name", type="button"), scope="col")
        for title in titles
    )
    lines = [element("tr", *map(_cell, row)) for row in rows]
    return element(
        "table",
        element("thead", element("tr", *buttons)),
        element("tbody", *lines),
        class_="rows sortable",
    )


def _cell(value: object) -> Markup:
    """A cell: a number is shown to four digits, and kept whole to be sorted by and saved."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return element("td", value if isinstance(value, Markup) else format_value(value))
    if not math.isfinite(value):
        return element("td")
    if not isinstance(value, Estimate):
        return element("td", format_value(value), data_value=value)
    error = value.error if math.isfinite(value.error) else None
    return element("td", value, data_value=value.value, data_error=error)
