"""Layers for one CPU core against PyTorch's in double precision, and what happens without them."""

import copy
import re
import subprocess
import warnings

import pytest
import torch
from torch import nn

import sads
from sads.diffusion import kernels, speed
from sads.diffusion.kernels import (
    FastNormSiLU,
    FewOutputsConv2d,
    PointwiseConv2d,
    WinogradConv2d,
    with_fast_layers,
)
from sads.networks.layers import NormSiLU

LAYERS = [
    (WinogradConv2d, nn.Conv2d(32, 32, 3, padding=1), (5, 32, 16, 16)),
    (WinogradConv2d, nn.Conv2d(64, 16, 3, padding="same"), (3, 64, 14, 14)),
    (WinogradConv2d, nn.Conv2d(16, 48, 3, padding=1, bias=False), (2, 16, 7, 9)),
    (WinogradConv2d, nn.Conv2d(16, 16, 3, padding=1), (70, 16, 4, 4)),
    (WinogradConv2d, nn.Conv2d(16, 16, 3, padding=1), (1, 16, 1, 2)),
    (WinogradConv2d, nn.Conv2d(16, 32, 3, padding=1), (2, 16, 33, 56)),
    (PointwiseConv2d, nn.Conv2d(64, 32, 1), (3, 64, 8, 6)),
    (PointwiseConv2d, nn.Conv2d(12, 4, 1, bias=False), (3, 12, 16, 16)),
    (PointwiseConv2d, nn.Conv2d(12, 4, 1), (3, 12, 3, 3)),  # no whole vectors: PyTorch's
    (FewOutputsConv2d, nn.Conv2d(32, 1, 3, padding=1), (4, 32, 16, 16)),
    (FewOutputsConv2d, nn.Conv2d(32, 3, 3, padding=1, bias=False), (4, 32, 7, 9)),
    (FastNormSiLU, NormSiLU(32, 32), (4, 32, 16, 16)),
    (FastNormSiLU, NormSiLU(4, 12), (4, 12, 24)),
    (FastNormSiLU, NormSiLU(2, 4), (2, 4, 5, 5)),  # no whole vectors: PyTorch's
]
SAME = [
    nn.Conv2d(32, 32, 3, padding=1, stride=2),
    nn.Conv2d(32, 32, 3, padding=1, groups=2),
    nn.Conv2d(32, 32, 3, padding=2, dilation=2),
    nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(32, 32, 3),
    nn.Conv2d(32, 40, 3, padding=1),
    nn.Conv2d(32, 6, 1),
    nn.Conv2d(32, 32, 3, padding=1).double(),
    nn.Conv1d(32, 32, 3, padding=1),
    nn.GroupNorm(4, 32),
    NormSiLU(4, 32, affine=False),
]


@pytest.fixture(autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


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
    fast = with_fast_layers(layer)
    assert type(fast) is kind
    assert type(layer) is not kind, "the network itself is left alone"
    direction = torch.randn_like(layer(x))
    ours = values_and_gradients(fast, x, direction)
    exact = values_and_gradients(layer.double(), x.double(), direction.double())
    layer.float()
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.parametrize("layer", SAME, ids=str)
def test_layers_that_do_not_fit_stay(layer):
    assert with_fast_layers(layer) is layer


def test_without_gradients_and_from_any_layout():
    layer = nn.Conv2d(16, 32, 3, padding=1)
    x = torch.randn(3, 16, 8, 8).to(memory_format=torch.channels_last)
    frozen = with_fast_layers(layer, frozen=True)
    with torch.no_grad():
        assert torch.allclose(frozen(x), layer(x), atol=1e-5)


def test_silu_of_what_is_large_or_not_finite():
    layer = NormSiLU(1, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1e3, -1e3, 1e6, -1e6, 1.0, 0.0, 30.0, -30.0]))
    fast, x = with_fast_layers(layer), torch.randn(2, 8, 16)
    exact = copy.deepcopy(layer).double()(x.double())
    assert ((fast(x) - exact).abs() < 1e-6 * (1 + layer.weight.abs()[:, None])).all()
    x[0, 0, 0] = torch.nan
    assert fast(x)[0].isnan().all()
    assert fast(x)[1].isfinite().all()


@pytest.mark.parametrize("kind", ["channels", "dtype", "one image"])
@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 1, 3, padding=1),
     NormSiLU(4, 16)],
    ids=str,
)  # fmt: skip
def test_other_inputs_get_pytorch_s_answer(kind, layer):
    """C code would read past the end of memory, or take doubles for floats."""
    fast = with_fast_layers(layer)
    x = {
        "channels": torch.randn(2, 8, 8, 8),
        "dtype": torch.randn(2, 16, 8, 8).double(),
        "one image": torch.randn(16, 16, 8),
    }[kind]
    try:
        expected = layer(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            fast(x)
    else:
        assert torch.allclose(fast(x), expected, atol=1e-5)


def test_parameters_are_shared():
    network = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
    fast = with_fast_layers(network)
    assert all(a is b for a, b in zip(network.parameters(), fast.parameters(), strict=True))
    fast(torch.randn(2, 16, 4, 4))
    assert network[1].num_batches_tracked == 1, "and so are running means"


def test_a_network_trains_the_same_way():
    family = sads.family("iddpm", (1, 8, 8))
    x = sads.rank_one(sads.basis("dct", (1, 8, 8)).vectors[5], 64, seed=0)
    losses = {}
    for fast in (True, False):
        options = sads.diffusion.train.TrainingOptions(iterations=5, batch_size=32)
        state = sads.diffusion.train.new_state(family, options, torch.device("cpu"))
        forward = with_fast_layers(state.network) if fast else state.network
        steps = sads.diffusion.train.training_steps(state, forward, family, x, options)
        losses[fast] = torch.tensor(list(steps))
    assert (losses[True] != losses[False]).any(), "the fast layers were used"
    assert torch.allclose(losses[True], losses[False], rtol=1e-4)


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
        with pytest.warns(UserWarning, match="running with PyTorch's"):
            assert speed.fast_forward(network, family, 1) is network
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the reason is shown once
            assert speed.fast_inference(network, family, 1, 50) is network
    finally:
        kernels.library.cache_clear()
    assert not list(tmp_path.glob("sads/*")), "nothing half-made stays in the cache"
