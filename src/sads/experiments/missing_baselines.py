"""Records that are older than baselines get them, without any training.

What zeros, the mean, a Gaussian and real data score depends on the data of a cell, on its test set
and on its projections, all of which follow from its specification. Cells that share these, such as
those of several rotations, share the baselines.
"""

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import replace

from sads.data.spec import OWN_GEOMETRY
from sads.experiments.records import Record
from sads.experiments.run import Sources, draw_data, reference_of
from sads.experiments.spec import Cell, GeometrySpec
from sads.geometry.result import Geometry
from sads.metrics.baselines import Baselines, energy_of

Known = MutableMapping[Hashable, tuple[Baselines, float]]  # with the data's energy


def with_baselines(
    record: Record,
    geometry: Callable[[GeometrySpec], Geometry],
    sources: Sources,
    known: Known | None = None,
) -> Record:
    """The record with baselines in each of its evaluations; itself if it has them.

    Args:
        geometry: gives the geometry of a specification; asked only if the data lie along it.
        sources: where images of a name are.
        known: baselines that were found before, by what they depend on; added to.
    """
    if record.has_baselines:
        return record
    known = {} if known is None else known
    key = _what_matters(record.cell)
    if key not in known:
        cell = record.cell
        own = _lie_along_own(cell)
        data = draw_data(cell, geometry(cell.geometry) if own else None, sources)
        baselines = reference_of(cell, data).baselines(cell.sampling.num_samples)
        known[key] = baselines, energy_of(data.test)
    baselines, energy = known[key]
    evaluations = tuple(
        replace(evaluation, baselines=baselines, data_energy=energy)
        for evaluation in record.evaluations
    )
    return replace(record, evaluations=evaluations)


def _lie_along_own(cell: Cell) -> bool:
    """Whether the data lie along directions of the cell's own geometry."""
    return cell.data.kind != "images" and cell.data.source == OWN_GEOMETRY


def _what_matters(cell: Cell) -> Hashable:
    """All that baselines depend on."""
    own = _lie_along_own(cell)
    sampling = cell.sampling
    return (
        cell.geometry if own else cell.family.shape,
        str(cell.data),
        cell.data_sha256,
        cell.num_data,
        sampling.num_samples,
        sampling.projections_per_dimension,
        cell.seed,
    )
