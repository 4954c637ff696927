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
    processor_seconds: float | None = 0.0  # of all cores; None if a part of them is not known
    memory: int = 0  # bytes of the largest process

    def since(self, started: "Started") -> "Spent":
        """This much and what this process has spent since then."""
        earlier = self.processor_seconds
        return Spent(
            self.seconds + time.perf_counter() - started.clock,
            None if earlier is None else earlier + time.process_time() - started.processor,
            max(self.memory, peak_memory()),
        )

    def tensors(self) -> dict[str, Tensor]:
        """What `read` takes, for a file of work under way."""
        tensors = {
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            "memory": torch.tensor(self.memory),
        }
        if self.processor_seconds is not None:
            tensors["processor_seconds"] = torch.tensor(self.processor_seconds, dtype=torch.float64)
        return tensors

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> "Spent":
        """What a file says was spent; older ones know the seconds of the clock alone."""
        processor = tensors.get("processor_seconds")
        return cls(
            float(tensors["seconds"]),
            None if processor is None else float(processor),
            int(tensors.get("memory", torch.tensor(0))),
        )


@dataclass(frozen=True)
class Started:
    """When the work of this process began."""

    clock: float = field(default_factory=time.perf_counter)
    processor: float = field(default_factory=time.process_time)


NOTHING = Spent()
