"""Energies `v^T G v` of every vector of the pixel, DCT and Haar bases, without a matrix.

The factor of a geometry is a mean of `Phi^T Phi` over networks, `Phi` the rows that a network gives
(`Estimator.factor_rows`). For an orthonormal basis with transform `W` the energies are the diagonal
of `W Phi^T Phi W^T`: the squares of the transformed rows, summed. A transform of P pixels takes
`O(P log P)`, and no matrix is made.

*Symmetries.* A flip or a transposition `g` takes a vector of these bases to another one, up to its
sign. So the energies of an average over symmetries are averages of energies, in an order that is
read off by sending numbered coefficients through `g`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sads.geometry.lift import Lift
from sads.transforms import ANALYSIS, SYNTHESIS, has_transform

KEPT = tuple(SYNTHESIS)  # canonical, dct, haar
CHUNK = 1 << 20  # numbers that are transformed at a time: they stay in the processor's cache

Energies = dict[str, Tensor]  # by basis, (kinds of channels, pixels) float64


class BasisEnergies:
    """Turns rows of a factor into the energies of basis vectors, one set for a kind of channel."""

    def __init__(self, lift: Lift, shape: tuple[int, ...], group: Sequence[Tensor] = ()):
        self.spatial = shape[1:] or (1,)
        self.channels, self._kinds = lift.parts(shape)
        self.names = tuple(name for name in KEPT if has_transform(name, self.spatial))
        self._orders = {name: [_order(name, self.spatial, g) for g in group] for name in self.names}

    def of_rows(self, rows: Tensor) -> Energies:
        """Sums over some rows (r, P) of a factor."""
        pixels = math.prod(self.spatial)
        total = {n: torch.zeros(len(self._kinds), pixels).double() for n in self.names}
        for chunk in rows.split(max(1, CHUNK // pixels)):
            for kind, parts in enumerate(self._kinds):
                for positions, places in parts:
                    images = chunk.new_zeros(len(chunk), pixels)
                    images[:, places] = chunk[:, positions]
                    for name in self.names:
                        squares = _transform(name, images, self.spatial).square()
                        total[name][kind] += squares.sum(dim=0, dtype=torch.float64)
        return total

    def averaged(self, energies: Mapping[str, Tensor]) -> Energies:
        """Energies (..., pixels) of the average over the group of symmetries."""
        return {
            name: torch.stack([values[..., order] for order in self._orders[name]]).mean(dim=0)
            if self._orders[name]
            else values
            for name, values in energies.items()
        }


def _transform(name: str, images: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """The coefficients of images (n, pixels), in their precision."""
    arrays = images.numpy().reshape(len(images), *spatial)
    return torch.from_numpy(np.ascontiguousarray(ANALYSIS[name](arrays))).flatten(1)


def _order(name: str, spatial: tuple[int, ...], g: Tensor) -> Tensor:
    """`order` with `|<v_i, x[g]>| = |<v_order[i], x>|` for every `x`, for basis vectors `v`."""
    numbers = np.arange(1.0, math.prod(spatial) + 1).reshape(1, *spatial)
    image = torch.from_numpy(SYNTHESIS[name](numbers)).flatten(1)
    order = _transform(name, image[:, g], spatial)[0].abs().round().long() - 1
    assert torch.equal(order.sort().values, torch.arange(len(order)))  # g permutes the basis
    return order


def single_coefficient(row: Tensor, shape: tuple[int, ...]) -> tuple[str, int, int, float] | None:
    """Basis, channel, number and coefficient if a row (D,) is a multiple of a basis vector."""
    images, spatial = row.reshape(shape[0], -1), shape[1:] or (1,)
    length = float(row.square().sum())
    for name in KEPT:
        if not has_transform(name, spatial) or length == 0:
            continue
        coefficients = _transform(name, images, spatial)
        largest = int(coefficients.abs().argmax())
        channel, number = divmod(largest, images.shape[1])
        value = float(coefficients[channel, number])
        if value**2 >= (1 - 1e-10) * length:
            return name, channel, number, value
    return None
