"""The plain loop and the fast estimator, side by side on the paper's iDDPM.

    python benchmarks/geometry.py            # a few minutes
    python benchmarks/geometry.py --large    # also 1x28x28 and 3x32x32 to 2 % error

Prints networks per second of both, the whitened error of both at the same number of networks,
and the ratio of times to equal error. The whitened error is
`|L^-1 (G - R) L^-T|_F / sqrt(D)`, with `R = L L^T` an independent reference from many more
networks than either (its own error is printed too). Errors fall as one over the square root of the
number of networks, so the ratio of times to equal error is
(error ratio)^2 x (networks per second ratio).
"""

import argparse
import math
import resource
import time

import torch

import sads


def whitened_difference(geometry: sads.Geometry, reference: torch.Tensor) -> float:
    root = torch.linalg.cholesky(reference)
    half = torch.linalg.solve_triangular(root, geometry.matrix() - reference, upper=False)
    white = torch.linalg.solve_triangular(root, half.T, upper=False)
    return float(white.norm() / math.sqrt(len(reference)))


def timed(
    family: sads.ScoreFamily, networks: int, **options: object
) -> tuple[sads.Geometry, float]:
    start = time.perf_counter()
    geometry = sads.estimate_geometry(family, networks, **options)  # type: ignore[arg-type]
    return geometry, time.perf_counter() - start


def compare(networks: int, reference_networks: int) -> None:
    family = sads.family("iddpm", (1, 16, 16))
    sads.estimate_geometry(family, 32)  # warm up
    reference, seconds = timed(family, reference_networks, seed=99)
    print(
        f"reference: {reference_networks:,} networks, whitened error "
        f"{reference.whitened_error():.4f}, {seconds:.1f} s"
    )
    plain, plain_seconds = timed(family, networks, seed=1, estimator="monte-carlo")
    fast, fast_seconds = timed(family, networks, seed=1)
    rows = {"plain loop": (plain, plain_seconds), "fast": (fast, fast_seconds)}
    print(f"\n{'':12}{'networks/s':>12}{'ms/network':>12}{'whitened error':>16}")
    errors, speeds = {}, {}
    for name, (geometry, seconds) in rows.items():
        errors[name] = whitened_difference(geometry, reference.matrix())
        speeds[name] = networks / seconds
        print(f"{name:12}{speeds[name]:12.1f}{1e3 / speeds[name]:12.2f}{errors[name]:16.4f}")
    speed = speeds["fast"] / speeds["plain loop"]
    accuracy = errors["plain loop"] / errors["fast"]
    print(f"\nnetworks per second: {speed:.1f} x")
    print(f"error at {networks:,} networks: {accuracy:.0f} x smaller")
    print(f"time to equal error: {accuracy**2 * speed:,.0f} x")
    weights = 1 / family.schedule.sigma**2
    effective = float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
    expected = math.sqrt((family.dimension + 1) / (effective * networks))
    ratio = (expected / errors["fast"]) ** 2 * speed
    print(
        "(the plain loop's error is one draw from a heavy tail; from Gaussian outputs and an "
        f"effective\nsample size of {effective:.2%} one expects {expected:.2f}, "
        f"and the ratio {ratio:,.0f} x)"
    )


def large(shape: tuple[int, ...], target: float) -> None:
    family = sads.family("iddpm", shape)
    start = time.perf_counter()
    geometry = sads.estimate_geometry(family, 256, seed=0)
    while geometry.whitened_error() > target:
        have = geometry.num_networks
        wanted = have * (geometry.whitened_error() / target) ** 2 * 1.05
        more = min(16 * math.ceil((wanted - have) / 16) or 16, 3 * have)
        geometry = geometry.merge(sads.estimate_geometry(family, more, seed=0, first_network=have))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{'x'.join(map(str, shape))} (D = {geometry.dimension}): whitened error "
        f"{geometry.whitened_error():.4f} from {geometry.num_networks:,} networks in "
        f"{time.perf_counter() - start:.0f} s, peak memory {memory:.1f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=2048, help="for the comparison")
    parser.add_argument("--reference", type=int, default=32_768, help="networks of the reference")
    parser.add_argument("--large", action="store_true", help="also the larger shapes of Table 1")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    compare(arguments.networks, arguments.reference)
    if arguments.large:
        print()
        for shape in ((1, 28, 28), (3, 32, 32)):
            large(shape, 0.02)


if __name__ == "__main__":
    main()
