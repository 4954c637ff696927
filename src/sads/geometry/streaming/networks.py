"""Networks that never exist as a whole: a layer's weights are drawn just before it runs.

The module's parameters are on PyTorch's device `meta`: they have shapes and no memory. While the
network is evaluated, every function of PyTorch that is given such a parameter gets its numbers
instead (`substitution`), and they are let go when the function returns. It does not matter whether
a parameter belongs to a layer, is used by itself, by several layers (tied weights) or several
times: whoever asks for it gets the same numbers, drawn again (`streams`). As soon as the order in
which parameters are used is known, all threads draw those of some layers, then compute (`supply`).
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sads.environment import return_free_memory
from sads.geometry.drawing import Blueprint
from sads.geometry.readout import capture_input
from sads.geometry.recorder import named_tensors
from sads.geometry.recording import Recording, record_shapes
from sads.geometry.streaming.streams import NetworkStream, find_places
from sads.geometry.streaming.substitution import (
    CannotStreamError,
    ShapesOnly,
    Substitution,
    is_meta,
)
from sads.geometry.streaming.supply import AHEAD_BYTES, Memory, drawing_ahead
from sads.seeds import numpy_stream

STREAM_BYTES = 128 << 20  # of parameters; larger networks are drawn layer by layer
ATTENTION = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


class Streamed(Blueprint):
    """A family's networks, without their numbers, and where in a random stream these are."""

    def __init__(self, build: Callable[[], nn.Module]):
        recording = record_shapes(build)
        super().__init__(recording)
        self.other = recording.other  # what the constructor gives after another seed
        self.places = find_places(self.recipes)
        self._memory: dict[tuple[torch.device, torch.dtype], Memory] = {}

    @property
    def largest(self) -> tuple[str, int]:
        """The largest parameter, and its entries."""
        sizes = {name: recipe.numel for name, recipe in self.recipes.items()}
        name = max(sizes, key=lambda n: sizes[n])
        return name, sizes[name]

    def draw(self, streams: list[np.random.Generator]) -> "list[NetworkStream]":
        """The numbers of one network per random stream; none of them is drawn yet."""
        return [NetworkStream(self.recipes, self.places, stream) for stream in streams]

    def memory(self, device: torch.device, dtype: torch.dtype) -> "Memory":
        """The memory for weights of one network at a time."""
        key = device, dtype
        if key not in self._memory:
            numel = weight_bytes(self, dtype) // dtype.itemsize
            self._memory = {key: Memory(numel, device, dtype)}  # that of another type is let go
        return self._memory[key]

    def release_memory(self) -> None:
        """Let go of the memory for weights; it is made again when it is needed."""
        self._memory = {}

    @contextmanager
    def without_numbers(self) -> "Iterator[Blueprint]":
        """Networks that are run for their shapes only while the block runs, at no cost.

        What is computed from parameters has no numbers, up to a layer that is made `solid`; what
        is done with its output is computed as ever.
        """
        with ShapesOnly():
            yield _Shapes(self)


class _Shapes(Blueprint):
    """A copy of a blueprint, some layers of which may get numbers."""

    def __init__(self, blueprint: Streamed):
        module = copy.deepcopy(blueprint.module)
        super().__init__(Recording(module, blueprint.recipes, blueprint.reason))
        self._blueprint = blueprint

    def make_solid(self, path: str) -> None:
        """Give a layer numbers of its own, and to what enters it random ones."""
        layer = self.module.get_submodule(path)
        (stream,) = self._blueprint.draw([numpy_stream(0)])
        for name, parameter in layer.named_parameters(recurse=False):
            numbers = torch.empty(parameter.numel())
            full = f"{path}.{name}" if path else name
            if full in self.recipes and parameter.is_meta:
                stream.fill(full, numbers)
                setattr(layer, name, nn.Parameter(numbers.view(parameter.shape)))

        def solid(_layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            generator = torch.Generator().manual_seed(0)
            return tuple(
                torch.randn(z.shape, generator=generator) if is_meta(z) else z for z in inputs
            )

        layer.register_forward_pre_hook(solid)


class StreamedNetwork:
    """Evaluates networks of a family, one after the other, each parameter drawn when it is used.

    Args:
        blueprint: the networks.
        device: that computes; weights are made there.
        dtype: of weights and activations.
        module: evaluated instead of the blueprint's own, which is the default.
    """

    def __init__(
        self,
        blueprint: Streamed,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        module: nn.Module | None = None,
    ):
        self.device, self.dtype = device, dtype
        self.module = _placed(module or blueprint.module, device, dtype)
        self._names = {id(tensor): name for name, tensor in named_tensors(self.module)}
        self._names = {
            key: name
            for key, name in self._names.items()
            if blueprint.recipes[name].value is None or self._tensor(name).is_meta
        }
        self._order: list[str] = []  # in which parameters were used the last time
        self._blueprint = blueprint

    def _tensor(self, name: str) -> Tensor:
        path, _, attribute = name.rpartition(".")
        tensor: Tensor = getattr(self.module.get_submodule(path), attribute)
        return tensor

    @contextmanager
    def numbers(self, stream: NetworkStream) -> Iterator[nn.Module]:
        """The module, which computes with these numbers while the block runs."""
        memory = self._blueprint.memory(self.device, self.dtype)
        with drawing_ahead(stream, self._order, memory) as supply:
            substitution = Substitution(self._names, supply, self.device, self.dtype)
            with substitution, sdpa_kernel(ATTENTION):
                yield self.module
        self._order = supply.used

    def __call__(
        self, stream: NetworkStream, x: Tensor, t: Tensor, layer_path: str | None = None
    ) -> Tensor:
        """The output for x (n, *shape) and t (n,), or what enters one layer, in float32."""
        x, t = x.to(self.device, self.dtype), t.to(self.device)
        t = t.double() if self.dtype == torch.float64 else t
        with torch.no_grad(), self.numbers(stream) as network:
            if layer_path is None:
                result = network(x, t)
            else:
                result = capture_input(network, network.get_submodule(layer_path), x, t)
        if isinstance(result, Tensor) and result.is_meta:
            raise CannotStreamError("a part of it is compiled, and never asks for its weights")
        # A copy: what is returned may be a part of a parameter, whose memory is used again.
        return result.to(torch.float32 if self.dtype != torch.float64 else self.dtype, copy=True)


def _placed(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy whose tensors have this type and, where they hold numbers, are on this device."""
    module = copy.deepcopy(module)
    if dtype != torch.float32:
        module = module.to(dtype)
    for part in module.modules():
        held: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for tensors in held:
            for name, tensor in tensors.items():
                if tensor is not None and not tensor.is_meta and tensor.device != device:
                    moved = tensor.detach().to(device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    tensors[name] = nn.Parameter(moved, False) if is_parameter else moved
    return module


class StreamedStack:
    """`evaluate(streams, x, t)` for n networks, as `Stack` does it for networks that exist."""

    default_size = 1

    def __init__(
        self,
        blueprint: Streamed,
        layer_path: str | None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        self.layer_path, self.device, self.dtype = layer_path, device, dtype
        self.reason: str | None = None
        self.network = StreamedNetwork(blueprint, device, dtype)
        self.network_bytes = weight_bytes(blueprint, dtype)

    def evaluate(self, streams: list[NetworkStream], x: Tensor, t: Tensor) -> Tensor:
        """(n, ...) from n networks, x (n, *shape) and t (n,)."""
        results = []
        for i, stream in enumerate(streams):
            result = self.network(stream, x[i : i + 1], t[i : i + 1], self.layer_path)
            results.append(result.cpu())
            return_free_memory()
        stacked = torch.stack(results)
        return stacked[:, 0] if self.layer_path is None else stacked


def weight_bytes(blueprint: Streamed, dtype: torch.dtype = torch.float32) -> int:
    """Weights that are in memory at the same time: one in use, and those that are drawn ahead."""
    return 2 * dtype.itemsize * blueprint.largest[1] + AHEAD_BYTES
