"""Layers for one CPU core against PyTorch's in double precision, and what happens without them."""

import copy
import re
import shutil
import subprocess
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

import sads
from sads.diffusion import kernels, speed
from sads.diffusion.kernels import (
    FastNormSiLU,
    FastResidualBlock,
    FewInputsConv2d,
    FewOutputsConv2d,
    WinogradConv2d,
    fast_layers,
)
from sads.diffusion.train import TrainingOptions, new_state, training_steps
from sads.networks.layers import NormSiLU
from sads.networks.unet import ResidualBlock

LAYERS = [
    (WinogradConv2d, nn.Conv2d(32, 32, 3, padding=1), (5, 32, 16, 16)),
    (WinogradConv2d, nn.Conv2d(64, 16, 3, padding="same"), (3, 64, 14, 14)),
    (WinogradConv2d, nn.Conv2d(16, 48, 3, padding=1, bias=False), (2, 16, 7, 9)),
    (WinogradConv2d, nn.Conv2d(16, 16, 3, padding=1), (70, 16, 4, 4)),
    (WinogradConv2d, nn.Conv2d(16, 16, 3, padding=1), (5, 16, 1, 2)),
    (WinogradConv2d, nn.Conv2d(16, 32, 3, padding=1), (2, 16, 33, 56)),
    (WinogradConv2d, nn.Conv2d(16, 256, 3, padding=1), (2, 16, 4, 4)),  # few tiles: PyTorch's
    (FewInputsConv2d, nn.Conv2d(1, 32, 3, padding=1), (4, 1, 16, 16)),
    (FewInputsConv2d, nn.Conv2d(3, 20, 3, padding=1, bias=False), (4, 3, 7, 9)),
    (FewOutputsConv2d, nn.Conv2d(32, 1, 3, padding=1), (4, 32, 16, 16)),
    (FewOutputsConv2d, nn.Conv2d(32, 3, 3, padding=1, bias=False), (4, 32, 7, 9)),
    (FastNormSiLU, NormSiLU(32, 32), (4, 32, 16, 16)),
    (FastNormSiLU, NormSiLU(3, 48), (4, 48, 5, 7)),
    (FastNormSiLU, NormSiLU(32, 64), (4, 64, 24)),  # no images: PyTorch's
]
SAME = [
    nn.Conv2d(32, 32, 3, padding=1, stride=2),
    nn.Conv2d(32, 32, 3, padding=1, groups=2),
    nn.Conv2d(32, 32, 3, padding=2, dilation=2),
    nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(32, 32, 3),
    nn.Conv2d(32, 40, 3, padding=1),
    nn.Conv2d(32, 32, 1),
    nn.Conv2d(32, 32, 3, padding=1).double(),
    nn.Conv1d(32, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    NormSiLU(4, 32, affine=False),
    NormSiLU(4, 24),
]


pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="there is no C compiler"
)


@pytest.fixture(autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def equal(mine, theirs, tolerance=1e-5):
    return (mine - theirs).norm() <= tolerance * theirs.norm()


def values_and_gradients(layer, x, direction):
    x = x.clone().requires_grad_()
    y = layer(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], direction)]


@pytest.mark.parametrize(("kind", "layer", "shape"), LAYERS)
def test_equal_to_pytorch_in_double_precision(kind, layer, shape):
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape) + 0.5
    direction = torch.randn_like(layer(x))
    before = type(layer)
    with fast_layers(layer):
        assert type(layer) is kind
        ours = values_and_gradients(layer, x, direction)
    assert type(layer) is before
    exact = values_and_gradients(copy.deepcopy(layer).double(), x.double(), direction.double())
    for mine, theirs in zip(ours, exact, strict=True):
        assert equal(mine, theirs)


def test_residual_blocks_are_equal_too():
    block = ResidualBlock(2, 32, 64, 8)  # groups of two: those of one would hide the time
    x, time = torch.randn(5, 32, 8, 8), torch.randn(5, 8)

    def values_and_gradients(block, x, time):
        x, time = x.clone().requires_grad_(), time.clone().requires_grad_()
        y = block(x, time)
        return [y, *torch.autograd.grad(y.square().sum(), [x, time, *block.parameters()])]

    for times in (time, time[:1]):  # one time for all samples is allowed
        exact = values_and_gradients(copy.deepcopy(block).double(), x.double(), times.double())
        with fast_layers(block):
            assert type(block) is FastResidualBlock
            ours = values_and_gradients(block, x, times)
        for mine, theirs in zip(ours, exact, strict=True):
            assert mine.shape == theirs.shape
            assert equal(mine, theirs)
    with fast_layers(block), pytest.raises(RuntimeError):
        block(x, time[:2])


def returns_half(module, inputs, y):
    return y.bfloat16()


def doubles(module, inputs, y):
    return 2 * y


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.conv1.register_forward_hook(doubles),
        lambda block: setattr(block.conv1, "forward", lambda x: 2 * x[:, :32]),
        lambda block: block.conv1.register_parameter("bias", None),
        lambda block: setattr(block, "conv2", nn.Conv2d(32, 32, 3, padding=1, bias=False)),
        lambda block: setattr(block, "skip", nn.Conv2d(64, 1, 1)),
    ],
    ids=["hook", "own forward", "no first bias", "no second bias", "skip that broadcasts"],
)
def test_residual_blocks_that_somebody_changed(change):
    block, x, time = ResidualBlock(2, 64, 32, 8), torch.randn(5, 64, 8, 8), torch.randn(5, 8)
    change(block)
    expected = block(x, time)
    with fast_layers(block):
        assert equal(block(x, time), expected)


def test_a_hook_that_changes_the_type_gets_pytorch_s_answer():
    block, x, time = ResidualBlock(2, 64, 32, 8), torch.randn(5, 64, 8, 8), torch.randn(5, 8)
    block.norm1.register_forward_hook(returns_half)
    with torch.autocast("cpu"), torch.no_grad():
        expected = block(x, time).float()
        with fast_layers(block):
            assert equal(block(x, time).float(), expected, 1e-2)


@pytest.mark.parametrize("layer", [layer for _, layer, shape in LAYERS if len(shape) == 4], ids=str)
def test_gradients_that_are_a_part_of_the_channels(layer):
    """Those of a concatenation: pixels are further apart than they have channels."""
    channels = layer.weight.shape[1] if isinstance(layer, nn.Conv2d) else layer.num_channels
    x = torch.randn(5, channels, 8, 8)

    def gradients(x, layer):
        x = x.clone().requires_grad_()
        y = layer(x)
        y = torch.cat([y, torch.ones_like(y)], 1).contiguous(memory_format=torch.channels_last)
        y.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    exact = gradients(x.double(), copy.deepcopy(layer).double())
    with fast_layers(layer):
        for mine, theirs in zip(gradients(x, layer), exact, strict=True):
            assert equal(mine, theirs)


@pytest.mark.parametrize("layer", SAME, ids=str)
def test_layers_that_do_not_fit_stay(layer):
    before = type(layer)
    with fast_layers(layer):
        assert type(layer) is before


def test_without_gradients_and_from_any_layout():
    layer = nn.Conv2d(16, 32, 3, padding=1)
    x = torch.randn(3, 16, 8, 8).to(memory_format=torch.channels_last)
    expected = layer(x)
    with torch.no_grad(), fast_layers(layer, frozen=True):
        assert equal(layer(x), expected)
        other = layer._conv_forward(x, 2 * layer.weight, None)
        assert equal(other, 2 * (expected - layer.bias[:, None, None]))
    assert "frozen" not in vars(layer)


def test_silu_of_what_is_large_or_not_finite():
    layer = NormSiLU(1, 16)
    weights = torch.tensor([1e3, -1e3, 1e6, -1e6, 1.0, 0.0, 30.0, -30.0])
    with torch.no_grad():
        layer.weight.copy_(weights.repeat(2))
    x = torch.randn(2, 16, 4, 4)
    exact = copy.deepcopy(layer).double()(x.double())
    with fast_layers(layer):
        assert ((layer(x) - exact).abs() < 1e-6 * (1 + layer.weight.abs()[:, None, None])).all()
        x[0, 0, 0, 0] = torch.nan
        assert layer(x)[0].isnan().all()
        assert layer(x)[1].isfinite().all()


SMALL = [
    nn.Conv2d(16, 16, 3, padding=1),
    nn.Conv2d(16, 1, 3, padding=1),
    NormSiLU(4, 16),
]
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
        with fast_layers(layer), pytest.raises(type(error), match=re.escape(str(error))):
            layer(x)
    else:
        with fast_layers(layer):
            assert equal(layer(x), expected)


@pytest.mark.parametrize("layer", SMALL, ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_networks_that_differentiate_in_their_forward_pass(layer, frozen):
    """The score of an energy: training it takes second derivatives."""
    x = torch.randn(2, 16, 8, 8)

    def score():
        inputs = x.clone().requires_grad_()
        energy = (inputs + layer(inputs)).square().sum()
        (y,) = torch.autograd.grad(energy, inputs, create_graph=True)
        return y, *torch.autograd.grad(y.square().sum(), layer.parameters())

    expected = score()
    with fast_layers(layer, frozen=frozen):
        for mine, theirs in zip(score(), expected, strict=True):
            assert equal(mine, theirs, 1e-4)


@pytest.mark.parametrize("change", ["view", "cut"])
def test_other_weights_stay_with_pytorch(change):
    layer = nn.Conv2d(32, 32, 3, padding=1)
    weight = layer.weight.detach()
    layer.weight = nn.Parameter(weight.transpose(0, 1) if change == "view" else weight[:20])
    with fast_layers(layer, frozen=True):
        assert type(layer) is nn.Conv2d


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_are_replaced_for_a_call(frozen):
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 8, 8)
    for other in (
        {"weight": 2 * layer.weight},
        {"bias": torch.randn(1).expand(16)},
        {"weight": layer.weight[:5], "bias": torch.randn(5)},
    ):
        expected = functional_call(layer, other, x)
        with torch.no_grad(), fast_layers(layer, frozen=frozen):
            assert equal(functional_call(layer, other, x), expected)
    with fast_layers(layer), pytest.raises(RuntimeError):
        functional_call(layer, {"bias": torch.zeros(1)}, x)


def test_group_normalisation_of_what_needs_no_gradient():
    """PyTorch 2.13 crashes there if channels come last."""
    network = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16))
    network[0].requires_grad_(False)
    for size in (8, 1):
        x = torch.randn(32, 16, size, size)
        expected = torch.autograd.grad(network(x).square().sum(), network[1].parameters())
        with fast_layers(network):
            mine = torch.autograd.grad(network(x).square().sum(), network[1].parameters())
        assert all(map(equal, mine, expected))


class WithTime(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, t):
        return self.layer(x)


class Flattens(nn.Module):
    """`view` wants channels first in memory."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(256, 256)

    def forward(self, x, t):
        return self.linear(self.conv(x).view(len(x), -1)).view(x.shape)


class DrawsNumbers(nn.Module):
    """In the order of memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x, t):
        return nn.functional.dropout(self.conv(x), training=self.training)


@pytest.mark.parametrize(("kind", "reason"), [(Flattens, "view"), (DrawsNumbers, "something else")])
def test_networks_that_want_channels_first_keep_pytorch_s_layers(kind, reason, monkeypatch):
    monkeypatch.setattr(speed, "_said", set())
    family = sads.family(kind, (16, 4, 4))
    network = family.build()
    with (
        pytest.warns(UserWarning, match=f"{reason}.*using PyTorch's"),
        speed.fast_forward(network, family, 1) as forward,
    ):
        assert type(forward.conv) is nn.Conv2d


def test_trying_the_layers_leaves_no_trace():
    shared = nn.Conv2d(16, 16, 3, padding=1)
    family = sads.family(lambda: WithTime(shared), (16, 8, 8))
    state = torch.get_rng_state()
    with speed.fast_forward(shared, family, 1):
        assert type(shared) is WinogradConv2d
    assert torch.equal(torch.get_rng_state(), state)
    assert shared.weight.grad is None


@pytest.mark.parametrize(("size", "mean", "tolerance"), [(64, 100, 1e-4), (512, 0, 1e-5)])
def test_normalisation_of_large_numbers_and_images(size, mean, tolerance):
    layer, x = NormSiLU(16, 16), torch.randn(1, 16, size, size) + mean
    direction = torch.randn_like(x)
    exact = values_and_gradients(copy.deepcopy(layer).double(), x.double(), direction.double())
    with fast_layers(layer):
        ours = values_and_gradients(layer, x, direction)
    for mine, theirs in zip(ours, exact, strict=True):
        assert equal(mine, theirs, tolerance)


def test_a_network_trains_the_same_way():
    family = sads.family("iddpm", (1, 8, 8))
    x = sads.rank_one(sads.basis("dct", (1, 8, 8)).vectors[5], 64, seed=0)
    options = TrainingOptions(iterations=5, batch_size=32)
    losses = []
    for context in (fast_layers, nullcontext):
        state = new_state(family, options, torch.device("cpu"))
        with context(state.network):
            steps = training_steps(state, state.network, family, x, options)
            losses.append(torch.tensor(list(steps)))
    assert (losses[0] != losses[1]).any(), "the fast layers were used"
    assert torch.allclose(*losses, rtol=1e-4)


def test_a_damaged_file_in_the_cache_is_compiled_anew(monkeypatch, tmp_path):
    name = Path(kernels.library()._name).name
    damaged = tmp_path / "sads" / name
    damaged.parent.mkdir()
    damaged.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels.library.cache_clear()
    try:
        assert Path(kernels.library()._name) == damaged
    finally:
        kernels.library.cache_clear()
    assert damaged.stat().st_size > 0


@pytest.mark.parametrize("broken", ["no compiler", "compiler fails"])
def test_without_a_working_compiler(broken, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(speed, "_said", set())
    if broken == "no compiler":
        monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    else:
        failure = subprocess.CompletedProcess([], 1, "", "kernels.c:1: error: no such vector")
        monkeypatch.setattr(kernels.subprocess, "run", lambda *_, **__: failure)
    kernels.library.cache_clear()
    family = sads.family("iddpm", (1, 8, 8))
    network = family.build()
    try:
        with (
            pytest.warns(UserWarning, match="using PyTorch's"),
            speed.fast_forward(network, family, 1) as forward,
        ):
            assert type(forward.input) is nn.Conv2d
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the reason is shown once
            with speed.fast_inference(network, family, 1, 50) as forward:
                assert type(forward.input) is nn.Conv2d
    finally:
        kernels.library.cache_clear()
    assert not list(tmp_path.glob("sads/*")), "nothing half-made stays in the cache"
