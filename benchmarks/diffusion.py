"""Training and sampling of the paper's 1x16x16 iDDPM against the plain eager loops, side by side.

    python benchmarks/diffusion.py
    python benchmarks/diffusion.py --rounds 30 --threads 1
    python benchmarks/diffusion.py --compile   # torch.compile in place of our layers; minutes

Plain: an eager network, all threads on one batch of 250; for training the usual loop with
`torch.optim.Adam`. `sads`: what `sads.train` and `sads.sample` do, with workers that live as long
as the run. The two take turns, so that a busy machine slows both; printed are medians over rounds
and the best, and the median of the ratio in each round with its quartiles. Compiling comes first
and is timed on its own. FLOP/s count the convolutions and matrix products as they are defined (a
backward pass as two forward ones), however they are computed, and are also given as a share of the
machine's matrix product, measured now.
"""

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import sads
from sads.diffusion.cores import count_flops, num_shards
from sads.diffusion.execution import fast_forward, fast_inference
from sads.diffusion.options import TrainingOptions
from sads.diffusion.sample import default_batch_size
from sads.diffusion.train import new_state, noised, training_steps
from sads.threads import pinned_threads, worker_pool

BATCH = 250
TARGET = 1.7


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def plain_training(family: sads.ScoreFamily, x: torch.Tensor) -> Callable[[], None]:
    network = family.build().train()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)

    def step() -> None:
        x_t, levels, noise = noised(family, x[torch.randperm(len(x))[:BATCH]], 0, 0)
        loss = (network(x_t, family.schedule.network_time(levels)) - noise).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()

    return step


def compare(
    what: str,
    rounds: int,
    num_threads: int,
    num_flops: float,
    plain: Callable[[], object],
    fast: Callable[[], object],
    share: float = 1,
) -> None:
    """They run once to warm up, then take turns; `num_flops` are a `share` of what `fast` does."""
    times = []
    for _ in range(rounds + 1):
        with pinned_threads(num_threads):
            plain_time, peak = seconds(plain), gemm_peak()
        times.append((plain_time, seconds(fast) * share, peak))
    del times[0]
    ratios = sorted(row[0] / row[1] for row in times)
    low, ratio, high = (ratios[round(q * (rounds - 1))] for q in (0.25, 0.5, 0.75))
    print(f"\n{what}, {rounds} rounds")
    for name, column in (("plain", 0), ("sads", 1)):
        taken = statistics.median(row[column] for row in times)
        of_peak = statistics.median(num_flops / row[column] / row[2] for row in times)
        rate = num_flops / taken / 1e9
        best = min(row[column] for row in times)
        print(
            f"  {name:6s} {taken:7.3f} s (best {best:.3f})  {rate:5.0f} GFLOP/s  "
            f"{of_peak:4.0%} of the GEMM peak"
        )
    bound = statistics.median(row[0] * row[2] / num_flops for row in times)
    best = min(row[0] for row in times) / min(row[1] for row in times)
    print(
        f"  ratio  {ratio:.2f} x  (quartiles {low:.2f} and {high:.2f}; of the best times "
        f"{best:.2f}; target {TARGET} x)"
    )
    print(f"  a network that ran at the full GEMM peak would be {bound:.2f} x as fast as plain")


def gemm_peak() -> float:
    """FLOP/s of a large float32 matrix product now."""
    a = torch.ones(1536, 1536)
    return 2 * 1536**3 / min(seconds(lambda: a @ a) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="in place of our layers")
    arguments = parser.parse_args()
    rounds, compile = arguments.rounds, arguments.compile
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    family = sads.family("iddpm", (1, 16, 16))
    flops = count_flops(family)
    print(f"iDDPM 1x16x16, {flops / 1e6:.1f} MFLOP per sample, {torch.get_num_threads()} threads")

    cpu = torch.device("cpu")
    workers = torch.get_num_threads()
    shards = num_shards(family, BATCH, cpu)
    size = default_batch_size(family, cpu)
    with worker_pool(workers) as pool:
        x = sads.rank_one(sads.basis("dct", family.shape).vectors[17], 10_000, seed=1)
        options = TrainingOptions(iterations=10**9, batch_size=BATCH)
        state = new_state(family, options, cpu)
        forward = fast_forward(state.network, family, math.inf, compile)
        steps = training_steps(state, forward, family, x, options, shards, pool)
        taken = seconds(lambda: next(steps))
        print(f"first training step, with any compiling: {taken:.0f} s", flush=True)
        compare(
            f"a training step at batch {BATCH}",
            rounds,
            workers,
            3 * flops * BATCH,
            plain_training(family, x),
            lambda: next(steps),
        )

        network = family.build()
        start = time.perf_counter()
        faster = fast_inference(copy.deepcopy(network), family, math.inf, size, compile)
        print(f"\nany compiling for sampling: {time.perf_counter() - start:.0f} s", flush=True)
        repeats = math.ceil(BATCH / (size * workers))
        noise, level = torch.randn(BATCH, *family.shape), torch.full((BATCH,), 500.0)

        @torch.no_grad()
        def plain_sampling() -> None:
            network(noise, level)

        @torch.no_grad()
        def several(_: int) -> None:
            for _ in range(repeats):
                faster(noise[:size], level[:size])

        def fast_sampling() -> None:
            list((pool.map if pool else map)(several, range(workers)))

        compare(
            f"a sampling step of {BATCH} samples (sads: {workers} batches of {size} at a time)",
            rounds,
            workers,
            flops * BATCH,
            plain_sampling,
            fast_sampling,
            share=BATCH / (repeats * size * workers),
        )


if __name__ == "__main__":
    main()
