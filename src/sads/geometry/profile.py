"""A geometry in two curves: energy against frequency, and against the distance from the border.

The energies are `v^T G v` of all vectors of the DCT and of all pixels, averaged over vectors of
about the same frequency `sqrt(mean (k / n)^2)` (0 is the mean of an image, 1 the finest
checkerboard), and over pixels at the same distance from the border. In units of the mean eigenvalue
they are 1 for a geometry without a preference, whatever its size.
"""

import math
from dataclasses import dataclass

import torch
from scipy.fft import dctn
from torch import Tensor

from sads.errors import InvalidArgumentError
from sads.estimates import Estimates, batch_mean, positive_errors
from sads.geometry.lift import Lift
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.result import Geometry
from sads.shapes import format_shape

FREQUENCY_BINS = 24  # above the mean of an image, which has a bin of its own


@dataclass(frozen=True, eq=False)
class Profile:
    """Energies in units of the mean eigenvalue, against a number between 0 and 1."""

    places: Tensor  # (n,) float64, growing
    energies: Estimates  # (n,)
    counts: Tensor  # (n,), vectors of which each is the mean


def frequency_profile(geometry: Geometry) -> Profile:
    """Energy along the DCT, against the frequency: 0 is the mean of an image."""
    axes = (torch.arange(n, dtype=torch.float64) / max(1, n - 1) for n in _spatial(geometry))
    squares = sum(f**2 for f in torch.meshgrid(*axes, indexing="ij")) / (len(geometry.shape) - 1)
    radius = torch.as_tensor(squares).sqrt().flatten()
    label = torch.ceil(radius * FREQUENCY_BINS - 1e-9).long()
    return _profile(geometry, energies_of(geometry, "dct"), label, radius)


def border_profile(geometry: Geometry) -> Profile:
    """Energy of pixels, against their distance from the border in units of the largest."""
    axes = []
    for n in _spatial(geometry):
        place = torch.arange(n)
        axes.append(torch.minimum(place, n - 1 - place))
    distance = torch.stack(torch.meshgrid(*axes, indexing="ij")).amin(dim=0).flatten()
    most = max(1, int(distance.max()))
    return _profile(geometry, energies_of(geometry, "canonical"), distance, distance / most)


def energies_of(geometry: Geometry, basis: str) -> Tensor:
    """`v^T G v` for every batch and every vector of a basis of one channel, (K, pixels).

    Averaged over channels; the bases are `"dct"` and `"canonical"`.
    """
    pixels = math.prod(_spatial(geometry))
    if isinstance(geometry.moments, MatrixFree):
        energies = geometry.moments.basis_energies(basis)
        return energies.reshape(len(energies), -1, pixels).mean(dim=1)
    blocks = _channels(geometry.lift, geometry.shape)
    totals = torch.zeros(len(geometry.factors), pixels, dtype=torch.float64)
    for total, factor in zip(totals, geometry.factors, strict=True):
        for group, position in blocks:
            block = factor[position[:, None], position]
            if len(group.unique()) > 1:
                block = block * (group[:, None] == group)
            if basis == "dct":
                total += _dct_diagonal(block, _spatial(geometry))
            else:
                total += block.diagonal()
    return totals / len(blocks)


def _channels(lift: Lift, shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Group and position of the pixels of every channel; one alone if all have the same block."""
    place = torch.empty_like(lift.order)
    place[lift.order] = torch.arange(lift.dimension)
    group = (place // lift.size).reshape(shape[0], -1)
    position = (place % lift.size).reshape(shape[0], -1)
    offset = group - group[:1]
    alike = torch.equal(position, position[:1].expand_as(position))
    if alike and torch.equal(offset, offset[:, :1].expand_as(offset)):
        return [(group[0], position[0])]
    return list(zip(group, position, strict=True))


def _dct_diagonal(block: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """The diagonal of `W A W^T`, with `W` the orthonormal DCT of an image, (pixels,)."""
    axes = tuple(range(len(spatial)))
    image = block.numpy().reshape(*spatial, *spatial)
    image = dctn(image, axes=axes, norm="ortho")
    image = dctn(image, axes=tuple(a + len(spatial) for a in axes), norm="ortho")
    pixels = math.prod(spatial)
    return torch.from_numpy(image.reshape(pixels, pixels).diagonal().copy())


def _profile(geometry: Geometry, energies: Tensor, label: Tensor, place: Tensor) -> Profile:
    """Means of energies (K, pixels) over vectors of the same label, and of their places."""
    labels, index = label.unique(return_inverse=True)
    counts = torch.bincount(index).double()
    means = torch.zeros(len(energies), len(labels), dtype=torch.float64)
    means.index_add_(1, index, energies)
    means = means / counts
    unit = float(batch_mean(energies, geometry.counts).mean())
    values = batch_mean(means, geometry.counts)
    errors = positive_errors(values, geometry.batch_errors(means))
    places = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, index, place.double())
    return Profile(places / counts, Estimates(values / unit, errors / unit), counts)


def _spatial(geometry: Geometry) -> tuple[int, ...]:
    spatial = geometry.shape[1:]
    if not spatial:
        raise InvalidArgumentError(
            f"data of shape {format_shape(geometry.shape)} have no pixels to speak of frequencies"
        )
    return spatial
