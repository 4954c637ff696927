"""PyTorch's modes: our functions compute the same whatever the caller has switched on or off.

Without gradients nothing can be trained, and output layers cannot be followed; with another default
type or device, or under autocast, networks are built and sums are made that nobody asked us for.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

PRECISION = torch.float32


def is_ordinary() -> bool:
    """Is PyTorch as it is when it starts?"""
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and torch.get_default_dtype() is PRECISION
        and torch.empty(0).device.type == "cpu"
        and not any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    )


@contextmanager
def ordinary() -> Iterator[None]:
    """A block in which it is so; afterwards the modes are the caller's again."""
    precision = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(PRECISION)
        try:
            yield
        finally:
            torch.set_default_dtype(precision)
