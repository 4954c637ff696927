"""Small networks that keep, or break, the assumptions of each proposition."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sads.families import ScoreFamily, family
from sads.networks import CNN, MLP, DiT


class Rectified(nn.Module):
    """A network followed by `max(0, .)` on every output."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.relu(self.network(x, t))


class TokenBias(nn.Module):
    """A network with one random bias for every output on top: one per token, not shared."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...]):
        super().__init__()
        self.network = network
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.network(x, t) + self.bias


@dataclass(frozen=True)
class Example:
    """A family with the proposition it is about and whether its assumptions are met."""

    name: str
    family: ScoreFamily
    proposition: int
    holds: bool
    why: str
    patch_size: int | None = None

    @property
    def form(self) -> str:
        return ("mlp", "cnn", "transformer")[self.proposition - 1]


def examples() -> tuple[Example, ...]:
    """For each proposition, networks of this package that obey it and networks that do not."""
    flat, color, tokens = (1, 4, 4), (3, 4, 4), (1, 8, 8)
    mlp = _maker(MLP, shape=flat, width=32, depth=2)
    cnn = _maker(CNN, shape=color, channels=16, depth=2)
    dit = _maker(DiT, shape=tokens, patch_size=4, hidden_size=16, depth=1, num_heads=2)
    return (
        Example("MLP", family(mlp, flat), 1, True, "iid output layer"),
        Example("MLP, ReLU", family(lambda: Rectified(mlp()), flat), 1, True, "b > 0"),
        Example(
            "MLP, unequal rows",
            family(_unequal(mlp), flat),
            1,
            False,
            "rows of the output layer differ in variance",
        ),
        Example("CNN", family(cnn, color), 2, True, "iid kernels"),
        Example("CNN, ReLU", family(lambda: Rectified(cnn()), color), 2, True, "B is not 0"),
        Example(
            "CNN, unequal channels",
            family(_unequal(cnn), color),
            2,
            False,
            "kernels of the output channels differ in variance",
        ),
        Example("DiT", family(dit, tokens), 3, True, "iid token-wise output layer", 4),
        Example(
            "DiT, shared bias",
            family(_with_bias(dit), tokens),
            3,
            True,
            "A has an extra s2_b 11^T: Equation 28",
            4,
        ),
        Example(
            "DiT, bias per token",
            family(lambda: TokenBias(dit(), tokens), tokens),
            3,
            True,
            "A has an extra s2_b I: Equation 29",
            4,
        ),
        Example(
            "DiT, ReLU",
            family(lambda: Rectified(dit()), tokens),
            3,
            False,
            "a nonlinearity after the output layer",
            4,
        ),
        Example(
            "DiT, unequal rows",
            family(_unequal(dit), tokens),
            3,
            False,
            "rows of the output layer differ in variance",
            4,
        ),
    )


def _maker(architecture: type[nn.Module], **options: object) -> Callable[[], nn.Module]:
    return lambda: architecture(**options)


def _unequal(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The output layer's rows scaled from 1/2 to 2."""

    def build() -> nn.Module:
        network = make()
        weight = _output(network).weight
        with torch.no_grad():
            for row, scale in zip(weight, torch.linspace(0.5, 2, len(weight)), strict=True):
                row.mul_(float(scale))
        return network

    return build


def _with_bias(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = make()
        nn.init.normal_(_output(network).get_parameter("bias"))
        return network

    return build


def _output(network: nn.Module) -> nn.Linear | nn.Conv2d:
    layer = network.get_submodule("output")
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    return layer
