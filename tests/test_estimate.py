"""The estimator against plain Monte Carlo, closed forms and published numbers."""

import math
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sads
from cases import FAMILIES, FEW_LEVELS, PROBES, TwoLayer, plain_geometry, small_family
from sads.errors import (
    InterruptedEstimate,
    InvalidArgumentError,
    NetworkError,
    NonFiniteError,
    ZeroReadoutError,
)
from sads.geometry.drawing import Initialiser
from sads.schedule import PREDICTIONS

BOUND = 4.5  # |t| with 15 degrees of freedom beyond this: 4 in 10,000


def _assert_agree(fast: sads.Geometry, plain: sads.Geometry, resolution: float) -> None:
    """Whitened by the fast estimate, the plain one is the identity, within standard errors.

    Checked for the mean over each half of a random basis, so that errors are nearly Gaussian;
    they must be below `resolution`, so that a wrong factor would be seen.
    """
    values, basis = torch.linalg.eigh(fast.matrix())
    kept = values > 1e-6 * values[-1]
    seen = basis[:, kept]
    # Signs of eigenvectors, and bases of equal eigenvalues, are those of the processor's LAPACK:
    # of what follows, all depends on the subspace and on the matrix alone.
    noise = torch.randn(len(values), int(kept.sum()), generator=torch.Generator().manual_seed(5))
    directions = torch.linalg.qr(seen @ (seen.T @ noise.double())).Q  # (D, r)
    frame = (seen / values[kept].sqrt()) @ (seen.T @ directions)

    def halves(geometry: sads.Geometry) -> tuple[Tensor, Tensor]:
        dense = torch.stack([geometry.lift.dense(factor) for factor in geometry.factors])
        energy = torch.einsum("ir,kij,jr->kr", frame, dense, frame)
        means = torch.stack([part.mean(dim=1) for part in energy.chunk(2, dim=1)])  # (2, K)
        error = means.std(dim=1) / math.sqrt(16) if means.shape[1] > 1 else torch.zeros(2)
        return means.mean(dim=1), error

    (mean_fast, error_fast), (mean_plain, error_plain) = halves(fast), halves(plain)
    error = torch.hypot(error_fast, error_plain)
    assert float(error.max()) < resolution
    assert float(((mean_fast - mean_plain) / error).abs().max()) < BOUND
    outside = basis[:, ~kept]
    if outside.shape[1]:
        leak = (outside.T @ plain.matrix() @ outside).trace()
        assert float(leak) < 1e-6 * float(values[-1])


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("name", FAMILIES)
def test_fast_estimate_agrees_with_monte_carlo(name: str, probe: str) -> None:
    family = small_family(name)
    where = PROBES[probe](family.shape)
    # As many as the resolution asks for: half of few directions averages over fewer.
    count, times = (96, 2) if name.startswith("unet") else (144, 4)
    if name in ("unet-1d", "cnn-1d"):
        count, times = 2 * count, times // 2
    fast = sads.estimate_geometry(family, times * count, probe=where, seed=1)
    assert fast.estimator == ("exact" if (name[:3], probe) == ("dit", "zero") else "integrated")
    _assert_agree(fast, plain_geometry(name, count, where), resolution=0.15)


@pytest.mark.parametrize("probe", ["zero", "gaussian", "forward", "custom"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_prediction_agrees_with_monte_carlo(prediction: str, probe: str) -> None:
    """The affine part `a_t x` of the score, in closed form or sampled."""
    levels = sads.Schedule("edm", 3, first=0.2, last=2.0) if prediction == "edm" else FEW_LEVELS
    family = small_family("cnn", prediction=prediction, schedule=levels)
    where = PROBES[probe](family.shape)
    count = 512 if probe == "zero" else 256  # as many as the resolution asks for
    fast = sads.estimate_geometry(family, 1000, probe=where, seed=3)
    plain = plain_geometry("cnn", count, where, seed=4, prediction=prediction, schedule=levels)
    affine = prediction not in ("epsilon", "score") and probe == "custom"
    assert fast.estimator == ("outer-product" if affine else "integrated")
    _assert_agree(fast, plain, resolution=0.1)


def test_stacks_of_whole_networks_agree_with_monte_carlo() -> None:
    family = small_family("unet")
    outer = sads.estimate_geometry(family, 512, seed=5, estimator="outer-product")
    plain = sads.estimate_geometry(family, 96, seed=6, estimator="monte-carlo")
    _assert_agree(outer, plain, resolution=0.1)


def test_mlp_geometry_is_a_multiple_of_the_identity() -> None:
    """Proposition 1 with a linear output: the part along 11^T vanishes."""
    geometry = sads.estimate_geometry(small_family("mlp"), 64)
    matrix = geometry.matrix()
    assert torch.allclose(matrix, matrix[0, 0] * torch.eye(9, dtype=torch.float64))


def test_cnn_geometry_repeats_one_block_per_channel() -> None:
    geometry = sads.estimate_geometry(small_family("cnn"), 64)
    matrix = geometry.matrix().reshape(2, 16, 2, 16)
    assert torch.equal(matrix[0, :, 0], matrix[1, :, 1])
    assert not matrix[0, :, 1].any()


@pytest.mark.parametrize("patch_size", [2, 4])
def test_dit_is_exact_and_equals_its_formula(patch_size: int) -> None:
    """`E[1 / sigma^2] 2 / (48 + patch) h h^T (x) I` with `h` the normalised positions."""
    family = sads.family("dit", (1, 16, 16), patch_size=patch_size)
    geometry = sads.estimate_geometry(family, 512)
    assert geometry.exact
    assert geometry.num_networks == 0
    side, width = 16 // patch_size, 48
    omega = 10_000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * omega
    axis = torch.cat([angle.sin(), angle.cos()], dim=1)  # (side, width / 2)
    h = torch.cat([axis.repeat(side, 1), axis.repeat_interleave(side, dim=0)], dim=1)
    h = (h - h.mean(dim=1, keepdim=True)) / torch.sqrt(h.var(1, correction=0)[:, None] + 1e-6)
    weight = (1 / family.schedule.sigma**2).mean() * 2 / (width + patch_size**2)
    expected = torch.zeros(16, 16, 16, 16, dtype=torch.float64)
    gram = (weight * h @ h.T).reshape(side, side, side, side)
    for a in range(patch_size):
        for b in range(patch_size):
            inside = (slice(a, None, patch_size), slice(b, None, patch_size))
            expected[(*inside, *inside)] = gram
    given = geometry.matrix()
    assert torch.allclose(given, expected.reshape(256, 256), atol=1e-6 * float(given.max()))
    tokens = side**2
    values = geometry.directions().values
    distinct = 1 + int(((values[:-1] - values[1:]) > 1e-9 * values[0]).sum())
    assert distinct <= tokens


@pytest.mark.slow
def test_iddpm_agrees_with_the_published_numbers() -> None:
    """Section 6 of the design: 133.59 and 0.0988 from 20,480 networks of the prototype."""
    geometry = sads.estimate_geometry(sads.family("iddpm", (1, 16, 16)), 1024, seed=11)
    directions = geometry.directions()
    largest, smallest = directions.values[0], directions.values[-1]
    errors = directions.value_errors
    assert errors[0] < 0.01 * largest
    assert errors[-1] < 0.03 * smallest
    assert abs(largest - 133.59) < 3 * errors[0]
    assert abs(smallest - 0.0988) < 3 * errors[-1]
    assert geometry.provenance.symmetries == ("transposition",)


def test_symmetries_are_found_where_they_hold() -> None:
    def found(name: str) -> list[str]:
        return list(sads.estimate_geometry(small_family(name), 16).provenance.symmetries)

    assert found("unet") == ["transposition"]
    assert found("unet-area") == ["flip of axis 0", "flip of axis 1", "transposition"]
    assert found("unet-1d") == []
    assert found("mlp") == []


def test_symmetry_averaging_does_not_move_the_estimate() -> None:
    """Against whole networks without it: the same geometry, within errors."""
    family = small_family("unet-area")
    averaged = sads.estimate_geometry(family, 256, seed=1)
    plain = sads.estimate_geometry(family, 768, seed=2, estimator="outer-product")
    _assert_agree(averaged, plain, resolution=0.03)


@pytest.mark.parametrize("estimator", ["auto", "outer-product"])
def test_result_does_not_depend_on_the_batch_size(estimator: str) -> None:
    family = small_family("unet")
    results = [
        sads.estimate_geometry(family, 20, seed=3, batch_size=size, estimator=estimator)
        for size in (1, 7, 64)
    ]
    for other in results[1:]:
        assert torch.equal(results[0].counts, other.counts)
        scale = float(results[0].factors.abs().max())
        assert torch.allclose(results[0].factors, other.factors, atol=1e-4 * scale)


def test_shards_add_up_to_the_whole() -> None:
    family = small_family("cnn")
    whole = sads.estimate_geometry(family, 90, seed=4)
    shards = [
        sads.estimate_geometry(family, count, seed=4, first_network=first)
        for first, count in ((0, 30), (30, 17), (47, 43))
    ]
    merged = shards[0].merge(*shards[1:])
    assert torch.equal(merged.counts, whole.counts)
    assert torch.allclose(merged.factors, whole.factors, rtol=1e-6)


def test_another_seed_gives_other_networks() -> None:
    family = small_family("cnn")
    a, b = (sads.estimate_geometry(family, 16, seed=seed).factor() for seed in (0, 1))
    assert not torch.allclose(a, b, rtol=1e-3)


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    for estimator in ("auto", "monte-carlo"):
        torch.manual_seed(0)
        sads.estimate_geometry(small_family("cnn"), 16, estimator=estimator)
        assert torch.equal(torch.rand(1), expected)


def test_tolerance_draws_until_directions_are_sure() -> None:
    family = small_family("unet-1d")
    loose = sads.estimate_geometry(family, tolerance=0.3)
    tight = sads.estimate_geometry(family, tolerance=0.05)
    assert loose.num_networks < tight.num_networks < 16_384
    directions = tight.directions()
    assert directions.tolerance == 0.05
    assert bool(directions.resolved.all())
    assert float(directions.angle_errors.max()) <= 0.05


def test_tolerance_stops_at_the_budget() -> None:
    geometry = sads.estimate_geometry(small_family("unet"), tolerance=1e-3, max_networks=96)
    assert geometry.num_networks == 96


def test_progress_counts_networks() -> None:
    calls: list[tuple[int, int, float]] = []
    sads.estimate_geometry(
        small_family("cnn"), 64, batch_size=16, progress=lambda *call: calls.append(call)
    )
    assert [done for done, _, _ in calls] == [16, 32, 48, 64]
    assert 0 < calls[-1][2] < 1


def test_set_up_says_what_it_does() -> None:
    stages: list[str] = []
    sads.estimate_geometry(small_family("unet"), 16, stage=stages.append)
    assert stages == [
        "recording the constructor",
        "looking for the output layer",
        "checking that parameters hold all randomness",
        "checking symmetries",
        "checking whether anything is random: 16 of 16",
        "drawing networks",
    ]


@pytest.mark.parametrize("name", ["unet", "dit"])
def test_large_networks_are_held_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the check for exactness, which gives the same answer."""
    family = small_family(name)
    expected = sads.estimate_geometry(family, 20, seed=1)
    sizes: list[int] = []
    draw = Initialiser.draw

    def counted(self: Initialiser, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        sizes.append(len(streams))
        return draw(self, streams)

    monkeypatch.setattr(Initialiser, "draw", counted)
    monkeypatch.setattr("sads.geometry.stacks.PARAMETER_BYTES", 1)
    monkeypatch.setattr("sads.geometry.estimators.PARAMETER_BYTES", 1)
    given = sads.estimate_geometry(family, 20, seed=1)
    assert given.exact == expected.exact == (name == "dit")
    scale = float(expected.factors.abs().max())
    assert torch.allclose(given.factors, expected.factors, atol=1e-4 * scale)
    assert sizes == [1] * (16 if name == "dit" else 2 + 20)  # the second one differs


MEMORY_OF_A_LARGE_NETWORK = """
import sads

def peak():  # not ru_maxrss, which a process inherits from whoever started it
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024

def build(depth):
    return sads.family("dit", (1, 4, 4), hidden_size=768, num_heads=4, depth=depth)

sads.estimate_geometry(build(0), streaming=False)  # whatever PyTorch allocates at its first use
before = peak()
family = build(2)
geometry = sads.estimate_geometry(family, streaming=False)
size = sum(p.nbytes for p in family.build().parameters())
print(geometry.exact, size, (peak() - before) / size)
"""


@pytest.mark.slow
def test_a_large_network_needs_three_copies_of_itself() -> None:
    """66 MB of parameters, the geometry exact; double precision takes two of the three."""
    process = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_LARGE_NETWORK], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    exact, size, copies = process.stdout.split()
    assert exact == "True"
    assert int(size) > 60e6
    assert float(copies) < 3.3


def test_interrupt_keeps_what_was_computed() -> None:
    def interrupt(done: int, total: int, error: float) -> None:
        if done >= 48:
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(InterruptedEstimate) as caught:
        sads.estimate_geometry(small_family("cnn"), 5000, batch_size=2, progress=interrupt)
    geometry = caught.value.geometry
    assert isinstance(caught.value, KeyboardInterrupt)  # whoever does not ask for the part stops
    assert geometry.num_networks == 48
    assert geometry.provenance.interrupted
    assert geometry.directions().values[0] > 0


class _Module(nn.Module):
    """`net(x, t)` made of a function."""

    def __init__(self, function: object):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.function(self.linear(x.flatten(1)).reshape(x.shape), x, t)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda h, x, t: h[:, :, :1], NetworkError, r"returned \(1, 1, 1, 2\)"),
        (lambda h, x, t: [h], NetworkError, "returned list"),
        (lambda h, x, t: h / 0.0, NonFiniteError, "NaN or infinity"),
        (lambda h, x, t: h * torch.where(t > 900, math.inf, 1.0), NonFiniteError, "at level 9"),
        (lambda h, x, t: h.reshape(3, 3), NetworkError, "cannot be evaluated"),
    ],
)
def test_unusable_networks_are_refused(
    function: object, error: type[Exception], words: str
) -> None:
    family = sads.family(
        lambda: _Module(function), (1, 2, 2), prediction="score", schedule="linear"
    )
    with pytest.raises(error, match=words):
        sads.estimate_geometry(family, 400, estimator="outer-product")


def _zeroed() -> nn.Module:
    layer = nn.Linear(5, 4)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return TwoLayer(layer, 4, 5)


@pytest.mark.parametrize("estimator", ["auto", "outer-product", "monte-carlo"])
def test_zero_output_layer(estimator: str) -> None:
    family = sads.family(_zeroed, (1, 2, 2))
    with pytest.raises(ZeroReadoutError, match="directions are undefined"):
        sads.estimate_geometry(family, 32, estimator=estimator)
    family = replace(family, schedule=FEW_LEVELS)
    geometry = sads.estimate_geometry(family, 400, estimator=estimator, zero_readout="default")
    ordinary = sads.family(lambda: TwoLayer(nn.Linear(5, 4), 4, 5), (1, 2, 2), schedule=FEW_LEVELS)
    _assert_agree(sads.estimate_geometry(ordinary, 400), geometry, resolution=0.1)
    assert geometry.provenance.zero_readout == "default"


def test_zero_output_without_a_readout_is_refused_too() -> None:
    family = sads.family(lambda: _Module(lambda h, x, t: h * 0.0), (1, 2, 2))
    with pytest.raises(ZeroReadoutError):
        sads.estimate_geometry(family, 32)


def test_networks_with_control_flow_are_evaluated_one_by_one() -> None:
    def branch(h: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return torch.tanh(h) if t.item() > 300 else 2 * torch.tanh(h)

    family = sads.family(lambda: _Module(branch), (1, 2, 2), schedule=FEW_LEVELS)
    fast = sads.estimate_geometry(family, 640, seed=1)
    assert "one after the other" in fast.provenance.notes[1]
    plain = sads.estimate_geometry(family, 640, seed=2, estimator="monte-carlo")
    _assert_agree(fast, plain, resolution=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_networks": 0}, "at least 1, got 0"),
        ({"num_networks": -5}, "at least 1, got -5"),
        ({"num_networks": 5, "tolerance": 0.1}, "give one of them"),
        ({"tolerance": 0.0}, "between 0 and pi/2"),
        ({"tolerance": 0.1, "max_networks": 0}, "max_networks"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "cannot be negative"),
        ({"estimator": "exact"}, "unknown estimator"),
        ({"zero_readout": "yes"}, "choose 'error' or 'default'"),
        ({"readout": "nowhere"}, "no layer 'nowhere'"),
        ({"readout": "hidden.0"}, "cannot be integrated out"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        sads.estimate_geometry(small_family("cnn"), **arguments)  # type: ignore[arg-type]
