"""Random numbers at the speed of their generator, written in C (`random.c`)."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.cpu.c_code import NoLibraryError, library

ODD = np.uint64(0x0001_0001_0001_0001)  # makes four odd numbers of 16 bits from a word


@functools.cache
def can_draw() -> bool:
    """Can the C code be had here? If not, NumPy draws the same numbers, more slowly."""
    try:
        library()
    except NoLibraryError:
        return False
    return sys.byteorder == "little"


class Survey:
    """States of an SFC64 at some places of its stream, from which others can go on.

    Args:
        generator: at the beginning of its stream; afterwards it stands at the last of the places.
        places: words of 64 bits, ascending, the first of them 0.
    """

    def __init__(self, generator: np.random.BitGenerator, places: Sequence[int]):
        self._states = np.empty((len(places), 4), dtype=np.uint64)
        self._states[0] = _words(generator)
        stops = np.asarray(places, dtype=np.int64)
        if can_draw():
            library().survey(stops.ctypes.data, len(places), self._states.ctypes.data)
            generator.state = _state(self._states[-1])
            return
        for i, words in enumerate(np.diff(stops), 1):
            generator.random_raw(words, output=False)
            self._states[i] = _words(generator)

    def draw_uniform(self, i: int, skip: int, scale: float, out: Tensor) -> None:
        """Odd numbers from -32767 to 32767 times `scale` into (n,) memory, four of a word.

        They begin behind the first `skip` numbers of place i. Threads may draw at the same time.
        """
        if can_draw() and _is_ours(out):
            state = self._states[i].ctypes.data
            library().draw_uniform(state, skip, len(out), scale, out.data_ptr())
            return
        generator = np.random.SFC64(0)
        generator.state = _state(self._states[i])
        bits = generator.random_raw(-(-(len(out) + skip) // 4)) | ODD
        numbers = torch.from_numpy(bits.view(np.int16))[skip : skip + len(out)]
        out.copy_(numbers).mul_(scale)


def draw_normal(generator: np.random.BitGenerator, out: Tensor) -> None:
    """Standard normal numbers into (n,) memory, those that NumPy draws in single precision."""
    if can_draw() and _normal_is_numpys() and _is_ours(out):
        _draw_normal(generator, out)
    else:
        numpys = np.random.Generator(generator)
        for part in out.split(1 << 16):  # which stays in the processor's cache
            numbers = numpys.standard_normal(len(part), dtype=np.float32)
            part.copy_(torch.from_numpy(numbers))


def _draw_normal(generator: np.random.BitGenerator, out: Tensor) -> None:
    state: Any = generator.state
    words = np.array([*_words(generator), state["uinteger"], state["has_uint32"]], dtype=np.uint64)
    library().draw_normal(words.ctypes.data, len(out), out.data_ptr())
    generator.state = {**_state(words[:4]), "uinteger": int(words[4]), "has_uint32": int(words[5])}


@functools.cache
def _normal_is_numpys() -> bool:
    """Does the C code give NumPy's numbers, with this compiler and this NumPy?"""
    ours, numpys = np.random.SFC64(0), np.random.SFC64(0)
    out = torch.empty(1 << 19)
    _draw_normal(ours, out)
    expected = np.random.Generator(numpys).standard_normal(len(out), dtype=np.float32)
    return np.array_equal(out.numpy(), expected) and ours.random_raw() == numpys.random_raw()


def _is_ours(out: Tensor) -> bool:
    return out.dtype == torch.float32 and out.device.type == "cpu" and out.is_contiguous()


def _words(generator: np.random.BitGenerator) -> Any:
    if not isinstance(generator, np.random.SFC64):
        raise TypeError(f"got a {type(generator).__name__}; numbers are drawn by SFC64")
    state: Any = generator.state
    return state["state"]["state"]


def _state(words: Any) -> Any:
    """The state of a generator, as NumPy gives and takes it."""
    inner = {"state": words.copy()}
    return {"bit_generator": "SFC64", "state": inner, "has_uint32": 0, "uinteger": 0}
