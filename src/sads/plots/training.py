"""Pictures of a training run: its losses and its samples."""

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from sads.plots.style import BLUE, GREY, RED, as_text, frame, styled, subplots

GRID = (6, 12)  # rows and columns of samples, at most


def plot_losses(losses: Tensor, title: str) -> Figure:
    """The loss of every update, and its mean over a hundredth of the run."""
    values = losses.double().numpy()
    updates = np.arange(1, len(values) + 1)
    window = max(1, len(values) // 100)
    count = len(values) // window * window
    means, centres = (a[:count].reshape(-1, window).mean(axis=1) for a in (values, updates))
    with styled():
        figure, axes = subplots(figsize=(6, 3.2))
        axes.plot(updates, values, color=GREY, lw=0.5)
        axes.plot(centres, means, color=BLUE, lw=1.4, marker="o" if len(means) == 1 else None)
        axes.set(xlabel="update", ylabel="loss", title=as_text(title, 120), yscale="log")
        axes.set_xlim(0.5, len(values) + 0.5)
        axes.text(
            0.99,
            0.93,
            f"mean of {window:,}" if window > 1 else "every update",
            transform=axes.transAxes,
            ha="right",
            color=BLUE,
        )
    return figure


def plot_samples(samples: Tensor, title: str) -> Figure:
    """A grid of samples on one scale of values, which is shown; lines if they are 1-D.

    What lies beyond the scale is red above and blue below.
    """
    rows = min(GRID[0], int(np.ceil(len(samples) / GRID[1])))
    columns = min(GRID[1], len(samples))
    shown = samples[: rows * columns]
    # -1 is black and 1 white, as in images, unless more than a few outliers go beyond
    low = min(-1.0, float(shown.flatten().quantile(0.02)))
    high = max(1.0, float(shown.flatten().quantile(0.98)))
    image = None
    gray = colormaps["gray"].with_extremes(under=BLUE, over=RED)  # outliers are shown as such
    with styled():
        figure, grid = subplots(
            rows,
            columns,
            figsize=(0.62 * columns + 0.9, 0.62 * rows + 0.5),
            squeeze=False,
            layout=None,
            gridspec_kw={
                "wspace": 0.06,
                "hspace": 0.06,
                "left": 0.02,
                "right": 0.9,
                "bottom": 0.03,
                "top": 1 - 0.42 / (0.62 * rows + 0.5),
            },
        )
        for axes, sample in zip(grid.flat, shown, strict=False):
            if sample.ndim == 3 and len(sample) == 3:
                axes.imshow(mark_range(sample[None], low, high)[0].permute(1, 2, 0).numpy())
            elif sample.ndim == 3:
                image = axes.imshow(sample[0].numpy(), cmap=gray, vmin=low, vmax=high)
            else:
                axes.plot(sample.reshape(len(sample), -1).T.numpy(), lw=0.7, color=BLUE)
                axes.set_ylim(1.1 * low, 1.1 * high)
            frame(axes)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        if image is not None:
            bar = figure.colorbar(
                image, ax=grid, fraction=0.03, pad=0.02, aspect=8 + 4 * rows, extend="both"
            )
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=7, length=2)
        figure.suptitle(as_text(title, 120), fontsize=9, y=0.995)
    return figure


def grid_of(images: Tensor, side: int) -> np.ndarray:
    """Images in [-1, 1] as one picture of colours in [0, 1], (rows, columns, 3), with seams.

    Values out of range are not clipped in silence: see `mark_range`.
    """
    shown = mark_range(images, -1.0, 1.0)
    height, width = shown.shape[2:]
    count = -(-len(shown) // side)
    canvas = torch.full((3, count * (height + 1) - 1, side * (width + 1) - 1), 0.7)
    for i, image in enumerate(shown):
        y, x = (i // side) * (height + 1), (i % side) * (width + 1)
        canvas[:, y : y + height, x : x + width] = image
    return canvas.permute(1, 2, 0).numpy()


def mark_range(images: Tensor, low: float, high: float) -> Tensor:
    """Images (N, C, H, W) as colours (N, 3, H, W) in [0, 1], values out of range as such.

    A pixel above the range turns red, one below it blue, the more the further it is out: by half
    the range it is wholly so. A channel of a colour image counts like a pixel.
    """
    half = (high - low) / 2
    shown = ((images - low) / (high - low)).clamp(0, 1).expand(-1, 3, -1, -1)
    above = ((images - high) / half).clamp(0, 1).amax(dim=1, keepdim=True)
    below = ((low - images) / half).clamp(0, 1).amax(dim=1, keepdim=True)
    for share, colour in ((below, BLUE), (above, RED)):
        marked = torch.tensor(to_rgb(colour)).reshape(3, 1, 1)
        shown = (1 - share) * shown + share * marked
    return shown
