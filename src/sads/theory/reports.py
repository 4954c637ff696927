"""Figures 3, 4, 5 and 9 of the paper as results: what was computed, its summary, its picture.

A report keeps what its figure is drawn from. `summary()` is what goes into a JSON file, and
`picture()` imports matplotlib, which is slow, only when it is called.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sads.directions import Directions
from sads.errors import InvalidArgumentError
from sads.family import ScoreFamily
from sads.geometry.estimate import estimate_geometry
from sads.geometry.geometry import Geometry
from sads.probe import probe
from sads.theory.landscape import Landscape, draw_landscapes, landscape_family
from sads.theory.lemmas import unit
from sads.theory.markov import MarkovBound, markov_bound
from sads.theory.symmetry import ImpulseResponse, impulse_response
from sads.theory.theorem1 import LinearDSM, Simulation, conditioning, rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_FIRST = 12  # eigenvectors that Figure 9 shows


@dataclass(frozen=True, eq=False)
class SymmetryReport:
    """Figure 3: responses to a centred impulse, by resampling."""

    responses: dict[str, ImpulseResponse]
    networks: int
    level: int
    seed: int

    def summary(self) -> dict[str, Any]:
        rows = []
        for name, result in self.responses.items():
            for flip, values in result.asymmetry.items():
                several = len(values) > 1
                error = float(values.std()) / math.sqrt(len(values)) if several else math.inf
                rows.append(
                    {"resampling": name, "flip": flip, "mean": float(values.mean()), "error": error}
                )
        return {
            "networks": self.networks, "level": self.level, "seed": self.seed, "directions": rows,
        }  # fmt: skip

    def picture(self) -> "Figure":
        from sads.theory import figures

        return figures.plot_symmetry(self.responses)


def report_symmetry(
    families: dict[str, ScoreFamily], num_networks: int, level: int = 500, seed: int = 0
) -> SymmetryReport:
    """Compare families, by name of their resampling, of symmetric kernels."""
    responses = {
        name: impulse_response(family, num_networks, level=level, seed=seed)
        for name, family in families.items()
    }
    return SymmetryReport(responses, num_networks, level, seed)


@dataclass(frozen=True, eq=False)
class Theorem1Report:
    """Figure 4: SGD behind an anisotropic layer, for data along each `u_i`."""

    eigenvalues: tuple[float, ...]  # of Phi Phi^T, descending
    problems: list[LinearDSM]  # one for each eigenvalue, as are the simulations
    simulations: list[Simulation]
    learning_rate: float
    batch_size: int
    seed: int

    def summary(self) -> dict[str, Any]:
        steps = self.simulations[0].steps
        settings = {
            "sigma": self.problems[0].sigma, "learning_rate": self.learning_rate,
            "batch_size": self.batch_size, "runs": self.simulations[0].errors.shape[1],
            "steps": steps[-1], "seed": self.seed,
        }  # fmt: skip
        rows = [self._row(i) for i in range(len(self.problems))]
        return {"settings": settings, "directions": rows}

    def _row(self, i: int) -> dict[str, Any]:
        value, problem, simulation = self.eigenvalues[i], self.problems[i], self.simulations[i]
        exact = problem.squared_errors(simulation.steps, self.learning_rate, self.batch_size)
        later = torch.tensor(simulation.steps) > 0  # at step 0 nothing is random
        z = ((simulation.mean - exact) / simulation.mean_error)[later]
        return {
            "direction": i + 1,
            "eigenvalue": value,
            "rate": float(rates(problem.eigenvalues, problem.sigma)[i]),
            "gradient_covariance_trace": float(problem.gradient_covariance().trace()),
            "plateau": problem.plateau(self.learning_rate, self.batch_size),
            "plateau_first_order": self.learning_rate / self.batch_size * value
            * len(self.eigenvalues) * problem.residual_variance,
            "simulated": float(simulation.mean[-1]),
            "simulated_error": float(simulation.mean_error[-1]),
            "exact_at_last_step": float(exact[-1]),
            "largest_deviation_in_errors": float(z.abs().max()),
        }  # fmt: skip

    def picture(self) -> "Figure":
        from sads.theory import figures

        return figures.plot_theorem1(
            self.problems, self.simulations, self.learning_rate, self.batch_size
        )


def report_theorem1(
    eigenvalues: Sequence[float] = (1.0, 0.5, 0.25, 0.125, 0.0625),
    *,
    sigma: float = 1.0,  # Figure 4
    learning_rate: float = 0.02,
    steps: int = 4000,
    num_runs: int = 400,
    batch_size: int = 1,
    seed: int = 0,
) -> Theorem1Report:
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
                recorded, learning_rate, num_runs, batch_size=batch_size, seed=seed + i
            )
        )
    return Theorem1Report(tuple(values), problems, simulations, learning_rate, batch_size, seed)


def _spread_steps(last: int) -> list[int]:
    """0 and about 60 steps up to the last, evenly spread on a logarithmic scale."""
    if last < 1:
        raise InvalidArgumentError(f"give at least 1 step, got {last}")
    return sorted({0, *(round(last ** (k / 60)) for k in range(61))})


@dataclass(frozen=True, eq=False)
class MarkovReport:
    """Figure 5 and Equation 4: log-densities of untrained networks on the plane.

    Directions and bounds are those of the geometry; the rest was seen in other networks.
    """

    geometry: Geometry
    landscapes: list[Landscape]  # the other networks
    distances: Tensor  # (n,)
    profiles: Tensor  # (2, networks, n), |log p(x + tau v) - log p(x)| for v_perp and v_par
    scores: Tensor  # (networks, 2)
    angles: Tensor  # (m,) degrees
    bound: MarkovBound  # at every angle
    seed: int

    @cached_property
    def directions(self) -> Directions:
        """`v_perp`, then `v_par`."""
        return self.geometry.directions()

    @cached_property
    def steep(self) -> Tensor:
        """Whether a network's log-density is as steep as the threshold, (networks, m) bool."""
        return self._steep_along(_around(self.angles))

    @property
    def observed(self) -> Tensor:
        """The share of networks that are, (m,)."""
        return self.steep.double().mean(dim=0)

    def _steep_along(self, directions: Tensor) -> Tensor:
        return (self.scores @ directions.T).abs().ge(self.bound.threshold)

    def summary(self) -> dict[str, Any]:
        vectors = self.directions.vectors.reshape(2, 2)
        both = markov_bound(self.geometry, self.directions.vectors, self.bound.threshold)
        seen = self._steep_along(vectors).double().mean(dim=0)
        rows = [
            {
                "direction": name,
                "angle": float(torch.rad2deg(torch.atan2(v[1], v[0]))) % 180,
                "energy": float(both.energies[i]),
                "energy_error": float(both.energy_errors[i]),
                "bound": float(both.bounds[i]),
                "observed": float(seen[i]),
            }
            for i, (name, v) in enumerate(zip(("v_perp", "v_par"), vectors, strict=True))
        ]
        return {
            "threshold": self.bound.threshold,
            "networks": self.geometry.num_networks,
            "seed": self.seed,
            "directions": rows,
            "largest_observed_over_bound": float((self.observed / self.bound.bounds).max()),
        }

    def picture(self) -> "Figure":
        from sads.theory import figures

        return figures.plot_markov(
            *_find_ridge(self.landscapes), self.directions, self.profiles, self.distances,
            self.angles, self.observed, self.bound,
        )  # fmt: skip


def report_markov(
    num_networks: int = 4096,
    *,
    angle: float = 30.0,
    ratio: float = 0.25,
    threshold: float | None = None,
    num_fresh: int = 1000,
    seed: int = 0,
) -> MarkovReport:
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
    fresh = draw_landscapes(family, num_fresh, seed + 1)
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
    return MarkovReport(geometry, fresh, distances, profiles, scores, angles, bound, seed)


def _around(angles: Tensor) -> Tensor:
    """Unit vectors at angles in degrees, (n, 2)."""
    turn = torch.deg2rad(angles)
    return torch.stack([turn.cos(), turn.sin()], dim=1)


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


@dataclass(frozen=True, eq=False)
class AdaptiveReport:
    """Figure 9: the geometry along the forward process from one image."""

    image: Tensor  # (*shape)
    image_name: str
    geometry: Geometry

    @cached_property
    def directions(self) -> Directions:
        return self.geometry.directions()

    def summary(self) -> dict[str, Any]:
        along = unit(self.image)
        first = self.directions.avoided(min(NUM_FIRST, self.geometry.dimension)).flatten(1)
        energy = self.geometry.energy(along)
        return {
            "image": self.image_name,
            "networks": self.geometry.num_networks,
            "eigenvalues": self.directions.values[:NUM_FIRST].tolist(),
            "eigenvalue_errors": self.directions.value_errors[:NUM_FIRST].tolist(),
            "trace": float(self.directions.values.sum()),
            "energy_along_image": {"value": energy.value, "error": energy.error},
            "image_energy_in_first_12": float((first @ along).square().sum()),
        }

    def picture(self) -> "Figure":
        from sads.theory import figures

        return figures.plot_adaptive(self.image, self.geometry, self.directions)


def report_adaptive(
    family: ScoreFamily,
    image: Tensor,
    image_name: str,
    num_networks: int = 2048,
    *,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> AdaptiveReport:
    """Estimate the geometry with inputs from the forward process of an image (*shape)."""
    geometry = estimate_geometry(
        family, num_networks, seed=seed, progress=progress,
        probe=probe("forward", images=image[None]),
    )  # fmt: skip
    return AdaptiveReport(image, image_name, geometry)
