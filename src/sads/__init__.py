"""Score Anisotropy Directions: the directional biases of diffusion models before training."""

from importlib.metadata import version as _version

from sads.data.bases import Basis, basis
from sads.data.images import ImageSet, load_images, read_images
from sads.data.synthetic import rank_one, sphere
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
from sads.schedule import Schedule

__version__ = _version("sads")

__all__ = [
    "Basis",
    "Cluster",
    "Directions",
    "Geometry",
    "ImageSet",
    "MaxSlicedWasserstein",
    "SadsError",
    "Schedule",
    "ScoreFamily",
    "SlicedWasserstein",
    "basis",
    "estimate_geometry",
    "family",
    "load_geometry",
    "load_images",
    "max_sliced_wasserstein",
    "probe",
    "rank_one",
    "read_images",
    "sliced_wasserstein",
    "sliced_wasserstein_to_gaussian",
    "sphere",
]
