"""Figures 3, 4, 5 and 9: those that need no training, and what their numbers say.

Each is a report of `sads.theory.reports`, its rows as a table, and claims judged from the spread
of what was repeated independently: networks (3, 5), runs of SGD (4), images (9). How many of each
is ours, but for the million networks behind a geometry at the paper's scale (Appendix A).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.nn.functional import normalize

from sads.data.bases import basis
from sads.experiments.figure import Context, Figure, Outcome
from sads.experiments.run import read_source
from sads.experiments.spec import FamilySpec, GeometrySpec
from sads.experiments.verdict import (
    CONFIDENCE,
    Claim,
    Interval,
    judge,
    mean_interval,
    paired_difference,
    rank_correlation,
)
from sads.geometry.geometry import Geometry
from sads.theory.reports import (
    NUM_FIRST,
    Theorem1Report,
    report_adaptive,
    report_markov,
    report_symmetry,
    report_theorem1,
)

SHAPE = (1, 16, 16)

SYMMETRY_NETWORKS = {"smoke": 8, "laptop": 64, "paper": 1024}
VISIBLE = 0.01  # share of energy; an energy is never below 0, so 0 is no threshold for it
ROUNDING = 1e-12  # share of energy, amplitudes of 1e-6

SGD_RUNS = {"smoke": 200, "laptop": 2000, "paper": 10_000}
GREATLY = 2.0  # times the ratio of errors in gradient descent
EARLY = 0.5  # small t: gradient descent has more than this share of the first squared error left
CLOSE = 0.1  # relative difference from gradient descent that counts as well predicted

LANDSCAPE_NETWORKS = {  # behind the geometry, and fresh
    "smoke": (256, 1000),
    "laptop": (4096, 4000),
    "paper": (1_000_000, 10_000),
}

ADAPTIVE_SIZES = {"smoke": (64, 2), "laptop": (1024, 10), "paper": (1_000_000, 10)}  # Appendix A


def draw_symmetry(context: Context) -> Outcome:
    families = {
        name: FamilySpec("iddpm", SHAPE, (("resample", name),)).build()
        for name in ("nearest", "area")
    }
    report = report_symmetry(families, SYMMETRY_NETWORKS[context.scale])
    table = [
        {
            "resampling": row["resampling"],
            "symmetry": row["flip"],
            "networks": report.networks,
            "odd energy": row["mean"],
            "odd energy error": row["error"],
        }
        for row in report.summary()["directions"]
    ]
    odd = {
        name: torch.stack([*result.asymmetry.values()]).amax(dim=0)
        for name, result in report.responses.items()
    }
    return Outcome({"fig3": report.picture()}, table, judge_symmetry(odd["nearest"], odd["area"]))


def judge_symmetry(nearest: Tensor, area: Tensor) -> list[Claim]:
    """From the share of energy in the odd part of each network's response, each (networks,)."""
    difference = paired_difference(nearest, area)
    rounding = mean_interval(area)
    return [
        judge(
            "the default resampling (nearest) introduces asymmetry",
            f"energy of the odd part, nearest less area: {difference} networks; "
            f"visible from {VISIBLE:g}",
            difference.interval,
            VISIBLE,
        ),
        judge(
            "area resampling introduces none",
            f"energy of the odd part: {rounding}; rounding stays below {ROUNDING:g}",
            mean_interval(-area),
            -ROUNDING,
        ),
    ]


def draw_theorem1(context: Context) -> Outcome:
    report = report_theorem1(num_runs=SGD_RUNS[context.scale])
    table = [
        {
            "v": f"u_{row['direction']}",
            "lambda": row["eigenvalue"],
            "rate of GD": row["rate"],
            "plateau, exact": row["plateau"],
            "plateau": row["simulated"],
            "plateau error": row["simulated_error"],
        }
        for row in report.summary()["directions"]
    ]
    descent = _gradient_descent(report)
    last = torch.stack([s.squared[-1] for s in report.simulations], dim=1)  # (runs, D)
    early = [
        simulation.squared[t] / path[t] - 1
        for simulation, path in zip(report.simulations, descent, strict=True)
        for t in range(1, len(path))  # all runs start from the same point
        if path[t] > EARLY * path[0]
    ]
    claims = [
        judge_amplification(last[:, 0], last[:, -2], float(descent[0][-1] / descent[-2][-1])),
        judge_plateaus(report.eigenvalues, last),
        judge_early(early),
    ]
    return Outcome({"fig4": report.picture()}, table, claims)


def _gradient_descent(report: Theorem1Report) -> list[Tensor]:
    """Squared errors of gradient descent at the recorded steps, for each direction."""
    return [
        problem.expected_errors(simulation.steps, report.learning_rate).square().sum(dim=(1, 2))
        for problem, simulation in zip(report.problems, report.simulations, strict=True)
    ]


def judge_amplification(first: Tensor, other: Tensor, descent_ratio: float) -> Claim:
    """From errors at the end of each run along two directions that converge at one rate in GD.

    Only the last direction has a rate of its own (Theorem 1), so it is not one of the two.
    """
    logarithm = mean_interval(first.log() - other.log())
    ratio = replace(
        logarithm,
        value=math.exp(logarithm.value),
        low=math.exp(logarithm.low),
        high=math.exp(logarithm.high),
    )
    return judge(
        "anisotropy is greatly amplified in SGD",
        f"error along u_1 over that along u_(D-1) at the last step: {ratio} in SGD, "
        f"{descent_ratio:.3g} in gradient descent; greatly means more than {GREATLY:g} times that",
        ratio,
        GREATLY * descent_ratio,
    )


def judge_plateaus(eigenvalues: Sequence[float], last: Tensor) -> Claim:
    """From the errors at the end of each run, (runs, D)."""
    correlation = rank_correlation(eigenvalues, last)
    difference = paired_difference(last[:, 0], last[:, -1])
    return judge(
        "for large t, the error of SGD grows with the eigenvalue",
        f"rank correlation of eigenvalue and error {correlation}; error along u_1 less along u_D: "
        f"{difference} runs",
        correlation,
    )


def judge_early(deviations: Sequence[Tensor]) -> Claim:
    """From relative deviations of SGD's error from GD's: (runs,) for each direction and step."""
    worst = max(map(mean_interval, deviations), key=lambda interval: abs(interval.value))
    reach = max(abs(worst.low), abs(worst.high))
    return judge(
        "for small t, SGD is well predicted by gradient descent",
        f"largest relative deviation of the squared error until gradient descent has halved it: "
        f"{worst}; well predicted means within {CLOSE:g}",
        replace(worst, value=-abs(worst.value), low=-reach, high=0.0),
        -CLOSE,
    )


def draw_landscape(context: Context) -> Outcome:
    num_networks, num_fresh = LANDSCAPE_NETWORKS[context.scale]
    report = report_markov(num_networks, num_fresh=num_fresh)
    change = report.profiles.mean(dim=2)  # (2, networks), over distances
    table = [
        {
            "direction": row["direction"],
            "angle": row["angle"],
            "v^T G v": row["energy"],
            "v^T G v error": row["energy_error"],
            "bound": row["bound"],
            "networks beyond": row["observed"],
            "mean change of log p": float(values.mean()),
            "mean change of log p error": float(values.std()) / math.sqrt(num_fresh),
        }
        for row, values in zip(report.summary()["directions"], change, strict=True)
    ]
    claims = [
        judge_change(*change),
        judge_bound(
            report.bound.bounds,
            report.bound.energy_errors / report.bound.threshold**2,
            len(report.geometry.counts),
            report.steep,
        ),
    ]
    return Outcome({"fig5": report.picture()}, table, claims)


def judge_change(perp: Tensor, par: Tensor) -> Claim:
    """From the mean change of each fresh network's log-density along both directions."""
    difference = paired_difference(perp, par)
    return judge(
        "the log-density changes less along v_par than along v_perp",
        f"mean change along v_perp less that along v_par: {difference} fresh networks",
        difference.interval,
    )


def judge_bound(bounds: Tensor, errors: Tensor, num_batches: int, steep: Tensor) -> Claim:
    """From bounds (n,) with errors that come from batches, and networks beyond, (networks, n).

    The frequencies have Clopper and Pearson's upper limit and the bounds a lower t-limit, at a
    level at which all limits hold together (Bonferroni).
    """
    tail = (1 - CONFIDENCE) / (2 * len(bounds))
    num, count = len(steep), steep.sum(dim=0).numpy()
    upper = np.where(
        count < num, special.betainccinv(count + 1, np.maximum(num - count, 1), tail), 1.0
    )
    lower = bounds.numpy() - special.stdtrit(num_batches - 1, 1 - tail) * errors.numpy()
    margin = bounds.numpy() - count / num
    interval = Interval(
        float(margin.min()), float((lower - upper).min()), math.inf, CONFIDENCE, num
    )
    return judge(
        "the Markov bound (Equation 4) holds in every direction",
        f"bound less frequency in {num} fresh networks, smallest of {len(bounds)} directions: "
        f"{interval}",
        interval,
    )


def draw_adaptive(context: Context) -> Outcome:
    num_networks, num_images = ADAPTIVE_SIZES[context.scale]
    family = FamilySpec("iddpm", SHAPE)
    images = read_source("digits", SHAPE, context.sources)[0][:num_images]
    reports = [
        report_adaptive(family.build(), image, "digits", num_networks, seed=1 + i)
        for i, image in enumerate(images)
    ]
    default = context.geometry(GeometrySpec(family, num_networks))
    shares = torch.stack([shares_in_first(r.geometry, images) for r in reports], dim=1)
    own = shares.diagonal()  # of (images, geometries)
    others = (shares.sum(dim=1) - own) / (num_images - 1)
    plain = shares_in_first(default, images)
    frequencies = torch.stack([mean_frequencies(r.directions.avoided(NUM_FIRST)) for r in reports])
    plain_errors = share_errors(default, images)
    table = [
        {
            "image": i + 1,
            "lambda_1": float(report.directions.values[0]),
            "lambda_1 error": float(report.directions.value_errors[0]),
            "share in its own": float(own[i]),
            "share in its own error": float(share_errors(report.geometry, images)[i]),
            "in the default's": float(plain[i]),
            "in the default's error": float(plain_errors[i]),
            "in other images'": float(others[i]),
            "frequency of u_1": float(frequencies[i, 0]),
            f"frequency of u_{NUM_FIRST}": float(frequencies[i, -1]),
        }
        for i, report in enumerate(reports)
    ]
    claims = [
        judge_adaptation(own, plain, "the default probe"),
        judge_adaptation(own, others, "other images"),
        judge_harmonics(frequencies),
    ]
    notes = ["the images are scikit-learn's digits, not the paper's; the first is shown"]
    return Outcome({"fig9": reports[0].picture()}, table, claims, notes)


def shares_in_first(geometry: Geometry, images: Tensor) -> Tensor:
    """Share of each image's energy in the first eigenvectors, (N,)."""
    first = torch.linalg.eigh(geometry.matrix()).eigenvectors[:, -NUM_FIRST:]  # (D, 12)
    rows = normalize(images.double().flatten(1))
    return (rows @ first).square().sum(dim=1)


def share_errors(geometry: Geometry, images: Tensor) -> Tensor:
    """Jackknife errors of `shares_in_first` over the geometry's batches, (N,)."""
    num = len(geometry.counts)
    shares = []
    for left_out in range(num):
        kept = torch.arange(num) != left_out
        part = replace(geometry, factors=geometry.factors[kept], counts=geometry.counts[kept])
        shares.append(shares_in_first(part, images))
    return torch.stack(shares).var(dim=0, correction=0).mul(num - 1).sqrt()


def mean_frequencies(vectors: Tensor) -> Tensor:
    """Length of the DCT frequency, averaged over the energy of unit vectors (n, *shape), (n,)."""
    dct = basis("dct", tuple(vectors.shape[1:]))
    lengths = torch.tensor([element.position for element in dct.index]).double().norm(dim=1)
    return (vectors.flatten(1) @ dct.vectors.flatten(1).T).square() @ lengths


def judge_adaptation(own: Tensor, reference: Tensor, name: str) -> Claim:
    """From shares of each image's energy in its own first eigenvectors and in those of others."""
    difference = paired_difference(own, reference)
    return judge(
        f"eigenvectors adapt to the image: they hold more of it than those of {name}",
        f"share of its energy in the first {NUM_FIRST}, mean {float(own.mean()):.3g} against "
        f"{float(reference.mean()):.3g}; difference {difference} images",
        difference.interval,
    )


def judge_harmonics(frequencies: Tensor) -> Claim:
    """From mean frequencies of the first eigenvectors for each image, (images, n)."""
    count = frequencies.shape[1]
    correlation = rank_correlation(range(count), frequencies)
    return judge(
        "frequency increases as the eigenvalue decreases",
        f"rank correlation of an eigenvector's number and its mean frequency, first {count}, "
        f"over {len(frequencies)} images: {correlation}",
        correlation,
    )


FIGURES = (
    Figure("fig3", "Impulse responses by resampling", (), lambda context: [], draw_symmetry),
    Figure("fig4", "Theorem 1 with SGD", (), lambda context: [], draw_theorem1),
    Figure("fig5", "Landscape and Markov bound", (), lambda context: [], draw_landscape),
    Figure("fig9", "Geometry along an image's forward process", (), lambda context: [],
           draw_adaptive),
)  # fmt: skip
