"""Pictures that are drawn in haste, for tests that look at something else.

`hasty_pictures` is a fixture, which every command in this process uses. A picture is made and drawn
as ever, but its parts are not arranged, which takes matplotlib three quarters of the time. Tests
that are marked `pictures` make them as a user gets them: there is one for each kind of picture.

Commands that are killed leave their pictures empty (`leave_empty`): nobody sees most of them.
"""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image


@pytest.fixture
def hasty_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr(Figure, "savefig", draw_in_haste)


def draw_in_haste(figure: Figure, path: Path) -> None:
    """In place of `Figure.savefig`; small, as to fill a picture and to pack it take time, too."""
    figure.set_layout_engine("none")
    figure.dpi = 30
    FigureCanvasAgg(figure).print_png(path)


def leave_empty(_: Figure, path: Path) -> None:
    """In place of `Figure.savefig`."""
    Image.new("1", (1, 1)).save(path, "png")
