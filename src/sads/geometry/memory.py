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

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from sads.environment import check_memory, gigabytes, used_memory
from sads.errors import counted
from sads.families import ScoreFamily
from sads.geometry.streaming.substitution import ShapesOnly
from sads.seeds import generators_kept
from sads.shapes import format_shape

BASE = 450 << 20  # Python, PyTorch and the rest, before any work
SOLVING = 7  # matrices beside the factors while directions and their errors are found
STACKED = 2.0  # activations of networks that are evaluated together, in units of those of one
BATCHES = 16  # independent, for standard errors
MANY_NUMBERS = 1 << 16  # that enter a network at once: activations may take gigabytes


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
        factors = counted(self.num_factors, "factor")
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


def evaluation_bytes(
    family: ScoreFamily,
    batch_size: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    training: bool = False,
) -> int:
    """The most bytes that one evaluation of a network holds at once, without its parameters.

    Nothing is computed: the network is built and run, with its gradient if it is trained, on
    PyTorch's device `meta`, for its shapes alone. Attention counts with its matrix, which some
    kernels never hold. 0 if a constructor or a layer needs numbers, for then nothing is known.
    """

    def evaluate() -> None:
        with torch.set_grad_enabled(training):
            output = network(x, t)
            if training:
                weights = [p for p in network.parameters() if p.requires_grad]
                torch.autograd.grad(output.sum(), weights, allow_unused=True)

    try:
        with generators_kept(), torch.device("meta"), ShapesOnly(in_haste=False):
            network = family.build().to(dtype)
            x, t = (torch.zeros(batch_size, *size, dtype=dtype) for size in (family.shape, ()))
            return peak_activations(evaluate)[1]
    except Exception:  # a network of somebody else's, which may do anything
        return 0


def check_evaluation(
    family: ScoreFamily,
    batch_size: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    training: bool = False,
    advice: str = "choose a smaller shape",
) -> None:
    """Refuse a network of which one evaluation cannot fit, before anything is computed.

    Of few numbers every network that can be built can be evaluated.
    """
    if batch_size * family.dimension < MANY_NUMBERS:
        return
    needed = evaluation_bytes(family, batch_size, dtype=dtype, training=training)
    doing = "training on" if training else "evaluating"
    images = f"{counted(batch_size, 'sample')} of {format_shape(family.shape)}"
    check_memory(
        needed + used_memory(),
        f"{doing} {images} at a time needs about {gigabytes(needed)} for {family.name}",
        advice,
    )


def peak_activations(evaluate: Callable[[], Any]) -> tuple[Any, int]:
    """What a function returns, and the most bytes of new tensors that it held at the same time."""
    with _Live() as live:
        result = evaluate()
    return result, live.peak


class _Live(TorchDispatchMode):
    """Counts the bytes of memory from when an operation makes it to when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._held: dict[int, weakref.ref[UntypedStorage]] = {}

    def watch(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation and count what it makes."""
        result = func(*args, **(kwargs or {}))
        given = {s._cdata for s in map(_storage, args) if s is not None} - set(self._held)
        for made in map(_storage, result if isinstance(result, tuple | list) else (result,)):
            if made is not None and made._cdata not in given:
                self._count(made)
        return result

    def _count(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return
        self._now += size
        self.peak = max(self.peak, self._now)

        def gone(_: Any) -> None:
            del self._held[key]
            self._now -= size

        self._held[key] = weakref.ref(storage, gone)


# Set here and not in the class body, where torch would wrap it and import its compiler: 2 seconds.
_Live.__torch_dispatch__ = _Live.watch  # type: ignore[method-assign,assignment]


def _storage(value: Any) -> UntypedStorage | None:
    """The memory of a tensor, which others may share and which `meta` only speaks of."""
    try:
        return value.untyped_storage() if isinstance(value, Tensor) else None
    except (RuntimeError, NotImplementedError):  # tensors of other kinds
        return None
