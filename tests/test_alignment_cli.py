"""`sads align`, and `--rotation` in `sads train` and `sads sample`, as a user meets them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sads
from commands import Sads, changed
from sads.data.spec import read_data
from sads.files import tensor_digest
from test_diffusion_cli import DATA, same_weights
from test_diffusion_cli import TINY as TRAINING

SMALL = ["--family", "cnn", "--shape", "1x8x8", "--networks", "64"]
TINY = [*TRAINING, "--networks", "32"]


@pytest.mark.pictures
def test_align_writes_numbers_a_picture_and_a_rotation(command: Sads, tmp_path: Path) -> None:
    out = command.succeed("align", "digits", *SMALL, "--out", "a")
    for words in ("alpha", "share", "most avoided tenth", "best expected first", "as it is"):
        assert words in out
    summary = json.loads((tmp_path / "a/alignment.json").read_text())
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 8, 8)), 64)
    x = sads.load_images("digits")
    expected = sads.alignment(geometry, x)
    assert summary["alignment"]["alpha"]["value"] == pytest.approx(expected.alpha)
    assert summary["alignment"]["share"]["value"] == pytest.approx(expected.share)
    assert sum(row["value"] for row in summary["tenths"]) == pytest.approx(1)
    assert [row["rotation"] for row in summary["ranking"]][::3] == ["min", "max"]
    rotation = sads.load_rotation("a/rotation.safetensors")
    assert rotation.alpha == pytest.approx(expected.minimum)
    assert "1,797 images" in rotation.provenance.data.statement
    assert rotation.provenance.command.startswith("sads align digits")
    with Image.open(tmp_path / "a/alignment.png") as image:
        assert min(image.size) > 300
        assert np.asarray(image.convert("L")).std() > 5


def test_align_with_a_geometry_file_and_json(command: Sads) -> None:
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 4, 4)), 32)
    geometry.save("g.safetensors")
    out = command.succeed(
        "align",
        "digits",
        "--geometry",
        "g.safetensors",
        "--resize",
        "--rotation",
        "share:0.5",
        "--out",
        "a",
        "--json",
    )
    summary = json.loads(out)
    alignment = summary["alignment"]
    middle = (alignment["minimum"]["value"] + alignment["maximum"]["value"]) / 2
    assert summary["rotation"]["alpha"]["value"] == pytest.approx(middle)
    assert sads.load_rotation("a/rotation.safetensors").kind == "share:0.5"


@pytest.mark.pictures
def test_align_of_odd_data(command: Sads) -> None:
    """One image, a constant pixel, copies: numbers, or null where nothing can be said."""
    digit = sads.load_images("digits", limit=1).numpy()
    np.savez("one.npz", images=digit)
    np.savez("copies.npz", images=digit.repeat(5, axis=0))
    for name in ("one", "copies"):
        summary = json.loads(command.succeed("align", f"{name}.npz", *SMALL, "--json"))
        low, alpha, high = (
            summary["alignment"][k]["value"] for k in ("minimum", "alpha", "maximum")
        )
        assert low < alpha < high
    np.savez("black.npz", images=np.full((5, 1, 8, 8), 128, dtype=np.uint8))
    command.succeed("align", "black.npz", *SMALL)


def test_align_says_when_samples_are_few(command: Sads) -> None:
    few = json.loads(command.succeed("align", "digits", *SMALL, "--samples", "100", "--json"))
    assert "100 samples are few for 64 coordinates" in few["note"]
    many = json.loads(command.succeed("align", "digits", *SMALL, "--json"))
    assert many["note"] is None
    assert few["alignment"]["minimum"]["error"] > 3 * many["alignment"]["minimum"]["error"]


def test_help_has_examples(command: Sads) -> None:
    out = command.succeed("align", "--help")
    assert "sads align digits --family iddpm" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits"], "either --family NAME or --geometry FILE"),
        (["digits", *SMALL, "--geometry", "g"], "not both"),
        (["digits", "--geometry", "missing.safetensors"], "there is no file"),
        (["digits", "--geometry", "missing", "--shape", "1x8x8"], "--shape: for families"),
        (["digits", *SMALL, "--rotation", "best"], "unknown rotation 'best'"),
        (["digits", "--family", "cnn", "--shape", "1x4x4", "--networks", "16"], "expected 1x4x4"),
        (["digits", "--family", "mlp", "--shape", "9", "--networks", "16"], "expected 9"),
        (["nothing.npz", *SMALL], "cannot read nothing.npz"),
    ],
)
def test_refusals_are_one_line(command: Sads, arguments: list[str], words: str) -> None:
    assert words in command.fail("align", *arguments)


@pytest.mark.parametrize("kind", ["min", "identity", "file"])
def test_training_on_rotated_data_samples_in_the_space_of_the_data(
    command: Sads, kind: str
) -> None:
    x = read_data(DATA, (1, 4, 4), 40, 0).samples
    family = sads.family("mlp", (1, 4, 4), width=8, depth=1)
    rotation = sads.rotation(sads.estimate_geometry(family, 32), x, kind.replace("file", "max"))
    rotation.save("w.safetensors")
    given = ["w.safetensors"] if kind == "file" else [kind, "--networks", "32"]
    out = command.succeed("train", "mlp", DATA, *TRAINING, "--out", "run", "--rotation", *given)
    assert "rotated" in out
    model = sads.load_model("run/model.safetensors")
    assert model.provenance.data == tensor_digest(rotation.apply(x))
    assert model.provenance.rotation["kind"] == rotation.kind
    command.succeed("sample", "run", "--steps", "5", "--samples", "20", "--sampler", "ddim")
    y = torch.from_numpy(np.load("run/samples.npz")["images"])
    plain = sads.sample(model, 20, steps=5, sampler="ddim")
    torch.testing.assert_close(y, rotation.undo(plain))
    command.succeed("evaluate", "run", DATA, "--projections", "64")


def test_a_rotated_run_is_resumed(command: Sads, tmp_path: Path) -> None:
    arguments = ["mlp", DATA, *TINY, "--rotation", "min"]
    command.succeed("train", *arguments, "--out", "whole")
    command.succeed("train", *changed(arguments, "--iterations", 3), "--out", "part")
    kept = (tmp_path / "part/rotation.safetensors").read_bytes()
    command.succeed("train", *arguments, "--out", "part", "--resume")
    assert same_weights(tmp_path / "whole", tmp_path / "part")
    assert (tmp_path / "part/rotation.safetensors").read_bytes() == kept
    error = command.fail(
        "train", "mlp", DATA, *TINY, "--rotation", "max", "--out", "part", "--resume"
    )
    assert "was started with --rotation min" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rotation", "best"], "unknown rotation 'best'"),
        (["--rotation", "none.safetensors"], "there is no file"),
        (["--rotation", "w.safetensors"], "the rotation is of 1x3x3, the data are 1x4x4"),
        (["--rotation", "min", "--geometry", "g.safetensors"], "expected (N, 1, 3, 3)"),
        (["--geometry", "g.safetensors"], "--geometry is for --rotation"),
    ],
)
def test_rotations_that_do_not_fit_leave_no_trace(
    command: Sads, tmp_path: Path, arguments: list[str], words: str
) -> None:
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 3, 3)), 16)
    geometry.save("g.safetensors")
    sads.rotation(geometry, torch.randn(4, 9), "min").save("w.safetensors")
    assert words in command.fail("train", "mlp", DATA, *TRAINING, "--out", "run", *arguments)
    assert not list((tmp_path / "run").glob("*"))


def test_a_model_without_its_rotation_is_refused(command: Sads, tmp_path: Path) -> None:
    command.succeed("train", "mlp", DATA, *TINY, "--out", "run", "--rotation", "min")
    (tmp_path / "run/rotation.safetensors").unlink()
    assert "there is no file run/rotation.safetensors" in command.fail("sample", "run")


def test_outliers_do_not_stretch_the_grey_scale() -> None:
    from sads.plots.training import plot_samples

    x = torch.rand(72, 1, 8, 8) * 2 - 1
    x[0, 0, 0] = 1000.0
    figure = plot_samples(x, "")
    assert {image.get_clim() for axes in figure.axes for image in axes.images} == {(-1.0, 1.0)}
