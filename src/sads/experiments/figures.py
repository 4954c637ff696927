"""All figures of the paper by name."""

from sads.experiments import figure1, figure2, figure6, figure7, figure8
from sads.experiments.figure import Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (figure1.FIGURE, figure2.FIGURE, figure6.FIGURE, figure7.FIGURE, figure8.FIGURE)
}
