"""What the numbers of a tensor depend on, followed through the operations that make them.

Memory has *sources*: the random draws, parameters or inputs that went into it. What an operation
writes stems from all that the operation was given. A number that leaves PyTorch (`item()`, `if`,
`numpy()`) cannot be followed: whatever is written afterwards may depend on it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

Sources = frozenset[str]  # by name
NOTHING: Sources = frozenset()
READ = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
READ_AT_ONCE = (Tensor.numpy, Tensor.tolist, Tensor.__array__)  # no operation, only a function
RANDOM = torch.Tag.nondeterministic_seeded


class Flow:
    """The sources of all memory that was seen.

    Args:
        spreads: do numbers that were read go into all that is written afterwards? If not, only
            `escaped` tells of them.
    """

    def __init__(self, spreads: bool = True) -> None:
        self._spreads = spreads
        self.escaped = NOTHING  # of numbers that were read: of all that is written from now on
        self._sources: dict[int, Sources] = {}
        self._alive: list[UntypedStorage] = []  # so that no address is used twice
        self._num_draws = 0

    def of(self, tensor: Tensor) -> Sources:
        """The sources of a tensor's numbers."""
        return self._sources.get(_address(tensor), NOTHING)

    def mark(self, tensor: Tensor, source: str) -> None:
        """A tensor's numbers are a source of their own."""
        self._write(tensor, self.of(tensor) | {source})

    def fill(self, tensor: Tensor, source: str | None, whole: bool) -> None:
        """A tensor is filled, with numbers of a source of their own or of none.

        Args:
            whole: is that all of its memory?
        """
        new = NOTHING if source is None else frozenset({source})
        self._write(tensor, self._everywhere | new | (NOTHING if whole else self.of(tensor)))

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """One operation was done."""
        given = self._everywhere.union(*map(self.of, tensors_in((args, kwargs))))
        if RANDOM in func.tags:
            self._num_draws += 1
            given |= {f"draw {self._num_draws}"}
        if func in READ:
            self.escaped |= given
        for tensor in tensors_in(result):
            self._write(tensor, given)
        if func._schema.is_mutable:
            named = zip((a.name for a in func._schema.arguments), args, strict=False)
            values = {**dict(named), **kwargs}
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in tensors_in(values.get(argument.name)):
                        self._write(tensor, given)

    def read(self, values: Any) -> None:
        """Numbers have left PyTorch."""
        self.escaped = self.escaped.union(*map(self.of, tensors_in(values)))

    @property
    def _everywhere(self) -> Sources:
        return self.escaped if self._spreads else NOTHING

    def _write(self, tensor: Tensor, sources: Sources) -> None:
        address = _address(tensor)
        if sources and address not in self._sources:
            self._alive.append(tensor.untyped_storage())
        if sources or address in self._sources:
            self._sources[address] = sources


class Following(TorchDispatchMode):
    """Follows all operations of a block."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow
        self._reading = Reading(flow)

    def __enter__(self) -> "Following":
        self._reading.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._reading.__exit__(*failure)

    def watch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and follow it."""
        result = func(*args, **(kwargs or {}))
        self._flow.follow(func, args, kwargs or {}, result)
        return result


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
Following.__torch_dispatch__ = Following.watch  # type: ignore[method-assign,assignment]


class Reading(TorchFunctionMode):
    """Notes numbers that are read without any operation."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in READ_AT_ONCE:
            self._flow.read(args)
        return func(*args, **(kwargs or {}))


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors_in(value)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # on `meta` all addresses of data are 0
