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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sads.errors import NetworkError
from sads.geometry.flow import tensors_in
from sads.geometry.laws import RANDOM, Recipe, Step
from sads.geometry.recorder import (
    Recorder,
    named_tensors,
    parameters_on_meta,
    programs_of,
    replayed_storages,
    storage_of,
)
from sads.seeds import seeded
from sads.shapes import format_shape

_RECORDING = threading.RLock()


@dataclass(frozen=True)
class Recording:
    """One network, and how each of its parameters and buffers is drawn."""

    module: nn.Module
    recipes: dict[str, Recipe]
    reason: str | None  # why the recipes cannot be used, if they cannot
    alike: bool = True  # have all networks the same parameters?
    hidden: bool = False  # did random numbers go where nobody can follow them?


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
    recorder = Recorder(limit)
    module = build_network(lambda: recorder.watch(build), 0)
    recorder.check_held()  # a constructor may have gone on after the error
    _check_sizes(module)
    tensors = dict(named_tensors(module))
    if any(tensor.is_meta for tensor in tensors.values()):
        raise NetworkError(
            "the networks are on the device 'meta', which holds no numbers: build them on the CPU"
        )
    seen = _Watched.of(recorder, module)
    first = replayed_storages(recorder, tensors, 0)
    recorder.let_go()  # of all tensors that the constructor made on its way
    other = build_network(build, 1)
    _check_another(module, other)
    others = dict(named_tensors(other))
    if why := _unlike(tensors, others):
        return _unknown(module, why, alike=False)
    second = replayed_storages(recorder, tensors, 1, others)
    recipes, reason = {}, seen.reason
    for name, tensor in tensors.items():
        shape, storage = tuple(tensor.shape), storage_of(tensor)
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
    def of(cls, recorder: "Recorder", module: nn.Module) -> "_Watched":
        tensors, flow = dict(named_tensors(module)), recorder.flow
        programs = programs_of(recorder)
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
        known = {storage_of(tensor) for tensor in tensors.values()}
        beside = any(
            flow.of(value)
            for part in module.modules()
            for value in tensors_in(list(vars(part).values()))
            if storage_of(value) not in known
        )
        return cls(
            programs={
                name: programs[storage_of(tensor)]
                for name, tensor in tensors.items()
                if storage_of(tensor) in programs and flow.of(tensor) <= recorder.draws
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
    recorder, second = Recorder(), Recorder()

    def watched(by: Recorder) -> nn.Module:
        with parameters_on_meta(by):
            return by.watch(build)

    module = build_network(lambda: watched(recorder), 0)
    _check_sizes(module)
    other = build_network(lambda: watched(second), 1)
    _check_another(module, other)
    tensors, others = dict(named_tensors(module)), dict(named_tensors(other))
    seen, again = _Watched.of(recorder, module), _Watched.of(second, other)
    recipes: dict[str, Recipe] = {}
    reason = seen.reason or again.reason or _unlike(tensors, others)
    replayed = set() if reason else replayed_storages(recorder, tensors, 0)
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
        elif not tensor.is_meta and storage_of(tensor) not in replayed:
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


def _kept(tensor: Tensor) -> Tensor:
    """A value to keep. Networks write to their buffers, perhaps; to parameters nobody does."""
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
