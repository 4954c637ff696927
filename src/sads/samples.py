"""Samples of data and directions: taken if they have the right shape and scale, else refused.

Channels last, or height and width exchanged, are as many numbers as the right order. So nothing is
reshaped but what is flat already, (N, D), where that is taken. And images from 0 to 255 are as
good numbers as images from -1 to 1, but nobody means them where noise of variance 1 is added.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from sads.arguments import as_tensor
from sads.errors import SamplesError

ROWS = 1024  # samples that are looked at at a time
LARGEST = 1e15  # above which squares and their sums overflow single precision
UNSCALED = 128  # whole numbers from 0 to this and more are images of 8 or 16 bits
SCALING = (
    "scale images from 0 to 255 to [-1, 1] with x / 127.5 - 1, or read them by load_images with "
    "value_range=(0, 255) (--value-range 0,255)"
)


def as_samples(x: Any, name: str, shape: tuple[int, ...], *, flat: bool = False) -> Tensor:
    """Samples as they are, (N, *shape), or also (N, D) if they may be flat.

    >>> import torch
    >>> as_samples(torch.zeros(5, 16), "the data", (1, 4, 4), flat=True).shape
    torch.Size([5, 16])
    >>> as_samples(torch.zeros(5, 8, 8, 3), "the data", (3, 8, 8))
    Traceback (most recent call last):
    sads.errors.SamplesError: the data have shape (5, 8, 8, 3), expected (N, 3, 8, 8): ...
    """
    x = as_tensor(x, name)
    given, wanted = tuple(x.shape), tuple(shape)
    if given[1:] == wanted and given:
        return x
    dimension = math.prod(wanted)
    if flat and given and _long(given[1:]) in (_long(wanted), _long((dimension,))):
        return x  # in the same order: axes of size 1 change nothing
    either = f" or (N, {dimension})" if flat and len(wanted) > 1 else ""
    raise SamplesError(
        f"{name} have shape {given}, expected (N, {', '.join(map(str, wanted))}){either}: "
        + _advice(given, wanted)
    )


def _long(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _advice(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if given in (wanted, (math.prod(wanted),)):
        return "a single sample is x[None]"
    if len(given) == len(wanted) + 1 and sorted(given[1:]) == sorted(wanted):
        orders = itertools.permutations(range(1, len(given)))
        order = min(o for o in orders if tuple(given[i] for i in o) == wanted)
        return f"reorder their axes with x.permute{(0, *order)}"
    return "give data of that shape, or take a family or a geometry of theirs"


def check_floating(x: Tensor, name: str) -> None:
    """Refuse whole numbers by their type."""
    if not x.is_floating_point():
        raise SamplesError(
            f"{name} are whole numbers ({x.dtype}), expected floating point: {SCALING}"
        )


def check_values(x: Tensor, name: str) -> None:
    """Refuse samples (N, ...) that are none, not finite, not real numbers, or not scaled."""
    check_floating(x, name)
    if not x.numel():
        raise SamplesError(f"{name} are of shape {tuple(x.shape)}, no numbers: give at least one")
    for part in _parts(x):
        if not part.isfinite().all():
            raise SamplesError(f"{name} have NaN or infinity: remove or mend those samples")
    low, high = map(float, x.aminmax())
    if max(-low, high) > LARGEST:
        raise SamplesError(f"{name} have values up to {max(-low, high):.3g}: scale or mend them")
    if low >= 0 and high >= UNSCALED and all((part == part.round()).all() for part in _parts(x)):
        raise SamplesError(f"{name} are whole numbers from {low:g} to {high:g}: {SCALING}")


def check_alike(x: Tensor, y: Tensor) -> None:
    """Refuse to compare whole numbers, of a type of their own, with real ones."""
    if x.is_floating_point() != y.is_floating_point():
        raise SamplesError(
            f"samples of type {x.dtype} and {y.dtype} cannot be compared, one may be from 0 to 255 "
            "and the other from -1 to 1: give both with one scale and as floating point"
        )


def _parts(x: Tensor) -> Iterator[Tensor]:
    return iter(x.split(ROWS))
