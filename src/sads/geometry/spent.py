"""Time and memory that an estimate takes, over all processes that work on it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sads.environment import peak_memory


@dataclass(frozen=True)
class Spent:
    """What was spent so far."""

    seconds: float = 0.0
    processor_seconds: float = 0.0  # of all cores; the clock's say little on a busy machine
    memory: int = 0  # bytes of the largest process

    def since(self, started: "Started") -> "Spent":
        """With what this process has spent since then."""
        return Spent(
            self.seconds + time.perf_counter() - started.clock,
            self.processor_seconds + time.process_time() - started.processor,
            max(self.memory, peak_memory()),
        )

    def tensors(self) -> dict[str, Tensor]:
        """What `read` takes, for a file of work under way."""
        return {
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            "processor_seconds": torch.tensor(self.processor_seconds, dtype=torch.float64),
            "memory": torch.tensor(self.memory),
        }

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> "Spent":
        """From such a file; older ones know the seconds alone."""
        nothing = NOTHING.tensors()
        seconds, processor, memory = (
            tensors.get(name, nothing[name]) for name in ("seconds", "processor_seconds", "memory")
        )
        return cls(float(seconds), float(processor), int(memory))


@dataclass(frozen=True)
class Started:
    """When the work of this process began."""

    clock: float = field(default_factory=time.perf_counter)
    processor: float = field(default_factory=time.process_time)


NOTHING = Spent()
