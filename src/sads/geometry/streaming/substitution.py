"""Functions of PyTorch that are given parameters without memory, and what they get instead.

Numbers, which are let go when the function returns (`Substitution`); or no numbers at all, where a
network is run for the shapes of its activations (`ShapesOnly`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sads.geometry.flow import tensors_in
from sads.geometry.recorder import DEVICE, IS_META
from sads.geometry.streaming.supply import Supply

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
    """What is given a tensor without numbers gives one without numbers.

    Args:
        in_haste: shapes of common layers are found without the steps between, and without what a
            gradient needs.
    """

    def __init__(self, in_haste: bool = True):
        super().__init__()
        self._in_haste = in_haste

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _OF_THE_SHAPE and any(map(is_meta, tensors_in([*args, *kwargs.values()]))):
            args = [_without_numbers(arg) for arg in args]
            kwargs = {key: _without_numbers(arg) for key, arg in kwargs.items()}
            if self._in_haste and func in _SHAPES:
                known = _SHAPES[func](*args, **kwargs)
                if known is not None:
                    return known
        return func(*args, **kwargs)


def _linear_shape(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """A bias changes no shape."""
    fits = bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype)
    return F.linear(input, weight) if fits else None


def _group_norm_shape(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    fits = input.ndim >= 2 and num_groups > 0 and input.shape[1] % num_groups == 0
    return _like(input, input.shape[1:2], weight, bias) if fits else None


def _layer_norm_shape(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    shape = tuple(normalized_shape)
    fits = input.shape[-len(shape) :] == shape
    return _like(input, shape, weight, bias) if fits else None


def _like(x: Tensor, shape: tuple[int, ...], *parameters: Tensor | None) -> Tensor | None:
    """A tensor as large as x, if that is what a norm with these parameters returns."""
    fit = all(p is None or (p.shape == shape and p.dtype == x.dtype) for p in parameters)
    return torch.empty_like(x) if fit and x.numel() and x.is_contiguous() else None


def _attention_shape(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor | None:
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    fits = query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    if not (same and fits and query.dtype == key.dtype == value.dtype) or attn_mask is not None:
        return None
    return query.new_empty(*query.shape[:-1], value.shape[-1])


# PyTorch finds the shapes of these in Python, in milliseconds: most of the time of set-up. What
# they would refuse, or what is unusual, is left to it.
_SHAPES: dict[Function, Callable[..., Tensor | None]] = {
    F.linear: _linear_shape,
    F.group_norm: _group_norm_shape,
    F.layer_norm: _layer_norm_shape,
    F.scaled_dot_product_attention: _attention_shape,
}


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
            if not any(_is_part(tensor, numbers) for tensor in tensors_in(result)):
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


def _is_part(view: Tensor, numbers: Tensor) -> bool:
    """Is this a view of these numbers, or of a part of them?"""
    start = numbers.storage_offset()
    inside = start <= view.storage_offset() < start + max(1, len(numbers))
    return inside and view.untyped_storage()._cdata == numbers.untyped_storage()._cdata
