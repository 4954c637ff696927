"""Networks that are drawn layer by layer are the networks that are drawn whole."""

import math
import re
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sads
from cases import FAMILIES, small_family
from sads.cpu import c_code, random
from sads.cpu.random import can_draw
from sads.errors import NotEnoughMemoryError
from sads.geometry.drawing import Initialiser
from sads.geometry.memory import BASE
from sads.geometry.recorder import named_tensors
from sads.geometry.streaming.networks import Streamed, StreamedNetwork
from sads.geometry.streaming.remembered import Findings, recall, remember
from sads.geometry.streaming.substitution import ShapesOnly
from sads.seeds import numpy_stream

CPU = torch.device("cpu")


class Conditioned(nn.Module):
    """A network of diffusers as `net(x, t)`."""

    def __init__(self, network: nn.Module, **conditions: Tensor):
        super().__init__()
        self.network, self.conditions = network, conditions

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.network(x, t, **self.conditions).sample


def unconditional() -> nn.Module:
    return Conditioned(
        diffusers.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(32, 32),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
    )


def text_conditional() -> nn.Module:
    network = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return Conditioned(network, encoder_hidden_states=torch.zeros(1, 5, 16))


def transformer() -> nn.Module:
    network = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    return Conditioned(network, class_labels=torch.zeros(1, dtype=torch.long))


DIFFUSERS = {
    "UNet2DModel": (unconditional, (1, 8, 8)),
    "UNet2DConditionModel": (text_conditional, (4, 8, 8)),
    "DiTTransformer2DModel": (transformer, (4, 8, 8)),
}


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch, tmp_path):
    """Of other tests and of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))


def family_of(name: str) -> sads.ScoreFamily:
    if name in DIFFUSERS:
        return sads.family(DIFFUSERS[name][0], shape=DIFFUSERS[name][1])
    return small_family(name)


X, WIDE = torch.empty(2, 6, 4, device="meta"), torch.empty(3, 4, device="meta")


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (F.linear, [(X, WIDE), (X, WIDE, WIDE[:, 0])], [(X, WIDE, WIDE[0]), (X, WIDE.T)]),
        (F.group_norm, [(X, 3), (X, 2, X[0, :, 0], X[0, :, 0])], [(X, 4), (X, 2, X[0, 0])]),
        (F.layer_norm, [(X, (4,)), (X, [6, 4], X[0], X[0])], [(X, (6,)), (X, (4,), X[0])]),
        (
            F.scaled_dot_product_attention,
            [(X, X, X), (X, X[:, :3], X[:, :3, :2])],
            [(X, X[..., :3], X), (X, X[:, :2], X)],
        ),
    ],
)
def test_shapes_without_numbers_are_those_of_pytorch(function, good, bad):
    """And what PyTorch refuses is refused."""
    for arguments in good:
        with ShapesOnly():
            given = function(*arguments)
        expected = function(*arguments)
        assert (given.shape, given.stride()) == (expected.shape, expected.stride())
        assert (given.dtype, given.device) == (expected.dtype, expected.device)
    for arguments in bad:
        with ShapesOnly(), pytest.raises(RuntimeError):
            function(*arguments)


class Odd(nn.Module):
    """Tied weights, a layer that is called twice, a token, a table, a scale, random features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(9, 9), nn.Linear(9, 9)
        self.second.weight = self.first.weight
        self.token = nn.Parameter(torch.randn(1, 9) / 3)
        self.scale = nn.Parameter(torch.empty(9))
        nn.init.trunc_normal_(self.scale, std=0.5)
        self.table = nn.Embedding(4, 9)
        self.attention = nn.MultiheadAttention(9, 3, batch_first=True)
        positions = torch.empty(9)  # filled after it was made, and no parameter
        positions[0::2], positions[1::2] = 0.25, torch.sin(torch.arange(4.0))
        self.register_buffer("positions", positions)
        self.register_buffer("frequencies", torch.randn(9))
        self.plain = torch.linspace(-1, 1, 9)
        self.last = nn.Linear(9, 9)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = x.flatten(1) + self.positions + self.plain + torch.sin(self.frequencies * t / 100)
        h = self.second(torch.tanh(self.first(torch.tanh(self.first(h)))))
        h = torch.cat([self.token, h * self.scale.to(self.first.weight.dtype)])
        h = h + self.table(torch.tensor([1, 2])).to(self.first.weight.device)
        h = h + self.attention(h[None], h[None], h[None])[0][0] + h @ self.first.weight.t()
        return self.last(torch.tanh(h[1:])).reshape(x.shape)


@pytest.mark.parametrize("name", [*FAMILIES, *DIFFUSERS])
def test_the_geometry_is_that_of_networks_that_are_drawn_whole(name):
    """To rounding: 1e-5 of the largest entry; the recipes are equal to the bit."""
    family = family_of(name)
    networks = {
        streaming: sads.estimate_geometry(family, 8, seed=3, streaming=streaming)
        for streaming in (False, True)
    }
    whole, streamed = networks[False], networks[True]
    difference = (whole.factors - streamed.factors).abs().max() / whole.factors.abs().max()
    assert float(difference) < 1e-5
    for name in ("fingerprint", "estimator", "readout", "symmetries", "notes"):
        assert getattr(whole.provenance, name) == getattr(streamed.provenance, name)


@pytest.mark.parametrize("build", [Odd, text_conditional, transformer])
def test_parameters_are_the_same_bits_in_any_order_as_often_as_they_are_asked_for(build):
    drawn = Initialiser(build).draw([numpy_stream(5, 0, 1)])
    (stream,) = Streamed(build).draw([numpy_stream(5, 0, 1)])
    for name in np.random.default_rng(0).permutation([*drawn, *drawn]):
        expected = drawn[name][0]
        numbers = torch.empty(expected.numel())
        stream.fill(name, numbers)
        assert torch.equal(numbers.view(expected.shape), expected), name


def test_odd_uses_of_parameters_are_those_of_a_network_with_these_numbers():
    """Against the module itself, its tensors put in by hand."""
    networks = Streamed(Odd)
    drawn = Initialiser(Odd).draw([numpy_stream(5, 0, 1)])
    whole = Odd().eval()
    with torch.no_grad():
        for name, tensor in named_tensors(whole):
            tensor.copy_(drawn[name][0])
    x, t = torch.randn(1, 1, 3, 3), torch.tensor([40.0])
    streamed = StreamedNetwork(networks, CPU)
    for _ in range(2):  # the second time weights are drawn ahead
        (stream,) = networks.draw([numpy_stream(5, 0, 1)])
        torch.testing.assert_close(streamed(stream, x, t), whole(x, t))


def test_no_parameter_has_memory_and_tables_have_values():
    networks = Streamed(Odd)
    assert all(p.is_meta for n, p in networks.module.named_parameters() if n != "token")
    assert torch.equal(networks.module.positions, Odd().positions)
    assert networks.reason is None


class Detour(nn.Module):
    """Its layers run in another order for large t."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(200, 200) for _ in range(3))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for layer in self.layers if t < 500 else reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


def test_layers_may_run_in_another_order_than_the_last_time():
    networks = Streamed(Detour)
    streamed = StreamedNetwork(networks, CPU)
    x = torch.randn(1, 200)
    for level in (10.0, 900.0, 10.0, 20.0):
        (stream,) = networks.draw([numpy_stream(0)])
        t = torch.tensor([level])
        given = streamed(stream, x, t)
        drawn = {k: v[0] for k, v in Initialiser(Detour).draw([numpy_stream(0)]).items()}
        expected = torch.func.functional_call(Detour(), drawn, (x, t))
        torch.testing.assert_close(given, expected)


class NeedsNumbers(nn.Module):
    """Its constructor looks at what it has drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.size = float(self.layer.weight.detach().norm())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).reshape(x.shape)


class Orthogonal(NeedsNumbers):
    """Drawn in a way for which there is no recipe."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(4, 4)
        nn.init.orthogonal_(self.layer.weight)


class Derived(Orthogonal):
    """A tensor beside its parameters is made of them."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(4, 4)
        self.scale = self.layer.weight.detach().abs().mean()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layer(x.flatten(1) / self.scale).reshape(x.shape)


class Noisy(Derived):
    """Random beyond its parameters."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(4, 4)
        self.scale = 1 + torch.rand(4)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (NeedsNumbers, "its constructor needs numbers"),
        (Orthogonal, "how layer.weight is initialised cannot be known without its numbers"),
        (Derived, "makes of parameters"),
        (Noisy, "random beyond their parameters"),
    ],
)
def test_what_cannot_be_drawn_layer_by_layer_is_built_whole_and_says_why(network, reason):
    family = sads.family(network, shape=(1, 2, 2))
    geometry = sads.estimate_geometry(family, 8, streaming=True)
    (note,) = [n for n in geometry.provenance.notes if "layer by layer" in n]
    assert reason in note
    whole = sads.estimate_geometry(family, 8, streaming=False)
    assert torch.equal(geometry.factors, whole.factors)


def test_what_can_neither_be_streamed_nor_held_is_refused_in_one_line(monkeypatch):
    def build() -> nn.Module:
        layers = [nn.Linear(4096, 4096, device="meta") for _ in range(4)]  # 268 MB
        return nn.Sequential(*layers, NeedsNumbers())

    monkeypatch.setattr("sads.environment.available_memory", lambda: 300 << 20)
    family = sads.ScoreFamily(build, (1, 2, 2))
    with pytest.raises(NotEnoughMemoryError, match="constructor needs numbers") as error:
        sads.estimate_geometry(family, 8, streaming=True)
    assert "\n" not in str(error.value)


def test_large_networks_are_drawn_layer_by_layer_unasked(monkeypatch):
    """A network is large or it is not: nothing else about the estimate changes."""
    family = small_family("mlp")
    seen = []
    monkeypatch.setattr("sads.geometry.plan.STREAM_BYTES", 1)
    geometry = sads.estimate_geometry(family, 8, stage=seen.append)
    assert "evaluating a first network" in seen
    monkeypatch.undo()
    ordinary = sads.estimate_geometry(family, 8)
    assert torch.allclose(geometry.factors, ordinary.factors, rtol=1e-5)


def test_rounding_errors_of_constant_maps_are_not_amplified():
    """At x = 0 the maps of a U-Net are constant; compared with double precision."""
    family = small_family("unet-colour")
    networks = Streamed(family.build)
    x, t = torch.zeros(1, *family.shape), torch.tensor([300.0])
    outputs = []
    for dtype in (torch.float32, torch.float64):
        (stream,) = networks.draw([numpy_stream(0)])
        outputs.append(StreamedNetwork(networks, CPU, dtype)(stream, x, t).double())
    single, double = outputs
    assert float((single - double).abs().max()) < 1e-5 * float(double.abs().max())


def test_an_independent_plain_loop_agrees_within_errors():
    """Modules of diffusers built on the CPU, evaluated by PyTorch, outer products by hand."""
    family = sads.family(text_conditional, shape=(4, 8, 8))
    geometry = sads.estimate_geometry(family, 64, seed=1, streaming=True)
    schedule = family.schedule
    weights = (1 / schedule.sigma**2).double()
    generator = torch.Generator().manual_seed(0)
    samples = []
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(128):
            level = torch.multinomial(weights, 1, generator=generator)
            network = text_conditional().eval()
            output = network(torch.zeros(1, 4, 8, 8), schedule.network_time(level))
            samples.append(output.double().flatten())
    scores = torch.stack(samples) * math.sqrt(float(weights.mean()))  # (n, D)
    directions = torch.eye(family.dimension)[::37]
    directions = torch.cat([directions, torch.ones(1, family.dimension) / 16])
    energies = (scores @ directions.double().T).square()  # (n, directions)
    mean, error = energies.mean(0), energies.std(0) / math.sqrt(len(energies))
    ours = geometry.quadratic(directions)
    spread = (error**2 + ours.errors**2).sqrt()
    assert ((mean - ours.values).abs() < 4 * spread).all()


@pytest.mark.parametrize("streaming", [False, True])
def test_half_precision_says_by_how_much_it_differs(streaming):
    """The note's numbers are of the order of bfloat16's rounding, 2^-9, and of the result's."""
    family = small_family("cnn")
    single = sads.estimate_geometry(family, 16, streaming=streaming)
    half = sads.estimate_geometry(family, 16, streaming=streaming, dtype="bfloat16")
    (note,) = half.provenance.notes
    said = [float(number) / 100 for number in re.findall(r"([0-9.]+)%", note)]
    assert len(said) == 2
    assert all(1e-5 < error < 0.03 for error in said)
    difference = (half.factor() - single.factor()).norm() / single.factor().norm()
    assert 0 < float(difference) < 0.03


def test_weights_in_half_precision_are_those_of_single_precision_rounded():
    networks = Streamed(text_conditional)
    (stream,) = networks.draw([numpy_stream(5, 0, 1)])
    for name, recipe in networks.recipes.items():
        exact, rounded = torch.empty(recipe.numel), torch.empty(recipe.numel, dtype=torch.bfloat16)
        stream.fill(name, exact)
        stream.fill(name, rounded)
        assert torch.equal(exact.bfloat16(), rounded)


def test_a_budget_keeps_fewer_batches_and_the_same_mean():
    family = small_family("mlp")
    whole = sads.estimate_geometry(family, 40)
    forecasts = []
    sads.estimate_geometry(family, 40, forecast=forecasts.append)
    allowed = forecasts[0].total - BASE - 1
    frugal = sads.estimate_geometry(family, 40, memory=allowed)
    assert len(whole.counts) == 16
    assert frugal.counts.tolist() == [5] * 8
    assert torch.allclose(whole.factor(), frugal.factor(), rtol=1e-12)


def test_a_budget_that_cannot_hold_one_layer_is_refused_in_one_line():
    family = small_family("mlp")
    with pytest.raises(NotEnoughMemoryError, match=r"cannot hold one layer .* weights") as error:
        sads.estimate_geometry(family, 8, streaming=True, memory="40MB")
    assert "\n" not in str(error.value)


def test_a_streamed_estimate_goes_on_where_it_was(tmp_path):
    """Stopped after some networks, with its file written after each: the same bits."""
    family = sads.family(text_conditional, shape=(4, 8, 8))
    whole = sads.estimate_geometry(family, 6, streaming=True)

    def stop(done: int, *_: object) -> None:
        if done == 3:
            raise RuntimeError("killed")

    arguments = {"streaming": True, "checkpoint": tmp_path / "part", "checkpoint_seconds": 0}
    with pytest.raises(RuntimeError, match="killed"):
        sads.estimate_geometry(family, 6, progress=stop, **arguments)
    assert torch.equal(sads.estimate_geometry(family, 6, **arguments).factors, whole.factors)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sads"


@pytest.mark.parametrize("given", [None, "", "relative"])
def test_without_a_home_nothing_is_remembered_or_compiled(monkeypatch, given):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME")
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    remember("key", Findings((1.0,), ()))
    assert recall("key", (1.0,)) is None
    with pytest.raises(c_code.NoLibraryError, match="no home folder: set XDG_CACHE_HOME"):
        c_code.library.__wrapped__()


def stages_of(family: sads.ScoreFamily) -> tuple[list[str], sads.Geometry]:
    stages: list[str] = []
    geometry = sads.estimate_geometry(family, 8, streaming=True, stage=stages.append)
    return stages, geometry


def test_set_up_is_remembered_and_costs_one_evaluation_the_next_time(cache):
    family = small_family("unet")
    before, first = stages_of(family)
    after, second = stages_of(family)
    assert any("all randomness" in stage for stage in before)
    assert not any("all randomness" in s or "anything is random" in s for s in after)
    assert first.provenance.symmetries == second.provenance.symmetries == ("transposition",)
    assert torch.equal(first.factors, second.factors)
    (kept,) = (file for file in cache.iterdir() if file.suffix != ".so")  # compiled code
    assert kept.stat().st_mode & 0o077 == 0


class Turned(nn.Module):
    """The same parameters with the same law; only what is done with them differs."""

    def __init__(self, sign: float):
        super().__init__()
        self.layer, self._sign = nn.Conv2d(1, 1, 3, padding=1), sign

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layer(torch.sin(x + self._sign * torch.arange(4.0)))


def test_what_is_remembered_of_another_network_does_not_count(cache):
    stages_of(sads.family(lambda: Turned(1.0), shape=(1, 4, 4)))
    stages, _ = stages_of(sads.family(lambda: Turned(-1.0), shape=(1, 4, 4)))
    assert any("all randomness" in stage for stage in stages)


def test_outer_products_leave_no_word_about_features(cache):
    """A transformer that is exact was sampled once somebody had asked for outer products."""
    family = small_family("dit")
    sads.estimate_geometry(family, 16, estimator="outer-product", streaming=True)
    assert sads.estimate_geometry(family, 16, streaming=True).exact


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"response": "x"}', b"\xff", None])
def test_what_is_remembered_may_be_damaged(cache, damage):
    family = small_family("cnn")
    _, first = stages_of(family)
    (kept,) = (file for file in cache.iterdir() if file.suffix != ".so")  # compiled code
    if damage is None:
        cache.chmod(0o777)  # now anybody may have written it
    else:
        kept.write_bytes(damage)
    stages, second = stages_of(family)
    assert any("all randomness" in stage for stage in stages)
    assert torch.equal(first.factors, second.factors)


def test_products_of_large_networks_are_added_up_in_double_precision() -> None:
    """Tokens of smooth positions have spectra over ten decades: float32 would end at 1e-7."""
    geometry = sads.estimate_geometry(small_family("dit"), 16, probe="gaussian", streaming=True)
    values = torch.linalg.eigvalsh(geometry.factor())
    assert float(values[0]) > -1e-13 * float(values[-1])


def test_numbers_are_the_same_to_the_bit_without_a_compiler(monkeypatch):
    class Odd(nn.Module):  # parameters that begin in the middle of words
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 5), nn.Linear(1001, 67, bias=False)
            self.c = nn.Parameter(nn.init.uniform_(torch.empty(13), 0.0, 2.0))
            self.d, self.e = nn.Embedding(50001, 3), nn.Linear(7, 1)
            self.f = nn.Linear(2048, 2048)  # of several pieces
            self.g = nn.Parameter(torch.empty(9, 4))
            nn.init.normal_(self.g, 1.0, 2.0)

    drawn = Initialiser(Odd).draw([numpy_stream(1, 2)])
    streamed = Streamed(Odd)
    for in_c in (True, False):
        monkeypatch.setattr(random, "can_draw", lambda in_c=in_c: in_c and can_draw())
        (stream,) = streamed.draw([numpy_stream(1, 2)])
        for name in ["e.weight", "c", "b.weight", "d.weight", *streamed.recipes, "a.weight"]:
            numbers = torch.empty(streamed.recipes[name].numel)
            stream.fill(name, numbers)
            assert torch.equal(numbers, drawn[name].flatten()), (name, in_c)
            half = torch.empty(len(numbers), dtype=torch.bfloat16)
            stream.fill(name, half)
            assert torch.equal(half, numbers.bfloat16()), (name, in_c)


def test_normal_numbers_are_numpys_to_the_bit():
    ours, numpys = numpy_stream(3), numpy_stream(3)
    for size in (1, 2, 3, 5_000_001):  # with a half of a word left over, or not
        numbers = torch.empty(size)
        random.draw_normal(ours.bit_generator, numbers)
        assert np.array_equal(numbers.numpy(), numpys.standard_normal(size, dtype=np.float32))
    assert ours.random() == numpys.random()
    assert random._normal_is_numpys()
