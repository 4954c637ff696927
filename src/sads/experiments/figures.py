"""All figures of the paper by name."""

from sads.experiments import figure1, figure2, figure6, figure7, figure8, theory_figures
from sads.experiments.figure import Figure

TRAINED = [module.FIGURE for module in (figure1, figure2, figure6, figure7, figure8)]
FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in sorted([*TRAINED, *theory_figures.FIGURES], key=lambda figure: figure.name)
}
