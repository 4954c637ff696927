"""`sads theory ...` as a user runs it: pictures, JSON, and one line with status 2."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sads
from sads import environment
from sads.cli.main import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, hasty_pictures):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sads", "theory", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call


COMMANDS = {
    "theorem1": ["--steps", "50", "--runs", "20"],
    "theorem2": ["mlp", "--shape", "1x4x4", "--networks", "32"],
    "descent": ["mlp", "--shape", "1x4x4", "--networks", "32", "--rotations", "9"],
    "propositions": ["cnn", "--shape", "2x3x3", "--networks", "64"],
    "markov": ["--networks", "64"],
    "symmetry": ["--networks", "2"],
    "adaptive": ["cnn", "--shape", "1x8x8", "--networks", "32"],
}


@pytest.mark.pictures
@pytest.mark.parametrize("command", COMMANDS)
def test_command_writes_a_picture_and_prints_json(run, tmp_path, command):
    status, out, _ = run(command, *COMMANDS[command], "--out", "results", "--json")
    assert status == 0
    summary = json.loads(out)
    assert json.loads((tmp_path / "results" / f"{command}.json").read_text()) == summary
    with Image.open(tmp_path / "results" / f"{command}.png") as image:
        assert min(image.size) > 300
        assert np.asarray(image.convert("L")).std() > 5


@pytest.mark.parametrize("command", [*COMMANDS, "predict"])
def test_help_has_an_example(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"sads theory {command}" in out


@pytest.mark.pictures
def test_predict_writes_a_picture(run, tmp_path):
    status, out, _ = run("predict", "cnn", "--shape", "1x8x8", "--networks", "32", "--json")
    assert status == 0
    assert set(json.loads(out)["energies"]) == {"canonical", "dct", "dst", "hadamard", "haar"}
    assert (tmp_path / "out" / "predict" / "predict.png").stat().st_size > 10_000


def test_commands_show_the_objects_of_the_figures(run):
    """The rows in the JSON are those of the figure's own object, estimates with their errors."""
    from sads.experiments.figures.fig4 import compute_descent
    from sads.files import plain

    status, out, _ = run("theorem1", *COMMANDS["theorem1"], "--json")
    assert status == 0
    descent = compute_descent(steps=50, num_runs=20)
    assert json.loads(out)["directions"] == plain(descent.table())
    assert json.loads(out)["directions"][0]["simulated"].keys() == {"value", "error"}


def test_an_image_is_chosen_by_its_index(run, files):
    small = ["adaptive", "cnn", "--shape", "1x8x8", "--networks", "32", "--json", "--image"]
    first, third = (json.loads(run(*small, f"small.npz:{i}")[1]) for i in (0, 2))
    whole = json.loads(run(*small, "small.npz")[1])
    assert whole["eigenvalues"] == first["eigenvalues"] != third["eigenvalues"]
    status, _, err = run(*small, "small.npz:5")
    assert status == 2
    assert "5" in err


def test_tables_are_printed(run):
    status, out, _ = run("theorem1", "--steps", "20", "--runs", "10")
    assert status == 0
    assert "u_5" in out
    status, out, _ = run("theorem2", "mlp", "--shape", "1x4x4", "--networks", "32", "--save")
    assert status == 0
    assert "share" in out
    assert "0 of 100 outside the extremes" in out
    assert "wrote out/theorem2/rotation-min.safetensors" in out
    assert sads.load_rotation("out/theorem2/rotation-min.safetensors").kind == "min"


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "small.npz", images=rng.integers(0, 255, (5, 1, 8, 8), dtype=np.uint8))
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 4, 4)), 32)
    geometry.save(tmp_path / "good.safetensors")
    nothing = replace(geometry.moments, factors=torch.zeros_like(geometry.factors))
    zero = replace(geometry, moments=nothing)
    zero.save(tmp_path / "zero.safetensors")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["theorem2", "good.safetensors", "--images", "small.npz"], "expected 1x4x4"),
        (["theorem2", "zero.safetensors"], "the geometry is 0"),
        (["propositions", "zero.safetensors"], "the geometry is 0"),
        (["theorem2", "missing.safetensors"], "there is no file"),
        (["theorem1", "--eigenvalues", "1,0"], "above 0"),
        (["theorem1", "--eigenvalues", "one"], "not a list of numbers"),
        (["theorem1", "--learning-rate", "2"], "diverges"),
        (["theorem1", "--sigma", "0"], "sigma must be positive"),
        (["theorem1", "--sigma", "1e-200"], "sigma must be positive"),
        (["theorem1", "--sigma", "1e200"], "sigma must be positive"),
        (["markov", "--threshold", "-1"], "threshold"),
        (["markov", "--networks", "16", "--threshold", "1e200"], "threshold"),
        (["symmetry", "--shape", "1x4", "--networks", "1"], "one position"),
        (["symmetry", "--level", "5000", "--networks", "1"], "level from 0 to 999"),
        (["adaptive", "cnn", "--image", "none.npz"], "none.npz"),
        (["adaptive", "cnn", "--shape", "1x8"], "1x8"),
        (["theorem9"], "try --help"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run, files, arguments, expected):
    status, _, err = run(*arguments)
    assert status == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("start", "slow"),
    [
        ("import sads.cli.root", {"torch", "numpy"}),  # all that `sads --help` takes
        ("sads.family('dit', (1, 16, 16)).build()", set()),
    ],
)
def test_commands_start_without_what_is_slow_to_import(start, slow):
    """Nor does building a network need it, as most commands do first."""
    slow = slow | {"matplotlib", "scipy.stats", "sklearn", "torch._dynamo", "ray"}
    code = f"import sys, sads, sads.cli; {start}\nprint(*({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == ([], 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["symmetry", "--shape", "1x16", "--networks", 2],  # lines instead of pictures
        ["markov", "--networks", 16, "--seed", 2**64 - 1],
        ["predict", "cnn", "--shape", "1x6x6", "--networks", 16],  # where there is no Haar basis
        ["predict", "cnn", "--shape", "1x16", "--networks", 16],  # some vectors have no energy
        ["theorem1", "--sigma", 1e-49, "--steps", 20, "--runs", 8],
        ["theorem1", "--learning-rate", 1e-300, "--steps", 20, "--runs", 8],
        ["theorem2", "cnn", "--shape", "1x4x4", "--networks", 16, "--images", "constant.npz"],
        ["theorem1", "--steps", 20, "--runs", 8, "--seed", 2**64 - 1],
        ["descent", "mlp", "--shape", "1x4x4", "--networks", 16, "--steps", 2, "--rotations", 2],
    ],
)
def test_the_least_and_the_most_that_is_taken(run, tmp_path, arguments) -> None:
    np.savez(tmp_path / "constant.npz", images=np.full((9, 1, 4, 4), 0.5, dtype=np.float32))
    status, _, err = run(*map(str, arguments))
    assert status == 0, err


def test_large_data_are_refused_before_any_network_is_drawn(run, monkeypatch) -> None:
    """All directions are shown, for which there must be a matrix."""
    monkeypatch.setattr(environment, "available_memory", lambda: 8 << 30)
    status, out, err = run("adaptive", "cnn", "--shape", "1x128x128", "--networks", "8")
    assert (status, out) == (2, "")
    assert "this estimate needs about" in err
