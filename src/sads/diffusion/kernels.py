"""Layers that are faster on one CPU core than PyTorch's, and equal up to rounding.

`fast_layers` puts them into any network for a while. 3x3 convolutions use Winograd's algorithm,
with a quarter of the multiplications, and normalisation takes SiLU along in one pass; both are
written in C (`kernels.c`), compiled on first use and kept in the user's cache. Their images have
channels last in memory (`torch.channels_last`), whatever they are given.
"""

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sads.files import replacing
from sads.networks.layers import NormSiLU
from sads.networks.unet import ResidualBlock

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-funroll-loops", "-march=native", "-std=gnu11", "-shared", "-fPIC")
WIDE = 16  # the C code takes this many channels at a time
FEW_CHANNELS = 4
CHANNELS_PER_TILE = 4  # with more channels for each tile, PyTorch's convolutions are faster


@contextmanager
def fast_layers(network: nn.Module, *, frozen: bool = False) -> Iterator[None]:
    """Faster layers in `network`, for one CPU core, until the block ends.

    Raises `RuntimeError` or `OSError` at once where the C code cannot be compiled.

    Args:
        frozen: the parameters will not change in the block.
    """
    chosen = [(m, type(m), new) for m in network.modules() if (new := _faster(m)) is not None]
    if any(new is not LayoutGroupNorm for _, _, new in chosen):
        library()
    try:
        for module, _, new in chosen:
            module.__class__ = new
            if frozen and isinstance(module, WinogradConv2d):
                module.frozen = module.weight, at_points(module.weight.detach())
        yield
    finally:
        for module, old, _ in chosen:
            module.__class__ = old
            module.__dict__.pop("frozen", None)


def _faster(module: nn.Module) -> type[nn.Module] | None:
    """What a layer can be replaced by."""
    if type(module) is nn.GroupNorm:
        return LayoutGroupNorm
    if not all(map(_is_plain, module.parameters(recurse=False))):
        return None
    if type(module) is ResidualBlock:
        return FastResidualBlock
    if type(module) is NormSiLU:
        return FastNormSiLU if module.affine and module.num_channels % WIDE == 0 else None
    if (
        type(module) is not nn.Conv2d
        or not isinstance(module.weight, nn.Parameter)  # but what a hook computes
        or not module.stride == module.dilation == (1, 1)
        or module.groups > 1
        or module.padding_mode != "zeros"
        or module.padding not in ((1, 1), "same")
        or module.weight.shape != (module.out_channels, module.in_channels, 3, 3)
    ):
        return None
    if module.in_channels % WIDE == module.out_channels % WIDE == 0:
        return WinogradConv2d
    if module.in_channels <= FEW_CHANNELS < module.out_channels:
        return FewInputsConv2d
    if module.out_channels <= FEW_CHANNELS < module.in_channels:
        return FewOutputsConv2d
    return None


def _is_plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _suits(
    x: Tensor, channels: int, shape: tuple[int, ...], weight: Tensor, bias: Tensor | None
) -> bool:
    """Whether C code may read these, with weights of this shape; PyTorch knows what else to do."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.ndim == 4
        and x.shape[1] == channels
        and x.numel() > 0
        and weight.shape == shape
        and _is_plain(weight)
        and (bias is None or (bias.shape == shape[:1] and _is_plain(bias)))
    )


class FewInputsConv2d(nn.Conv2d):
    """3x3 from a few channels: PyTorch's, but with the output as the other layers want it."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = super()._conv_forward(x, weight, bias)
        return _images(y) if y.ndim == 4 else y


class FewOutputsConv2d(nn.Conv2d):
    """3x3 to a few channels: a matrix product over channels first, then the sum of nine shifts."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shape = (self.out_channels, self.in_channels, 3, 3)
        if not _suits(x, self.in_channels, shape, weight, bias):
            return super()._conv_forward(x, weight, bias)
        weight = weight.flip(2, 3).permute(0, 2, 3, 1).flatten(0, 2)  # (K 9, C)
        shifts = torch.bmm(weight.expand(len(x), -1, -1), x.flatten(2))
        y = F.fold(shifts, x.shape[2:], 3, padding=1)
        return y if bias is None else y + bias[:, None, None]


class WinogradConv2d(nn.Conv2d):
    """3x3 with many channels."""

    frozen: tuple[Tensor, Tensor] | None = None  # weights that stay, and these at the points

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.convolve(x, weight, bias)

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shift: Tensor | None = None,
        rest: Tensor | None = None,
    ) -> Tensor:
        """The convolution, plus `shift` (N, K), a number for every sample, plus `rest` (like y)."""
        shape = (self.out_channels, self.in_channels, 3, 3)
        if not (
            _suits(x, self.in_channels, shape, weight, bias)
            and max(self.in_channels, self.out_channels) <= CHANNELS_PER_TILE * _num_tiles(x)
        ):
            y = super()._conv_forward(x, weight, bias)
            y = _images(y) if y.ndim == 4 else y
            y = y if shift is None else y + shift[:, :, None, None]
            return y if rest is None else y + rest
        if shift is not None:
            bias = shift if bias is None else shift + bias
        if self.frozen and weight is self.frozen[0] and not torch.is_grad_enabled():
            return _convolve(x, self.frozen[1], bias, rest)
        return _Winograd.apply(x, weight, bias, rest)


class FastResidualBlock(ResidualBlock):
    """Its sums are taken along by the convolutions."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        first, second = self.conv1, self.conv2
        if not (_is_winograd(first) and _is_winograd(second)):
            return super().forward(x, time)
        shift = self.time(F.silu(time))
        h = first.convolve(self.norm1(x), first.weight, first.bias, shift=shift)
        return second.convolve(self.norm2(h), second.weight, second.bias, rest=self.skip(x))


def _is_winograd(module: nn.Module) -> TypeGuard[WinogradConv2d]:
    """And nobody wants to know when it is called, or has changed what it does."""
    return (
        isinstance(module, WinogradConv2d)
        and "forward" not in vars(module)
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and not _has_any_global_hook()
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
        if torch.is_grad_enabled():  # a network differentiates in its forward pass
            of_x, of_weight, _ = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                [*ctx.needs_input_grad[:2], False],
            )  # fmt: skip
            return of_x, of_weight, of_bias, of_rest
        if ctx.needs_input_grad[0]:
            of_x = _convolve(gradient, at_points(weight, adjoint=True))
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(x, gradient)
        return of_x, of_weight, of_bias, of_rest


def at_points(weight: Tensor, adjoint: bool = False) -> Tensor:
    """`G w G^T`, (36, C, K), of kernels (K, C, 3, 3); of the adjoint convolution (36, K, C)."""
    k, c = weight.shape[:2]
    points = weight.new_empty(36, *((k, c) if adjoint else (c, k)))
    library().kernel_points(weight.data_ptr(), points.data_ptr(), k, c, adjoint)
    return points


def _convolve(
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
        rest = _images(rest.float().expand_as(y))
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


class FastNormSiLU(NormSiLU):
    def forward(self, x: Tensor) -> Tensor:
        if not _suits(x, self.num_channels, (self.num_channels,), self.weight, self.bias):
            return super().forward(x)
        return _NormSiLU.apply(x, self.weight, self.bias, self.num_groups, self.eps)


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float
    ) -> Tensor:
        moments = x.new_empty(len(x), 2, x.shape[1])
        ctx.save_for_backward(x, weight, bias, moments)
        ctx.num_groups, ctx.eps = num_groups, eps
        x = _images(x)
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
        x, gradient = _images(x), _images(gradient)
        of_x = torch.empty_like(x)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        tensors = (gradient, x, weight, bias, moments, of_x, of_weight, of_bias)
        pointers = (t.data_ptr() for t in tensors)
        if library().norm_silu_gradient(*pointers, *_sizes(x), ctx.num_groups):
            raise MemoryError(f"there is no memory for the gradient of {tuple(x.shape)}")
        return of_x, of_weight, of_bias, None, None


class LayoutGroupNorm(nn.GroupNorm):
    """PyTorch's gradient of the weights crashes if the input has channels last and needs none."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not x.requires_grad:
            x = x.clone(memory_format=torch.contiguous_format)
        return super().forward(x)


def _images(x: Tensor) -> Tensor:
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
    return _images(x), c


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Of samples, pixels and channels."""
    return x.shape[0], x.shape[2] * x.shape[3], x.shape[1]


def _num_tiles(x: Tensor) -> int:
    return len(x) * math.ceil(x.shape[2] / 4) * math.ceil(x.shape[3] / 4)


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
    p, n = ctypes.c_void_p, ctypes.c_int64
    loaded.kernel_points.argtypes = [p, p, n, n, ctypes.c_int]
    loaded.convolve.argtypes = [p, n, p, p, n, p, p, n, n, n, n, n]
    loaded.weight_gradient.argtypes = [p, n, p, n, p, n, n, n, n, n]
    loaded.norm_silu.argtypes = [*[p] * 5, n, n, n, n, ctypes.c_float]
    loaded.norm_silu_gradient.argtypes = [*[p] * 8, n, n, n, n]
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
