"""Errors by direction and level, against networks whose errors are known; weights that are kept."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import sads
from commands import Sads
from sads.cli.evaluate import read_drawn
from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.diffusion.anatomy import energy_parts, follow_sampler, measure_anatomy
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import SamplingOptions
from sads.errors import DataError, InvalidArgumentError
from sads.experiments import run
from sads.experiments.run import run_cell, seed_of
from sads.experiments.spec import Cell, FamilySpec, GeometrySpec, Practice
from sads.experiments.store import Store
from sads.table1 import Sampling, Training

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (1, 4, 4)


class Scaled(nn.Module):
    """A network that returns its input times a number."""

    def __init__(self, gain: float = 0.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.gain * x


def _model(gain: float = 0.0, skip_of: Tensor | None = None) -> ScoreModel:
    family = sads.family(lambda: Scaled(gain), SHAPE)
    if skip_of is not None:
        family = sads.gaussian_skip(family, skip_of)
    return ScoreModel(family, family.build())


def _gaussian(count: int, seed: int = 0) -> Tensor:
    """Data with variances 4, 2, 1 along three coordinates, little elsewhere, and a mean."""
    scale = torch.full((16,), 0.01)
    scale[[2, 7, 11]] = torch.tensor([2.0, math.sqrt(2), 1.0])
    draws = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return (draws * scale + 0.1).reshape(count, *SHAPE)


class TestErrors:
    def test_a_network_that_says_nothing_has_the_noise_as_its_error(self) -> None:
        x = _gaussian(400)
        found = measure_anatomy(_model(), x, directions=torch.eye(16).reshape(16, *SHAPE))
        summary = found.summary
        assert summary.num_along == 3
        assert abs(summary.loss - 1) < 4 * summary.loss.error
        assert abs(summary.along - 3 / 16) < 4 * summary.along.error
        assert summary.loss == pytest.approx(summary.along + summary.off)
        assert found.directions is not None
        assert found.directions.shape == (25, 16)
        per_coordinate = found.directions.mean(dim=0)
        assert per_coordinate == pytest.approx(
            torch.ones(16).double(), abs=0.1
        )  # five errors of 0.02
        assert float(per_coordinate.mean()) == pytest.approx(summary.loss)

    def test_an_error_along_one_direction_is_found_there(self) -> None:
        """`g x` for the noise has the error `(g sigma - 1) eps + g sqrt(abar) z`."""
        x, gain = _gaussian(20_000), 0.5
        found = measure_anatomy(_model(gain), x, num_samples=2000)
        schedule = sads.Schedule()
        levels = list(found.summary.levels)
        abar, sigma = schedule.abar[levels], schedule.sigma[levels]
        energies = (x.flatten(1).double() @ _components(x)).square().mean(dim=0)  # (16,)
        expected = (gain * sigma[:, None] - 1) ** 2 + gain**2 * abar[:, None] * energies[:3]
        assert found.components[:, :3] == pytest.approx(expected, rel=0.2)
        assert float((found.components[:, :3] / expected).mean()) == pytest.approx(1, abs=0.02)

    @pytest.mark.parametrize("turned", [False, True])
    def test_the_gaussian_part_alone_is_the_best_linear_prediction(self, turned: bool) -> None:
        x, test = _gaussian(4000), _gaussian(1000, 1)
        rotation = _random_rotation(x) if turned else None
        z = x if rotation is None else rotation.apply(x)
        found = measure_anatomy(_model(skip_of=z), test, x, rotation=rotation, num_samples=1000)
        summary = found.summary
        assert abs(summary.loss - summary.linear) < 4 * summary.loss.error
        assert found.components[:, :3] == pytest.approx(found.linear[:, :3], rel=0.25)
        others = float(found.linear[:, 3:].sum(dim=1).mean()) / 16
        assert abs(summary.off - others) < 4 * summary.off.error

    @pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 1001}])
    def test_steps_that_no_sampler_takes(self, options: dict[str, int]) -> None:
        with pytest.raises(InvalidArgumentError, match="between 1 and the 1000 levels"):
            follow_sampler(_model(), _gaussian(5), SamplingOptions(**options))

    def test_errors_of_data_that_do_not_fit(self) -> None:
        with pytest.raises(DataError, match=r"expected \(N, 1, 4, 4\)"):
            energy_parts(torch.zeros(5, 1, 3, 3), _gaussian(20))
        with pytest.raises(DataError, match=r"expected \(N, 1, 4, 4\)"):
            measure_anatomy(_model(), torch.zeros(5, 1, 3, 3))


class TestSampler:
    @pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
    def test_the_states_of_an_exact_model_have_the_energy_of_noised_data(
        self, sampler: str
    ) -> None:
        x = _gaussian(4000)
        options = SamplingOptions(steps=200, sampler=sampler)
        walk = follow_sampler(_model(skip_of=x), x, options, num_samples=2000, seed=1)
        assert walk.levels[-1] == -1
        assert walk.along == pytest.approx(walk.right_along, rel=0.12)
        assert walk.off[:-1] == pytest.approx(walk.right_off[:-1], rel=0.05)

    def test_a_step_of_langevin_dynamics_stays_at_its_level(self) -> None:
        x = _gaussian(500)
        options = SamplingOptions(steps=4, sampler="langevin")
        walk = follow_sampler(_model(skip_of=x), x, options, num_samples=50)
        assert walk.levels == (999, 749, 499, -1)

    def test_noise_that_is_not_removed_is_amplified(self) -> None:
        """A network that finds no noise: x_0 is `x_t / sqrt(abar_t)` at once, as the head says."""
        x = _gaussian(100)
        walk = follow_sampler(_model(), x, SamplingOptions(steps=1), num_samples=50)
        assert float(walk.off[0]) == pytest.approx(1 / float(sads.Schedule().abar[-1]), rel=0.2)

    def test_energies_of_samples_along_and_off(self) -> None:
        x = _gaussian(3000)
        parts = energy_parts(x, x)
        assert parts.along.value == pytest.approx(parts.data_along)
        assert parts.data_along == pytest.approx(7 / 3, rel=0.1)
        noise = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
        louder = energy_parts(noise, x)
        assert abs(louder.off - parts.data_off - 1) < 4 * louder.off.error


def _components(x: Tensor) -> Tensor:
    """Eigenvectors of the covariance by NumPy's way, the largest first, (D, D)."""
    centred = x.flatten(1).double() - x.flatten(1).double().mean(dim=0)
    return torch.linalg.eigh(centred.T @ centred / len(x)).eigenvectors.flip(1)


def _random_rotation(x: Tensor) -> sads.Rotation:
    geometry = sads.estimate_geometry(sads.family("mlp", SHAPE, width=16, depth=1), num_networks=16)
    return sads.rotation(geometry, x, "random:3")


class TestAveragedModels:
    def test_last_weights_and_their_average_are_saved_together(self, tmp_path: Path) -> None:
        family = sads.family("mlp", SHAPE, width=16, depth=1)
        x = _gaussian(64)
        options = {"iterations": 5, "batch_size": 32, "learning_rate": 1e-2}
        plain = sads.train(family, x, **options)
        averaged = sads.train(family, x, ema_decay=0.5, **options)
        loaded = sads.load_model(averaged.save(tmp_path / "model.safetensors"))
        assert [m.averaged for m in (averaged, loaded, plain)] == [True, True, False]
        assert plain.unaveraged() is plain
        for model in (averaged, loaded):
            _assert_equal(model.unaveraged().network, plain.network)
            assert not model.unaveraged().averaged
        _assert_equal(loaded.network, averaged.network)
        before = averaged.network.state_dict()
        assert any(not torch.equal(before[k], w) for k, w in plain.network.state_dict().items())


def _assert_equal(one: nn.Module, other: nn.Module) -> None:
    weights = other.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())


FAMILY = FamilySpec("mlp", SHAPE, (("depth", 1), ("width", 16)))


def _cell(**changes: object) -> Cell:
    fields = {
        "geometry": GeometrySpec(FAMILY, 32),
        "data": DataSpec.parse("rank-one:geometry:0"),
        "num_data": 100,
        "training": Training(6, 20, 1e-3),
        "sampling": Sampling(50, 4, projections_per_dimension=2),
        "seed": 0,
        "layers": layers_name(),
    }
    return Cell(**(fields | changes))  # type: ignore[arg-type]


VARIANTS = {
    "clipped": {"practice": Practice(clip=True)},
    "averaged": {"practice": Practice(ema_decay=0.99)},
    "other sampler": {"sampling": Sampling(50, 3, "ddim", projections_per_dimension=2)},
    "other number of samples": {"sampling": Sampling(100, 4, projections_per_dimension=2)},
    "samples kept": {"keep_samples": 8},
}
OTHERS = {
    "prediction": {"practice": Practice(prediction="v")},
    "centred": {"practice": Practice(centre=True)},
    "skip": {"practice": Practice(skip="gaussian")},
    "decay": {"practice": Practice(ema_decay=0.9)},
    "rotation": {"rotation": "min"},
    "seed": {"seed": 1},
    "learning rate": {"training": Training(6, 20, 1e-2)},
}


class TestKeptWeights:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_a_model_is_trained_once_for_all_measurements(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And gives, to the bit, what training it again would."""
        store, cell = Store(tmp_path / "store"), _cell()
        assert run_cell(cell, store) is not None
        variant = replace(cell, **VARIANTS[name])
        fresh = run_cell(variant, Store(tmp_path / "fresh"))
        monkeypatch.setattr(run, "_train", lambda *arguments: pytest.fail("it was trained again"))
        measured = run_cell(variant, store)
        assert measured is not None
        assert fresh is not None
        assert measured.evaluations == fresh.evaluations
        assert measured.losses == fresh.losses

    @pytest.mark.parametrize("name", OTHERS)
    def test_what_weights_depend_on_is_in_their_name(self, name: str) -> None:
        assert replace(_cell(), **OTHERS[name]).training_hash != _cell().training_hash

    def test_a_longer_training_has_the_earlier_weights(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "store")
        short, long = _cell(), _cell(training=Training(9, 20, 1e-3), evaluate_at=(6, 9))
        first, both = run_cell(short, store), run_cell(long, store)
        assert first is not None
        assert both is not None
        assert first.last == both.evaluations[0]
        fresh = run_cell(long, Store(tmp_path / "fresh"))
        assert fresh is not None
        assert both.evaluations == fresh.evaluations

    def test_commands_read_what_is_kept(self, command: Sads, tmp_path: Path) -> None:
        store, cell = Store(tmp_path / "store"), _cell(rotation="min", keep_samples=50)
        record = run_cell(cell, store)
        assert record is not None
        (model,) = (tmp_path / "store" / "weights").glob("*/6.safetensors")
        options = ["--samples", 50, "--steps", 4, "--seed", seed_of(cell, "sample 6")]
        command.succeed("sample", model, "--unaveraged", *options, "--out", tmp_path / "again")
        drawn = np.load(tmp_path / "again" / "samples.npz")["images"]
        assert np.allclose(drawn, store.samples(record).numpy(), atol=1e-5)
        data = "rank-one:dct:3"  # others than the model's: it is about the files
        command.succeed(
            "evaluate",
            tmp_path / "again",
            data,
            "--anatomy",
            "--test-samples",
            99,
            "--networks",
            16,
        )
        assert (tmp_path / "again" / "anatomy.png").exists()

    def test_images_of_another_test_set_are_another_training(self) -> None:
        images = _cell(data=DataSpec("images", "digits"))
        fewer = replace(images, sampling=Sampling(40, 4, projections_per_dimension=2))
        assert images.training_hash != fewer.training_hash

    @pytest.mark.parametrize("harm", ["cut", "other weights"])
    def test_damaged_weights_are_set_aside_and_trained_again(
        self, harm: str, tmp_path: Path
    ) -> None:
        store, cell = Store(tmp_path / "store"), _cell()
        expected = run_cell(cell, store)
        (path,) = (tmp_path / "store" / "weights").glob("*/*.safetensors")
        if harm == "cut":
            path.write_bytes(path.read_bytes()[:-9])
        else:
            tensors = load_file(path)
            name = next(name for name in tensors if name.startswith("network."))
            save_file({**tensors, name: tensors[name].flatten()}, path, {"format": "sads-model"})
        (tmp_path / "store" / "cells" / cell.hash).rename(tmp_path / "away")
        again = run_cell(cell, store)
        assert expected is not None
        assert again is not None
        assert again.evaluations == expected.evaluations
        assert any("the weights" in note for note in store.take_notes())

    def test_a_record_says_where_its_model_is_wrong(self, tmp_path: Path) -> None:
        record = run_cell(_cell(), Store(tmp_path / "store"))
        assert record is not None
        denoising, energies = record.last.denoising, record.last.energies
        assert denoising is not None
        assert energies is not None
        assert denoising.num_along == 1  # rank-one data: along v
        assert denoising.loss == pytest.approx(denoising.along + denoising.off)
        assert 0 < denoising.loss.error < denoising.loss
        assert energies.data_along == pytest.approx(16, rel=0.5)
        assert energies.data_off == pytest.approx(0, abs=1e-9)


class TestCommands:
    @pytest.mark.pictures
    def test_a_run_is_taken_apart(self, command: Sads, tmp_path: Path) -> None:
        run = _run(command, tmp_path)
        command.succeed("sample", run, "--samples", "60", "--steps", "5")
        command.succeed(
            "evaluate",
            run,
            "rank-one:dct:3",
            "--anatomy",
            "--test-samples",
            "300",
            "--networks",
            "16",
        )
        written = json.loads((run / "evaluate.json").read_text())["evaluation"]
        loss, along, off = (written["denoising"][name] for name in ("loss", "along", "off"))
        assert loss["value"] == pytest.approx(along["value"] + off["value"])
        assert written["denoising"]["num_along"] == 1
        assert written["energies"]["data_along"] == pytest.approx(16, rel=0.3)
        assert (run / "anatomy.png").read_bytes().startswith(b"\x89PNG")

    def test_samples_are_drawn_from_either_weights(self, command: Sads, tmp_path: Path) -> None:
        run = _run(command, tmp_path, "--ema", "0.5")
        model = sads.load_model(run / "model.safetensors")
        for name, options, chosen in (
            ("averaged", (), model),
            ("last", ("--unaveraged",), model.unaveraged()),
        ):
            command.succeed(
                "sample", run, "--samples", "9", "--steps", "3", *options, "--out", run / name
            )
            drawn = np.load(run / name / "samples.npz")["images"]
            expected = sads.sample(chosen, 9, steps=3)
            assert np.array_equal(drawn, expected.numpy())

    def test_the_model_is_the_one_that_samples_were_drawn_from(
        self, command: Sads, tmp_path: Path
    ) -> None:
        """Not another at the place where it was, nor the same after more updates."""
        run = _run(command, tmp_path)
        command.succeed("sample", run, "--samples", "9", "--steps", "2")
        (tmp_path / "away").mkdir()
        run.rename(tmp_path / "away" / "run")
        _run(command, tmp_path, "--seed", "1")  # another, of the same name
        drawn = tmp_path / "away" / "run" / "samples.npz"
        training = read_drawn(drawn, None).model.provenance.options
        assert training is not None
        assert training.seed == 0
        (run / "model.safetensors").rename(drawn.with_name("model.safetensors"))
        with pytest.raises(sads.SadsError, match="draw samples from it again"):
            read_drawn(drawn, None)

    def test_directions_are_those_of_the_models_own_network(
        self, command: Sads, tmp_path: Path
    ) -> None:
        run = _run(command, tmp_path)
        command.succeed("sample", run, "--samples", "9", "--steps", "2")
        sads.estimate_geometry(sads.family("mlp", SHAPE), 16).save(tmp_path / "other.safetensors")
        assert "other.safetensors is of another network, mlp 1x4x4, 16 networks" in command.fail(
            "evaluate", run, "rank-one:dct:3", "--anatomy", "--geometry", "other.safetensors"
        )

    def test_refusals(self, command: Sads, tmp_path: Path) -> None:
        run = _run(command, tmp_path)
        assert "are not averages" in command.fail("sample", run, "--unaveraged")
        np.savez(tmp_path / "samples.npz", images=np.zeros((5, 1, 4, 4), dtype=np.float32))
        alone = tmp_path / "samples.npz"
        assert "there is no model.safetensors beside" in command.fail(
            "evaluate", alone, "rank-one:dct:3", "--anatomy"
        )
        assert "are for --anatomy" in command.fail(
            "evaluate", alone, "rank-one:dct:3", "--family", "x.py:f"
        )


def _run(command: Sads, tmp_path: Path, *options: str) -> Path:
    """A short training on rank-one data."""
    run = tmp_path / "run"
    network = ("mlp", "rank-one:dct:3", "--shape", "1x4x4", "-o", "width=16", "-o", "depth=1")
    length = ("--iterations", "4", "--batch-size", "20", "--samples", "100")
    command.succeed("train", *network, *length, *options, "--out", run)
    return run
