"""Training and sampling against diffusers, exact scores and interrupted runs."""

import json
import math
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._inductor.config
from safetensors.torch import save_file
from torch import Tensor, nn

import sads
from cases import read_tensors, small_family
from killing import finish, kill_repeatedly
from sads.diffusion.cores import num_shards, samples_are_independent
from sads.diffusion.model import ScoreModel
from sads.diffusion.options import TrainingOptions
from sads.diffusion.sample import SAMPLERS, ddim, ddpm, dpm_solver, spread_levels
from sads.diffusion.train import batch_indices, new_state, noised, training_steps
from sads.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    InvalidArgumentError,
    NetworkError,
    OutputError,
)
from sads.families import ScoreFamily
from sads.threads import pinned_threads

LINEAR = sads.Schedule()


def _tiny() -> sads.ScoreFamily:
    return sads.family("mlp", (1, 2, 2), width=16, depth=1, time_width=8)


@pytest.mark.parametrize("steps", [1000, 50])
@pytest.mark.parametrize("name", ["ddpm", "ddim", "dpm-solver"])
def test_reverse_steps_agree_with_diffusers(name: str, steps: int) -> None:
    """The first steps of each sampler, from the same state with the same network output."""
    diffusers = pytest.importorskip("diffusers")
    common = {"beta_start": 1e-4, "beta_end": 0.02, "timestep_spacing": "trailing"}
    scheduler = {
        "ddpm": lambda: diffusers.DDPMScheduler(1000, clip_sample=False, **common),
        "ddim": lambda: diffusers.DDIMScheduler(1000, clip_sample=False, **common),
        "dpm-solver": lambda: diffusers.DPMSolverMultistepScheduler(
            1000, algorithm_type="dpmsolver++", solver_order=2, **common
        ),
    }[name]()
    scheduler.set_timesteps(steps)
    assert scheduler.timesteps.tolist() == spread_levels(1000, steps)
    torch.manual_seed(0)
    x = theirs = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    eps = torch.randn(3, 2, 1, 4, 4, dtype=torch.float64)
    z = torch.zeros_like(x)  # the noise of DDPM is compared below
    outputs = iter(eps)
    walk = SAMPLERS[name](
        LINEAR, spread_levels(1000, steps), x, lambda x, level: next(outputs), lambda: z
    )
    for i in range(3):
        ours = next(walk)
        level = scheduler.timesteps[i]
        if name == "ddpm":
            theirs = _diffusers_mean(scheduler, eps[i], level, theirs)
        else:
            theirs = scheduler.step(eps[i], level, theirs).prev_sample
        assert torch.allclose(ours, theirs, atol=1e-5)


def _diffusers_mean(scheduler, eps: Tensor, level: Tensor, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """A DDPM step of diffusers without its noise, which is drawn again and taken off."""
    generator = torch.Generator().manual_seed(3)
    noisy = scheduler.step(eps, level, x, generator=generator).prev_sample
    noise = torch.randn(x.shape, generator=generator.manual_seed(3), dtype=x.dtype)
    return noisy - scheduler._get_variance(int(level)) ** 0.5 * noise


def test_ddpm_noise_has_the_variance_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.DDPMScheduler(1000, beta_start=1e-4, beta_end=0.02)
    x, z = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    for start in (999, 500, 2):
        walk = ddpm(LINEAR, [start, start - 1], x, lambda x, level: x, lambda: z)
        expected = math.sqrt(scheduler._get_variance(start))
        assert float(next(walk)) == pytest.approx(expected, rel=1e-4)


class LinearScore(nn.Module):
    """The exact noise prediction for data `N(0, covariance)`."""

    def __init__(self, covariance: Tensor):
        super().__init__()
        self.values, self.basis = torch.linalg.eigh(covariance.double())
        self.dummy = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        level = int(t[0].round())
        abar, sigma = LINEAR.abar[level], LINEAR.sigma[level]
        z = x.double().flatten(1) @ self.basis
        z = z * sigma / (abar * self.values.clamp(min=0) + sigma**2)
        return (z @ self.basis.T).reshape(x.shape).to(x.dtype)


@pytest.mark.parametrize(
    ("sampler", "steps", "tolerance"),
    [("ddpm", 1000, 0.0), ("ddim", 200, 0.0), ("dpm-solver", 50, 0.0), ("langevin", 1000, 0.04)],
)
def test_exact_score_gives_the_exact_law(sampler: str, steps: int, tolerance: float) -> None:
    """Covariance of samples within sampling error of the truth, plus a solver's known bias."""
    v = torch.tensor([2.0, 1.0, -1.0, 0.0])
    covariance = torch.outer(v, v) + 0.04 * torch.eye(4)
    family = _tiny()
    model = ScoreModel(family, LinearScore(covariance))
    count = 4000
    y = sads.sample(model, count, steps=steps, sampler=sampler, seed=1, batch_size=4000)
    target = sads.sliced_wasserstein_to_gaussian(y, covariance=covariance, seed=0)
    draws = torch.randn(count, 4, generator=torch.Generator().manual_seed(9))
    draws = draws @ torch.linalg.cholesky(covariance).T
    floor = sads.sliced_wasserstein_to_gaussian(
        draws.reshape(count, 1, 2, 2), covariance=covariance, seed=0
    )
    assert target.sw2 < 2.5 * floor.sw2 + tolerance


def test_samplers_converge_at_their_order() -> None:
    """Halving the steps of a deterministic solver on the exact score: error x 2 and x 4."""
    covariance = torch.diag(torch.tensor([4.0, 1.0, 0.25, 0.09]))
    score = LinearScore(covariance)

    def denoise(x: Tensor, level: int) -> Tensor:
        return score(x, torch.tensor([float(level)]))

    errors = {}
    for name, sampler in (("ddim", ddim), ("dpm", dpm_solver)):
        ends = {}
        for steps in (25, 50, 600):
            levels = [999 - k * (600 // steps) for k in range(steps)] + [399]
            x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
            walk = sampler(LINEAR, levels, x, denoise, torch.empty)
            for _ in range(len(levels) - 1):
                x = next(walk)
            ends[steps] = x
        errors[name] = [float((ends[s] - ends[600]).norm()) for s in (25, 50)]
    assert 1.7 < errors["ddim"][0] / errors["ddim"][1] < 2.6
    assert errors["dpm"][0] / errors["dpm"][1] > 2.8
    assert errors["dpm"][1] < errors["ddim"][1] / 5


def test_samples_do_not_depend_on_the_batch_size() -> None:
    model = ScoreModel(_tiny(), _tiny().build())
    a, b = (sads.sample(model, 130, steps=5, seed=4, batch_size=size) for size in (50, 1000))
    assert torch.allclose(a, b, atol=1e-5)
    assert len(a) == 130
    assert not torch.allclose(a, sads.sample(model, 130, steps=5, seed=5))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_threads_and_compiling_change_nothing_but_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half of the time would go into programs that try out the vector instructions of this machine.
    monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", True)
    model = ScoreModel(_tiny(), _tiny().build())
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = sads.sample(model, 130, steps=5, seed=4)
        torch.set_num_threads(2)
        counts: list[int] = []
        y = sads.sample(
            model,
            130,
            steps=5,
            seed=4,
            batch_size=50,
            compile=True,
            progress=lambda done, total, share: counts.append(done),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)
    assert torch.allclose(y, expected, atol=1e-4)
    assert sorted(counts) == list(range(1, 16))


def test_a_core_for_each_half_of_a_batch_changes_nothing_but_rounding() -> None:
    family = sads.family("iddpm", (1, 16, 16))
    x = torch.randn(25, *family.shape)
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert num_shards(family, 25, torch.device("cpu")) == 2
        halves, again = (sads.train(family, x, iterations=2, batch_size=25) for _ in range(2))
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        whole = sads.train(family, x, iterations=2, batch_size=25)
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(halves.losses, again.losses)
    assert torch.allclose(halves.losses, whole.losses, rtol=1e-5)


class Transposed(nn.Module):
    """Its gradient comes out in another order in memory than its weight has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4) / 12)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x * (self.weight.T.contiguous() * torch.arange(3.0)).sum()


def test_gradients_meet_their_weights() -> None:
    family = sads.ScoreFamily(Transposed, (1, 2, 2))
    options = TrainingOptions(iterations=1, batch_size=2, learning_rate=0.1)
    state = new_state(family, options, torch.device("cpu"))
    before = state.network.weight.detach().clone()
    list(training_steps(state, state.network, family, torch.randn(2, 1, 2, 2), options))
    moved = (state.network.weight - before).abs() > 0
    assert moved.tolist() == [[False] * 4, [True] * 4, [True] * 4]


def test_batches_of_networks_that_mix_samples_stay_whole() -> None:
    def build(layer: nn.Module) -> ScoreFamily:
        class Mixing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 8))

            def forward(self, x: Tensor, t: Tensor) -> Tensor:
                return self.layers(x)

        return sads.family(Mixing, (8,))

    assert samples_are_independent(build(nn.SiLU()))
    assert not samples_are_independent(build(nn.BatchNorm1d(8)))
    assert not samples_are_independent(build(nn.Dropout(0.5)))


def test_a_network_that_fails_in_a_thread_fails_the_call() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            raise RuntimeError("broken")

    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(NetworkError, match="broken"):
            sads.sample(ScoreModel(_tiny(), Broken()), 150, steps=5, batch_size=50)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": 0}, "at least 1"),
        ({"steps": 0}, "between 1 and the 1000"),
        ({"steps": 1001}, "between 1 and the 1000"),
        ({"sampler": "euler"}, "unknown sampler"),
    ],
)
def test_impossible_sampling_is_refused(arguments: dict[str, object], words: str) -> None:
    model = ScoreModel(_tiny(), _tiny().build())
    with pytest.raises(InvalidArgumentError, match=words):
        sads.sample(model, **{"num_samples": 10, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (lambda x: iter(()), "yields nothing"),
        (lambda x: iter([x[:, :, :1]]), r"yields \(50, 1, 1, 2\), expected a tensor like x"),
        (lambda x: iter([3]), "yields int"),
        (lambda x: None, "failed: .*NoneType"),
        (lambda x: iter([x, 1 / 0]), "failed: .*ZeroDivisionError: division by zero"),
    ],
)
def test_samplers_that_do_something_else(
    states: Callable[[Tensor], object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampler(schedule: object, levels: object, x: Tensor, *others: object) -> object:
        return states(x)

    monkeypatch.setitem(SAMPLERS, "odd", sampler)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=words) as error:
        sads.sample(ScoreModel(_tiny(), _tiny().build()), 5, steps=2, sampler="odd")
    assert "\n" not in str(error.value)


def test_every_sample_is_used_once_an_epoch() -> None:
    options = TrainingOptions(batch_size=4)
    first = torch.cat([batch_indices(12, options, k) for k in range(3)])
    second = torch.cat([batch_indices(12, options, k) for k in range(3, 6)])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("prediction", ["epsilon", "score", "x0", "v"])
def test_targets_are_what_the_prediction_means(prediction: str) -> None:
    family = small_family("mlp", prediction=prediction, schedule="linear")
    x0 = torch.randn(6, 1, 3, 3)
    x_t, levels, target = noised(family, x0, seed=1, iteration=2)
    a, b = family.schedule.score_coefficients(prediction)
    column = (-1, 1, 1, 1)
    score = a[levels].reshape(column) * x_t + b[levels].reshape(column) * target
    sigma, signal = family.schedule.sigma[levels], family.schedule.abar[levels].sqrt()
    noise = (x_t - signal.reshape(column) * x0) / sigma.reshape(column)
    assert torch.allclose(score, -noise / sigma.reshape(column), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_trained_network_recovers_a_standard_deviation() -> None:
    """A rank-one Gaussian in four dimensions, standard deviation 2, to 5 %.

    Other seeds of the training are 2.5 % below it, give or take 0.3 %.
    """
    v = torch.tensor([1.0, 1.0, 1.0, 1.0]).reshape(1, 2, 2)
    x = sads.rank_one(v, 10_000, seed=1)
    family = sads.family("mlp", (1, 2, 2), width=64, depth=3)
    model = sads.train(
        family, x, iterations=1500, batch_size=256, learning_rate=2e-3, ema_decay=0.99, seed=2
    )
    y = sads.sample(model, 5_000, steps=100, seed=3, batch_size=5000)
    along = y.flatten(1) @ (v.flatten() / 2)
    assert float(along.std()) == pytest.approx(2, rel=0.05)
    assert model.losses[-100:].mean() < model.losses[:10].mean() / 2


def described(family: ScoreFamily) -> dict[str, object]:
    """A family as JSON has it: lists for tuples."""
    return json.loads(json.dumps(family.describe()))


def test_models_are_saved_and_loaded(tmp_path: Path) -> None:
    x = torch.randn(64, 1, 2, 2)
    model = sads.train(_tiny(), x, iterations=3, batch_size=16)
    loaded = sads.load_model(model.save(tmp_path / "m.safetensors"))
    assert torch.equal(sads.sample(model, 50, steps=3), sads.sample(loaded, 50, steps=3))
    assert loaded.provenance == replace(model.provenance, family=described(model.family))
    assert torch.equal(pickle.loads(pickle.dumps(model)).losses, model.losses)
    other = sads.family("mlp", (1, 2, 2), width=8)
    with pytest.raises(CheckpointError, match="holds a model of"):
        sads.load_model(tmp_path / "m.safetensors", other)
    (tmp_path / "m.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="damaged"):
        sads.load_model(tmp_path / "m.safetensors")


class _Tied(nn.Module):
    """Two layers of one weight, and an average with a counter (batch norm)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x.flatten(1)))).reshape(x.shape)


def test_tied_weights_and_counters_are_averaged_saved_and_loaded(tmp_path: Path) -> None:
    family = sads.family(_Tied, shape=(1, 2, 2))
    x = torch.randn(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    keep = {"batch_size": 8, "ema_decay": 0.5, "checkpoint": tmp_path / "c.safetensors"}
    whole = sads.train(family, x, iterations=4, batch_size=8, ema_decay=0.5)
    sads.train(family, x, iterations=2, **keep)  # type: ignore[arg-type]
    model = sads.train(family, x, iterations=4, **keep)  # type: ignore[arg-type]
    loaded = sads.load_model(model.save(tmp_path / "m.safetensors"), family)
    for name, weight in loaded.network.state_dict().items():
        assert torch.equal(weight, whole.network.state_dict()[name])
    assert loaded.network.first.weight is loaded.network.second.weight
    assert loaded.network.norm.num_batches_tracked == 4


class _Foreign(nn.Module):
    """Weights by NumPy and Python, noise by PyTorch at every training update."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(np.random.randn(4, 4)))  # noqa: NPY002
            self.layer.bias.fill_(random.random())

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.dropout(self.layer(x.flatten(1))).reshape(x.shape)


def _states() -> list[object]:
    """Of the generators that all code shares."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    return [torch.get_rng_state().tolist(), str(numpy_state), random.getstate()]


def test_whatever_generator_a_network_draws_from_the_seed_says_all(tmp_path: Path) -> None:
    family = sads.family(_Foreign, shape=(1, 2, 2))
    x = torch.randn(40, 1, 2, 2)
    before = _states()
    keep = {"batch_size": 8, "checkpoint": tmp_path / "c.safetensors"}
    whole = sads.train(family, x, iterations=4, batch_size=8)
    sads.train(family, x, iterations=2, **keep)  # type: ignore[arg-type]
    resumed = sads.train(family, x, iterations=4, **keep)  # type: ignore[arg-type]
    assert torch.equal(whole.losses, resumed.losses)
    geometries = [sads.estimate_geometry(family, num_networks=16).matrix() for _ in range(2)]
    assert torch.equal(*geometries)
    sads.load_model(whole.save(tmp_path / "m.safetensors"), family)
    assert _states() == before


class _Odd(_Tied):
    """A network that cannot be trained: what is odd is a name."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd
        self.requires_grad_(odd != "frozen")
        if odd == "lazy":
            self.first = nn.LazyLinear(4)
        if odd == "meta":
            self.to("meta")
        if odd == "complex":
            self.turn = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = super().forward(x, time)
        if self.odd == "raises":
            raise ValueError("no\nway")
        if self.odd == "in place":
            y.exp_().mul_(y)
        return y[:, :, :1] if self.odd == "narrow" else y.detach() if self.odd == "detached" else y


class _Extra(_Odd):
    def get_extra_state(self) -> dict[str, int]:
        return {}


@pytest.mark.filterwarnings("ignore:our faster layers do not work here")
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("frozen", "no weights to train"),
        ("lazy", "has lazy layers"),
        ("complex", "has complex weights"),
        ("meta", "is on the device 'meta'"),
        ("extra", "keeps _extra_state beside"),
        ("raises", "in forward: ValueError: no way"),
        ("narrow", r"returned \(8, 1, 1, 2\)"),
        ("detached", "does not require grad"),
        ("in place", "modified by an inplace operation"),
    ],
)
def test_networks_that_cannot_be_trained(odd: str, words: str) -> None:
    with pytest.raises(NetworkError, match=words) as error:
        sads.train(
            sads.family(lambda: (_Extra if odd == "extra" else _Odd)(odd), shape=(1, 2, 2)),
            torch.randn(40, 1, 2, 2),
            iterations=1,
            batch_size=8,
        )
    assert "\n" not in str(error.value)


class _Noisy(_Tied):
    """Draws random numbers whenever it is evaluated."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return super().forward(x, time) + torch.randn_like(x)


@pytest.mark.filterwarnings("ignore:our faster layers do not work here")
def test_noise_in_a_network_comes_from_the_seed() -> None:
    model = ScoreModel(sads.family(_Noisy, shape=(1, 2, 2)), _Noisy().eval())
    before = _states()
    with pinned_threads(1):
        first, second = (sads.sample(model, 20, steps=3, seed=4) for _ in range(2))
    assert torch.equal(first, second)
    assert _states() == before


class _StopError(Exception):
    pass


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_a_stopped_run_continues_to_the_bit(tmp_path: Path, ema_decay: float | None) -> None:
    x = torch.randn(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    options = {"iterations": 13, "batch_size": 8, "learning_rate": 1e-2, "ema_decay": ema_decay}
    whole = sads.train(_tiny(), x, **options)  # type: ignore[arg-type]

    def stop(done: int, total: int, loss: float) -> None:
        if done == 8:
            raise _StopError

    path = tmp_path / "c.safetensors"
    keep = {"checkpoint": path, "checkpoint_every": 3}
    with pytest.raises(_StopError):
        sads.train(_tiny(), x, progress=stop, **options, **keep)  # type: ignore[arg-type]
    resumed = sads.train(_tiny(), x, **options, **keep)  # type: ignore[arg-type]
    assert torch.equal(whole.losses, resumed.losses)
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    x = torch.randn(40, 1, 2, 2)
    path = tmp_path / "c.safetensors"
    sads.train(_tiny(), x, iterations=2, batch_size=8, checkpoint=path)
    with pytest.raises(CheckpointError, match="another data"):
        sads.train(_tiny(), x + 1, iterations=2, batch_size=8, checkpoint=path)
    with pytest.raises(CheckpointError, match="another options"):
        sads.train(_tiny(), x, iterations=2, batch_size=8, learning_rate=1, checkpoint=path)
    wider = sads.family("mlp", (1, 2, 2), width=17, depth=1, time_width=8)
    with pytest.raises(CheckpointError, match="another family"):
        sads.train(wider, x, iterations=2, batch_size=8, checkpoint=path)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    x = torch.randn(40, 1, 2, 2)
    path = tmp_path / "c.safetensors"
    options = {"iterations": 50, "batch_size": 8, "learning_rate": 1e30}
    with pytest.raises(DivergedError, match="at update 2; lower the learning rate"):
        sads.train(_tiny(), x, checkpoint=path, checkpoint_every=1, **options)  # type: ignore[arg-type]
    tensors, _ = read_tensors(path, "sads-checkpoint")
    assert len(tensors["losses"]) == 1
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def test_a_last_update_that_went_too_far_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    options = {"iterations": 1, "batch_size": 8, "checkpoint": path}
    with pytest.raises(DivergedError, match="not finite after update 1; lower"):
        sads.train(_tiny(), torch.randn(40, 1, 2, 2), learning_rate=1e300, **options)  # type: ignore[arg-type]
    assert not path.exists()


def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "c.safetensors"
    with pytest.raises(OutputError, match="cannot write to"):
        sads.train(_tiny(), torch.randn(40, 1, 2, 2), batch_size=8, checkpoint=place)
    with pytest.raises(OutputError, match="cannot write to"):
        sads.sample(ScoreModel(_tiny(), _tiny().build()), 50, steps=500, checkpoint=place)


def test_a_full_disk_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(40, 1, 2, 2)
    path = tmp_path / "c.safetensors"
    options = {"batch_size": 8, "checkpoint": path, "checkpoint_every": 1}
    sads.train(_tiny(), x, iterations=3, **options)  # type: ignore[arg-type]
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sads.diffusion.checkpoints.write_tensors", full)
        with pytest.raises(sads.SadsError, match="No space left"):
            sads.train(_tiny(), x, iterations=5, **options)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    assert len(sads.train(_tiny(), x, iterations=5, **options).losses) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.randn(10, 1, 3, 3), "the data have shape"),
        (torch.randn(3, 1, 2, 2), "fewer than a batch"),
        (torch.zeros(10, 1, 2, 2), "constant"),
        (torch.full((10, 1, 2, 2), math.nan), "NaN"),
    ],
)
def test_impossible_data_is_refused(x: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        sads.train(_tiny(), x, iterations=1, batch_size=8)


@pytest.mark.parametrize("change", ["older", "not trained by sads"])
def test_models_of_older_versions_are_loaded(tmp_path: Path, change: str) -> None:
    """Their provenance did not name the layers, or was empty."""
    model = sads.train(_tiny(), torch.randn(64, 1, 2, 2), iterations=3, batch_size=16)
    path = model.save(tmp_path / "m.safetensors")
    tensors, metadata = read_tensors(path, "sads-model")
    provenance = json.loads(metadata["provenance"])
    del provenance["layers"], provenance["rotation"]
    provenance = provenance if change == "older" else {}
    save_file(tensors, path, {**metadata, "provenance": json.dumps(provenance)})
    loaded = sads.load_model(path)
    assert loaded.provenance.layers == "unknown"
    assert (loaded.provenance.options is None) == (change != "older")
    sads.load_model(loaded.save(path))


@pytest.mark.parametrize("key", ["family", "provenance"])
@pytest.mark.parametrize("content", ["null", "[1]", '"text"', "3", '{"a": 1}', "{"])
def test_models_whose_metadata_is_of_the_wrong_kind(tmp_path: Path, key: str, content: str) -> None:
    model = sads.train(_tiny(), torch.randn(64, 1, 2, 2), iterations=1, batch_size=16)
    path = model.save(tmp_path / "m.safetensors")
    tensors, metadata = read_tensors(path, "sads-model")
    save_file(tensors, path, {**metadata, key: content})
    with pytest.raises(CheckpointError):
        sads.load_model(path)


def train_tiny(folder: Path, name: str, checkpoint_every: int) -> None:
    torch.set_num_threads(1)
    x = torch.randn(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    model = sads.train(
        sads.family("mlp", (1, 2, 2), width=16, depth=1, time_width=8),
        x,
        iterations=1500,
        batch_size=8,
        learning_rate=1e-3,
        checkpoint=folder / f"{name}.checkpoint",
        checkpoint_every=checkpoint_every,
    )
    model.save(folder / f"{name}.model")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_twenty_kills_change_nothing(tmp_path: Path, processes: ForkServerContext) -> None:
    """`kill -9` at random moments, resumed each time: the same weights as an undisturbed run."""
    finish(processes, train_tiny, tmp_path, "calm", 1500)
    kill_repeatedly(
        processes,
        train_tiny,
        tmp_path,
        "killed",
        5,
        progress=tmp_path / "killed.checkpoint",
        times=20,
        delay=0.025,
    )
    calm, killed = (sads.load_model(tmp_path / f"{name}.model") for name in ("calm", "killed"))
    assert torch.equal(calm.losses, killed.losses)
    for a, b in zip(calm.network.parameters(), killed.network.parameters(), strict=True):
        assert torch.equal(a, b)
