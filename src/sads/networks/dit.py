"""DiT (Peebles & Xie, 2023) without class labels, its final linear layer not zeroed.

The blocks start as the identity (adaLN-Zero) and the position embedding is fixed, so that at
`x = 0` the features of an untrained DiT do not depend on its random weights at all.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from sads.arguments import check_count, check_number
from sads.errors import InvalidArgumentError
from sads.networks.embedding import sincos_positions, sinusoidal_embedding
from sads.networks.layers import CONVOLUTIONS
from sads.table1 import DIT_DEPTH, DIT_HEADS, DIT_WIDTH, RANK_ONE_SHAPE

FREQUENCY_WIDTH = 256


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (N, heads, tokens, width / heads)
        h = F.scaled_dot_product_attention(q, k, v)
        return self.proj(h.transpose(1, 2).reshape(n, tokens, width))


class Modulation(nn.Module):
    """`count` vectors from the embedding of time, all zero at the start."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.count = count
        self.linear = nn.Linear(width, count * width)

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        return self.linear(F.silu(time)).chunk(self.count, dim=-1)


class Block(nn.Module):
    """Attention and MLP, each modulated and gated by time (adaLN-Zero)."""

    def __init__(self, width: int, num_heads: int, mlp_ratio: float):
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = SelfAttention(width, num_heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width)
        )
        self.modulation = Modulation(width, 6)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(time)
        x = x + gate1[:, None] * self.attention(modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """The diffusion transformer.

    Args:
        shape: `(channels, length)` or `(channels, height, width)` of the data.
        patch_size: side of the patches that become tokens; must divide every size.
        hidden_size: width of a token.
        depth: number of blocks.
        num_heads: heads of every attention.
        mlp_ratio: width of a block's hidden layer in units of `hidden_size`.
    """

    def __init__(
        self,
        shape: Sequence[int] = RANK_ONE_SHAPE,
        patch_size: int = 2,
        hidden_size: int = DIT_WIDTH,
        depth: int = DIT_DEPTH,
        num_heads: int = DIT_HEADS,
        mlp_ratio: float = 2.0,
    ):
        super().__init__()
        data_channels, *sizes = shape
        dims = len(sizes)
        check_count("depth", depth, least=0)
        check_number("mlp_ratio", mlp_ratio, low=0)
        _check_options(sizes, patch_size, hidden_size, num_heads)
        if int(hidden_size * mlp_ratio) < 1:
            raise InvalidArgumentError(
                f"mlp_ratio={mlp_ratio} of hidden_size={hidden_size} leaves no unit in the hidden "
                f"layers, expected at least {1 / hidden_size:.3g}"
            )
        self.shape = tuple(shape)
        self.patch_size = patch_size
        self.grid = tuple(n // patch_size for n in sizes)
        self.patches = CONVOLUTIONS[dims](data_channels, hidden_size, patch_size, stride=patch_size)
        self.register_buffer("positions", sincos_positions(self.grid, hidden_size))
        self.time = nn.Sequential(
            nn.Linear(FREQUENCY_WIDTH, hidden_size),
            nn.SiLU(),
            nn.Linear(hidden_size, hidden_size),
        )
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.modulation = Modulation(hidden_size, 2)
        self.output = nn.Linear(hidden_size, patch_size**dims * data_channels)
        self.initialise()

    def initialise(self) -> None:
        """Xavier-uniform linear layers, a small time MLP, blocks that start as the identity."""
        if self.output.weight.is_meta:
            return  # no numbers are there: PyTorch would import its compiler to draw none
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.patches.weight.view(self.patches.out_channels, -1))
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]
        for module in self.time:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        for module in self.modules():
            if isinstance(module, Modulation):
                nn.init.zeros_(module.linear.weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(sinusoidal_embedding(t, FREQUENCY_WIDTH).to(x.dtype))
        h = self.patches(x).flatten(2).transpose(1, 2) + self.positions  # (N, tokens, width)
        for block in self.blocks:
            h = block(h, time)
        shift, scale = self.modulation(time)
        h = self.output(modulate(self.norm(h), shift, scale))
        return self.unpatchify(h)

    def unpatchify(self, h: Tensor) -> Tensor:
        """`(N, tokens, patch values)` to `(N, *shape)`; a token holds its patch channel-last."""
        n, channels, dims = len(h), self.shape[0], len(self.grid)
        h = h.reshape(n, *self.grid, *[self.patch_size] * dims, channels)
        order = [1 + 2 * dims]  # channels first, then every grid axis followed by its patch axis
        for axis in range(dims):
            order += [1 + axis, 1 + dims + axis]
        return h.permute(0, *order).reshape(n, *self.shape)


def _check_options(sizes: Sequence[int], patch_size: int, hidden_size: int, num_heads: int) -> None:
    dims = len(sizes)
    if dims not in (1, 2):
        raise InvalidArgumentError(
            f"a DiT takes shapes with 1 or 2 spatial axes, not {dims}; "
            "give a shape such as 1x64 or 1x16x16"
        )
    if any(n % check_count("patch_size", patch_size) for n in sizes):
        raise InvalidArgumentError(
            f"patch_size must divide every size, got patch_size={patch_size} "
            f"for {'x'.join(map(str, sizes))}: change one of them"
        )
    check_count("hidden_size", hidden_size)
    check_count("num_heads", num_heads)
    if hidden_size % (2 * dims) or hidden_size % num_heads:
        raise InvalidArgumentError(
            f"hidden_size must divide by {2 * dims} (sines and cosines of each axis) and by "
            f"num_heads={num_heads}, got {hidden_size}"
        )
