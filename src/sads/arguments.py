"""Arguments of public functions: taken where they make sense, else refused in one line."""

import math
import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.errors import InvalidArgumentError, printable

LONGEST_SHOWN = 100  # characters of a value in a message
MOST = 10**9  # of anything that is counted: at a thousand a second they take twelve days


def as_tensor(x: Any, name: str, *, floating: bool = False) -> Tensor:
    """A tensor, or a NumPy array as one, detached from any gradient.

    Args:
        name: what it is called in messages.
        floating: whole numbers become float32.
    """
    if isinstance(x, np.ma.MaskedArray):  # a tensor would show what is masked
        raise InvalidArgumentError(
            f"{name} is a masked array, expected numbers without gaps: fill them, or leave them out"
        )
    if isinstance(x, np.ndarray):
        try:
            x = torch.from_numpy(np.ascontiguousarray(x, x.dtype.newbyteorder("=")))
        except TypeError as error:
            raise InvalidArgumentError(
                f"{name} is an array of type {x.dtype}, expected numbers that PyTorch knows, "
                "such as float32"
            ) from error
    if not isinstance(x, Tensor):
        raise InvalidArgumentError(
            f"{name} is of type {type(x).__name__}, expected a tensor or a NumPy array"
        )
    if x.is_meta:
        raise InvalidArgumentError(
            f"{name} is on the device 'meta' and holds no numbers; give a tensor with values"
        )
    if x.is_complex() or x.is_sparse or x.is_quantized:
        raise InvalidArgumentError(f"{name} must be a dense tensor of real numbers, got {x.dtype}")
    if x.is_floating_point() and x.element_size() < 2:
        raise InvalidArgumentError(
            f"{name} is of type {x.dtype}, which PyTorch does not compute with: give float32"
        )
    x = x.detach()
    if floating and not x.is_floating_point():
        x = x.float()
    return x


def check_count(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number of things."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not isinstance(number, int) or not least <= number <= most:
        raise InvalidArgumentError(
            f"{name} must be a whole number of at least {least}, got {shown(value)}"
            if number <= most
            else f"{name} is {_with_commas(number)}, more than the {most:,} that we count to; "
            "ask for less"
        )
    return number


def _with_commas(number: int) -> str:
    return f"{number:,}" if number < 10**LONGEST_SHOWN else f"above 10^{LONGEST_SHOWN}"


def check_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number strictly between two others."""
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not (low < number < high and math.isfinite(number)):
        limits = f" above {low:g}" if low > -math.inf else ""
        limits += f" and below {high:g}" if high < math.inf else ""
        raise InvalidArgumentError(f"{name} must be a finite number{limits}, got {shown(value)}")
    return number


def check_seed(seed: Any) -> int:
    """A seed of 64 bits, as Python's own number."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool):
        raise InvalidArgumentError(f"the seed is a whole number, got {shown(seed)}")
    if number < 0:
        raise InvalidArgumentError(f"the seed cannot be negative, got {shown(number)}")
    if number >= 1 << 64:
        raise InvalidArgumentError(f"the seed has at most 64 bits, got {shown(number)}")
    return number


def shown(value: Any) -> str:
    """A value in a message: itself if it is short, else its type.

    >>> shown(1.5), shown("yes"), shown(torch.zeros(3, 4))
    ('1.5', "'yes'", 'one of type Tensor and shape (3, 4)')
    """
    if isinstance(value, Tensor | np.ndarray):
        return f"one of type {type(value).__name__} and shape {tuple(value.shape)}"
    try:
        text = printable(repr(value))
    except Exception:  # of a class of the user's, or a number of more digits than Python prints
        text = ""
    return text if 0 < len(text) <= LONGEST_SHOWN else f"one of type {type(value).__name__}"


def check_type(value: Any, expected: type | tuple[type, ...], name: str, hint: str) -> None:
    """An object of a type; the hint says where to get one."""
    if not isinstance(value, expected):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; {hint}")


def as_path(given: Any) -> Path:
    """A path, from text or a path."""
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise InvalidArgumentError(
            f"expected the path of a file as text or a Path, got one of type {type(given).__name__}"
            if not isinstance(given, str)
            else "expected the path of a file, got an empty text"
        )
    return Path(given)
