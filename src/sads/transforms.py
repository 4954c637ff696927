"""Orthonormal transforms of images, on any number of axes: pixels, DCT, DST, Hadamard, Haar.

`ANALYSIS[name](images)` takes a batch of single-channel images (n, *spatial) to its coefficients,
of the same shape; `SYNTHESIS[name]` takes it back, for those that a geometry without a matrix
keeps. SciPy and PyWavelets do the work, in the precision of what they are given.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pywt
from numpy.typing import NDArray
from scipy.fft import dctn, dstn, idctn
from scipy.linalg import hadamard

Array = NDArray[Any]  # of floating-point numbers
POWERS_OF_TWO = ("hadamard", "haar")  # these need sizes that are powers of two


def has_transform(name: str, spatial: tuple[int, ...]) -> bool:
    """Does a transform exist for images of this size?"""
    return name not in POWERS_OF_TWO or not any(n & (n - 1) for n in spatial)


def _axes(images: Array) -> tuple[int, ...]:
    return tuple(range(1, images.ndim))


def _hadamard(images: Array) -> Array:
    for axis in _axes(images):
        images = np.moveaxis(np.tensordot(images, _walsh(images.shape[axis]), (axis, 1)), -1, axis)
    return images


def _walsh(size: int) -> Array:
    """Hadamard's matrix, orthonormal, rows in the order of their number of sign changes."""
    matrix = hadamard(size)
    changes = (np.diff(matrix, axis=1) != 0).sum(axis=1)
    return matrix[np.argsort(changes)] / math.sqrt(size)


def _haar(images: Array) -> Array:
    levels = pywt.wavedecn(images, "haar", mode="periodization", axes=_axes(images))
    return pywt.coeffs_to_array(levels, axes=_axes(images))[0]


def _inverse_haar(coefficients: Array) -> Array:
    axes = _axes(coefficients)
    same = pywt.wavedecn(np.zeros_like(coefficients), "haar", mode="periodization", axes=axes)
    places = pywt.coeffs_to_array(same, axes=axes)[1]  # of the parts, for images of this size
    levels = pywt.array_to_coeffs(coefficients, places)
    return pywt.waverecn(levels, "haar", mode="periodization", axes=axes)


ANALYSIS: dict[str, Callable[[Array], Array]] = {
    "canonical": lambda images: images,
    "dct": lambda images: dctn(images, type=2, norm="ortho", axes=_axes(images)),
    "dst": lambda images: dstn(images, type=2, norm="ortho", axes=_axes(images)),
    "hadamard": _hadamard,
    "haar": _haar,
}

SYNTHESIS: dict[str, Callable[[Array], Array]] = {
    "canonical": lambda coefficients: coefficients,
    "dct": lambda c: idctn(c, type=2, norm="ortho", axes=_axes(c)),
    "haar": _inverse_haar,
}
