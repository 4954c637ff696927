"""`sliced_wasserstein` against POT: time and peak memory, side by side.

    python benchmarks/metrics.py            # 10,000 x 256, 16,384 projections
    python benchmarks/metrics.py --quick    # 2,000 x 64, 4,096 projections

The two take turns. Each measurement is a process of its own that reports the seconds of the call
and how far the peak of its resident memory rose above what it held before. POT keeps all
projections of all samples at once, so that it would need over 20 GB at full size: it runs on fewer
projections (the same number of samples, dimensions and threads), and its time and memory are
multiplied by the ratio of the numbers. Both are proportional to it: every projection is sorted and
compared on its own. The distances of the two on the same projections are compared as well.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

import sads

KEYS = ("seconds", "bytes")


def measure(library: str, num_samples: int, dimension: int, num_projections: int) -> None:
    """Run one library in this process and print what it took, as JSON."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, num_samples, dimension), dtype=np.float32)
    y[:, 0] *= 2
    theta = rng.standard_normal((num_projections, dimension), dtype=np.float32)
    theta /= np.linalg.norm(theta, axis=1, keepdims=True)
    if library == "pot":
        import ot

        def distance() -> float:
            return float(ot.sliced_wasserstein_distance(x, y, projections=theta.T, p=2))
    else:
        tensors = [torch.from_numpy(a) for a in (x, y, theta)]

        def distance() -> float:
            return sads.sliced_wasserstein(*tensors[:2], projections=tensors[2]).sw2

    before, start = peak_memory(), time.perf_counter()
    value = distance()
    seconds = time.perf_counter() - start
    print(json.dumps({"sw2": value, "seconds": seconds, "bytes": peak_memory() - before}))


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(library: str, *sizes: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", library, *map(str, sizes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a size that takes seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        library, *sizes = arguments.measure
        measure(library, *map(int, sizes))
        return
    num_samples, dimension = (2_000, 64) if arguments.quick else (10_000, 256)
    full = 64 * dimension
    part = full // 8
    rounds = [
        (run("sads", num_samples, dimension, full), run("pot", num_samples, dimension, part))
        for _ in range(arguments.rounds)
    ]
    shared = run("sads", num_samples, dimension, part)
    print(
        f"{num_samples:,} x {dimension} samples, {full:,} projections, {os.cpu_count()} cores, "
        f"medians of {arguments.rounds} rounds"
    )
    for name, column, scale in (("sads", 0, 1), ("POT", 1, full // part)):
        seconds, size = (statistics.median(r[column][k] for r in rounds) for k in KEYS)
        note = f"  scaled by {scale} from {part} projections" if scale > 1 else ""
        print(f"{name:5s} {scale * seconds:8.2f} s  {scale * size / 2**20:8.0f} MB{note}")
    faster, smaller = (
        sorted(full // part * pot[k] / ours[k] for ours, pot in rounds) for k in KEYS
    )
    print(
        f"ratio {statistics.median(faster):8.1f} x  {statistics.median(smaller):8.1f} x less "
        f"(time: {faster[0]:.1f} to {faster[-1]:.1f})"
    )
    pot = rounds[0][1]
    difference = abs(shared["sw2"] / pot["sw2"] - 1)
    print(f"SW2 on the same {part} projections: relative difference {difference:.1e}")


if __name__ == "__main__":
    main()
