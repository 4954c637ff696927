"""The league of predictors: what is known before training, against what came of it.

Small networks on small images (8x8, in grey), so that there can be many of them: rotations, data
sets, families, practices. See `sads.experiments.standings` for the rules, which are registered.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sads.data.spec import DataSpec
from sads.experiments import spec
from sads.experiments.figures.figure import Context, Figure, Outcome, note_cells
from sads.experiments.figures.states import describe_states
from sads.experiments.records import Record
from sads.experiments.run import make_data
from sads.experiments.spec import Cell, cell_of
from sads.experiments.standings import (
    COMMON,
    PAPER,
    PRACTICES,
    SKIP,
    SKIP_ITSELF,
    Block,
    League,
    is_about,
    play,
)
from sads.experiments.standings import NAMES as OUTCOME_NAMES
from sads.experiments.verdict import NOT_TESTED, Claim, until_finished
from sads.predictors.prospect import Plan, Prospect, Untrained
from sads.predictors.registry import OUTCOMES, Prediction, find_predictors
from sads.rotations.alignment import pair
from sads.table1 import CNN, DIT_2, MNIST, Column, Sampling, Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SHAPE = (1, 8, 8)
CHOSEN_ON, JUDGED_ON = ("digits", "mnist"), ("faces", "cifar10")
NAMES = (*CHOSEN_ON, *JUDGED_ON)
WAYS = {
    PAPER: spec.PAPER,
    COMMON: spec.COMMON,
    SKIP: replace(spec.COMMON, skip="gaussian"),
}
ROTATIONS = {
    **dict.fromkeys(
        CHOSEN_ON,
        ("identity", "min", "max", "random", "random, another", "share:0.3", "partial:0.5"),
    ),
    **dict.fromkeys(
        JUDGED_ON,
        ("identity", "min", "max", "random", "random, another", "share:0.7", "partial:0.25"),
    ),
}
FIRST_RANDOM = {"random": 0, "random, another": 100}  # of these names one is drawn for each seed
SMALL = (("channel_mults", (1,)), ("depth", 1))  # two levels


def _laptop(column: Column, options: tuple[tuple[str, object], ...], training: Training) -> Column:
    return replace(
        column,
        source="the league",
        shape=SHAPE,
        options=options,
        training=training,
        num_networks=1024,
        num_data=2_000,
        num_seeds=2,
        sampling=Sampling(200, 20),
    )


def _smoke(column: Column) -> Column:
    return replace(
        column,
        options=(("channels", 8), ("depth", 2)),
        num_networks=64,
        num_data=200,
        num_seeds=1,
        training=replace(column.training, iterations=5),
        sampling=Sampling(40, 3, projections_per_dimension=4),
    )


LAPTOP = {
    "cnn": _laptop(CNN, CNN.options, Training(300, 32, 5e-3)),
    "dit": _laptop(DIT_2, (("patch_size", 2), ("depth", 2)), Training(300, 32, 2e-3)),
    "iddpm": _laptop(MNIST, SMALL, Training(200, 32, 1e-3)),
}
COLUMNS: dict[str, dict[str, Column]] = {
    "smoke": {"cnn": _smoke(LAPTOP["cnn"])},
    "laptop": LAPTOP,
    "paper": {
        name: replace(
            column, num_seeds=5, training=replace(column.training, iterations=4_000, batch_size=128)
        )
        for name, column in LAPTOP.items()
    },
}
FAMILIES = tuple(LAPTOP)


@dataclass(frozen=True)
class Key:
    """Which of the league's cells it is."""

    data: str
    family: str
    practice: str
    rotation: str
    seed: int


def rotation_of(key: Key) -> str:
    """The rotation of a name for a seed and a set of data sets; random ones are drawn anew."""
    if key.rotation not in FIRST_RANDOM:
        return key.rotation
    judged = 1000 if key.data in JUDGED_ON else 0
    return f"random:{judged + FIRST_RANDOM[key.rotation] + key.seed}"


def registered_keys(context: Context) -> list[Key]:
    """Seed by seed, of each seed the families that are fast first, and common practice first."""
    columns = COLUMNS[context.scale]
    families = [name for name in FAMILIES if name in columns]
    seeds = {name: context.seeds(columns[name].num_seeds, name) for name in families}
    return [
        Key(data, family, practice, rotation, seed)
        for seed in range(max(map(len, seeds.values())))
        for family in families
        if seed in seeds[family]
        for practice in (COMMON, SKIP, PAPER)
        for data in NAMES
        for rotation in ROTATIONS[data]
    ]


def all_cells(context: Context) -> dict[Key, Cell]:
    """The cells of the families that were asked for and of the images that are known."""
    there, _ = context.with_images(NAMES)
    digests = {name: context.digest(name, SHAPE) for name in there}
    columns = COLUMNS[context.scale]
    families = context.panels(FAMILIES)
    keys = [k for k in registered_keys(context) if k.family in families and k.data in there]
    return {
        key: cell_of(
            columns[key.family],
            data=DataSpec("images", key.data),
            seed=key.seed,
            layers=context.layers,
            rotation=rotation_of(key),
            data_sha256=digests[key.data],
            practice=WAYS[key.practice],
        )
        for key in keys
    }


def cells(context: Context) -> list[Cell]:
    return list(all_cells(context).values())


def draw(context: Context) -> Outcome:
    _, notes = context.with_images(NAMES)
    chosen = all_cells(context)
    done = context.finished(chosen)
    notes += note_cells(done.values(), len(chosen), context.layers)
    for practice in PRACTICES:
        evaluations = [r.last for key, r in done.items() if key.practice == practice]
        if evaluations:
            notes.append(f"{PRACTICES[practice]}: {describe_states(evaluations)}")
    blocks = make_blocks(context, chosen, done)
    league = play(
        [b for b in blocks if b.data in CHOSEN_ON], [b for b in blocks if b.data in JUDGED_ON]
    )
    claims = context.tested(judge_finished(league.claims, registered_keys(context), done))
    league = replace(league, claims=tuple(claims))
    pictures = {"league": plot_standings(league)} if league.standings else {}
    return Outcome(pictures, league.standings, claims, notes)


def judge_finished(
    claims: Iterable[Claim], cells: Collection[Key], done: Collection[Key]
) -> list[Claim]:
    """Claims about a practice, tested when all of its cells are finished."""
    judged = []
    for claim in claims:
        practice = next(name for name in PRACTICES if is_about(claim, name))
        wanted = [key for key in cells if key.practice == practice]
        judged.append(until_finished(claim, wanted, done))
    return judged


def make_blocks(
    context: Context, cells: Mapping[Key, Cell], done: Mapping[Key, Record]
) -> list[Block]:
    """Blocks of which all rotations are finished, with what was predicted of them."""
    seen: dict[tuple[str, str, str, int], list[Key]] = {}
    for key in cells:
        seen.setdefault((key.data, key.family, key.practice, key.seed), []).append(key)
    predict = Oracle(context)
    blocks = []
    for (data, family, practice, seed), keys in seen.items():
        records = [done[key] for key in keys if key in done]
        if len(records) < len(keys) or any(r.last.denoising is None for r in records):
            continue
        told = [predict(cells[key]) for key in keys]
        blocks.append(
            Block(
                data=data,
                family=family,
                seed=seed,
                practice=practice,
                predictions={name: [t[name] for t in told] for name in told[0]},
                outcomes={
                    "loss": [r.last.denoising.loss for r in records if r.last.denoising],
                    "distance": [r.last.sw2 for r in records],
                },
                trained=all(r.last.state == "trained" for r in records),
            )
        )
    return blocks


class Oracle:
    """What all predictors say of a cell, each thing found out only once."""

    def __init__(self, context: Context):
        self._context = context
        self._networks: dict[object, Untrained] = {}
        self._known: dict[object, Prediction] = {}

    def __call__(self, cell: Cell) -> dict[str, Prediction]:
        network = self._network(cell)
        plan = Plan(
            prediction=cell.practice.prediction,
            skip=cell.practice.skip == "gaussian",
            iterations=cell.training.iterations,
            learning_rate=cell.training.learning_rate,
            steps=cell.sampling.steps,
            sampler=cell.sampling.sampler,
        )
        place = (cell.geometry, cell.data, cell.rotation)
        prospect: Prospect | None = None
        told = {}
        for predictor in find_predictors():
            key = (predictor.name, *place, plan if predictor.per_practice else None)
            if key not in self._known:
                if prospect is None:
                    x = make_data(cell, network.geometry, self._context.sources).train
                    turned = pair(network.geometry, x).rotation(cell.rotation)
                    prospect = Prospect.rotated(network, x, turned, plan)
                self._known[key] = predictor.predict(prospect)
            told[predictor.name] = self._known[key]
        return told

    def _network(self, cell: Cell) -> Untrained:
        if cell.geometry not in self._networks:
            geometry = self._context.geometry(cell.geometry)
            self._networks[cell.geometry] = Untrained(cell.family.build(), geometry)
        return self._networks[cell.geometry]


def plot_standings(league: League) -> "Picture":
    """A panel for each practice and outcome: correlations where chosen, and held out."""
    from sads.plots.style import BLUE, GREY, INK, ORANGE, styled, subplots

    with styled():
        picture, axes = subplots(
            len(OUTCOMES), len(PRACTICES), figsize=(10.5, 5.4), sharex=True, squeeze=False
        )
        for row, outcome in enumerate(OUTCOMES):
            for place, practice in zip(axes[row], PRACTICES, strict=True):
                rows = [
                    s
                    for s in league.standings
                    if (s.practice, s.outcome) == (practice, outcome) and s.predictor != SKIP_ITSELF
                ]
                for height, standing in enumerate(reversed(rows)):
                    sign = -1 if standing.sign == "better" else 1
                    color = ORANGE if standing.chosen else BLUE
                    if standing.low is not None and standing.high is not None:
                        ends = [sign * standing.low, sign * standing.high]
                        place.plot(ends, [height, height], color=color, lw=1.2, alpha=0.6)
                    if standing.held_out is not None:
                        place.plot(sign * standing.held_out, height, "o", color=color, ms=6)
                    if standing.correlation is not None:
                        place.plot(standing.correlation, height, "o", mfc="none", mec=color, ms=8)
                place.axvline(0, color=GREY, lw=0.8)
                place.set(xlim=(-1.05, 1.05), ylim=(-0.6, max(len(rows), 1) - 0.4))
                place.set_yticks(
                    range(len(rows)),
                    [s.predictor for s in reversed(rows)] if place is axes[row][0] else [],
                )
                place.set_title(_title(league, practice, outcome), fontsize=8, color=INK)
        picture.supxlabel("rank correlation of predictor and outcome, over rotations", fontsize=9)
        picture.suptitle(
            "What predicts training? Rings: digits and MNIST, where predictors were chosen. Discs, "
            "with 95 % intervals:\nfaces and CIFAR-10, held out. Right of 0: more of it is worse. "
            "Orange: the predictor that was chosen.",
            fontsize=9.5,
        )
    return picture


def _title(league: League, practice: str, outcome: str) -> str:
    """What a panel shows, without a word: words are corrected for all claims of a page."""
    claim = league.verdict(practice, outcome)
    if claim is None:
        found = "nothing to choose from"
    elif not claim.testable:
        found = NOT_TESTED
    else:
        found = f"p = {claim.p_for:.2g}, not corrected"
    return f"{OUTCOME_NAMES[outcome]}\n{PRACTICES[practice]}: {found}"


FIGURE = Figure(
    "league",
    "A league of predictors: what is known before training, against what came of it",
    draw,
    cells=cells,
    panels=FAMILIES,
    images=NAMES,
)
