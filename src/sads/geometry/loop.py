"""The loop over networks of an estimate with matrices, from the first network to the result."""

from dataclasses import replace

import torch

from sads.environment import return_free_memory
from sads.errors import InterruptedEstimate
from sads.geometry.cost import NOTHING
from sads.geometry.dense import Dense
from sads.geometry.estimators import Stacked
from sads.geometry.job import Job
from sads.geometry.moments import Moments, draw_grams
from sads.geometry.result import Geometry
from sads.geometry.stacks import set_up_threads
from sads.unfinished import Partial

FORMAT = "sads-partial-geometry"


def estimate_with_matrices(job: Job) -> Geometry:
    """The factors of sixteen batches of networks, or one factor if nothing is random."""
    chosen = job.estimator
    chosen.forecast(job.num_networks, job.batch_size, exact=True).check()
    partial = job.partial(FORMAT)
    moments = Moments.load(
        partial, job.stack_size, job.first_network, job.num_networks, job.known.response
    )
    with set_up_threads(chosen.network_bytes):
        exact = chosen.exact_gram(job.stage)
    expected = chosen.forecast(
        job.num_networks,
        job.batch_size,
        exact=exact is not None,
        again=job.tolerance is not None,
    )
    job.forecast(expected)
    if exact is not None:
        nobody = torch.zeros(1, dtype=torch.int64)
        factors = Dense(chosen.factor(exact)[None], nobody, chosen.lift)
        return job.geometry(factors, job.spent(NOTHING))
    job.plan.remember()
    expected.check()
    moments.keep_batches(chosen.num_batches)
    moments.check(chosen, partial.path)
    job.stage("drawing networks")
    return _Loop(job, moments, partial).run()


class _Loop:
    """Networks are drawn until there are enough, or until their directions are settled."""

    def __init__(self, job: Job, moments: Moments, partial: Partial):
        self.job, self.moments, self.partial = job, moments, partial

    def run(self) -> Geometry:
        job, moments = self.job, self.moments
        try:
            if (geometry := self._settled()) is not None:
                return geometry
            stacks = moments.stacks_left(job.first_network, job.num_networks)
            for stop, grams in draw_grams(job.estimator, stacks):
                moments.add(grams, stop)
                if self.partial.due:
                    self._keep()
                if job.progress is not None:
                    error = moments.relative_error()
                    job.progress(moments.num_networks, job.num_networks, error)
                if (geometry := self._settled()) is not None:
                    return geometry
        except KeyboardInterrupt:
            if moments.num_networks == 0:
                raise
            self._keep()
            raise InterruptedEstimate(self._result(interrupted=True)) from None
        geometry = self._result()
        return _note_limit(geometry, job.tolerance) if job.tolerance else geometry

    def _result(self, last: bool = True, interrupted: bool = False) -> Geometry:
        """The geometry of the networks so far; after the last ones their memory is let go."""
        chosen = self.job.estimator
        if last and isinstance(chosen, Stacked):
            chosen.initialiser.release_memory()
            return_free_memory()
        factors, counts = self.moments.factors(chosen, last)
        spent = self.job.spent(self.moments.earlier)
        dense = Dense(factors, counts, chosen.lift)
        return self.job.geometry(dense, spent, stop=self.moments.stop, interrupted=interrupted)

    def _settled(self) -> Geometry | None:
        """The geometry, if a tolerance is asked for and reached after a whole block."""
        moments = self.moments
        whole_block = 0 < moments.num_networks == moments.stop - self.job.first_network
        if not (self.job.tolerance and whole_block):
            return None
        geometry = self._result(last=False)
        return geometry if is_settled(geometry) else None

    def _keep(self) -> None:
        self.partial.save(self.moments.tensors(self.job.spent(self.moments.earlier)))


def is_settled(geometry: Geometry) -> bool:
    """Is every direction sure to the tolerance, or as good as equal to its neighbours?"""
    return all(cluster.reason != "unresolved" for cluster in geometry.directions().clusters)


def _note_limit(geometry: Geometry, tolerance: float) -> Geometry:
    """A geometry that ended at the limit of networks, with the note that it is not settled."""
    clusters = [c for c in geometry.directions().clusters if c.reason == "unresolved"]
    note = (
        f"the limit of {geometry.num_networks:,} networks leaves {sum(map(len, clusters)):,} of "
        f"{geometry.dimension:,} directions unresolved at {tolerance:g} rad: raise max_networks "
        "(--max-networks), or the tolerance"
    )
    notes = (*geometry.provenance.notes, note)
    return replace(geometry, provenance=replace(geometry.provenance, notes=notes))
