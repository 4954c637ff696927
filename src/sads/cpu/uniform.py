"""Uniform numbers at the speed of their generator, written in C (`uniform.c`)."""

import functools
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.cpu.library import NoLibraryError, library


@functools.cache
def can_draw() -> bool:
    """Can the C code be had here? If not, NumPy draws the same numbers, more slowly."""
    try:
        library()
    except NoLibraryError:
        return False
    return sys.byteorder == "little"


def draw_uniform(stream: np.random.BitGenerator, skip: int, scale: float, out: Tensor) -> None:
    """Odd numbers from -32767 to 32767 times `scale` into (n,) memory, four of a word of 64 bits.

    The first `skip` numbers of the first word are left out; the stream, an SFC64, stands behind the
    last word afterwards.
    """
    if out.dtype != torch.float32 or out.device.type != "cpu" or not out.is_contiguous():
        raise ValueError(f"got {out.dtype} on {out.device}; numbers are written as float32 in RAM")
    state, words = _state(stream)
    library().draw_uniform(words.ctypes.data, skip, len(out), scale, out.data_ptr())
    stream.state = state


def skip_words(stream: np.random.BitGenerator, count: int) -> None:
    """Leave words of 64 bits out."""
    state, words = _state(stream)
    library().skip_words(words.ctypes.data, count)
    stream.state = state


def _state(stream: np.random.BitGenerator) -> tuple[Any, Any]:
    """The state of a generator, and its four words inside it."""
    state: Any = stream.state
    words = np.ascontiguousarray(state["state"]["state"], dtype=np.uint64)
    state["state"]["state"] = words
    return state, words
