"""Train a score model: denoising score matching with Adam, resumable to the bit.

The random numbers of update `k` come from `(seed, k)` and the order of epoch `e` from `(seed, e)`.
So a checkpoint needs no random state: weights, the optimiser's moments and the number of the
update say everything, and a run that was killed ends in the same weights as one that was not.
"""

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sads.diffusion.model import ScoreModel, read_tensors
from sads.diffusion.speed import fast_forward, is_compiled, num_shards, one_thread_each
from sads.errors import CheckpointError, DataError, DivergedError, InvalidArgumentError
from sads.family import ScoreFamily
from sads.files import replacing
from sads.geometry.estimate import usable_device

FORMAT = "sads-checkpoint"

Progress = Callable[[int, int, float], None]  # updates so far, updates in all, loss


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; the defaults are Table 1's for rank-one data."""

    iterations: int = 2000  # Table 1
    batch_size: int = 1000  # Table 1
    learning_rate: float = 1e-4  # Table 1
    max_gradient_norm: float = 1.0
    ema_decay: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "max_gradient_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InvalidArgumentError(f"ema_decay lies between 0 and 1, got {self.ema_decay}")
        if self.seed < 0:
            raise InvalidArgumentError(f"the seed cannot be negative, got {self.seed}")


@dataclass
class TrainingState:
    """Everything that a run has after `iteration` updates."""

    network: nn.Module
    optimiser: torch.optim.Adam
    average: dict[str, Tensor] | None  # of the weights, if asked for
    losses: list[float]

    @property
    def iteration(self) -> int:
        return len(self.losses)


def train(
    family: ScoreFamily,
    x: Tensor,
    *,
    iterations: int = 2000,
    batch_size: int = 1000,
    learning_rate: float = 1e-4,
    max_gradient_norm: float = 1.0,
    ema_decay: float | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    device: str | torch.device = "cpu",
    compile: bool | None = None,
    progress: Progress | None = None,
) -> ScoreModel:
    """Train a network of `family` on the samples `x`, (N, *shape).

    With `checkpoint`, the run is saved every `checkpoint_every` updates, and continues from that
    file if it is there. A loss that is not finite raises `DivergedError`; the checkpoint stays.

    Args:
        ema_decay: also average the weights with this decay, and return the average.
        compile: force `torch.compile` on or off; by default long runs on a GPU use it.
        progress: called with updates so far, updates in all, and the loss.
    """
    options = TrainingOptions(
        iterations, batch_size, learning_rate, max_gradient_norm, ema_decay, seed
    )
    check_data(family, x, batch_size)
    started = time.perf_counter()
    device = usable_device(device)
    state = new_state(family, options, device)
    identity = {
        "family": family.describe(),
        "options": {k: v for k, v in asdict(options).items() if k != "iterations"},
        "data": digest(x),
    }
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        load_checkpoint(state, path, identity)
        if state.iteration > iterations:
            raise CheckpointError(
                f"{path} has {state.iteration:,} updates, more than the {iterations:,} asked for; "
                "ask for more, or choose another folder"
            )
    shards = num_shards(family, batch_size, device)
    evaluations = 3.0 * iterations * batch_size
    with (
        one_thread_each(shards) as pool,
        fast_forward(state.network, family, evaluations, compile) as forward,
    ):
        for loss in training_steps(state, forward, family, x, options, shards, pool):
            done = state.iteration
            if progress:
                progress(done, iterations, loss)
            if path is not None and (done % checkpoint_every == 0 or done == iterations):
                save_checkpoint(state, path, identity)
    if state.average is not None:
        state.network.load_state_dict(state.average)
    provenance = {
        **identity,
        "options": asdict(options),
        "num_samples": len(x),
        "seconds": time.perf_counter() - started,
        "compiled": is_compiled(forward),
        "versions": versions(),
    }
    return ScoreModel(family, state.network.eval(), torch.tensor(state.losses), provenance)


def training_steps(
    state: TrainingState,
    forward: nn.Module,
    family: ScoreFamily,
    x: Tensor,
    options: TrainingOptions,
    shards: int = 1,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[float]:
    """The updates that are left, one at a time; yields the loss. The caller logs and stops.

    With a pool, each of its workers takes one of the `shards` of the batch.
    """
    device = next(state.network.parameters()).device
    parameters = [p for p in state.network.parameters() if p.requires_grad]
    forward.train()
    while state.iteration < options.iterations:
        x0 = x[batch_indices(len(x), options, state.iteration)].to(device)
        x_t, levels, target = noised(family, x0, options.seed, state.iteration)
        time = family.schedule.network_time(levels).to(device)
        batch = zip(*(part.tensor_split(shards) for part in (x_t, time, target)), strict=True)
        gradient = partial(loss_and_gradients, forward, parameters, target.numel())
        parts = list(pool.map(gradient, batch) if pool else map(gradient, batch))
        value = sum(loss for loss, _ in parts)
        for parameter, *gradients in zip(parameters, *(g for _, g in parts), strict=True):
            # Fused Adam pairs numbers by their place in memory.
            parameter.grad = torch.empty_like(parameter).copy_(reduce(torch.add, gradients))
        nn.utils.clip_grad_norm_(parameters, options.max_gradient_norm)
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} at update {state.iteration + 1}; lower the learning rate "
                f"(now {options.learning_rate:g}); the last checkpoint, if any, is kept"
            )
        state.optimiser.step()
        if state.average is not None and options.ema_decay is not None:
            for name, weight in state.network.state_dict().items():
                state.average[name].lerp_(weight, 1 - options.ema_decay)
        state.losses.append(value)
        yield value


def loss_and_gradients(
    forward: nn.Module,
    parameters: list[nn.Parameter],
    num_entries: int,
    shard: tuple[Tensor, Tensor, Tensor],
) -> tuple[float, tuple[Tensor, ...]]:
    """The part of the batch's mean squared error that is due to some of its samples."""
    x_t, time, target = shard
    loss = (forward(x_t, time) - target).square().sum() / num_entries
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return loss.item(), gradients


def batch_indices(num_samples: int, options: TrainingOptions, iteration: int) -> Tensor:
    """The samples of an update: a fixed set, shuffled anew each epoch, whole batches only."""
    epoch, position = divmod(iteration, num_samples // options.batch_size)
    order = torch.randperm(num_samples, generator=_generator(options.seed, 0, epoch))
    return order[position * options.batch_size : (position + 1) * options.batch_size]


def noised(
    family: ScoreFamily, x0: Tensor, seed: int, iteration: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`x_t`, uniform levels, and what the network should return, for one update."""
    generator = _generator(seed, 1, iteration)
    levels = torch.randint(family.schedule.num_levels, (len(x0),), generator=generator)
    noise = torch.randn(x0.shape, generator=generator).to(x0.device)
    column = (-1, *[1] * (x0.ndim - 1))
    signal, sigma = (
        c[levels].to(x0.device, torch.float32).reshape(column)
        for c in (family.schedule.abar.sqrt(), family.schedule.sigma)
    )
    target = {
        "epsilon": lambda: noise,
        "score": lambda: -noise / sigma,
        "x0": lambda: x0,
        "v": lambda: signal * noise - sigma * x0,
    }[family.prediction]()
    return signal * x0 + sigma * noise, levels, target


def new_state(family: ScoreFamily, options: TrainingOptions, device: torch.device) -> TrainingState:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        network = family.build().to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=True)
    average = None
    if options.ema_decay is not None:
        average = {k: v.detach().clone() for k, v in network.state_dict().items()}
    return TrainingState(network, optimiser, average, [])


def save_checkpoint(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    tensors = {f"network.{k}": v for k, v in state.network.state_dict().items()}
    for index, moments in state.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{k}": v for k, v in moments.items()}
    for name, weight in (state.average or {}).items():
        tensors[f"average.{name}"] = weight
    tensors["losses"] = torch.tensor(state.losses, dtype=torch.float64)
    tensors = {k: v.detach().contiguous() for k, v in tensors.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, {"format": FORMAT, "identity": json.dumps(identity)})


def load_checkpoint(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    """Put a checkpoint into a fresh state; it must be of the same family, options and data."""
    tensors, metadata = read_tensors(path, FORMAT)
    saved = json.loads(metadata["identity"])
    for key, what in identity.items():
        if saved.get(key) != json.loads(json.dumps(what)):
            raise CheckpointError(
                f"{path} is a checkpoint of another {key} ({saved.get(key)}, now {what}); "
                "continue it as it was started, or choose another folder"
            )
    _fill(state.network.state_dict(), tensors, "network.")
    if state.average is not None:
        _fill(state.average, tensors, "average.")
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("adam."):
            _, index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = value
    adam = state.optimiser.state_dict()
    state.optimiser.load_state_dict({**adam, "state": moments})
    state.losses = tensors["losses"].tolist()


def check_data(family: ScoreFamily, x: Tensor, batch_size: int) -> None:
    if tuple(x.shape[1:]) != tuple(family.shape):
        raise DataError(
            f"the data has shape {tuple(x.shape)}, the family takes (N, "
            f"{', '.join(map(str, family.shape))}): resize the data or change the family's shape"
        )
    if len(x) < batch_size:
        raise DataError(
            f"{len(x)} samples are fewer than a batch of {batch_size}; lower the batch size"
        )
    if not x.isfinite().all():
        raise DataError("the data has NaN or infinite entries; clean it before training")
    if not (x != x[:1]).any():
        raise DataError("the data is constant: all samples are equal, there is nothing to learn")


def versions() -> dict[str, str]:
    return {
        "sads": version("sads"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.float().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _fill(target: dict[str, Tensor], tensors: dict[str, Tensor], prefix: str) -> None:
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(tensors[prefix + name])


def _generator(*key: int) -> torch.Generator:
    """A stream of its own for every key; neighbouring keys have unrelated seeds."""
    text = ",".join(map(str, key)).encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    return torch.Generator().manual_seed(seed)
