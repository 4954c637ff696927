"""Score Anisotropy Directions: the directional biases of diffusion models before training."""

from importlib.metadata import version as _version

from sads import theory
from sads.alignment import Alignment, Rotation, alignment, load_rotation, rotation
from sads.directions import Cluster, Directions
from sads.errors import SadsError
from sads.family import ScoreFamily, family
from sads.geometry.estimate import estimate_geometry
from sads.geometry.geometry import Geometry, load_geometry
from sads.probe import probe
from sads.schedule import Schedule
from sads.theory.propositions import Structure, structure

__version__ = _version("sads")

__all__ = [
    "Alignment",
    "Cluster",
    "Directions",
    "Geometry",
    "Rotation",
    "SadsError",
    "Schedule",
    "ScoreFamily",
    "Structure",
    "alignment",
    "estimate_geometry",
    "family",
    "load_geometry",
    "load_rotation",
    "probe",
    "rotation",
    "structure",
    "theory",
]
