"""The public names and the modules that they live in.

This is the only list of them: type checkers and editors read it, and so does `__init__.py`.
"""

from sads import theory as theory
from sads.data.bases import Basis as Basis
from sads.data.bases import basis as basis
from sads.data.images import ImageSet as ImageSet
from sads.data.images import load_images as load_images
from sads.data.images import read_images as read_images
from sads.data.labels import load_labels as load_labels
from sads.data.readers import register_reader as register_reader
from sads.data.synthetic import rank_one as rank_one
from sads.data.synthetic import sphere as sphere
from sads.diffusion.anatomy import Anatomy as Anatomy
from sads.diffusion.anatomy import measure_anatomy as measure_anatomy
from sads.diffusion.model import ScoreModel as ScoreModel
from sads.diffusion.model import load_model as load_model
from sads.diffusion.sample import register_sampler as register_sampler
from sads.diffusion.sample import sample as sample
from sads.diffusion.skip import gaussian_skip as gaussian_skip
from sads.diffusion.train import train as train
from sads.errors import InterruptedEstimate as InterruptedEstimate
from sads.errors import NotKeptError as NotKeptError
from sads.errors import SadsError as SadsError
from sads.estimates import Estimate as Estimate
from sads.estimates import Estimates as Estimates
from sads.experiments.ranking import Ranking as Ranking
from sads.experiments.ranking import rank as rank
from sads.families import ScoreFamily as ScoreFamily
from sads.families import family as family
from sads.families import register_family as register_family
from sads.geometry.compare import Comparison as Comparison
from sads.geometry.compare import compare as compare
from sads.geometry.directions import Cluster as Cluster
from sads.geometry.directions import Directions as Directions
from sads.geometry.ends import End as End
from sads.geometry.estimate import estimate_geometry as estimate_geometry
from sads.geometry.readout import Readout as Readout
from sads.geometry.readout import register_readout as register_readout
from sads.geometry.result import Geometry as Geometry
from sads.geometry.result import Provenance as Provenance
from sads.geometry.result import load_geometry as load_geometry
from sads.metrics.digits import Classification as Classification
from sads.metrics.digits import classify as classify
from sads.metrics.sliced_wasserstein import MaxSlicedWasserstein as MaxSlicedWasserstein
from sads.metrics.sliced_wasserstein import SlicedWasserstein as SlicedWasserstein
from sads.metrics.sliced_wasserstein import max_sliced_wasserstein as max_sliced_wasserstein
from sads.metrics.sliced_wasserstein import sliced_wasserstein as sliced_wasserstein
from sads.metrics.sliced_wasserstein import (
    sliced_wasserstein_to_gaussian as sliced_wasserstein_to_gaussian,
)
from sads.predictors.registry import register_predictor as register_predictor
from sads.probes import Probe as Probe
from sads.probes import probe as probe
from sads.report.build import write_report as write_report
from sads.rotations.alignment import Alignment as Alignment
from sads.rotations.alignment import DataSpectrum as DataSpectrum
from sads.rotations.alignment import Pairing as Pairing
from sads.rotations.alignment import alignment as alignment
from sads.rotations.alignment import pair as pair
from sads.rotations.alignment import rotation as rotation
from sads.rotations.rotated_data import RotatedDataset as RotatedDataset
from sads.rotations.rotated_data import rotate_collate as rotate_collate
from sads.rotations.rotation import Rotation as Rotation
from sads.rotations.rotation import load_rotation as load_rotation
from sads.schedule import Schedule as Schedule
from sads.theory.propositions import Structure as Structure
from sads.theory.propositions import structure as structure

__version__: str
