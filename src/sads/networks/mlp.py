"""A multilayer perceptron on the flattened data and an embedding of time."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sads.arguments import check_count
from sads.networks.embedding import sinusoidal_embedding
from sads.table1 import RANK_ONE_SHAPE


class MLP(nn.Module):
    """`depth` hidden layers of `width` units with SiLU; PyTorch's default initialisation."""

    def __init__(
        self,
        shape: Sequence[int] = RANK_ONE_SHAPE,
        width: int = 256,
        depth: int = 3,
        time_width: int = 32,
    ):
        super().__init__()
        check_count("width", width)
        check_count("depth", depth, least=0)
        check_count("time_width", time_width, least=0)
        self.time_width = time_width
        size = math.prod(shape)
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(width if i else size + time_width, width), nn.SiLU()]
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(width if depth else size + time_width, size)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = sinusoidal_embedding(t, self.time_width).to(x.dtype)
        h = self.hidden(torch.cat([x.flatten(1), time], dim=1))
        return self.output(h).reshape(x.shape)
