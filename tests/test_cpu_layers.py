"""Layers for one CPU core against PyTorch's in double precision."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.func import functional_call

from cases import needs_compiler
from sads.cpu import FastNetwork, layers

pytestmark = needs_compiler


def norm_silu(num_groups, channels, **options):
    return nn.Sequential(nn.GroupNorm(num_groups, channels, **options), nn.SiLU())


LAYERS = [
    ("convolve", nn.Conv2d(32, 32, 3, padding=1), (5, 32, 16, 16)),
    ("convolve", nn.Conv2d(64, 16, 3, padding="same"), (3, 64, 14, 14)),
    ("convolve", nn.Conv2d(16, 48, 3, padding=1, bias=False), (2, 16, 7, 9)),
    ("convolve", nn.Conv2d(16, 16, 3, padding=1), (70, 16, 4, 4)),
    ("convolve", nn.Conv2d(16, 16, 3, padding=1), (5, 16, 1, 2)),
    ("convolve", nn.Conv2d(16, 32, 3, padding=1), (2, 16, 33, 56)),
    ("convolve_few", nn.Conv2d(16, 256, 3, padding=1), (2, 16, 4, 4)),  # few tiles: PyTorch's
    ("convolve_few", nn.Conv2d(1, 32, 3, padding=1), (4, 1, 16, 16)),
    ("convolve_few", nn.Conv2d(3, 20, 3, padding=1, bias=False), (4, 3, 7, 9)),
    ("convolve_few", nn.Conv2d(32, 1, 3, padding=1), (4, 32, 16, 16)),
    ("convolve_few", nn.Conv2d(32, 3, 3, padding=1, bias=False), (4, 32, 7, 9)),
    ("convolve_few", nn.Conv2d(32, 40, 3, padding=1), (4, 32, 8, 8)),  # not 16 at a time: PyTorch's
    ("norm_silu", norm_silu(32, 32), (4, 32, 16, 16)),
    ("norm_silu", norm_silu(3, 48), (4, 48, 5, 7)),
]
PYTORCH = [
    (nn.Conv2d(32, 32, 3, padding=1, stride=2), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3, padding=1, groups=2), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3, padding=2, dilation=2), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3, padding="valid"), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 1), (4, 32, 8, 8)),
    (nn.Conv2d(32, 32, 3, padding=1).double(), (4, 32, 8, 8)),
    (nn.Conv1d(32, 32, 3, padding=1), (4, 32, 8)),
    (nn.BatchNorm2d(32), (4, 32, 8, 8)),
    (norm_silu(4, 32, affine=False), (4, 32, 8, 8)),
    (norm_silu(4, 24), (4, 24, 8, 8)),
    (norm_silu(32, 64), (4, 64, 24)),  # no images
    (nn.Sequential(nn.GroupNorm(4, 32), nn.ReLU()), (4, 32, 8, 8)),
]


@pytest.fixture
def used(monkeypatch):
    """The names of our functions, as they are called."""
    names = []

    def record(name):
        function = getattr(layers, name)

        def recorded(*arguments, **options):
            names.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(layers, name, recorded)

    for name in ("convolve", "convolve_few", "norm_silu"):
        record(name)
    return names


def equal(mine, theirs, tolerance=1e-5):
    return (mine - theirs).norm() <= tolerance * theirs.norm()


def values_and_gradients(forward, layer, x, direction):
    x = x.clone().requires_grad_()
    y = forward(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], direction)]


def exact_values_and_gradients(layer, x, direction):
    layer = copy.deepcopy(layer).double()
    return values_and_gradients(layer, layer, x.double(), direction.double())


@pytest.mark.parametrize(("name", "layer", "shape"), LAYERS, ids=str)
def test_equal_to_pytorch_in_double_precision(name, layer, shape, used):
    torch.manual_seed(0)
    layer = copy.deepcopy(layer)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape) + 0.5
    direction = torch.randn_like(layer(x))
    ours = values_and_gradients(FastNetwork(layer), layer, x, direction)
    assert used == [name]
    for mine, theirs in zip(ours, exact_values_and_gradients(layer, x, direction), strict=True):
        assert equal(mine, theirs)


@pytest.mark.parametrize(("layer", "shape"), PYTORCH, ids=str)
def test_layers_that_do_not_fit_are_pytorch_s(layer, shape, used):
    x = torch.randn(shape, dtype=next(layer.parameters(), torch.empty(0)).dtype)
    assert torch.equal(FastNetwork(layer)(x), layer(x))
    assert not used


@pytest.mark.parametrize("layer", [layer for _, layer, _ in LAYERS], ids=str)
def test_gradients_that_are_a_part_of_the_channels(layer):
    """Those of a concatenation: pixels are further apart than they have channels."""
    norm = isinstance(layer, nn.Sequential)
    x = torch.randn(5, layer[0].num_channels if norm else layer.in_channels, 8, 8)

    def gradients(x, forward, layer):
        x = x.clone().requires_grad_()
        y = forward(x)
        y = torch.cat([y, torch.ones_like(y)], 1).contiguous(memory_format=torch.channels_last)
        y.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    double = copy.deepcopy(layer).double()
    exact = gradients(x.double(), double, double)
    for mine, theirs in zip(gradients(x, FastNetwork(layer), layer), exact, strict=True):
        assert equal(mine, theirs)


def test_without_gradients_and_from_any_layout():
    layer = nn.Conv2d(16, 32, 3, padding=1)
    x = torch.randn(3, 16, 8, 8).to(memory_format=torch.channels_last)
    expected = layer(x)
    with torch.no_grad():
        assert equal(FastNetwork(layer, frozen=True)(x), expected)


def test_silu_of_what_is_large_or_not_finite():
    layer = norm_silu(1, 16)
    weights = torch.tensor([1e3, -1e3, 1e6, -1e6, 1.0, 0.0, 30.0, -30.0])
    with torch.no_grad():
        layer[0].weight.copy_(weights.repeat(2))
    x = torch.randn(2, 16, 4, 4)
    exact = copy.deepcopy(layer).double()(x.double())
    fast = FastNetwork(layer)
    assert ((fast(x) - exact).abs() < 1e-6 * (1 + layer[0].weight.abs()[:, None, None])).all()
    x[0, 0, 0, 0] = torch.nan
    assert fast(x)[0].isnan().all()
    assert fast(x)[1].isfinite().all()


@pytest.mark.parametrize(("size", "mean", "tolerance"), [(64, 100, 1e-4), (512, 0, 1e-5)])
def test_normalisation_of_large_numbers_and_images(size, mean, tolerance):
    layer, x = norm_silu(16, 16), torch.randn(1, 16, size, size) + mean
    direction = torch.randn_like(x)
    ours = values_and_gradients(FastNetwork(layer), layer, x, direction)
    for mine, theirs in zip(ours, exact_values_and_gradients(layer, x, direction), strict=True):
        assert equal(mine, theirs, tolerance)


SMALL = [nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1), norm_silu(4, 16)]
FROM_FEW = nn.Conv2d(3, 16, 3, padding=1)


@pytest.mark.parametrize("kind", ["channels", "dtype", "one image", "empty"])
@pytest.mark.parametrize("layer", [*SMALL, FROM_FEW], ids=str)
def test_other_inputs_get_pytorch_s_answer(kind, layer):
    """C code would read past the end of memory, or take doubles for floats."""
    c = 3 if layer is FROM_FEW else 16
    x = {
        "channels": torch.randn(2, 8, 8, 8),
        "dtype": torch.randn(2, c, 8, 8).double(),
        "one image": torch.randn(c, 16, 8),
        "empty": torch.randn(2, c, 0, 8),
    }[kind]
    try:
        expected = layer(x)
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            FastNetwork(layer)(x)
    else:
        assert equal(FastNetwork(layer)(x), expected)


@pytest.mark.parametrize("layer", SMALL, ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_networks_that_differentiate_in_their_forward_pass(layer, frozen):
    """The score of an energy: training it takes second derivatives."""
    x = torch.randn(2, 16, 8, 8)

    def score(forward):
        inputs = x.clone().requires_grad_()
        energy = (inputs + forward(inputs)).square().sum()
        (y,) = torch.autograd.grad(energy, inputs, create_graph=True)
        return y, *torch.autograd.grad(y.square().sum(), layer.parameters())

    fast = FastNetwork(layer, frozen=frozen)
    for mine, theirs in zip(score(fast), score(layer), strict=True):
        assert equal(mine, theirs, 1e-4)


@pytest.mark.parametrize("change", ["view", "cut"])
def test_other_weights_stay_with_pytorch(change, used):
    layer = nn.Conv2d(32, 32, 3, padding=1)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    if change == "view":
        layer.weight = nn.Parameter(weight.transpose(0, 1))
    else:  # a bias that does not fit: PyTorch's error
        layer.weight, layer.bias = nn.Parameter(weight[:16]), nn.Parameter(bias[:20])
    x = torch.randn(2, 32, 8, 8)
    if change == "view":
        assert torch.equal(FastNetwork(layer, frozen=True)(x), layer(x))
    else:
        with pytest.raises(RuntimeError):
            FastNetwork(layer, frozen=True)(x)
    assert not used


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_are_replaced_for_a_call(frozen):
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 8, 8)

    class Replaced(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.layer, self.other = layer, other

        def forward(self, x):
            return functional_call(self.layer, self.other, x)

    for other in (
        {"weight": 2 * layer.weight},
        {"bias": torch.randn(1).expand(16)},
        {"weight": layer.weight[:5], "bias": torch.randn(5)},
    ):
        network = Replaced(other)
        with torch.no_grad():
            assert equal(FastNetwork(network, frozen=frozen)(x), network(x))
    with pytest.raises(RuntimeError):
        FastNetwork(Replaced({"bias": torch.zeros(1)}))(x)


def test_group_normalisation_of_what_needs_no_gradient():
    """PyTorch 2.13 crashes there if channels come last."""
    network = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16))
    network[0].requires_grad_(False)
    for size in (8, 1):
        x = torch.randn(32, 16, size, size)
        expected, mine = (
            torch.autograd.grad(forward(x).square().sum(), network[1].parameters())
            for forward in (network, FastNetwork(network))
        )
        assert all(map(equal, mine, expected))
