"""Score Anisotropy Directions: the directional biases of diffusion models before training.

Names are imported when they are first used: PyTorch takes seconds to import, and `sads --help`
needs none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sads.openmp import wait_without_spinning as _wait_without_spinning

_wait_without_spinning()  # before PyTorch is imported, which reads this once

if TYPE_CHECKING:
    from sads import theory
    from sads.data.bases import Basis, basis
    from sads.data.images import ImageSet, load_images, read_images
    from sads.data.labels import load_labels
    from sads.data.readers import register_reader
    from sads.data.synthetic import rank_one, sphere
    from sads.diffusion.anatomy import Anatomy, measure_anatomy
    from sads.diffusion.model import ScoreModel, load_model
    from sads.diffusion.sample import register_sampler, sample
    from sads.diffusion.skip import gaussian_skip
    from sads.diffusion.train import train
    from sads.errors import InterruptedEstimate, NotKeptError, SadsError
    from sads.estimates import Estimate, Estimates
    from sads.experiments.ranking import Ranking, rank
    from sads.families import ScoreFamily, family
    from sads.families import register as register_family
    from sads.geometry.compare import Comparison, compare
    from sads.geometry.directions import Cluster, Directions
    from sads.geometry.end import End
    from sads.geometry.estimate import estimate_geometry
    from sads.geometry.readout import Readout, register_readout
    from sads.geometry.result import Geometry, Provenance, load_geometry
    from sads.metrics.digits import Classification, classify
    from sads.metrics.sliced_wasserstein import (
        MaxSlicedWasserstein,
        SlicedWasserstein,
        max_sliced_wasserstein,
        sliced_wasserstein,
        sliced_wasserstein_to_gaussian,
    )
    from sads.predictors.registry import register_predictor
    from sads.probes import Probe, probe
    from sads.report.build import write_report
    from sads.rotations.alignment import Alignment, DataSpectrum, Pairing, alignment, pair, rotation
    from sads.rotations.rotated_data import RotatedDataset, rotate_collate
    from sads.rotations.rotation import Rotation, load_rotation
    from sads.schedule import Schedule
    from sads.theory.propositions import Structure, structure

_HOMES = {
    "Alignment": "sads.rotations.alignment",
    "Anatomy": "sads.diffusion.anatomy",
    "Basis": "sads.data.bases",
    "Classification": "sads.metrics.digits",
    "Cluster": "sads.geometry.directions",
    "Comparison": "sads.geometry.compare",
    "DataSpectrum": "sads.rotations.alignment",
    "Directions": "sads.geometry.directions",
    "Estimate": "sads.estimates",
    "Estimates": "sads.estimates",
    "End": "sads.geometry.end",
    "Geometry": "sads.geometry.result",
    "ImageSet": "sads.data.images",
    "InterruptedEstimate": "sads.errors",
    "MaxSlicedWasserstein": "sads.metrics.sliced_wasserstein",
    "Pairing": "sads.rotations.alignment",
    "Probe": "sads.probes",
    "Provenance": "sads.geometry.result",
    "Ranking": "sads.experiments.ranking",
    "Readout": "sads.geometry.readout",
    "RotatedDataset": "sads.rotations.rotated_data",
    "Rotation": "sads.rotations.rotation",
    "NotKeptError": "sads.errors",
    "SadsError": "sads.errors",
    "Schedule": "sads.schedule",
    "ScoreFamily": "sads.families",
    "ScoreModel": "sads.diffusion.model",
    "SlicedWasserstein": "sads.metrics.sliced_wasserstein",
    "Structure": "sads.theory.propositions",
    "alignment": "sads.rotations.alignment",
    "basis": "sads.data.bases",
    "classify": "sads.metrics.digits",
    "compare": "sads.geometry.compare",
    "estimate_geometry": "sads.geometry.estimate",
    "family": "sads.families",
    "gaussian_skip": "sads.diffusion.skip",
    "load_geometry": "sads.geometry.result",
    "load_images": "sads.data.images",
    "load_labels": "sads.data.labels",
    "load_model": "sads.diffusion.model",
    "load_rotation": "sads.rotations.rotation",
    "max_sliced_wasserstein": "sads.metrics.sliced_wasserstein",
    "measure_anatomy": "sads.diffusion.anatomy",
    "pair": "sads.rotations.alignment",
    "probe": "sads.probes",
    "rank": "sads.experiments.ranking",
    "rank_one": "sads.data.synthetic",
    "read_images": "sads.data.images",
    "register_family": "sads.families:register",
    "register_predictor": "sads.predictors.registry",
    "register_reader": "sads.data.readers",
    "register_readout": "sads.geometry.readout",
    "register_sampler": "sads.diffusion.sample",
    "rotate_collate": "sads.rotations.rotated_data",
    "rotation": "sads.rotations.alignment",
    "sample": "sads.diffusion.sample",
    "sliced_wasserstein": "sads.metrics.sliced_wasserstein",
    "sliced_wasserstein_to_gaussian": "sads.metrics.sliced_wasserstein",
    "sphere": "sads.data.synthetic",
    "structure": "sads.theory.propositions",
    "train": "sads.diffusion.train",
    "write_report": "sads.report.build",
}
__all__ = [
    "Alignment",
    "Anatomy",
    "Basis",
    "Classification",
    "Cluster",
    "Comparison",
    "DataSpectrum",
    "Directions",
    "End",
    "Estimate",
    "Estimates",
    "Geometry",
    "ImageSet",
    "InterruptedEstimate",
    "MaxSlicedWasserstein",
    "NotKeptError",
    "Pairing",
    "Probe",
    "Provenance",
    "Ranking",
    "Readout",
    "RotatedDataset",
    "Rotation",
    "SadsError",
    "Schedule",
    "ScoreFamily",
    "ScoreModel",
    "SlicedWasserstein",
    "Structure",
    "alignment",
    "basis",
    "classify",
    "compare",
    "estimate_geometry",
    "family",
    "gaussian_skip",
    "load_geometry",
    "load_images",
    "load_labels",
    "load_model",
    "load_rotation",
    "max_sliced_wasserstein",
    "measure_anatomy",
    "pair",
    "probe",
    "rank",
    "rank_one",
    "read_images",
    "register_family",
    "register_predictor",
    "register_reader",
    "register_readout",
    "register_sampler",
    "rotate_collate",
    "rotation",
    "sample",
    "sliced_wasserstein",
    "sliced_wasserstein_to_gaussian",
    "sphere",
    "structure",
    "theory",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that it lives in."""
    if name == "theory":
        return importlib.import_module("sads.theory")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("sads")
    if name not in _HOMES:
        raise AttributeError(f"module 'sads' has no attribute {name!r}")
    module, _, original = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(module), original or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
