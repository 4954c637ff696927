"""The iDDPM U-Net (Nichol & Dhariwal, 2021) as the paper uses it: nothing is zeroed at the start.

Levels of residual blocks, skip connections by concatenation, a residual-attention-residual
block in the middle, and time added between the two convolutions of every residual block.
All layers keep PyTorch's default initialisation.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sads.arguments import check_count, shown
from sads.errors import InvalidArgumentError
from sads.networks.embedding import sinusoidal_embedding
from sads.networks.layers import CONVOLUTIONS
from sads.table1 import IDDPM_CHANNELS, RANK_ONE_SHAPE

NUM_GROUPS = 32


class ResidualBlock(nn.Module):
    """`skip(x) + conv(silu(norm(conv(silu(norm(x))) + linear(silu(time)))))`."""

    def __init__(self, dims: int, in_channels: int, out_channels: int, time_width: int):
        super().__init__()
        conv = CONVOLUTIONS[dims]
        self.norm1 = nn.GroupNorm(NUM_GROUPS, in_channels)
        self.conv1 = conv(in_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_width, out_channels)
        self.norm2 = nn.GroupNorm(NUM_GROUPS, out_channels)
        self.conv2 = conv(out_channels, out_channels, 3, padding=1)
        self.skip = (
            nn.Identity() if in_channels == out_channels else conv(in_channels, out_channels, 1)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        shift = self.time(F.silu(time))  # (N, C)
        h = h + shift.reshape(*shift.shape, *[1] * (h.ndim - 2))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.skip(x) + h


class Attention(nn.Module):
    """Self-attention over all positions, with a residual connection."""

    def __init__(self, channels: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(NUM_GROUPS, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, channels = x.shape[:2]
        flat = x.reshape(n, channels, -1)
        qkv = self.qkv(self.norm(flat)).reshape(n, self.num_heads, 3, -1, flat.shape[-1])
        q, k, v = qkv.transpose(-1, -2).unbind(2)  # (N, heads, positions, C / heads)
        h = F.scaled_dot_product_attention(q, k, v)
        h = h.transpose(-1, -2).reshape(n, channels, -1)
        return (flat + self.proj(h)).reshape(x.shape)


class Downsample(nn.Module):
    """Halve by a convolution of stride 2 ("nearest"), or of stride 1 and averaging ("area")."""

    def __init__(self, dims: int, channels: int, resample: str):
        super().__init__()
        stride = 2 if resample == "nearest" else 1
        self.conv = CONVOLUTIONS[dims](channels, channels, 3, stride=stride, padding=1)
        self.resample = resample

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.resample == "area":
            x = F.interpolate(x, size=[n // 2 for n in x.shape[2:]], mode="area")
        return x


class Upsample(nn.Module):
    """Double by interpolation ("nearest" or "area"), then a convolution."""

    def __init__(self, dims: int, channels: int, resample: str):
        super().__init__()
        self.conv = CONVOLUTIONS[dims](channels, channels, 3, padding=1)
        self.resample = resample

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=[2 * n for n in x.shape[2:]], mode=self.resample)
        return self.conv(x)


class UNet(nn.Module):
    """The iDDPM U-Net.

    Args:
        shape: `(channels, length)` or `(channels, height, width)` of the data.
        channels: width of the first level.
        channel_mults: width of every level *after the first*, in units of `channels`;
            Table 1's `1, 1` means three levels.
        depth: residual blocks per level on the way down; one more on the way up.
        num_heads: heads of the attention in the middle.
        resample: `"nearest"` (the usual implementation) or `"area"`.
    """

    def __init__(
        self,
        shape: Sequence[int] = RANK_ONE_SHAPE,
        channels: int = IDDPM_CHANNELS,
        channel_mults: Sequence[int] = (1, 1),
        depth: int = 1,
        num_heads: int = 4,
        resample: str = "nearest",
    ):
        super().__init__()
        data_channels, *sizes = shape
        dims = len(sizes)
        check_count("channels", channels)
        check_count("depth", depth, least=0)
        check_count("num_heads", num_heads)
        if isinstance(channel_mults, str) or not isinstance(channel_mults, Sequence):
            raise InvalidArgumentError(
                f"channel_mults are whole numbers such as [1] or [1,2], got {shown(channel_mults)}"
            )
        for factor in channel_mults:
            check_count("each of channel_mults", factor)
        widths = [channels, *(channels * m for m in channel_mults)]
        _check_options(sizes, widths, depth, num_heads, resample)
        conv = CONVOLUTIONS[dims]
        time_width = 4 * channels
        self.channels = channels
        self.time = nn.Sequential(
            nn.Linear(channels, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.input = conv(data_channels, channels, 3, padding=1)

        self.down = nn.ModuleList()
        skips, width = [channels], channels
        for level, level_width in enumerate(widths):
            for _ in range(depth):
                self.down.append(ResidualBlock(dims, width, level_width, time_width))
                width = level_width
                skips.append(width)
            if level < len(widths) - 1:
                self.down.append(Downsample(dims, width, resample))
                skips.append(width)

        self.middle = nn.ModuleList(
            [
                ResidualBlock(dims, width, width, time_width),
                Attention(width, num_heads),
                ResidualBlock(dims, width, width, time_width),
            ]
        )

        self.up = nn.ModuleList()
        for level, level_width in reversed(list(enumerate(widths))):
            for _ in range(depth + 1):
                self.up.append(ResidualBlock(dims, width + skips.pop(), level_width, time_width))
                width = level_width
            if level > 0:
                self.up.append(Upsample(dims, width, resample))

        self.output = nn.ModuleList(
            [nn.GroupNorm(NUM_GROUPS, width), conv(width, data_channels, 3, padding=1)]
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(sinusoidal_embedding(t, self.channels).to(x.dtype))
        h = self.input(x)
        skips = [h]
        for layer in self.down:
            h = layer(h, time) if isinstance(layer, ResidualBlock) else layer(h)
            skips.append(h)
        for layer in self.middle:
            h = layer(h, time) if isinstance(layer, ResidualBlock) else layer(h)
        for layer in self.up:
            if isinstance(layer, ResidualBlock):
                h = layer(torch.cat([h, skips.pop()], dim=1), time)
            else:
                h = layer(h)
        norm, conv = self.output
        return conv(F.silu(norm(h)))


def _check_options(
    sizes: Sequence[int], widths: Sequence[int], depth: int, num_heads: int, resample: str
) -> None:
    if len(sizes) not in (1, 2):
        raise InvalidArgumentError(
            f"a U-Net takes shapes with 1 or 2 spatial axes, not {len(sizes)}; "
            "give a shape such as 1x64 or 1x16x16"
        )
    if resample not in ("nearest", "area"):
        raise InvalidArgumentError(
            f"resample is {shown(resample)}; a U-Net knows 'nearest' and 'area'"
        )
    factor = 2 ** (len(widths) - 1)
    if any(n % factor for n in sizes):
        raise InvalidArgumentError(
            f"a U-Net with {len(widths)} levels halves its input {len(widths) - 1} times, "
            f"so every size must divide by {factor}; got {'x'.join(map(str, sizes))}: "
            "change the shape or give fewer channel_mults"
        )
    if any(w % NUM_GROUPS for w in widths):
        raise InvalidArgumentError(
            f"the widths of a U-Net's levels must divide by {NUM_GROUPS} (its GroupNorm groups), "
            f"got {tuple(widths)}; choose channels and channel_mults accordingly"
        )
    inside = widths[-2:] if depth else widths[:1]  # without blocks widths grow on the way up
    if math.prod(sizes) == factor ** len(sizes) and min(inside) == NUM_GROUPS:
        raise InvalidArgumentError(
            f"the innermost level of a U-Net for {'x'.join(map(str, sizes))} has one position of "
            f"{NUM_GROUPS} channels, one for each group of its GroupNorm, which makes 0 of it: "
            "change the shape, or give fewer channel_mults or more channels"
        )
    if inside[-1] % num_heads:
        raise InvalidArgumentError(
            f"num_heads must divide the innermost width {inside[-1]}, got {num_heads}"
        )
