"""Figure 3: is an architecture lopsided? Responses of symmetric networks to a centred impulse.

Claims are judged from the spread over networks, which are drawn independently. How many there are
is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sads.errors import counted
from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.spec import FamilySpec
from sads.experiments.verdict import (
    Claim,
    judge,
    mean_interval,
    paired_difference,
    sign_flip_test,
)
from sads.families import ScoreFamily
from sads.tables import Row, titled
from sads.theory.impulse import ImpulseResponse, impulse_response

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

SHAPE = (1, 16, 16)
RESAMPLINGS = ("nearest", "area")
LEVEL = 500
NUM_NETWORKS = {"smoke": 8, "laptop": 64, "paper": 1024}
VISIBLE = 0.01  # share of energy; an energy is never below 0, so 0 is no threshold for it
ROUNDING = 1e-12  # share of energy, amplitudes of 1e-6


@dataclass(frozen=True)
class Asymmetry(Row):
    """How much of a response is odd under one symmetry, on average over networks."""

    resampling: str
    symmetry: str
    networks: int
    odd_energy: Estimate = titled("energy of the odd part")


@dataclass(frozen=True, eq=False)
class Impulses:
    """Responses to a centred impulse, by resampling."""

    responses: Mapping[str, ImpulseResponse]
    num_networks: int
    level: int
    seed: int

    @property
    def odd_energies(self) -> dict[str, Tensor]:
        """The largest share of energy in an odd part of each network's response, (networks,)."""
        return {
            name: torch.stack([*response.asymmetry.values()]).amax(dim=0)
            for name, response in self.responses.items()
        }

    def table(self) -> list[Asymmetry]:
        return [
            Asymmetry(name, symmetry, self.num_networks, mean_estimate(values))
            for name, response in self.responses.items()
            for symmetry, values in response.asymmetry.items()
        ]

    def summary(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        settings = {"networks": self.num_networks, "level": self.level, "seed": self.seed}
        return {**settings, "directions": self.table()}

    def claims(self) -> list[Claim]:
        return judge_symmetry(*(self.odd_energies[name] for name in RESAMPLINGS))

    def plot(self) -> "Picture":
        """Responses, their parts that are odd under a flip, and the energy of these."""
        from sads.plots.style import frame, show_map, show_vector, styled, subplots

        with styled():
            figure, axes = subplots(
                len(self.responses),
                5,
                figsize=(9.4, 2.15 * len(self.responses) + 0.3),
                squeeze=False,
            )
            for row, (name, result) in zip(axes, self.responses.items(), strict=True):
                response = result.responses[0]
                odd = (response - response.flip(-1)) / 2
                limit = float(response.abs().max())
                show_vector(row[0], result.impulse)
                show_vector(row[1], response)
                show_map(row[2], odd.mean(dim=0), "RdBu_r", (-limit, limit))
                show_map(row[3], result.root_mean_square.mean(dim=0), "magma")
                for cell in row[:4]:
                    frame(cell)
                _bar_asymmetry(row[4], result)
                row[0].set_ylabel(f"{name} resampling", fontsize=10)
            titles = (
                "impulse",
                "response of\none network",
                "its part that is\nodd, left to right",
                f"root mean square\nof {counted(self.num_networks, 'network')}",
                "energy of the odd part",
            )
            for cell, title in zip(axes[0], titles, strict=True):
                cell.set_title(title, fontsize=9)
        return figure


def compute_impulses(
    families: Mapping[str, ScoreFamily], num_networks: int, level: int = LEVEL, seed: int = 0
) -> Impulses:
    """Compare families, by name of their resampling, with kernels made symmetric."""
    responses = {
        name: impulse_response(family, num_networks, level=level, seed=seed)
        for name, family in families.items()
    }
    return Impulses(responses=responses, num_networks=num_networks, level=level, seed=seed)


def judge_symmetry(nearest: Tensor, area: Tensor) -> list[Claim]:
    """The claim, from shares of energy in the odd part of every response, (networks,) each."""
    difference = paired_difference(nearest, area)
    rounding = mean_interval(area)
    return [
        judge(
            "the default resampling (nearest) introduces asymmetry",
            f"energy of the odd part, nearest less area: {difference} networks; "
            f"visible from {VISIBLE:g}",
            sign_flip_test(nearest - area, "networks", VISIBLE),
            difference.interval,
        ),
        judge(
            "area resampling introduces none",
            f"energy of the odd part: {rounding}; rounding stays below {ROUNDING:g}",
            sign_flip_test(-area, "networks", -ROUNDING),
            rounding,
        ),
    ]


def _bar_asymmetry(axes: "Axes", result: ImpulseResponse) -> None:
    from sads.plots.style import INK, ORANGE

    rows = list(result.asymmetry.items())
    words = ("up-down", "left-right")[-len(rows) :]  # a line has no up and down
    names = {f"flip of axis {i}": word for i, word in enumerate(words)}
    for i, (_, values) in enumerate(rows):
        mean = mean_estimate(values)
        error = mean.error if np.isfinite(mean.error) else 0.0
        axes.barh(i, mean, xerr=2 * error, color=ORANGE, height=0.55, ecolor=INK, capsize=2)
        text = f"{mean:.3f}" if mean > 1e-3 else f"{mean:.0e}"
        axes.text(mean + 2 * error + 0.015, i, text, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [names.get(name, name) for name, _ in rows], fontsize=8)
    axes.set(xlim=(0, 0.5), ylim=(len(rows) - 0.4, -0.6))


def draw(context: Context) -> Outcome:
    families = {
        name: FamilySpec("iddpm", SHAPE, (("resample", name),)).build() for name in RESAMPLINGS
    }
    impulses = compute_impulses(families, NUM_NETWORKS[context.scale])
    return Outcome({"fig3": impulses.plot()}, impulses.table(), impulses.claims())


FIGURE = Figure("fig3", "Impulse responses by resampling", draw)
