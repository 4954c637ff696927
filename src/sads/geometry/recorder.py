"""Watches a constructor: which random and elementwise operations fill which memory, in order.

Every operation that a recipe can say (`laws`) becomes an event; memory that anything else writes to
is unknown. `recording` makes recipes of the events and tests them.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sads.geometry.flow import Flow, Reading
from sads.geometry.laws import CONSTANT, NORMAL, RANDOM, TRUNCATED, UNIFORM, Step
from sads.seeds import generators_kept, other_generators, seed_torch

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


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers of a network."""
    return [*module.named_parameters(), *module.named_buffers()]


class LargeNetwork(BaseException):
    """A constructor fills more memory than it may; no `except Exception` in it is for this."""


@dataclass
class Event:
    storage: int
    numel: int  # of the storage
    step: Step
    source: int | None = None  # the storage that this one started as a copy of
    on_meta: bool = False


class Recorder(TorchDispatchMode):
    """Logs the operations that fill storages, in order; anything else marks them as unknown."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self._limit = limit  # bytes that may be filled
        self._held = 0
        self.flow = Flow()
        self.draws: set[str] = set()  # the sources of random numbers that recipes can draw
        self.drew_elsewhere = False  # from NumPy's or Python's generators
        self.events: list[Event] = []
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
        self._log(target, op, operands, None if target is args[0] else storage_of(args[0]))
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
        return storage_of(tensor) in self._written

    def _keep(self, tensor: Tensor) -> None:
        self.alive.append(tensor)
        self._count(tensor)

    def _count(self, tensor: Tensor) -> None:
        """Its memory is written to; the first time it is added to what is held."""
        storage = storage_of(tensor)
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
        self.unknown.add(storage_of(target))

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
        self.events.append(Event(storage_of(target), numel, step, source, _on_meta(target)))


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
Recorder.__torch_dispatch__ = Recorder.record  # type: ignore[method-assign,assignment]


def replayed_storages(
    recorder: Recorder,
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
        storage_of(tensor): wanted[name].detach().reshape(-1)
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
    with generators_kept(), torch.no_grad():
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


def programs_of(recorder: Recorder) -> dict[int, tuple[Step, ...]]:
    """The steps that matter for each storage: those since it was last overwritten as a whole."""
    programs: dict[int, tuple[Step, ...]] = {}
    for event in recorder.events:
        step = event.step
        steps = programs.get(event.storage if event.source is None else event.source, ())
        if step.is_fill and step.covers(event.numel):
            steps = ()
        programs[event.storage] = steps if step.op == "clone" else (*steps, step)
    return {k: p for k, p in programs.items() if p and k not in recorder.unknown}


@contextmanager
def parameters_on_meta(recorder: "Recorder") -> Iterator[None]:
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


def storage_of(tensor: Tensor) -> int:
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
