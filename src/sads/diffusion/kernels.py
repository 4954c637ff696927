"""Layers that are faster on one CPU core than PyTorch's, and equal up to rounding.

`fast_layers` puts them into any network for a while. 3x3 convolutions use Winograd's algorithm,
with a quarter of the multiplications, and normalisation takes SiLU along in one pass; these and 1x1
convolutions are written in C (`kernels.c`), compiled on first use and kept in the user's cache.
"""

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sads.files import replacing
from sads.networks.layers import NormSiLU
from sads.networks.unet import ResidualBlock

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-funroll-loops", "-march=native", "-std=gnu11", "-shared", "-fPIC")
LANES = 8  # floats in a vector
FEW_CHANNELS = 4

_G = torch.tensor(
    [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
    dtype=torch.float32,
    device="cpu",
)
_TO_POINTS = torch.kron(_G / 24, _G / 24)  # of a flat 3x3 kernel, (36, 9)


@contextmanager
def fast_layers(network: nn.Module, *, frozen: bool = False) -> Iterator[None]:
    """Faster layers in `network`, for one CPU core, until the block ends.

    Raises `RuntimeError` or `OSError` at once where the C code cannot be compiled.

    Args:
        frozen: the parameters will not change in the block.
    """
    chosen = [(m, type(m), new) for m in network.modules() if (new := _faster(m)) is not None]
    if chosen:
        library()
    try:
        for module, _, new in chosen:
            module.__class__ = new
            if frozen and isinstance(module, WinogradConv2d):
                module.points = at_points(module.weight.detach())
        yield
    finally:
        for module, old, _ in chosen:
            module.__class__ = old
            module.__dict__.pop("points", None)


def _faster(module: nn.Module) -> type[nn.Module] | None:
    """What a layer can be replaced by."""
    for parameter in module.parameters(recurse=False):
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return None
        if not parameter.is_contiguous():
            return None
    if type(module) is ResidualBlock:
        return FastResidualBlock
    if type(module) is NormSiLU and module.affine:
        return FastNormSiLU
    if (
        type(module) is not nn.Conv2d
        or not isinstance(module.weight, nn.Parameter)  # but what a hook computes
        or not module.stride == module.dilation == (1, 1)
        or module.groups > 1
        or module.padding_mode != "zeros"
    ):
        return None
    if module.kernel_size == (1, 1) and module.padding in ((0, 0), "same"):
        return PointwiseConv2d if module.in_channels % 4 == module.out_channels % 4 == 0 else None
    if module.kernel_size == (3, 3) and module.padding in ((1, 1), "same"):
        if module.in_channels % 16 == module.out_channels % 16 == 0:
            return WinogradConv2d
        if module.out_channels <= FEW_CHANNELS < module.in_channels:
            return FewOutputsConv2d
    return None


def _suits(x: Tensor, channels: int, ndims: Container[int] = (4,)) -> bool:
    """Whether C code may read this input; PyTorch knows what to say of others."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.ndim in ndims
        and x.shape[1] == channels
        and x.numel() > 0
    )


class PointwiseConv2d(nn.Conv2d):
    """1x1: a matrix product over channels."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not _suits(x, self.in_channels) or math.prod(x.shape[2:]) % (2 * LANES):
            return super()._conv_forward(x, weight, bias)
        return _Pointwise.apply(x, weight, bias)


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _mix_channels(x, weight.flatten(1), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, x, weight, gradient)
        x, gradient = x.contiguous(), gradient.contiguous()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _mix_channels(gradient, weight.flatten(1).T)
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight)
            n, c, pixels = _sizes(x)
            pointers = _pointers((x, gradient, of_weight))
            library().mix_gradient(*pointers, n, c, len(weight), pixels)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum((0, 2, 3))
        return of_x, of_weight, of_bias


def _mix_channels(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    n, c, pixels = _sizes(x)
    y = x.new_empty(n, len(weight), *x.shape[2:])
    a, w, b, o = (None if t is None else t.data_ptr() for t in (x, weight, bias, y))
    library().mix_channels(a, w, b, o, n, c, len(weight), pixels)
    return y


class FewOutputsConv2d(nn.Conv2d):
    """3x3 to a few channels: a matrix product over channels first, then the sum of nine shifts."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not _suits(x, self.in_channels):
            return super()._conv_forward(x, weight, bias)
        weight = weight.flip(2, 3).permute(0, 2, 3, 1).flatten(0, 2)  # (K 9, C)
        shifts = torch.bmm(weight.expand(len(x), -1, -1), x.flatten(2))
        y = F.fold(shifts, x.shape[2:], 3, padding=1)
        return y if bias is None else y + bias[:, None, None]


class WinogradConv2d(nn.Conv2d):
    """3x3 with many channels."""

    points: Tensor | None = None  # the weights at the points, if they are frozen

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not _suits(x, self.in_channels):
            return super()._conv_forward(x, weight, bias)
        return self.convolve(x, weight, bias)

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Tensor | None = None
    ) -> Tensor:
        """The convolution plus a bias (K), or one for every sample (N, K), plus `rest`."""
        if self.points is not None and weight is self.weight and not torch.is_grad_enabled():
            return _convolve(x, self.points, bias, rest)
        return _Winograd.apply(x, weight, bias, rest)


class FastResidualBlock(ResidualBlock):
    """Its sums are taken along by the convolutions."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        first, second = self.conv1, self.conv2
        if (
            not (isinstance(first, WinogradConv2d) and isinstance(second, WinogradConv2d))
            or _has_hooks(first)
            or _has_hooks(second)
            or not _suits(x, first.in_channels)
        ):
            return super().forward(x, time)
        shift = self.time(F.silu(time)) + first.bias
        h = first.convolve(self.norm1(x), first.weight, shift)
        return second.convolve(self.norm2(h), second.weight, second.bias, self.skip(x))


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.axes = (2, 3) if bias is not None and bias.ndim == 2 else (0, 2, 3)
        return _convolve(x, at_points(weight), bias, rest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = None
        of_bias = gradient.sum(ctx.axes) if ctx.needs_input_grad[2] else None
        of_rest = gradient if ctx.needs_input_grad[3] else None
        if torch.is_grad_enabled():
            of_x, of_weight, _ = _differentiable_gradients(ctx, x, weight, gradient)
            return of_x, of_weight, of_bias, of_rest
        x, gradient = x.contiguous(), gradient.contiguous()
        if ctx.needs_input_grad[0]:
            of_x = _convolve(gradient, at_points(weight, adjoint=True))
        if ctx.needs_input_grad[1]:
            points = _weight_gradient(x, gradient)  # (36, C, K)
            of_weight = (_TO_POINTS.T @ points.flatten(1)).unflatten(1, points.shape[1:])
            of_weight = of_weight.permute(2, 1, 0).contiguous().view(weight.shape)
        return of_x, of_weight, of_bias, of_rest


def _differentiable_gradients(
    ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """For networks that differentiate in their forward pass; ours have no second derivatives."""
    padding = [weight.shape[2] // 2] * 2
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, [len(weight)], [1, 1], padding, [1, 1], False, [0, 0], 1,
        list(ctx.needs_input_grad[:3]),
    )  # fmt: skip


def at_points(weight: Tensor, adjoint: bool = False) -> Tensor:
    """`G w G^T`, (36, C, K), of kernels (K, C, 3, 3); of the adjoint convolution (36, K, C)."""
    k, c = weight.shape[:2]
    weight, points = weight.contiguous(), weight.new_empty(36, *((k, c) if adjoint else (c, k)))
    library().kernel_points(weight.data_ptr(), points.data_ptr(), k, c, adjoint)
    return points


def _convolve(
    x: Tensor, points: Tensor, bias: Tensor | None = None, rest: Tensor | None = None
) -> Tensor:
    x, k = x.contiguous(), points.shape[2]
    n, c, height, width = x.shape
    if c != points.shape[1]:
        raise RuntimeError(f"expected {points.shape[1]} channels, got {c}")
    y = x.new_empty(n, k, height, width)
    own = 0 if bias is None or bias.ndim == 1 else k
    if bias is not None:
        bias = bias.float().expand((n, k) if own else (k,)).contiguous()
    if rest is not None:
        rest = rest.float().expand_as(y).contiguous()
    a, u, b, r, o = (None if t is None else t.data_ptr() for t in (x, points, bias, rest, y))
    if library().convolve(a, u, b, own, r, o, n, c, k, height, width):
        raise MemoryError(f"there is no memory for a convolution of {tuple(x.shape)}")
    return y


def _weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    n, c, height, width = x.shape
    points = x.new_zeros(len(_TO_POINTS), c, gradient.shape[1])
    pointers = (x.data_ptr(), gradient.data_ptr(), points.data_ptr())
    if library().weight_gradient(*pointers, n, c, gradient.shape[1], height, width):
        raise MemoryError(f"there is no memory for the gradient of a convolution of {x.shape}")
    return points


class FastNormSiLU(NormSiLU):
    def forward(self, x: Tensor) -> Tensor:
        if not _suits(x, self.num_channels, (3, 4, 5)) or math.prod(x.shape[2:]) % LANES:
            return super().forward(x)
        return _NormSiLU.apply(x, self.weight, self.bias, self.num_groups, self.eps)


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, moments := x.new_empty(len(x), num_groups, 2))
        ctx.eps = eps
        x = x.contiguous()
        y = torch.empty_like(x)
        tensors = (x, weight, bias, y, moments)
        library().norm_silu(*_pointers(tensors), *_sizes(x), num_groups, eps)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        if torch.is_grad_enabled():  # as in _differentiable_gradients
            y = F.silu(F.group_norm(x, moments.shape[1], weight, bias, ctx.eps))
            wanted = [t for t in (x, weight, bias) if t.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, gradient, create_graph=True))
            gradients = (next(found) if t.requires_grad else None for t in (x, weight, bias))
            return *gradients, None, None
        x = x.contiguous()
        of_x = torch.empty_like(x)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        tensors = (gradient.contiguous(), x, weight, bias, moments, of_x, of_weight, of_bias)
        library().norm_silu_gradient(*_pointers(tensors), *_sizes(x), moments.shape[1])
        return of_x, of_weight, of_bias, None, None


def _pointers(tensors: tuple[Tensor, ...]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _sizes(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled C code: from the cache, or compiled now."""
    key = hashlib.sha256("\n".join([SOURCE.read_text(), *FLAGS, _processor()]).encode())
    path = _cache() / f"kernels-{key.hexdigest()[:16]}.so"
    try:
        loaded = ctypes.CDLL(str(path))  # its functions run without the interpreter's lock
    except OSError:  # it is not there, or damaged
        _compile(path)
        loaded = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.kernel_points.argtypes = [pointer, pointer, size, size, ctypes.c_int]
    loaded.convolve.argtypes = [*[pointer] * 3, size, pointer, pointer, *[size] * 5]
    loaded.weight_gradient.argtypes = [*[pointer] * 3, *[size] * 5]
    loaded.norm_silu.argtypes = [*[pointer] * 5, *[size] * 4, ctypes.c_float]
    loaded.norm_silu_gradient.argtypes = [*[pointer] * 8, *[size] * 4]
    loaded.mix_channels.argtypes = [*[pointer] * 4, *[size] * 4]
    loaded.mix_gradient.argtypes = [*[pointer] * 3, *[size] * 4]
    return loaded


def _compile(path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("there is no C compiler")
    with replacing(path) as temporary:
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(temporary), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{compiler}: {(done.stderr.splitlines() or ['failed'])[0]}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sads"


def _processor() -> str:
    """What `-march=native` depends on: homes are shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
