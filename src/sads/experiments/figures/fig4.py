"""Figure 4: Theorem 1 with SGD, for data along each eigenvector of an anisotropic layer.

The paper gives `R^5` and `sigma = 1`; eigenvalues, learning rate and the number of runs are ours.
Claims are judged from the spread over runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sads.errors import InvalidArgumentError, counted
from sads.estimates import Estimate
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.verdict import (
    Claim,
    all_of,
    judge,
    mean_interval,
    paired_difference,
    rank_correlation,
    row_correlations,
    sign_flip_test,
    within_test,
)
from sads.seeds import following
from sads.tables import Row, titled
from sads.theory.theorem1 import LinearDSM, Simulation, conditioning, rates

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

EIGENVALUES = (1.0, 0.5, 0.25, 0.125, 0.0625)
NUM_RUNS = {"smoke": 200, "laptop": 2000, "paper": 10_000}
GREATLY = 2.0  # times the ratio of errors in gradient descent
EARLY = 0.5  # small t: gradient descent has more than this share of the first squared error left
CLOSE = 0.1  # relative difference from gradient descent that counts as well predicted
DASHED: Any = (0, (4, 3))


@dataclass(frozen=True)
class Plateau(Row):
    """What SGD does for data along one eigenvector."""

    v: str
    eigenvalue: float = titled("lambda")
    rate: float = titled("rate rho")
    gradient_covariance_trace: float = titled("tr Cov of gradient")
    plateau: float = titled("plateau, exact")
    simulated: Estimate = titled("at the last step")
    exact_at_last_step: float = titled("the same, exact")
    largest_deviation_in_errors: float = titled("largest |z|")


@dataclass(frozen=True, eq=False)
class Descent:
    """Runs of SGD behind an anisotropic layer, for data along each `u_i`."""

    eigenvalues: tuple[float, ...]  # of Phi Phi^T, descending
    problems: tuple[LinearDSM, ...]  # one for each eigenvalue, as are the simulations
    simulations: tuple[Simulation, ...]
    learning_rate: float
    batch_size: int
    seed: int

    @property
    def num_runs(self) -> int:
        return self.simulations[0].errors.shape[1]

    @cached_property
    def gradient_descent(self) -> list[Tensor]:
        """Squared errors of gradient descent at the recorded steps, for each direction."""
        return [
            problem.expected_errors(simulation.steps, self.learning_rate).square().sum(dim=(1, 2))
            for problem, simulation in zip(self.problems, self.simulations, strict=True)
        ]

    @property
    def first_order_plateaus(self) -> list[float]:
        """`eta lambda_i D s / B`, what the plateaus tend to for small learning rates."""
        scale = self.learning_rate / self.batch_size * self.problems[0].residual_variance
        return [scale * value * len(self.eigenvalues) for value in self.eigenvalues]

    def table(self) -> list[Plateau]:
        return [self._row(i) for i in range(len(self.problems))]

    def _row(self, i: int) -> Plateau:
        problem, simulation = self.problems[i], self.simulations[i]
        exact = problem.squared_errors(simulation.steps, self.learning_rate, self.batch_size)
        # At step 0 nothing is random, nor where steps are too small to move anything.
        random = simulation.mean_error > 1e-12 * exact
        z = torch.where(random, (simulation.mean - exact) / simulation.mean_error, 0.0)
        return Plateau(
            v=f"u_{i + 1}",
            eigenvalue=self.eigenvalues[i],
            rate=float(rates(problem.eigenvalues, problem.sigma)[i]),
            gradient_covariance_trace=float(problem.gradient_covariance().trace()),
            plateau=problem.plateau(self.learning_rate, self.batch_size),
            simulated=Estimate(float(simulation.mean[-1]), float(simulation.mean_error[-1])),
            exact_at_last_step=float(exact[-1]),
            largest_deviation_in_errors=float(z.abs().max()),
        )

    def summary(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        settings = {
            "sigma": self.problems[0].sigma,
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "runs": self.num_runs,
            "steps": self.simulations[0].steps[-1],
            "seed": self.seed,
        }
        return {
            "settings": settings,
            "directions": self.table(),
            "plateaus_first_order": self.first_order_plateaus,
        }

    def claims(self) -> list[Claim]:
        last = torch.stack([s.squared[-1] for s in self.simulations], dim=1)  # (runs, D)
        early = [
            simulation.squared[t] / path[t] - 1
            for simulation, path in zip(self.simulations, self.gradient_descent, strict=True)
            for t in range(1, len(path))  # all runs start from the same point
            if path[t] > EARLY * path[0]
        ]
        descent_ratio = float(self.gradient_descent[0][-1] / self.gradient_descent[-2][-1])
        return [
            judge_amplification(last[:, 0], last[:, -2], descent_ratio),
            judge_plateaus(self.eigenvalues, last),
            judge_early(early),
        ]

    def plot(self) -> "Picture":
        """The error for data along each `u_i`, simulated and by the exact recursion."""
        from matplotlib import colormaps

        from sads.plots.style import styled, subplots

        shades = [0.88 * i / max(1, len(self.problems) - 1) for i in range(len(self.problems))]
        colors = colormaps["viridis"](shades)
        with styled():
            figure, (left, right) = subplots(1, 2, figsize=(9, 3.9), width_ratios=(5, 3))
            self._draw_paths(left, colors)
            self._draw_plateaus(right, colors)
        return figure

    def _draw_paths(self, axes: "Axes", colors: Any) -> None:
        from sads.plots.style import INK

        for i, (problem, simulation) in enumerate(
            zip(self.problems, self.simulations, strict=True)
        ):
            steps = torch.tensor(simulation.steps).clamp(min=0.7)  # step 0 on a logarithmic axis
            levels = torch.tensor([0.1, 0.9], dtype=torch.float64)
            low, high = torch.quantile(simulation.squared, levels, dim=1)
            axes.fill_between(steps, low, high, color=colors[i], alpha=0.15, lw=0)
            label = f"$v = u_{{{i + 1}}}$"
            axes.plot(steps, simulation.mean, color=colors[i], lw=1.6, label=label)
            exact = problem.squared_errors(simulation.steps, self.learning_rate, self.batch_size)
            axes.plot(steps, exact, color=INK, lw=0.9, ls=DASHED)
        axes.plot([], [], color=INK, lw=0.9, ls=DASHED, label="exact recursion")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="SGD step $t$",
            ylabel=r"$\mathbb{E}\,\Vert\Omega_t - \Omega^*\Vert_F^2$",
        )
        axes.legend(frameon=False, fontsize=8, loc="lower left")
        axes.set_title(
            f"Theorem 1 in $\\mathbb{{R}}^{{{len(self.eigenvalues)}}}$, "
            f"$\\sigma$ = {self.problems[0].sigma:g}, "
            f"$\\eta$ = {self.learning_rate:g}, {counted(self.num_runs, 'run')}",
            fontsize=9,
        )

    def _draw_plateaus(self, axes: "Axes", colors: Any) -> None:
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

        from sads.plots.style import GREY, INK

        for value, simulation, color in zip(
            self.eigenvalues, self.simulations, colors, strict=True
        ):
            axes.errorbar(
                value,
                simulation.mean[-1],
                3 * simulation.mean_error[-1],
                fmt="o",
                ms=5,
                color=color,
                capsize=3,
                zorder=3,
            )
        exact = [p.plateau(self.learning_rate, self.batch_size) for p in self.problems]
        axes.plot(self.eigenvalues, exact, color=INK, lw=0.9, ls=DASHED, label="exact plateau")
        axes.plot(
            self.eigenvalues,
            self.first_order_plateaus,
            color=GREY,
            lw=1.2,
            label=r"first order, $\propto\lambda_i$",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel=r"eigenvalue $\lambda_i$",
            ylabel="error at the last step",
        )
        axes.xaxis.set_major_locator(FixedLocator(self.eigenvalues))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.legend(frameon=False, fontsize=8)
        axes.set_title("the plateau, predicted (bars: 3 s.e.)", fontsize=9)


def compute_descent(
    eigenvalues: Sequence[float] = EIGENVALUES,
    *,
    sigma: float = 1.0,  # Figure 4
    learning_rate: float = 0.02,
    steps: int = 4000,
    num_runs: int = 400,
    batch_size: int = 1,
    seed: int = 0,
) -> Descent:
    """Simulate SGD for data along each `u_i` of a random `Phi`."""
    values = sorted(eigenvalues, reverse=True)
    recorded = _spread_steps(steps)
    phi = conditioning(values, seed=seed)
    problems = [LinearDSM(phi, column, sigma) for column in phi.T]
    simulations = []
    for i, problem in enumerate(problems):
        if not math.isfinite(problem.plateau(learning_rate, batch_size)):
            raise InvalidArgumentError(
                f"SGD diverges for v = u_{i + 1} at a learning rate of {learning_rate}; "
                "choose a smaller one or a larger batch size"
            )
        simulations.append(
            problem.simulate(
                recorded, learning_rate, num_runs, batch_size=batch_size, seed=following(seed, i)
            )
        )
    return Descent(
        eigenvalues=tuple(values),
        problems=tuple(problems),
        simulations=tuple(simulations),
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
    )


def _spread_steps(last: int) -> list[int]:
    """0 and about 60 steps up to the last, evenly spread on a logarithmic scale."""
    if last < 1:
        raise InvalidArgumentError(f"give at least 1 step, got {last}")
    return sorted({0, *(round(last ** (k / 60)) for k in range(61))})


def judge_amplification(first: Tensor, other: Tensor, descent_ratio: float) -> Claim:
    """The claim, from final errors of runs along two directions that converge alike in GD.

    Only the last direction has a rate of its own (Theorem 1), so it is not one of the two.
    """
    logarithm = mean_interval(first.log() - other.log())
    ratio = replace(
        logarithm,
        value=math.exp(logarithm.value),
        low=math.exp(logarithm.low),
        high=math.exp(logarithm.high),
    )
    greatly = GREATLY * descent_ratio
    return judge(
        "anisotropy is greatly amplified in SGD",
        f"error along u_1 over that along u_(D-1) at the last step: {ratio} in SGD, "
        f"{descent_ratio:.3g} in gradient descent; greatly means more than {GREATLY:g} times that",
        sign_flip_test(first.log() - other.log(), "runs", math.log(greatly)),
        ratio,
    )


def judge_plateaus(eigenvalues: Sequence[float], last: Tensor) -> Claim:
    """The claim, from the errors at the end of each run, (runs, D)."""
    correlation = rank_correlation(eigenvalues, last)
    difference = paired_difference(last[:, 0], last[:, -1])
    return judge(
        "for large t, the error of SGD grows with the eigenvalue",
        f"rank correlation of eigenvalue and error {correlation}; error along u_1 less along u_D: "
        f"{difference} runs",
        sign_flip_test(row_correlations(eigenvalues, last), "runs"),
        correlation,
    )


def judge_early(deviations: Sequence[Tensor]) -> Claim:
    """The claim, from relative deviations of SGD's error from GD's, each (runs,)."""
    worst = max(map(mean_interval, deviations), key=lambda interval: abs(interval.value))
    return judge(
        "for small t, SGD is well predicted by gradient descent",
        f"largest relative deviation of the squared error until gradient descent has halved it: "
        f"{worst}; well predicted means within {CLOSE:g}",
        all_of([within_test(values, CLOSE, "runs") for values in deviations]),
        worst,
    )


def draw(context: Context) -> Outcome:
    descent = compute_descent(num_runs=NUM_RUNS[context.scale])
    return Outcome({"fig4": descent.plot()}, descent.table(), descent.claims())


FIGURE = Figure("fig4", "Theorem 1 with SGD", draw)
