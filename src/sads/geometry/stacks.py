"""Evaluate many networks of one family at once, each on its own input."""

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sads.errors import evaluating_networks
from sads.geometry.readout import capture_input
from sads.geometry.recorder import named_tensors
from sads.threads import pinned_threads

PARAMETER_BYTES = 128 << 20  # of a stack; larger ones are no faster, smaller ones have overheads
MAX_STACK = 256


def set_up_threads(network_bytes: int) -> AbstractContextManager[None]:
    """One thread for the set-up of small networks, all of them for that of large ones.

    Sharing out small operations gains nothing, and beside other work it costs: where PyTorch was
    imported before sads, its threads spin while they wait for each other (`sads/openmp.py`).
    """
    return pinned_threads(1) if network_bytes <= PARAMETER_BYTES // 8 else nullcontext()


class Stack:
    """`evaluate(parameters, x, t)` for n networks: their outputs, or what enters one layer.

    Networks are evaluated together by `torch.func.vmap`; one that it cannot trace (with
    data-dependent control flow, for instance) is evaluated one network after the other.
    """

    def __init__(
        self,
        network: nn.Module,
        layer_path: str | None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        self.layer_path = layer_path
        self.device, self.dtype = device, dtype
        if dtype != torch.float32:
            network = copy.deepcopy(network).to(dtype)
        self._network = network.to(device)
        self._dtypes = {name: tensor.dtype for name, tensor in named_tensors(network)}
        self._thread = threading.local()  # calls put parameters into a module: one per thread
        self.reason: str | None = None  # why networks are not evaluated together
        self._together: Callable[..., Tensor] = vmap(self._evaluate_one, randomness="different")

    @property
    def network(self) -> nn.Module:
        """This thread's copy. It shares all tensors: what is evaluated is put in their place."""
        if not hasattr(self._thread, "network"):
            shared = {id(tensor): tensor for _, tensor in named_tensors(self._network)}
            self._thread.network = copy.deepcopy(self._network, shared)
        return self._thread.network

    @property
    def network_bytes(self) -> int:
        """The size of one network."""
        return max(1, sum(tensor.nbytes for _, tensor in named_tensors(self._network)))

    @property
    def default_size(self) -> int:
        """How many networks to evaluate together."""
        return max(1, min(MAX_STACK, PARAMETER_BYTES // self.network_bytes))

    def evaluate(self, parameters: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        """(n, ...) from parameters (n, ...), x (n, *shape) and t (n,)."""
        parameters = {k: v.to(self.device, self._dtypes[k]) for k, v in parameters.items()}
        x, t = x.to(self.device, self.dtype), t.to(self.device)
        with torch.no_grad():
            if self.reason is None:
                try:
                    return self._together(parameters, x, t).float().cpu()
                except Exception as error:  # of a network of somebody else's, which may do anything
                    self.reason = str(error).partition("\n")[0] or type(error).__name__
            with evaluating_networks():
                one_by_one = [
                    self._evaluate_one({k: v[i] for k, v in parameters.items()}, x[i], t[i])
                    for i in range(len(x))
                ]
            return torch.stack(one_by_one).float().cpu()

    def _evaluate_one(self, parameters: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        if self.layer_path is None:
            return functional_call(self.network, parameters, (x[None], t[None]))[0]
        wrapper = _Features(self.network, self.layer_path)
        prefixed = {f"network.{k}": v for k, v in parameters.items()}
        return functional_call(wrapper, prefixed, (x[None], t[None]))


class _Features(nn.Module):
    """A network cut off before one of its layers."""

    def __init__(self, network: nn.Module, layer_path: str):
        super().__init__()
        self.network = network
        self.layer_path = layer_path

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return capture_input(self.network, self.network.get_submodule(self.layer_path), x, t)
