"""The state of a training run, and its file: a run that was killed continues from there."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sads.diffusion.model import UNKNOWN
from sads.diffusion.weights import check_fit, fill
from sads.errors import CheckpointError, printable
from sads.files import opening, replacing
from sads.from_json import decode_as
from sads.tensorfile import TensorFile, write_tensors
from sads.untrusted import parse_json

FORMAT = "sads-checkpoint"
MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam


@dataclass
class TrainingState:
    """Everything that a run has after `iteration` updates."""

    network: nn.Module
    optimiser: torch.optim.Adam
    average: dict[str, Tensor] | None  # of the weights, if asked for
    losses: list[float] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)  # that have computed it so far, by name

    @property
    def iteration(self) -> int:
        return len(self.losses)


def save_checkpoint(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    """Write a state to a file, all at once or not at all."""
    tensors = {f"network.{k}": v for k, v in state.network.state_dict().items()}
    for index, moments in state.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{k}": v for k, v in moments.items()}
    for name, weight in (state.average or {}).items():
        tensors[f"average.{name}"] = weight
    tensors["losses"] = torch.tensor(state.losses, dtype=torch.float64)
    metadata = {
        "format": FORMAT,
        "identity": json.dumps(identity),
        "layers": json.dumps(state.layers),
    }
    with replacing(path) as temporary:
        write_tensors(temporary, tensors, metadata)


def load_checkpoint(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    """Put a checkpoint into a fresh state; it must be of the same family, options and data."""
    with opening(path, FORMAT, CheckpointError) as file:
        saved = decode_as(dict[str, Any], parse_json(file.metadata["identity"]), "identity")
        for key, what in identity.items():
            if saved.get(key) != json.loads(json.dumps(what)):
                raise CheckpointError(
                    f"{printable(path)} is a checkpoint of another {key} "
                    f"({printable(saved.get(key))[:200]}, now {printable(what)[:200]}); "
                    "continue it as it was started, or choose another folder"
                )
        layers = parse_json(file.metadata.get("layers", f'["{UNKNOWN}"]'))
        layers = decode_as(tuple[str, ...], layers, "layers")
        file.expect("losses", "float64", None)
        losses = file["losses"]
        if not losses.isfinite().all():
            raise ValueError("its losses are not finite")
        check_fit(state.network.state_dict(), file, "network.")
        check_fit(state.average or {}, file, "average.")
        moments = _read_moments(file, state, len(losses))
        fill(state.network.state_dict(), file, "network.")
        fill(state.average or {}, file, "average.")
        adam = state.optimiser.state_dict()
        state.optimiser.load_state_dict({**adam, "state": moments})
        state.losses, state.layers = losses.tolist(), list(layers)


def _read_moments(
    file: TensorFile, state: TrainingState, updates: int
) -> dict[int, dict[str, Tensor]]:
    """Adam's state of each parameter, by its number, after so many updates."""
    parameters = state.optimiser.param_groups[0]["params"]
    moments: dict[int, dict[str, Tensor]] = {}
    for index, parameter in enumerate(parameters):
        if not parameter.requires_grad or updates == 0:
            continue
        dtype = str(parameter.dtype).removeprefix("torch.")
        prefix = f"adam.{index}."
        file.expect(f"{prefix}step", "float32")
        for name in MOMENTS:
            file.expect(prefix + name, dtype, *parameter.shape)
        moments[index] = {name: file[prefix + name] for name in ("step", *MOMENTS)}
        if int(moments[index]["step"]) != updates or not (moments[index]["exp_avg_sq"] >= 0).all():
            raise ValueError("the state of Adam is not that of its updates")
    expected = {f"adam.{index}.{name}" for index, kept in moments.items() for name in kept}
    if {name for name in file if name.startswith("adam.")} != expected:
        raise ValueError("the state of Adam is of another network")
    return moments
