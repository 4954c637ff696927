"""The rotation that lies beside the model of a run: `train` writes it, others read it."""

from pathlib import Path
from typing import TYPE_CHECKING

import sads

if TYPE_CHECKING:
    from sads.diffusion.model import ScoreModel
    from sads.rotations.rotation import Rotation

ROTATION = "rotation.safetensors"


def rotation_of(model: "ScoreModel", folder: Path) -> "Rotation | None":
    """The rotation that a model was trained behind, kept beside it."""
    if model.provenance.rotation is None:
        return None
    return sads.load_rotation(folder / ROTATION)
