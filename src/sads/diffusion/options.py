"""The options of a training run."""

from dataclasses import dataclass

from sads.arguments import check_count, check_number, check_seed, check_type
from sads.table1 import RANK_ONE


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; the defaults are Table 1's for rank-one data."""

    iterations: int = RANK_ONE.iterations
    batch_size: int = RANK_ONE.batch_size
    learning_rate: float = RANK_ONE.learning_rate
    max_gradient_norm: float = 1.0
    ema_decay: float | None = None
    seed: int = 0
    centre: bool = False

    def __post_init__(self) -> None:
        found: dict[str, object] = {"seed": check_seed(self.seed)}
        for name in ("iterations", "batch_size"):
            found[name] = check_count(name, getattr(self, name))
        for name in ("learning_rate", "max_gradient_norm"):
            found[name] = check_number(name, getattr(self, name), 0)
        if self.ema_decay is not None:
            found["ema_decay"] = check_number("ema_decay", self.ema_decay, 0, 1)
        check_type(self.centre, bool, "centre", "give True or False")
        for name, value in found.items():  # NumPy's numbers as Python's, for JSON
            object.__setattr__(self, name, value)
