"""The form of a geometry: a small factor `A`, and how it is lifted to all D coordinates.

An output layer that treats its groups alike (the channels of a convolution, the entries of a
token under a token-wise linear layer, the units of a dense layer) gives
`G_ij = [group_i = group_j] A[position_i, position_j]`, that is `I (x) A` up to the order of the
coordinates. `A` is all that is stored; its eigenvectors are those of `G`, one copy per group.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sads.errors import counted
from sads.tensorfile import TensorFile

Part = tuple[Tensor, Tensor]  # positions of the factor, and the pixels that they are in a channel
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
        """The lift for data of a shape, from a file; `ValueError` if it is none."""
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
        return f"Lift({counted(self.groups, 'group')} of {self.size:,})"

    def same(self, other: "Lift") -> bool:
        """Are the groups and the positions of another lift the same?"""
        return (self.groups, self.size) == (other.groups, other.size) and torch.equal(
            self.order, other.order
        )

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

    def parts(self, shape: tuple[int, ...]) -> "tuple[tuple[int, ...], list[list[Part]]]":
        """How channels are made of groups: for every channel the number of a kind, and the kinds.

        A kind is a list of parts, one for each group that has positions in the channel. Channels
        whose pixels take the same positions are of one kind: a direction within one of them has
        the same energy in all.
        """
        pixels = math.prod(shape[1:])
        slot = torch.empty_like(self.order)
        slot[self.order] = torch.arange(self.dimension)
        known: dict[bytes, int] = {}
        kinds: list[list[Part]] = []
        channels = []
        for of_channel in slot.reshape(shape[0], pixels):
            group, position = of_channel // self.size, of_channel % self.size
            found = [(position[g == group], (g == group).nonzero()[:, 0]) for g in group.unique()]
            name = b"".join(p.numpy().tobytes() for part in found for p in part)
            if name not in known:
                known[name] = len(kinds)
                kinds.append(found)
            channels.append(known[name])
        return tuple(channels), kinds

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the grid on which the positions lie, row by row; one line if on none."""
        places = np.unravel_index(self.order[: self.size].numpy(), shape)
        sizes = tuple(n for axis in places if (n := len(np.unique(axis))) > 1)
        ranks = [np.unique(axis, return_inverse=True)[1] for axis in places]
        whole = np.ravel_multi_index(ranks, [int(rank.max()) + 1 for rank in ranks])
        in_order = math.prod(sizes) == self.size and (whole == np.arange(self.size)).all()
        return sizes if sizes and in_order else (self.size,)

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
