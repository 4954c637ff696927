"""Orthonormal bases of images: the directions of the paper's Figure 2.

A basis is given by its analysis transform `c = W x` on one channel: row `k` of the orthogonal
matrix `W` is the basis vector whose coefficient is `c_k`. `sads.transforms` does the transforms, so
the vectors are `W` applied to the identity, and every basis here is orthonormal because its
transform is. A basis of several channels is one copy of this for each channel.

On a line of `n` pixels `m = 0 .. n - 1`, before normalisation (two dimensions: products of
these, except Haar's):

    canonical  delta(m = k)                              k = 0 .. n - 1, the pixel
    dct        cos(pi k (2 m + 1) / (2 n))               k = 0 .. n - 1, the frequency
    dst        sin(pi k (2 m + 1) / (2 n))               k = 1 .. n,     the frequency
    hadamard   row of the Hadamard matrix (+-1) that     k = 0 .. n - 1, the sequency
               changes sign k times
    haar       differences of averages of halves of a block, over blocks of all scales
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pywt
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sads.arguments import check_count, shown
from sads.checked import checked
from sads.environment import check_samples
from sads.errors import InvalidArgumentError
from sads.shapes import format_shape
from sads.transforms import ANALYSIS, has_transform

Array = NDArray[np.float64]
BASES = ("canonical", "dct", "dst", "hadamard", "haar")
FREQUENCY_BASES = ("dct", "dst", "hadamard")


@dataclass(frozen=True)
class Element:
    """What one basis vector is.

    `position` is a pixel (canonical), a frequency (dct, dst), a sequency (hadamard), or the place
    of a block on the grid of its scale (haar). For Haar, `scale` is the side of the block in
    pixels and `band` has a letter per axis: `a` for an average over the block along this axis,
    `d` for the difference of its halves.
    """

    channel: int
    position: tuple[int, ...]
    scale: int | None = None
    band: str | None = None

    def __str__(self) -> str:
        text = f"channel {self.channel}, ({', '.join(map(str, self.position))})"
        return text if self.band is None else f"{text}, scale {self.scale}, band {self.band}"


@dataclass(frozen=True)
class Basis:
    """`D` orthonormal vectors on images of `shape = (channels, *spatial)`, spatial 1-D or 2-D.

    Order: channels first, then `position` row by row (the last axis fastest). For Haar the row by
    row order is that of the nested wavelet picture: the average over the image comes first, the
    coarsest differences next to it, the finest in the right and lower halves. Its blocks are
    square, so an image that is not ends in several averages, one a square.
    """

    name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.name not in BASES:
            raise InvalidArgumentError(
                f"unknown basis {self.name!r}; choose one of {', '.join(BASES)}"
            )
        whole = isinstance(self.shape, tuple) and all(type(n) is int for n in self.shape)
        if not whole or len(self.shape) not in (2, 3) or min(self.shape) < 1:
            raise InvalidArgumentError(
                f"a basis needs a shape (channels, length) or (channels, height, width), "
                f"got {shown(self.shape)}"
            )
        if not has_transform(self.name, self.shape[1:]):
            raise InvalidArgumentError(
                f"the {self.name} basis needs sizes that are powers of two, got "
                f"{format_shape(self.shape)}: resize the images, or take dct or dst"
            )

    @property
    def dimension(self) -> int:
        """D, the number of vectors and of coordinates."""
        return math.prod(self.shape)

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.shape[1:]

    @cached_property
    def vectors(self) -> Tensor:
        """(D, *shape) float64."""
        n = math.prod(self.spatial)
        check_samples(self.dimension, self.dimension, 6)
        unit = np.eye(n).reshape(n, *self.spatial)
        matrix = ANALYSIS[self.name](unit).reshape(n, n).T  # (vector, pixel)
        blocks = np.kron(np.eye(self.shape[0]), matrix)
        return torch.from_numpy(blocks.reshape(self.dimension, *self.shape))

    @cached_property
    def index(self) -> tuple[Element, ...]:
        """What each of the D vectors is, in their order."""
        channels = range(self.shape[0])
        if self.name == "haar":
            return tuple(
                Element(c, *block) for c in channels for block in _haar_blocks(self.spatial)
            )
        positions = list(itertools.product(*(range(n) for n in self.spatial)))
        positions = [tuple(self._first + k for k in position) for position in positions]
        return tuple(Element(c, position) for c in channels for position in positions)

    @property
    def _first(self) -> int:
        """The lowest place along an axis: a sine has no zero frequency."""
        return 1 if self.name == "dst" else 0

    def groups(self) -> dict[str, NDArray[np.bool_]]:
        """The vectors that the paper speaks of, as masks (D,) by name.

        `low` and `high`: frequencies (sequencies) in the lower half, or in the upper half, along
        all axes. `border` and `inside`: pixels. The Haar basis has no such groups.
        """
        if self.name == "haar":
            return {}
        places = np.array([e.position for e in self.index]) - self._first  # (D, axes), from 0
        sizes = np.array(self.spatial)
        if self.name in FREQUENCY_BASES:
            low = 2 * places < sizes
            return {"low": np.asarray(low.all(axis=1)), "high": np.asarray((~low).all(axis=1))}
        inside = np.asarray(((places > 0) & (places < sizes - 1)).all(axis=1))
        return {"border": ~inside, "inside": inside}

    def layout(self, values: ArrayLike) -> Array:
        """Lay `D` numbers, one a vector, out as the paper's Figure 2 does.

        The frequencies of dct, dst and hadamard are extended to negative ones, zero in the centre.
        A cosine is even in its frequency and a sine odd, so the vector at `-k` is that at `k` or
        its negative; what is shown is a property of the line through it and the same for both.
        A dst has no zero frequency: its centre lies between the pixels of `-1` and `1`. The
        canonical basis is laid out as the image, Haar's as the nested wavelet picture. Channels
        stand side by side; a basis on a line gives one row a channel.

        Args:
            values: (D,), such as the MSW2 of models trained on each vector.

        Returns:
            (rows, columns) float64.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.shape != (self.dimension,):
            raise InvalidArgumentError(
                f"expected one value for each of the {self.dimension} vectors of the {self.name} "
                f"basis, got an array of shape {array.shape}"
            )
        grid = array.reshape(self.shape)
        if self.name in ("dct", "dst", "hadamard"):
            grid = grid[np.ix_(range(self.shape[0]), *(self._mirror(n) for n in self.spatial))]
        return np.concatenate(grid, axis=1) if grid.ndim == 3 else grid

    def _mirror(self, size: int) -> list[int]:
        """Places on an axis of the numbers that stand at frequencies `.. -2, -1, (0), 1, 2 ..`."""
        negative = range(size - 1, -1 if self.name == "dst" else 0, -1)
        return [*negative, *range(size)]


@checked
def basis(name: str, shape: tuple[int, ...]) -> Basis:
    """An orthonormal basis of images, by name.

    Args:
        name: `"canonical"`, `"dct"` (type II), `"dst"` (type II), `"hadamard"` (in sequency
            order) or `"haar"` (over all scales).
        shape: (channels, length) or (channels, height, width); powers of two for hadamard and
            haar.

    >>> dct = basis("dct", (1, 16, 16))
    >>> dct.vectors.shape, str(dct.index[17])
    (torch.Size([256, 1, 16, 16]), 'channel 0, (1, 1)')
    """
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise InvalidArgumentError(
            "a shape is whole numbers (channels, *spatial), such as (1, 16, 16), got "
            f"{shown(shape)}"
        )
    return Basis(name, tuple(check_count("a size of the shape", n, 0) for n in shape))


def _haar_blocks(spatial: tuple[int, ...]) -> list[tuple[tuple[int, ...], int, str]]:
    """(position, scale, band) of every place in the nested wavelet picture, row by row."""
    levels = pywt.wavedecn(np.zeros(spatial), "haar", mode="periodization")
    places = pywt.coeffs_to_array(levels)[1]
    depth = len(places) - 1
    bands = [(2**depth, "a" * len(spatial), places[0])]
    for level, details in enumerate(places[1:]):
        bands += [(2 ** (depth - level), band, place) for band, place in details.items()]
    grid = np.empty(spatial, dtype=object)
    for scale, band, place in bands:
        block = grid[place]  # a view
        for position in np.ndindex(block.shape):
            block[position] = (position, scale, band)
    return list(grid.flat)
