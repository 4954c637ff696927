"""`sads train`, `sads sample` and `sads evaluate` as a user meets them."""

import json
import math
import os
import signal
import time
from dataclasses import astuple
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sads
from cases import read_tensors
from commands import Sads, changed
from killing import SECONDS, run_command, start
from sads import table1
from sads.data.spec import fresh_seed, read_data, sphere_directions
from sads.families import training_column

TINY = [
    "--shape",
    "1x4x4",
    "-o",
    "width=8",
    "-o",
    "depth=1",
    "--batch-size",
    "8",
    "--iterations",
    "6",
    "--learning-rate",
    "1e-3",
    "--samples",
    "40",
]
DATA = "rank-one:dct:5"


def picture(path: Path, size: int = 4, value: int | None = None) -> None:
    rng = np.random.default_rng(sum(path.name.encode()))
    pixels = rng.integers(0, 256, (size, size), dtype=np.uint8)
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels if value is None else np.full_like(pixels, value)).save(path)


def same_weights(a: Path, b: Path) -> bool:
    first, second = (read_tensors(path / "model.safetensors", "sads-model")[0] for path in (a, b))
    return all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.pictures
def test_train_sample_evaluate(command: Sads, tmp_path: Path) -> None:
    out = command.succeed("train", "mlp", DATA, *TINY, "--out", "run")
    for words in ("updates", "6  (given)", "vector 5 of the dct basis", "loss"):
        assert words in out
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["status"] == "finished"
    assert run["options"]["batch_size"] == 8
    assert run["family"]["options"] == {"width": 8, "depth": 1}
    assert run["data"]["samples"] == 40
    assert set(run["versions"]) == {"sads", "torch", "python"}
    model = sads.load_model(tmp_path / "run/model.safetensors")
    assert len(model.losses) == 6

    out = command.succeed("sample", "run", "--samples", 60, "--steps", 7, "--seed", 3)
    assert "60 by ddpm, 7 steps" in out
    y = sads.load_images(tmp_path / "run/samples.npz", value_range=(-1, 1))
    assert torch.allclose(y, sads.sample(model, 60, steps=7, seed=3))
    for name in ("loss.png", "samples.png"):
        with Image.open(tmp_path / "run" / name) as image:
            assert min(image.size) > 300

    out = command.succeed("evaluate", "run", DATA, "--projections", 200, "--seed", 4, "--json")
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "run/evaluate.json").read_text())
    vector = sads.basis("dct", (1, 4, 4)).vectors[5]
    x = sads.rank_one(vector, 10_000, seed=fresh_seed(4))
    expected = sads.sliced_wasserstein(x, y, num_projections=200, seed=4)
    measured = summary["evaluation"]
    sw2 = {"value": pytest.approx(expected.sw2), "error": pytest.approx(expected.sw2.error)}
    assert measured["distance"]["sw2"] == sw2
    assert measured["distance"]["msw2"] == pytest.approx(expected.msw2)
    closed = sads.sliced_wasserstein_to_gaussian(y, vector=vector, num_projections=200, seed=4)
    assert measured["closed_form"]["sw2"]["value"] == pytest.approx(closed.sw2)
    assert not [p for p in (tmp_path / "run").iterdir() if p.name.startswith(".")]


def test_evaluate_prints_errors_and_what_a_perfect_model_gets(command: Sads) -> None:
    vector = sads.basis("dct", (1, 4, 4)).vectors[5]
    np.savez("perfect.npz", images=sads.rank_one(vector, 2000, seed=9).numpy())
    out = command.succeed("evaluate", "perfect.npz", DATA, "--ascend")
    for words in ("SW2", "MSW2", "±", "closed-form", "perfect model", "by ascent", "1,024"):
        assert words in out
    measured = json.loads(Path("evaluate.json").read_text())["evaluation"]
    ours, floor = (measured[k]["sw2"]["value"] for k in ("distance", "fresh_data"))
    assert floor / 3 < ours < 3 * floor
    assert measured["ascent_msw2"] >= measured["distance"]["msw2"]


def test_data_along_directions_of_a_geometry(command: Sads) -> None:
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 4, 4), channels=4, depth=1), 64)
    geometry.save("g.safetensors")
    sad = geometry.directions()
    for rank in (0, 15, -1):
        data = read_data(f"rank-one:g.safetensors:{rank}", (1, 4, 4), 30, seed=2)
        assert torch.equal(data.samples, sads.rank_one(sad.vectors[rank], 30, seed=2))
        assert f"eigenvector {rank % 16}" in data.statement
    for end in ("preferred", "avoided"):
        data = read_data(f"sphere:g.safetensors:{end}", (1, 4, 4), 30, seed=2)
        assert torch.equal(data.samples, sads.sphere(sphere_directions(sad, end), 30, seed=2))
    command.succeed("train", "mlp", "rank-one:g.safetensors:-1", *TINY, "--out", "run")
    for source, words in {
        "rank-one:g.safetensors:16": "directions 0 to 15",
        "rank-one:g.safetensors:first": "'first' is not the number of a direction",
        "rank-one:g.safetensors": "does not say which direction",
        "rank-one:nowhere.safetensors:0": "there is no file nowhere.safetensors",
        "rank-one:dct:99": "directions 0 to 15",
        "sphere:g.safetensors:upper": "preferred or avoided",
    }.items():
        assert words in command.fail("train", "mlp", source, *TINY, "--out", "other")
    wide = ["--shape", "1x8x8", "--out", "other"]
    words = "a geometry of 1x4x4, the samples are to be 1x8x8"
    assert words in command.fail("train", "mlp", "rank-one:g.safetensors:0", *wide)
    assert not Path("other").exists()


def test_defaults_are_those_of_table_1(command: Sads) -> None:
    def default(name: str, data: str = "rank-one", **options: object) -> tuple[object, ...]:
        family = sads.family(name, **options)  # type: ignore[arg-type]
        return astuple(training_column(family, data).training)

    assert default("iddpm", shape=(1, 16, 16)) == (2_000, 1_000, 1e-4)
    assert default("iddpm", "images", shape=(1, 28, 28)) == (100_000, 500, 1e-3)
    assert default("iddpm", "images", shape=(1, 56, 56)) == (100_000, 500, 1e-3)
    assert default("iddpm", "images", shape=(3, 32, 32)) == (200_000, 500, 1e-3)
    assert default("dit") == (2_000, 1_000, 1e-4)
    assert default("dit", patch_size=4) == (4_000, 1_000, 1e-4)
    assert default("dit", "sphere") == (10_000, 1_000, 1e-4)
    assert default("iddpm", "images", shape=(1, 8, 8)) == (2_000, 1_000, 1e-4)
    custom = sads.family(lambda: torch.nn.Identity(), shape=(1, 16, 16))
    assert training_column(custom, "images") == table1.IDDPM
    arguments = ["--shape", "1x4x4", "--iterations", 1, "--samples", 1000, "--out", "run"]
    out = command.succeed("train", "mlp", DATA, *arguments, "--json")
    run = json.loads(out)
    assert run["options"]["batch_size"] == 1000
    assert run["option_sources"]["iterations"] == "given"
    assert run["option_sources"]["batch_size"] == "Proposition 1 (mlp 1x16x16)"


def test_a_run_is_not_overwritten_and_resumes_to_the_bit(command: Sads, tmp_path: Path) -> None:
    command.succeed("train", "mlp", DATA, *TINY, "--out", "whole")
    short = [*TINY, "--out", "run"]
    shorter = changed(short, "--iterations", 4)
    command.succeed("train", "mlp", DATA, *shorter, "--checkpoint-every", 3)
    assert (
        "already holds a run (checkpoint.safetensors); continue it with --resume"
        in command.fail("train", "mlp", DATA, *short)
    )
    command.succeed("train", "mlp", DATA, *short, "--resume")
    assert same_weights(tmp_path / "whole", tmp_path / "run")
    arguments = ["train", "mlp", DATA, *short, "--resume"]
    assert "has 6 updates" in command.fail(*changed(arguments, "--iterations", 5))
    wider = ["width=9" if word.startswith("width=") else word for word in map(str, arguments)]
    assert wider != arguments
    assert "another family" in command.fail(*wider)
    assert "another options" in command.fail(*changed(arguments, "--learning-rate", 1))
    assert "another data" in command.fail(*arguments[:2], "rank-one:dct:6", *short, "--resume")
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "finished"
    (tmp_path / "run/checkpoint.safetensors").write_bytes(b"half a file")
    assert "damaged" in command.fail(*arguments)
    assert same_weights(tmp_path / "whole", tmp_path / "run")


def test_divergence_is_one_line_and_keeps_the_checkpoint(command: Sads) -> None:
    faster = changed(TINY, "--learning-rate", 1e30)
    arguments = [*faster, "--checkpoint-every", 1, "--out", "run"]
    assert "lower the learning rate" in command.fail("train", "mlp", DATA, *arguments)
    tensors, _ = read_tensors("run/checkpoint.safetensors", "sads-checkpoint")
    assert len(tensors["losses"]) >= 1
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    assert json.loads(Path("run/run.json").read_text())["status"] == "diverged"
    assert "is not finished" in command.fail("sample", "run")


def test_a_damaged_file_among_good_ones_is_skipped_counted_and_named(
    command: Sads, tmp_path: Path
) -> None:
    for k in range(12):
        picture(tmp_path / f"faces/{k}.png")
    (tmp_path / "faces/bad.png").write_bytes(b"not a picture")
    status, _, err = command("train", "mlp", "faces", *TINY, "--out", "run")
    assert status == 0
    assert "read 12 images" in err
    assert "skipped 1: bad.png" in err
    statement = json.loads(Path("run/run.json").read_text())["data"]["statement"]
    assert "skipped 1: bad.png" in statement


def test_images_that_cannot_be_trained_on(command: Sads, tmp_path: Path) -> None:
    def fail(source: str) -> str:
        return command.fail("train", "mlp", source, *TINY, "--out", "run")

    for k in range(9):
        picture(tmp_path / f"small/{k}.png", size=3)
        picture(tmp_path / f"mixed/{k}.png", size=3 + k % 2)
        picture(tmp_path / f"grey/{k}.png", value=77)
    (tmp_path / "empty").mkdir()
    np.savez("objects.npz", images=np.array([{}, {}], dtype=object))
    np.savez("few.npz", images=np.random.default_rng(0).random((5, 4, 4)))
    assert "are 1x3x3, expected 1x4x4" in fail("small")
    assert "--resize" in fail("small")
    assert "images of different shapes" in fail("mixed")
    assert "no images in empty: it is empty" in fail("empty")
    assert "nowhere" in fail("nowhere")
    assert "pickled objects" in fail("objects.npz")
    assert "constant" in fail("grey")
    assert "5 samples are fewer than a batch of 8" in fail("few.npz")
    assert not Path("run").exists()
    command.succeed("train", "mlp", "mixed", *TINY, "--resize", "--out", "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "mlp", DATA], "Missing option"),
        (
            ["train", "mlp", DATA, "--out", "r", "--iterations", "0"],
            "iterations must be a whole number of at least",
        ),
        (["train", "mlp", DATA, "--out", "r", "--samples", "0"], "'--samples'"),
        (["train", "mlp", DATA, "--out", "r", "--ema", "2"], "above 0 and below 1"),
        (["train", "mlp", DATA, "--out", "r", "--seed", "-1"], "seed"),
        (["train", "resnet", DATA, "--out", "r"], "unknown family"),
        (["train", "mlp", DATA, "--out", "r", "--device", "abacus"], "abacus"),
        (["train", "mlp", DATA, "--out", "file"], "cannot write"),
        (["sample", "nowhere"], "nowhere"),
        (["sample", "."], "there is no run"),
        (["sample", "file"], "cannot be read as a model"),
        (["evaluate", "nowhere.npz", DATA], "nowhere.npz"),
        (["evaluate", "samples.npz", "rank-one:dct:1", "--projections", "0"], "num_projections"),
        (["evaluate", "samples.npz", DATA, "--seed", "-1"], "'--seed'"),
        (["evaluate", "samples.npz", "digits"], "are 1x8x8, expected 1x4x4"),
    ],
)
def test_misuse_is_one_line_and_status_2(command: Sads, arguments: list[str], words: str) -> None:
    Path("file").touch()
    np.savez("samples.npz", images=np.random.default_rng(0).standard_normal((9, 1, 4, 4)))
    assert words in command.fail(*arguments)
    assert not Path("r/run.json").exists()


@pytest.mark.parametrize("name", ["train", "sample", "evaluate"])
def test_help_shows_examples(command: Sads, name: str) -> None:
    out = command.succeed(name, "--help")
    assert f"sads {name} runs" in out or f"sads {name} iddpm" in out


@pytest.mark.pictures
def test_lines_and_your_own_network(command: Sads) -> None:
    Path("net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, width=3):\n"
        "        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Conv1d(2, width, 3, padding=1), nn.SiLU(),\n"
        "                                 nn.Conv1d(width, 2, 3, padding=1))\n"
        "    def forward(self, x, t):\n"
        "        return self.net(x)\n"
    )
    options = ["--shape", "2x8", "-o", "width=5", *TINY[6:], "--ema", "0.9", "--out", "run"]
    command.succeed("train", "net.py:Net", "rank-one:dct:3", *options)
    assert "pass the family" in command.fail("sample", "run")
    sampling = ["--samples", 20, "--steps", 5, "--sampler", "dpm-solver"]
    command.succeed("sample", "run", "--family", "net.py:Net", *sampling)
    out = command.succeed("evaluate", "run", "rank-one:dct:3", "--json")
    assert math.isfinite(json.loads(out)["evaluation"]["distance"]["sw2"]["value"])


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(tmp_path: Path, processes: ForkServerContext) -> None:
    arguments = [
        "train",
        "mlp",
        DATA,
        *map(str, changed(TINY, "--iterations", 10_000_000)),
        "--checkpoint-every",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    process = start(processes, run_command, tmp_path, arguments)
    while not (tmp_path / "run/checkpoint.safetensors").exists():
        assert process.is_alive()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join(SECONDS)
    err = (tmp_path / "messages").read_text()
    assert process.exitcode == 130
    assert "the last checkpoint is kept; continue with: sads train" in err
    assert "--resume" in err
    assert "Traceback" not in err
    read_tensors(tmp_path / "run/checkpoint.safetensors", "sads-checkpoint")
