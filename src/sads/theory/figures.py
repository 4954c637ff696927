"""Pictures of the theory: Figures 2 (predicted), 3, 4, 5 and 9 of the paper, and more."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from sads.alignment import Alignment
from sads.directions import Directions
from sads.geometry.geometry import Geometry
from sads.plots import BLUE, GREEN, GREY, INK, ORANGE, RED, STYLE, show_vector, title_of
from sads.theory.examples import Example
from sads.theory.landscape import Landscape
from sads.theory.markov import MarkovBound
from sads.theory.predict import Prediction, layout
from sads.theory.propositions import Form
from sads.theory.symmetry import ImpulseResponse
from sads.theory.theorem1 import LinearDSM, Simulation

FORMULAS = {
    1: "Proposition 1\n$a I + b\\,11^T$",
    2: "Proposition 2\n$I\\otimes A + 11^T\\otimes B$",
    3: "Proposition 3\n$Q\\,(A\\otimes I)\\,Q^T$",
}


def plot_theorem1(
    problems: Sequence[LinearDSM],
    simulations: Sequence[Simulation],
    learning_rate: float,
    batch_size: int,
) -> Figure:
    """Figure 4: error of SGD for data along each `u_i`, simulated and by the exact recursion."""
    values = problems[0].eigenvalues
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.88, len(problems)))
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9, 3.9), width_ratios=(5, 3), layout="constrained"
        )
        for i, (problem, simulation, color) in enumerate(
            zip(problems, simulations, colors, strict=True), start=1
        ):
            steps = np.maximum(simulation.steps, 0.7)  # step 0 on a logarithmic axis
            quantiles = torch.quantile(
                simulation.squared, torch.tensor([0.1, 0.9], dtype=torch.float64), dim=1
            )
            left.fill_between(steps, *quantiles.numpy(), color=color, alpha=0.15, lw=0)
            left.plot(steps, simulation.mean, color=color, lw=1.6, label=f"$v = u_{{{i}}}$")
            exact = problem.squared_errors(simulation.steps, learning_rate, batch_size)
            left.plot(steps, exact, color=INK, lw=0.9, ls=(0, (4, 3)))
            right.errorbar(
                values[i - 1], simulation.mean[-1], 3 * simulation.mean_error[-1],
                fmt="o", ms=5, color=color, capsize=3, zorder=3,
            )  # fmt: skip
        left.plot([], [], color=INK, lw=0.9, ls=(0, (4, 3)), label="exact recursion")
        left.set(
            xscale="log", yscale="log", xlabel="SGD step $t$",
            ylabel=r"$\mathbb{E}\,\Vert\Omega_t - \Omega^*\Vert_F^2$",
        )  # fmt: skip
        left.legend(frameon=False, fontsize=8, loc="lower left")
        left.set_title(
            f"Theorem 1 in $\\mathbb{{R}}^{{{len(values)}}}$, $\\sigma$ = {problems[0].sigma:g}, "
            f"$\\eta$ = {learning_rate:g}, {simulations[0].errors.shape[1]} runs",
            fontsize=9,
        )
        grid = values.numpy()
        plateaus = [p.plateau(learning_rate, batch_size) for p in problems]
        first = learning_rate / batch_size * grid * len(grid) * problems[0].residual_variance
        right.plot(grid, plateaus, color=INK, lw=0.9, ls=(0, (4, 3)), label="exact plateau")
        right.plot(grid, first, color=GREY, lw=1.2, label=r"first order, $\propto\lambda_i$")
        right.set(
            xscale="log", yscale="log", xlabel=r"eigenvalue $\lambda_i$",
            ylabel="error at the last step",
        )  # fmt: skip
        right.xaxis.set_major_locator(FixedLocator(list(grid)))
        right.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}"))
        right.xaxis.set_minor_locator(NullLocator())
        right.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        for axis in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
            axis(FuncFormatter(lambda y, _: f"{y:g}"))
        right.legend(frameon=False, fontsize=8)
        right.set_title("the plateau, predicted (bars: 3 s.e.)", fontsize=9)
    return figure


def plot_theorem2(
    geometry: Geometry, alignment: Alignment, samples: dict[str, Tensor], data_name: str
) -> Figure:
    """Where data stand between the extremes of alpha, and what the rotated data look like."""
    columns = min(10, len(samples["identity"]))
    colors = {"min": GREEN, "identity": INK, "max": RED}
    titles = {
        "min": f"$W_{{min}}$\n$\\alpha$ = {alignment.minimum:.4g}",
        "identity": f"$I$ (as they are)\n$\\alpha$ = {alignment.alpha:.4g}",
        "max": f"$W_{{max}}$\n$\\alpha$ = {alignment.maximum:.4g}",
    }
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(9, 4.6), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1, 2.6))
        top, bottom = halves
        axes = top.subplots()
        axes.axhline(0, color=GREY, lw=2, zorder=0)
        points = {
            "min": (alignment.minimum, alignment.minimum_error),
            "identity": (alignment.alpha, alignment.error),
            "max": (alignment.maximum, alignment.maximum_error),
        }
        for name, (value, error) in points.items():
            shown = error if np.isfinite(error) else 0.0
            axes.errorbar(value, 0, xerr=2 * shown, fmt="o", ms=8, color=colors[name], capsize=4)
        axes.set(xscale="log", yticks=[], ylim=(-1, 1), xlabel=r"alignment $\alpha$")
        axes.spines["left"].set_visible(False)
        share = f"{alignment.share:.2%} of the way from minimum to maximum"
        axes.set_title(f"{data_name} and {title_of(geometry)}: {share}", fontsize=10)
        grid = bottom.subplots(3, columns, squeeze=False)
        for row, name in zip(grid, ("min", "identity", "max"), strict=True):
            for cell, image in zip(row, samples[name], strict=False):
                _show_image(cell, image)
            row[0].set_ylabel(titles[name], color=colors[name], fontsize=9, rotation=0, labelpad=52)
            row[0].yaxis.label.set_verticalalignment("center")
    return figure


def plot_propositions(results: Sequence[tuple[Example, Geometry, Form]]) -> Figure:
    """Every geometry above what the closed form of its proposition leaves unexplained."""
    groups = [
        [r for r in results if r[2].proposition == number]
        for number in sorted({form.proposition for _, _, form in results})
    ]
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(1.3 * len(results) + 0.4, 3.9), layout="constrained")
        parts = figure.subfigures(
            1, len(groups), width_ratios=[len(g) for g in groups], squeeze=False
        )
        for part, group in zip(parts[0], groups, strict=True):
            axes = part.subplots(2, len(group), squeeze=False)
            for column, (example, geometry, form) in zip(axes.T, group, strict=True):
                _compare(column, example, geometry, form)
            part.suptitle(FORMULAS[group[0][2].proposition], fontsize=10, fontweight="bold")
            if part is parts[0, 0]:
                axes[0, 0].set_ylabel("estimate of $G$")
                axes[1, 0].set_ylabel("left out by the form")
    return figure


def _compare(column: Any, example: Example, geometry: Geometry, form: Form) -> None:
    matrix = geometry.matrix().numpy()
    limit = np.abs(matrix).max()
    for cell, image in zip(column, (matrix, matrix - rebuild(form, geometry)), strict=True):
        cell.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        _frame(cell)
    head, _, tail = example.name.partition(", ")
    column[0].set_title(f"{head}\n{tail}", fontsize=8)
    text = f"{form.status}\nz = {form.residual_errors:.1f}"
    column[1].set_xlabel(text, fontsize=8, color=GREEN if form.holds else RED)


def rebuild(form: Form, geometry: Geometry) -> np.ndarray[Any, Any]:
    """The dense matrix that a fitted form stands for."""
    from sads.theory.propositions import token_lift

    f = form.factors
    size = geometry.dimension
    if form.name == "mlp":
        return float(f["a"]) * np.eye(size) + float(f["b"])
    if form.name == "cnn":
        channels = geometry.shape[0]
        ones = np.ones((channels, channels))
        return np.kron(np.eye(channels), f["A"].numpy()) + np.kron(ones, f["B"].numpy())
    patch = round((size // geometry.shape[0] // len(f["A"])) ** (1 / (len(geometry.shape) - 1)))
    return token_lift(geometry.shape, patch).dense(f["A"]).numpy()


def plot_markov(
    network: Landscape,
    point: Tensor,
    directions: Directions,
    profiles: Tensor,
    distances: Tensor,
    angles: Tensor,
    observed: Tensor,
    bound: MarkovBound,
) -> Figure:
    """Figure 5: a network's log-density, its change along the directions, and Equation 4.

    Args:
        profiles: (2, networks, distances), `|log p(x + tau v) - log p(x)|` for both directions.
        angles: (n,) degrees of the directions whose `observed` frequencies (n,) and bounds are
            shown.
    """
    perp, par = directions.vectors.reshape(2, 2).numpy()
    colors = {"perp": RED, "par": GREEN}
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(
            1, 3, figsize=(11.4, 3.7), width_ratios=(3.6, 3, 3), layout="constrained"
        )
        _draw_landscape(left, network, point, {"perp": perp, "par": par}, colors)
        for name, profile in zip(("perp", "par"), profiles, strict=True):
            low, mid, high = torch.quantile(
                profile, torch.tensor([0.1, 0.5, 0.9], dtype=profile.dtype), dim=0
            )
            middle.fill_between(distances, low, high, color=colors[name], alpha=0.18, lw=0)
            label = r"along $v_\perp$" if name == "perp" else r"along $v_\parallel$"
            middle.plot(distances, mid, color=colors[name], lw=1.8, label=label)
        middle.set(
            xlabel=r"distance $\tau$", ylabel=r"$|\log p(x + \tau v) - \log p(x)|$", xlim=(0, None)
        )
        middle.set_ylim(0, None)
        middle.legend(frameon=False, loc="upper left")
        middle.set_title(
            f"from the origin, {profiles.shape[1]} networks\n(median, 10 to 90 %)", fontsize=9
        )
        right.plot(angles, bound.bounds, color=INK, lw=1.4, label="Markov bound")
        right.plot(angles, observed, color=BLUE, lw=1.6, label="networks observed")
        for name, vector in (("perp", perp), ("par", par)):
            angle = np.degrees(np.arctan2(vector[1], vector[0])) % 180
            right.axvline(angle, ymax=0.8, color=colors[name], lw=1, ls=":")
            text = r"$v_\perp$" if name == "perp" else r"$v_\parallel$"
            right.text(angle + 3, 1.06 * float(bound.bounds.max()), text, color=colors[name])
        right.set(
            xlabel="direction $v$ (degrees)", xlim=(0, 180), xticks=[0, 45, 90, 135, 180],
            ylabel=rf"$P(|v^\top \nabla \log p| \geq {bound.threshold:.2g})$",
        )  # fmt: skip
        right.set_ylim(0, 1.4 * float(bound.bounds.max()))
        right.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
        right.set_title(f"Equation 4, {profiles.shape[1]} other networks", fontsize=9)
    return figure


def _draw_landscape(
    axes: Axes, network: Landscape, point: Tensor, vectors: dict[str, Any], colors: dict[str, str]
) -> None:
    side = torch.linspace(-4, 4, 161)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)  # (rows, columns, 2)
    with torch.no_grad():
        height = network.log_density(grid.reshape(-1, 2)).reshape(grid.shape[:2]).numpy()
    filled = axes.contourf(side, side, height, levels=18, cmap="YlGnBu_r")
    axes.contour(side, side, height, levels=18, colors="white", linewidths=0.4, alpha=0.6)
    x, y = point.tolist()
    for name, vector in vectors.items():
        label = r"$v_\perp$" if name == "perp" else r"$v_\parallel$"
        axes.annotate(
            "", (x + 1.7 * vector[0], y + 1.7 * vector[1]), (x, y),
            arrowprops={"arrowstyle": "-|>", "color": colors[name], "lw": 2.4},
        )  # fmt: skip
        axes.text(
            x + 2.1 * vector[0], y + 2.1 * vector[1], label, color=colors[name], fontsize=13,
            ha="center", va="center",
            bbox={"facecolor": "white", "alpha": 0.75, "lw": 0, "boxstyle": "round,pad=0.12"},
        )  # fmt: skip
    axes.plot(x, y, "o", color=INK, ms=5, zorder=3)
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
    axes.set_title(r"$\log p_\theta$ of one untrained network", fontsize=9)
    axes.figure.colorbar(filled, ax=axes, fraction=0.046, pad=0.02)


def plot_symmetry(responses: dict[str, ImpulseResponse]) -> Figure:
    """Figure 3: responses to a centred impulse, and their parts that are odd under a flip."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(responses), 5, figsize=(9.4, 2.15 * len(responses) + 0.3), layout="constrained"
        )
        for row, (name, result) in zip(np.atleast_2d(axes), responses.items(), strict=True):
            response = result.responses[0]
            odd = (response - response.flip(-1)) / 2
            limit = float(response.abs().max())
            show_vector(row[0], result.impulse)
            show_vector(row[1], response)
            row[2].imshow(odd.mean(dim=0).numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
            row[3].imshow(result.root_mean_square.mean(dim=0).numpy(), cmap="magma")
            for cell in row[:4]:
                _frame(cell)
            _bar_asymmetry(row[4], result)
            row[0].set_ylabel(f"{name} resampling", fontsize=10)
        titles = (
            "impulse", "response of\none network", "its part that is\nodd, left to right",
            f"root mean square\nof {len(next(iter(responses.values())).responses)} networks",
            "energy of the odd part",
        )  # fmt: skip
        for cell, title in zip(np.atleast_2d(axes)[0], titles, strict=True):
            cell.set_title(title, fontsize=9)
    return figure


def _bar_asymmetry(axes: Axes, result: ImpulseResponse) -> None:
    names = {"flip of axis 0": "up-down", "flip of axis 1": "left-right"}
    rows = list(result.asymmetry.items())
    for i, (_, values) in enumerate(rows):
        mean = float(values.mean())
        error = float(values.std()) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        axes.barh(i, mean, xerr=2 * error, color=ORANGE, height=0.55, ecolor=INK, capsize=2)
        text = f"{mean:.3f}" if mean > 1e-3 else f"{mean:.0e}"
        axes.text(mean + 2 * error + 0.015, i, text, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [names.get(name, name) for name, _ in rows], fontsize=8)
    axes.set(xlim=(0, 0.5), ylim=(len(rows) - 0.4, -0.6))


def plot_adaptive(
    image: Tensor, geometry: Geometry, directions: Directions, columns: int = 6
) -> Figure:
    """Figure 9: an image, and the first eigenvectors of the geometry along its forward process."""
    count = min(2 * columns, geometry.dimension)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(1.35 * columns + 3, 3.7), layout="constrained")
        halves: Any = figure.subfigures(1, 2, width_ratios=(2.1, columns))
        left, right = halves
        axes = left.subplots()
        _show_image(axes, image)
        axes.set_title("input $x$", fontsize=10)
        cells = right.subplots(2, columns, squeeze=False).flat
        for cell, vector, value, error, i in zip(
            cells, directions.avoided(count), directions.values, directions.value_errors,
            range(count), strict=False,
        ):  # fmt: skip
            show_vector(cell, vector)
            cell.set_title(
                f"$\\lambda_{{{i + 1}}}$ = {float(value):.3g} ± {float(error):.1g}", fontsize=8
            )
        right.suptitle(f"{title_of(geometry)}: eigenvectors along its forward process", fontsize=9)
    return figure


def plot_predictions(geometry: Geometry, predictions: dict[str, Prediction]) -> Figure:
    """Figure 2 before training: `v^T G v` of every vector of each basis, in units of the mean."""
    low = min(float(p.relative.min()) for p in predictions.values())
    high = max(float(p.relative.max()) for p in predictions.values())
    norm = LogNorm(low, high)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(predictions), figsize=(2.2 * len(predictions) + 0.8, 2.9), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for cell, (name, prediction) in zip(axes[0], predictions.items(), strict=True):
            shown = cell.imshow(layout(prediction), cmap="magma", norm=norm)
            _frame(cell)
            cell.set_title({"dct": "DCT", "dst": "DST"}.get(name, name.capitalize()), fontsize=10)
            relative = prediction.relative
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


def _show_image(axes: Axes, image: Tensor) -> None:
    """Data, in their own range: grey, or colours for three channels."""
    image = image.double()
    if image.ndim != 3:
        axes.plot(image.flatten(1).T.numpy(), lw=0.8)
    elif len(image) == 3:
        low, high = float(image.min()), float(image.max())
        axes.imshow(((image - low) / max(high - low, 1e-12)).permute(1, 2, 0).numpy())
    else:
        axes.imshow(image[0].numpy(), cmap="gray")
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.5)
