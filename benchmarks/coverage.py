"""Do the errors cover as they claim? Every estimator, every probe, both ends of the spectrum.

    python benchmarks/coverage.py                     # 100 seeds each
    python benchmarks/coverage.py --quick             # 20 seeds of the smaller network
    python benchmarks/coverage.py --only forward      # those cases whose name contains the word

First geometries are drawn, and kept in `--keep` (out/coverage) as they arrive: what is there is
not drawn again, so that a run continues where it was ended, and rules for errors that have changed
are judged on the same networks within two minutes. Then they are judged: for every case what
`sads.estimate_geometry` finds with 100 seeds is compared with the integrated estimate of another
seed from 40,960 networks (its own error is added in quadrature).
Printed is, `7/100`, in how many of the seeds for which an error is claimed the truth was farther
than 2.13 errors away: 5 % is nominal for 16 batches (Student's t with 15 degrees of freedom), and
of 100 seeds more than 13 have probability 0.0005. A group of ranks counts as its worst rank. In
brackets the claimed error in units of the root mean square of what happened, 1 is ideal, the mean
over the group. `not known` is the share of all errors that the result itself calls unknown. Angles
count as missed beyond two of their errors, for directions that are resolved to 0.3 rad, each
compared with the nearest true direction among the ranks that it may have.
"""

import argparse
import math
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sads
from sads.geometry import estimate
from sads.schedule import Schedule
from sads.shapes import format_shape
from sads.tables import Row, markdown, titled

NUM_SEEDS = 100
FIRST_SEED = 30_000  # constants and rules were chosen on seeds below 2,000
TRUE_NETWORKS, TRUE_SEED = 40_960, 987_654
TOGETHER = 25  # seeds that are drawn by one task
STUDENT = 2.13  # holds 95 % of Student's t with 15 degrees of freedom
RESOLVED = 0.3  # radians
NETWORKS = {
    "1x4x4": ("cnn", (1, 4, 4), {}),
    "1x8x8": ("cnn", (1, 8, 8), {"channels": 8, "depth": 2}),
}
PROBES = ("zero", "gaussian", "forward", "custom")


class Stripes:
    """A probe of one's own: stripes of random sign."""

    def draw(
        self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: np.random.Generator
    ) -> Tensor:
        return float(rng.choice([-1.0, 1.0])) * (torch.arange(shape[-1]) % 2).float().expand(shape)


@dataclass(frozen=True)
class Case:
    """What is estimated, how, from how many networks."""

    network: str  # one of NETWORKS
    probe: str
    estimator: str
    num_networks: int
    prediction: str = "epsilon"

    def family(self) -> sads.ScoreFamily:
        name, shape, options = NETWORKS[self.network]
        return sads.family(name, shape, prediction=self.prediction, **options)

    def estimate(self, seed: int) -> sads.Geometry:
        probe: object = self.probe
        if self.probe == "custom":
            probe = Stripes()
        if self.probe == "forward":
            images = torch.rand(5, *self.family().shape, generator=torch.Generator().manual_seed(1))
            probe = sads.probe("forward", images=2 * images - 1)
        return sads.estimate_geometry(
            self.family(),
            self.num_networks,
            probe=probe,
            seed=seed,
            estimator="auto" if self.estimator == "integrated" else self.estimator,
        )

    def kept(self, seed: int, folder: Path) -> sads.Geometry:
        """The estimate of a seed, from the folder if it is there, else drawn and put there."""
        path = folder / str(self).replace(" ", "-") / f"{seed}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.estimate(seed).save(path)
        return sads.load_geometry(path)

    def truth(self) -> "Case":
        return replace(self, estimator="integrated", num_networks=TRUE_NETWORKS)

    def __str__(self) -> str:
        return f"{self.network} {self.probe} {self.estimator} {self.num_networks} {self.prediction}"


def all_cases(quick: bool) -> Iterator[Case]:
    """The plain loop, slow, also where it can be known: predictions of the score, one network."""
    networks = list(NETWORKS)[:1] if quick else list(NETWORKS)
    ways = [
        ("integrated", 64, "epsilon"),
        ("integrated", 256, "epsilon"),
        ("outer-product", 256, "epsilon"),
        ("outer-product", 2048, "epsilon"),
        ("outer-product", 512, "score"),  # of the law of the plain loop, and fast
        ("monte-carlo", 32, "epsilon"),
        ("monte-carlo", 512, "score"),
    ]
    for estimator, num_networks, prediction in ways:
        for network in networks[:1] if prediction == "score" else networks:
            for probe in PROBES:
                yield Case(network, probe, estimator, num_networks, prediction)


class Coverage:
    """Deviations from the truth and the errors that were claimed, seed by seed."""

    def __init__(self) -> None:
        self.deviations: list[Tensor] = []  # of shape (quantities,) each
        self.errors: list[Tensor] = []
        self.own: list[Tensor] = []  # errors of the truth

    def add(self, deviation: Tensor, error: Tensor, own: Tensor) -> None:
        self.deviations.append(deviation)
        self.errors.append(error)
        self.own.append(own)

    def __len__(self) -> int:
        return sum(len(part) for part in self.errors)

    def unknown(self) -> tuple[int, int]:
        """How many errors are not known, of how many."""
        return sum(int(error.isinf().sum()) for error in self.errors), len(self)

    def misses(self, limit: float = STUDENT) -> tuple[Tensor, Tensor]:
        """For every quantity: in how many seeds the truth was missed, of how many claims."""
        deviation, error, own = map(torch.stack, (self.deviations, self.errors, self.own))
        known = error.isfinite()
        beyond = deviation.abs() > limit * torch.hypot(error, own)
        return (beyond & known).sum(dim=0), known.sum(dim=0)

    def ratios(self) -> Tensor:
        """The claimed error in units of what happened, root mean squares over the seeds."""
        deviation, error = torch.stack(self.deviations), torch.stack(self.errors)
        known = error.isfinite()
        claimed = torch.where(known, error, 0.0).square().sum(dim=0)
        return (claimed / torch.where(known, deviation, 0.0).square().sum(dim=0)).sqrt()

    def cell(self) -> str:
        """`misses/claims (mean ratio)` of the worst quantity."""
        missed, claims = self.misses()
        used = claims > 0
        if not used.any():
            return "not known"
        worst = int((missed[used] / claims[used]).argmax())
        count = f"{int(missed[used][worst])}/{int(claims[used][worst])}"
        ratios = self.ratios()[used]
        if not ratios.isfinite().any():
            return f"{count} (zero)"
        return f"{count} ({float(ratios[ratios.isfinite()].mean()):.2f})"


def groups(dimension: int) -> dict[str, list[int]]:
    """Ranks at both ends of the spectrum and in the middle."""
    middle = dimension // 2
    return {
        "first": [0, 1, 2],
        "middle": [middle - 1, middle, middle + 1],
        "last": [dimension - 3, dimension - 2, dimension - 1],
    }


def measure(case: Case, seeds: Iterable[int], folder: Path) -> dict[str, Coverage]:
    """How errors and deviations compare over the seeds, for every kind of quantity."""
    truth = case.truth().kept(TRUE_SEED, folder)
    true = truth.directions()
    dimension = truth.dimension
    rows = torch.randn(3, dimension, generator=torch.Generator().manual_seed(0)).double()
    energies = truth.quadratic(rows)
    found: dict[str, Coverage] = {
        name: Coverage() for name in (*groups(dimension), "energies", "angles", "clusters")
    }
    for seed in seeds:
        geometry = case.kept(seed, folder)
        directions = geometry.directions()
        for name, ranks in groups(dimension).items():
            deviation = directions.values[ranks] - true.values[ranks]
            found[name].add(deviation, directions.value_errors[ranks], true.value_errors[ranks])
        here = geometry.quadratic(rows)
        found["energies"].add(here.values - energies.values, here.errors, energies.errors)
        _add_angles(found["angles"], directions, true)
        for cluster in directions.clusters:
            inside = slice(cluster.start, cluster.stop)
            found["clusters"].add(
                cluster.value - true.values[inside].mean(dim=0, keepdim=True),
                torch.tensor([cluster.value_error], dtype=torch.float64),
                true.value_errors[inside].mean(dim=0, keepdim=True),
            )
    return found


def _add_angles(found: Coverage, directions: sads.Directions, true: sads.Directions) -> None:
    overlaps = (directions.vectors.flatten(1) @ true.vectors.flatten(1).T).abs().clamp(max=1)
    for rank in range(len(overlaps)):
        ranks = slice(int(directions.rank_low[rank]), int(directions.rank_high[rank]) + 1)
        nearest = ranks.start + int(overlaps[rank, ranks].argmax())
        error, own = directions.angle_errors[rank], true.angle_errors[nearest]
        if error < RESOLVED and own < RESOLVED / 3:
            angle = torch.arccos(overlaps[rank, nearest])
            floor = torch.tensor(1e-6, dtype=torch.float64)  # arccos of rounding
            found.add(angle[None], error.maximum(floor)[None], own[None])


@dataclass(frozen=True)
class CoverageRow(Row):
    network: str
    probe: str
    estimator: str
    networks: int
    first: str = titled("first 3 values")
    middle: str = titled("middle 3")
    last: str = titled("last 3")
    energies: str
    angles: str
    clusters: str
    unknown: str = titled("not known")


def row(case: Case, seeds: Iterable[int], folder: Path) -> CoverageRow:
    found = measure(case, seeds, folder)
    counts = [found[name].unknown() for name in ("first", "middle", "last", "energies")]
    unknown = sum(n for n, _ in counts) / sum(n for _, n in counts)
    angles = found["angles"]
    beyond, claims = angles.misses(2.0) if len(angles) else (torch.zeros(1), torch.zeros(1))
    return CoverageRow(
        network=f"{NETWORKS[case.network][0]} {format_shape(NETWORKS[case.network][1])}",
        probe=case.probe,
        estimator=case.estimator + (" (score)" if case.prediction == "score" else ""),
        networks=case.num_networks,
        first=found["first"].cell(),
        middle=found["middle"].cell(),
        last=found["last"].cell(),
        energies=found["energies"].cell(),
        angles=f"{int(beyond)}/{int(claims)}" if int(claims) else "none resolved",
        clusters=found["clusters"].cell() if len(found["clusters"]) else "none",
        unknown=f"{unknown:.0%}",
    )


@contextmanager
def one_set_up() -> Iterator[None]:
    """Estimates of a case that share their set-up, most of the time of a small one.

    Only the seed of the networks differs between them: the numbers are the same bit for bit.
    """
    make_plan, plans = estimate.make_plan, []

    def made_once(family: Any, probe: Any, request: Any, stage: Any) -> Any:
        if not plans:
            plans.append(make_plan(family, probe, request, stage))
        plans[0].estimator.reseed(request.seed)
        return plans[0]

    estimate.make_plan = made_once
    try:
        yield
    finally:
        estimate.make_plan = make_plan


def draw(case: Case, seeds: Iterable[int], folder: Path) -> Case:
    torch.set_num_threads(1)  # there is one process a core
    with one_set_up():
        for seed in seeds:
            case.kept(seed, folder)
    return case


def draw_all(cases: list[Case], seeds: range, folder: Path, workers: int | None) -> None:
    """Truths first; a few seeds of a case at a time, so that no long task comes last."""
    truths = dict.fromkeys(case.truth() for case in cases)
    tasks = [(case, range(TRUE_SEED, TRUE_SEED + 1)) for case in truths]
    for case in cases:
        tasks += [(case, seeds[i : i + TOGETHER]) for i in range(0, len(seeds), TOGETHER)]
    started = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        drawn = [pool.submit(draw, case, part, folder) for case, part in tasks]
        for number, done in enumerate(as_completed(drawn), start=1):
            seconds = time.perf_counter() - started
            print(f"{seconds:6.0f} s  {number}/{len(tasks)} drawn: {done.result()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--only", default="", help="cases whose name contains this word")
    parser.add_argument("--keep", type=Path, default=Path("out/coverage"), help="folder")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    num_seeds = arguments.seeds or (20 if arguments.quick else NUM_SEEDS)
    seeds = range(arguments.first_seed, arguments.first_seed + num_seeds)
    cases = [case for case in all_cases(arguments.quick) if arguments.only in str(case)]
    started = time.perf_counter()
    draw_all(cases, seeds, arguments.keep, arguments.workers)
    torch.set_num_threads(1)
    rows = [row(case, seeds, arguments.keep) for case in cases]
    minutes = math.ceil((time.perf_counter() - started) / 60)
    print(f"\nseeds {seeds.start:,} to {seeds[-1]:,}, {minutes} minutes\n")
    rows.sort(key=lambda r: (r.network, PROBES.index(r.probe), r.estimator, r.networks))
    print(*markdown(rows), sep="\n")


if __name__ == "__main__":
    main()
