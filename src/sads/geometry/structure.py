"""The form of a geometry: a small factor `A`, and how it is lifted to all D coordinates.

An output layer that treats its groups alike (the channels of a convolution, the entries of a
token under a token-wise linear layer, the units of a dense layer) gives
`G_ij = [group_i = group_j] A[position_i, position_j]`, that is `I (x) A` up to the order of the
coordinates. `A` is all that is stored; its eigenvectors are those of `G`, one copy per group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Lift:
    """`G = Q (I_groups (x) A) Q^T` with `Q` a permutation of the coordinates.

    `order[g * size + p]` is the flat coordinate of position `p` in group `g`.
    """

    groups: int
    size: int  # of the factor A
    order: Tensor  # (D,) int64

    @classmethod
    def trivial(cls, dimension: int) -> "Lift":
        """One group: the factor is the geometry itself."""
        return cls(1, dimension, torch.arange(dimension))

    @property
    def dimension(self) -> int:
        return self.groups * self.size

    def split(self, x: Tensor) -> Tensor:
        """(..., D) to (..., groups, size)."""
        return x[..., self.order].reshape(*x.shape[:-1], self.groups, self.size)

    def join(self, z: Tensor) -> Tensor:
        """(..., groups, size) to (..., D): the inverse of `split`."""
        x = torch.empty(*z.shape[:-2], self.dimension, dtype=z.dtype)
        x[..., self.order] = z.reshape(*z.shape[:-2], self.dimension)
        return x

    def dense(self, factor: Tensor) -> Tensor:
        """(size, size) to (D, D)."""
        matrix = torch.zeros(self.dimension, self.dimension, dtype=factor.dtype)
        for coordinates in self.order.reshape(self.groups, self.size):
            matrix[coordinates[:, None], coordinates] = factor
        return matrix

    def multiply(self, factor: Tensor, x: Tensor) -> Tensor:
        """`G x` for `x` of (..., D), without the dense matrix."""
        return self.join(self.split(x) @ factor.T)
