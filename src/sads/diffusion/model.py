"""A trained score network with what is needed to use it: the family it is from."""

import copy
import json
import math
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sads.arguments import as_path, check_type
from sads.checked import checked
from sads.diffusion.options import TrainingOptions
from sads.diffusion.weights import bounded_construction, check_fit, fill, meta_device
from sads.errors import CheckpointError, InvalidArgumentError, NetworkError, printable
from sads.estimates import mean_estimate
from sads.families import ARCHITECTURES, Description, Factory, ScoreFamily, family
from sads.files import opening, plain, replacing
from sads.from_json import decode
from sads.geometry.lift import MAX_DIMENSION
from sads.markup import card, facts
from sads.networks.gaussian import GaussianPart
from sads.seeds import generators_kept
from sads.shapes import MAX_AXES, format_shape
from sads.tensorfile import TensorFile, write_tensors
from sads.untrusted import parse_json

FORMAT = "sads-model"
PREFIX = "network."  # of the names of weights
LAST = "last."  # of those of the last update, beside their average
UNKNOWN = "unknown"  # layers of a model that was trained before their name was kept


@dataclass(frozen=True)
class TrainingProvenance:
    """How a model was trained: by what, on what, where. Nothing is known if sads did not do it."""

    family: Mapping[str, Any] = field(default_factory=dict)  # `ScoreFamily.describe()`
    options: TrainingOptions | None = None
    data: str = ""  # digest of the samples
    num_samples: int = 0
    seconds: float = 0.0
    compiled: bool = False
    layers: str = UNKNOWN  # "sads-cpu-1", "torch"; joined by +, if it was continued elsewhere
    versions: Mapping[str, str] = field(default_factory=dict)
    rotation: Mapping[str, Any] | None = None  # of the data, if somebody rotated them
    data_range: tuple[float, float] | None = None  # least and largest value, before a rotation

    @staticmethod
    def from_json(text: str) -> "TrainingProvenance":
        """What `plain` made of a provenance, perhaps by an older sads, or `ValueError`."""
        return decode(TrainingProvenance, parse_json(text))


@dataclass(frozen=True, eq=False)
class ScoreModel:
    """A network of a family with trained weights.

    `losses` holds the loss of every update. `provenance` says how it was trained. If the data
    were centred, `mean` was taken off them, and is added to samples. If the weights are averages
    over the training, `last` holds those of its last update.
    """

    family: ScoreFamily
    network: nn.Module
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    provenance: TrainingProvenance = field(default_factory=TrainingProvenance)
    mean: Tensor | None = None  # (*shape) float32
    last: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        check_type(self.network, nn.Module, "the network", "give one that the family builds")
        if any(p.is_meta for p in self.network.parameters()):
            raise NetworkError(
                "the network is on the device 'meta', which holds no numbers: build it on the CPU"
            )
        if self.mean is not None and tuple(self.mean.shape) != self.family.shape:
            raise InvalidArgumentError(
                f"the mean has shape {tuple(self.mean.shape)}, the family {self.family.shape}"
            )

    @property
    def averaged(self) -> bool:
        """Whether its weights are averages over the training."""
        return self.last is not None

    def unaveraged(self) -> "ScoreModel":
        """This model with the weights of its last update; itself if they are not averaged."""
        if self.last is None:
            return self
        network = copy.deepcopy(self.network)
        network.load_state_dict(dict(self.last))
        return replace(self, network=network, last=None)

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        made, family = self.provenance, self.family
        last = self.losses[-max(1, len(self.losses) // 20) :]
        rotated = None if made.rotation is None else made.rotation.get("kind")
        rows = {
            "shape": format_shape(family.shape),
            "predicts": family.prediction,
            "parameters": f"{sum(p.numel() for p in self.network.parameters()):,}",
            "updates": f"{len(self.losses):,}",
            "loss": mean_estimate(last) if len(last) else None,
            "samples trained on": f"{made.num_samples:,}" if made.num_samples else None,
            "rotation": rotated,
            "seconds": f"{made.seconds:.1f}" if made.seconds else None,
        }
        shown = {name: value for name, value in rows.items() if value is not None}
        return card(f"Score model of {family.name}", facts(shown))

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write weights and provenance as safetensors, all at once or not at all."""
        tensors = {PREFIX + k: v for k, v in self.network.state_dict().items()}
        tensors |= {LAST + k: v for k, v in (self.last or {}).items()}
        if self.family.skip is not None:
            tensors |= {f"skip.{k}": v for k, v in self.family.skip.tensors().items()}
        if self.mean is not None:
            tensors["mean"] = self.mean.float()
        metadata = {
            "format": FORMAT,
            "family": json.dumps(self.family.describe()),
            "provenance": json.dumps(plain(self.provenance)),
        }
        path = as_path(path)
        with replacing(path) as temporary:
            write_tensors(temporary, {**tensors, "losses": self.losses}, metadata)
        return path


@checked
def load_model(
    path: str | os.PathLike[str], score_family: ScoreFamily | Factory | None = None
) -> ScoreModel:
    """Read a model that `ScoreModel.save` or a training run wrote to `path`.

    A model of a family that sads knows by name is rebuilt from its options; for your own networks
    pass it as `score_family`, or the function that builds them. The file has the skip of the model,
    if any.
    """
    with opening(as_path(path), FORMAT, CheckpointError) as file:
        provenance = TrainingProvenance.from_json(file.metadata["provenance"])
        described = parse_json(file.metadata["family"])
        if not isinstance(described, dict):
            raise ValueError("it does not say of which family its model is")
        skip = described.pop("skip", None)
        trusted = isinstance(score_family, ScoreFamily)
        if not isinstance(score_family, ScoreFamily):
            score_family = _described_family(described, file, printable(path), score_family)
        score_family = replace(score_family, skip=None)
        if score_family.describe() != described:
            raise CheckpointError(
                f"{printable(path)} holds a model of {printable(described)[:300]}, not of "
                f"{score_family.describe()}; give the family that it was trained with"
            )
        bounds = nullcontext() if trusted else bounded_construction(file, PREFIX)
        with generators_kept(), bounds:
            network = score_family.build()
        last = None
        try:
            fill(network.state_dict(), file, PREFIX)
            if any(name.startswith(LAST) for name in file):
                last = {k: torch.empty_like(v) for k, v in network.state_dict().items()}
                fill(last, file, LAST)
        except ValueError as error:
            raise CheckpointError(
                f"the weights in {printable(path)} do not fit the family: {error}; give the family "
                "that it was trained with"
            ) from error
        file.expect("losses", file.entry("losses").dtype, None)
        losses = file["losses"]
        if not losses.is_floating_point():
            raise ValueError("its losses are not numbers")
        score_family = replace(score_family, skip=_read_skip(skip, file, score_family.dimension))
        mean = _read_mean(file, score_family.shape)
        return ScoreModel(score_family, network.eval(), losses, provenance, mean, last)


def _read_skip(described: Any, file: TensorFile, dimension: int) -> GaussianPart | None:
    """The Gaussian part in the file of a model; `ValueError` if it does not fit."""
    if described is None:
        return None
    if not isinstance(described, dict) or described.get("kind") != "gaussian":
        raise ValueError("the skip of its model is of a kind that is not known")
    rank = file.entry("skip.values").shape[0] if file.entry("skip.values").shape else 0
    file.expect("skip.mean", "float64", dimension)
    file.expect("skip.vectors", "float32", dimension, rank)
    file.expect("skip.values", "float64", rank)
    file.expect("skip.rest", "float64")
    return GaussianPart(
        mean=file["skip.mean"],
        vectors=file["skip.vectors"],
        values=file["skip.values"],
        rest=float(file["skip.rest"]),
    )


def _read_mean(file: TensorFile, shape: tuple[int, ...]) -> Tensor | None:
    """The mean of the data in the file of a model that was trained on centred data."""
    if "mean" not in file.entries:
        return None
    file.expect("mean", "float32", *shape)
    mean = file["mean"]
    if not mean.isfinite().all():
        raise ValueError("the mean of its data is not finite")
    return mean


def _described_family(
    content: Any, file: TensorFile, path: str, factory: Factory | None
) -> ScoreFamily:
    """The family that `describe()` described, if it is one that the weights of the file fit.

    Before that is known it is built without memory, on PyTorch's device `meta`: what a file says
    can be anything, such as a billion channels.
    """
    described = decode(Description, content)
    if factory is None and described.name not in ARCHITECTURES:
        raise CheckpointError(
            f"{path} holds a model of {printable(described.name)[:60]!r}, which sads does not know "
            "by name; pass the family that builds it"
        )
    if not 0 < math.prod(described.shape) <= MAX_DIMENSION or len(described.shape) > MAX_AXES:
        raise ValueError("the shape of its data is not one")
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in described.options.items()}
    if reserved := {"name", "shape", "prediction", "schedule"} & options.keys():
        raise ValueError(f"its network has the option {min(reserved)!r}")
    with nullcontext() if factory else meta_device(), bounded_construction(file, PREFIX):
        made = family(
            factory or described.name,
            described.shape,
            prediction=described.prediction,
            schedule=described.schedule,
            **options,
        )
        if factory is None:
            network = made.build()
            check_fit(network.state_dict(), file, PREFIX)
            made.check_output(network(torch.zeros(1, *made.shape), torch.zeros(1)), 1)
    return made


def noise_from_output(score_family: ScoreFamily, output: Tensor, x: Tensor, level: int) -> Tensor:
    """What the network's output at one level says about the noise in `x`."""
    a, b = score_family.schedule.score_coefficients(score_family.prediction)
    sigma = float(score_family.schedule.sigma[level])
    whole = score_family.with_skip(output, x, torch.tensor([level]))
    return -sigma * (float(a[level]) * x + float(b[level]) * whole)
