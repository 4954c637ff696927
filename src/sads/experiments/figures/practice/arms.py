"""What the figure trains: arms, panels and their cells."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sads.data.spec import DataSpec
from sads.experiments.figures.figure import Context
from sads.experiments.figures.rotated_images import PANELS, SHOWN, available
from sads.experiments.records import Record
from sads.experiments.spec import COMMON, DECAY, PAPER, Cell, Practice, cell_of
from sads.experiments.verdict import SEEDS_FOR_SIGNS
from sads.table1 import Column, Training

NOISE, V, X0 = PAPER, Practice(prediction="v"), Practice(prediction="x0")
SKIP = Practice(skip="gaussian")
CENTRED = Practice(centre=True)
TESTED = {"the paper's way": PAPER, "common practice": COMMON, "Gaussian skip": SKIP}

RANDOM, OTHER_RANDOM = "random", "random, another"  # drawn anew for each seed
CORE = ("identity", "min", RANDOM)
BETWEEN = ("max", OTHER_RANDOM, "share:0.25", "share:0.5", "partial:0.5")
SEEDS = 5
LONG_SEEDS = 3

Sampled = tuple[bool, float | None]  # whether x_0 is clipped, and the average of the weights
PLAIN: tuple[Sampled, ...] = ((False, None),)
NONE_OR_BOTH = (*PLAIN, (True, DECAY))
EVERY_WAY = (*NONE_OR_BOTH, (True, None), (False, DECAY))


@dataclass(frozen=True)
class Arm:
    """A way to train, behind some rotations, and how its models are sampled."""

    training: Practice  # that neither clips nor averages
    rotations: tuple[str, ...]
    num_seeds: int
    ways: tuple[Sampled, ...] = NONE_OR_BOTH

    def practices(self) -> list[Practice]:
        return [replace(self.training, clip=clip, ema_decay=decay) for clip, decay in self.ways]


@dataclass(frozen=True)
class Panel:
    """One data set: how long its models are trained, and in which ways, the most telling first."""

    column: Column
    arms: tuple[tuple[Arm, ...], ...]  # groups: of each one all seeds before the next group
    evaluate_at: tuple[int, ...] = ()  # numbers of updates; the end alone if there are none


DIGITS_ARMS = (
    (
        Arm(NOISE, CORE, SEEDS_FOR_SIGNS, EVERY_WAY),
        Arm(V, CORE, SEEDS_FOR_SIGNS, EVERY_WAY),
        Arm(SKIP, ("identity", "min"), SEEDS_FOR_SIGNS),
    ),
    (Arm(NOISE, BETWEEN, SEEDS), Arm(V, BETWEEN, SEEDS)),
    (Arm(CENTRED, ("identity", "min"), SEEDS), Arm(SKIP, ("max", RANDOM), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS, EVERY_WAY),),
)
MNIST_ARMS = (
    (
        Arm(V, ("identity", "min"), SEEDS_FOR_SIGNS),
        Arm(SKIP, ("identity", "min"), SEEDS_FOR_SIGNS),
    ),
    (Arm(NOISE, (*CORE, "max"), SEEDS), Arm(V, (RANDOM, "max"), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS),),
)
PLAIN_ARMS = (
    (Arm(NOISE, ("identity",), 2), Arm(V, ("identity",), 2), Arm(SKIP, ("identity",), 2)),
)
BRIEF_ARMS = ((Arm(NOISE, ("identity", "min"), 1, PLAIN), Arm(SKIP, ("identity",), 1, PLAIN)),)
LONG_ARMS = (
    (
        Arm(NOISE, CORE, LONG_SEEDS, NONE_OR_BOTH),
        Arm(V, CORE, LONG_SEEDS, NONE_OR_BOTH),
        Arm(SKIP, ("identity", "min"), LONG_SEEDS, PLAIN),
    ),
)
SMOKE_ARMS = (
    (
        Arm(NOISE, ("identity", "min"), 1),
        Arm(V, ("identity", "min"), 1),
        Arm(SKIP, ("identity", "min"), 1),
    ),
)


BRIEF = "digits-brief"  # three models of digits, for those who are in a hurry
LONG = "digits-long"  # ten times the updates, for those who are not
ON_REQUEST = (BRIEF, LONG)
LONG_STAGES = {"smoke": (10, 20), "laptop": (400, 1_000, 2_000, 4_000), "paper": (4_000, 40_000)}


def _panel(scale: str, name: str) -> Panel:
    known = PANELS[scale][data_of(name)].column
    if name == BRIEF:
        return Panel(known, BRIEF_ARMS)
    if name == LONG:
        stages = LONG_STAGES[scale]
        training = replace(known.training, iterations=stages[-1])
        return Panel(
            replace(known, training=training), SMOKE_ARMS if scale == "smoke" else LONG_ARMS, stages
        )
    if scale == "smoke":
        return Panel(known, SMOKE_ARMS)
    arms = {"digits": DIGITS_ARMS, "mnist": MNIST_ARMS}.get(name, PLAIN_ARMS)
    if scale == "laptop" and name == "mnist":  # half of Figure 8's: that is enough for all but one
        known = replace(known, training=Training(400, 64, 1e-3))
    return Panel(known, arms)


def data_of(panel: str) -> str:
    """The images of a panel."""
    return "digits" if panel in ON_REQUEST else panel


def chosen_panels(context: Context) -> tuple[list[str], list[str]]:
    """Panels whose images are known, and a note for each of the others; some only if named."""
    asked = [name for name in ON_REQUEST if name in context.only]
    others = tuple(name for name in context.only if name not in asked)
    if asked and not others:
        return asked, []
    there, notes = available(replace(context, only=others))
    return [*there, *asked], notes


Key = tuple[Practice, str, int]  # practice, rotation and seed
Done = Mapping[Key, Record]


def rotation_of(name: str, seed: int) -> str:
    """The rotation of a name for a seed; random ones are drawn anew."""
    drawn = {RANDOM: f"random:{seed}", OTHER_RANDOM: f"random:{100 + seed}"}
    return drawn.get(name, name)


def panel_cells(context: Context, name: str) -> dict[Key, Cell]:
    """Group by group, in a group seed by seed."""
    panel = _panel(context.scale, name)
    data = data_of(name)
    data_sha256 = context.digest(data, panel.column.shape)
    keys = [
        (practice, rotation, seed)
        for group in panel.arms
        for seed in context.seeds(max(arm.num_seeds for arm in group), name)
        for arm in group
        if seed in context.seeds(arm.num_seeds, name)
        for rotation in arm.rotations
        for practice in arm.practices()
    ]
    return {
        (practice, rotation, seed): cell_of(
            panel.column,
            data=DataSpec("images", data),
            seed=seed,
            layers=context.layers,
            rotation=rotation_of(rotation, seed),
            evaluate_at=panel.evaluate_at,
            keep_samples=SHOWN if is_shown(practice, rotation, seed) else 0,
            data_sha256=data_sha256,
            practice=practice,
        )
        for practice, rotation, seed in keys
    }


def is_shown(practice: Practice, rotation: str, seed: int) -> bool:
    """Whether some of a model's samples are kept for the picture."""
    shown = ("identity", "min", RANDOM) if practice == PAPER else ("identity", "min")
    return seed == 0 and rotation in shown and practice in TESTED.values()
