"""The output layer integrated out, against its definition written out as dense matrices."""

import math
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import sads
from cases import FAMILIES, FEW_LEVELS, TwoLayer, small_family
from sads.errors import InvalidArgumentError, ZeroReadoutError
from sads.geometry import readout as readout_module
from sads.geometry.drawing import Initialiser
from sads.geometry.lift import Lift
from sads.geometry.readout import NoReadout, OutputLayer, Readout, capture_input, find_readout
from sads.geometry.readouts import ConvolutionReadout, LinearReadout


def _readout(family: sads.ScoreFamily) -> tuple[nn.Module, Readout | NoReadout]:
    initialiser = Initialiser(family.build)
    return initialiser.module, find_readout(family, initialiser)


def _dense_conditional_geometry(
    network: nn.Module, layer: nn.Module, x: Tensor, t: Tensor, s2_w: float, s2_b: float
) -> Tensor:
    """`s2_w J_w J_w^T + s2_b J_b J_b^T` from the Jacobians of the whole network."""

    def output(weight: Tensor, bias: Tensor) -> Tensor:
        path = next(name for name, module in network.named_modules() if module is layer)
        replaced = {f"{path}.weight": weight, f"{path}.bias": bias}
        return torch.func.functional_call(network, replaced, (x, t)).flatten()

    jacobians = torch.autograd.functional.jacobian(output, (layer.weight, layer.bias))
    w, b = (j.flatten(1).double() for j in jacobians)
    return s2_w * w @ w.T + s2_b * b @ b.T


class OddConvolution(nn.Module):
    """A last convolution with everything unusual about it."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.last = nn.Conv2d(3, 1, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) + t[:, None, None, None] / 1000)


@pytest.mark.parametrize("name", FAMILIES)
def test_closed_form_equals_the_jacobians(name: str) -> None:
    family = small_family(name)
    network, readout = _readout(family)
    assert isinstance(readout, ConvolutionReadout | LinearReadout), readout
    _compare(family, network, readout)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": (1, 5), "padding": "same"},
        {"kernel_size": 4, "padding": "same", "padding_mode": "zeros"},
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_unusual_convolutions(options: dict[str, object]) -> None:
    family = sads.family(lambda: OddConvolution(**options), (1, 6, 5))
    network, readout = _readout(family)
    assert isinstance(readout, ConvolutionReadout), readout
    _compare(family, network, readout)


def _compare(
    family: sads.ScoreFamily, network: nn.Module, readout: ConvolutionReadout | LinearReadout
) -> None:
    layer = network.get_submodule(readout.path)
    x, t = torch.randn(1, *family.shape), torch.tensor([300.0])
    expected = _dense_conditional_geometry(
        network, layer, x, t, readout.weight_variance, readout.bias_variance
    )
    with torch.no_grad():
        h = readout.rows(capture_input(network, layer, x, t)[None])[0].double()
    given = readout.lift.dense(readout.factor(h.T @ h))
    assert torch.allclose(given, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


def test_only_the_first_channels_may_be_the_output() -> None:
    """A layer that predicts a variance too, whose channels the caller drops."""

    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 4, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.last(x + t[:, None, None, None])[:, :2]

    family = sads.family(Learned, (2, 4, 4))
    network, readout = _readout(family)
    assert isinstance(readout, ConvolutionReadout)
    assert readout.lift.groups == 2
    _compare(family, network, readout)


def _constant_bias() -> nn.Module:
    layer = nn.Linear(5, 4)
    nn.init.constant_(layer.bias, 0.3)
    return TwoLayer(layer, 4, 5)


def _uneven_weights() -> nn.Module:
    layer = nn.Linear(5, 4)
    layer.weight.data[:2].mul_(3)
    return TwoLayer(layer, 4, 5)


def _shifted_weights() -> nn.Module:
    layer = nn.Linear(5, 4)
    nn.init.uniform_(layer.weight, 0, 1)
    return TwoLayer(layer, 4, 5)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: TwoLayer(nn.Linear(5, 4), 4, 5, nn.Tanh()), "not a rearrangement"),
        (_constant_bias, "mean zero"),
        (_uneven_weights, "identically distributed"),
        (_shifted_weights, "mean zero"),
        (lambda: TwoLayer(nn.Identity(), 4, 4, nn.Flatten()), "not a rearrangement"),
    ],
)
def test_layers_that_cannot_be_integrated_out(factory: type, words: str) -> None:
    _, readout = _readout(sads.family(factory, (1, 2, 2)))
    assert isinstance(readout, NoReadout)
    assert words in readout.reason


def test_a_zero_output_layer_is_an_error() -> None:
    def factory() -> nn.Module:
        layer = nn.Linear(5, 4)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return TwoLayer(layer, 4, 5)

    with pytest.raises(ZeroReadoutError, match="zero_readout='default'"):
        _readout(sads.family(factory, (1, 2, 2)))


class ScaledSum(nn.Module):
    """Somebody else's output layer: a linear layer that divides by the root of its width."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(size, width))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.kernel.T / math.sqrt(h.shape[-1])


@dataclass(frozen=True, eq=False)
class ScaledSumReadout(Readout):
    """`G|h = s2 |h|^2 / width I`: positions are one, groups are the outputs."""

    layers = (ScaledSum,)
    parameters = ("kernel",)

    path: str
    variance: float
    lift: Lift

    @classmethod
    def fit(cls, found: OutputLayer) -> "ScaledSumReadout | NoReadout":
        lift = Lift.from_places(found.index, torch.zeros_like(found.index), 1)
        assert lift is not None
        width = found.features.shape[-1]
        return cls(found.path, found.laws["kernel"].variance / width, lift)

    def rows(self, h: Tensor) -> Tensor:
        return h.reshape(len(h), -1, 1)

    def factor(self, gram: Tensor) -> Tensor:
        return self.variance * gram


@pytest.fixture
def _readouts_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readout_module, "_REGISTERED", list(readout_module._REGISTERED))


@pytest.mark.usefixtures("_readouts_as_they_were")
def test_a_readout_from_outside_is_used() -> None:
    family = sads.family(lambda: TwoLayer(ScaledSum(5, 4), 4, 5), (1, 2, 2), schedule=FEW_LEVELS)
    before = sads.estimate_geometry(family, 2000, seed=1)
    assert before.estimator == "outer-product"
    sads.register_readout(ScaledSumReadout)
    after = sads.estimate_geometry(family, 2000, seed=2)
    assert (after.estimator, after.provenance.readout) == ("integrated", "last")
    for v in torch.eye(4):
        a, b = before.energy(v), after.energy(v)
        assert abs(a - b) < 4 * math.hypot(a.error, b.error)
        assert b.error < a.error / 3


@pytest.mark.usefixtures("_readouts_as_they_were")
def test_a_wrong_formula_is_not_believed() -> None:
    class Wrong(ScaledSumReadout):
        def factor(self, gram: Tensor) -> Tensor:
            return 1.1 * super().factor(gram)

    sads.register_readout(Wrong)
    _, readout = _readout(sads.family(lambda: TwoLayer(ScaledSum(5, 4), 4, 5), (1, 2, 2)))
    assert isinstance(readout, NoReadout)
    assert "does not agree with its derivatives" in readout.reason


def test_a_readout_says_what_layers_it_is_for() -> None:
    class Nothing(ScaledSumReadout):
        layers = ()

    with pytest.raises(InvalidArgumentError, match="names the types of layers"):
        sads.register_readout(Nothing)


def test_a_readout_that_is_registered_before_anything_else_goes_first():
    """In a fresh interpreter, where ours are imported later than the user's."""
    code = """
import torch, sads
class Mine(sads.Readout):
    layers = (torch.nn.Linear,)
    @classmethod
    def fit(cls, found):
        raise KeyError("asked")
sads.register_readout(Mine)
try:
    sads.estimate_geometry("mlp", 16)
except KeyError as error:
    print(error.args[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "asked\n", done.stderr
