"""The fast way to run a network: `channels_last` memory and `torch.compile`, where they help."""

import warnings

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sads.family import ScoreFamily

COMPILE_FLOPS = 2e13  # of a job: below this, compiling takes longer than it saves on two cores
_said: set[str] = set()


def count_flops(family: ScoreFamily) -> int:
    """Floating-point operations of one evaluation of one sample."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = family.build()
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.zeros(1, *family.shape), torch.zeros(1))
    return max(1, counter.get_total_flops())


def fast_forward(
    network: nn.Module, family: ScoreFamily, evaluations: float, compile: bool | None = None
) -> nn.Module:
    """`network`, perhaps compiled, with the same parameters.

    Whether to compile depends on the work ahead (`evaluations` of one sample), not on the clock,
    so that a run and its resumption do the same. `compile` forces the decision.
    """
    if compile is None:
        compile = evaluations * count_flops(family) > COMPILE_FLOPS
    if not compile:
        return network
    try:  # a missing compiler shows at the first call, so it is tried on something small
        device = next(network.parameters()).device
        torch.compile(nn.Linear(2, 2).to(device))(torch.zeros(2, 2, device=device))
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        say_once(f"torch.compile does not work here ({reason}); running without it")
        return network
    return torch.compile(network, dynamic=False)  # type: ignore[return-value]


def arrange(x: Tensor) -> Tensor:
    """Images with channels last in memory, which convolutions on CPUs and GPUs prefer."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def arrange_network(network: nn.Module) -> nn.Module:
    has_images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    return network.to(memory_format=torch.channels_last) if has_images else network  # type: ignore


def say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=3)
