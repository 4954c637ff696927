"""What all pictures share: colours, how they are saved, how a direction is shown.

Pictures are made with matplotlib's object interface, so that the user's backend and settings stay
as they are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sads.errors import printable
from sads.files import replacing
from sads.geometry.result import Geometry

INK, BLUE, ORANGE, GREY = "#1b1f24", "#2563a8", "#d9730d", "#b4bac2"
LONGEST = 60  # characters of a name from outside
GREEN, RED = "#2f855a", "#c53030"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.formatter.min_exponent": 3,  # 0.9 on a logarithmic axis, and not 9 x 10^-1
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
}


def styled() -> Any:
    """A context in which figures are made in our style; the user's settings stay as they are."""
    return rc_context(STYLE)


def subplots(
    rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    """A figure with axes, known to nobody but the caller: pyplot need not be told to close it."""
    figure = Figure(figsize=figsize, layout=options.pop("layout", "constrained"))
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, path: Path) -> Path:
    with replacing(path) as temporary, styled():
        figure.savefig(temporary)
    return path


def as_text(name: object, longest: int = LONGEST) -> str:
    """A name from outside in a picture: `$` is not the start of a formula, and it is short.

    Matplotlib leaves labels out of legends that begin with `_`: this one gets a space before it.
    """
    text = printable(name)
    text = (text if len(text) <= longest else f"{text[:longest]}...").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def title_of(geometry: Geometry) -> str:
    """`iddpm 1x16x16, 1,024 networks` and the like."""
    return as_text(geometry.label, 2 * LONGEST)


def show_vector(axes: Axes, vector: Tensor) -> None:
    """A direction as a picture: white to black through grey at zero; a line if 1-D."""
    vector = vector if vector.ndim > 1 else vector[None]
    if vector.ndim != 3:
        axes.plot(vector.flatten(1).T.numpy(), lw=0.8)
    else:
        limit = float(vector.abs().max()) or 1.0
        if len(vector) == 3:
            axes.imshow((0.5 + vector / limit / 2).permute(1, 2, 0).numpy())
        else:
            image = vector[vector.flatten(1).norm(dim=1).argmax()]
            axes.imshow(image.numpy(), cmap="gray", vmin=-limit, vmax=limit)
    frame(axes)


def show_vector_energy(axes: Axes, vector: Tensor) -> None:
    vector = vector if vector.ndim > 1 else vector[None]
    dims = tuple(range(1, vector.ndim))
    energy = torch.fft.fftshift(torch.fft.fftn(vector, dim=dims).abs() ** 2, dim=dims).sum(dim=0)
    show_map(axes, energy, "magma")


def show_map(
    axes: Axes, values: Tensor, colours: str, limits: tuple[float, float] | None = None
) -> None:
    """Numbers at positions: in colours, or a line if 1-D."""
    low, high = limits or (None, None)
    if values.ndim == 2:
        axes.imshow(values.numpy(), cmap=colours, vmin=low, vmax=high)
    else:
        axes.plot(values.flatten().numpy(), lw=0.8, color=ORANGE)
        axes.set_ylim(low, high)
    frame(axes)


def show_image(axes: Axes, image: Tensor) -> None:
    """Data in their own range: grey, or colours for three channels; a line if 1-D."""
    image = image.double()
    if image.ndim != 3:
        axes.plot(image.flatten(1).T.numpy(), lw=0.8)
    elif len(image) == 3:
        low, high = float(image.min()), float(image.max())
        axes.imshow(((image - low) / max(high - low, 1e-12)).permute(1, 2, 0).numpy())
    else:
        axes.imshow(image[0].numpy(), cmap="gray")
    frame(axes)


def show_baselines(axes: Axes, lines: Mapping[str, float]) -> None:
    """What needs no training, as lines across a picture of distances, with their names.

    Neighbours that would overlap share a name.
    """
    shown: list[tuple[str, float]] = []
    for name, value in sorted(lines.items(), key=lambda line: line[1]):
        if value <= 0:  # which a logarithmic scale does not have
            continue
        if shown and value < 1.03 * shown[-1][1]:
            shown[-1] = (f"{shown[-1][0]}, {name}", shown[-1][1])
        else:
            shown.append((name, value))
    for name, value in shown:
        color = GREEN if name.startswith("real") else RED
        axes.axhline(value, color=color, lw=0.9, ls=":")
        axes.annotate(
            name,
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 1),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=6.5,
            color=color,
        )


def frame(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
