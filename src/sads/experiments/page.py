"""A page of Markdown over all figures that were made in a folder: claims, pictures, tables.

Of every figure a summary is kept as JSON, `figN.json`; the page is made of these.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sads.errors import InvalidArgumentError, OutputError, StoreError, printable
from sads.estimates import Estimate
from sads.experiments.locks import folder_lock
from sads.experiments.preregistration import describe_commit, find_registered
from sads.experiments.spec import MOST_SEEDS
from sads.experiments.verdict import (
    CONTRADICTED,
    INCONCLUSIVE,
    LEVEL,
    NOT_TESTED,
    SUPPORTED,
    Claim,
    correct,
)
from sads.files import plain, replacing, write_json
from sads.from_json import DecodingError, decode
from sads.tables import Row, format_value
from sads.untrusted import DAMAGE, first_line, open_regular, read_json

PAGE = "README.md"
MARK_OF_PAGE = "<!-- Written by sads reproduce, which writes it anew each time. -->"
EARLIER_PAGE = "# The paper's figures\n\nMade by `sads reproduce`"  # of version 0.1.0
MARKS = {SUPPORTED: "✅", CONTRADICTED: "❌", INCONCLUSIVE: "❔", NOT_TESTED: "⬜"}
EARLIER = "made by an earlier sads, without p-values; make the figure again"


@dataclass(frozen=True)
class Summary:
    """A figure as it was made, without its pictures: what `figN.json` holds."""

    figure: str
    title: str
    scale: str
    panels: tuple[str, ...]
    command: str  # that made it; several, a line each, if each made panels of its own
    claims: tuple[Claim, ...]
    columns: dict[str, str]  # titles of the table, by field
    table: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    pictures: dict[str, str]  # names of files
    cells: tuple[str, ...] = ()  # hashes of the records behind it; older summaries do not say
    num_seeds: dict[str, int] | None = None  # by panel, where a number was asked for

    def __post_init__(self) -> None:
        counts = (self.num_seeds or {}).values()
        if not all(1 <= count <= MOST_SEEDS for count in counts):
            raise InvalidArgumentError(f"num_seeds must lie between 1 and {MOST_SEEDS:,}")

    def save(self, folder: Path) -> Path:
        return write_json(folder / f"{self.figure}.json", self)

    @classmethod
    def load(cls, folder: Path, figure: str) -> "Summary | None":
        """What `save` wrote, or None if there is nothing; `StoreError` if it cannot be read."""
        path = folder / f"{figure}.json"
        if not os.path.lexists(path):
            return None
        try:
            summary = decode(cls, read_json(path))
            for row in summary.table:
                for value in row.values():
                    show_cell(value)
            if summary.figure != figure:
                raise DecodingError(f"it is of {printable(summary.figure)[:60]!r}")
            return summary
        except DAMAGE as error:
            raise StoreError(
                f"{printable(path)} is damaged or not ours ({first_line(error)}); restore it, or "
                f"move it away and make {figure} again"
            ) from error


def plain_rows(rows: Iterable[Row]) -> tuple[dict[str, Any], ...]:
    """Rows as JSON has them."""
    return tuple(plain(row) for row in rows)  # type: ignore[misc]


def judge_page(folder: Path, figures: Iterable[str]) -> dict[str, Summary]:
    """Correct the words of all claims in a folder for each other, and write them to the summaries.

    A figure that is made later counts, too, so this is done again with every figure.
    """
    with folder_lock(folder):
        return _judge(folder, figures)


def _judge(folder: Path, figures: Iterable[str]) -> dict[str, Summary]:
    found = {name: Summary.load(folder, name) for name in figures}
    summaries = {name: summary for name, summary in found.items() if summary is not None}
    words = iter(correct([_known(c) for summary in summaries.values() for c in summary.claims]))
    judged = {}
    for name, summary in summaries.items():
        judged[name] = replace(summary, claims=tuple(next(words) for _ in summary.claims))
        if judged[name] != summary:
            judged[name].save(folder)
    return judged


def _known(claim: Claim) -> Claim:
    """A claim of an earlier format has words that nobody can derive again."""
    known = claim.unit or claim.gate or claim.reason
    return claim if known else replace(claim, reason=EARLIER)


def write_page(folder: Path, figures: Iterable[str]) -> Path:
    """Write `README.md` from the summaries in a folder, in the order of the figures' names.

    A README.md of somebody else stays; the page is then `figures.md`.
    """
    page = find_page(folder)
    with folder_lock(folder):
        lines = _lines(list(_judge(folder, figures).values()))
        with replacing(page) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def _lines(summaries: Sequence[Summary]) -> list[str]:
    lines = [
        MARK_OF_PAGE,
        "",
        "# The paper's figures",
        "",
        "Made by `sads reproduce`; every number is in the JSON, every cell in `records.jsonl`.",
        "",
        f"Words are derived from two one-sided tests at {LEVEL:.0%}, corrected for all claims of "
        "this page (Holm); the p-values here are not. Nothing rests on models that have diverged "
        "or are not trained: no better than a constant.",
        "",
        "Claims, units and thresholds stand in `src/sads/experiments/claims.toml` "
        f"({describe_commit()}); a claim that does not is marked as found later.",
        "",
        "| figure | claim | verdict | p for | p against | units | evidence |",
        "|---|---|---|---|---|---|---|",
    ]
    for summary in summaries:
        for claim in summary.claims:
            texts = (
                summary.figure,
                describe_claim(summary.figure, claim),
                f"{MARKS.get(claim.verdict, '❔')} {claim.verdict}",
                format_p(claim, claim.p_for),
                format_p(claim, claim.p_against),
                claim.units,
                describe_evidence(claim),
            )
            lines.append(f"| {' | '.join(map(_escape, texts))} |")
    for summary in summaries:
        lines += _section(summary)
    return lines


def find_page(folder: Path) -> Path:
    """Which file the page goes to; one line if somebody else's stand in all places for it."""
    page = next((p for p in (folder / PAGE, folder / "figures.md") if _is_page(p)), None)
    if page is None:
        raise OutputError(
            f"neither {PAGE} nor figures.md in {printable(folder)} is ours to write; move one of "
            "them away"
        )
    return page


def _is_page(path: Path) -> bool:
    """Is there nothing, or a page of ours?"""
    if not os.path.lexists(path):
        return True
    try:
        with open_regular(path) as file:
            start = file.read(1000).decode("utf-8", "ignore")
    except OSError:
        return False
    return start.startswith((MARK_OF_PAGE, EARLIER_PAGE))


def describe_claim(figure: str, claim: Claim) -> str:
    """The text of a claim, and whether it was registered before the runs, of these units."""
    found = find_registered(figure, claim.text)
    known = found is not None and claim.unit in ("", found.unit)
    return claim.text if known else f"{claim.text} (*found later, not registered*)"


def describe_evidence(claim: Claim) -> str:
    """Why it is not tested, if it is not, and the numbers."""
    return f"**{claim.reason}**; {claim.evidence}" if claim.reason else claim.evidence


def format_p(claim: Claim, value: float) -> str:
    """A p-value of a claim; none where nothing is tested, although there are numbers."""
    return "" if claim.verdict == NOT_TESTED or math.isnan(value) else f"{value:.2g}"


def _section(summary: Summary) -> list[str]:
    lines = ["", f"## {summary.figure}: {summary.title} ({summary.scale})", ""]
    commands = [printable(line).replace("```", "") for line in summary.command.splitlines()]
    lines += ["```sh", *commands, "```", ""]
    lines += [f"![{name}]({file})" for name, file in summary.pictures.items()]
    lines += ["", *(f"- {_escape(note)}" for note in summary.notes), ""]
    if summary.table:
        lines += [f"| {' | '.join(map(_escape, summary.columns.values()))} |"]
        lines += [f"|{'---|' * len(summary.columns)}"]
        for row in summary.table:
            texts = (_escape(show_cell(row.get(name))) for name in summary.columns)
            lines.append(f"| {' | '.join(texts)} |")
    return lines


def read_cell(value: Any) -> Any:
    """A cell of a table from its JSON: an object is an estimate."""
    if isinstance(value, list):
        raise DecodingError("a cell of a table is a number, a word or an estimate")
    return decode(Estimate, value) if isinstance(value, dict) else value


def show_cell(value: Any) -> str:
    return format_value(read_cell(value))


def _escape(text: str) -> str:
    return printable(text).replace("|", "\\|")
