"""Common practice: the Gaussian part of the score, clipping, centred data, other predictions."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import sads
from commands import Sads, changed
from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.diffusion import skip as skips
from sads.diffusion.model import ScoreModel, noise_from_output
from sads.diffusion.sample import SAMPLERS, spread_levels
from sads.diffusion.skip import fit_gaussian
from sads.diffusion.train import noised
from sads.errors import CheckpointError, DataError, InvalidArgumentError
from sads.experiments.run import (
    digest_images,
    get_geometry,
    make_data,
    read_source,
    run_cell,
    seed_of,
)
from sads.experiments.spec import Cell, FamilySpec, GeometrySpec, Practice
from sads.experiments.store import Store
from sads.rotations.kinds import random_axes
from sads.seeds import torch_stream
from sads.table1 import Sampling, Training

pytestmark = pytest.mark.usefixtures("one_thread")

PREDICTIONS = ("epsilon", "score", "x0", "v")
LINEAR = sads.Schedule()


def _tiny(prediction: str = "epsilon") -> sads.ScoreFamily:
    return sads.family("mlp", (1, 2, 2), prediction=prediction, width=16, depth=1, time_width=8)


class Zero(nn.Module):
    """A network that has learnt nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.dummy = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return 0 * x + 0 * self.dummy


def _gaussian_data(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of a Gaussian in four dimensions, (N, 1, 2, 2); their mean and covariance."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.tensor([[2.0, 0, 0, 0], [1, 1, 0, 0], [0, 0.3, 0.1, 0], [0.5, 0, 0, 0.2]])
    mean = torch.tensor([1.0, -2.0, 0.5, 0.0])
    x = mean + torch.randn(count, 4, generator=generator) @ factor.T
    covariance = torch.from_numpy(np.cov(x.double().numpy().T, bias=True))
    return x.reshape(-1, 1, 2, 2), x.double().mean(dim=0), covariance


def _dense_prediction(
    prediction: str, x: Tensor, level: int, mean: Tensor, covariance: Tensor
) -> Tensor:
    """What a perfect network predicts of Gaussian data, by solving with the dense matrix."""
    abar, sigma = LINEAR.abar[level], LINEAR.sigma[level]
    noisy = abar * covariance + sigma**2 * torch.eye(len(mean), dtype=torch.float64)
    score = -torch.linalg.solve(noisy, (x.flatten(1) - abar.sqrt() * mean).T).T
    a, b = LINEAR.score_coefficients(prediction)
    return (score - a[level] * x.flatten(1)) / b[level]


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("rank", [None, 2])
def test_the_gaussian_part_is_the_dense_formula(prediction: str, rank: int | None) -> None:
    x, mean, covariance = _gaussian_data(50)
    family = sads.gaussian_skip(_tiny(prediction), x, rank=rank)
    assert family.skip is not None
    if rank is not None:  # the first two, and the mean of the other two
        values, vectors = torch.linalg.eigh(covariance)
        values[:2] = values[:2].mean()
        covariance = vectors @ values.diag() @ vectors.T
    assert torch.allclose(family.skip.covariance(), covariance, atol=1e-6)
    levels = torch.tensor([0, 3, 400, 999])
    noisy = torch.randn(4, 1, 2, 2, dtype=torch.float64)
    found = family.skip.predict(prediction, LINEAR, noisy, levels).flatten(1)
    for row, level in enumerate(levels.tolist()):
        expected = _dense_prediction(prediction, noisy[row : row + 1], level, mean, covariance)
        assert torch.allclose(found[row], expected[0], rtol=1e-4, atol=1e-3)
        single = family.skip.predict(prediction, LINEAR, noisy.float(), torch.tensor([level]))
        assert single.dtype == torch.float32
        assert torch.allclose(single.flatten(1)[row].double(), found[row], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_skip_alone_samples_the_gaussian(prediction: str) -> None:
    """Within 2.5 times what true samples of N(mu, C) get by the closed-form distance."""
    x, mean, covariance = _gaussian_data(3000)
    model = ScoreModel(sads.gaussian_skip(_tiny(prediction), x), Zero())
    y = sads.sample(model, 3000, steps=50, sampler="dpm-solver", seed=1)
    centre = mean.float().reshape(1, 2, 2)
    found, floor = (
        sads.sliced_wasserstein_to_gaussian(z - centre, covariance=covariance.float(), seed=0)
        for z in (y, x)
    )
    assert found.sw2 < 2.5 * floor.sw2 + 0.02


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_skip_alone_has_the_optimal_loss_of_gaussian_data(prediction: str) -> None:
    """The loss of a network that returns 0, against conditional variances from dense matrices."""
    x, _, covariance = _gaussian_data(20_000)
    family = sads.gaussian_skip(_tiny(prediction), x)
    assert family.skip is not None
    _, levels, target = noised(family, x, seed=0, iteration=0)
    losses = target.square().flatten(1).mean(dim=1).double()
    weights = LINEAR.score_coefficients(prediction)[1] ** -2  # of the squared error of the score
    optimum = []
    for abar, sigma in zip(LINEAR.abar, LINEAR.sigma, strict=True):
        noisy = abar * covariance + sigma**2 * torch.eye(4, dtype=torch.float64)
        optimum.append((torch.eye(4).double() / sigma**2 - torch.linalg.inv(noisy)).trace() / 4)
    expected = weights * torch.stack(optimum)
    closed_form = family.skip.optimal_loss(prediction, LINEAR)
    assert closed_form == pytest.approx(float(expected.mean()), rel=1e-6)
    relative = losses / expected[levels]  # of mean 1, whatever the level
    error = float(relative.std()) / math.sqrt(len(losses))
    assert abs(float(relative.mean()) - 1) < 4 * error
    assert error < 0.02


@pytest.mark.parametrize("way", ["covariance", "products", "iteration"])
def test_moments_are_those_of_numpy(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, dimension = {"covariance": (50, 8), "products": (6, 20)}.get(way, (60, 30))
    if way == "iteration":
        monkeypatch.setattr(skips, "MAX_EXACT", 10)
    monkeypatch.setattr(skips, "CHUNK_BYTES", 8 * 7 * dimension)  # several chunks
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(1, -3, dimension)
    rows = 3 + torch.randn(count, dimension, generator=generator) * scales
    rank = 8 if way == "iteration" else None
    part = fit_gaussian(rows, rank)
    expected = np.cov(rows.double().numpy().T, bias=True)
    values, vectors = np.linalg.eigh(expected)
    kept = {"covariance": 8, "products": 5, "iteration": 8}[way]
    assert part.rank == kept
    assert np.allclose(part.values, values[::-1][:kept], rtol=1e-5)
    overlap = part.vectors.double().numpy().T @ vectors[:, ::-1][:, :kept]
    assert np.allclose(np.abs(overlap), np.eye(kept), atol=1e-3)
    others = dimension - kept
    assert part.rest == pytest.approx(values[:others].mean() if others else 0, abs=1e-9)
    assert torch.allclose(part.mean, rows.double().mean(dim=0))


@pytest.mark.parametrize("count", [1, 5])
def test_what_has_no_covariance_has_no_skip(count: int) -> None:
    with pytest.raises(DataError, match="two samples" if count == 1 else "rank 0"):
        sads.gaussian_skip(_tiny(), torch.ones(count, 1, 2, 2))


def test_what_does_not_fit_has_no_skip() -> None:
    with pytest.raises(DataError, match=r"expected \(N, 1, 2, 2\)"):
        sads.gaussian_skip(_tiny(), torch.randn(9, 1, 3, 3))
    with pytest.raises(
        InvalidArgumentError, match="rank must be a whole number of at least 1, got 0"
    ):
        sads.gaussian_skip(_tiny(), torch.randn(9, 1, 2, 2), rank=0)
    other = sads.gaussian_skip(_tiny(), torch.randn(9, 1, 2, 2)).skip
    with pytest.raises(InvalidArgumentError, match="4 coordinates, the family has 9"):
        replace(_tiny(), shape=(1, 3, 3), skip=other)


def test_the_geometry_beside_a_skip_is_that_of_the_networks() -> None:
    alone = sads.estimate_geometry(_tiny(), 64)
    beside = sads.estimate_geometry(sads.gaussian_skip(_tiny(), _gaussian_data(50)[0]), 64)
    assert torch.equal(alone.matrix(), beside.matrix())
    assert any("Gaussian part" in note for note in beside.provenance.notes)


def test_models_with_a_skip_and_a_mean_are_saved_and_loaded(tmp_path: Path) -> None:
    x = _gaussian_data(64)[0]
    model = sads.train(
        sads.gaussian_skip(_tiny("v"), x), x, iterations=2, batch_size=16, centre=True
    )
    path = model.save(tmp_path / "m.safetensors")
    for family in (None, _tiny("v"), model.family):
        loaded = sads.load_model(path, family)
        assert loaded.family.describe() == model.family.describe()
        a, b = (sads.sample(m, 50, steps=3, clip="data") for m in (model, loaded))
        assert torch.equal(a, b)
    assert loaded.provenance.data_range == (float(x.min()), float(x.max()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("skip.vectors", lambda v: v * 2),
        ("skip.vectors", lambda v: v[:, :1]),
        ("skip.values", lambda v: v * math.nan),
        ("skip.values", lambda v: -v),
        ("skip.mean", lambda v: v[:1]),
        ("skip.mean", None),
        ("mean", lambda v: v[:, :1]),
    ],
)
def test_a_damaged_skip_is_refused(
    tmp_path: Path, name: str, change: Callable[[Tensor], Tensor] | None
) -> None:
    x = _gaussian_data(64)[0]
    family = sads.gaussian_skip(_tiny(), x)
    path = ScoreModel(family, _tiny().build(), mean=x[0]).save(tmp_path / "m.safetensors")
    with path.open("rb"):
        from safetensors import safe_open

        metadata = safe_open(path, "pt").metadata()
    tensors = load_file(path)
    old = tensors.pop(name)
    if change is not None:
        tensors[name] = change(old).contiguous()
    save_file(tensors, path, metadata)
    with pytest.raises(CheckpointError, match="damaged"):
        sads.load_model(path)


def _rotation(x: Tensor, kind: str) -> sads.Rotation:
    return sads.rotation(sads.estimate_geometry(_tiny(), 64), x, kind)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpm-solver", "langevin"])
def test_clipping_agrees_with_a_plain_implementation(
    sampler: str, centred: bool, rotated: bool
) -> None:
    """The same sampler in double precision, whose noise goes with an `x_0` clipped by hand."""
    low, high = -0.625, 0.5
    mean = torch.tensor([0.3, -0.1, 0.2, 0.0]).reshape(1, 2, 2) if centred else None
    rotation = _rotation(torch.randn(30, 1, 2, 2), "random:3") if rotated else None
    model = ScoreModel(_tiny("v"), _tiny("v").build(), mean=mean)
    steps = 12
    y = sads.sample(
        model, 50, steps=steps, sampler=sampler, seed=2, clip=(low, high), rotation=rotation
    )
    matrix = random_axes(4, 3).T if rotated else torch.eye(4, dtype=torch.float64)
    if rotation is not None:
        assert torch.allclose(rotation.matrix(), matrix)
    shift = torch.zeros(4, dtype=torch.float64) if mean is None else mean.flatten().double()
    stream = torch_stream("sample", 2, 0)

    def noise() -> Tensor:
        return torch.randn(50, 1, 2, 2, generator=stream).double()

    bound = 0

    def denoise(z: Tensor, level: int) -> Tensor:
        nonlocal bound
        abar = float(LINEAR.abar[level])
        time = torch.full((50,), float(level))
        v = model.network(z.float(), time).detach().double()
        clean = math.sqrt(abar) * z - math.sqrt(1 - abar) * v
        seen = (clean.flatten(1) + shift) @ matrix
        bound += int((seen != seen.clamp(low, high)).sum())
        clean = seen.clamp(low, high) @ matrix.T - shift
        return (z - math.sqrt(abar) * clean.reshape(z.shape)) / math.sqrt(1 - abar)

    *_, z = SAMPLERS[sampler](LINEAR, spread_levels(1000, steps), noise(), denoise, noise)
    expected = (z.flatten(1) + shift) @ matrix
    assert bound > 100
    assert torch.allclose(y.flatten(1).double(), expected, atol=2e-4)
    assert low <= float(y.min())
    assert float(y.max()) <= high


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpm-solver", "langevin"])
def test_a_range_that_never_binds_changes_nothing_to_the_bit(sampler: str) -> None:
    x = torch.randn(30, 1, 2, 2)
    model = ScoreModel(_tiny(), _tiny().build(), mean=x[0])
    for rotation in (None, _rotation(x, "min")):
        options = {"steps": 10, "sampler": sampler, "rotation": rotation}
        free, wide = (
            sads.sample(model, 50, clip=clip, **options)  # type: ignore[arg-type]
            for clip in (None, (-1e6, 1e6))
        )
        assert torch.equal(free, wide)


def test_samples_that_blew_up_are_brought_back() -> None:
    class Infinite(Zero):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return torch.full_like(x, math.inf)

    y = sads.sample(ScoreModel(_tiny(), Infinite()), 10, steps=5, clip=(-1, 1))
    assert y.abs().max() <= 1


def test_clipping_without_a_range_is_refused() -> None:
    model = ScoreModel(_tiny(), _tiny().build())
    with pytest.raises(InvalidArgumentError, match="range of the model's data is not known"):
        sads.sample(model, 10, steps=2, clip="data")
    for clip in ((1, -1), (0, math.inf), (1,), "range"):
        with pytest.raises(InvalidArgumentError, match="cannot be clipped"):
            sads.sample(model, 10, steps=2, clip=clip)  # type: ignore[arg-type]
    x = torch.randn(30, 1, 2, 2)
    turned = _rotation(x, "min")
    trained = sads.train(_tiny(), turned.apply(x), iterations=1, batch_size=10)
    with pytest.raises(InvalidArgumentError, match="rotated data only"):
        sads.sample(trained, 10, steps=2, clip="data", rotation=turned)


def test_a_rotation_of_another_shape_is_refused() -> None:
    geometry = sads.estimate_geometry(sads.family("mlp", (1, 3, 3), width=8, depth=1), 32)
    other = sads.rotation(geometry, torch.randn(20, 1, 3, 3), "min")
    with pytest.raises(InvalidArgumentError, match="the rotation is of 1x3x3, the model of 1x2x2"):
        sads.sample(ScoreModel(_tiny(), _tiny().build()), 10, steps=2, rotation=other)


def test_centred_training_does_not_see_the_mean() -> None:
    x = torch.randn(64, 1, 2, 2)
    x = x - x.mean(dim=0)
    shift = torch.tensor([3.0, -1.0, 0.5, 8.0]).reshape(1, 2, 2)
    options = {"iterations": 5, "batch_size": 16, "learning_rate": 1e-2}
    here, there = (
        sads.train(_tiny(), data, centre=True, **options)  # type: ignore[arg-type]
        for data in (x, x + shift)
    )
    assert torch.allclose(here.losses, there.losses, rtol=1e-4)
    assert there.mean is not None
    assert torch.allclose(there.mean, shift, atol=1e-5)
    a, b = (sads.sample(m, 50, steps=5) for m in (here, there))
    assert torch.allclose(a + shift, b, atol=1e-3)
    raw = sads.train(_tiny(), x + shift, **options)  # type: ignore[arg-type]
    assert raw.mean is None
    assert not torch.allclose(raw.losses, there.losses, rtol=1e-2)


def test_a_skip_follows_its_data_when_they_are_centred() -> None:
    """Beside a network of zeros nothing is left to depend on where the data are."""
    x, _, _ = _gaussian_data(500)
    family = replace(sads.gaussian_skip(_tiny(), x), factory=Zero)
    models = [
        sads.train(family, x, iterations=1, batch_size=500, centre=centre)
        for centre in (False, True)
    ]
    assert torch.allclose(models[0].losses, models[1].losses, rtol=1e-4)
    a, b = (sads.sample(m, 100, steps=20) for m in models)
    assert torch.allclose(a, b, atol=1e-3)
    skip = models[1].family.skip
    assert skip is not None
    assert torch.allclose(skip.mean, torch.zeros(4).double(), atol=1e-6)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("skipped", [False, True])
def test_training_learns_with_every_prediction(prediction: str, skipped: bool) -> None:
    """One update in the direction of the gradient lowers the loss on the same batch."""
    x = _gaussian_data(256)[0] ** 2
    family = _tiny(prediction)
    if skipped:
        family = sads.gaussian_skip(family, x)
    model = sads.train(family, x, iterations=30, batch_size=256, learning_rate=1e-3, seed=1)
    fresh = sads.train(family, x, iterations=1, batch_size=256, learning_rate=1e-12, seed=1)

    def loss(network: nn.Module) -> float:
        x_t, levels, target = noised(family, x, 9, 9)
        with torch.no_grad():
            return float((network(x_t, LINEAR.network_time(levels)) - target).square().mean())

    assert loss(model.network) < loss(fresh.network)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_noise_of_a_model_is_that_of_its_score(prediction: str) -> None:
    x = _gaussian_data(50)[0]
    family = sads.gaussian_skip(_tiny(prediction), x)
    network = family.build()
    with torch.no_grad():
        for level in (0, 500, 999):
            time = LINEAR.network_time(torch.tensor([level])).expand(len(x))
            eps = noise_from_output(family, network(x, time), x, level)
            score = family.score(network, x, torch.full((len(x),), level))
            assert torch.allclose(eps, -LINEAR.sigma[level] * score, rtol=1e-3, atol=1e-4)


def _cell(practice: Practice, rotation: str = "identity") -> Cell:
    return Cell(
        geometry=GeometrySpec(FamilySpec("mlp", (1, 2, 2), (("depth", 1), ("width", 16))), 32),
        data=DataSpec.parse("digits"),
        num_data=100,
        training=Training(6, 20, 1e-3),
        sampling=Sampling(40, 4, projections_per_dimension=2),
        seed=1,
        layers=layers_name(),
        rotation=rotation,
        keep_samples=40,
        data_sha256=digest_images(read_source("digits", (1, 2, 2), {})[0]),
        practice=practice,
    )


COMMON = Practice(prediction="v", clip=True, ema_decay=0.9, centre=True, skip="gaussian")


def test_only_what_differs_from_the_paper_is_in_the_name_of_a_cell() -> None:
    assert "practice" not in _cell(Practice()).to_json()
    one = _cell(Practice(prediction="x0"))
    assert one.to_json()["practice"] == {"prediction": "x0"}
    assert one.label.endswith("digits, x0-prediction, seed 1")
    cells = [_cell(p) for p in (Practice(), Practice(clip=True), COMMON)] + [one]
    assert len({cell.hash for cell in cells}) == len(cells)
    for cell in cells:
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
    for wrong in ({"prediction": "noise"}, {"skip": "linear"}, {"ema_decay": 1.0}):
        with pytest.raises(InvalidArgumentError):
            Practice(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "practice", [Practice(), Practice(prediction="x0"), Practice(clip=True), COMMON], ids=str
)
@pytest.mark.parametrize("rotation", ["identity", "min"])
def test_a_cell_does_what_the_library_does(
    tmp_path: Path, practice: Practice, rotation: str
) -> None:
    cell, store = _cell(practice, rotation), Store(tmp_path / "store")
    record = run_cell(cell, store)
    assert record is not None
    geometry = get_geometry(cell.geometry, store)
    x = make_data(cell, geometry, {}).train
    turned = sads.rotation(geometry, x, rotation)
    family = sads.family("mlp", (1, 2, 2), prediction=practice.prediction, depth=1, width=16)
    if practice.skip == "gaussian":
        family = sads.gaussian_skip(family, turned.apply(x))
    model = sads.train(
        family,
        turned.apply(x),
        iterations=6,
        batch_size=20,
        learning_rate=1e-3,
        seed=seed_of(cell, "train"),
        ema_decay=practice.ema_decay,
        centre=practice.centre,
    )
    y = sads.sample(
        model,
        40,
        steps=4,
        seed=seed_of(cell, "sample 6"),
        clip=(float(x.min()), float(x.max())) if practice.clip else None,
        rotation=turned,
    )
    assert torch.allclose(store.samples(record), y, atol=1e-5)
    if practice.clip:
        assert float(x.min()) <= float(y.min())
        assert float(y.max()) <= float(x.max())


RUN = [
    *("--shape", "1x4x4", "-o", "width=8", "-o", "depth=1", "--batch-size", 20),
    *("--iterations", 3, "--samples", 60, "--out", "run"),
]


@pytest.mark.parametrize("rotated", [False, True])
def test_commands_take_common_practice(command: Sads, rotated: bool) -> None:
    options = ["--prediction", "v", "--skip", "gaussian", "--centre", "--ema", "0.9"]
    options += ["--rotation", "min", "--networks", "32"] if rotated else []
    out = command.succeed("train", "mlp", "digits", "--resize", *RUN, *options, "--json")
    run = json.loads(out)
    assert run["family"]["skip"] == {"kind": "gaussian", "rank": 16}
    assert (run["options"]["centre"], run["options"]["ema_decay"]) == (True, 0.9)
    model = sads.load_model("run/model.safetensors")
    assert model.mean is not None
    assert model.family.skip is not None
    x = sads.load_images("digits", size=4)[:60]
    low, high = float(x.min()), float(x.max())
    assert model.provenance.data_range == (low, high)  # of the data, not of the rotated data
    sampled = json.loads(
        command.succeed("sample", "run", "--samples", 30, "--steps", 4, "--clip", "--json")
    )
    assert sampled["clip"] == [low, high]
    with np.load("run/samples.npz") as kept:
        y = kept["images"]
    assert low <= y.min()
    assert y.max() <= high
    rotation = sads.load_rotation("run/rotation.safetensors") if rotated else None
    again = sads.sample(model, 30, steps=4, clip="data", rotation=rotation)
    assert np.allclose(y, again.numpy(), atol=1e-5)
    narrow = ["--clip-range", "-0.25,0.25", "--out", "narrow"]
    command.succeed("sample", "run", "--samples", 30, "--steps", 4, *narrow)
    with np.load("narrow/samples.npz") as kept:
        assert np.abs(kept["images"]).max() == 0.25
    command.succeed("train", "mlp", "digits", "--resize", *RUN, *options, "--resume")
    status, _, err = command(
        "train", "mlp", "digits", "--resize", *RUN, *options[:2], *options[4:], "--resume"
    )
    assert status == 2
    assert "another family" in err


def test_commands_refuse_what_cannot_be(command: Sads) -> None:
    assert "write --skip gaussian" in command.fail(
        "train", "mlp", "digits", *RUN, "--skip", "linear"
    )
    np.savez("one.npz", images=np.full((9, 4, 4), 0.5, dtype=np.float32))
    wrong = [*changed(RUN, "--batch-size", 1), "--skip", "gaussian"]
    assert "constant" in command.fail("train", "mlp", "one.npz", *wrong)
    np.savez("single.npz", images=np.random.default_rng(0).random((1, 4, 4), dtype=np.float32))
    assert "a single sample" in command.fail("train", "mlp", "single.npz", *wrong)
    assert not Path("run/checkpoint.safetensors").exists()
    ScoreModel(sads.family("mlp", (1, 4, 4)), sads.family("mlp", (1, 4, 4)).build()).save(
        "model.safetensors"
    )
    assert "--clip-range -1,1" in command.fail("sample", "model.safetensors", "--clip")
    assert "not a range" in command.fail("sample", "model.safetensors", "--clip-range", "1,-1")


def test_samples_under_way_are_continued_with_the_same_clipping_only(tmp_path: Path) -> None:
    x = torch.randn(30, 1, 2, 2)
    model = ScoreModel(_tiny(), _tiny().build(), mean=x[0])
    path = tmp_path / "partial.safetensors"
    options = {"steps": 5, "batch_size": 50, "checkpoint": path, "checkpoint_seconds": 0.0}
    turned = _rotation(x, "min")

    def stop(done: int, total: int, share: float) -> None:
        if share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sads.sample(model, 100, clip=(-1, 1), rotation=turned, progress=stop, **options)  # type: ignore[arg-type]
    for clip, rotation in ((None, turned), ((-1, 2), turned), ((-1, 1), _rotation(x, "max"))):
        with pytest.raises(CheckpointError, match="another piece of work"):
            sads.sample(model, 100, clip=clip, rotation=rotation, **options)  # type: ignore[arg-type]
    whole = sads.sample(model, 100, steps=5, clip=(-1, 1), rotation=turned)
    resumed = sads.sample(model, 100, clip=(-1, 1), rotation=turned, **options)  # type: ignore[arg-type]
    assert torch.equal(whole, resumed)


def test_clipping_agrees_with_diffusers() -> None:
    """Deterministic sampling, all the way, with the noise that goes with the clipped `x_0`."""
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.DDIMScheduler(
        1000,
        beta_start=1e-4,
        beta_end=0.02,
        timestep_spacing="trailing",
        clip_sample=True,
        clip_sample_range=0.5,
    )
    scheduler.set_timesteps(20)
    model = ScoreModel(_tiny(), _tiny().build())
    y = sads.sample(model, 50, steps=20, sampler="ddim", seed=3, clip=(-0.5, 0.5))
    x = torch.randn(50, 1, 2, 2, generator=torch_stream("sample", 3, 0))
    with torch.no_grad():
        for level in scheduler.timesteps:
            eps = model.network(x, level.float().expand(50))
            x = scheduler.step(eps, level, x, use_clipped_model_output=True).prev_sample
    assert torch.allclose(y, x, atol=1e-4)
    assert (y.abs() == 0.5).any()
