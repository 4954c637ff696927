"""Layers that several networks use."""

import torch.nn.functional as F
from torch import Tensor, nn

# By the number of spatial axes.
CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}


class NormSiLU(nn.GroupNorm):
    """Group normalisation, then SiLU: one layer, because one pass over the data can do both."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))
