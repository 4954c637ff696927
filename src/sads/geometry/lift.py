"""The form of a geometry: a small factor `A`, and how it is lifted to all D coordinates.

An output layer that treats its groups alike (the channels of a convolution, the entries of a
token under a token-wise linear layer, the units of a dense layer) gives
`G_ij = [group_i = group_j] A[position_i, position_j]`, that is `I (x) A` up to the order of the
coordinates. `A` is all that is stored; its eigenvectors are those of `G`, one copy per group.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.tensorfile import TensorFile

MAX_DIMENSION = 1 << 26  # of what a file may hold: a picture of 8,192 pixels squared


@dataclass(frozen=True, eq=False, repr=False)
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

    @classmethod
    def from_places(cls, group: Tensor, position: Tensor, size: int) -> "Lift | None":
        """The lift in which coordinate i has this group and position; None if groups have gaps."""
        groups = group.unique()
        if len(groups) * size != len(group):
            return None
        order = torch.argsort(torch.searchsorted(groups, group) * size + position)
        return cls(len(groups), size, order)

    @classmethod
    def read(cls, file: TensorFile, shape: tuple[int, ...]) -> "Lift":
        """That of data of a shape, from a file; `ValueError` if it is none."""
        dimension = math.prod(shape)
        if not 1 <= dimension <= MAX_DIMENSION:
            raise ValueError(f"its data have {dimension:,} coordinates")
        file.expect("order", "int64", dimension)
        groups = file.metadata.get("groups", "")
        if not re.fullmatch("[0-9]{1,9}", groups, re.ASCII) or not 1 <= int(groups) <= dimension:
            raise ValueError("its groups are not a number of groups")
        if dimension % int(groups):
            raise ValueError(f"{groups} groups do not share {dimension:,} coordinates equally")
        order = file["order"]
        seen = torch.zeros(dimension, dtype=torch.bool)
        if int(order.min()) >= 0 and int(order.max()) < dimension:
            seen[order] = True
        if not seen.all():
            raise ValueError("the order of its coordinates is not one")
        return cls(int(groups), dimension // int(groups), order)

    def __repr__(self) -> str:
        return f"Lift({self.groups:,} groups of {self.size:,})"

    @property
    def is_ordered(self) -> bool:
        """Are the coordinates in the order of groups and positions?"""
        return torch.equal(self.order, torch.arange(self.dimension))

    @property
    def dimension(self) -> int:
        """D."""
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

    def quadratic(self, factor: Tensor, x: Tensor) -> Tensor:
        """`x^T G x` for every row of (n, D), (n,), without the dense matrix."""
        z = self.split(x).reshape(-1, self.size)  # (n groups, size)
        return ((z @ factor) * z).sum(dim=1).reshape(-1, self.groups).sum(dim=1)

    def multiply(self, factor: Tensor, x: Tensor) -> Tensor:
        """`G x` for `x` of (..., D), without the dense matrix."""
        return self.join(self.split(x) @ factor.T)
