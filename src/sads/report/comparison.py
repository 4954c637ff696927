"""Geometries beside each other: spectra, ends, matched directions, energy against frequency."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sads.geometry.result import Geometry
from sads.geometry.summary import describe
from sads.pieces import element, table
from sads.report.page import Section, render
from sads.shapes import format_shape
from sads.theory.predictions import Prediction

ENDS = ("avoided", "preferred")
SIZES = (1, 2, 3, 5, 10, 20, 50, 100, 200)  # of the ends that are compared
MAX_MATCHED = 1024  # coordinates up to which all directions are matched, beyond it the ends
NUM_MATCHED = 128  # of each end


@dataclass(frozen=True)
class Compared:
    """A geometry of a comparison, and the section of the page that is about it."""

    geometry: Geometry
    section: str
    frequencies: Prediction | None  # energies of the DCT


def comparison_section(compared: Sequence[Compared], id: str) -> Section:
    """The first geometry against each of the others."""
    first, *others = compared
    pairs = [_pair(first, other) for other in others]
    named = {c.geometry.label: describe(c.geometry) for c in compared}
    rows = dict.fromkeys(name for facts in named.values() for name in facts)
    cells = ([name, *(facts.get(name, "") for facts in named.values())] for name in rows)
    html = render(
        "comparison.html",
        id=id,
        names=list(named),
        facts=element("div", table(["", *named], cells), class_="scroll", tabindex="0"),
        pairs=pairs,
        first=first.geometry.label,
    )
    data = {
        "geometries": [_curves(c) for c in compared],
        "pairs": [pair for pair in pairs if pair["sizes"]],
    }
    return Section("comparison", id, "Comparison", html, data)


def _curves(compared: Compared) -> dict[str, Any]:
    geometry = compared.geometry
    values = geometry.directions().values
    return {
        "title": geometry.label,
        "section": compared.section,
        "relative": values / max(float(values.mean()), 1e-300),
        "frequencies": [] if compared.frequencies is None else by_frequency(compared.frequencies),
    }


def by_frequency(prediction: Prediction) -> list[tuple[float, float, int]]:
    """Mean energy of the DCT's vectors at each distance from zero frequency.

    Rows are frequencies in cycles a pixel, the mean of `v^T G v` there in units of its mean over
    all vectors, and how many vectors that is.
    """
    basis = prediction.basis
    sizes = 2 * np.array(basis.spatial)
    radius = np.linalg.norm([np.array(e.position) / sizes for e in basis.index], axis=1)
    width = 1 / sizes.max()
    bins = np.rint(radius / width).astype(int)
    relative = prediction.relative.numpy()
    return [
        (float(radius[bins == b].mean()), float(relative[bins == b].mean()), int((bins == b).sum()))
        for b in np.unique(bins)
    ]


def _pair(first: Compared, other: Compared) -> dict[str, Any]:
    """Principal angles between the ends of two geometries, and the matches of directions."""
    a, b = first.geometry, other.geometry
    pair: dict[str, Any] = {
        "title": b.label,
        "first": first.section,
        "other": other.section,
        "why_not": "",
        "sizes": [],
    }
    if a.shape != b.shape:
        return {
            **pair,
            "why_not": f"its data are {format_shape(b.shape)}, those of {a.label} "
            f"{format_shape(a.shape)}: directions of different spaces have no angle",
        }
    sizes = [k for k in SIZES if k <= a.dimension // 2] or [1]
    return {
        **pair,
        "sizes": sizes,
        "chance": [k / a.dimension for k in sizes],
        "ends": {end: [_overlap(a, b, end, k) for k in sizes] for end in ENDS},
        "matches": _matches(a, b),
    }


def _overlap(a: Geometry, b: Geometry, end: str, count: int) -> dict[str, float]:
    """The principal angles between the `count` most avoided, or preferred, directions of each.

    `shared` is the mean of their squared cosines: 1 if the subspaces are the same, `count / D` for
    random ones.
    """
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
