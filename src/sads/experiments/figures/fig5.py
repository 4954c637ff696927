"""Figure 5 and Equation 4: log-densities of untrained networks on the plane, and the Markov bound.

Real networks instead of the paper's sketch. Directions and bounds are those of the geometry of
some networks; what is compared with them was seen in other networks, and claims are judged from
the spread over these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from sads import table1
from sads.errors import counted
from sads.estimates import Estimate, mean_estimate
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.verdict import (
    CONFIDENCE,
    Claim,
    Interval,
    Test,
    judge,
    paired_difference,
    sign_flip_test,
)
from sads.geometry.directions import Directions
from sads.geometry.estimate import estimate_geometry
from sads.geometry.result import Geometry
from sads.seeds import following
from sads.tables import Row, titled
from sads.theory.landscape import Landscape, draw_landscapes, landscape_family
from sads.theory.markov import MarkovBound, markov_bound

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

NUM_NETWORKS = {  # behind the geometry, and fresh
    "smoke": (256, 1000),
    "laptop": (4096, 4000),
    "paper": (table1.NUM_NETWORKS, 10_000),
}
LEAST_LEVEL = 1e-6  # of p-values
ENDS = {"v_perp": r"$v_\perp$", "v_par": r"$v_\parallel$"}


@dataclass(frozen=True)
class Steepness(Row):
    """How steep log-densities are along one of the two directions."""

    direction: str
    angle: float = titled("angle (degrees)")
    energy: Estimate = titled("v^T G v")
    bound: float = titled("bound")
    observed: float = titled("networks beyond")
    change: Estimate = titled("mean change of log p")


@dataclass(frozen=True, eq=False)
class Landscapes:
    """A geometry on the plane, its Markov bound at every angle, and what other networks do."""

    geometry: Geometry
    fresh: list[Landscape]  # the other networks
    distances: Tensor  # (n,)
    profiles: Tensor  # (2, networks, n), |log p(x + tau v) - log p(x)| for v_perp and v_par
    scores: Tensor  # (networks, 2)
    angles: Tensor  # (m,) degrees
    bound: MarkovBound  # at every angle
    seed: int

    @property
    def directions(self) -> Directions:
        """`v_perp`, then `v_par`."""
        return self.geometry.directions()

    @cached_property
    def steep(self) -> Tensor:
        """Whether a network's log-density is as steep as the threshold, (networks, m) bool."""
        return self._steep_along(_around(self.angles))

    @property
    def observed(self) -> Tensor:
        """The share of networks whose log-density is that steep, at every angle, (m,)."""
        return self.steep.double().mean(dim=0)

    @property
    def changes(self) -> Tensor:
        """The mean change of every network's log-density over all distances, (2, networks)."""
        return self.profiles.mean(dim=2)

    def _steep_along(self, directions: Tensor) -> Tensor:
        return (self.scores @ directions.T).abs().ge(self.bound.threshold)

    def table(self) -> list[Steepness]:
        vectors = self.directions.vectors.reshape(2, 2)
        both = markov_bound(self.geometry, self.directions.vectors, self.bound.threshold)
        seen = self._steep_along(vectors).double().mean(dim=0)
        return [
            Steepness(
                direction=name,
                angle=_angle(vectors[i]),
                energy=both.energies[i],
                bound=float(both.bounds[i]),
                observed=float(seen[i]),
                change=mean_estimate(self.changes[i]),
            )
            for i, name in enumerate(ENDS)
        ]

    def summary(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        return {
            "threshold": self.bound.threshold,
            "networks": self.geometry.num_networks,
            "seed": self.seed,
            "directions": self.table(),
            "largest_observed_over_bound": float((self.observed / self.bound.bounds).max()),
        }

    def claims(self) -> list[Claim]:
        errors = self.bound.energies.errors / self.bound.threshold**2
        return [
            judge_change(*self.changes),
            judge_bound(self.bound.bounds, errors, len(self.geometry.counts), self.steep),
        ]

    def plot(self) -> "Picture":
        """A network's log-density, its change along the directions, and Equation 4."""
        from sads.plots.style import styled, subplots

        with styled():
            figure, (left, middle, right) = subplots(
                1, 3, figsize=(11.4, 3.7), width_ratios=(3.6, 3, 3)
            )
            self._draw_landscape(left)
            self._draw_profiles(middle)
            self._draw_bound(right)
        return figure

    @property
    def _ends(self) -> list[tuple[str, Any, str]]:
        """Label, vector and colour of both directions."""
        from sads.plots.style import GREEN, RED

        vectors = self.directions.vectors.reshape(2, 2).numpy()
        return list(zip(ENDS.values(), vectors, (RED, GREEN), strict=True))

    def _draw_landscape(self, axes: "Axes") -> None:
        from sads.plots.style import INK

        network, point = _find_ridge(self.fresh)
        side = torch.linspace(-4, 4, 161)
        grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)  # (rows, columns, 2)
        with torch.no_grad():
            height = network.log_density(grid.reshape(-1, 2)).reshape(grid.shape[:2]).numpy()
        filled = axes.contourf(side, side, height, levels=18, cmap="YlGnBu_r")
        axes.contour(side, side, height, levels=18, colors="white", linewidths=0.4, alpha=0.6)
        x, y = point.tolist()
        for label, vector, color in self._ends:
            axes.annotate(
                "",
                (x + 1.7 * vector[0], y + 1.7 * vector[1]),
                (x, y),
                arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2.4},
            )
            axes.text(
                x + 2.1 * vector[0],
                y + 2.1 * vector[1],
                label,
                color=color,
                fontsize=13,
                ha="center",
                va="center",
                bbox={"facecolor": "white", "alpha": 0.75, "lw": 0, "boxstyle": "round,pad=0.12"},
            )
        axes.plot(x, y, "o", color=INK, ms=5, zorder=3)
        axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
        axes.set_title(r"$\log p_\theta$ of one untrained network", fontsize=9)
        axes.figure.colorbar(filled, ax=axes, fraction=0.046, pad=0.02)

    def _draw_profiles(self, axes: "Axes") -> None:
        for (label, _, color), profile in zip(self._ends, self.profiles, strict=True):
            levels = torch.tensor([0.1, 0.5, 0.9], dtype=profile.dtype)
            low, mid, high = torch.quantile(profile, levels, dim=0)
            axes.fill_between(self.distances, low, high, color=color, alpha=0.18, lw=0)
            axes.plot(self.distances, mid, color=color, lw=1.8, label=f"along {label}")
        axes.set(
            xlabel=r"distance $\tau$", ylabel=r"$|\log p(x + \tau v) - \log p(x)|$", xlim=(0, None)
        )
        axes.set_ylim(0, None)
        axes.legend(frameon=False, loc="upper left")
        axes.set_title(
            f"from the origin, {counted(self.profiles.shape[1], 'network')}\n(median, 10 to 90 %)",
            fontsize=9,
        )

    def _draw_bound(self, axes: "Axes") -> None:
        from sads.plots.style import BLUE, INK

        bounds = self.bound.bounds
        axes.plot(self.angles, bounds, color=INK, lw=1.4, label="Markov bound")
        axes.plot(self.angles, self.observed, color=BLUE, lw=1.6, label="networks observed")
        for label, vector, color in self._ends:
            angle = _angle(vector)
            axes.axvline(angle, ymax=0.8, color=color, lw=1, ls=":")
            axes.text(angle + 3, 1.06 * float(bounds.max()), label, color=color)
        axes.set(
            xlabel="direction $v$ (degrees)",
            xlim=(0, 180),
            xticks=[0, 45, 90, 135, 180],
            ylabel=rf"$P(|v^\top \nabla \log p| \geq {self.bound.threshold:.2g})$",
        )
        axes.set_ylim(0, 1.4 * float(bounds.max()))
        axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
        title = f"Equation 4, {counted(self.profiles.shape[1], 'other network')}"
        axes.set_title(title, fontsize=9)


def compute_landscapes(
    num_networks: int = 4096,
    *,
    angle: float = 30.0,
    ratio: float = 0.25,
    threshold: float | None = None,
    num_fresh: int = 1000,
    seed: int = 0,
) -> Landscapes:
    """Compare the bound of a geometry with how steep other networks are at the origin.

    Args:
        num_networks: behind the geometry.
        angle, ratio: of the `landscape_family`.
        threshold: `eta` of Equation 4; 1.5 times the root mean square of a score's coordinate if
            not given.
        num_fresh: the other networks.
    """
    family = landscape_family(angle, ratio)
    geometry = estimate_geometry(family, num_networks, seed=seed, estimator="outer-product")
    fresh = draw_landscapes(family, num_fresh, following(seed))
    point, distances = torch.zeros(2), torch.linspace(0, 1.5, 61)
    angles = torch.linspace(0, 180, 181, dtype=torch.float64)
    if threshold is None:
        threshold = 1.5 * math.sqrt(float(geometry.matrix().diagonal().mean()))
    bound = markov_bound(geometry, _around(angles), threshold)
    with torch.no_grad():
        scores = torch.cat([n(point[None], torch.zeros(1)) for n in fresh]).double()
        profiles = torch.stack(
            [
                torch.stack([_profile(n, point, v.flatten().float(), distances) for n in fresh])
                for v in geometry.directions().vectors
            ]
        )
    return Landscapes(
        geometry=geometry,
        fresh=fresh,
        distances=distances,
        profiles=profiles,
        scores=scores,
        angles=angles,
        bound=bound,
        seed=seed,
    )


def _around(angles: Tensor) -> Tensor:
    """Unit vectors at angles in degrees, (n, 2)."""
    turn = torch.deg2rad(angles)
    return torch.stack([turn.cos(), turn.sin()], dim=1)


def _angle(vector: Any) -> float:
    """The angle of a vector on the plane, in degrees from 0 to 180."""
    return math.degrees(math.atan2(float(vector[1]), float(vector[0]))) % 180


def _profile(network: Landscape, point: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    path = network.log_density(point + distances[:, None] * v)
    return (path - path[0]).abs()


def _find_ridge(networks: list[Landscape]) -> tuple[Landscape, Tensor]:
    """The first landscape with a summit near the origin, a place on its "manifold"."""
    side = torch.linspace(-1.5, 1.5, 61)
    grid = torch.cartesian_prod(side, side)
    for network in networks:
        with torch.no_grad():
            summit = grid[network.log_density(grid).argmax()]
        if float(summit.abs().max()) < 1.4:  # inside the square, not on its edge
            return network, summit
    return networks[0], torch.zeros(2)


def judge_change(perp: Tensor, par: Tensor) -> Claim:
    """The claim, from the mean change of each fresh network's log-density along both directions."""
    difference = paired_difference(perp, par)
    return judge(
        "the log-density changes less along v_par than along v_perp",
        f"mean change along v_perp less that along v_par: {difference} fresh networks",
        sign_flip_test(perp - par, "networks"),
        difference.interval,
    )


def judge_bound(bounds: Tensor, errors: Tensor, num_batches: int, steep: Tensor) -> Claim:
    """The claim, from bounds (n,) with errors of batches, and networks beyond, (networks, n).

    The frequencies have Clopper and Pearson's limits and the bounds t-limits. A direction's p-value
    is the smallest level at which the two limits do not meet. That the bound holds in every
    direction is as unsure as the least sure one; one direction beyond it is enough against it,
    corrected for their number.
    """
    num, count = len(steep), steep.sum(dim=0).numpy()
    value, error, freedom = bounds.numpy(), errors.numpy(), num_batches - 1

    def gap(tail: Any, side: int) -> Any:
        """Between the limits: of a bound above (side 1) or below (-1) its frequency."""
        reach = special.stdtrit(freedom, 1 - tail) * error
        if side == 1:
            return value - reach - _upper(count, num, tail)
        return 1 - _upper(num - count, num, tail) - value - reach

    holds, fails = (_least_level(partial(gap, side=side), len(value)) for side in (1, -1))
    tail = (1 - CONFIDENCE) / (2 * len(bounds))
    margin = value - count / num
    interval = Interval(float(margin.min()), float(gap(tail, 1).min()), math.inf, CONFIDENCE, num)
    test = Test(
        p_for=float(holds.max()),
        p_against=min(1.0, len(value) * float(fails.min())),
        smallest_p=LEAST_LEVEL,
        num_units=num,
        unit="networks",
    )
    return judge(
        "the Markov bound (Equation 4) holds in every direction",
        f"bound less frequency in {counted(num, 'fresh network')}, smallest of {len(bounds)} "
        f"directions: {interval}",
        test,
        interval,
    )


def _upper(count: Any, num: int, tail: Any) -> Any:
    """Clopper and Pearson's upper limit of a frequency."""
    found = special.betainccinv(count + 1, np.maximum(num - count, 1), tail)
    return np.where(count < num, found, 1.0)


def _least_level(gap: Callable[[Any], Any], count: int) -> Any:
    """The smallest level, shared by two limits, at which there is a gap between them, (count,)."""
    low, high = np.full(count, math.log(LEAST_LEVEL / 2)), np.full(count, math.log(0.5))
    never = gap(np.exp(high)) <= 0
    for _ in range(40):
        middle = (low + high) / 2
        open_ = gap(np.exp(middle)) > 0
        low, high = np.where(open_, low, middle), np.where(open_, middle, high)
    return np.where(never, 1.0, np.minimum(1.0, 2 * np.exp(high)))


def draw(context: Context) -> Outcome:
    num_networks, num_fresh = NUM_NETWORKS[context.scale]
    landscapes = compute_landscapes(num_networks, num_fresh=num_fresh)
    return Outcome({"fig5": landscapes.plot()}, landscapes.table(), landscapes.claims())


FIGURE = Figure("fig5", "Landscape and Markov bound", draw)
