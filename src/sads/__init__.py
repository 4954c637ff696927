"""Score Anisotropy Directions: the directional biases of diffusion models before training."""

from importlib.metadata import version as _version

from sads import theory
from sads.alignment import Alignment, DataSpectrum, Pairing, alignment, pair, rotation
from sads.classify import Classification, classify
from sads.data.bases import Basis, basis
from sads.data.images import ImageSet, load_images, read_images
from sads.data.labels import load_labels
from sads.data.rotated import RotatedDataset, rotate_collate
from sads.data.synthetic import rank_one, sphere
from sads.diffusion.model import ScoreModel, load_model
from sads.diffusion.sample import sample
from sads.diffusion.train import train
from sads.directions import Cluster, Directions
from sads.errors import SadsError
from sads.family import ScoreFamily, family
from sads.geometry.estimate import estimate_geometry
from sads.geometry.geometry import Geometry, load_geometry
from sads.metrics import (
    MaxSlicedWasserstein,
    SlicedWasserstein,
    max_sliced_wasserstein,
    sliced_wasserstein,
    sliced_wasserstein_to_gaussian,
)
from sads.probe import probe
from sads.rotations import Rotation, load_rotation
from sads.schedule import Schedule
from sads.theory.propositions import Structure, structure

__version__ = _version("sads")

__all__ = [
    "Alignment",
    "Basis",
    "Classification",
    "Cluster",
    "DataSpectrum",
    "Directions",
    "Geometry",
    "ImageSet",
    "MaxSlicedWasserstein",
    "Pairing",
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
    "estimate_geometry",
    "family",
    "load_geometry",
    "load_images",
    "load_labels",
    "load_model",
    "load_rotation",
    "max_sliced_wasserstein",
    "pair",
    "probe",
    "rank_one",
    "read_images",
    "rotate_collate",
    "rotation",
    "sample",
    "sliced_wasserstein",
    "sliced_wasserstein_to_gaussian",
    "sphere",
    "structure",
    "theory",
    "train",
]
