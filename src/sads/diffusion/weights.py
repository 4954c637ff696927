"""Weights of a file, put into a network only if every one of them fits.

A file says of which family its weights are, and may lie: a network is built with no more and no
larger parameters than the file holds.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sads.errors import printable
from sads.networks.construction import watched_construction
from sads.tensorfile import TensorFile

PARTS, PARTS_PER_TENSOR = 1000, 20  # of a network, that a file of so many tensors may describe


def meta_device() -> AbstractContextManager[object]:
    """Tensors that are made in it have shapes and no memory."""
    return torch.device("meta")


@contextmanager
def bounded_construction(file: TensorFile, prefix: str) -> Iterator[None]:
    """Networks that are built in the block stop with `ValueError` when they outgrow a file.

    No parameter is larger than the largest tensor of the file, nor are there many more layers than
    tensors: a file cannot make us build for an hour, or a network that fills the memory.
    """
    sizes = [e.stop - e.start for name, e in file.entries.items() if name.startswith(prefix)]
    largest, most = max(sizes, default=0), PARTS + PARTS_PER_TENSOR * len(sizes)
    count = 0

    def look(part: object) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise ValueError("the network that it describes has more layers than weights")
        size = part.numel() * part.element_size() if _is_there(part) else 0
        if size > largest:
            raise ValueError("the network that it describes is larger than its weights")

    with watched_construction(look):
        yield


def _is_there(part: object) -> TypeGuard[nn.Parameter]:
    return isinstance(part, nn.Parameter) and not is_lazy(part)


def check_fit(target: Mapping[str, Tensor], file: TensorFile, prefix: str) -> None:
    """`ValueError` unless a file has these tensors and no others, of their types and shapes."""
    for name, tensor in target.items():
        file.expect(prefix + name, str(tensor.dtype).removeprefix("torch."), *tensor.shape)
    for name in file:
        if name.startswith(prefix) and name.removeprefix(prefix) not in target:
            raise ValueError(f"there is no weight {printable(name)[:60]!r} in the network")


def fill(target: Mapping[str, Tensor], file: TensorFile, prefix: str) -> None:
    """Put the tensors of a file into those of a network, all or none."""
    check_fit(target, file, prefix)
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(file[prefix + name])
