"""Names from outside in pictures: of files, functions and folders, whatever they look like.

`$` begins no formula, `_` hides no label, and a line of thousands of characters has an end.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

import sads
from sads.diffusion.anatomy import follow_sampler, measure_anatomy
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import SamplingOptions
from sads.experiments.figures.fig9 import Adaptation
from sads.geometry.result import Geometry
from sads.plots.alignment import plot_alignment
from sads.plots.anatomy import plot_anatomy
from sads.plots.compare import plot_comparison
from sads.plots.descent import DescentCurves, plot_descent
from sads.plots.ends import plot_ends, plot_known
from sads.plots.geometry import plot_directions, plot_spectrum
from sads.plots.predictions import plot_predictions
from sads.plots.ranking import plot_ranking
from sads.plots.theorem2 import plot_theorem2
from sads.plots.training import plot_losses, plot_samples
from sads.theory.predictions import predict

pytestmark = pytest.mark.usefixtures("one_thread")

MARK = "<b>&\\frac{"
NAME = f"_${MARK}$ x^$_{{y \N{SNOWMAN}" + 3000 * "z"
SHAPE = (1, 4, 4)


@pytest.fixture(scope="module")
def geometry() -> Geometry:
    return _named(sads.estimate_geometry(sads.family("cnn", SHAPE), 16))


@pytest.fixture(scope="module")
def free() -> Geometry:
    return _named(sads.estimate_geometry(sads.family("cnn", SHAPE), 16, matrix_free=True))


@pytest.fixture(scope="module")
def model() -> ScoreModel:
    family = sads.family("mlp", SHAPE, width=4, depth=1)
    return ScoreModel(family, family.build())


def _named(geometry: Geometry) -> Geometry:
    family = {**geometry.provenance.family, "name": NAME}
    return replace(geometry, provenance=replace(geometry.provenance, family=family))


def _data() -> torch.Tensor:
    return torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(0))


def _compared(geometry: Geometry) -> Figure:
    return plot_comparison(sads.compare(geometry, geometry), [geometry, geometry])


def _aligned(geometry: Geometry) -> Figure:
    both = sads.pair(geometry, _data())
    return plot_alignment(geometry, both.alignment(), both.spectrum(), both.data_values, NAME)


def _theorem2(geometry: Geometry) -> Figure:
    samples = dict.fromkeys(("min", "identity", "max"), _data()[:2])
    alignment = sads.pair(geometry, _data()).alignment()
    return plot_theorem2(geometry, alignment, torch.ones(3), samples, NAME)


def _adapted(geometry: Geometry) -> Figure:
    return Adaptation(_data()[0], NAME, geometry).plot()


OF_GEOMETRIES: dict[str, Callable[[Geometry], Figure]] = {
    "adaptive": _adapted,
    "alignment": _aligned,
    "comparison": _compared,
    "directions": lambda geometry: plot_directions(geometry, geometry.directions()),
    "predictions": lambda geometry: plot_predictions(geometry, predict(geometry)),
    "spectrum": lambda geometry: plot_spectrum(geometry, geometry.directions()),
    "theorem2": _theorem2,
}
OTHERS: dict[str, Callable[[], Figure]] = {
    "descent": lambda: plot_descent({1.0: _curves()}, [0, 1], NAME),
    "losses": lambda: plot_losses(torch.ones(5), NAME),
    "ranking": lambda: plot_ranking([NAME, NAME], {NAME: [1.0, 2.0]}, [], NAME),
    "samples": lambda: plot_samples(_data(), NAME),
}


def _curves() -> DescentCurves:
    return DescentCurves(torch.ones(2), torch.ones(2), torch.ones(2), torch.ones(3, 2))


def _check(figure: Figure) -> None:
    """Every text can be drawn, is short, and has the name as it is, if at all."""
    shown = [text for text in figure.findobj(Text) if "frac" in text.get_text()]
    assert shown
    for text in shown:
        assert len(text.get_text()) < 400
        clean, is_formula = text._preprocess_math(text.get_text())
        if is_formula:  # a formula of ours is beside it
            MathTextParser("path").parse(clean)
            clean = clean.replace(r"\$", "$")
        assert f"${MARK}$ x^$" in clean
    for axes in figure.axes:
        for line in axes.get_lines():
            assert not str(line.get_label()).startswith("_\\$"), "no legend would show it"


@pytest.mark.parametrize("name", OF_GEOMETRIES)
def test_a_name_is_text_in_pictures_of_geometries(name: str, geometry: Geometry) -> None:
    _check(OF_GEOMETRIES[name](geometry))


@pytest.mark.parametrize("plot", [plot_known, plot_ends])
def test_a_name_is_text_in_pictures_without_a_matrix(
    plot: Callable[[Geometry], Figure], free: Geometry
) -> None:
    _check(plot(free))


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_is_text_in_other_pictures(name: str) -> None:
    _check(OTHERS[name]())


def test_a_name_is_text_in_the_picture_of_a_models_errors(model: ScoreModel) -> None:
    walk = follow_sampler(model, _data(), SamplingOptions(steps=2))
    found = measure_anatomy(model, _data(), num_samples=20)
    _check(plot_anatomy(found, NAME, replace(walk, described=NAME)))
