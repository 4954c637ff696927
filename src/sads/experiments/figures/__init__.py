"""The figures of the paper, one file each: whatever module here has a `FIGURE` is one."""

import importlib
import pkgutil

from sads.errors import InvalidArgumentError
from sads.experiments.figures.figure import Figure

_registered: dict[str, Figure] = {}


def register_figure(figure: Figure) -> None:
    """Make a figure of your own known to `sads reproduce`, for as long as the process lives."""
    if figure.name in all_figures():
        raise InvalidArgumentError(
            f"there is a figure {figure.name!r} already; choose another name"
        )
    _registered[figure.name] = figure


def all_figures() -> dict[str, Figure]:
    """Every figure by name: the paper's in its order, then those that were registered."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    ]
    figures = [module.FIGURE for module in modules if hasattr(module, "FIGURE")]
    figures.sort(key=lambda figure: (len(figure.name), figure.name))  # fig9 before fig10
    return {figure.name: figure for figure in figures} | _registered
