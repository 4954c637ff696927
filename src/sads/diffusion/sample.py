"""Draw samples from a score model: one signature for all samplers, each named by its algorithm.

A sampler is a generator of states: it starts at Gaussian noise, walks down a list of levels and
yields after every step; the last state is the sample. `denoise(x, level)` is the model's
prediction of the noise in `x`; `noise()` draws Gaussian noise like `x`.
"""

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sads.arguments import as_path, check_count, check_seed, check_type, shown
from sads.checked import checked
from sads.diffusion.clipping import Clip, Clipping, clipping_of, frame_of
from sads.diffusion.cores import count_flops
from sads.diffusion.execution import fast_inference
from sads.diffusion.model import ScoreModel, noise_from_output
from sads.environment import check_samples, usable_device
from sads.errors import (
    CheckpointError,
    InvalidArgumentError,
    SadsError,
    describe_failure,
    printable,
)
from sads.families import ScoreFamily
from sads.files import check_folder, digest, tensor_digest
from sads.geometry.memory import check_evaluation
from sads.rotations.rotation import Rotation
from sads.schedule import Schedule
from sads.seeds import all_bits, seeded, torch_stream
from sads.table1 import NUM_LEVELS
from sads.threads import worker_pool
from sads.unfinished import Partial
from sads.untrusted import DAMAGE

Denoise = Callable[[Tensor, int], Tensor]
Sampler = Callable[[Schedule, list[int], Tensor, Denoise, Callable[[], Tensor]], Iterator[Tensor]]
Progress = Callable[[int, int, float], None]  # steps so far, steps in all, share done

BATCH_FLOPS = 6e9  # of a batch on one core: 100 samples of the paper's iDDPM
MAX_BATCH = 1000
PARTIAL_FORMAT = "sads-partial-samples"
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


@checked
def register_sampler(name: str, sampler: Sampler) -> None:
    """Make a sampler of your own known by name: a generator of states, as those above."""
    if not isinstance(name, str) or not name or not callable(sampler):
        raise InvalidArgumentError(
            f"a sampler has a name and a generator of states, got {name!r} and "
            f"{type(sampler).__name__}"
        )
    if name in SAMPLERS:
        raise InvalidArgumentError(f"there is a sampler {name!r} already; choose another name")
    SAMPLERS[name] = sampler


@checked
@dataclass(frozen=True)
class SamplingOptions:
    """How samples are drawn: see `sample`, whose arguments these are."""

    steps: int = NUM_LEVELS
    sampler: str = "ddpm"
    seed: int = 0
    clip: Clip | None = None
    rotation: Rotation | None = None
    batch_size: int | None = None
    device: str | torch.device = "cpu"
    compile: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        check_seed(self.seed)
        check_count("steps", self.steps, 0)
        if self.checkpoint_seconds is not None and self.checkpoint_seconds < 0:
            raise InvalidArgumentError(
                f"checkpoint_seconds must be at least 0, got {shown(self.checkpoint_seconds)}"
            )
        if not isinstance(self.sampler, str) or self.sampler not in SAMPLERS:
            raise InvalidArgumentError(
                f"unknown sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}"
            )


@checked
def sample(
    model: ScoreModel,
    num_samples: int,
    *,
    steps: int = NUM_LEVELS,
    sampler: str = "ddpm",
    seed: int = 0,
    clip: Clip | None = None,
    rotation: Rotation | None = None,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    compile: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """`num_samples` samples from a model, (N, *shape) float32.

    Args:
        steps: evaluations of the network per sample, spread evenly over the levels.
        seed: of the noise. The same samples come first if more are drawn.
        sampler: `"ddpm"` (the paper's), `"ddim"`, `"dpm-solver"` (good from 20 steps on) or
            `"langevin"` (takes hundreds of steps: with fewer, samples are far too large).
        clip: keep the prediction of `x_0` within `(low, high)` at every step, in the frame of the
            data; `"data"` is the range of the data that the model was trained on.
        rotation: the one that the data were rotated by. Samples are rotated back.
        batch_size: samples at a time, rounded up to a multiple of 50; does not change the result.
            By default few of a large network and many of a small one. On the CPU every core works
            at a batch of its own, so that none waits for another after every layer.
        device: where the network runs.
        compile: force `torch.compile` on or off; by default long runs on a GPU use it.
        checkpoint: file in which finished batches are kept while others are drawn. The same call
            continues from it, after `kill -9` too, to the same samples. It is left there at the
            end: remove it when the samples are saved.
        checkpoint_seconds: between two writes of it; 30 if not given.
        progress: called with network evaluations so far, in all, and the share done.

    Raises:
        NetworkError: the network cannot be evaluated.
        CheckpointError: `checkpoint` is of other samples.
    """
    options = SamplingOptions(
        steps=steps,
        sampler=sampler,
        seed=seed,
        clip=clip,
        rotation=rotation,
        batch_size=batch_size,
        device=device,
        compile=compile,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
    )
    return draw(model, num_samples, options, progress).values


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples of a model, and the name of the layers that computed them."""

    values: Tensor  # (N, *shape) float32
    layers: str
    compiled: bool


def draw(
    model: ScoreModel,
    num_samples: int,
    options: SamplingOptions,
    progress: Progress | None = None,
) -> Drawn:
    """What `sample` draws, with the name of what computed it, for the record."""
    check_type(
        model, ScoreModel, "the model", "give one that sads.train or sads.load_model returned"
    )
    check_count("num_samples", num_samples)
    check_samples(num_samples, model.family.dimension)
    steps, schedule = options.steps, model.family.schedule
    check_steps(steps, schedule)
    frame = frame_of(model, options.rotation)
    clipping = clipping_of(model, options.clip, frame)
    device = usable_device(options.device)
    num_workers = torch.get_num_threads() if device.type == "cpu" else 1
    share = math.ceil(num_samples / num_workers)
    if device.type == "cpu":
        check_evaluation(model.family, num_workers * min(BLOCK, share))
    size = min(options.batch_size or default_batch_size(model.family, device), share)
    size = BLOCK * math.ceil(size / BLOCK)
    kept = options.checkpoint is not None
    if options.checkpoint is not None:
        check_folder(as_path(options.checkpoint).parent)
    partial = Partial(
        options.checkpoint,
        PARTIAL_FORMAT,
        {
            "family": model.family.describe(),
            "weights": _digest_weights(model) if kept else "",
            "clip": _digest_clipping(clipping) if kept else None,
            "samples": num_samples,
            "steps": steps,
            "sampler": options.sampler,
            "seed": options.seed,
        },
        options.checkpoint_seconds,
    )
    batches = _Batches.load(partial, num_samples, size, model.family.shape)
    size = batches.size
    starts = batches.missing()
    num_workers = min(num_workers, max(1, len(starts)))
    network = model.network.to(device).eval()
    levels = spread_levels(schedule.num_levels, steps)
    total = batches.count * steps
    steps_done = itertools.count((batches.count - len(starts)) * steps + 1)
    stopped = threading.Event()

    def walk(start: int) -> Tensor:
        """One batch, from noise to samples."""
        last = start + size if forward.compiled else min(start + size, num_samples)
        blocks = range(start // BLOCK, math.ceil(last / BLOCK))
        streams = [torch_stream("sample", options.seed, block) for block in blocks]

        def noise() -> Tensor:
            draws = [torch.randn(BLOCK, *model.family.shape, generator=g) for g in streams]
            return torch.cat(draws).to(device)

        with torch.no_grad():
            states = states_of(options.sampler, schedule, levels, noise(), denoise, noise)
            for state in states:  # noqa: B007
                done = next(steps_done)
                if progress:
                    progress(done, total, done / total)
                if stopped.is_set():
                    raise _StoppedError
        return state.float().contiguous().cpu()[: num_samples - start]

    def denoise(x: Tensor, level: int) -> Tensor:
        time = schedule.network_time(torch.tensor([level])).expand(len(x)).to(device)
        eps = noise_from_output(model.family, forward(x, time), x, level)
        if clipping is None:
            return eps
        return clipping.noise(eps, x, _abar(schedule, level))

    with seeded(all_bits(options.seed)), worker_pool(num_workers) as pool:  # for noise in networks
        forward = fast_inference(network, model.family, num_samples * steps, size, options.compile)
        batches.layers.add(forward.layers)
        try:
            for start, part in _as_they_end(pool, walk, starts):
                batches.add(start, part)
                if partial.due:
                    partial.save(batches.tensors())
        except KeyboardInterrupt:
            stopped.set()
            if batches.any():
                partial.save(batches.tensors())
            raise
        finally:
            stopped.set()  # if one batch fails, the others stop
    y = frame.to_data(batches.values())
    if clipping is not None:
        y = clipping.samples(y)
    return Drawn(y, "+".join(sorted(batches.layers)), forward.compiled)


def states_of(
    name: str,
    schedule: Schedule,
    levels: list[int],
    x: Tensor,
    denoise: Denoise,
    noise: Callable[[], Tensor],
) -> Iterator[Tensor]:
    """What a sampler yields; what it does wrong, as one of the user's may, is one line."""
    state = None
    try:
        for state in SAMPLERS[name](schedule, levels, x, denoise, noise):
            if not isinstance(state, Tensor) or state.shape != x.shape:
                given = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
                raise InvalidArgumentError(
                    f"the sampler {name} yields {given}, expected a tensor like x, {tuple(x.shape)}"
                )
            yield state
    except SadsError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"the sampler {name} failed: {describe_failure(error)}"
        ) from error
    if state is None:
        raise InvalidArgumentError(f"the sampler {name} yields nothing: yield a state a step")


class _StoppedError(Exception):
    """Raised in the batches that are left when one fails, or on Ctrl-C."""


def _as_they_end(
    pool: ThreadPoolExecutor | None, function: Callable[[int], Tensor], starts: list[int]
) -> Iterator[tuple[int, Tensor]]:
    """Each start with its result, as soon as it is there."""
    if pool is None:
        yield from ((start, function(start)) for start in starts)
        return
    futures = {pool.submit(function, start): start for start in starts}
    for future in as_completed(futures):
        yield futures[future], future.result()


class _Batches:
    """Batches of samples that are drawn, by the number of their first sample."""

    def __init__(self, num_samples: int, size: int):
        self.num_samples, self.size = num_samples, size
        self.layers: set[str] = set()  # that have drawn them
        self._parts: dict[int, Tensor] = {}

    @classmethod
    def load(
        cls, partial: Partial, num_samples: int, size: int, shape: tuple[int, ...]
    ) -> "_Batches":
        """What an earlier process had drawn, with its size of batches; or nothing yet."""
        tensors = partial.load()
        if tensors is None:
            return cls(num_samples, size)
        try:
            batches = cls(num_samples, int(tensors["size"]))
            batches.layers = set(bytes(tensors["layers"].tolist()).decode().split("+"))
            parts = tensors["samples"].split(tensors["lengths"].tolist())
            for start, part in zip(tensors["starts"].tolist(), parts, strict=True):
                length = min(batches.size, num_samples - start)
                fits = part.shape == (length, *shape) and part.dtype == torch.float32
                if not fits or start % batches.size or length < 1 or start < 0:
                    raise ValueError("its parts do not fit together")
                batches.add(start, part)
            if batches.size < 1 or batches.size % BLOCK:
                raise ValueError("batches of such a size are not drawn")
        except DAMAGE as error:
            raise CheckpointError(
                f"{printable(partial.path)} cannot be continued ({error}); remove it to start "
                "afresh"
            ) from error
        return batches

    def tensors(self) -> dict[str, Tensor]:
        """What `load` reads."""
        parts = dict(sorted(self._parts.items()))
        return {
            "size": torch.tensor(self.size),
            "layers": torch.tensor(list("+".join(sorted(self.layers)).encode())),
            "starts": torch.tensor(list(parts)),
            "lengths": torch.tensor([len(part) for part in parts.values()]),
            "samples": torch.cat(list(parts.values())),
        }

    @property
    def count(self) -> int:
        """How many samples there are to be in the end."""
        return math.ceil(self.num_samples / self.size)

    def add(self, start: int, part: Tensor) -> None:
        self._parts[start] = part

    def any(self) -> bool:
        return bool(self._parts)

    def missing(self) -> list[int]:
        return [s for s in range(0, self.num_samples, self.size) if s not in self._parts]

    def values(self) -> Tensor:
        return torch.cat([self._parts[start] for start in sorted(self._parts)])


def _digest_weights(model: ScoreModel) -> str:
    tensors = dict(model.network.state_dict())
    if model.family.skip is not None:
        tensors |= {f"skip.{name}": t for name, t in model.family.skip.tensors().items()}
    parts = (f"{name} {tensor_digest(tensor)}".encode() for name, tensor in tensors.items())
    return digest(*parts)[:16]


def _digest_clipping(clipping: Clipping | None) -> list[Any] | None:
    """The range, and where in it some points of the network's frame are: that tells the frame."""
    if clipping is None:
        return None
    shape = clipping.shape
    points = torch.linspace(-1, 1, 2 * math.prod(shape)).reshape(2, *shape)
    return [clipping.low, clipping.high, tensor_digest(clipping.frame.to_data(points))]


def default_batch_size(family: ScoreFamily, device: torch.device) -> int:
    if device.type != "cpu":
        return MAX_BATCH
    return min(MAX_BATCH, max(BLOCK, BLOCK * round(BATCH_FLOPS / count_flops(family) / BLOCK)))


def check_steps(steps: int, schedule: Schedule) -> None:
    """A sampler visits a level at most once."""
    if not 1 <= steps <= schedule.num_levels:
        raise InvalidArgumentError(
            f"steps must be between 1 and the {schedule.num_levels} levels, got {steps}"
        )


def spread_levels(num_levels: int, steps: int) -> list[int]:
    """Levels from the noisiest down, evenly spaced: all of them, or every so many."""
    return [round(num_levels - k * num_levels / steps) - 1 for k in range(steps)]


def _abar(schedule: Schedule, level: int) -> float:
    """Signal power at a level; level -1 is clean data."""
    return 1.0 if level < 0 else float(schedule.abar[level])


def _clean(x: Tensor, eps: Tensor, abar: float) -> Tensor:
    """The `x_0` that goes with `x` and this noise."""
    return (x - math.sqrt(1 - abar) * eps) / math.sqrt(abar)
