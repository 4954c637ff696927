"""Networks that never exist as a whole: a layer's weights are drawn just before it runs.

The module's parameters are on PyTorch's device `meta`: they have shapes and no memory. While the
network is evaluated, every function of PyTorch that is given such a parameter gets its numbers
instead, and they are let go when the function returns. It does not matter whether a parameter
belongs to a layer, is used by itself, by several layers (tied weights) or several times: whoever
asks for it gets the same numbers, drawn again.

A network's numbers come from one random stream (`drawing`), in the order of its parameters; the
order of its layers may be another. So the state of the generator is kept where a parameter begins,
and numbers in between are skipped: the weights are those that `Initialiser.draw` gives, to the
bit. Another thread draws ahead, as soon as the order in which parameters are used is known.
"""

import copy
import math
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sads.geometry.drawing import ODD, Blueprint, scale_uniform
from sads.geometry.laws import NORMAL, TRUNCATED, UNIFORM, Recipe, Step, truncated_normal
from sads.geometry.readout import capture_input
from sads.geometry.recording import (
    DEVICE,
    IS_META,
    Recording,
    named_tensors,
    record_shapes,
)
from sads.seeds import numpy_stream

STREAM_BYTES = 128 << 20  # of parameters; larger networks are drawn layer by layer
AHEAD_BYTES = 64 << 20  # of weights that wait for their layer; at least one parameter does
SMALL = 1 << 14  # entries; parameters up to this size stay until the network is done
WORDS = 1 << 14  # of 64 bits that are drawn at a time: they stay in the processor's cache
ATTENTION = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]
Function = Callable[..., Any]


class CannotStreamError(Exception):
    """Why a network cannot be evaluated layer by layer, in words."""


class Streamed(Blueprint):
    """A family's networks, without their numbers, and where in a random stream these are."""

    def __init__(self, build: Callable[[], nn.Module]):
        recording = record_shapes(build)
        super().__init__(recording)
        self.other = recording.other  # what the constructor gives after another seed
        self.places = _places(self.recipes)
        self._memory: dict[tuple[torch.device, torch.dtype], _Memory] = {}

    @property
    def parameter_bytes(self) -> int:
        """Of all parameters and buffers of one network, which never are in memory together."""
        return 4 * sum(recipe.numel for recipe in self.recipes.values())

    @property
    def largest(self) -> tuple[str, int]:
        """The largest parameter, and its entries."""
        sizes = {name: recipe.numel for name, recipe in self.recipes.items()}
        name = max(sizes, key=lambda n: sizes[n])
        return name, sizes[name]

    def draw(self, streams: list[np.random.Generator]) -> "list[NetworkStream]":
        """The numbers of one network per random stream; none of them is drawn yet."""
        return [NetworkStream(self.recipes, self.places, stream) for stream in streams]

    def memory(self, device: torch.device, dtype: torch.dtype) -> "_Memory":
        """For weights of one network at a time."""
        key = device, dtype
        if key not in self._memory:
            numel = weight_bytes(self, dtype) // dtype.itemsize
            self._memory = {key: _Memory(numel, device, dtype)}  # that of another type is let go
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
        with _ShapesOnly():
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


@dataclass(frozen=True)
class _Places:
    """Where in a network's random stream the numbers of every step are.

    Uniform entries come first, four to a word of 64 bits; then all others, one step after the
    other, each as many words as it happens to take.
    """

    uniform: Mapping[tuple[str, int], int]  # (parameter, number of the step) to its first entry
    starts: Sequence[int]  # words in which a uniform parameter begins, and their end; ascending
    others: Sequence[tuple[str, int]]


def _places(recipes: Mapping[str, Recipe]) -> _Places:
    uniform: dict[tuple[str, int], int] = {}
    others: list[tuple[str, int]] = []
    position = 0
    for name, recipe in recipes.items():
        for number, step in enumerate(recipe.steps):
            if step.op == UNIFORM:
                uniform[name, number] = position
                position += math.prod(step.size)
            elif step.op in (NORMAL, TRUNCATED):
                others.append((name, number))
    starts = sorted({entry // 4 for entry in uniform.values()} | {-(-position // 4)})
    return _Places(uniform, starts, others)


class NetworkStream:
    """The numbers of one network: any parameter, at any time, as often as it is wanted."""

    def __init__(self, recipes: Mapping[str, Recipe], places: _Places, stream: np.random.Generator):
        self.recipes, self._places, self._stream = recipes, places, stream
        self.moves: dict[str, Callable[[Tensor], Tensor]] = {}  # what is done to some parameters
        self._word = 0  # that the generator gives next, where uniform entries are drawn
        self._words = [0]  # where its state is known
        self._states = [stream.bit_generator.state]
        self._other_states: list[Any] = []  # before each step that is not uniform

    def fill(self, name: str, out: Tensor) -> None:
        """Write a parameter into (numel,) memory, on any device and in any precision."""
        self._fill(name, out)
        if name in self.moves:
            weight = out.view(self.recipes[name].shape)
            weight.copy_(self.moves[name](weight).clone())

    def _fill(self, name: str, out: Tensor) -> None:
        recipe = self.recipes[name]
        if recipe.value is not None:
            out.copy_(recipe.value.reshape(-1))
            return
        steps = recipe.steps
        plain = len(steps) == 1 and steps[0].op == UNIFORM and steps[0].covers(recipe.numel)
        if out.dtype != torch.float32 and not plain:
            exact = torch.empty(out.shape, device=out.device)
            self._fill(name, exact)
            out.copy_(exact)  # the numbers of single precision, rounded
            return
        if not steps[0].covers(recipe.numel):
            out.zero_()
        for number, step in enumerate(steps):
            offset = out.storage_offset() + step.offset
            view = out.as_strided(step.size, step.stride, offset)
            if step.op == UNIFORM:
                self._uniform(view, self._places.uniform[name, number], *step.args)
            elif step.op in (NORMAL, TRUNCATED):
                index = self._places.others.index((name, number))
                self._seek_other(index)
                _sequential(self._stream, step, view)
                self._leave_other(index)
            else:
                getattr(view, step.op)(*step.args)

    def _uniform(self, view: Tensor, entry: int, low: float, high: float) -> None:
        """Entries from number `entry` on, as `Initialiser` draws them."""
        self._seek(entry // 4)
        flat = view.view(-1) if view.is_contiguous() else torch.empty(view.numel())
        done, skip = 0, entry % 4
        at_once = WORDS if view.device.type == "cpu" else len(flat)  # one transfer of the bits
        while done < len(flat):
            words = min(at_once, -(-(len(flat) - done + skip) // 4))
            bits = torch.from_numpy(self._raw(words).view(np.int16))[skip:]
            part = flat[done : done + len(bits)]
            numbers = part
            if part.dtype != torch.float32:
                numbers = torch.empty(len(part), device=part.device)
            numbers.copy_(bits[: len(part)])
            scale_uniform(numbers, low, high)
            if numbers is not part:
                part.copy_(numbers)
            done, skip = done + len(part), 0
        if flat.data_ptr() != view.data_ptr():
            view.copy_(flat.view(view.shape))

    def _raw(self, count: int) -> Any:
        """Words from the generator; its state is kept where a parameter begins."""
        parts = []
        for stop in self._stops(self._word + count):
            parts.append(self._stream.bit_generator.random_raw(stop - self._word))
            self._arrive(stop)
        bits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.bitwise_or(bits, ODD, out=bits)

    def _seek(self, word: int) -> None:
        """Bring the generator to a word, from the nearest state before it that is known."""
        if word != self._word:
            nearest = bisect_right(self._words, word) - 1
            self._stream.bit_generator.state = self._states[nearest]
            self._word = self._words[nearest]
        for stop in self._stops(word):
            self._stream.bit_generator.random_raw(stop - self._word, output=False)
            self._arrive(stop)

    def _stops(self, end: int) -> list[int]:
        """`end`, and the words before it in which parameters begin."""
        starts = self._places.starts
        first, last = bisect_right(starts, self._word), bisect_left(starts, end)
        return [*starts[first:last], end] if end > self._word else []

    def _arrive(self, word: int) -> None:
        self._word = word
        at = bisect_left(self._words, word)
        known = at < len(self._words) and self._words[at] == word
        starts = self._places.starts
        place = bisect_left(starts, word)
        if not known and place < len(starts) and starts[place] == word:
            self._words.insert(at, word)
            self._states.insert(at, self._stream.bit_generator.state)

    def _seek_other(self, index: int) -> None:
        """Bring the generator to the beginning of a step that is not uniform."""
        if not self._other_states:
            self._seek(self._places.starts[-1])
            self._other_states.append(self._stream.bit_generator.state)
        self._stream.bit_generator.state = self._other_states[min(index, self._known_others)]
        while self._known_others < index:
            name, number = self._places.others[self._known_others]
            _sequential(self._stream, self.recipes[name].steps[number], None)
            self._leave_other(self._known_others)
        self._word = -1  # not in the part of the stream with uniform entries

    def _leave_other(self, index: int) -> None:
        """Keep the state after a step, where the next one begins."""
        if index == self._known_others:
            self._other_states.append(self._stream.bit_generator.state)

    @property
    def _known_others(self) -> int:
        return len(self._other_states) - 1


def _sequential(stream: np.random.Generator, step: Step, view: Tensor | None) -> None:
    """Draw the numbers of a step, a piece at a time, and write them if there is a view."""
    count = math.prod(step.size)
    whole = None if view is None else torch.empty(count)
    if view is not None and view.is_contiguous() and view.device.type == "cpu":
        whole = view.view(-1)
    for start in range(0, count, 4 * WORDS):
        size = min(4 * WORDS, count - start)
        piece = (
            stream.standard_normal(size, dtype=np.float32)
            if step.op == NORMAL
            else truncated_normal(stream.random(size), *step.args)
        )
        if whole is not None:
            whole[start : start + size] = torch.from_numpy(piece)
    if view is None or whole is None:
        return
    if whole.data_ptr() != view.data_ptr():
        view.copy_(whole.view(view.shape))
    if step.op == NORMAL:
        mean, deviation = step.args
        view.mul_(deviation)
        if mean:
            view.add_(mean)


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
        with _drawing_ahead(stream, self._order, memory) as supply:
            substitution = _Substitution(self._names, supply, self.device, self.dtype)
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
        results = [
            self.network(stream, x[i : i + 1], t[i : i + 1], self.layer_path).cpu()
            for i, stream in enumerate(streams)
        ]
        stacked = torch.stack(results)
        return stacked[:, 0] if self.layer_path is None else stacked


def weight_bytes(blueprint: Streamed, dtype: torch.dtype = torch.float32) -> int:
    """Weights that are in memory at the same time: one in use, and those that are drawn ahead."""
    return 2 * dtype.itemsize * blueprint.largest[1] + AHEAD_BYTES


class _Memory:
    """A ring of memory for weights: new pages would cost more than the numbers in them.

    Weights are used in the order in which they are drawn, so that pieces become free in the order
    in which they were taken. If there is no room (a view of some weights lives on), a piece gets
    memory of its own.
    """

    def __init__(self, numel: int, device: torch.device, dtype: torch.dtype):
        self._ring = torch.empty(numel, device=device, dtype=dtype)
        self.itemsize = dtype.itemsize
        self._lock = threading.Lock()
        self._taken: deque[tuple[int, int]] = deque()  # pieces, from the oldest on
        self._free: set[int] = set()  # beginnings of pieces that wait for older ones

    def take(self, numel: int) -> Tensor:
        """(numel,) of memory that nobody uses."""
        with self._lock:
            start = self._room(numel)
            if start is None:
                return self._ring.new_empty(numel)
            self._taken.append((start, start + numel))
        return self._ring[start : start + numel]

    def give_back(self, piece: Tensor) -> None:
        """The piece may be used again."""
        if piece.untyped_storage()._cdata != self._ring.untyped_storage()._cdata:
            return
        with self._lock:
            self._free.add(int(piece.storage_offset()))
            while self._taken and self._taken[0][0] in self._free:
                self._free.remove(self._taken.popleft()[0])

    def clear(self) -> None:
        """All pieces are free: a network is done."""
        with self._lock:
            self._taken.clear()
            self._free.clear()

    def _room(self, numel: int) -> int | None:
        if not self._taken:
            return 0 if numel <= len(self._ring) else None
        oldest, newest = self._taken[0][0], self._taken[-1][1]
        if oldest < newest:  # free: behind the newest, and before the oldest
            if newest + numel <= len(self._ring):
                return newest
            return 0 if numel < oldest else None
        return newest if newest + numel < oldest else None


class _Supply:
    """Parameters in the order in which they are asked for, drawn ahead by another thread."""

    def __init__(
        self,
        stream: NetworkStream,
        expected: Sequence[str],
        memory: _Memory,
        worker: ThreadPoolExecutor,
    ):
        self.used: list[str] = []
        self._stream, self._memory, self._worker = stream, memory, worker
        self._expected = deque(expected)
        self._waiting: deque[tuple[str, Future[Tensor]]] = deque()
        self._waiting_numel = 0
        self._small: dict[str, Tensor] = {}
        self._look_ahead()

    def take(self, name: str) -> Tensor:
        """(numel,) numbers of a parameter."""
        if name in self._small:
            return self._small[name]
        self.used.append(name)
        if self._waiting and self._waiting[0][0] != name:  # another way through the network
            self._expected.clear()
            while self._waiting:
                _, drawn = self._waiting.popleft()
                if not drawn.cancel():
                    self._memory.give_back(drawn.result())
        if self._waiting:
            _, drawn = self._waiting.popleft()
            self._waiting_numel -= self._numel(name)
            numbers = drawn.result()
            self._look_ahead()
        else:
            numbers = self._worker.submit(self._draw, name).result()
        if len(numbers) <= SMALL:
            self._small[name] = numbers.clone()
            self._memory.give_back(numbers)
            return self._small[name]
        return numbers

    def done(self, name: str, numbers: Tensor) -> None:
        """Nobody uses these numbers any more."""
        if name not in self._small:
            self._memory.give_back(numbers)

    def close(self) -> None:
        for _, drawn in self._waiting:
            if not drawn.cancel():
                with suppress(Exception):
                    self._memory.give_back(drawn.result())

    def _look_ahead(self) -> None:
        most = AHEAD_BYTES // self._memory.itemsize
        while self._expected:
            numel = self._numel(self._expected[0])
            if self._waiting and self._waiting_numel + numel > most:
                return
            name = self._expected.popleft()
            self._waiting.append((name, self._worker.submit(self._draw, name)))
            self._waiting_numel += numel

    def _numel(self, name: str) -> int:
        return self._stream.recipes[name].numel

    def _draw(self, name: str) -> Tensor:
        memory = self._memory.take(self._numel(name))
        self._stream.fill(name, memory)
        return memory


@contextmanager
def _drawing_ahead(
    stream: NetworkStream, expected: Sequence[str], memory: _Memory
) -> Iterator[_Supply]:
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        supply = _Supply(stream, expected, memory, worker)
        try:
            yield supply
        finally:
            supply.close()
            memory.clear()


_OF_THE_SHAPE = frozenset(
    getattr(Tensor, name).__get__
    for name in (
        "dtype",
        "grad",
        "grad_fn",
        "is_leaf",
        "is_mkldnn",
        "is_nested",
        "is_quantized",
        "is_sparse",
        "itemsize",
        "layout",
        "nbytes",
        "ndim",
        "requires_grad",
        "retains_grad",
        "shape",
    )
) | {
    Tensor.dim,
    Tensor.element_size,
    Tensor.is_complex,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.ndimension,
    Tensor.nelement,
    Tensor.numel,
    Tensor.size,
    Tensor.stride,
    Tensor.__len__,
    Tensor.__hash__,
    torch.is_complex,
    torch.is_floating_point,
    torch.numel,
}


class _ShapesOnly(TorchFunctionMode):
    """What is given a tensor without numbers gives one without numbers."""

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _OF_THE_SHAPE and any(map(is_meta, _tensors([*args, *kwargs.values()]))):
            args = [_without_numbers(arg) for arg in args]
            kwargs = {key: _without_numbers(arg) for key, arg in kwargs.items()}
        return func(*args, **kwargs)


def is_meta(value: Any) -> bool:
    """Is this a tensor that has a shape, but no numbers?"""
    return isinstance(value, Tensor) and value.is_meta


def _without_numbers(arg: Any) -> Any:
    if isinstance(arg, Tensor):
        return arg if arg.is_meta else arg.to("meta")
    if type(arg) in (list, tuple):
        return type(arg)(_without_numbers(item) for item in arg)
    return arg


class _Substitution(TorchFunctionMode):
    """Numbers in the place of parameters, for every function that is called with them."""

    def __init__(
        self,
        names: Mapping[int, str],
        supply: _Supply,
        device: torch.device,
        dtype: torch.dtype,
    ):
        super().__init__()
        self._names, self._supply = names, supply
        self._device, self._dtype = device, dtype

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OF_THE_SHAPE:
            return func(*args, **kwargs)
        if func in (DEVICE, IS_META) and id(args[0]) in self._names:
            return self._device if func == DEVICE else False
        taken: dict[str, Tensor] = {}
        args = [self._solid(arg, taken) for arg in args]
        kwargs = {key: self._solid(arg, taken) for key, arg in kwargs.items()}
        if taken and self._dtype != torch.float32:  # conditioning may be given in float32
            args = [_in_dtype(arg, self._dtype) for arg in args]
            kwargs = {key: _in_dtype(arg, self._dtype) for key, arg in kwargs.items()}
        result = (_group_norm if func is F.group_norm else func)(*args, **kwargs)
        for name, numbers in taken.items():
            if not any(_is_part(tensor, numbers) for tensor in _tensors(result)):
                self._supply.done(name, numbers)
        return result

    def _solid(self, arg: Any, taken: dict[str, Tensor]) -> Any:
        if isinstance(arg, Tensor):
            name = self._names.get(id(arg))
            if name is not None:
                if name not in taken:
                    taken[name] = self._supply.take(name)
                return taken[name].view(arg.shape)
            if arg.is_meta:
                raise CannotStreamError(
                    "a tensor that its constructor makes of parameters has no numbers"
                )
        elif type(arg) in (list, tuple):
            return type(arg)(self._solid(item, taken) for item in arg)
        return arg


def _in_dtype(arg: Any, dtype: torch.dtype) -> Any:
    is_number = isinstance(arg, Tensor) and arg.is_floating_point()
    return arg.to(dtype) if is_number and arg.dtype != dtype else arg


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's, which subtracts the mean last: of constant maps it leaves rounding errors.

    At `x = 0` the maps of an untrained U-Net are constant, and every further normalisation would
    make these errors 300 times as large.
    """
    grouped = input.reshape(len(input), num_groups, -1)
    centred = (grouped - grouped.mean(dim=2, keepdim=True)).view(input.shape)
    return F.group_norm(centred, num_groups, weight, bias, eps)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from _tensors(item)


def _is_part(view: Tensor, numbers: Tensor) -> bool:
    """Is this a view of these numbers, or of a part of them?"""
    start = numbers.storage_offset()
    inside = start <= view.storage_offset() < start + max(1, len(numbers))
    return inside and view.untyped_storage()._cdata == numbers.untyped_storage()._cdata
