"""Layers for one CPU core, as functions that autograd knows: equal to PyTorch's up to rounding.

3x3 convolutions of many channels use Winograd's algorithm, with a quarter of the multiplications,
and normalisation takes SiLU along in one pass; both are written in C (`kernels.c`). Their images
have channels last in memory (`torch.channels_last`), whatever they are given.

A NaN, an infinity or a number near the largest spoils the tile of 4x4 pixels that it is in and
those beside it, where PyTorch's convolutions spoil its neighbours only.

What they take is asked beforehand (`suits_convolution`, `suits_norm`), for C code would read past
the end of memory, or take doubles for floats.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sads.cpu.c_code import library

WIDE = 16  # the C code takes this many channels at a time
FEW_CHANNELS = 4
CHANNELS_PER_TILE = 4  # with more channels for each tile, PyTorch's convolutions are faster


def suits_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are float32 images and 3x3 kernels that fit each other."""
    return (
        _are_images(x)
        and weight.ndim == 4
        and weight.shape[1:] == (x.shape[1], 3, 3)
        and weight.numel() > 0
        and _is_plain(weight)
        and (bias is None or (bias.shape == weight.shape[:1] and _is_plain(bias)))
    )


def suits_norm(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether these are float32 images of many channels, with a weight and a bias for each."""
    return (
        _are_images(x)
        and x.shape[1] % WIDE == 0
        and num_groups > 0
        and x.shape[1] % num_groups == 0
        and all(t is not None and t.shape == x.shape[1:2] and _is_plain(t) for t in (weight, bias))
    )


def _are_images(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim == 4 and x.numel() > 0


def _is_plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    points: Tensor | None = None,
    shift: Tensor | None = None,
    rest: Tensor | None = None,
) -> Tensor:
    """The convolution with many 3x3 kernels and a border of one zero.

    Args:
        points: `at_points(weight)`, if somebody has kept them.
        shift: (N, K) to add, a number for every sample and channel.
        rest: something like the result to add to it.
    """
    if shift is not None:
        bias = shift if bias is None else shift + bias
    if points is not None and not torch.is_grad_enabled():
        return _winograd(x, points, bias, rest)
    return _Winograd.apply(x, weight, bias, rest)


def is_winograd(x: Tensor, weight: Tensor) -> bool:
    """Whether `convolve` takes these, and is faster than PyTorch's."""
    return is_wide_kernel(weight) and max(weight.shape[:2]) <= CHANNELS_PER_TILE * _num_tiles(x)


def is_wide_kernel(weight: Tensor) -> bool:
    """Whether these are 3x3 kernels for which `at_points` is made."""
    return (
        weight.ndim == 4
        and weight.shape[2:] == (3, 3)
        and weight.numel() > 0
        and weight.shape[0] % WIDE == weight.shape[1] % WIDE == 0
        and _is_plain(weight)
    )


def convolve_few(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with few channels on one side, or few tiles.

    To few channels: a matrix product over channels first, then the sum of nine shifts. Otherwise
    PyTorch's, but with the output as the other layers want it.
    """
    num_outputs, num_inputs = weight.shape[:2]
    if not num_outputs <= FEW_CHANNELS < num_inputs:
        y = F.conv2d(x, weight, bias, padding=1)
        few = num_inputs <= FEW_CHANNELS < num_outputs
        return images(y) if few or is_wide_kernel(weight) else y
    weight = weight.flip(2, 3).permute(0, 2, 3, 1).flatten(0, 2)  # (K 9, C)
    shifts = torch.bmm(weight.expand(len(x), -1, -1), x.flatten(2))
    y = F.fold(shifts, x.shape[2:], 3, padding=1)
    return y if bias is None else y + bias[:, None, None]


def norm_silu(x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Group normalisation, then SiLU."""
    return _NormSiLU.apply(x, weight, bias, num_groups, eps)


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axes = (2, 3) if bias is not None and bias.ndim == 2 else (0, 2, 3)
        return _winograd(x, at_points(weight), bias, rest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = None
        of_bias = gradient.sum(ctx.axes) if ctx.needs_input_grad[2] else None
        of_rest = gradient if ctx.needs_input_grad[3] else None
        if torch.is_grad_enabled():  # a network differentiates in its forward pass
            of_x, of_weight, _ = torch.ops.aten.convolution_backward(
                gradient,
                x,
                weight,
                None,
                [1, 1],
                [1, 1],
                [1, 1],
                False,
                [0, 0],
                1,
                [*ctx.needs_input_grad[:2], False],
            )
            return of_x, of_weight, of_bias, of_rest
        if ctx.needs_input_grad[0]:
            of_x = _winograd(gradient, at_points(weight, adjoint=True))
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(x, gradient)
        return of_x, of_weight, of_bias, of_rest


def at_points(weight: Tensor, adjoint: bool = False) -> Tensor:
    """`G w G^T`, (36, C, K), of kernels (K, C, 3, 3); of the adjoint convolution (36, K, C)."""
    k, c = weight.shape[:2]
    points = weight.new_empty(36, *((k, c) if adjoint else (c, k)))
    library().kernel_points(weight.data_ptr(), points.data_ptr(), k, c, adjoint)
    return points


def _winograd(
    x: Tensor, points: Tensor, bias: Tensor | None = None, rest: Tensor | None = None
) -> Tensor:
    """Bias (K), or one for every sample (N, K)."""
    c, k = points.shape[1:]
    x, step = _pixels(x)
    shape = (x.shape[0], k, *x.shape[2:])
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    bias_step = 0 if bias is None or bias.ndim == 1 else k
    if bias is not None:
        bias = bias.float().expand((len(x), k) if bias_step else (k,)).contiguous()
    if rest is not None:
        rest = images(rest.float().expand_as(y))
    u, b, r, o = (None if t is None else t.data_ptr() for t in (points, bias, rest, y))
    sizes = (len(x), c, k, *x.shape[2:])
    if library().convolve(x.data_ptr(), step, u, b, bias_step, r, o, *sizes):
        raise MemoryError(f"there is no memory for a convolution of {tuple(x.shape)}")
    return y


def _weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    (x, step_x), (g, step_g) = _pixels(x), _pixels(gradient)
    n, c, height, width = x.shape
    of_weight = x.new_empty(g.shape[1], c, 3, 3)
    pointers = (x.data_ptr(), step_x, g.data_ptr(), step_g, of_weight.data_ptr())
    if library().weight_gradient(*pointers, n, c, g.shape[1], height, width):
        raise MemoryError(f"there is no memory for the gradient of a convolution of {x.shape}")
    return of_weight


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float
    ) -> Tensor:
        moments = x.new_empty(len(x), 2, x.shape[1])
        ctx.save_for_backward(x, weight, bias, moments)
        ctx.num_groups, ctx.eps = num_groups, eps
        x = images(x)
        y = torch.empty_like(x)
        pointers = (t.data_ptr() for t in (x, weight, bias, y, moments))
        library().norm_silu(*pointers, *_sizes(x), num_groups, eps)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        if torch.is_grad_enabled():  # a network differentiates in its forward pass
            y = F.silu(F.group_norm(x, ctx.num_groups, weight, bias, ctx.eps))
            wanted = [t for t in (x, weight, bias) if t.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=True))
            gradients = (next(found) if t.requires_grad else None for t in (x, weight, bias))
            return *gradients, None, None
        x, gradient = images(x), images(gradient)
        of_x = torch.empty_like(x)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        tensors = (gradient, x, weight, bias, moments, of_x, of_weight, of_bias)
        pointers = (t.data_ptr() for t in tensors)
        if library().norm_silu_gradient(*pointers, *_sizes(x), ctx.num_groups):
            raise MemoryError(f"there is no memory for the gradient of {tuple(x.shape)}")
        return of_x, of_weight, of_bias, None, None


def images(x: Tensor) -> Tensor:
    """(N, C, H, W) with channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def _pixels(x: Tensor) -> tuple[Tensor, int]:
    """`x` with a pixel's channels side by side, and how far apart pixels are.

    They are further apart in a part of the channels, such as the gradient of a concatenation.
    """
    _, c, height, width = x.shape
    step = x.stride(3)
    if step >= c and x.stride() == (height * width * step, 1, width * step, step):
        return x, step
    return images(x), c


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """How many samples, pixels and channels there are."""
    return x.shape[0], x.shape[2] * x.shape[3], x.shape[1]


def _num_tiles(x: Tensor) -> int:
    return len(x) * math.ceil(x.shape[2] / 4) * math.ceil(x.shape[3] / 4)
