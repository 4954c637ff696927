"""A trained score network with what is needed to use it: the family it is from."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sads.errors import CheckpointError
from sads.family import ARCHITECTURES, Factory, ScoreFamily, family
from sads.files import reading, replacing
from sads.schedule import Schedule

FORMAT = "sads-model"


@dataclass(frozen=True, eq=False)
class ScoreModel:
    """A network of a family with trained weights.

    `losses` holds the loss of every update. `provenance` says how it was trained.
    """

    family: ScoreFamily
    network: nn.Module
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write weights and provenance as safetensors, all at once or not at all."""
        tensors = {f"network.{k}": v.contiguous() for k, v in self.network.state_dict().items()}
        metadata = {
            "format": FORMAT,
            "family": json.dumps(self.family.describe()),
            "provenance": json.dumps(self.provenance),
        }
        with replacing(Path(path)) as temporary:
            save_file({**tensors, "losses": self.losses}, temporary, metadata)
        return Path(path)


def load_model(
    path: str | os.PathLike[str], score_family: ScoreFamily | Factory | None = None
) -> ScoreModel:
    """Read a model that `ScoreModel.save` or a training run wrote.

    A model of a family that sads knows by name is rebuilt from its options; for your own networks
    pass the family, or the function that builds them.
    """
    tensors, metadata = read_tensors(path, FORMAT)
    described = json.loads(metadata["family"])
    if not isinstance(score_family, ScoreFamily):
        score_family = family_from_description(described, path, score_family)
    if score_family.describe() != described:
        raise CheckpointError(
            f"{path} holds a model of {described}, not of {score_family.describe()}; "
            "give the family that it was trained with"
        )
    with torch.random.fork_rng(devices=[]):
        network = score_family.build()
    weights = {k.removeprefix("network."): v for k, v in tensors.items() if k != "losses"}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights in {path} do not fit the family: {str(error).splitlines()[0]}"
        ) from error
    return ScoreModel(
        score_family, network.eval(), tensors["losses"], json.loads(metadata["provenance"])
    )


def family_from_description(
    described: Mapping[str, Any], path: str | os.PathLike[str], factory: Factory | None = None
) -> ScoreFamily:
    if factory is None and described["name"] not in ARCHITECTURES:
        raise CheckpointError(
            f"{path} holds a model of {described['name']!r}, which sads does not know by name; "
            "pass the family that builds it"
        )
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in described["options"].items()}
    return family(
        factory or described["name"],
        tuple(described["shape"]),
        prediction=described["prediction"],
        schedule=Schedule(**described["schedule"]),
        **options,
    )


def read_tensors(
    path: str | os.PathLike[str], expected: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file of one of our formats."""
    with reading(Path(path), expected, CheckpointError) as content:
        return content


def noise_from_output(score_family: ScoreFamily, output: Tensor, x: Tensor, level: int) -> Tensor:
    """What the network's output at one level says about the noise in `x`."""
    a, b = score_family.schedule.score_coefficients(score_family.prediction)
    sigma = float(score_family.schedule.sigma[level])
    return -sigma * (float(a[level]) * x + float(b[level]) * output)
