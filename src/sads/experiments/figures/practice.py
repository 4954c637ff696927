"""The paper's way of training and sampling beside common practice, on rotated images.

The paper predicts the noise, does not clip and does not average. An error of such a prediction is
multiplied by up to `1 / sqrt(abar_T)` = 157 on the way to a sample. Here the same networks, data,
rotations and seeds are trained to predict the noise, `v` or `x_0`, on raw or on centred data, with
or without the Gaussian part of the score beside them, and every model is sampled with and without
clipping, from its last weights and from their average. A model is trained once for all of these.

Which comparisons have a verdict stands in `claims.toml`; all others are in the table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sads.data.spec import DataSpec
from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.figure import Context, Figure, Outcome, note_cells
from sads.experiments.figures.rotated_images import NAMES, PANELS, SHOWN, available
from sads.experiments.figures.states import baseline_cells, baseline_lines, gate
from sads.experiments.records import Record
from sads.experiments.run import digest_images, read_source
from sads.experiments.spec import DECAY, PAPER, Cell, Practice, cell_of
from sads.experiments.verdict import (
    Claim,
    correlation_over_units,
    correlation_test,
    judge,
    paired_difference,
    sign_flip_test,
)
from sads.pipeline import Evaluation
from sads.table1 import Column, Training
from sads.tables import Row, column

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COMMON = Practice(prediction="v", clip=True, ema_decay=DECAY)
SKIP = Practice(skip="gaussian")
CENTRED = Practice(centre=True)
TESTED = {"the paper's way": PAPER, "common practice": COMMON, "Gaussian skip": SKIP}

RANDOM, OTHER_RANDOM = "random", "random, another"  # drawn anew for each seed
CORE = ("identity", "min", RANDOM)
BETWEEN = ("max", OTHER_RANDOM, "share:0.25", "share:0.5", "partial:0.5")
MANY_SEEDS = 8  # a sign test of eight reaches 1/256, which a page of a dozen claims needs
SEEDS = 5


@dataclass(frozen=True)
class Arm:
    """A way to train, behind some rotations, and how its models are sampled."""

    training: Practice  # that neither clips nor averages
    rotations: tuple[str, ...]
    num_seeds: int
    every_way: bool = False  # clipping and averaging apart, not only none or both

    def practices(self) -> list[Practice]:
        ways = [(False, None), (True, DECAY)]
        if self.every_way:
            ways += [(True, None), (False, DECAY)]
        return [replace(self.training, clip=clip, ema_decay=decay) for clip, decay in ways]


@dataclass(frozen=True)
class Panel:
    """One data set: how long its models are trained, and in which ways, the most telling first."""

    column: Column
    arms: tuple[tuple[Arm, ...], ...]  # groups: of each one all seeds before the next group


NOISE, V, X0 = PAPER, Practice(prediction="v"), Practice(prediction="x0")
DIGITS_ARMS = (
    (
        Arm(NOISE, CORE, MANY_SEEDS, every_way=True),
        Arm(V, CORE, MANY_SEEDS, every_way=True),
        Arm(SKIP, ("identity", "min"), MANY_SEEDS),
    ),
    (Arm(NOISE, BETWEEN, SEEDS), Arm(V, BETWEEN, SEEDS)),
    (Arm(CENTRED, ("identity", "min"), SEEDS), Arm(SKIP, ("max", RANDOM), SEEDS)),
    (Arm(X0, (*CORE, "max"), SEEDS, every_way=True),),
)
MNIST_ARMS = (
    (
        Arm(NOISE, (*CORE, "max"), SEEDS),
        Arm(V, (*CORE, "max"), SEEDS),
        Arm(SKIP, ("identity", "min"), SEEDS),
    ),
    (Arm(X0, (*CORE, "max"), SEEDS),),
)
PLAIN_ARMS = (
    (Arm(NOISE, ("identity",), 2), Arm(V, ("identity",), 2), Arm(SKIP, ("identity",), 2)),
)
SMOKE_ARMS = (
    (
        Arm(NOISE, ("identity", "min"), 1),
        Arm(V, ("identity", "min"), 1),
        Arm(SKIP, ("identity", "min"), 1),
    ),
)


def _panel(scale: str, name: str) -> Panel:
    known = PANELS[scale][name].column
    if scale == "smoke":
        return Panel(known, SMOKE_ARMS)
    arms = {"digits": DIGITS_ARMS, "mnist": MNIST_ARMS}.get(name, PLAIN_ARMS)
    if scale == "laptop" and name == "mnist":  # half of Figure 8's: that is enough for all but one
        known = replace(known, training=Training(400, 64, 1e-3))
    return Panel(known, arms)


Key = tuple[Practice, str, int]  # practice, rotation and seed
Done = Mapping[Key, Record]


def rotation_of(name: str, seed: int) -> str:
    """The rotation of a name for a seed; random ones are drawn anew."""
    drawn = {RANDOM: f"random:{seed}", OTHER_RANDOM: f"random:{100 + seed}"}
    return drawn.get(name, name)


def panel_cells(context: Context, name: str) -> dict[Key, Cell]:
    """Group by group, in a group seed by seed."""
    panel = _panel(context.scale, name)
    images, _ = read_source(name, panel.column.shape, context.sources)
    data_sha256 = digest_images(images)
    keys = [
        (practice, rotation, seed)
        for group in panel.arms
        for seed in context.seeds(max(arm.num_seeds for arm in group))
        for arm in group
        if seed < arm.num_seeds
        for rotation in arm.rotations
        for practice in arm.practices()
    ]
    return {
        (practice, rotation, seed): cell_of(
            panel.column,
            data=DataSpec("images", name),
            seed=seed,
            layers=context.layers,
            rotation=rotation_of(rotation, seed),
            keep_samples=SHOWN if is_shown(practice, rotation, seed) else 0,
            data_sha256=data_sha256,
            practice=practice,
        )
        for practice, rotation, seed in keys
    }


def is_shown(practice: Practice, rotation: str, seed: int) -> bool:
    """Whether some of a model's samples are kept for the picture."""
    return seed == 0 and rotation in ("identity", "min") and practice in TESTED.values()


def cells(context: Context) -> list[Cell]:
    there, _ = available(context)
    return [c for name in there for c in panel_cells(context, name).values()]


FIGURE = Figure(
    "practice",
    "The paper's way and common practice",
    lambda context: Outcome({}, [], []),
    cells=cells,
    panels=NAMES,
    images=NAMES,
)
