"""Shapes of data, (channels, *spatial), as people write them: 1x16x16."""

from collections.abc import Sequence

from sads.errors import InvalidArgumentError

MAX_AXES = 8  # of data
MAX_DIGITS = 12  # of a size that somebody types


def format_shape(shape: Sequence[int]) -> str:
    """
    >>> format_shape((1, 16, 16))
    '1x16x16'
    """
    return "x".join(map(str, shape))


def checked_shape(sizes: object) -> tuple[int, ...]:
    """A shape from JSON that somebody else may have written; `ValueError` if it is none.

    >>> checked_shape([1, 16, 16])
    (1, 16, 16)
    """
    whole = isinstance(sizes, list) and all(type(n) is int and 0 < n < 1 << 40 for n in sizes)
    if not isinstance(sizes, list) or not whole or not 1 <= len(sizes) <= MAX_AXES:
        raise ValueError("its shape is not one")
    return tuple(sizes)


def parse_shape(text: str) -> tuple[int, ...]:
    """
    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    parts = text.lower().split("x")
    plain = all(part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in parts)
    shape = tuple(map(int, parts)) if plain else ()
    if not shape or min(shape) < 1:
        raise InvalidArgumentError(f"{text!r} is not a shape; write sizes such as 1x16x16")
    return shape
