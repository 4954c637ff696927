"""Geometries beside each other: spectra, ends, matched directions, energy against frequency."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sads.geometry.profile import frequency_profile
from sads.geometry.result import Geometry
from sads.geometry.summary import describe
from sads.markup import element, table, unfolded
from sads.report.ends import curve_data
from sads.report.page import Section, render
from sads.shapes import format_shape

ENDS = ("avoided", "preferred")
SIZES = (1, 2, 3, 5, 10, 20, 50, 100, 200)  # of the ends that are compared
MAX_MATCHED = 1024  # coordinates up to which all directions are matched, beyond it the ends
NUM_MATCHED = 128  # of each end


@dataclass(frozen=True)
class Compared:
    """A geometry of a comparison, and the section of the page that is about it."""

    geometry: Geometry
    section: str
    name: str


def comparison_section(compared: Sequence[Compared], id: str) -> Section:
    """The first geometry against each of the others."""
    first, *others = compared
    pairs = [_pair(first, other) for other in others]
    named = {c.name: unfolded(describe(c.geometry)) for c in compared}
    rows = dict.fromkeys(name for facts in named.values() for name in facts)
    cells = ([name, *(facts.get(name, "") for facts in named.values())] for name in rows)
    html = render(
        "comparison.html",
        id=id,
        names=list(named),
        facts=element("div", table(["", *named], cells), class_="scroll", tabindex="0"),
        pairs=pairs,
        first=first.name,
    )
    data = {
        "geometries": [_curves(c) for c in compared],
        "pairs": [pair for pair in pairs if pair["sizes"]],
    }
    return Section("comparison", id, "Comparison", html, data)


def _curves(compared: Compared) -> dict[str, Any]:
    geometry = compared.geometry
    curves: dict[str, Any] = {"name": compared.name, "spectrum": None, "frequency": None}
    if not geometry.matrix_free:
        directions, mean = geometry.directions(), max(geometry.trace / geometry.dimension, 1e-300)
        curves["spectrum"] = {
            "x": (torch.arange(geometry.dimension) + 0.5) / geometry.dimension,
            "y": directions.values / mean,
            "errors": directions.value_errors / mean,
        }
    if len(geometry.shape) in (2, 3):
        curves["frequency"] = curve_data(frequency_profile(geometry))
    return curves


def _pair(first: Compared, other: Compared) -> dict[str, Any]:
    """Principal angles between the ends of two geometries, and the matches of directions."""
    a, b = first.geometry, other.geometry
    pair: dict[str, Any] = {
        "title": other.name,
        "first": first.section,
        "other": other.section,
        "why_not": "",
        "sizes": [],
    }
    if a.matrix_free or b.matrix_free:
        return {
            **pair,
            "why_not": "one of them is kept without a matrix, and not all of its "
            "directions are known",
        }
    if a.shape != b.shape:
        return {
            **pair,
            "why_not": f"its data are {format_shape(b.shape)}, those of {first.name} "
            f"{format_shape(a.shape)}: directions of different spaces have no angle",
        }
    by_end = {end: _sizes(a, b, end) for end in ENDS}
    sizes = sorted(set().union(*by_end.values()))
    if not sizes:
        return {**pair, "why_not": "too many of their eigenvalues are equal to tell their ends"}
    return {
        **pair,
        "sizes": sizes,
        "unknown": [end for end in ENDS if not by_end[end]],
        "chance": [k / a.dimension for k in sizes],
        "ends": {end: [_overlap(a, b, end, k) for k in sizes] for end in ENDS},
        "matches": _matches(a, b),
    }


def _sizes(a: Geometry, b: Geometry, end: str) -> set[int]:
    """The sizes of an end that the eigenvalues of both define, at `SIZES` or next to them."""
    cuts = (a.directions().cuts(end) & b.directions().cuts(end)).nonzero()[:, 0] + 1
    places = torch.searchsorted(cuts, torch.tensor(SIZES))
    return {k for k in cuts[places[places < len(cuts)]].tolist() if k <= max(1, a.dimension // 2)}


def _overlap(a: Geometry, b: Geometry, end: str, count: int) -> dict[str, float | None]:
    """The principal angles between the `count` most avoided, or preferred, directions of each.

    `shared` is the mean of their squared cosines: 1 if the subspaces are the same, `count / D` for
    random ones. Nothing is known of ends that are cut between equal eigenvalues.
    """
    if not all(g.directions().cuts(end)[count - 1] for g in (a, b)):
        return dict.fromkeys(("shared", "largest", "median"))
    rows = (getattr(g.directions(), end)(count).reshape(count, -1) for g in (a, b))
    first, second = rows
    cosines = torch.linalg.svdvals(first @ second.T).clamp(max=1)
    return {
        "shared": float(cosines.square().mean()),
        "largest": math.acos(float(cosines.min())),
        "median": math.acos(float(cosines.median())),
    }


def _matches(a: Geometry, b: Geometry) -> dict[str, Any]:
    """For directions of `a` the direction of `b` with the largest cosine."""
    size = a.dimension
    ranks = list(range(size))
    if size > MAX_MATCHED:
        ranks = [*range(NUM_MATCHED), *range(size - NUM_MATCHED, size)]
    first, second = (g.directions().select(ranks).reshape(len(ranks), -1) for g in (a, b))
    cosines, places = (first @ second.T).abs().max(dim=1)
    return {
        "ranks": ranks,
        "matched": [ranks[place] for place in places.tolist()],
        "cosines": cosines.clamp(max=1),
    }
