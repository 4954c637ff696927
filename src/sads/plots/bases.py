"""One number for each vector of a basis, laid out as in Figure 2."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from sads.data.bases import Basis
from sads.plots.style import frame
from sads.shapes import format_shape


def show_basis_values(
    axes: Axes, basis: Basis, values: ArrayLike, low: float | None = None, high: float | None = None
) -> AxesImage:
    """One number a vector, in colours from `low` to `high`, with the axes of its layout."""
    picture = basis.layout(values)
    axis = {"canonical": "pixel", "hadamard": "sequency", "haar": ""}.get(basis.name, "frequency")
    extent = _extent(basis, *picture.shape)
    image = axes.imshow(picture, cmap="viridis", extent=extent, vmin=low, vmax=high)
    frame(axes)
    axes.set_title(f"{basis.name}  {format_shape(basis.shape)}", fontsize=10)
    if basis.name == "haar":
        _mark_scales(axes, basis)
    if basis.shape[0] == 1 and len(basis.spatial) == 2 and axis:
        axes.tick_params(length=2, labelsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set(xlabel=f"horizontal {axis}", ylabel=f"vertical {axis}")
    return image


def _extent(basis: Basis, rows: int, columns: int) -> tuple[float, float, float, float]:
    """Edges of the picture, in frequencies where zero is in its centre, else in pixels."""
    right, bottom = columns - 0.5, rows - 0.5
    if basis.name in ("dct", "dst", "hadamard"):
        right, bottom = columns / 2, rows / 2
    return right - columns, right, bottom, bottom - rows


def _mark_scales(axes: Axes, basis: Basis) -> None:
    """Lines between the bands of a nested wavelet picture."""
    bands = [(e.channel, e.scale, e.band) for e in basis.index]
    numbers = {band: number for number, band in enumerate(dict.fromkeys(bands))}
    picture = basis.layout([numbers[band] for band in bands])
    y, x = np.nonzero(np.diff(picture, axis=1))
    axes.vlines(x + 0.5, y - 0.5, y + 0.5, color="white", lw=0.6)
    y, x = np.nonzero(np.diff(picture, axis=0))
    axes.hlines(y + 0.5, x - 0.5, x + 0.5, color="white", lw=0.6)
