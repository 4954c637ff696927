"""One estimate: the way that was chosen, its networks, whom to tell, and where work is kept."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from sads.errors import ZeroReadoutError
from sads.geometry.cost import Spent, Started
from sads.geometry.dense import Dense
from sads.geometry.estimators import Estimator
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.memory import Forecast, PassesForecast
from sads.geometry.plan import Plan, Stage
from sads.geometry.result import Geometry, Provenance
from sads.unfinished import Partial

IDENTITY = (
    "family",
    "fingerprint",
    "probe",
    "estimator",
    "readout",
    "zero_readout",
    "symmetries",
    "tolerance",
)  # of the provenance
ZERO = (
    "every network returns zero, so the geometry is 0 and its directions are undefined; check how "
    "the networks are initialised"
)

Progress = Callable[[int, int, float], None]  # networks so far, networks in all, relative error


@dataclass(frozen=True)
class Job:
    """What an estimate has to do; its fields are the arguments of `estimate_geometry`."""

    plan: Plan
    seed: int
    first_network: int
    num_networks: int  # at most, if there is a tolerance
    tolerance: float | None
    batch_size: int | None
    memory: int | None
    measure: Tensor | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_seconds: float | None
    progress: Progress | None
    stage: Stage
    forecast: Callable[[Forecast | PassesForecast], None]
    started: Started

    @property
    def estimator(self) -> Estimator:
        return self.plan.estimator

    @property
    def known(self) -> Provenance:
        """What the result will say of itself, but for the work itself."""
        return self.plan.provenance

    @property
    def stack_size(self) -> int:
        """How many networks are evaluated together."""
        return self.estimator.stack_size(self.batch_size)

    def partial(self, file_format: str, **more: object) -> Partial:
        """The file of work under way, which only the same estimate continues."""
        identity = {name: getattr(self.known, name) for name in IDENTITY}
        identity |= {
            "seed": self.seed,
            "first_network": self.first_network,
            "networks": self.num_networks,
        }
        if self.known.dtype is not None:
            identity["dtype"] = self.known.dtype
        return Partial(self.checkpoint, file_format, identity | more, self.checkpoint_seconds)

    def spent(self, earlier: Spent) -> Spent:
        """What was spent on it, by processes before this one too."""
        return earlier.since(self.started)

    def geometry(
        self,
        moments: Dense | MatrixFree,
        spent: Spent,
        *,
        stop: int | None = None,
        interrupted: bool = False,
        notes: tuple[str, ...] = (),
    ) -> Geometry:
        """The result.

        Args:
            stop: one after the last network; None if the geometry is exact.
        """
        if moments.is_zero:
            raise ZeroReadoutError(ZERO)
        provenance = replace(
            self.known,
            estimator="exact" if stop is None else self.known.estimator,
            notes=(*self.known.notes, *notes, *self.estimator.notes()),
            draws=() if stop is None else ((self.seed, self.first_network, stop),),
            interrupted=interrupted,
            **asdict(spent),
        )
        return Geometry(moments, self.estimator.family.shape, provenance)
