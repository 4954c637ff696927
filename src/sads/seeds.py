"""Random streams of their own for every purpose, derived from one seed.

Whoever draws random numbers derives a stream from the seed that the user gave and a key that says
what for: the number of a network, of an update, of a block of samples. Results then do not depend
on what else is drawn, on the size of batches or on the number of workers.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*key: int | str) -> int:
    """64 bits from a key; keys that differ in anything have unrelated seeds."""
    text = ",".join(map(str, key)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def following(seed: int, i: int = 1) -> int:
    """The seed that is i above another; after the largest one of 64 bits comes 0."""
    return (seed + i) % 2**64


def torch_stream(*key: int | str) -> torch.Generator:
    """PyTorch's generator with the seed of a key."""
    return torch.Generator().manual_seed(derive_seed(*key))


def all_bits(seed: int) -> int:
    """A user's seed for PyTorch, whose generators look at 32 bits only: all of its bits count.

    >>> all_bits(5), all_bits(2**32 + 5) % 2**32
    (5, 3782173844)
    """
    return seed if seed < 2**32 else derive_seed("all bits", seed)


def user_stream(seed: int) -> torch.Generator:
    """PyTorch's generator with a seed as a user gave it."""
    return torch.Generator().manual_seed(all_bits(seed))


def seed_torch(seed: int) -> None:
    """Seed PyTorch's own generators.

    `torch.manual_seed` writes down a traceback for every kind of device that is not there, which
    takes as long as to evaluate a small network.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Code of others may draw in the block; the generators that all share are then as before.

    Those are PyTorch's, NumPy's and Python's own, which the caller may be using.
    """
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def seed_generators(seed: int) -> None:
    """Seed the generators that all share, in a block of `generators_kept`."""
    seed_torch(seed)
    np.random.seed(derive_seed("numpy", seed) % 2**32)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What code of others draws in the block depends on the seed alone."""
    with generators_kept():
        seed_generators(seed)
        yield


def other_generators() -> tuple[object, ...]:
    """Where NumPy's and Python's own generators are; whoever draws from them changes it."""
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), np.asarray(keys).tobytes(), *rest


def seed_sequence(seed: int, *key: int) -> np.random.SeedSequence:
    """NumPy's own derivation of streams: child `key` of a seed."""
    return np.random.SeedSequence(seed, spawn_key=key)


def numpy_stream(seed: int, *key: int) -> np.random.Generator:
    """NumPy's fastest generator for child `key` of a seed."""
    return np.random.Generator(np.random.SFC64(seed_sequence(seed, *key)))
