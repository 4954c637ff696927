"""A plain convolutional network: one resolution, no skip connections, no normalisation."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from sads.arguments import check_count
from sads.errors import InvalidArgumentError
from sads.networks.embedding import sinusoidal_embedding
from sads.networks.layers import CONVOLUTIONS
from sads.table1 import RANK_ONE_SHAPE


class CNN(nn.Module):
    """`depth` convolutions with SiLU, time added after the first; default initialisation."""

    def __init__(
        self,
        shape: Sequence[int] = RANK_ONE_SHAPE,
        channels: int = 32,
        depth: int = 3,
        kernel_size: int = 3,
    ):
        super().__init__()
        data_channels, *sizes = shape
        if len(sizes) not in CONVOLUTIONS:
            raise InvalidArgumentError(
                f"a CNN takes shapes with 1 to 3 spatial axes, not {len(sizes)}; "
                "give a shape such as 1x16x16"
            )
        check_count("channels", channels)
        check_count("depth", depth)
        if check_count("kernel_size", kernel_size) % 2 == 0:
            raise InvalidArgumentError(f"a CNN needs an odd kernel_size, got {kernel_size}")
        conv, padding = CONVOLUTIONS[len(sizes)], kernel_size // 2
        self.channels = channels
        self.time = nn.Linear(channels, channels)
        self.hidden = nn.ModuleList(
            conv(channels if i else data_channels, channels, kernel_size, padding=padding)
            for i in range(depth)
        )
        self.output = conv(channels, data_channels, kernel_size, padding=padding)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shift = self.time(sinusoidal_embedding(t, self.channels).to(x.dtype))  # (N, channels)
        h = self.hidden[0](x) + shift.reshape(*shift.shape, *[1] * (x.ndim - 2))
        for layer in list(self.hidden)[1:]:
            h = layer(F.silu(h))
        return self.output(F.silu(h))
