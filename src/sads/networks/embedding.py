"""Sinusoidal embeddings of time and of position."""

import math

import torch
from torch import Tensor

from sads.environment import check_memory, gigabytes, used_memory

MAX_PERIOD = 10_000.0


def sinusoidal_embedding(t: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of `t` at `width // 2` frequencies from 1 down to `1 / MAX_PERIOD`.

    This is the time embedding of iDDPM and DiT. An odd width gets one zero at the end.
    """
    half = width // 2
    exponent = torch.arange(half, dtype=torch.float32, device=t.device) / half
    frequencies = torch.exp(-math.log(MAX_PERIOD) * exponent)
    angles = t.to(frequencies.dtype)[:, None] * frequencies  # (N, width // 2)
    embedding = torch.cat([angles.cos(), angles.sin()], dim=-1)
    if width % 2:
        embedding = torch.cat([embedding, embedding.new_zeros(len(t), 1)], dim=-1)
    return embedding


def sincos_positions(grid: tuple[int, ...], width: int) -> Tensor:
    """Fixed position embedding of DiT: `width` is shared equally among the axes of the grid.

    Each axis contributes sines, then cosines, of the coordinate at frequencies
    `10000^(-k / (share / 2))`. As in the reference implementation, the last axis comes first.
    It is computed on the CPU wherever the network is: for `arange` on the device `meta` PyTorch
    imports its compiler, which takes two seconds.
    """
    needed = 3 * 8 * math.prod(grid) * width
    if needed > 1 << 28:
        what = (
            f"positions of {math.prod(grid):,} tokens of width {width:,} need {gigabytes(needed)}"
        )
        check_memory(used_memory() + needed, what, "choose a smaller width or larger patches")
    share = width // len(grid)
    device = torch.get_default_device()
    omega = 10_000.0 ** (-_count(share // 2) / (share // 2))
    coordinates = torch.meshgrid(*map(_count, grid), indexing="ij")
    parts = []
    for coordinate in reversed(coordinates):
        angles = coordinate.reshape(-1, 1) * omega  # (tokens, share // 2)
        parts += [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=-1).float().to(device)  # (tokens, width)


def _count(number: int) -> Tensor:
    return torch.arange(number, dtype=torch.float64, device="cpu")
