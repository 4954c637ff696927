"""Draw samples from a score model: one signature for all samplers, each named by its algorithm.

A sampler is a generator of states: it starts at Gaussian noise, walks down a list of levels and
yields after every step; the last state is the sample. `denoise(x, level)` is the model's
prediction of the noise in `x`; `noise()` draws Gaussian noise like `x`.
"""

import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sads.diffusion.model import ScoreModel, noise_from_output
from sads.diffusion.speed import count_flops, fast_inference, is_compiled, one_thread_each
from sads.errors import InvalidArgumentError
from sads.family import ScoreFamily
from sads.geometry.estimate import usable_device
from sads.schedule import Schedule

Denoise = Callable[[Tensor, int], Tensor]
Sampler = Callable[[Schedule, list[int], Tensor, Denoise, Callable[[], Tensor]], Iterator[Tensor]]
Progress = Callable[[int, int, float], None]  # steps so far, steps in all, share done

BATCH_FLOPS = 6e9  # of a batch on one core: 100 samples of the paper's iDDPM
MAX_BATCH = 1000
BLOCK = 50  # samples that share a random stream, so that results do not depend on the batch size


def ddpm(
    schedule: Schedule, levels: list[int], x: Tensor, denoise: Denoise, noise: Callable[[], Tensor]
) -> Iterator[Tensor]:
    """Ancestral sampling (Ho et al., 2020); the last step returns the prediction of `x_0`."""
    for level, below in zip(levels, [*levels[1:], -1], strict=True):
        abar, abar_below = _abar(schedule, level), _abar(schedule, below)
        x0 = _clean(x, denoise(x, level), abar)
        beta = 1 - abar / abar_below
        mean = math.sqrt(abar_below) * beta / (1 - abar) * x0
        mean = mean + math.sqrt(1 - beta) * (1 - abar_below) / (1 - abar) * x
        variance = beta * (1 - abar_below) / (1 - abar)
        x = x0 if below < 0 else mean + math.sqrt(variance) * noise()
        yield x


def ddim(
    schedule: Schedule, levels: list[int], x: Tensor, denoise: Denoise, noise: Callable[[], Tensor]
) -> Iterator[Tensor]:
    """Deterministic sampling (Song et al., 2021): keep the noise, change its level."""
    for level, below in zip(levels, [*levels[1:], -1], strict=True):
        eps = denoise(x, level)
        abar_below = _abar(schedule, below)
        x0 = _clean(x, eps, _abar(schedule, level))
        x = math.sqrt(abar_below) * x0 + math.sqrt(1 - abar_below) * eps
        yield x


def dpm_solver(
    schedule: Schedule, levels: list[int], x: Tensor, denoise: Denoise, noise: Callable[[], Tensor]
) -> Iterator[Tensor]:
    """DPM-Solver++(2M) (Lu et al., 2022): second order in the half-log signal-to-noise ratio.

    `x_s = (sigma_s / sigma_t) x_t - alpha_s (exp(-h) - 1) [ (1 + 1/2r) x0_t - (1/2r) x0_prev ]`,
    with `h = lambda_s - lambda_t` and `r` the ratio of the last step to this one. First order at
    the first step, and at the last one, which goes to `x_0` itself.
    """
    previous: tuple[float, Tensor] | None = None
    for level, below in zip(levels, [*levels[1:], -1], strict=True):
        abar, abar_below = _abar(schedule, level), _abar(schedule, below)
        x0 = _clean(x, denoise(x, level), abar)
        if below < 0:
            yield x0
            return
        half_log = 0.5 * math.log(abar / (1 - abar))
        step = 0.5 * math.log(abar_below / (1 - abar_below)) - half_log
        direction = x0
        if previous is not None:
            ratio = (half_log - previous[0]) / step
            direction = x0 + (x0 - previous[1]) / (2 * ratio)
        previous = (half_log, x0)
        scale = math.sqrt((1 - abar_below) / (1 - abar))
        x = scale * x - math.sqrt(abar_below) * math.expm1(-step) * direction
        yield x


def langevin(
    schedule: Schedule, levels: list[int], x: Tensor, denoise: Denoise, noise: Callable[[], Tensor]
) -> Iterator[Tensor]:
    """Annealed Langevin dynamics (Equation 1; Song & Ermon, 2019), one step at every level.

    In the variance-exploding coordinates `y = x / sqrt(abar)` with noise `s = sigma / sqrt(abar)`:
    `y <- y + eta/2 score(y) + sqrt(eta) z` with `eta = s^2 / 4` and `score(y) = -eps / s`. The last
    step returns the prediction of `x_0`.
    """
    y = x / math.sqrt(_abar(schedule, levels[0]))
    for level in levels[:-1]:
        abar = _abar(schedule, level)
        spread = math.sqrt(1 / abar - 1)
        eps = denoise(math.sqrt(abar) * y, level)
        y = y - LANGEVIN_STEP / 2 * spread * eps + math.sqrt(LANGEVIN_STEP) * spread * noise()
        yield math.sqrt(abar) * y
    abar = _abar(schedule, levels[-1])
    x = math.sqrt(abar) * y
    yield _clean(x, denoise(x, levels[-1]), abar)


LANGEVIN_STEP = 0.25  # of the squared noise; its stationary variance is 7 % too large
SAMPLERS: dict[str, Sampler] = {
    "ddpm": ddpm,
    "ddim": ddim,
    "dpm-solver": dpm_solver,
    "langevin": langevin,
}


def sample(
    model: ScoreModel,
    num_samples: int,
    *,
    steps: int = 1000,
    sampler: str = "ddpm",
    seed: int = 0,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    compile: bool | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """`num_samples` samples from a model, (N, *shape) float32.

    Args:
        steps: evaluations of the network per sample, spread evenly over the levels.
        sampler: `"ddpm"` (the paper's), `"ddim"`, `"dpm-solver"` (good from 20 steps on) or
            `"langevin"`.
        batch_size: samples at a time, rounded up to a multiple of 50; does not change the result.
            By default few of a large network and many of a small one. On the CPU every core works
            at a batch of its own, so that none waits for another after every layer.
        progress: called with network evaluations so far, in all, and the share done.
    """
    _check(num_samples, steps, sampler, model.family.schedule, batch_size, seed)
    device = usable_device(device)
    num_workers = torch.get_num_threads() if device.type == "cpu" else 1
    share = math.ceil(num_samples / num_workers)
    size = min(batch_size or default_batch_size(model.family, device), share)
    size = BLOCK * math.ceil(size / BLOCK)
    starts = range(0, num_samples, size)
    num_workers = min(num_workers, len(starts))
    network = model.network.to(device).eval()
    levels = spread_levels(model.family.schedule.num_levels, steps)
    total = len(starts) * steps
    steps_done = itertools.count(1)
    stopped = threading.Event()

    def walk(start: int) -> Tensor:
        """One batch, from noise to samples."""
        last = start + size if is_compiled(forward) else min(start + size, num_samples)
        streams = [_generator(seed, b) for b in range(start // BLOCK, math.ceil(last / BLOCK))]

        def noise() -> Tensor:
            draws = [torch.randn(BLOCK, *model.family.shape, generator=g) for g in streams]
            return torch.cat(draws).to(device)

        with torch.no_grad():
            states = SAMPLERS[sampler](model.family.schedule, levels, noise(), denoise, noise)
            for state in states:  # noqa: B007
                done = next(steps_done)
                if progress:
                    progress(done, total, done / total)
                if stopped.is_set():
                    break
        return state.contiguous().cpu()

    def denoise(x: Tensor, level: int) -> Tensor:
        time = model.family.schedule.network_time(torch.tensor([level])).expand(len(x)).to(device)
        return noise_from_output(model.family, forward(x, time), x, level)

    with (
        one_thread_each(num_workers) as pool,
        fast_inference(network, model.family, num_samples * steps, size, compile) as forward,
    ):
        if pool is None:
            parts = [walk(start) for start in starts]
        else:
            try:
                parts = list(pool.map(walk, starts))
            finally:
                stopped.set()  # if one batch fails, or on Ctrl-C, the others stop
    return torch.cat(parts)[:num_samples]


def default_batch_size(family: ScoreFamily, device: torch.device) -> int:
    if device.type != "cpu":
        return MAX_BATCH
    return min(MAX_BATCH, max(BLOCK, BLOCK * round(BATCH_FLOPS / count_flops(family) / BLOCK)))


def spread_levels(num_levels: int, steps: int) -> list[int]:
    """Levels from the noisiest down, evenly spaced: all of them, or every so many."""
    return [round(num_levels - k * num_levels / steps) - 1 for k in range(steps)]


def _abar(schedule: Schedule, level: int) -> float:
    """Signal power at a level; level -1 is clean data."""
    return 1.0 if level < 0 else float(schedule.abar[level])


def _clean(x: Tensor, eps: Tensor, abar: float) -> Tensor:
    """The `x_0` that goes with `x` and this noise."""
    return (x - math.sqrt(1 - abar) * eps) / math.sqrt(abar)


def _generator(seed: int, block: int) -> torch.Generator:
    content = hashlib.sha256(f"sample,{seed},{block}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(content[:8], "little"))


def _check(
    num_samples: int,
    steps: int,
    sampler: str,
    schedule: Schedule,
    batch_size: int | None,
    seed: int,
) -> None:
    if num_samples < 1 or (batch_size is not None and batch_size < 1) or seed < 0:
        raise InvalidArgumentError(
            f"num_samples and batch_size must be at least 1 and the seed not negative, "
            f"got {num_samples}, {batch_size} and {seed}"
        )
    if not 1 <= steps <= schedule.num_levels:
        raise InvalidArgumentError(
            f"steps must be between 1 and the {schedule.num_levels} levels, got {steps}"
        )
    if sampler not in SAMPLERS:
        raise InvalidArgumentError(
            f"unknown sampler {sampler!r}; choose one of {', '.join(SAMPLERS)}"
        )
