"""Functions of PyTorch that are given parameters without memory, and what they get instead.

Numbers, which are let go when the function returns (`Substitution`); or no numbers at all, where a
network is run for the shapes of its activations (`ShapesOnly`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sads.geometry.recording import DEVICE, IS_META
from sads.geometry.supply import Supply

Function = Callable[..., Any]


class CannotStreamError(Exception):
    """Why a network cannot be evaluated layer by layer, in words."""


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


class ShapesOnly(TorchFunctionMode):
    """What is given a tensor without numbers gives one without numbers."""

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
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
    if isinstance(arg, torch.device):  # to which something without numbers is to be moved
        return torch.device("meta")
    if type(arg) in (list, tuple):
        return type(arg)(_without_numbers(item) for item in arg)
    return arg


class Substitution(TorchFunctionMode):
    """Numbers in the place of parameters, for every function that is called with them."""

    def __init__(
        self,
        names: Mapping[int, str],
        supply: Supply,
        device: torch.device,
        dtype: torch.dtype,
    ):
        super().__init__()
        self._names, self._supply = names, supply
        self._device, self._dtype = device, dtype

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
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
