"""Our layers in networks: what is computed along, what is left alone, what is not touched."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack as function_modes

import sads
from cases import needs_compiler
from sads import environment
from sads.cpu import FastNetwork, fast, fast_network, layers, layers_name
from sads.diffusion.execution import Forward, fast_forward, fast_inference
from sads.diffusion.options import TrainingOptions
from sads.diffusion.sample import SamplingOptions, draw
from sads.diffusion.train import new_state, training_steps
from sads.networks.unet import ResidualBlock
from sads.threads import pinned_threads

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(environment, "_noted", set())
    with pinned_threads(1):
        yield


@pytest.fixture
def combined(monkeypatch):
    """What was computed along with a layer."""
    seen = []
    convolve, norm_silu = layers.convolve, layers.norm_silu

    def watched(*arguments, **options):
        seen.append(" ".join(sorted(options)) or "alone")
        return convolve(*arguments, **options)

    def watched_norm(*arguments):
        seen.append("silu")
        return norm_silu(*arguments)

    monkeypatch.setattr(layers, "convolve", watched)
    monkeypatch.setattr(layers, "norm_silu", watched_norm)
    return seen


def equal(mine, theirs, tolerance=1e-5):
    return (mine - theirs).norm() <= tolerance * theirs.norm()


class DiffusersBlock(nn.Module):
    """The same block, written by others."""

    def __init__(self, *_):
        super().__init__()
        resnet = pytest.importorskip("diffusers.models.resnet")
        self.block = resnet.ResnetBlock2D(
            in_channels=32, out_channels=64, temb_channels=8, eps=1e-5
        )

    def forward(self, x, time):
        return self.block(x, time)


@pytest.mark.parametrize("kind", [ResidualBlock, DiffusersBlock])
def test_residual_blocks_take_silu_and_sums_along(kind, combined):
    block = kind(2, 32, 64, 8)  # groups of two: those of one would hide the time
    x, time = torch.randn(5, 32, 8, 8), torch.randn(5, 8)

    def values_and_gradients(forward, block, x, time):
        x, time = x.clone().requires_grad_(), time.clone().requires_grad_()
        y = forward(x, time)
        return [y, *torch.autograd.grad(y.square().sum(), [x, time, *block.parameters()])]

    double = copy.deepcopy(block).double()
    for times in (time, time[:1]):  # one time for all samples is allowed
        exact = values_and_gradients(double, double, x.double(), times.double())
        combined.clear()
        ours = values_and_gradients(FastNetwork(block), block, x, times)
        assert combined == ["silu", "shift", "silu", "rest"]
        for mine, theirs in zip(ours, exact, strict=True):
            assert mine.shape == theirs.shape
            assert equal(mine, theirs)
    with pytest.raises(RuntimeError):
        FastNetwork(block)(x, time[:2])


def returns_half(module, inputs, y):
    return y.bfloat16()


def doubles(module, inputs, y):
    return 2 * y


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.conv1.register_forward_hook(doubles),
        lambda block: block.norm1.register_forward_hook(doubles),
        lambda block: setattr(block.conv1, "forward", lambda x: 2 * x[:, :32]),
        lambda block: block.conv1.register_parameter("bias", None),
        lambda block: setattr(block, "conv2", nn.Conv2d(32, 32, 3, padding=1, bias=False)),
        lambda block: setattr(block, "skip", nn.Conv2d(64, 1, 1)),
        lambda block: nn.utils.parametrizations.weight_norm(block.conv1),
    ],
    ids=[
        "hook",
        "hook of norm",
        "forward",
        "no bias",
        "no second bias",
        "broadcasts",
        "weight norm",
    ],
)
def test_residual_blocks_that_somebody_changed(change):
    block, x, time = ResidualBlock(2, 64, 32, 8), torch.randn(5, 64, 8, 8), torch.randn(5, 8)
    change(block)
    assert equal(FastNetwork(block)(x, time), block(x, time))


def test_autocast_gets_pytorch_s_answer():
    block, x, time = ResidualBlock(2, 64, 32, 8), torch.randn(5, 64, 8, 8), torch.randn(5, 8)
    with torch.autocast("cpu"), torch.no_grad():
        assert torch.equal(FastNetwork(block)(x, time), block(x, time))
    block.norm1.register_forward_hook(returns_half)
    with torch.autocast("cpu"), torch.no_grad():
        assert torch.equal(FastNetwork(block)(x, time), block(x, time))


class Uses(nn.Module):
    """A convolution and a normalisation, and something done with their results."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.use = use

    def forward(self, x):
        return self.use(self.conv, self.norm, x)


def twice(conv, norm, x):
    y, z = conv(x), norm(x)
    return F.silu(z) + z + y + y * y + x


def of_the_shape(conv, norm, x):
    y = conv(x)
    return torch.ones(y.shape[0], y.size(1), *y.shape[2:]) * len(y) * y.ndim * y.numel() + x.mean()


def in_a_list(conv, norm, x):
    return torch.stack([conv(x), torch.cat([norm(x)[:, :8], conv(x)[:, 8:]], dim=1)])


def in_place(conv, norm, x):
    y = conv(x)
    y += 1
    z = norm(y)
    F.silu(z, inplace=True)
    z *= 2
    return y + z


def partly_without_gradients(conv, norm, x):
    with torch.no_grad():
        y, z = conv(x), norm(x)
    return y + norm(x) + F.silu(z)


def with_other_numbers(conv, norm, x):
    return conv(x) + 1 + torch.add(conv(x), x, alpha=2) + (2 + conv(x)) + (conv(x) + x[:, :, :1])


def out_of_the_network(conv, norm, x):
    return norm(x)


def of_both(conv, norm, x):
    return conv(x) + conv(2 * x)


def with_doubles(conv, norm, x):
    return conv(x) + x.double()


USES = [
    twice,
    of_the_shape,
    in_a_list,
    in_place,
    partly_without_gradients,
    with_other_numbers,
    out_of_the_network,
    of_both,
    with_doubles,
]


@pytest.mark.parametrize("use", USES)
def test_whatever_is_done_with_results_that_wait(use):
    network = Uses(use)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, 16, 8, 8)

    def values_and_gradients(forward, network, x):
        x = x.clone().requires_grad_()
        y = forward(x)
        assert type(y) is torch.Tensor
        gradients = torch.autograd.grad(
            y.square().sum(), [x, *network.parameters()], materialize_grads=True
        )
        return [y, *gradients]

    double = copy.deepcopy(network).double()
    exact = values_and_gradients(double, double, x.double())
    for mine, theirs in zip(
        values_and_gradients(FastNetwork(network), network, x), exact, strict=True
    ):
        assert equal(mine, theirs)


def test_what_a_hook_has_kept_is_right_later_too():
    network, kept, x = Uses(lambda conv, norm, x: F.silu(norm(x))), [], torch.randn(3, 16, 8, 8)
    network.norm.register_forward_hook(lambda module, inputs, y: kept.append(y))
    FastNetwork(network)(x)
    assert equal(kept[0] * 1, network.norm(x))


class Hidden(torch.autograd.Function):
    """Its input is not announced: the graph would end there."""

    @staticmethod
    def forward(ctx, x):
        return x.detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def changed_input(conv, norm, x):
    x = x + 0
    y = conv(x)
    x.add_(1)
    return y * 2


def changed_kernels(conv, norm, x):
    with torch.no_grad():
        conv.weight.mul_(2)
        y = conv(x)
        conv.weight.div_(2)
    return y * 2


def changed_norm(conv, norm, x):
    with torch.no_grad():
        norm.weight.mul_(2)
        y = norm(x)
        norm.weight.div_(2)
        return F.silu(y)


@pytest.mark.parametrize(
    ("use", "frozen", "reason"),
    [
        (changed_input, True, "changed before its output"),
        (changed_kernels, True, "changed before its output"),
        (changed_norm, True, "changed before its output"),
        (lambda conv, norm, x: Hidden.apply(conv(x)), False, "something else"),
    ],
    ids=["changed input", "changed kernels", "changed norm", "hidden"],
)
def test_what_goes_behind_our_back_is_noticed_before_it_counts(use, frozen, reason):
    class WithTime(Uses):
        def forward(self, x, t):
            return super().forward(x)

    with pytest.raises(RuntimeError, match=reason):
        fast_network(WithTime(use), lambda: WithTime(use), (16, 8, 8), frozen=frozen)


@pytest.mark.parametrize("kind", ["in place", "other memory", "another one"])
def test_kernels_that_change_while_they_are_frozen_count(kind):
    network, x = Uses(lambda conv, norm, x: conv(x)), torch.randn(3, 16, 8, 8)
    fast, weight = FastNetwork(network, frozen=True), network.conv.weight
    with torch.no_grad():
        fast(x)
        if kind == "in place":
            weight.mul_(3)
        elif kind == "other memory":
            weight.data = torch.randn_like(weight)
        else:
            network.conv.weight = nn.Parameter(torch.randn_like(weight))
        assert equal(fast(x), network(x))


def trace(network):
    """Everything that somebody could have changed in a network."""

    def content(value):
        return sorted(map(str, value)) if isinstance(value, dict | set) else value

    return [
        (id(module), type(module), type(module).forward, key, id(value), content(value))
        for module in network.modules()
        for key, value in vars(module).items()
    ]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_step_leaves_everything_as_it_was(error, after, monkeypatch):
    """At every call of a function of PyTorch, before and after it has done its work."""
    family = sads.family("iddpm", (1, 8, 8), channel_mults=(), depth=1)
    network, x, time = family.build(), torch.randn(4, 1, 8, 8), torch.zeros(4)
    expected = network(x, time)
    before = trace(network)
    weights = copy.deepcopy(network.state_dict())
    original = fast._FastFunctions.__torch_function__
    steps = 0
    stop_at = None

    def failing(self, *arguments, **options):
        nonlocal steps
        steps += 1
        if steps == stop_at and not after:
            raise error("injected")
        y = original(self, *arguments, **options)
        if steps == stop_at and after:
            raise error("injected")
        return y

    monkeypatch.setattr(fast._FastFunctions, "__torch_function__", failing)
    FastNetwork(network)(x, time)
    assert steps > 40
    for stop_at in range(1, steps + 1):  # noqa: B007
        steps = 0
        with pytest.raises(error, match="injected"):
            FastNetwork(network)(x, time)
        assert not function_modes()
    monkeypatch.undo()
    assert trace(network) == before
    assert all(torch.equal(weights[k], v) for k, v in network.state_dict().items())
    assert torch.equal(network(x, time), expected)
    assert torch.is_grad_enabled()


def test_a_failure_while_it_is_made_leaves_everything_as_it_was(monkeypatch):
    network = sads.family("iddpm", (1, 8, 8), channel_mults=(), depth=1).build()
    before = trace(network)
    at_points, count = layers.at_points, 0

    def failing(weight):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return at_points(weight)

    monkeypatch.setattr(layers, "at_points", failing)
    with pytest.raises(KeyboardInterrupt):
        FastNetwork(network, frozen=True)
    assert trace(network) == before


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
def test_networks_that_want_channels_first_keep_pytorch_s_layers(kind, reason):
    family = sads.family(kind, (16, 4, 4))
    network = family.build()
    with pytest.warns(UserWarning, match=f"{reason}.*using PyTorch's"):
        assert fast_forward(network, family, 1) == Forward(network, family, "torch")


def test_trying_the_layers_leaves_no_trace():
    shared = nn.Conv2d(16, 16, 3, padding=1)
    family = sads.family(lambda: WithTime(shared), (16, 8, 8))
    state = torch.get_rng_state()
    assert fast_forward(shared, family, 1).layers == layers_name() == "sads-cpu-1"
    assert torch.equal(torch.get_rng_state(), state)
    assert shared.weight.grad is None


def test_more_threads_and_other_devices_keep_pytorch_s_layers():
    family = sads.family("iddpm", (1, 8, 8))
    network = family.build()
    with pinned_threads(2):
        assert fast_forward(network, family, 1).layers == "torch"
    assert fast_inference(network.to("meta"), family, 1, 50).layers == "torch"
    assert layers_name(on_gpu=True) == "torch"


def test_a_network_trains_the_same_way():
    family = sads.family("iddpm", (1, 8, 8))
    x = sads.rank_one(sads.basis("dct", (1, 8, 8)).vectors[5], 64, seed=0)
    options = TrainingOptions(iterations=5, batch_size=32)
    losses = []
    for way in (FastNetwork, lambda network: network):
        state = new_state(family, options, torch.device("cpu"))
        steps = training_steps(state, way(state.network), family, x, options)
        losses.append(torch.tensor(list(steps)))
    assert (losses[0] != losses[1]).any(), "the fast layers were used"
    assert torch.allclose(*losses, rtol=1e-4)


def test_results_say_which_layers_computed_them(tmp_path):
    family = sads.family("iddpm", (1, 8, 8), channel_mults=(), depth=1)
    x, path = torch.randn(8, 1, 8, 8), tmp_path / "checkpoint"
    options = {"batch_size": 4, "checkpoint": path}
    model = sads.train(family, x, iterations=1, **options)
    assert model.provenance.layers == "sads-cpu-1"
    with pinned_threads(2):
        model = sads.train(family, x, iterations=2, **options)
    assert model.provenance.layers == "sads-cpu-1+torch", "both have computed it"
    model = sads.load_model(model.save(tmp_path / "model"))
    assert model.provenance.layers == "sads-cpu-1+torch"
    options = SamplingOptions(steps=2)
    assert draw(model, 60, options).layers == "sads-cpu-1"
    with pinned_threads(2):
        assert draw(model, 50, options).layers == "torch", "one batch, two threads"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(draw(model, 60, options).values, sads.sample(model, 60, steps=2))
