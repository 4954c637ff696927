"""How a network is run: by our layers for one CPU core, compiled on other devices, or as it is.

Called where the network will run, for what is fast depends on the number of threads. What is
chosen depends on the network and the work ahead, not on the clock, so that a run and its
continuation do the same. What this gains is measured by `benchmarks/diffusion.py`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sads.cpu import c_code
from sads.cpu.fast import PYTORCH, fast_network
from sads.diffusion.cores import count_flops
from sads.environment import note_once
from sads.errors import evaluating_networks
from sads.families import ScoreFamily

COMPILE_FLOPS = 1e15  # of a job: some minutes of a GPU, below which compiling is not worth it


@dataclass(frozen=True)
class Forward:
    """A network of a family as a function of `(x, time)`, and the layers that compute it."""

    function: Callable[[Tensor, Tensor], Tensor]
    family: ScoreFamily
    layers: str = PYTORCH  # by name
    compiled: bool = False

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        with evaluating_networks():
            output = self.function(x, time)
        self.family.check_output(output, len(x))
        return output


def fast_forward(
    network: nn.Module, family: ScoreFamily, evaluations: float, compile: bool | None = None
) -> Forward:
    """`network` as fast as it gets here, for training.

    Args:
        evaluations: the work ahead, in evaluations of one sample.
        compile: force `torch.compile` on or off.
    """
    if _worth_compiling(network, family, evaluations, compile):
        return Forward(torch.compile(network, dynamic=False), family, compiled=True)
    return _for_one_core(network, family, frozen=False)


def fast_inference(
    network: nn.Module,
    family: ScoreFamily,
    evaluations: float,
    batch_size: int,
    compile: bool | None = None,
) -> Forward:
    """`network` for batches of one size without gradients, as long as its weights do not change."""
    if not _worth_compiling(network, family, evaluations, compile):
        return _for_one_core(network, family, frozen=True)
    device = _device(network)
    compiled = torch.compile(network, dynamic=False)
    import torch._inductor.config as inductor  # slow to import

    with torch.no_grad(), inductor.patch(freezing=device.type == "cpu"):
        compiled(
            torch.zeros(batch_size, *family.shape, device=device),
            torch.zeros(1, device=device).expand(batch_size),
        )
    return Forward(compiled, family, compiled=True)


def _for_one_core(network: nn.Module, family: ScoreFamily, frozen: bool) -> Forward:
    # PyTorch's layers use all threads, ours only one.
    if torch.get_num_threads() > 1 or _device(network).type != "cpu":
        return Forward(network, family)
    try:
        fast = fast_network(network, family.build, family.shape, frozen=frozen)
    except Exception as error:
        note_once(f"our faster layers do not work here ({_reason(error)}); using PyTorch's")
        return Forward(network, family)
    return Forward(fast, family, layers=c_code.NAME)


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
        note_once(f"torch.compile does not work here ({_reason(error)}); running without it")
        return False
    return True


def _device(network: nn.Module) -> torch.device:
    tensor = next(itertools.chain(network.parameters(), network.buffers()), torch.empty(0))
    return tensor.device


def _reason(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, c_code.NoLibraryError) else f"{type(error).__name__}: {first}"
