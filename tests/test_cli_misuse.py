"""Commands as nobody should write them: what each must print, and its status.

Also what a command finds in the folder that it is to write to, and leaves as it was.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sads
from commands import Sads
from sads.experiments.drawing import check_pictures
from sads.experiments.page import Summary, write_page

CNN = ["-o", "channels=4", "-o", "depth=1", "--shape", "1x6x6"]
ONE = "rank-one:dct:1"
NUMBER = "valid integer"
POSITIVE = "greater than or equal to 1"
LONG = "x" * 5000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = sads.family("mlp", (1, 4, 4), width=8, depth=1)
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    trained = sads.train(family, x, iterations=2, batch_size=8)
    return trained.save(tmp_path_factory.mktemp("run") / "model.safetensors")


@pytest.fixture
def place(tmp_path: Path, model: Path) -> Path:
    """A folder with an empty file, a pipe, an empty folder, two with a page, and a run."""
    (tmp_path / "file").touch()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "mine", "run", "taken"):
        (tmp_path / name).mkdir()
    (tmp_path / "taken/report.html").write_text("a page of somebody's")
    (tmp_path / "mine/README.md").write_text("mine")
    (tmp_path / "run/model.safetensors").write_bytes(model.read_bytes())
    samples = np.random.default_rng(0).standard_normal((9, 1, 4, 4), dtype=np.float32)
    np.savez(tmp_path / "samples.npz", images=samples)
    return tmp_path


MISUSE: list[tuple[list[str], str]] = [
    # No arguments, unknown ones, empty ones
    (["frobnicate"], "No such command 'frobnicate'"),
    (["--frobnicate"], "No such option: --frobnicate"),
    (["geometry", "cnn", "--frobnicate"], "No such option: --frobnicate"),
    (["geometry", "cnn", "more"], "unexpected extra argument"),
    (["families", "more"], "unexpected extra argument"),
    (["theory", "theorem9"], "No such command 'theorem9'"),
    (["reproduce"], "Missing argument 'FIGURE...'"),
    ([""], "argument 1 ('') is empty"),
    (["geometry", ""], "argument 2 ('') is empty"),
    (["geometry", " "], "argument 2 (' ') is empty"),
    (["geometry", "cnn", "--out", ""], "argument 4 ('') is empty"),
    (["geometry", "cnn", "--out="], "argument 3 ('--out=') is empty"),
    (["train", "mlp", ONE, "--out", ""], "is a variable of your shell not set?"),
    (["sample", ""], "is empty"),
    (["evaluate", "", ONE], "is empty"),
    (["align", "", "--family", "cnn"], "is empty"),
    (["align", "digits", "--geometry", ""], "is empty"),
    (["reproduce", "fig1", "--out", ""], "is empty"),
    (["reproduce", "fig1", "--ray", ""], "is empty"),
    # Sizes and numbers
    (["geometry", "cnn", "--shape", "0x4x4"], "'0x4x4' is not a shape; write sizes such as"),
    (["geometry", "cnn", "--shape", "1x-4x4"], "is not a shape"),
    (["geometry", "cnn", "--shape", "1x4x4x"], "is not a shape"),
    (["geometry", "cnn", "--shape", "1e3"], "is not a shape"),
    (
        ["geometry", "cnn", "--networks", "0"],
        "num_networks must be a whole number of",
    ),
    (
        ["geometry", "cnn", "--networks", "-7"],
        "num_networks must be a whole number of",
    ),
    (["geometry", "cnn", "--networks", "1.5"], NUMBER),
    (["geometry", "cnn", "--networks", "nan"], NUMBER),
    (
        ["geometry", "cnn", "--tolerance", "1", "--max-networks", "0"],
        "max_networks must be a whole number",
    ),
    (
        ["geometry", "cnn", "--tolerance", "nan"],
        "between 0 and pi/2 radians, must be",
    ),
    (
        ["geometry", "cnn", "--tolerance", "inf"],
        "between 0 and pi/2 radians, must be",
    ),
    (
        ["geometry", "cnn", "--tolerance", "0"],
        "between 0 and pi/2 radians, must be",
    ),
    (["geometry", "cnn", "--seed", "-1"], "greater than or equal to 0"),
    (["geometry", "cnn", "--seed", "1e400"], NUMBER),
    (["geometry", "cnn", "-o", "=3"], "'=3' is not an option; write KEY=VALUE"),
    (["geometry", "cnn", "-o", "channels="], "channels must be a whole number"),
    (["geometry", "cnn", "-o", "channels=0"], "channels must be a whole number"),
    (["geometry", "cnn", "-o", "channels=-3"], "channels must be a whole number"),
    (["geometry", "cnn", "-o", "channels=many"], "channels must be a whole number"),
    (["geometry", "cnn", "-o", "colour=1"], "cnn has no option colour; it has channels"),
    (["geometry", "cnn", "-o", "channels=" + "[" * 100_000], "its JSON is nested too deeply"),
    (["geometry", "cnn", "-o", "depth=1", "-o", "depth=2"], "the option depth is given twice"),
    (["geometry", "cnn", "--seed", "1", "--seed", "2"], "--seed is given twice; leave one of"),
    (["geometry", "cnn", "--matrix", "--matrix-free"], "--matrix-free/--matrix is given twice"),
    (["geometry", "cnn", "--json", "--networks=8", "--json"], "--json is given twice"),
    (["train", "mlp", ONE, "--out", "a", "--out", "b"], "--out is given twice"),
    (["theory", "markov", "--networks", "1", "--networks", "1"], "--networks is given twice"),
    (["geometry", "cnn", "-o", "depth=100000"], "it has more than 10,000 layers and parameters"),
    (["geometry", "mlp", "-o", "depth=1000000000"], "it has more than 10,000 layers and"),
    (["geometry", "dit", "-o", "depth=1000000"], "it has more than 10,000 layers and"),
    (["geometry", "cnn", "-o", "channels=1000000000"], "cannot be built for shape 1x16x16"),
    (["geometry", "cnn", "--max-networks", "8"], "the limit for --tolerance; give both"),
    (["geometry", "cnn", *CNN, "--matrix", "--memory", "1B"], "or keep none (--matrix-free)"),
    (["geometry", "cnn", "--shape", "1x4x\u0664"], "is not a shape"),
    (["atlas", "sd15", "--cpus", "nan"], "--cpus and --gpus are what is taken of a --ray"),
    (["atlas", "ddpm-256", "--ray", "x:1"], "ddpm-256 has 65,536 positions, too many for the mat"),
    (
        ["atlas", "--list", "--seed", "1", "--no-keep"],
        "--seed and --keep: --page and --list compute",
    ),
    (["atlas", "--list", "--out", "x", "--report"], "--out and --report: --list writes nothing"),
    (["sample", "run", "--clip", "--clip-range", "0,1"], "--clip: --clip-range says another range"),
    (["reproduce", "fig1", "--finished", "--workers", "2"], "--workers: --finished computes noth"),
    (["reproduce", "fig1", "--gpus", "1"], "--cpus and --gpus are what is taken of a --ray"),
    (["reproduce", "fig1", "--ray", "x:1", "--cpus", "inf"], "more than 0 CPUs"),
    (["reproduce", "fig1", "--ray", "x:1", "--workers", "2"], "--workers are processes here"),
    (["compare", "a.safetensors", "b.safetensors", "-o", "depth=3"], "are for families"),
    (["compare", "a.safetensors", "b.safetensors", "--networks", "5"], "--networks: are for fam"),
    (["compare", "a.safetensors", "b.safetensors", "--seed", "5"], "--seed: are for families"),
    (["compare", *["a.safetensors"] * 13], "a comparison takes at most 12"),
    (["align", ONE, "--geometry", "a.safetensors", "--networks", "5"], "--networks: for families"),
    (["theory", "predict", "a.safetensors", "--networks", "5"], "--networks: for families"),
    (["theory", "theorem2", "a.safetensors", "--shape", "1x8x8"], "--shape: for families"),
    (["theory", "propositions", "-o", "depth=3"], "--option: for a family, and none is given"),
    (["evaluate", "samples.npz", ONE, "--networks", "5"], "--networks: for --anatomy"),
    (["train", "mlp", ONE, "--out", "r", "--networks", "5"], "--networks: for a --rotation"),
    (
        ["train", "mlp", ONE, "--out", "r", "--rotation", "r.safetensors", "--geometry", "g"],
        "a rot",
    ),
    (["geometry", "cnn", "--seed", "18446744073709551616"], "less than or equal to"),
    (["rank", "digits", "--families", "cnn", "--league", "file"], "file is not a league"),
    (["report", "file"], "file cannot be read as a result of sads"),
    (["report", "folder"], "folder holds no result of sads"),
    (["atlas", "../../etc"], "the atlas has no network '../../etc'"),
    (["atlas", "--page", "--out", "folder"], "there is nothing of the atlas in folder"),
    (["evaluate", "samples.npz", ONE, "--anatomy"], "there is no model.safetensors beside"),
    (["compare", "atlas/sd15.json", "atlas/sdxl.json"], "not the geometry: give the .safetensors"),
    (["compare", "atlas:ddpm-cifar10-32", "dit"], "different shapes do not compare: atlas:"),
    (["align", "digits", "--family", "cnn", "--samples", "0"], POSITIVE),
    (
        ["train", "mlp", ONE, "--out", "r", "--iterations", "-1"],
        "iterations must be a whole number",
    ),
    (
        ["train", "mlp", ONE, "--out", "r", "--batch-size", "0"],
        "batch_size must be a whole number",
    ),
    (
        ["train", "mlp", ONE, "--out", "r", "--learning-rate", "nan"],
        "must be a finite number",
    ),
    (["train", "mlp", ONE, "--out", "r", "--checkpoint-every", "0"], POSITIVE),
    (["sample", "run", "--samples", "0"], POSITIVE),
    (["sample", "run", "--samples", "-1"], POSITIVE),
    (["sample", "run", "--samples", "x"], NUMBER),
    (["sample", "run", "--steps", "1001"], "between 1 and the 1000 levels, got 1001"),
    (["sample", "run", "--batch-size", "0"], "batch_size must be a whole number"),
    (
        ["evaluate", "samples.npz", ONE, "--projections", "-1"],
        "num_projections must be a whole number",
    ),
    (["evaluate", "samples.npz", ONE, "--test-samples", "0"], POSITIVE),
    (["reproduce", "fig1", "--workers", "0"], "give at least 1 worker, got 0"),
    (["reproduce", "fig1", "--seeds", "-1"], "give at least 1 seed, got -1"),
    (["reproduce", "fig8", "--seeds", "1000000000000"], "seeds are more than the 1,024 that"),
    (["reproduce", "fig1", "--workers", "1000000000"], "workers are more than the 1,024 that"),
    (["theory", "theorem1", "--eigenvalues", "nan"], "must be a list of finite numbers"),
    (["theory", "theorem1", "--steps", "0"], "give at least 1 step"),
    (
        ["theory", "theorem1", "--runs", "-1"],
        "num_runs must be a whole number of",
    ),
    (["theory", "markov", "--networks", "0"], POSITIVE),
    (["theory", "symmetry", "--level", "-1"], "a level from 0 to 999"),
    # Names: long, of control characters, of other things
    (["geometry", LONG], "unknown family 'xxx"),
    (["geometry", "cnn\x1b[31m\n"], r"unknown family 'cnn\x1b[31m\n'"),
    (["geometry", "netz\N{SNOWMAN}"], "unknown family 'netz\N{SNOWMAN}'"),
    (["geometry", "folder"], "unknown family 'folder'"),
    (["geometry", "folder:x"], "folder has no 'x'"),
    (["geometry", ":"], "':' names nothing to load"),
    (["geometry", "cnn", "--readout", "nowhere", *CNN], "has no layer 'nowhere'"),
    (["align", ONE, "--family", "cnn", *CNN, "--resize"], "resizing are for images"),
    (["align", "digits"], "give either --family NAME or --geometry FILE"),
    (["align", "digits", "--family", "cnn", "--rotation", "share:2"], "unknown rotation 'share:2'"),
    (["align", "rank-one:dct:99", "--family", "cnn", *CNN], "directions 0 to 35"),
    (["theory", "theorem2", "--layout", "NCHW"], "--layout: how --images are read, and none are"),
    (["theory", "descent", "--value-range", "0,1"], "--value-range: how --images are read, and"),
    (["theory", "descent", "--resize"], "--resize: how --images are read, and none are given"),
    (["geometry", "cnn", "--layout", "HW"], "--layout: how images of --probe forward:IMAGES"),
    (
        ["geometry", "cnn", "--resize"],
        "--resize: how images of --probe forward:IMAGES or --measure",
    ),
    (["geometry", "cnn", "--matrix", "--measure", "digits"], "--measure is for a geometry without"),
    (["atlas", "--page", "--out", "mine"], "mine/README.md is not of an atlas, and nothing of oth"),
    (["atlas", "--out", "taken", "--report"], "taken/report.html is there already and not a"),
    (["theory", "adaptive", "--image", "digits:x"], "digits:x: "),  # and no emoji
    (["sample", "run", "--sampler", "magic"], "unknown sampler 'magic'"),
    (["reproduce", "fig8", "--images", "foo=bar"], "no images 'foo'; --images takes digits"),
    (["reproduce", "fig8", "--images", "=bar"], "write mnist=FILE"),
    (["reproduce", "fig6", "--only", ",,"], "has no panel ''"),
    (["reproduce", "fig1", "--ray", "x"], "no Ray cluster answers at x"),
    (["reproduce", "fig1", "--out", "nope://x"], "cannot open a store at nope://x"),
    # Paths that are something else
    (["geometry", "cnn", *CNN, "--out", LONG], "File name too long"),
    (["geometry", "cnn", *CNN, "--out", "a\0b"], "null byte"),
    (["geometry", "cnn", *CNN, "--out", "file"], "cannot write to file: it is not a folder"),
    (["geometry", "cnn", *CNN, "--out", "-"], "results are files in a folder, which - is not"),
    (["geometry", "cnn", *CNN, "--out", "x/g.safetensors"], "in a folder: write x/g"),
    (["train", "mlp", ONE, "--out", "m.npz"], "m.npz is the name of a file, and the results are"),
    (["reproduce", "fig1", "--out", "fig1.png"], "fig1.png is the name of a file"),
    (["report", "run", "--out", "x.png"], "x.png would not open in a browser"),
    (["geometry", "cnn", *CNN, "--out", "file/x"], "cannot make file/x: Not a directory"),
    (["geometry", "cnn", *CNN, "--out", "pipe"], "cannot write to pipe: it is not a folder"),
    (["geometry", "cnn", *CNN, "--out", "/dev/null"], "/dev/null: it is not a folder"),
    (["geometry", "cnn", *CNN, "--out", "/proc/x/y"], "cannot make /proc/x"),
    (["align", "digits", "--geometry", "folder"], "there is no file folder"),
    (["align", "digits", "--geometry", "file"], "file cannot be read as a geometry"),
    (["align", "digits", "--geometry", "/dev/null"], "/dev/null"),
    (["train", "mlp", ONE, "--out", "new", "--resume"], "there is no run in new to continue"),
    (["train", "mlp", ONE, "--out", "folder", "--resume"], "there is no run in folder"),
    (["train", "mlp", ONE, "--out", "file", "--resume"], "there is no run in file"),
    (["train", "mlp", ONE, "--out", "run"], "run already holds model.safetensors"),
    (["sample", "folder"], "there is no run in folder"),
    (["sample", "file"], "file cannot be read as a model"),
    (["sample", "/dev/null"], "/dev/null"),
    (["sample", "pipe"], "pipe"),
    (["sample", "run", "--out", "file"], "cannot write to file: it is not a folder"),
    (["evaluate", "folder", ONE], "folder/samples.npz"),
    (["evaluate", "pipe", ONE], "cannot read pipe"),
    (["evaluate", "samples.npz", ONE, "--out", "file"], "cannot write to file"),
    (["reproduce", "fig1", "--out", "file"], "file is not a folder"),
    (["reproduce", "fig1", "--out", "mine"], "mine is not empty and holds no store of sads"),
]


@pytest.mark.parametrize(("arguments", "words"), MISUSE)
def test_one_line_and_status_2(
    command: Sads, place: Path, arguments: list[str], words: str
) -> None:
    before = sorted(place.rglob("*"))
    status, out, err = command(*arguments)
    assert (status, out) == (2, ""), err
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert sorted(place.rglob("*")) == before, "it left something behind"


@pytest.mark.parametrize("arguments", [(), ("theory",)])
def test_alone_it_is_help(command: Sads, arguments: tuple[str, ...]) -> None:
    status, out, err = command(*arguments)
    assert (status, err) == (0, "")
    assert "Usage:" in out
    assert "error:" not in out


def test_odd_names_are_printed_on_one_line(command: Sads, tmp_path: Path) -> None:
    name = "näme \n\x1b[31m'"
    status, out, _ = command("geometry", "cnn", *CNN, "--networks", 16, "--out", name)
    assert status == 0
    assert r"wrote näme \n\x1b[31m'/geometry.json" in out.splitlines()
    summary = json.loads((tmp_path / name / "geometry.json").read_text())
    assert summary["command"].endswith(r"--out $'näme \n\x1b[31m\''")


class TestNothingIsLost:
    """A result never overwrites another one, nor a file that is not its own."""

    def run_all(self, command: Sads, out: list[str]) -> dict[str, tuple[int, str, str]]:
        tiny = ["cnn", *CNN, "--networks", "16"]
        return {
            name: command(*arguments, *out)
            for name, arguments in {
                "geometry.json": ["geometry", *tiny],
                "alignment.json": ["align", ONE, "--family", *tiny, "--samples", "50"],
                "predict.json": [
                    "theory",
                    "predict",
                    "cnn",
                    "-o",
                    "channels=4",
                    "--shape",
                    "1x8x8",
                    "--networks",
                    "16",
                ],
                "theorem1.json": ["theory", "theorem1", "--steps", "5", "--runs", "2"],
                "evaluate.json": ["evaluate", "samples.npz", ONE, "--test-samples", "20"],
                "samples.json": ["sample", "run", "--samples", "5", "--steps", "2"],
            }.items()
        }

    def test_in_a_folder_of_the_users(self, command: Sads, place: Path) -> None:
        """Files of the same name are refused, others are left alone."""
        folder = place / "mine"
        (folder / ".sads").write_text("mine")
        results = self.run_all(command, ["--out", "mine"])
        assert {name: status for name, (status, _, _) in results.items()} == dict.fromkeys(
            results, 0
        )
        content = {p: p.read_bytes() for p in folder.iterdir()}
        assert content[folder / ".sads"] == content[folder / "README.md"] == b"mine"
        assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == [".sads"]
        for status, out, err in self.run_all(command, ["--out", "mine"]).values():
            assert (status, out) == (2, "")
            assert "mine already holds " in err
            assert "nothing is overwritten; choose another --out" in err
        assert content == {p: p.read_bytes() for p in folder.iterdir()}

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("geometry.json", ["geometry", "cnn", *CNN]),
            ("spectrum.png", ["geometry", "cnn", *CNN]),
            ("rotation.safetensors", ["align", ONE, "--family", "cnn", *CNN]),
            ("evaluate.json", ["evaluate", "samples.npz", ONE]),
            ("samples.png", ["sample", "run"]),
            ("markov.json", ["theory", "markov"]),
            ("loss.png", ["train", "mlp", ONE, "--shape", "1x4x4"]),
        ],
    )
    def test_files_and_links_that_have_the_name(
        self, command: Sads, place: Path, name: str, arguments: list[str]
    ) -> None:
        (place / "mine" / name).symlink_to("nowhere")
        status, _, err = command(*arguments, "--out", "mine")
        assert status == 2
        assert f"mine already holds {name}" in err
        assert os.readlink(place / "mine" / name) == "nowhere"
        assert len(list((place / "mine").iterdir())) == 2

    def test_by_default_a_new_folder(self, command: Sads, place: Path) -> None:
        for _ in range(2):
            assert all(status == 0 for status, _, _ in self.run_all(command, []).values())
        found = sorted(str(p.parent.relative_to(place)) for p in place.rglob("*.json"))
        stems = ["cnn-1x6x6", "predict", "theorem1"]
        expected = [f"out/{stem}{end}" for stem in stems for end in ("", "-2")]
        assert set(expected) <= set(found)
        assert {"run", "run/samples-2"} <= set(found)
        assert {".", "evaluation-2"} <= set(found)
        assert len([name for name in found if name.startswith("out/align-")]) == 2

    def test_pages_of_others_stay(self, tmp_path: Path) -> None:
        assert write_page(tmp_path, []).name == "README.md"
        assert write_page(tmp_path, []).name == "README.md"  # our own is made anew
        (tmp_path / "README.md").write_text("mine")
        assert write_page(tmp_path, []).name == "figures.md"
        assert write_page(tmp_path, []).name == "figures.md"
        (tmp_path / "figures.md").write_text("mine too")
        with pytest.raises(sads.SadsError, match="move one of them away"):
            write_page(tmp_path, [])
        assert (tmp_path / "README.md").read_text() == "mine"
        assert (tmp_path / "figures.md").read_text() == "mine too"

    def test_pictures_of_others_stay(self, tmp_path: Path) -> None:
        """A figure made twice replaces itself, and nothing else."""
        files = (tmp_path, "fig4", ["fig4.png", "fig4-b.png"])
        check_pictures(*files)
        (tmp_path / "fig4.png").write_text("mine, or ours")
        with pytest.raises(sads.SadsError, match=r"fig4\.png is there already and not of this"):
            check_pictures(*files)
        Summary("fig4", "", "smoke", (), "", (), {}, (), (), {"a": "fig4.png"}).save(tmp_path)
        check_pictures(*files)
        (tmp_path / "fig4-b.png").write_text("mine")
        with pytest.raises(sads.SadsError, match=r"fig4-b\.png is there already"):
            check_pictures(*files)
        (tmp_path / "fig4.json").write_text("mine")
        with pytest.raises(sads.SadsError, match=r"fig4\.json is damaged or not ours"):
            check_pictures(*files)


@pytest.mark.parametrize(("limit", "settled"), [(64, False), (4096, True)])
def test_a_tolerance_that_is_not_reached_is_said(command: Sads, limit: int, settled: bool) -> None:
    """A linear map of four numbers: outer products need many networks to tell its directions."""
    Path("net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.randn(4))\n"
        "    def forward(self, x, t):\n"
        "        scale = torch.tensor([1.0, 3.0, 9.0, 27.0])\n"
        "        return (self.weight * scale).reshape(1, 1, 2, 2).expand(len(x), 1, 2, 2)\n"
    )
    options = ["--shape", "1x2x2", "--tolerance", "0.02", "--max-networks", limit]
    status, out, err = command("geometry", "net.py:Net", *options, "--json")
    assert (status, err) == (0, "")
    summary = json.loads(out)
    assert summary["settled"] is settled
    notes = [n for n in summary["provenance"]["notes"] if n.startswith("the limit of")]
    if settled:
        assert notes == []
    else:
        (note,) = notes
        assert note.startswith("the limit of 64 networks leaves ")
        assert note.endswith("raise max_networks (--max-networks), or the tolerance")
