"""One thing of each kind, added from outside the package: the table of CONTRIBUTING.md.

Architectures are in `test_families.py`, probes in `test_probes.py`, readouts in `test_readout.py`,
data readers in `test_data.py`; here is the rest, and the command line.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

import sads
from sads.cli import root
from sads.cli.main import main
from sads.diffusion import sample as samplers
from sads.errors import InvalidArgumentError
from sads.experiments import figures
from sads.experiments.figures.figure import Figure, Outcome
from sads.tables import Row

PROBE = """
import torch

class Ones:
    def draw(self, shape, level, schedule, rng):
        return torch.ones(shape)
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Whatever a test registers is gone after it."""
    monkeypatch.setattr(figures, "_registered", {})
    monkeypatch.setattr(samplers, "SAMPLERS", dict(samplers.SAMPLERS))


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sads", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_sampler():
    def one_step(schedule, levels, x, denoise, noise):
        """The prediction of `x_0` from noise alone."""
        yield x - denoise(x, levels[0])

    sads.register_sampler("one-step", one_step)
    family = sads.family("mlp", (1, 2, 2), width=8, depth=1)
    model = sads.ScoreModel(family, family.build())
    y = sads.sample(model, 3, sampler="one-step", steps=7)
    assert y.shape == (3, 1, 2, 2)
    assert not torch.equal(y, sads.sample(model, 3, sampler="ddim", steps=7))
    with pytest.raises(InvalidArgumentError, match="there is a sampler 'one-step' already"):
        sads.register_sampler("one-step", one_step)


def test_figure(monkeypatch, tmp_path, capsys):
    @dataclass(frozen=True)
    class Answer(Row):
        answer: int

    figures.register_figure(
        Figure("ours", "An answer", lambda context: Outcome({}, [Answer(42)], []))
    )
    with pytest.raises(InvalidArgumentError, match="there is a figure 'ours' already"):
        figures.register_figure(Figure("ours", "Another", lambda context: Outcome({}, [], [])))
    assert run(monkeypatch, "reproduce", "ours", "--out", str(tmp_path / "out")) == 0
    assert "42" in capsys.readouterr().out
    assert "## ours: An answer (smoke)" in (tmp_path / "out" / "README.md").read_text()


def test_command(monkeypatch, capsys):
    app = typer.Typer()

    @app.command()
    def greet() -> None:
        """Say hello."""
        print("hello")

    commands = list(root.app.registered_groups)
    monkeypatch.setattr(root.app, "registered_groups", commands)
    root.app.add_typer(app)
    assert run(monkeypatch, "greet") == 0
    assert capsys.readouterr().out == "hello\n"


def test_probe_on_the_command_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "my.py").write_text(PROBE)
    small = ("geometry", "mlp", "--shape", "1x2x2", "-o", "width=8", "--networks", "16")
    out = str(tmp_path / "out")
    assert run(monkeypatch, *small, "--probe", f"{tmp_path}/my.py:Ones", "--out", out) == 0
    given = sads.load_geometry(Path(out) / "geometry.safetensors")

    class Ones:
        def draw(self, shape, level, schedule, rng):
            return torch.ones(shape)

    family = sads.family("mlp", (1, 2, 2), width=8)
    expected = sads.estimate_geometry(family, 16, probe=Ones())
    assert torch.allclose(given.matrix(), expected.matrix())
    assert not torch.allclose(given.matrix(), sads.estimate_geometry(family, 16).matrix())
