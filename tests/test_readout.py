"""The output layer integrated out, against its definition written out as dense matrices."""

import pytest
import torch
from torch import Tensor, nn

import sads
from cases import FAMILIES, TwoLayer, small_family
from sads.errors import ZeroReadoutError
from sads.geometry.initialise import Initialiser
from sads.geometry.readout import NoReadout, Readout, capture_input, find_readout


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
    assert isinstance(readout, Readout), readout
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
    assert isinstance(readout, Readout), readout
    _compare(family, network, readout)


def _compare(family: sads.ScoreFamily, network: nn.Module, readout: Readout) -> None:
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
    assert isinstance(readout, Readout)
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
