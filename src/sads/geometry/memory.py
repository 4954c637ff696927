"""How much memory an estimate takes, said before it starts.

Three things are large. *Factors*: sixteen batches, each a matrix in float64, and some more of their
size while they are turned into directions; they are written one after the other. *Stacks*: the
parameters and activations of the networks that every core evaluates at a time. *Grams*: what stacks
hand over, in float32. The most that any phase holds at once is the forecast. `tests/test_memory.py`
compares it with what processes really took.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sads.environment import check_memory, gigabytes

BASE = 450 << 20  # Python, PyTorch and the rest, before any work
SOLVING = 7  # matrices beside the factors while directions and their errors are found
STACKED = 2.0  # activations of networks that are evaluated together, in units of those of one
BATCHES = 16  # independent, for standard errors


@dataclass(frozen=True)
class Forecast:
    """Bytes that an estimate holds at the same time, and what they are for."""

    num_factors: int
    size: int  # of a factor: size x size
    moments: int  # sums over networks, one for every batch
    stacks: int  # parameters and activations of the networks in flight, and their Gram matrices
    finishing: int  # factors, and what finding directions and writing takes beside them

    @property
    def total(self) -> int:
        """Bytes of the whole process, at its largest."""
        return BASE + max(self.moments + self.stacks, self.finishing)

    def __str__(self) -> str:
        """One line.

        >>> print(Forecast(16, 16384, 34 << 30, 2 << 30, 60 << 30))
        needs about 64.9 GB: 16 factors of 16,384 x 16,384 and work on them 64.4 GB
        """
        factors = f"{self.num_factors} factor{'s' if self.num_factors > 1 else ''}"
        parts = f"{factors} of {self.size:,} x {self.size:,}"
        if self.moments + self.stacks > self.finishing:
            parts += f" {gigabytes(self.moments)}, networks in flight {gigabytes(self.stacks)}"
        else:
            parts += f" and work on them {gigabytes(self.finishing)}"
        return f"needs about {gigabytes(self.total)}: {parts}"

    def check(self, advice: str = "choose a smaller shape or a smaller batch size") -> None:
        """Refuse what cannot fit, and say what to do."""
        check_memory(self.total, f"this estimate {self}", advice)


@dataclass(frozen=True)
class PassesForecast:
    """Bytes that an estimate without a matrix holds at the same time."""

    size: int  # positions
    space: int  # energies of all batches, windows and the space that is searched
    features: int  # kept between passes
    networks: int  # in flight, with their rows

    @property
    def total(self) -> int:
        return BASE + self.space + self.features + self.networks

    def __str__(self) -> str:
        """One line.

        >>> print(PassesForecast(65_536, 1 << 30, 1 << 30, 1 << 29))
        needs about 3.2 GB without a matrix of 65,536 x 65,536: features 1.1 GB, networks 0.5 GB
        """
        return (
            f"needs about {gigabytes(self.total)} without a matrix of {self.size:,} x "
            f"{self.size:,}: features {gigabytes(self.features)}, networks "
            f"{gigabytes(self.networks)}"
        )

    def check(self) -> None:
        """Refuse what cannot fit, and say what to do."""
        check_memory(self.total, f"this estimate {self}", "choose a smaller shape")


def forecast(
    *,
    num_factors: int,
    gram_size: int,
    size: int,
    network_bytes: int = 0,
    activation_bytes: int = 0,
    row_bytes: int = 0,
    stack_size: int = 1,
    num_workers: int = 1,
    again: bool = False,
) -> Forecast:
    """What an estimate takes.

    Args:
        num_factors: batches of networks; 1 if the geometry is exact.
        gram_size: of the matrices that are summed up.
        size: of a factor.
        network_bytes: the parameters of one network.
        activation_bytes: what its evaluation holds at the same time.
        row_bytes: what one network contributes to a Gram matrix, in float32.
        stack_size: networks that are evaluated together.
        num_workers: stacks that are evaluated at the same time.
        again: directions are found on the way, beside the sums (for a tolerance).
    """
    gram, factor = 8 * gram_size**2, 8 * size**2
    moments = num_factors * gram
    # Drawn numbers take half as much again as the float32 parameters that they become.
    together = STACKED if stack_size > 1 else 1.0
    one = 1.5 * network_bytes + together * activation_bytes + 2 * row_bytes
    waiting = 2 * num_workers + 1 if num_workers > 1 else 2  # stacks that are done or under way
    batches = max(1, -(-stack_size // 4)) if num_factors > 1 else 1  # whose Grams a stack holds
    grams = waiting * min(num_factors, batches) * gram // 2
    stacks = int(num_workers * stack_size * one) + grams
    work = SOLVING * factor
    beside = num_factors * gram if again else 0
    return Forecast(
        num_factors=num_factors,
        size=size,
        moments=moments,
        stacks=stacks,
        finishing=num_factors * factor
        + beside
        + work
        + int(1.5 * network_bytes * stack_size * num_workers),
    )


def least(size: int, exact: bool = False) -> Forecast:
    """What factors of this size take, whatever the network."""
    return forecast(num_factors=1 if exact else BATCHES, gram_size=size, size=size)


def peak_activations(evaluate: Callable[[], Any]) -> tuple[Any, int]:
    """What a function returns, and the most bytes of new tensors that it held at the same time."""
    with _Live() as live:
        result = evaluate()
    return result, live.peak


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors from when an operation makes them to when they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._owners: dict[int, int] = {}  # tensors that share a storage, by its address
        self._refs: dict[int, weakref.ref[Tensor]] = {}

    def watch(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation and count what it makes."""
        result = func(*args, **(kwargs or {}))
        given = {_address(a) for a in args if isinstance(a, Tensor)} - set(self._owners)
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and _address(tensor) not in given:
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        address, key = _address(tensor), id(tensor)
        if key in self._refs or not address:
            return
        size = tensor.untyped_storage().nbytes()
        if self._owners.setdefault(address, 0) == 0:
            self._now += size
            self.peak = max(self.peak, self._now)
        self._owners[address] += 1

        def gone(_: Any) -> None:
            self._refs.pop(key, None)
            self._owners[address] -= 1
            if self._owners[address] == 0:
                del self._owners[address]
                self._now -= size

        self._refs[key] = weakref.ref(tensor, gone)


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
_Live.__torch_dispatch__ = _Live.watch  # type: ignore[method-assign,assignment]


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # tensors of other kinds
        return 0
