"""What results show of themselves in a notebook, and the quick-start notebook, which runs."""

import ast
import json
import math
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
import torch
from PIL import Image

import sads
from sads import markup
from sads.tables import Row, Table, titled

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
HOSTILE = "<script>alert(1)</script>\"'\u202egnp.exe"


class _Balance(HTMLParser):
    """Reads HTML whose elements are closed in order, and its text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def geometry() -> sads.Geometry:
    return sads.estimate_geometry(sads.family("dit", shape=(1, 8, 8), patch_size=2))


def test_a_geometry(geometry: sads.Geometry) -> None:
    shown = _Balance(geometry._repr_html_())
    assert geometry.label in shown.text
    assert str(geometry.directions().eigenvalue(0)) in shown.text
    assert shown.names.count("img") == 9


def test_directions_are_their_pictures(geometry: sads.Geometry) -> None:
    sad = geometry.directions()
    html = sad._repr_html_()
    assert repr(sad) in _Balance(html).text
    first = re.findall(r'src="data:image/png;base64,([^"]+)"', html)[0]
    pixels = markup.direction_pixels(sad.vectors[0])
    assert markup.png(pixels).endswith(first)
    expected = (0.5 + sad.vectors[0, 0] / sad.vectors[0].abs().max() / 2) * 255
    assert np.abs(pixels - expected.numpy()).max() <= 0.5


def test_an_alignment_and_a_model(geometry: sads.Geometry) -> None:
    x = sads.rank_one(geometry.directions().vectors[-1], num_samples=300, seed=0)
    found = sads.alignment(geometry, x)
    assert str(found.alpha) in _Balance(found._repr_html_()).text
    family = sads.family("mlp", shape=(1, 8, 8), width=16)
    model = sads.train(family, x, iterations=4, batch_size=20, seed=0)
    text = _Balance(model._repr_html_()).text
    assert "Score model of mlp" in text
    assert f"{sum(p.numel() for p in model.network.parameters()):,}" in text
    bare = replace(model, losses=torch.empty(0), provenance=type(model.provenance)())
    assert "loss" not in _Balance(bare._repr_html_()).text


@pytest.mark.parametrize("error", [0.25, 0.0, math.inf, math.nan])
def test_an_estimate(error: float) -> None:
    estimate = sads.Estimate(1.5, error)
    assert _Balance(estimate._repr_html_()).text == str(estimate)


@dataclass(frozen=True)
class _Point(Row):
    name: str
    sw2: sads.Estimate | None = titled("SW2", default=None)


def test_a_table() -> None:
    rows = Table([_Point(HOSTILE, sads.Estimate(1.5, 0.1)), _Point("b")])
    assert rows == list(rows)
    shown = _Balance(rows._repr_html_())
    assert shown.names.count("tr") == 3
    assert "script" not in shown.names
    assert "1.5 ± 0.1" in shown.text
    assert "\u202e" not in shown.text


def test_hostile_names(geometry: sads.Geometry) -> None:
    family = {**geometry.provenance.family, "name": HOSTILE}
    bad = replace(geometry, provenance=replace(geometry.provenance, family=family))
    shown = _Balance(bad._repr_html_())
    assert "script" not in shown.names
    assert "<script>alert(1)</script>" in shown.text
    assert "\u202e" not in shown.text


def test_pictures_of_all_shapes() -> None:
    for shape, size in {
        (3, 4, 5): (4, 5, 3),
        (2, 4, 5): (4, 5),
        (2, 7): (2, 7),
        (7,): (1, 7),
        (1, 2, 3, 4): (1, 24),
    }.items():
        pixels = markup.direction_pixels(torch.randn(shape))
        assert pixels.shape == size
        Image.fromarray(pixels)


@pytest.mark.slow
def test_the_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, and what it would show."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    figures = 0
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = [line for line in cell["source"] if not line.startswith("%")]
        body = ast.parse("".join(lines)).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
            figures += isinstance(value, matplotlib.figure.Figure)
            if hasattr(value, "_repr_html_") and not isinstance(value, matplotlib.figure.Figure):
                _Balance(value._repr_html_())
    assert figures == 2
    assert (tmp_path / "quickstart.html").is_file()


def test_importing_and_drawing_does_not_show(geometry: sads.Geometry) -> None:
    """Figures are returned: no window is opened, and the user's backend stays as it is."""
    import sys

    from sads.plots.geometry import plot_spectrum

    before = "matplotlib.pyplot" in sys.modules
    assert isinstance(plot_spectrum(geometry, geometry.directions()), matplotlib.figure.Figure)
    assert ("matplotlib.pyplot" in sys.modules) == before
