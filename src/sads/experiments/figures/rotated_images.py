"""Real images, rotated before training: the cells that Figures 7 and 8 share (Section 3.3)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sads.data.spec import DataSpec
from sads.experiments.figures.figure import Context, note_cells
from sads.experiments.figures.states import note_states
from sads.experiments.records import Record
from sads.experiments.spec import Cell, cell_of
from sads.experiments.verdict import Claim, until_finished
from sads.table1 import CELEBA, CIFAR10, MNIST, Column, Sampling, Training

EXTREMES = ("min", "identity", "max")
PICTURED = (*EXTREMES, "random:0")  # rotations of which samples are kept
CURVE = (*EXTREMES, "random:0", "random:1", "share:0.25", "share:0.5", "partial:0.5")
SHOWN = 64  # samples of the first seed that are kept for the grids of Figure 7
SMALL = (("channel_mults", (1,)), ("depth", 1))  # two levels
MEDIUM = (("channel_mults", (1, 1)), ("depth", 1))


@dataclass(frozen=True)
class Panel:
    """One data set: how it is trained on, behind which rotations, and when it is measured."""

    column: Column
    rotations: tuple[str, ...] = EXTREMES
    evaluate_at: tuple[int, ...] = ()


def _smoke(shape: tuple[int, ...]) -> Panel:
    small = replace(
        MNIST,
        shape=shape,
        options=SMALL,
        num_networks=128,
        num_seeds=1,
        num_data=500,
        training=Training(20, 32, 1e-3),
        sampling=Sampling(50, 5, projections_per_dimension=4),
    )
    return Panel(small, evaluate_at=(10, 20))


DIGITS = replace(  # not in the paper: scikit-learn's, the offline data set
    MNIST,
    source="digits of 8x8",
    shape=(1, 8, 8),
    options=SMALL,
    training=Training(4_000, 128, 1e-3),
    sampling=Sampling(599),
)
PANELS: dict[str, dict[str, Panel]] = {
    "smoke": {
        "digits": _smoke((1, 8, 8)),
        "mnist": _smoke((1, 14, 14)),
        "cifar10": _smoke((3, 8, 8)),
        "faces": _smoke((1, 14, 14)),
    },
    "laptop": {
        "digits": Panel(
            replace(
                DIGITS,
                num_networks=4096,
                training=Training(400, 64, 1e-3),
                sampling=Sampling(400, 20),
            ),
            CURVE,
            (100, 200, 300, 400),
        ),
        "mnist": Panel(
            replace(
                MNIST,
                shape=(1, 14, 14),
                options=SMALL,
                num_networks=4096,
                num_data=9_000,
                training=Training(800, 64, 1e-3),
                sampling=Sampling(300, 20),
            ),
            (*EXTREMES, "random:0"),
            (200, 400, 600, 800),
        ),
        "cifar10": Panel(
            replace(
                CIFAR10,
                shape=(3, 16, 16),
                options=MEDIUM,
                num_networks=4096,
                num_seeds=2,
                num_data=9_000,
                training=Training(150, 64, 1e-3),
                sampling=Sampling(200, 20, projections_per_dimension=16),
            ),
            (*EXTREMES, "random:0"),
            (75, 150),
        ),
        "faces": Panel(
            replace(
                CELEBA,
                shape=(1, 28, 28),
                options=MEDIUM,
                num_networks=4096,
                num_seeds=2,
                num_data=400,
                training=Training(200, 32, 1e-3),
                sampling=Sampling(133, 20, projections_per_dimension=16),
            ),
            evaluate_at=(100, 200),
        ),
    },
    "paper": {
        "digits": Panel(DIGITS, CURVE, (250, 500, 1000, 2000, 4000)),
        "mnist": Panel(MNIST),
        "cifar10": Panel(CIFAR10),
        "faces": Panel(CELEBA),
    },
}
NAMES = tuple(PANELS["paper"])

Done = Mapping[tuple[int, str], Record]  # by seed and rotation


def available(context: Context) -> tuple[list[str], list[str]]:
    """Panels whose images are known, and a note for each of the others."""
    shapes = {name: panel.column.shape for name, panel in PANELS[context.scale].items()}
    return context.with_images(context.panels(NAMES), shapes)


def panel_cells(context: Context, name: str) -> dict[tuple[int, str], Cell]:
    """The cells of a panel by seed and rotation, seed by seed."""
    panel = PANELS[context.scale][name]
    data_sha256 = context.digest(name, panel.column.shape)
    return {
        (seed, kind): cell_of(
            panel.column,
            data=DataSpec("images", name),
            seed=seed,
            layers=context.layers,
            rotation=kind,
            evaluate_at=panel.evaluate_at,
            keep_samples=SHOWN if kind in PICTURED and seed == 0 else 0,
            data_sha256=data_sha256,
        )
        for seed in context.seeds(panel.column.num_seeds, name)
        for kind in panel.rotations
    }


def cells(context: Context) -> list[Cell]:
    """The cells of all panels whose images are known."""
    there, _ = available(context)
    return [cell for name in there for cell in panel_cells(context, name).values()]


@dataclass(frozen=True)
class Finished:
    """The cells of a panel, the records of the finished ones, and the seeds that are whole."""

    cells: Collection[tuple[int, str]]
    done: Done
    seeds: list[int]  # for which all rotations are finished

    def tested(self, claims: Iterable[Claim]) -> list[Claim]:
        """Claims about the panel, none of them tested before all of its cells are finished."""
        return [until_finished(claim, self.cells, self.done) for claim in claims]


def finished_seeds(context: Context, name: str, notes: list[str]) -> Finished:
    """What is finished of a panel; what a reader must know of it is added to the notes."""
    chosen = panel_cells(context, name)
    done = context.finished(chosen)
    seeds = whole_seeds(done, PANELS[context.scale][name].rotations)
    if seeds:
        notes += note_cells(done.values(), len(chosen), context.layers, name)
        notes += note_states(done.values(), name)
    return Finished(chosen, done, seeds)


def whole_seeds(done: Done, rotations: tuple[str, ...]) -> list[int]:
    """Seeds for which all of these rotations are finished."""
    seeds = sorted({seed for seed, _ in done})
    return [s for s in seeds if all((s, kind) in done for kind in rotations)]
