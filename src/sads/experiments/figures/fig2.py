"""Figure 2: MSW2 of an iDDPM for data along every vector of five bases.

Panels that end in `-common` train and sample the same networks on the same data as people do today:
v-prediction, clipped, averaged. They are made if `--only` names them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sads.data.bases import BASES, FREQUENCY_BASES, basis
from sads.data.spec import DataSpec
from sads.experiments.figures.figure import Context, Figure, Outcome, joined, note_cells
from sads.experiments.figures.states import (
    BaselineRow,
    baseline_cells,
    baseline_lines,
    describe_states,
    gate,
    note_states,
)
from sads.experiments.records import Record
from sads.experiments.spec import COMMON, PAPER, Cell, FamilySpec, Practice, cell_of
from sads.experiments.verdict import (
    MIN_SEEDS,
    Claim,
    blocked_correlation_test,
    correlation_over_elements,
    group_test,
    judge,
    superiority,
    untested,
    until_finished,
)
from sads.table1 import CNN, IDDPM, Sampling, Training
from sads.tables import titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COLUMNS = {
    "smoke": replace(
        CNN,
        shape=(1, 4, 4),
        num_networks=256,
        num_seeds=1,
        num_data=200,
        training=Training(10, 50, 1e-3),
        sampling=Sampling(50, 5, projections_per_dimension=16),
    ),
    "laptop": replace(  # the paper's network at a quarter of the work
        IDDPM,
        shape=(1, 8, 8),
        num_networks=4096,
        num_seeds=1,
        training=Training(100, 64, 1e-3),
        sampling=Sampling(200, 20),
    ),
    "paper": IDDPM,
}

ENDINGS = {PAPER: "", COMMON: "-common"}  # of the names of panels, by practice
PANELS = tuple(name + ending for ending in ENDINGS.values() for name in BASES)
ON_REQUEST = PANELS[len(BASES) :]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BasisRow(BaselineRow):
    """MSW2 over the vectors of one basis, and over the groups that the paper speaks of."""

    basis: str
    vectors: int
    best: float | None = None
    median: float | None = None
    worst: float | None = None
    low: float | None = None  # frequencies
    high: float | None = None
    border: float | None = None  # pixels
    inside: float | None = None
    _: KW_ONLY
    zeros: float | None = titled("MSW2 of zeros", default=None)


def practice_cells(context: Context, practice: Practice) -> dict[tuple[int, str, int], Cell]:
    """The cells by seed, basis and number of the vector; those of the first seed come first."""
    chosen = COLUMNS[context.scale]
    return {
        (seed, name, index): cell_of(
            chosen,
            data=DataSpec("rank-one", name, str(index)),
            seed=seed,
            layers=context.layers,
            practice=practice,
        )
        for seed, name, index in _keys(context, practice, _chosen_bases(context, practice))
    }


def _keys(
    context: Context, practice: Practice, names: Collection[str]
) -> Iterator[tuple[int, str, int]]:
    chosen = COLUMNS[context.scale]
    dimension = basis("canonical", chosen.shape).dimension
    seeds = {name: context.seeds(chosen.num_seeds, name + ENDINGS[practice]) for name in names}
    return (
        (seed, name, i)
        for seed in range(max(map(len, seeds.values()), default=0))
        for name in names
        if seed in seeds[name]
        for i in range(dimension)
    )


def _chosen_bases(context: Context, practice: Practice) -> list[str]:
    """The bases of the panels that were asked for in a practice."""
    ending = ENDINGS[practice]
    panels = context.panels([name + ending for name in BASES], on_request=ON_REQUEST)
    return [panel.removesuffix(ending) for panel in panels]


@dataclass(frozen=True)
class Behind:
    """What is behind claims about some bases of a practice: all cells that were registered."""

    cells: Collection[tuple[int, str, int]]
    done: Mapping[tuple[int, str, int], Record]

    @classmethod
    def of(
        cls, context: Context, practice: Practice, done: Mapping[tuple[int, str, int], Record]
    ) -> "Behind":
        """All bases count, whatever panels were asked for."""
        return cls(list(_keys(context, practice, BASES)), done)

    def gate(self, bases: Collection[str]) -> str:
        return gate([record.last for (_, name, _), record in self.done.items() if name in bases])

    def tested(self, claim: Claim, bases: Collection[str]) -> Claim:
        return until_finished(claim, [key for key in self.cells if key[1] in bases], self.done)


def cells(context: Context) -> list[Cell]:
    return [c for practice in ENDINGS for c in practice_cells(context, practice).values()]


def draw(context: Context) -> Outcome:
    return joined(
        draw_practice(context, practice) for practice in ENDINGS if _chosen_bases(context, practice)
    )


def draw_practice(context: Context, practice: Practice) -> Outcome:
    """The bases of one practice."""
    chosen, ending = COLUMNS[context.scale], ENDINGS[practice]
    place = ending.removeprefix("-")
    cells = practice_cells(context, practice)
    done = context.finished(cells)
    if not done:
        return Outcome({}, [], [], [f"{place}: no cell is finished".removeprefix(": ")])
    notes = note_cells(done.values(), len(cells), context.layers, place)
    notes += note_states(done.values(), place)
    if chosen.shape != IDDPM.shape and practice == PAPER:
        notes.append(f"at this scale the network is {FamilySpec.of(chosen)}, the paper's 1x16x16")
    bases = _chosen_bases(context, practice)
    values = {name: _over_vectors(name, done, chosen.shape, _msw2) for name in bases}
    energies = {name: _over_vectors(name, done, chosen.shape, _energy) for name in bases}
    rows = [_row(name, ending, values[name], chosen.shape, done) for name in bases]
    claims = judge_bases(
        values,
        energies,
        chosen.shape,
        Behind.of(context, practice, done),
        "" if practice == PAPER else "common practice, ",
    )
    num_seeds = len({seed for seed, _, _ in done})
    if num_seeds < MIN_SEEDS:
        reason = f"{num_seeds} of the {MIN_SEEDS} seeds that a verdict takes"
        claims = [untested(claim, claim.gate or reason) for claim in claims]
    state = describe_states([r.last for r in done.values()])
    pictures = {
        f"fig2{ending}": plot_bases(values, chosen.shape, rows, state),
        f"fig2{ending}-prediction": plot_energy_against_distance(values, energies, rows),
    }
    return Outcome(pictures, rows, context.tested(claims), notes)


def _msw2(record: Record) -> float:
    return record.last.msw2


def _energy(record: Record) -> float:
    return np.nan if record.facts.energy is None else record.facts.energy.value


def _over_vectors(
    name: str, done: Mapping[tuple[int, str, int], Record], shape: tuple[int, ...], number: Any
) -> Array:
    """The mean over seeds of a number of the records, NaN where none is finished, (D,)."""
    values = np.full(basis(name, shape).dimension, np.nan)
    for index in range(len(values)):
        found = [number(r) for (_, n, i), r in done.items() if (n, i) == (name, index)]
        if found:
            values[index] = np.mean(found)
    return values


def _row(
    name: str,
    ending: str,
    values: Array,
    shape: tuple[int, ...],
    done: Mapping[tuple[int, str, int], Record],
) -> BasisRow:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return BasisRow(name + ending, 0)
    groups: dict[str, Any] = {
        group: float(chosen.mean()) if len(chosen := values[mask & np.isfinite(values)]) else None
        for group, mask in basis(name, shape).groups().items()
    }
    return BasisRow(
        basis=name + ending,
        vectors=len(finite),
        best=float(finite.min()),
        median=float(np.median(finite)),
        worst=float(finite.max()),
        **groups,
        **baseline_cells([r.last for (_, n, _), r in done.items() if n == name], "msw2"),
    )


def judge_bases(
    values: Mapping[str, Array],
    energies: Mapping[str, Array],
    shape: tuple[int, ...],
    behind: Behind,
    place: str = "",
) -> list[Claim]:
    """The paper's readings of Figure 2, and Conjecture 1 for vectors that are not eigenvectors.

    They are about vectors, over which groups and energies are permuted; values are means of seeds.
    """

    def compare(
        text: str, names: str, first: Array, second: Array, bases: Collection[str]
    ) -> Claim:
        tendency = superiority(first, second)
        evidence = f"{names} = {tendency} over pairs of vectors"
        test = group_test(first, second, "vectors")
        claim = judge(place + text, evidence, test, tendency, behind.gate(bases))
        return behind.tested(claim, bases)

    def finite(name: str, group: str | None = None) -> Array:
        mask = slice(None) if group is None else basis(name, shape).groups()[group]
        chosen = values[name][mask]
        return chosen[np.isfinite(chosen)]

    claims = []
    frequencies = [name for name in FREQUENCY_BASES if name in values]
    for name in frequencies:
        text, names = f"{name}: low frequencies are modelled worse", "P(low worse) - P(high worse)"
        claims.append(compare(text, names, finite(name, "low"), finite(name, "high"), [name]))
    if "canonical" in values:
        claims.append(
            compare(
                "canonical: the border is modelled better",
                "P(inside worse) - P(border worse)",
                finite("canonical", "inside"),
                finite("canonical", "border"),
                ["canonical"],
            )
        )
    local = [name for name in ("canonical", "haar") if name in values]
    if frequencies and local:
        claims.append(
            compare(
                "vectors localised in space are modelled better",
                "P(frequency worse) - P(localised worse)",
                _pool(map(finite, frequencies)),
                _pool(map(finite, local)),
                BASES,
            )
        )
    known = {name: np.isfinite(energies[name]) & np.isfinite(values[name]) for name in values}
    x = [energies[name][mask] for name, mask in known.items() if mask.any()]
    y = [values[name][mask] for name, mask in known.items() if mask.any()]
    correlation = correlation_over_elements(_pool(x), _pool(y))
    everywhere = judge(
        f"{place}v^T G v, known before training, predicts MSW2 for all vectors (Conjecture 1)",
        f"rank correlation {correlation}; permuted within each basis",
        blocked_correlation_test(x, y, "vectors"),
        correlation,
        behind.gate(BASES),
    )
    return [*claims, behind.tested(everywhere, BASES)]


def _pool(parts: Iterable[Array]) -> Array:
    return np.concatenate(list(parts))


def plot_bases(
    values: Mapping[str, Array],
    shape: tuple[int, ...],
    rows: Sequence[BasisRow] = (),
    state: str = "",
) -> "Picture":
    """One picture a basis, on one scale of colours; white where nothing was run."""
    from sads.plots.bases import show_basis_values
    from sads.plots.style import styled, subplots

    known = _pool(v[np.isfinite(v)] for v in values.values())
    low, high = known.min(), known.max()
    with styled():
        size = (2.3 * len(values) + 0.8, 2.8)
        picture, axes = subplots(1, len(values), figsize=size, squeeze=False)
        for place, (name, numbers) in zip(axes[0], values.items(), strict=True):
            image = show_basis_values(place, basis(name, shape), numbers, low, high)
        bar = picture.colorbar(image, ax=axes, label="MSW$_2$", shrink=0.85)
        lines = baseline_lines(rows)
        for line in lines.values():
            if low <= line <= high:
                bar.ax.axhline(line, color="white", lw=1)
        texts = [f"{name} {value:.2g}" for name, value in lines.items()]
        if texts:
            picture.supxlabel(f"MSW$_2$ of {', '.join(texts)}; models: {state}", fontsize=8)
    return picture


def plot_energy_against_distance(
    values: Mapping[str, Array], energies: Mapping[str, Array], rows: Sequence[BasisRow] = ()
) -> "Picture":
    """What the geometry says before training against what training gave, vector by vector."""
    from matplotlib import colormaps

    from sads.plots.style import show_baselines, styled, subplots

    with styled():
        picture, axes = subplots(figsize=(5.2, 3.8))
        for color, (name, numbers) in zip(
            colormaps["tab10"](range(10)), values.items(), strict=False
        ):
            axes.plot(energies[name], numbers, ".", ms=5, alpha=0.75, color=color, label=name)
        axes.set(
            xscale="log", xlabel="$v^T G\\,v$ before training", ylabel="MSW$_2$ after training"
        )
        show_baselines(axes, baseline_lines(rows))
        axes.legend(frameon=False, fontsize=8, ncols=2)
    return picture


FIGURE = Figure(
    "fig2",
    "Training along the vectors of five bases",
    draw,
    cells=cells,
    panels=PANELS,
    on_request=ON_REQUEST,
)
