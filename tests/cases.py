"""Small families, probes and readers that many tests share."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sads
from sads.errors import CheckpointError
from sads.families import ScoreFamily
from sads.files import opening
from sads.geometry import estimate
from sads.probes import Probe

# Few levels with weights of one magnitude, so that plain Monte Carlo is a usable reference.
FEW_LEVELS = sads.Schedule("cosine", 3)


def small_family(name: str, **changes: object) -> ScoreFamily:
    shape, options = {
        "unet": ((1, 4, 4), {"channel_mults": (1,), "depth": 1}),
        "unet-area": ((1, 4, 4), {"channel_mults": (1,), "depth": 1, "resample": "area"}),
        "unet-1d": ((1, 8), {"channel_mults": (1,), "depth": 1}),
        "unet-colour": ((2, 4, 4), {"channel_mults": (), "depth": 1}),
        "dit": ((1, 4, 4), {"hidden_size": 8, "depth": 2, "num_heads": 2}),
        "dit-1d": ((2, 8), {"hidden_size": 8, "depth": 1, "num_heads": 2, "patch_size": 4}),
        "mlp": ((1, 3, 3), {"width": 16, "depth": 2, "time_width": 8}),
        "cnn": ((2, 4, 4), {"channels": 6, "depth": 2}),
        "cnn-1d": ((1, 9), {"channels": 6, "depth": 2, "kernel_size": 5}),
    }[name]
    architecture = {"unet": "iddpm"}.get(name.split("-")[0], name.split("-")[0])
    arguments = {"schedule": FEW_LEVELS, **options, **changes}
    return sads.family(architecture, shape, **arguments)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _kept_networks(name: str) -> Callable[[], nn.Module]:
    """The factory of a small family, which builds once what a seed gives.

    The seeds 0 and 1 are those of set-up, which watches constructors and must see them each time.
    """
    factory, kept = small_family(name).factory, dict[int, nn.Module]()

    def build() -> nn.Module:
        seed = torch.initial_seed()
        if seed not in kept:
            network = factory()
            if seed > 1:
                kept[seed] = network
            return network
        return kept[seed]

    return build


def plain_geometry(
    name: str, num_networks: int, probe: Probe | None = None, seed: int = 2, **changes: object
) -> sads.Geometry:
    """The reference of other estimators: the plain loop over networks of a small family.

    Neither the probe nor the prediction changes the networks of a seed: they are built once.
    """
    family = replace(small_family(name, **changes), factory=_kept_networks(name))
    probe = sads.probe("zero") if probe is None else probe
    return sads.estimate_geometry(
        family, num_networks, probe=probe, seed=seed, estimator="monte-carlo"
    )


@contextmanager
def one_set_up() -> Iterator[None]:
    """Estimates that differ in their seed only share what set-up finds out, most of their time.

    The numbers are the same bit for bit.
    """
    make_plan, plans = estimate.make_plan, []

    def made_once(family: Any, probe: Any, request: Any, stage: Any) -> Any:
        if not plans:
            plans.append(make_plan(family, probe, request, stage))
        plans[0].estimator.reseed(request.seed)
        return plans[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "make_plan", made_once)
        yield


FAMILIES = (
    "unet",
    "unet-area",
    "unet-1d",
    "unet-colour",
    "dit",
    "dit-1d",
    "mlp",
    "cnn",
    "cnn-1d",
)


def _ramp(level: int, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    noise = torch.rand(shape, generator=generator)
    return 0.3 * level + noise


PROBES: dict[str, Callable[[tuple[int, ...]], Probe]] = {
    "zero": lambda shape: sads.probe("zero"),
    "gaussian": lambda shape: sads.probe("gaussian", width=0.7),
    "forward": lambda shape: sads.probe(
        "forward", images=torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)
    ),
    "custom": lambda shape: sads.probe(lambda level, generator: _ramp(level, generator, shape)),
}


class TwoLayer(nn.Module):
    """A linear layer, an optional nonlinearity, and `last`; for networks made to order."""

    def __init__(self, last: nn.Module, size: int, width: int, output: nn.Module | None = None):
        super().__init__()
        self.first = nn.Linear(size + 1, width)
        self.last = last
        self.output = output or nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.tanh(self.first(torch.cat([x.flatten(1), t[:, None] / 1000], dim=1)))
        return self.output(self.last(h)).reshape(x.shape)


needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="there is no C compiler"
)


def read_tensors(path: str | Path, form: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a file of one of our formats."""
    with opening(Path(path), form, CheckpointError) as file:
        return dict(file), file.metadata
