"""Figure 2: MSW2 of an iDDPM for data along every vector of five bases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sads.data.bases import BASES, basis
from sads.experiments.figure import Context, Figure, Outcome, note_cells
from sads.experiments.spec import Budget, Cell, FamilySpec, GeometrySpec
from sads.experiments.verdict import (
    Claim,
    correlation_over_elements,
    judge,
    mean_and_error,
    superiority,
)

FREQUENCY_BASES = ("dct", "dst", "hadamard")


@dataclass(frozen=True)
class Settings:
    family: FamilySpec
    num_networks: int
    seeds: int
    budget: Budget


SMALL = FamilySpec("iddpm", (1, 8, 8))  # the paper's network; a quarter of the work
SETTINGS = {
    "smoke": Settings(
        FamilySpec("cnn", (1, 4, 4)), 256, 1, Budget(200, 10, 50, 1e-3, 50, 5, "ddpm", 16)
    ),
    "laptop": Settings(SMALL, 4096, 1, Budget(10_000, 100, 64, 1e-3, 200, 20, "ddpm")),
    "paper": Settings(
        FamilySpec("iddpm", (1, 16, 16)),
        1_000_000,
        5,
        Budget(10_000, 2_000, 1_000, 1e-4, 10_000, 1_000, "ddpm"),
    ),
}


def all_cells(context: Context) -> dict[tuple[int, str, int], Cell]:
    """By seed, basis and number of the vector; the first seed of everything comes first."""
    settings = SETTINGS[context.scale]
    spec = GeometrySpec(settings.family, settings.num_networks)
    dimension = basis("canonical", settings.family.shape).dimension
    return {
        (seed, name, index): Cell(spec, f"basis:{name}:{index}", settings.budget, seed)
        for seed in context.seeds(settings.seeds)
        for name in context.panels(BASES)
        for index in range(dimension)
    }


def draw(context: Context) -> Outcome:
    from sads.experiments import drawing

    settings = SETTINGS[context.scale]
    chosen = all_cells(context)
    records = context.records(chosen.values())
    notes = note_cells(records.values(), len(chosen))
    if settings.family.shape != (1, 16, 16):
        notes.append(f"at this scale the network is {settings.family}, the paper's is 1x16x16")
    values: dict[str, np.ndarray] = {}  # means over seeds, NaN where none is finished, (D,)
    energies: dict[str, np.ndarray] = {}
    dimension = basis("canonical", settings.family.shape).dimension
    for name in context.panels(BASES):
        values[name], energies[name] = np.full((2, dimension), np.nan)
        for index in range(dimension):
            cells = [chosen[s, name, index] for s in context.seeds(settings.seeds)]
            done = [records[cell] for cell in cells if cell in records]
            if done:
                values[name][index] = mean_and_error([r.metric("msw2") for r in done])[0]
                energies[name][index] = done[0].facts["energy"]
    if not records:
        return Outcome({}, [], [], ["no cell is finished"])
    table = [_row(name, values[name], settings.family.shape) for name in values]
    shape = settings.family.shape
    claims = context.tested(judge_bases(values, energies, shape))
    picture = drawing.plot_bases(values, shape)
    scatter = drawing.plot_energy_against_distance(values, energies)
    return Outcome({"fig2": picture, "fig2-prediction": scatter}, table, claims, notes)


def groups(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Masks of the vectors that the paper speaks of: low and high frequencies, border, inside."""
    positions = np.array([element.position for element in basis(name, shape).index])
    sizes = np.array(shape[1:])
    if name in FREQUENCY_BASES:
        first = 1 if name == "dst" else 0
        low = (positions - first < sizes / 2).all(axis=1)
        high = (positions - first >= sizes / 2).all(axis=1)
        return {"low": low, "high": high}
    if name == "canonical":
        inside = ((positions > 0) & (positions < sizes - 1)).all(axis=1)
        return {"border": ~inside, "inside": inside}
    return {}


def _row(name: str, values: np.ndarray, shape: tuple[int, ...]) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    row: dict[str, Any] = {"basis": name, "vectors": len(finite)}
    if len(finite):
        row |= {"best": finite.min(), "median": float(np.median(finite)), "worst": finite.max()}
    for group, mask in groups(name, shape).items():
        chosen = values[mask & np.isfinite(values)]
        row[group] = float(chosen.mean()) if len(chosen) else None
    return row


def judge_bases(
    values: Mapping[str, np.ndarray], energies: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> list[Claim]:
    """The paper's readings of Figure 2, and Conjecture 1 for vectors that are not eigenvectors."""

    def finite(name: str, mask: np.ndarray | None = None) -> np.ndarray:
        chosen = values[name] if mask is None else values[name][mask]
        return chosen[np.isfinite(chosen)]

    claims = []
    frequencies = [name for name in FREQUENCY_BASES if name in values]
    for name in frequencies:
        parts = groups(name, shape)
        tendency = superiority(finite(name, parts["low"]), finite(name, parts["high"]))
        evidence = f"P(low worse) - P(high worse) = {tendency} over pairs of vectors"
        claims.append(judge(f"{name}: low frequencies are modelled worse", evidence, tendency))
    if "canonical" in values:
        parts = groups("canonical", shape)
        tendency = superiority(
            finite("canonical", parts["inside"]), finite("canonical", parts["border"])
        )
        evidence = f"P(inside worse) - P(border worse) = {tendency}"
        claims.append(judge("canonical: the border is modelled better", evidence, tendency))
    local = [name for name in ("canonical", "haar") if name in values]
    if frequencies and local:
        tendency = superiority(_pool(map(finite, frequencies)), _pool(map(finite, local)))
        evidence = f"P(frequency worse) - P(localised worse) = {tendency}"
        claims.append(judge("vectors localised in space are modelled better", evidence, tendency))
    x, y = _pool(energies.values()), _pool(values.values())
    known = np.isfinite(x) & np.isfinite(y)
    correlation = correlation_over_elements(x[known], y[known])
    claims.append(
        judge(
            "v^T G v, known before training, predicts MSW2 for all vectors (Conjecture 1)",
            f"rank correlation {correlation} over {known.sum()} vectors of the same seeds",
            correlation,
        )
    )
    return claims


def _pool(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(parts))


FIGURE = Figure(
    "fig2",
    "Training along the vectors of five bases",
    BASES,
    lambda context: list(all_cells(context).values()),
    draw,
)
