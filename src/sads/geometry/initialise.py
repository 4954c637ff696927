"""How a constructor draws its parameters, recorded once and replayed for stacks of networks.

Building an `nn.Module` costs far more than the random numbers in it. So we build one module
while watching which random and elementwise operations write into its parameters. That gives a
*recipe* per parameter. The recipes are accepted only if replaying them from the same random
seed reproduces the module's parameters to the bit; otherwise every network is built by its
constructor, which is slower and always right.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sads.errors import NetworkError

aten = torch.ops.aten

UNIFORM, NORMAL, TRUNCATED, CONSTANT = "uniform_", "normal_", "trunc_normal_", "fill_"
FILLS = {
    aten.uniform_.default: UNIFORM,
    aten.normal_.default: NORMAL,
    aten.fill_.Scalar: CONSTANT,
    aten.zero_.default: "zero_",
}
ELEMENTWISE = {
    aten.mul_.Tensor: "mul_",
    aten.mul_.Scalar: "mul_",
    aten.div_.Tensor: "div_",
    aten.add_.Tensor: "add_",
    aten.add_.Scalar: "add_",
    aten.sub_.Tensor: "sub_",
    aten.erfinv_.default: "erfinv_",
    aten.clamp_.default: "clamp_",
}
CREATORS = {
    aten.randn.default: (NORMAL, (0.0, 1.0)),
    aten.rand.default: (UNIFORM, (0.0, 1.0)),
}
DERIVED = {aten.mul.Tensor: "mul_", aten.div.Tensor: "div_", aten.add.Tensor: "add_"}
ALIASES = (aten.clone.default,)
FloatArray = NDArray[np.float64]
QUANTILES = 1 << 16
AFFINE = ("mul_", "div_", "add_", "sub_")
ODD = np.uint64(0x0001_0001_0001_0001)


@dataclass(frozen=True)
class Step:
    """One in-place operation on a view of a parameter's storage."""

    op: str
    args: tuple[Any, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def covers(self, numel: int) -> bool:
        """Does the view reach every element of a storage of `numel` elements once?"""
        dense = sorted((s, n) for s, n in zip(self.stride, self.size, strict=True) if n > 1)
        expected = 1
        for stride, length in dense:
            if stride != expected:
                return False
            expected *= length
        return self.offset == 0 and math.prod(self.size) == numel == expected

    @property
    def is_fill(self) -> bool:
        return self.op in (UNIFORM, NORMAL, TRUNCATED, CONSTANT, "zero_")


@dataclass(frozen=True)
class Law:
    """Mean and variance of the independent, identically distributed entries of a parameter."""

    mean: float
    variance: float


@dataclass(frozen=True)
class Recipe:
    """The steps that draw one parameter. A parameter that never varies has a `value` instead."""

    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    value: Tensor | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def law(self) -> Law | None:
        """The law of the entries if they are iid, else None.

        Entries are iid if every step acts on all of them alike. A single draw has moments in
        closed form; for a longer chain (a truncated normal, say) the chain is a function of one
        draw, and its moments are integrals over the quantiles of that draw.
        """
        if self.value is not None:
            entry = float(self.value.flatten()[0]) if self.numel else 0.0
            return Law(entry, 0.0) if bool((self.value == entry).all()) else None
        if not all(step.covers(self.numel) for step in self.steps):
            return None
        first, *chain = self.steps
        if first.op in (UNIFORM, NORMAL, TRUNCATED) and all(s.op in AFFINE for s in chain):
            return _affine_law(first, chain)
        grid = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
        if first.op == UNIFORM:
            low, high = first.args
            grid = low + (high - low) * grid
        elif first.op in (NORMAL, TRUNCATED):
            grid = torch.from_numpy(_truncated_normal(grid.numpy(), *first.args))
        else:
            return None
        for step in chain:
            getattr(grid, step.op)(*step.args)
        return Law(float(grid.mean()), float(grid.var(correction=0)))


def _affine_law(first: Step, chain: list[Step]) -> Law:
    """Moments of one draw that was scaled and shifted, in closed form."""
    if first.op == UNIFORM:
        low, high = first.args
        mean, variance = (low + high) / 2, (high - low) ** 2 / 12
    else:
        center, deviation, *bounds = first.args
        a, b = ((z - center) / deviation for z in bounds or (-math.inf, math.inf))
        weight = float(special.ndtr(b) - special.ndtr(a))
        density_a, density_b = (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b))
        shift = (density_a - density_b) / weight
        slope = sum(
            s * z * d for s, z, d in ((1, a, density_a), (-1, b, density_b)) if math.isfinite(z)
        )
        mean = center + deviation * shift
        variance = deviation**2 * (1 + slope / weight - shift**2)
    for step in chain:
        (value,) = step.args
        if step.op in ("mul_", "div_"):
            factor = value if step.op == "mul_" else 1 / value
            mean, variance = mean * factor, variance * factor**2
        else:
            mean += value if step.op == "add_" else -value
    return Law(mean, variance)


def _truncated_normal(
    u: FloatArray, mean: float, deviation: float, low: float = -math.inf, high: float = math.inf
) -> FloatArray:
    """Quantiles `u` of a normal law restricted to [low, high]."""
    start, stop = special.ndtr([(low - mean) / deviation, (high - mean) / deviation])
    quantiles: FloatArray = mean + deviation * special.ndtri(start + (stop - start) * u)
    return quantiles.clip(low, high)


@dataclass
class _Event:
    storage: int
    numel: int  # of the storage
    step: Step
    source: int | None = None  # the storage that this one started as a copy of


class _Recorder(TorchDispatchMode):
    """Logs the operations that fill storages, in order; anything else marks them as unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[_Event] = []
        self.unknown: set[int] = set()
        self.alive: list[Tensor] = []  # so that no address is used twice

    def record(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            self.alive.append(out)
        seeded = kwargs.get("generator") is not None
        if func in FILLS or func in ELEMENTWISE:
            operands = _scalars(func, args[1:], kwargs)
            if operands is None or seeded:
                self.unknown.add(_storage(args[0]))
            else:
                op = FILLS.get(func) or ELEMENTWISE[func]
                self._log(args[0], op, operands)
        elif func in CREATORS and not seeded:
            self._log(out, *CREATORS[func])
        elif func in DERIVED or func in ALIASES:
            operands = _scalars(func, args[1:], {}) if func in DERIVED else ()
            if operands is None or not _same_layout(args[0], out):
                self.unknown.add(_storage(out))
            else:
                self._log(out, DERIVED.get(func, "clone"), operands, _storage(args[0]))
        elif func._schema.is_mutable:
            for arg in args:
                if isinstance(arg, Tensor):
                    self.unknown.add(_storage(arg))
        return out

    @contextmanager
    def truncated_normals(self) -> Iterator[None]:
        """Log `nn.init.trunc_normal_` as one step; what it does inside is rejection sampling."""
        original = getattr(nn.init, "_no_grad_trunc_normal_", None)
        if original is None:
            yield
            return

        def logged(tensor: Tensor, *args: Any, generator: torch.Generator | None = None) -> Tensor:
            with _disable_current_modes():
                original(tensor, *args, generator=generator)
            if generator is None:
                self._log(tensor, TRUNCATED, args)
            else:
                self.unknown.add(_storage(tensor))
            return tensor

        with mock.patch.object(nn.init, "_no_grad_trunc_normal_", logged):
            yield

    def _log(
        self, target: Tensor, op: str, args: tuple[Any, ...], source: int | None = None
    ) -> None:
        step = Step(
            op, args, tuple(target.shape), tuple(target.stride()), int(target.storage_offset())
        )
        numel = target.untyped_storage().nbytes() // target.itemsize
        self.events.append(_Event(_storage(target), numel, step, source))


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
_Recorder.__torch_dispatch__ = _Recorder.record  # type: ignore[method-assign,assignment]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_layout(source: Tensor, target: Tensor) -> bool:
    return (
        isinstance(source, Tensor)
        and source.dtype == target.dtype
        and source.shape == target.shape
        and source.stride() == target.stride()
        and source.storage_offset() == target.storage_offset()
        and source.untyped_storage().nbytes() == target.untyped_storage().nbytes()
    )


def _scalars(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The plain-number operands of a call, or None if there are tensors among them."""
    if func is aten.uniform_.default:
        return (*args, *(0.0, 1.0)[len(args) :])
    if func is aten.normal_.default:
        return (*args, *(0.0, 1.0)[len(args) :])
    values = [a.item() if isinstance(a, Tensor) and a.ndim == 0 else a for a in args]
    if any(isinstance(v, Tensor) for v in values) or kwargs.get("alpha", 1) != 1:
        return None
    return tuple(values)


class Initialiser:
    """Draws the parameters and buffers of many networks of a family at once."""

    def __init__(self, build: Callable[[], nn.Module]):
        self._build = build
        self.recipes: dict[str, Recipe] = {}
        self.reason: str | None = None  # why recipes are not used, if they are not
        self.module = self._record()
        steps = [step for recipe in self.recipes.values() for step in recipe.steps]
        self._num_uniform = sum(math.prod(s.size) for s in steps if s.op == UNIFORM)
        self._thread = threading.local()  # memory for a stack, kept for the next one

    def _record(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            with _Recorder() as recorder, recorder.truncated_normals():
                module = self._build()
            _check_buildable(module)
            torch.manual_seed(0)
            replayed = _replay(recorder)
            torch.manual_seed(1)
            self.other = self._build()
        if self.other is module:
            raise NetworkError(
                "the factory returns the same network at every call; it must build a new one: "
                "sads.family(lambda: MyNetwork(...), shape=...)"
            )
        programs = _programs(recorder)
        others = dict(_named_tensors(self.other))
        used: set[int] = set()  # draws that a parameter stems from
        for name, tensor in _named_tensors(module):
            storage = _storage(tensor)
            steps, sources = programs.get(storage, ((), frozenset()))
            if torch.equal(tensor, others[name]):
                recipe = Recipe(tuple(tensor.shape), value=tensor.detach().clone())
            elif used & sources:
                self.reason = f"{name} starts as a copy of another parameter"
                recipe = Recipe(tuple(tensor.shape))
            elif (
                steps
                and tensor.is_contiguous()
                and tensor.untyped_storage().nbytes() == tensor.nbytes
                and tensor.dtype == torch.float32
                and torch.equal(replayed[storage].view(tensor.shape), tensor)
            ):
                recipe = Recipe(tuple(tensor.shape), steps=steps)
            else:
                self.reason = f"how {name} is initialised could not be recorded"
                recipe = Recipe(tuple(tensor.shape))
            used |= sources
            self.recipes[name] = recipe
        return module

    @property
    def is_constant(self) -> bool:
        """Do all networks have the same parameters?"""
        return all(recipe.value is not None for recipe in self.recipes.values())

    def holds_all_randomness(self, x: Tensor, t: Tensor) -> bool:
        """Do parameters and buffers make a network, with nothing random beside them?

        The second network must be the first one with its own tensors put in, and give the same
        output when it is evaluated again.
        """
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            again = [self.other(x, t) for _ in range(2)]
            tensors = dict(_named_tensors(self.other))
            replaced = torch.func.functional_call(self.module, tensors, (x, t))
        return torch.equal(*again) and torch.allclose(replaced, again[0], rtol=1e-4, atol=1e-6)

    def law(self, name: str) -> Law | None:
        """The law of a parameter's entries if it is known and iid."""
        recipe = self.recipes.get(name)
        if recipe is None or (recipe.value is None and not recipe.steps):
            return None
        return recipe.law()

    def fingerprint(self) -> str:
        """A digest of the law of the parameters: equal for families with equal initialisation."""
        digest = hashlib.sha256()
        for name, recipe in self.recipes.items():
            digest.update(repr((name, recipe.shape, recipe.steps)).encode())
            if recipe.value is not None:
                digest.update(recipe.value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def draw(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        """Parameters and buffers of one network per random stream, each (n, ...).

        They are valid until the next call from the same thread, which uses their memory again.
        """
        if self.reason is not None:
            return self._construct(streams)
        uniform = self._draw_uniform(streams)  # (n, all uniform entries of a network)
        stacks, position = {}, 0
        for name, recipe in self.recipes.items():
            if recipe.value is not None:
                stacks[name] = recipe.value.expand(len(streams), *recipe.shape)
                continue
            stack = self._buffer(name, len(streams), recipe.numel, torch.float32)
            if not recipe.steps[0].covers(recipe.numel):
                stack.zero_()  # as the replay did that was compared with the constructor
            for step in recipe.steps:
                view = stack.as_strided(
                    (len(streams), *step.size), (recipe.numel, *step.stride), step.offset
                )
                if step.op == UNIFORM:
                    count = math.prod(step.size)
                    view.copy_(uniform[:, position : position + count].view(view.shape))
                    _scale_uniform(view, *step.args)
                    position += count
                elif step.op == NORMAL:
                    _fill_normal(view, streams, *step.args)
                elif step.op == TRUNCATED:
                    for row, stream in zip(view, streams, strict=True):
                        u = stream.random(step.size)
                        row.copy_(torch.from_numpy(_truncated_normal(u, *step.args)))
                else:
                    getattr(view, step.op)(*step.args)
            stacks[name] = stack.view(len(streams), *recipe.shape)
        return stacks

    def _draw_uniform(self, streams: list[np.random.Generator]) -> Tensor:
        """Odd numbers, uniform over -32767 .. 32767: four of them from 64 random bits.

        Scaled to an interval they have the mean of the continuous uniform law and its variance
        to one part in 2^30, for a quarter of the bits; drawing those is a large part of the
        time of an estimate.
        """
        words = -(-self._num_uniform // 4)
        numbers = self._buffer(" uniform", len(streams), 4 * words, torch.int16)
        bits = numbers.numpy().view(np.uint64)  # (n, words)
        for row, stream in zip(bits, streams, strict=True):
            np.bitwise_or(stream.bit_generator.random_raw(words), ODD, out=row)
        return numbers

    def _buffer(self, name: str, n: int, numel: int, dtype: torch.dtype) -> Tensor:
        memory: dict[str, Tensor] = self._thread.__dict__
        if name not in memory or len(memory[name]) < n:
            memory[name] = torch.empty(n, numel, dtype=dtype)
        return memory[name][:n]

    def _construct(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        drawn: list[dict[str, Tensor]] = []
        for stream in streams:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(stream.integers(2**63)))
                drawn.append({k: v.detach() for k, v in _named_tensors(self._build())})
        return {k: torch.stack([d[k] for d in drawn]) for k in drawn[0]}


def _scale_uniform(odd: Tensor, low: float, high: float) -> None:
    odd.mul_((high - low) / 2 / 32768)
    if low != -high:
        odd.add_((low + high) / 2)


def _fill_normal(
    view: Tensor, streams: list[np.random.Generator], mean: float, deviation: float
) -> None:
    for row, stream in zip(view, streams, strict=True):
        row.copy_(torch.from_numpy(stream.standard_normal(tuple(row.shape), dtype=np.float32)))
    view.mul_(deviation)
    if mean:
        view.add_(mean)


def _named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _replay(recorder: _Recorder) -> dict[int, Tensor]:
    """Run all recorded events again, in order, on memory of our own."""
    memory: dict[int, Tensor] = {}
    with torch.no_grad():
        for event in recorder.events:
            step, key = event.step, event.storage
            if event.source is not None and event.source in memory:
                memory[key] = memory[event.source].clone()
            elif key not in memory:
                memory[key] = torch.zeros(event.numel)
            view = memory[key].as_strided(step.size, step.stride, step.offset)
            if step.op == TRUNCATED:
                nn.init.trunc_normal_(view, *step.args)
            elif step.op != "clone":
                getattr(view, step.op)(*step.args)
    return memory


def _programs(recorder: _Recorder) -> dict[int, tuple[tuple[Step, ...], frozenset[int]]]:
    """The steps that matter for each storage: those since it was last overwritten as a whole.

    With them, the numbers of the events that drew its random numbers: a copy shares these.
    """
    programs: dict[int, tuple[tuple[Step, ...], frozenset[int]]] = {}
    for number, event in enumerate(recorder.events):
        step, key = event.step, event.storage
        steps, sources = programs.get(key, ((), frozenset()))
        if event.source is not None:
            steps, sources = programs.get(event.source, ((), frozenset()))
        if step.is_fill and step.covers(event.numel):
            steps, sources = (), frozenset()
        if step.is_fill:
            sources = sources | {number}
        programs[key] = (steps if step.op == "clone" else (*steps, step), sources)
    return {k: p for k, p in programs.items() if p[0] and k not in recorder.unknown}


def _check_buildable(module: nn.Module) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise NetworkError(
            "the network has lazy layers, whose parameters have no size yet; give sizes"
        )
