"""What a constructor does: how it draws each parameter, recorded once.

Building an `nn.Module` costs far more than the random numbers in it. So we build one module
while watching which random and elementwise operations write into its parameters. That gives a
*recipe* per parameter (`laws`), by which `drawing` fills stacks of them. The recipes are accepted
only if replaying them from the seeds of two networks reproduces the parameters of both to the bit,
and if every random number went into one parameter only (`flow`); otherwise every network is built
by its constructor, which is slower and always right.

A network too large to be built is recorded without its numbers (`record_shapes`): parameters live
on PyTorch's device `meta`, everything else that the constructor makes holds values.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sads.errors import NetworkError
from sads.geometry.flow import Flow, Reading, tensors_in
from sads.geometry.laws import CONSTANT, NORMAL, RANDOM, TRUNCATED, UNIFORM, Recipe, Step
from sads.seeds import other_generators, seed_torch, seeded
from sads.shapes import format_shape

aten = torch.ops.aten

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
UNWRITTEN = (  # memory that is reserved, or looked at in another way
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.detach.default,
)
TRUNCATED_FUNCTION = "_no_grad_trunc_normal_"  # what nn.init.trunc_normal_ calls
DEVICE, IS_META = (getattr(Tensor, name).__get__ for name in ("device", "is_meta"))
_RECORDING = threading.RLock()


@dataclass(frozen=True)
class Recording:
    """One network, and how each of its parameters and buffers is drawn."""

    module: nn.Module
    recipes: dict[str, Recipe]
    reason: str | None  # why the recipes cannot be used, if they cannot
    alike: bool = True  # have all networks the same parameters?
    hidden: bool = False  # did random numbers go where nobody can follow them?


class LargeNetwork(BaseException):
    """A constructor fills more memory than it may; no `except Exception` in it is for this."""


def record(build: Callable[[], nn.Module], limit: float = math.inf) -> Recording:
    """Watch a constructor, replay what was seen, and compare with a second network.

    No more than two networks, the largest parameter and what the constructor leaves behind are
    in memory at a time. Threads record one after the other, as all constructors draw from
    PyTorch's one stream; if another thread draws from it meanwhile, the replay differs and
    networks are built by their constructor. Raises `LargeNetwork` as soon as the constructor
    fills more than `limit` bytes.
    """
    with _RECORDING:
        return _record(build, limit)


def _record(build: Callable[[], nn.Module], limit: float) -> Recording:
    recorder = _Recorder(limit)
    module = build_network(lambda: recorder.watch(build), 0)
    recorder.check_held()  # a constructor may have gone on after the error
    _check_sizes(module)
    tensors = dict(named_tensors(module))
    seen = _Watched.of(recorder, module)
    first = _replayed_storages(recorder, tensors, 0)
    recorder.let_go()  # of all tensors that the constructor made on its way
    other = build_network(build, 1)
    _check_another(module, other)
    others = dict(named_tensors(other))
    if why := _unlike(tensors, others):
        return _unknown(module, why, alike=False)
    second = _replayed_storages(recorder, tensors, 1, others)
    recipes, reason = {}, seen.reason
    for name, tensor in tensors.items():
        shape, storage = tuple(tensor.shape), _storage(tensor)
        recipes[name] = Recipe(shape)
        if seen.reason is not None:
            continue
        if name in seen.entangled:
            reason = seen.entangled[name]
        elif name not in seen.random and torch.equal(tensor, others[name]):
            recipes[name] = Recipe(shape, value=_kept(tensor))
        elif name in seen.programs and storage in first & second:
            recipes[name] = Recipe(shape, steps=seen.programs[name])
        else:
            reason = f"how {name} is initialised could not be recorded"
    return Recording(module, recipes, reason, hidden=seen.hidden)


@dataclass(frozen=True)
class _Watched:
    """What watching a constructor has shown of its parameters and buffers, by name."""

    programs: Mapping[str, tuple[Step, ...]]  # the steps that matter
    random: frozenset[str]  # those that stem from random numbers
    entangled: Mapping[str, str]  # why others that share random numbers are not independent
    reason: str | None  # why nothing of this can be relied on
    hidden: bool

    @classmethod
    def of(cls, recorder: "_Recorder", module: nn.Module) -> "_Watched":
        tensors, flow = dict(named_tensors(module)), recorder.flow
        programs = _programs(recorder)
        owners: dict[str, str] = {}  # the first parameter that a random number went into
        entangled: dict[str, str] = {}
        for name, tensor in tensors.items():
            for source in flow.of(tensor):
                first = owners.setdefault(source, name)
                if first != name:
                    entangled[name] = f"{name} has random numbers of {first}"
                    entangled.setdefault(first, f"{first} has random numbers of {name}")
        elsewhere = (
            "its constructor draws random numbers from NumPy or Python, which nobody can follow"
        )
        known = {_storage(tensor) for tensor in tensors.values()}
        beside = any(
            flow.of(value)
            for part in module.modules()
            for value in tensors_in(list(vars(part).values()))
            if _storage(value) not in known
        )
        return cls(
            programs={
                name: programs[_storage(tensor)]
                for name, tensor in tensors.items()
                if _storage(tensor) in programs and flow.of(tensor) <= recorder.draws
            },
            random=frozenset(name for name, tensor in tensors.items() if flow.of(tensor)),
            entangled=entangled,
            reason=elsewhere if recorder.drew_elsewhere else None,
            hidden=recorder.drew_elsewhere or bool(flow.escaped) or beside,
        )


def _unlike(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> str | None:
    """In what the parameters of two networks differ beside their numbers."""
    for name in [*tensors, *others]:
        sizes = [tuple(t[name].shape) if name in t else None for t in (tensors, others)]
        if sizes[0] != sizes[1]:
            one, another = (
                "missing" if s is None else format_shape(s) or "a number" for s in sizes
            )
            return f"{name} is {one} in one network and {another} in another"
    return None


def _unknown(module: nn.Module, reason: str, alike: bool = True) -> Recording:
    recipes = {name: Recipe(tuple(tensor.shape)) for name, tensor in named_tensors(module)}
    return Recording(module, recipes, reason, alike=alike, hidden=True)


@dataclass(frozen=True)
class ShapesRecording(Recording):
    """A network whose parameters hold no numbers, and how each of them would be drawn."""

    other: nn.Module = field(default_factory=nn.Module)  # of a second call, after another seed


def record_shapes(build: Callable[[], nn.Module]) -> ShapesRecording:
    """Watch a constructor whose parameters never get any memory.

    A parameter is moved to `meta` when a module registers it, if nothing was written to it before;
    what the constructor does to it then is seen as ever, but nothing can be compared with it. So
    a recipe counts only if its first step fills the parameter and every later one is known.
    Tensors that are no parameters, and parameters that are made of such, hold their values.
    """
    with _RECORDING:
        return _record_shapes(build)


def _record_shapes(build: Callable[[], nn.Module]) -> ShapesRecording:
    recorder, second = _Recorder(), _Recorder()

    def watched(by: _Recorder) -> nn.Module:
        with _parameters_on_meta(by):
            return by.watch(build)

    module = build_network(lambda: watched(recorder), 0)
    _check_sizes(module)
    other = build_network(lambda: watched(second), 1)
    _check_another(module, other)
    tensors, others = dict(named_tensors(module)), dict(named_tensors(other))
    seen, again = _Watched.of(recorder, module), _Watched.of(second, other)
    recipes: dict[str, Recipe] = {}
    reason = seen.reason or again.reason or _unlike(tensors, others)
    replayed = set() if reason else _replayed_storages(recorder, tensors, 0)
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        recipes[name] = Recipe(shape)
        if reason is not None:
            continue
        steps = seen.programs.get(name, ())
        numel = tensor.untyped_storage().nbytes() // max(1, tensor.itemsize)
        filled = bool(steps) and steps[0].is_fill and steps[0].covers(numel)
        whole = tensor.is_contiguous() and numel == tensor.numel()
        if name in seen.entangled:
            reason = seen.entangled[name]
        elif not (tensor.is_meta or name in seen.random) and torch.equal(tensor, others[name]):
            recipes[name] = Recipe(shape, value=_kept(tensor))
        elif tensor.is_meta and not (filled and whole):
            reason = f"how {name} is initialised cannot be known without its numbers"
        elif not tensor.is_meta and _storage(tensor) not in replayed:
            reason = f"how {name} is initialised could not be recorded"
        elif steps != again.programs.get(name):
            reason = f"{name} is not initialised in the same way in every network"
        elif not any(step.op in RANDOM for step in steps):
            recipes[name] = Recipe(shape, value=_constant(shape, steps, tensor.dtype))
        elif tensor.dtype != torch.float32:
            reason = f"{name} is drawn in {tensor.dtype}, not in single precision"
        else:
            recipes[name] = Recipe(shape, steps=steps)
    for by in (recorder, second):
        by.let_go()
    return ShapesRecording(module, recipes, reason, hidden=seen.hidden, other=other)


@contextmanager
def _parameters_on_meta(recorder: "_Recorder") -> Iterator[None]:
    """Parameters of modules that are built in this thread get no memory while the block runs."""
    building_thread = threading.get_ident()

    def without_memory(
        _module: nn.Module, _name: str, parameter: nn.Parameter
    ) -> nn.Parameter | None:
        if threading.get_ident() != building_thread or type(parameter) is not nn.Parameter:
            return None
        with _disable_current_modes():
            if _on_meta(parameter) or recorder.has_written(parameter):
                return None
            empty = torch.empty_like(parameter, device="meta")
            return nn.Parameter(empty, requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]
    try:
        with _AsIfReal():
            yield
    finally:
        handle.remove()


class _AsIfReal(TorchFunctionMode):
    """Tensors on `meta` say that they are on the CPU.

    Else some ways of initialising them do nothing, as they know that nobody will see it.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func == IS_META:
            return False
        return torch.device("cpu") if func == DEVICE and result.type == "meta" else result


def _constant(shape: tuple[int, ...], steps: tuple[Step, ...], dtype: torch.dtype) -> Tensor:
    """What steps without a random one give; one number for all entries takes no more memory."""
    if all(step.covers(math.prod(shape)) for step in steps):
        value = torch.zeros(1, dtype=dtype)
        for step in steps:
            getattr(value, step.op)(*step.args)
        return value[0].expand(shape)
    value = torch.zeros(math.prod(shape), dtype=dtype)
    for step in steps:
        getattr(value.as_strided(step.size, step.stride, step.offset), step.op)(*step.args)
    return value.reshape(shape)


def _check_sizes(module: nn.Module) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise NetworkError(
            "the network has lazy layers, whose parameters have no size yet; give sizes"
        )


def _check_another(module: nn.Module, other: nn.Module) -> None:
    if other is module:
        raise NetworkError(
            "the factory returns the same network at every call; it must build a new one: "
            "sads.family(lambda: MyNetwork(...), shape=...)"
        )


def build_network(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network that the constructor gives after a seed; all global streams are left alone."""
    with seeded(seed):
        return build()


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers of a network."""
    return [*module.named_parameters(), *module.named_buffers()]


@dataclass
class _Event:
    storage: int
    numel: int  # of the storage
    step: Step
    source: int | None = None  # the storage that this one started as a copy of
    on_meta: bool = False


class _Recorder(TorchDispatchMode):
    """Logs the operations that fill storages, in order; anything else marks them as unknown."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self._limit = limit  # bytes that may be filled
        self._held = 0
        self.flow = Flow()
        self.draws: set[str] = set()  # the sources of random numbers that recipes can draw
        self.drew_elsewhere = False  # from NumPy's or Python's generators
        self.events: list[_Event] = []
        self.unknown: set[int] = set()
        self.alive: list[Tensor] = []  # so that no address is used twice
        self._written: set[int] = set()

    def watch(self, build: Callable[[], nn.Module]) -> nn.Module:
        """The network that a constructor makes while it is recorded."""
        before = other_generators()
        with self, Reading(self.flow), self.truncated_normals():
            network = build()
        self.drew_elsewhere = other_generators() != before
        return network

    def let_go(self) -> None:
        """Hold no tensors that the constructor made any longer; where they were is known still."""
        self.alive.clear()
        self.flow = Flow()

    def record(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Normal numbers without memory are nothing to fill, and PyTorch would import its compiler.
        nothing = func is aten.normal_.default and _on_meta(args[0])
        if func in FILLS and self._limit < math.inf:
            self._count(args[0])  # before it takes any memory
        out = args[0] if nothing else func(*args, **kwargs)
        if isinstance(out, Tensor) and func not in UNWRITTEN:
            self._keep(out)
        if kwargs.get("generator") is None and self._is_logged(func, args, kwargs, out):
            return out
        self.flow.follow(func, args, kwargs, out)
        if func._schema.is_mutable:
            written = args
        else:
            written = (out,) if func in DERIVED or func in ALIASES else ()
        for tensor in written:
            if isinstance(tensor, Tensor):
                self._forget(tensor)
        return out

    def _is_logged(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> bool:
        """Log an operation if a recipe can say what it does, and say whether it can."""
        if func in CREATORS:
            self._log(out, *CREATORS[func])
            return True
        if func in FILLS or func in ELEMENTWISE:
            operands = _scalars(func, args[1:], kwargs)
            target, op = args[0], FILLS.get(func) or ELEMENTWISE[func]
        elif func in DERIVED or func in ALIASES:
            operands = _scalars(func, args[1:], {}) if func in DERIVED else ()
            target, op = out, DERIVED.get(func, "clone")
            if not _same_layout(args[0], out):
                return False
        else:
            return False
        if operands is None:
            return False
        self._log(target, op, operands, None if target is args[0] else _storage(args[0]))
        if func not in FILLS:
            self.flow.follow(func, args, kwargs, out)
        return True

    @contextmanager
    def truncated_normals(self) -> Iterator[None]:
        """Log `nn.init.trunc_normal_` as one step; what it does inside is rejection sampling.

        PyTorch's function is replaced while the block runs; what other threads draw meanwhile is
        drawn as ever and not logged.
        """
        original = getattr(nn.init, TRUNCATED_FUNCTION, None)
        if original is None:
            yield
            return
        recording_thread = threading.get_ident()

        def logged(tensor: Tensor, *args: Any, generator: torch.Generator | None = None) -> Tensor:
            if threading.get_ident() != recording_thread:
                return original(tensor, *args, generator=generator)
            self._count(tensor)
            if not _on_meta(tensor):
                with _disable_current_modes():
                    original(tensor, *args, generator=generator)
            if generator is None:
                self._log(tensor, TRUNCATED, args)
            else:
                self._forget(tensor)
                self.flow.fill(tensor, f"draw of a stream {len(self.events)}", whole=False)
            return tensor

        setattr(nn.init, TRUNCATED_FUNCTION, logged)
        try:
            yield
        finally:
            setattr(nn.init, TRUNCATED_FUNCTION, original)

    def has_written(self, tensor: Tensor) -> bool:
        """Was anything done to this tensor's memory since it was reserved?"""
        return _storage(tensor) in self._written

    def _keep(self, tensor: Tensor) -> None:
        self.alive.append(tensor)
        self._count(tensor)

    def _count(self, tensor: Tensor) -> None:
        """Its memory is written to; the first time it is added to what is held."""
        storage = _storage(tensor)
        if storage in self._written:
            return
        self._written.add(storage)
        self._held += 0 if _on_meta(tensor) else tensor.untyped_storage().nbytes()
        self.check_held()

    def check_held(self) -> None:
        if self._held > self._limit:
            raise LargeNetwork

    def _forget(self, target: Tensor) -> None:
        """Something was done to a tensor that no recipe can say."""
        self._keep(target)
        self.unknown.add(_storage(target))

    def _log(
        self, target: Tensor, op: str, args: tuple[Any, ...], source: int | None = None
    ) -> None:
        self._keep(target)
        step = Step(
            op, args, tuple(target.shape), tuple(target.stride()), int(target.storage_offset())
        )
        numel = target.untyped_storage().nbytes() // target.itemsize
        if step.is_fill:
            draw = f"event {len(self.events)}" if op in RANDOM else None
            self.flow.fill(target, draw, whole=step.covers(numel))
            self.draws |= {draw} if draw else set()
        self.events.append(_Event(_storage(target), numel, step, source, _on_meta(target)))


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
_Recorder.__torch_dispatch__ = _Recorder.record  # type: ignore[method-assign,assignment]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # on `meta` all addresses of data are 0


def _on_meta(tensor: Tensor) -> bool:
    """Has a tensor no numbers, whatever it says itself?"""
    return tensor.untyped_storage().device.type == "meta"


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
    values = [
        a.item() if isinstance(a, Tensor) and a.ndim == 0 and not a.is_meta else a for a in args
    ]
    if any(isinstance(v, Tensor) for v in values) or kwargs.get("alpha", 1) != 1:
        return None
    return tuple(values)


def _kept(tensor: Tensor) -> Tensor:
    """A value to keep. Networks write to their buffers, perhaps; to parameters nobody does."""
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


def _replayed_storages(
    recorder: _Recorder,
    tensors: Mapping[str, Tensor],
    seed: int,
    others: Mapping[str, Tensor] | None = None,
) -> set[int]:
    """Run all recorded events again after a seed, in order, on memory of our own.

    Returns the storages of those parameters and buffers that come out equal to the bit, to their
    own numbers or to those of the `others`. Memory is let go after the last event that needs it.
    """
    wanted = tensors if others is None else others
    expected = {
        _storage(tensor): wanted[name].detach().reshape(-1)
        for name, tensor in tensors.items()
        if not tensor.is_meta
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and tensor.dtype == torch.float32
    }
    last: dict[int | None, int] = {}
    for number, event in enumerate(recorder.events):
        last[event.storage] = last[event.source] = number
    memory: dict[int, Tensor] = {}
    right: set[int] = set()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seed_torch(seed)
        for number, event in enumerate(recorder.events):
            if event.on_meta:
                continue
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
            for done in (key, event.source):
                if done in memory and last[done] == number:
                    final = memory.pop(done)
                    if done in expected and torch.equal(final, expected[done]):
                        right.add(done)
    return right


def _programs(recorder: _Recorder) -> dict[int, tuple[Step, ...]]:
    """The steps that matter for each storage: those since it was last overwritten as a whole."""
    programs: dict[int, tuple[Step, ...]] = {}
    for event in recorder.events:
        step = event.step
        steps = programs.get(event.storage if event.source is None else event.source, ())
        if step.is_fill and step.covers(event.numel):
            steps = ()
        programs[event.storage] = steps if step.op == "clone" else (*steps, step)
    return {k: p for k, p in programs.items() if p and k not in recorder.unknown}
