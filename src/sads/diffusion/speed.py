"""The fast way to run a network, where it helps.

On the CPU every core works at samples of its own, at a part of the batch in training and at a batch
of its own in sampling, with layers that are made for one core. Long jobs on other devices use
`torch.compile`. What this gains is measured by `benchmarks/diffusion.py`.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sads.diffusion.kernels import fast_layers
from sads.family import ScoreFamily

SHARD_FLOPS = 5e8  # of a core's part of a batch: below this, a batch is not worth sharing out
COMPILE_FLOPS = 1e15  # of a job: some minutes of a GPU, below which compiling is not worth it
_said: set[str] = set()


def count_flops(family: ScoreFamily) -> int:
    """Floating-point operations of one evaluation of one sample."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = family.build()
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.zeros(1, *family.shape), torch.zeros(1))
    return max(1, counter.get_total_flops())


def num_shards(family: ScoreFamily, batch_size: int, device: torch.device) -> int:
    """Into how many parts, one for every core, to split a training batch."""
    if device.type != "cpu" or torch.get_num_threads() == 1:
        return 1
    shards = min(torch.get_num_threads(), int(3 * batch_size * count_flops(family) / SHARD_FLOPS))
    if shards > 1 and not samples_are_independent(family):
        say_once("the network mixes samples or draws random numbers; cores share whole batches")
        return 1
    return max(1, shards)


def samples_are_independent(family: ScoreFamily) -> bool:
    """Whether a sample's output in training is its own, unlike with batch norm or dropout."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = family.build().train()
        x, time = torch.randn(4, *family.shape), torch.zeros(4)
        try:
            apart = torch.cat([network(x[:2], time[:2]), network(x[2:], time[2:])])
            return torch.allclose(network(x, time), apart, rtol=1e-3, atol=1e-5)
        except RuntimeError:  # it wants batches of a certain size
            return False


@contextmanager
def fast_forward(
    network: nn.Module, family: ScoreFamily, evaluations: float, compile: bool | None = None
) -> Iterator[nn.Module]:
    """`network` as fast as it gets here, with the same parameters, until the block ends.

    Entered where it will run: what is fast depends on the number of threads. Whether to compile
    depends on the work ahead (`evaluations` of one sample), not on the clock, so that a run and its
    resumption do the same. `compile` forces the decision.
    """
    if _worth_compiling(network, family, evaluations, compile):
        yield torch.compile(network, dynamic=False)  # type: ignore[misc]
        return
    with _for_one_core(network, family, frozen=False):
        yield network


def is_compiled(network: nn.Module) -> bool:
    return hasattr(network, "_orig_mod")


@contextmanager
def fast_inference(
    network: nn.Module,
    family: ScoreFamily,
    evaluations: float,
    batch_size: int,
    compile: bool | None = None,
) -> Iterator[nn.Module]:
    """`network` for batches of one size without gradients, as fast as it gets here.

    Its weights must not change in the block. Entered where it will run, like `fast_forward`.
    """
    if not _worth_compiling(network, family, evaluations, compile):
        with _for_one_core(network, family, frozen=True):
            yield network
        return
    device = _device(network)
    compiled = torch.compile(network, dynamic=False)
    import torch._inductor.config as inductor  # slow to import

    with torch.no_grad(), inductor.patch(freezing=device.type == "cpu"):
        compiled(
            torch.zeros(batch_size, *family.shape, device=device),
            torch.zeros(1, device=device).expand(batch_size),
        )
    yield compiled  # type: ignore[misc]


@contextmanager
def _for_one_core(network: nn.Module, family: ScoreFamily, frozen: bool) -> Iterator[None]:
    with ExitStack() as stack:
        # PyTorch's layers use all threads, ours only one.
        if torch.get_num_threads() == 1 and _device(network).type == "cpu":
            try:
                _try_fast_layers(family, frozen)
                stack.enter_context(fast_layers(network, frozen=frozen))
            except Exception as error:
                say_once(f"our faster layers do not work here ({_reason(error)}); using PyTorch's")
        yield


def _try_fast_layers(family: ScoreFamily, frozen: bool) -> None:
    """Raises an error if a network of the family does not work as it does with PyTorch's layers.

    Such networks want their images in the usual order in memory, or draw random numbers for them.
    """
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(not frozen):
        torch.manual_seed(0)  # a run and its resumption do the same
        network = copy.deepcopy(family.build()).train(not frozen)
        x, time = torch.randn(2, *family.shape), torch.zeros(2)
        state = torch.get_rng_state()
        expected = network(x, time)
        torch.set_rng_state(state)
        with fast_layers(network, frozen=frozen):
            y = network(x, time)
            if y.requires_grad:
                parameters = [p for p in network.parameters() if p.requires_grad]
                torch.autograd.grad(y.sum(), parameters, allow_unused=True)
        largest = float(expected.detach().abs().max())
        if not torch.allclose(y, expected, rtol=1e-2, atol=1e-3 * largest):
            raise RuntimeError("the network returns something else")


def _worth_compiling(
    network: nn.Module, family: ScoreFamily, evaluations: float, compile: bool | None
) -> bool:
    device = _device(network)
    if compile is None:
        compile = device.type != "cpu" and evaluations * count_flops(family) > COMPILE_FLOPS
    if not compile:
        return False
    try:  # a missing compiler shows at the first call, so it is tried on something small
        torch.compile(nn.Linear(2, 2).to(device))(torch.zeros(2, 2, device=device))
    except Exception as error:
        say_once(f"torch.compile does not work here ({_reason(error)}); running without it")
        return False
    return True


def _device(network: nn.Module) -> torch.device:
    tensor = next(itertools.chain(network.parameters(), network.buffers()), torch.empty(0))
    return tensor.device


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextmanager
def one_thread_each(num_workers: int) -> Iterator[ThreadPoolExecutor | None]:
    """A pool of workers whose operations use one thread each; none for a single worker.

    Inside, the caller's own operations use one thread too. Workers that share nothing need not
    wait for each other after every layer.
    """
    if num_workers < 2:
        yield None
        return
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        torch.set_num_threads(1)
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)


def say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=3)
