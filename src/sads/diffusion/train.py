"""Train a score model: denoising score matching with Adam, resumable to the bit.

The random numbers of update `k`, those of dropout among them, come from `(seed, k)`, and the order
of epoch `e` from `(seed, e)`. So a checkpoint needs no random state: weights, the optimiser's
moments and the number of the update say everything, and a run that was killed ends in the same
weights as one that was not.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sads.arguments import as_path, check_count
from sads.checked import checked
from sads.diffusion.checkpoints import TrainingState, load_checkpoint, save_checkpoint
from sads.diffusion.clipping import range_of
from sads.diffusion.cores import num_shards
from sads.diffusion.execution import fast_forward
from sads.diffusion.model import ScoreModel, TrainingProvenance
from sads.diffusion.options import TrainingOptions
from sads.environment import usable_device, versions
from sads.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    NetworkError,
    evaluating_networks,
    printable,
)
from sads.families import ScoreFamily, as_family
from sads.files import check_folder, tensor_digest
from sads.geometry.memory import check_evaluation
from sads.samples import as_samples, check_values
from sads.seeds import derive_seed, seed_torch, seeded, torch_stream
from sads.table1 import RANK_ONE
from sads.threads import worker_pool

Network = Callable[[Tensor, Tensor], Tensor]  # of noised samples and their times
Progress = Callable[[int, int, float], None]  # updates so far, updates in all, loss


@checked
def train(
    family: ScoreFamily | str,
    x: Tensor,
    *,
    iterations: int = RANK_ONE.iterations,
    batch_size: int = RANK_ONE.batch_size,
    learning_rate: float = RANK_ONE.learning_rate,
    max_gradient_norm: float = 1.0,
    ema_decay: float | None = None,
    seed: int = 0,
    centre: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    device: str | torch.device = "cpu",
    compile: bool | None = None,
    progress: Progress | None = None,
) -> ScoreModel:
    """Train a network of `family` on the samples `x`, (N, *shape); defaults are Table 1's.

    Args:
        x: floating-point numbers, such as images from -1 to 1; at least a batch of them.
        iterations: updates of Adam.
        batch_size: samples an update. The set is shuffled anew each epoch, and what is left of an
            epoch that is not a whole batch is not used in it.
        learning_rate: of Adam, the same throughout.
        max_gradient_norm: longer gradients are shortened to it.
        seed: of the initial weights (32 bits of it), batches, noise and dropout.
        checkpoint: a file in which the run is saved every `checkpoint_every` updates. If it is
            there, the run continues from it, to the same weights.
        device: where the network is trained.
        ema_decay: also average the weights with this decay. The model has the average, and
            `model.unaveraged()` the weights of the last update.
        centre: train on `x` without its mean, which the model keeps and adds to samples.
        compile: force `torch.compile` on or off; by default long runs on a GPU use it.
        progress: called with updates so far, updates in all, and the loss.

    Raises:
        SamplesError: the samples have another shape than the family, or are not scaled.
        DivergedError: a loss or a weight is not finite; the last checkpoint stays.
        NetworkError: the network cannot be built, evaluated or trained.
        CheckpointError: `checkpoint` is of another run.
    """
    options = TrainingOptions(
        iterations=iterations,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_gradient_norm=max_gradient_norm,
        ema_decay=ema_decay,
        seed=seed,
        centre=centre,
    )
    check_count("checkpoint_every", checkpoint_every)
    family = as_family(family)
    return fit(
        family,
        check_data(family, x, batch_size),
        options,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        device=device,
        compile=compile,
        progress=progress,
    )


def fit(
    family: ScoreFamily,
    x: Tensor,
    options: TrainingOptions,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    device: str | torch.device = "cpu",
    compile: bool | None = None,
    progress: Progress | None = None,
) -> ScoreModel:
    """What `train` does once options and data are checked."""
    iterations, batch_size = options.iterations, options.batch_size
    started = time.perf_counter()
    device = usable_device(device)
    if device.type == "cpu":
        check_evaluation(family, batch_size, training=True, advice="choose a smaller batch size")
    state = new_state(family, options, device)
    identity: dict[str, Any] = {
        "family": family.describe(),
        "options": _identity_options(options),
        "data": tensor_digest(x),
    }
    data_range, mean = range_of(x), None
    if options.centre:
        mean = x.mean(dim=0, dtype=torch.float64).float()
        x = x - mean.to(x)
        if family.skip is not None:
            family = replace(family, skip=family.skip.moved(-mean.flatten().cpu()))
    path = None if checkpoint is None else as_path(checkpoint)
    if path is not None:
        check_folder(path.parent)
    if path is not None and path.exists():
        load_checkpoint(state, path, identity)
        if state.iteration > iterations:
            raise CheckpointError(
                f"{path} has {state.iteration:,} updates, more than the {iterations:,} asked for; "
                "ask for more, or choose another folder"
            )
    shards = num_shards(family, batch_size, device)
    evaluations = 3.0 * iterations * batch_size
    with worker_pool(shards) as pool:
        forward = fast_forward(state.network, family, evaluations, compile)
        if forward.layers not in state.layers:
            state.layers.append(forward.layers)
        for loss in training_steps(state, forward, family, x, options, shards, pool):
            done = state.iteration
            if progress:
                progress(done, iterations, loss)
            due = path is not None and done % checkpoint_every == 0
            if due or done == iterations:
                check_weights(state, options)
                if path is not None:
                    save_checkpoint(state, path, identity)
    last = None
    if state.average is not None:
        last = {name: weight.clone() for name, weight in state.network.state_dict().items()}
        state.network.load_state_dict(state.average)
    provenance = TrainingProvenance(
        family=family.describe(),
        options=options,
        data=identity["data"],
        num_samples=len(x),
        seconds=time.perf_counter() - started,
        compiled=forward.compiled,
        layers="+".join(state.layers),
        versions=versions(),
        data_range=data_range,
    )
    losses = torch.tensor(state.losses)
    return ScoreModel(family, state.network.eval(), losses, provenance, mean, last)


def _identity_options(options: TrainingOptions) -> dict[str, Any]:
    """What a run and its continuation share; runs that are not centred are older than the word."""
    values = asdict(options)
    del values["iterations"]
    if not options.centre:
        del values["centre"]
    return values


def training_steps(
    state: TrainingState,
    forward: Network,
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
    state.network.train()
    while state.iteration < options.iterations:
        x0 = x[batch_indices(len(x), options, state.iteration)].to(device)
        x_t, levels, target = noised(family, x0, options.seed, state.iteration)
        time = family.schedule.network_time(levels).to(device)
        batch = zip(*(part.tensor_split(shards) for part in (x_t, time, target)), strict=True)
        gradient = partial(loss_and_gradients, forward, parameters, target.numel())
        with torch.random.fork_rng(devices=[]):  # for dropout
            seed_torch(derive_seed(options.seed, 2, state.iteration))
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
            average_weights(state.average, state.network.state_dict(), options.ema_decay)
        state.losses.append(value)
        yield value


def check_weights(state: TrainingState, options: TrainingOptions) -> None:
    """The last update may have gone too far, and no loss has seen it yet."""
    if not all(weight.isfinite().all() for weight in state.network.parameters()):
        raise DivergedError(
            f"the weights are not finite after update {state.iteration}; lower the learning rate "
            f"(now {options.learning_rate:g}); the last checkpoint, if any, is kept"
        )


def average_weights(average: dict[str, Tensor], weights: dict[str, Tensor], decay: float) -> None:
    """Move an average towards weights; what counts (such as batches, in batch norm) is copied."""
    for name, weight in weights.items():
        if weight.is_floating_point() or weight.is_complex():
            average[name].lerp_(weight, 1 - decay)
        else:
            average[name].copy_(weight)


def loss_and_gradients(
    forward: Network,
    parameters: list[nn.Parameter],
    num_entries: int,
    shard: tuple[Tensor, Tensor, Tensor],
) -> tuple[float, tuple[Tensor, ...]]:
    """The part of the batch's mean squared error that is due to some of its samples."""
    x_t, time, target = shard
    loss = (forward(x_t, time) - target).square().sum() / num_entries
    with evaluating_networks():
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return loss.item(), gradients


def batch_indices(num_samples: int, options: TrainingOptions, iteration: int) -> Tensor:
    """The samples of an update: a fixed set, shuffled anew each epoch, whole batches only."""
    epoch, position = divmod(iteration, num_samples // options.batch_size)
    order = torch.randperm(num_samples, generator=torch_stream(options.seed, 0, epoch))
    return order[position * options.batch_size : (position + 1) * options.batch_size]


def noised(
    family: ScoreFamily, x0: Tensor, seed: int, iteration: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`x_t`, uniform levels, and what the network should return, for one update.

    Beside a skip, it should return what the skip leaves of the target.
    """
    generator = torch_stream(seed, 1, iteration)
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
    x_t = signal * x0 + sigma * noise
    if family.skip is not None:
        target = target - family.skip.predict(family.prediction, family.schedule, x_t, levels)
    return x_t, levels, target


def new_state(family: ScoreFamily, options: TrainingOptions, device: torch.device) -> TrainingState:
    """A fresh network, from the seed, and all that goes with it."""
    with seeded(options.seed):
        network = family.build()
        check_weights_fit(network)
        network.to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=True)
    average = None
    if options.ema_decay is not None:
        average = {k: v.detach().clone() for k, v in network.state_dict().items()}
    return TrainingState(network, optimiser, average)


def check_weights_fit(network: nn.Module) -> None:
    """Refuse networks whose weights cannot be trained, averaged and kept in files."""
    state, parameters = network.state_dict(), list(network.parameters())
    extra = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if any(is_lazy(p) for p in parameters):
        reason = "has lazy layers, whose sizes are not known yet: give them their sizes"
    elif any(p.is_meta for p in parameters):
        reason = "is on the device 'meta', which holds no numbers: build it on the CPU"
    elif not any(p.requires_grad for p in parameters):
        reason = "has no weights to train: leave requires_grad on for some parameters"
    elif any(p.is_complex() for p in parameters):
        reason = "has complex weights: keep real and imaginary parts as two real parameters"
    elif extra:
        reason = f"keeps {printable(extra[0])[:60]} beside its tensors: make it a buffer"
    else:
        return
    raise NetworkError(f"the network {reason}")


def check_data(family: ScoreFamily, x: Tensor, batch_size: int) -> Tensor:
    """The samples in float32, or an error, with what to do, if they are not fit for this family."""
    family.check_trainable()
    x = as_samples(x, "the data", family.shape)
    check_values(x, "the data")
    x = x.float()
    if len(x) < batch_size:
        raise DataError(
            f"{len(x)} samples are fewer than a batch of {batch_size}; lower the batch size"
        )
    if len(x) == 1:
        raise DataError("the data is a single sample, there is nothing to learn: give more of them")
    if not (x != x[:1]).any():
        raise DataError("the data is constant: all samples are equal, there is nothing to learn")
    return x
