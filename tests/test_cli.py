"""The command line as a user meets it: what it prints, what it writes, how it refuses."""

import io
import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import sads
from commands import Sads
from killing import SECONDS, run_command, start
from sads.cli import printing
from sads.cli.folders import let_go, new_folder
from sads.cli.geometry import folder_stem
from sads.estimates import Estimate
from sads.tables import Row

TINY = ["-o", "channels=4", "-o", "depth=1", "--shape", "1x6x6"]
NETWORK = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 3, padding=1)
    def forward(self, x, t):
        return self.out(self.conv(x).relu())
"""


@pytest.mark.pictures
def test_geometry_prints_a_table_and_writes_its_results(command: Sads, tmp_path: Path) -> None:
    status, out, _ = command("geometry", "cnn", *TINY, "--networks", "64", "--out", str(tmp_path))
    assert status == 0
    for words in ("dimension", "36", "condition number", "effective rank", "resolved directions"):
        assert words in out
    geometry = sads.load_geometry(tmp_path / "geometry.safetensors")
    assert geometry.num_networks == 64
    for picture in ("spectrum.png", "directions.png"):
        with Image.open(tmp_path / picture) as image:
            assert min(image.size) > 300
    summary = json.loads((tmp_path / "geometry.json").read_text())
    assert summary["networks"] == 64
    assert summary["provenance"]["family"]["options"]["channels"] == 4
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_geometry_as_json(command: Sads, tmp_path: Path) -> None:
    arguments = ["--networks", "32", "--seed", "7", "--json", "--out", str(tmp_path)]
    status, out, _ = command("geometry", "cnn", *TINY, *arguments)
    assert status == 0
    values = json.loads(out)["values"]
    family = sads.family("cnn", (1, 6, 6), channels=4, depth=1)
    expected = sads.estimate_geometry(family, 32, seed=7).directions().values
    assert values == pytest.approx(expected.tolist())


def test_a_network_from_a_file_and_images_from_another(command: Sads, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    status, out, err = command(
        "geometry",
        f"{tmp_path}/net.py:Net",
        "--shape",
        "1x4x4",
        "-o",
        "width=5",
        "--probe",
        f"forward:{tmp_path}/images.npz",
        "--networks",
        "32",
        "--out",
        str(tmp_path / "out"),
        "--json",
    )
    assert status == 0
    assert err.startswith("note: read 3 images of 1x4x4 from ")
    assert err.endswith("images.npz (N x C x H x W, values 0 to 255)\n")
    provenance = json.loads(out)["provenance"]
    assert provenance["probe"]["num_images"] == 3
    assert provenance["family"]["options"] == {"width": 5}


def test_families_lists_the_presets(command: Sads) -> None:
    status, out, _ = command("families", "--json")
    assert status == 0
    rows = json.loads(out)
    assert {(r["family"], r["shape"]): r["parameters"] for r in rows}["iddpm", "1x16x16"] == 381_121


@pytest.mark.parametrize("arguments", [("--help",), ("geometry", "--help"), ("families", "--help")])
def test_help_shows_an_example(
    command: Sads,
    arguments: tuple[str, ...],
) -> None:
    status, out, _ = command(*arguments)
    assert status == 0
    assert "sads " in out.split("Usage")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["geometry", "resnet"], "unknown family 'resnet'"),
        (["geometry"], "Missing argument"),
        (["frobnicate"], "No such command"),
        (["geometry", "iddpm", "--shape", "1x15x15"], "every size must divide by 4"),
        (["geometry", "iddpm", "--shape", "big"], "write sizes such as 1x16x16"),
        (["geometry", "dit", "-o", "patch_size=3"], "patch_size must divide"),
        (["geometry", "cnn", "-o", "colour"], "write KEY=VALUE"),
        (["geometry", "cnn", "--networks", "0"], "at least 1, got 0"),
        (["geometry", "cnn", "--networks", "-3"], "at least 1, got -3"),
        (["geometry", "cnn", "--networks", "many"], "valid integer"),
        (["geometry", "cnn", "--networks", "9", "--tolerance", "0.1"], "give one of them"),
        (["geometry", "cnn", "--tolerance", "7"], "between 0 and pi/2"),
        (["geometry", "cnn", "--probe", "sideways"], "unknown probe"),
        (["geometry", "cnn", "--probe", "gaussian:wide"], "is not a width"),
        (["geometry", "cnn", "--probe", "gaussian:-1"], "must be positive"),
        (["geometry", "cnn", "--probe", "forward:nowhere.npz"], "nowhere.npz"),
        (["geometry", "cnn", "--prediction", "noise"], "unknown prediction"),
        (["geometry", "cnn", "--schedule", "quadratic"], "unknown noise schedule"),
        (["geometry", "cnn", "--estimator", "magic"], "unknown estimator"),
        (["geometry", "nowhere.py:build", "--shape", "1x4x4"], "cannot load"),
        (["geometry", "math:sqrt", "--shape", "1x4x4"], "factory"),
        (["geometry", "cnn", "--device", "abacus"], "abacus"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    command: Sads,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    status, out, err = command(*arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_unwritable_folder_is_refused_before_any_work(command: Sads, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, err = command(
        "geometry",
        "cnn",
        "--networks",
        "9999999",
        "--out",
        str(tmp_path / "file"),
    )
    assert status == 2
    assert "cannot write" in err


def test_zero_output_layer_is_explained(command: Sads, tmp_path: Path) -> None:
    zeroed = NETWORK + "\ndef build():\n    net = Net()\n    nn.init.zeros_(net.out.weight)\n"
    (tmp_path / "zero.py").write_text(zeroed + "    nn.init.zeros_(net.out.bias)\n    return net\n")
    arguments = [
        "geometry",
        f"{tmp_path}/zero.py:build",
        "--shape",
        "1x4x4",
        "--networks",
        "16",
        "--out",
        str(tmp_path),
    ]
    status, _, err = command(*arguments)
    assert status == 2
    assert "--zero-readout default" in err
    status, _, _ = command(*arguments, "--zero-readout", "default")
    assert status == 0


@pytest.mark.slow
def test_ctrl_c_keeps_a_valid_geometry(tmp_path: Path, processes: ForkServerContext) -> None:
    arguments = ["geometry", "cnn", *TINY, "--networks", "100000000", "--out", "o"]
    process = start(processes, run_command, tmp_path, arguments)
    while not (tmp_path / "o/geometry.partial.safetensors").exists():  # some networks are drawn
        assert process.is_alive()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join(SECONDS)
    assert process.exitcode == 130
    assert "kept the" in (tmp_path / "messages").read_text()
    geometry = sads.load_geometry(tmp_path / "o/geometry.safetensors")
    assert 0 < geometry.num_networks < 100_000_000
    assert geometry.provenance.interrupted


@dataclass(frozen=True)
class Facts(Row):
    name: str
    smallest_number: float
    with_error: Estimate
    source: str


def test_narrow_terminals_wrap_words_and_leave_numbers_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that has lost its exponent, or its error, is another one."""
    address = "huggingface.co/stabilityai/stable-diffusion-xl-base-1.0"
    for width in (20, 40, 200):
        monkeypatch.setattr(printing, "console", Console(width=width))
        printing.print_table([Facts("mlp", 7.4391e-05, Estimate(2807, 320.0), address)])
        shown = capsys.readouterr().out
        assert "7.439e-05" in shown
        assert "2807 ± 3.2e+02" in shown
        assert "\u2026" not in shown
        printing.print_rows({"largest eigenvalue": "133.2 ± 0.37", "smallest": "7.439e-05 ± 1e-06"})
        assert "7.439e-05" in capsys.readouterr().out
        ends = (line.split()[-1:] for line in shown.splitlines())
        assert address in "".join(end for words in ends for end in words)


@pytest.mark.parametrize(
    ("probe", "name"), [("../p.py:Probe", "cnn-1x6x6-p"), (f"{'x' * 300}.py:P", "cnn-1x6x6-xxx")]
)
def test_results_are_in_one_folder_whatever_the_probe_is_called(
    probe: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stem = folder_stem(sads.family("cnn", (1, 6, 6)), probe)
    made = new_folder(None, stem, ["geometry.json"])
    let_go()
    assert made.parent == Path("out")
    assert made.name.startswith(name)


def test_terminals_without_some_characters_get_other_words(
    command: Sads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the locale C, where `±` ended a command with a traceback."""
    sads.estimate_geometry(sads.family("mlp", (1, 4, 4)), 16).save("\u03b1.safetensors")
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(printing, "console", Console(file=output, width=100))
    command("align", "rank-one:dct:3", "--geometry", "\u03b1.safetensors", "--out", "\u03b2")
    output.flush()
    assert isinstance(output.buffer, io.BytesIO)
    printed = output.buffer.getvalue().decode("ascii")
    assert re.search(r"alpha +[0-9.e-]+ [+]- [0-9]", printed)
    assert r"wrote \u03b2/alignment.json" in printed
