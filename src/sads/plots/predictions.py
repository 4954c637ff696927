"""A picture of Figure 2 before training: which vectors of five bases are predicted to be hard."""

from collections.abc import Mapping

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from sads.geometry.result import Geometry
from sads.plots.style import frame, styled, subplots, title_of
from sads.theory.predictions import Prediction

NEGLIGIBLE = 1e-9  # of the largest energy: rounding


def plot_predictions(geometry: Geometry, predictions: Mapping[str, Prediction]) -> Figure:
    """`v^T G v` of every vector of each basis, in units of the mean."""
    high = max(float(p.relative.max()) for p in predictions.values())
    low = min(float(p.relative.min()) for p in predictions.values())
    low = max(low, NEGLIGIBLE * high)  # some vectors may have no energy
    norm = LogNorm(low, high)
    with styled():
        figure, axes = subplots(
            1, len(predictions), figsize=(2.2 * len(predictions) + 0.8, 2.9), squeeze=False
        )
        for cell, (name, prediction) in zip(axes[0], predictions.items(), strict=True):
            relative = prediction.relative
            laid_out = prediction.basis.layout(relative.clamp(min=low))
            shown = cell.imshow(laid_out, cmap="magma", norm=norm)
            frame(cell)
            cell.set_title({"dct": "DCT", "dst": "DST"}.get(name, name.capitalize()), fontsize=10)
            cell.set_xlabel(
                f"median {float(relative.median()):.2g}\n"
                f"{float(relative.min()):.2g} to {float(relative.max()):.3g}",
                fontsize=8,
            )
        bar = figure.colorbar(shown, ax=axes[0], fraction=0.02, pad=0.01)
        bar.set_label(r"$v^\top G\, v$ / mean", fontsize=9)
        figure.suptitle(
            f"{title_of(geometry)}: predicted difficulty before training (bright: hard)",
            fontsize=10,
        )
    return figure
