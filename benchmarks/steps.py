"""How few steps are enough: distances against sampler steps, for every sampler.

    python benchmarks/steps.py             # 4,000 samples in 256 dimensions, minutes
    python benchmarks/steps.py --quick     # 2,000 samples in 64 dimensions
    python benchmarks/steps.py --trained   # a network that has hardly trained, on the digits

The score is exact: for data `N(0, D v v^T)` the noise in `x` is predicted by a linear map, so that
what remains is the error of the sampler and that of having finitely many samples. The last line
is the distance of samples drawn from the law itself: no sampler can do better. Distances are to
the law in closed form, over 64 D random directions. The standard deviation along `v` should be
`sqrt(D)`; that of finitely many samples is only known to a relative `1 / sqrt(2 N)`.

With `--trained` the score is that of an iDDPM after 400 updates on the digits, and distances are to
images that it has not seen. There the errors of the network count as well, and samplers differ in
what they make of them.
"""

import argparse
import math
import time

import torch
from torch import Tensor, nn

import sads
from sads.diffusion.sample import SAMPLERS

STEPS = (10, 20, 50, 100, 250, 1000)


class RankOneScore(nn.Module):
    """The exact noise prediction for `N(0, D v v^T)`.

    Across `v` the data is 0, so all of `x` is noise: `eps = x / sigma`. Along `v`,
    `eps = sigma z / (abar D + sigma^2)`.
    """

    def __init__(self, vector: Tensor, schedule: sads.Schedule):
        super().__init__()
        flat = vector.flatten().double()
        self.v = nn.Parameter(flat / flat.norm(), requires_grad=False)
        self.schedule = schedule

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        level = int(t[0].round())
        abar, sigma = float(self.schedule.abar[level]), float(self.schedule.sigma[level])
        flat = x.double().flatten(1)
        z = flat @ self.v  # (N,)
        across = (flat - z[:, None] * self.v) / sigma
        along = z * sigma / (abar * flat.shape[1] + sigma**2)
        return (across + along[:, None] * self.v).reshape(x.shape).float()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a size that takes seconds")
    parser.add_argument(
        "--trained", action="store_true", help="a trained network, not the exact score"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the work per step is small
    if arguments.trained:
        compare_on_trained()
    else:
        compare_on_exact(arguments.quick)


def compare_on_trained(updates: int = 400, count: int = 400) -> None:
    images = sads.load_images("digits")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = images[order[count:]], images[order[:count]]
    family = sads.family("iddpm", (1, 8, 8), channel_mults=(1,))
    model = sads.train(family, train, iterations=updates, batch_size=64, learning_rate=1e-3, seed=0)
    print(f"iDDPM 1x8x8 after {updates} updates on digits, {count} samples against unseen images")
    print(f"{'sampler':12s} {'steps':>5s} {'SW2':>15s} {'MSW2':>8s} {'largest value':>14s}")
    for name in SAMPLERS:
        for steps in (20, 50, 250):
            y = sads.sample(model, count, steps=steps, sampler=name, seed=3)
            d = sads.sliced_wasserstein(test, y, seed=4)
            line = f"{d.sw2:7.3f} ± {d.sw2.error:.3f} {d.msw2:8.3f} {float(y.abs().max()):14.1f}"
            print(f"{name:12s} {steps:5d} {line}", flush=True)


def compare_on_exact(quick: bool) -> None:
    side, count = (8, 2_000) if quick else (16, 4_000)
    shape = (1, side, side)
    vector = sads.basis("dct", shape).vectors[side + 1]
    family = sads.family("mlp", shape, width=8, depth=1)
    model = sads.ScoreModel(family, RankOneScore(vector, family.schedule))

    def distance(y: Tensor) -> str:
        d = sads.sliced_wasserstein_to_gaussian(y, vector=vector, seed=4)
        return f"{d.sw2:7.3f} ± {d.sw2.error:.3f} {d.msw2:8.3f}"

    print(f"exact score of N(0, D v v^T), D = {side * side}, {count:,} samples")
    print(f"{'sampler':12s} {'steps':>5s} {'SW2':>15s} {'MSW2':>8s} {'std along v / sqrt(D)':>24s}")
    v = vector.flatten().float()
    for name in SAMPLERS:
        for steps in STEPS:
            y = sads.sample(model, count, steps=steps, sampler=name, seed=3, batch_size=count)
            spread = float((y.flatten(1) @ v).std()) / math.sqrt(side * side)
            print(f"{name:12s} {steps:5d} {distance(y)} {spread:18.4f}", flush=True)
    print(f"{'the law':12s} {'':5s} {distance(sads.rank_one(vector, count, seed=5))}")


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
