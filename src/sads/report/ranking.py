"""Candidates for data, before training, on a page: whom the league would believe, and how far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sads.experiments.ranking import Ranking
from sads.report.page import Section, render
from sads.report.paper import sortable


@dataclass(frozen=True)
class RankingSource:
    """What the `ranking.json` of `sads rank` holds."""

    command: str
    data: Mapping[str, Any]
    ranking: Ranking


def ranking_section(source: RankingSource, id: str) -> Section:
    """The candidates with their facts, in the order of the league's winner if there is one."""
    ranking = source.ranking
    names = list(dict.fromkeys(name for c in ranking.candidates for name in c.facts))
    rows = [
        [
            *([candidate.place] if ranking.is_ranked else []),
            candidate.family,
            candidate.rotation,
            candidate.practice,
            *(
                candidate.facts[name].of(ranking.outcome) if name in candidate.facts else None
                for name in names
            ),
        ]
        for candidate in ranking.candidates
    ]
    titles = ["network", "rotation", "practice", *names]
    html = render(
        "ranking.html",
        id=id,
        data=source.data.get("statement", ""),
        statements=ranking.statements,
        ranked=ranking.is_ranked,
        outcome=ranking.outcome,
        between=ranking.between_families,
        table=sortable(["place", *titles] if ranking.is_ranked else titles, rows),
        line=source.command,
    )
    return Section("ranking", id, "Which network, which rotation? Before training", html)
