"""What the Gaussian part costs in a sampling step, beside the network: `python benchmarks/skip.py`.

Both are timed in turn, in one thread, at the batch size that sampling takes.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import sads
from sads.diffusion.execution import fast_inference
from sads.diffusion.sample import default_batch_size
from sads.networks.gaussian import GaussianPart


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for shape in ((1, 16, 16), (3, 32, 32)):
        family = sads.family("iddpm", shape)
        size = default_batch_size(family, torch.device("cpu"))
        network = family.build()
        forward = fast_inference(network, family, 1.0, size)
        x, times = torch.randn(size, *shape), torch.full((size,), 500.0)
        level = torch.tensor([500])
        for rank in sorted({min(rank, family.dimension) for rank in (256, 512, 3072)}):
            _measure(family, forward, x, times, level, rank, rounds)


def _measure(family, forward, x, times, level, rank, rounds) -> None:  # type: ignore[no-untyped-def]
    vectors = torch.linalg.qr(torch.randn(family.dimension, rank)).Q
    part = GaussianPart(
        torch.zeros(family.dimension).double(), vectors, torch.linspace(2, 0.1, rank).double(), 0.05
    )
    found: list[tuple[float, float]] = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            alone = seconds(lambda: forward(x, times))
            added = seconds(lambda: part.predict(family.prediction, family.schedule, x, level))
            found.append((alone, added))
    alone, added = (statistics.median(column) for column in zip(*found[1:], strict=True))
    print(
        f"{'x'.join(map(str, family.shape)):>8}  rank {rank:>5}  batch {len(x):>4}  network "
        f"{1e3 * alone:7.1f} ms  Gaussian part {1e3 * added:6.2f} ms  {added / alone:6.2%}"
    )


if __name__ == "__main__":
    main()
