"""An estimate without a matrix, from the first network to the result (`passes` does the work)."""

from sads.errors import CheckpointError, InterruptedEstimate, InvalidArgumentError, printable
from sads.files import tensor_digest
from sads.geometry.cost import NOTHING, Spent
from sads.geometry.job import Job
from sads.geometry.matrixfree.passes import FINDERS, Passes
from sads.geometry.result import Geometry
from sads.unfinished import Partial
from sads.untrusted import DAMAGE

FORMAT = "sads-partial-passes"
FEATURE_BYTES = 2 << 30  # kept between passes
FEW = "the ends of the spectrum are not known: draw at least 16 networks to find them"


def estimate_without_matrix(job: Job) -> Geometry:
    """Energies along bases and both ends of the spectrum; see `passes`."""
    if job.tolerance is not None:
        raise InvalidArgumentError(
            f"a geometry of {job.estimator.lift.size:,} positions is kept without a matrix and "
            "does not know all its directions, so that no tolerance can be reached; give "
            "num_networks (--networks)"
        )
    exact = job.estimator.exact_rows(job.stage)
    passes = Passes(
        job.estimator,
        job.estimator.family.shape,
        job.first_network,
        job.num_networks,
        size=job.stack_size,
        measure=job.measure,
        exact_rows=exact,
        memory=FEATURE_BYTES if job.memory is None else job.memory,
    )
    expected = passes.forecast()
    job.forecast(expected)
    expected.check()
    measured = None if job.measure is None else tensor_digest(job.measure)
    named = {"estimator": "exact"} if exact is not None else {}
    partial = job.partial(FORMAT, finders=FINDERS, measured=measured, **named)
    earlier = _earlier(passes, partial, job)

    def result(interrupted: bool = False) -> Geometry:
        return job.geometry(
            passes.result(),
            job.spent(earlier),
            stop=None if exact is not None else job.first_network + job.num_networks,
            interrupted=interrupted,
            notes=() if passes.has_judges else (FEW,),
        )

    def keep() -> None:
        partial.save(passes.tensors(job.known.response, job.spent(earlier)))

    try:
        passes.run(keep, lambda: partial.due, job.progress or (lambda *_: None), job.stage)
    except KeyboardInterrupt:
        if not passes.state.counts.any():
            raise
        keep()
        raise InterruptedEstimate(result(interrupted=True)) from None
    return result()


def _earlier(passes: Passes, partial: Partial, job: Job) -> Spent:
    """Go on from the file of an earlier process, if there is one; what was spent on it."""
    tensors = partial.load()
    if tensors is None:
        return NOTHING
    try:
        return passes.load(tensors, job.known.response)
    except DAMAGE as error:
        raise CheckpointError(
            f"{printable(partial.path)} cannot be continued ({error}); remove it to start afresh"
        ) from error
