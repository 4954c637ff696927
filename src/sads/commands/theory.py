"""`sads theory ...`: the statements of the paper as commands. Parsing and printing only."""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

import sads
from sads.commands.alignment import alignment_rows
from sads.commands.printing import AsJson, console, print_rows, progress_bar
from sads.commands.reading import format_shape, read_family, read_geometry, read_images
from sads.errors import InvalidArgumentError
from sads.files import check_folder, to_json, write_json
from sads.theory import (
    Example,
    Landscape,
    LinearDSM,
    conditioning,
    examples,
    impulse_response,
    landscape_family,
    markov_bound,
    rates,
)
from sads.theory.lemmas import unit

app = typer.Typer(
    name="theory",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="The paper's theorems, propositions and bounds, computed and drawn.",
)

Out = Annotated[Path, typer.Option(help="Folder for the picture and the JSON.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Source = Annotated[
    str,
    typer.Argument(
        help="geometry.safetensors, a name from `sads families`, or FILE.py:FUNCTION.",
        metavar="GEOMETRY",
    ),
]
Shape = Annotated[
    str | None, typer.Option(help="Shape of the data, such as 1x16x16; else the preset's.")
]
Networks = Annotated[int, typer.Option(help="Random networks to draw for a geometry.")]
Options = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", help="Option of the network, KEY=VALUE; repeatable."),
]


@app.command(
    epilog="**Examples**\n\n- `sads theory theorem1`\n\n"
    "- `sads theory theorem1 --eigenvalues 4,2,1,1 --sigma 0.5 --batch-size 8`"
)
def theorem1(
    eigenvalues: Annotated[
        str, typer.Option(help="Of Phi Phi^T, descending.")
    ] = "1,0.5,0.25,0.125,0.0625",
    sigma: Annotated[float, typer.Option(help="Noise level.")] = 1.0,  # Figure 4
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.02,
    steps: Annotated[int, typer.Option(help="Steps of SGD.")] = 4000,
    runs: Annotated[int, typer.Option(help="Runs of SGD for each direction.")] = 400,
    batch_size: Annotated[int, typer.Option(help="Samples a step.")] = 1,
    seed: Seed = 0,
    out: Out = Path("out/theorem1"),
    as_json: AsJson = False,
) -> None:
    """Figure 4: linear score matching behind an anisotropic layer, for data along each `u_i`.

    The error of SGD is simulated and, from its exact recursion, predicted.
    """
    check_folder(out)
    values = sorted(_numbers(eigenvalues), reverse=True)
    recorded = _spread_steps(steps)
    phi = conditioning(values, seed=seed)
    problems = [LinearDSM(phi, column, sigma) for column in phi.T]
    rho = rates(problems[0].eigenvalues, sigma)
    simulations, rows = [], []
    for i, problem in enumerate(problems):
        plateau = problem.plateau(learning_rate, batch_size)
        if not math.isfinite(plateau):
            raise InvalidArgumentError(
                f"SGD diverges for v = u_{i + 1} at a learning rate of {learning_rate}; "
                "choose a smaller one or a larger batch size"
            )
        simulation = problem.simulate(
            recorded, learning_rate, runs, batch_size=batch_size, seed=seed + i
        )
        exact = problem.squared_errors(recorded, learning_rate, batch_size)
        later = torch.tensor(recorded) > 0  # at step 0 nothing is random
        z = ((simulation.mean - exact) / simulation.mean_error)[later]
        simulations.append(simulation)
        rows.append(
            {
                "direction": i + 1,
                "eigenvalue": values[i],
                "rate": float(rho[i]),
                "gradient_covariance_trace": float(problem.gradient_covariance().trace()),
                "plateau": plateau,
                "plateau_first_order": learning_rate / batch_size * values[i] * len(values)
                * problem.residual_variance,
                "simulated": float(simulation.mean[-1]),
                "simulated_error": float(simulation.mean_error[-1]),
                "exact_at_last_step": float(exact[-1]),
                "largest_deviation_in_errors": float(z.abs().max()),
            }
        )  # fmt: skip
    from sads.theory import figures

    picture = figures.plot_theorem1(problems, simulations, learning_rate, batch_size)
    settings = {
        "sigma": sigma, "learning_rate": learning_rate, "batch_size": batch_size, "runs": runs,
        "steps": steps, "seed": seed,
    }  # fmt: skip
    columns = {
        "v": lambda r: f"u_{r['direction']}",
        "lambda": lambda r: f"{r['eigenvalue']:g}",
        "rate rho": lambda r: f"{r['rate']:.4g}",
        "tr Cov of gradient": lambda r: f"{r['gradient_covariance_trace']:.4g}",
        "plateau": lambda r: f"{r['plateau']:.4g}",
        "simulated": lambda r: f"{r['simulated']:.4g} ± {r['simulated_error']:.1g}",
        "largest |z|": lambda r: f"{r['largest_deviation_in_errors']:.2f}",
    }
    _finish(out, "theorem1", picture, {"settings": settings, "directions": rows}, as_json, columns)


@app.command(
    epilog="**Examples**\n\n- `sads theory theorem2 iddpm --shape 1x16x16` (scikit-learn's digits)"
    "\n\n- `sads theory theorem2 iddpm --images mnist_10k.npz --shape 1x28x28`"
    "\n\n- `sads theory theorem2 out/iddpm/geometry.safetensors --save`"
)
def theorem2(
    geometry: Source = "iddpm",
    images: Annotated[
        str | None, typer.Option(help="A file or folder; else scikit-learn's digits, resized.")
    ] = None,
    shape: Shape = None,
    networks: Networks = 1024,
    option: Options = None,
    seed: Seed = 0,
    save: Annotated[bool, typer.Option(help="Also write both rotations.")] = False,
    out: Out = Path("out/theorem2"),
    as_json: AsJson = False,
) -> None:
    """Theorem 2: alignment of data with a geometry, and the rotations that are extreme."""
    check_folder(out)
    result = read_geometry(geometry, shape, option, networks, seed, as_json)
    data, name = read_data(images, result.shape)
    both = sads.pair(result, data)
    report = both.alignment()
    rotations = {kind: both.rotation(kind) for kind in ("min", "identity", "max")}
    if save:
        for kind in ("min", "max"):
            rotations[kind].save(out / f"rotation-{kind}.safetensors")
    from sads.theory import figures

    step = max(1, len(data) // 10)
    shown = {kind: r.apply(data[::step][:10]) for kind, r in rotations.items()}
    picture = figures.plot_theorem2(result, report, shown, name)
    summary = {**vars(report), "data": name, "geometry": dict(result.provenance["family"])}
    if not as_json:
        print_rows(alignment_rows(report))
    _finish(out, "theorem2", picture, summary, as_json)


@app.command(
    epilog="**Examples**\n\n- `sads theory propositions`\n\n"
    "- `sads theory propositions cnn --shape 3x8x8 --networks 8192`\n\n"
    "- `sads theory propositions dit -o patch_size=4`"
)
def propositions(
    geometry: Annotated[
        str | None,
        typer.Argument(help="As elsewhere; else networks that keep and break the assumptions."),
    ] = None,
    shape: Shape = None,
    networks: Networks = 4096,
    option: Options = None,
    seed: Seed = 0,
    out: Out = Path("out/propositions"),
    as_json: AsJson = False,
) -> None:
    """Propositions 1 to 3: which closed form does a geometry obey?

    Estimates here are plain outer products, which impose no form.
    """
    check_folder(out)
    results = []
    if geometry is None:
        for example in examples():
            estimate = sads.estimate_geometry(
                example.family, networks, seed=seed, estimator="outer-product",
                probe=sads.probe("gaussian"),
            )  # fmt: skip
            tested = sads.structure(estimate, patch_size=example.patch_size)
            results.append((example, estimate, tested[example.form]))
    else:
        estimate = read_geometry(geometry, shape, option, networks, seed, as_json, "outer-product")
        family = sads.family(torch.nn.Identity, shape=estimate.shape)  # a label only
        for form in sads.structure(estimate).forms:
            label = Example(source_name(geometry), family, form.proposition, form.holds, "")
            results.append((label, estimate, form))
    rows = [
        {
            "network": example.name,
            "proposition": form.proposition,
            "formula": form.formula,
            "status": form.status,
            "residual": form.residual,
            "residual_errors": form.residual_errors,
            "p_value": form.p_value,
            "why": example.why,
        }
        for example, _, form in results
    ]
    from sads.theory import figures

    columns = {
        "network": lambda r: r["network"],
        "proposition": lambda r: f"{r['proposition']}: {r['formula']}",
        "status": lambda r: r["status"],
        "residual": lambda r: f"{r['residual']:.1%}",
        "in errors": lambda r: f"{r['residual_errors']:.2f}",
        "p": lambda r: f"{r['p_value']:.4f}",
        "because": lambda r: r["why"],
    }
    picture = figures.plot_propositions(results)
    summary = {"networks": networks, "seed": seed, "directions": rows}
    _finish(out, "propositions", picture, summary, as_json, columns)


def source_name(source: str) -> str:
    return Path(source.rpartition(":")[0] or source).stem


@app.command(
    epilog="**Examples**\n\n- `sads theory markov`\n\n- `sads theory markov --angle 60 --ratio 0.5`"
)
def markov(
    angle: Annotated[float, typer.Option(help="Of the preferred direction, degrees.")] = 30.0,
    ratio: Annotated[float, typer.Option(help="Of the singular values of Phi.")] = 0.25,
    networks: Networks = 4096,
    threshold: Annotated[
        float | None, typer.Option(help="eta of Equation 4; else 1.5 times the RMS score.")
    ] = None,
    seed: Seed = 0,
    out: Out = Path("out/markov"),
    as_json: AsJson = False,
) -> None:
    """Figure 5 and Equation 4: log-densities of untrained networks on the plane.

    Directions come from the estimated geometry; other networks than those it was estimated from
    show how often the log-density changes steeply along each.
    """
    from sads.theory import figures
    from sads.theory.landscape import draw_landscapes

    check_folder(out)
    family = landscape_family(angle, ratio)
    geometry = sads.estimate_geometry(family, networks, seed=seed, estimator="outer-product")
    directions = geometry.directions()
    fresh = draw_landscapes(family, 1000, seed + 1)
    point, distances = torch.zeros(2), torch.linspace(0, 1.5, 61)
    angles = torch.linspace(0, 180, 181, dtype=torch.float64)
    turn = torch.deg2rad(angles)
    around = torch.stack([turn.cos(), turn.sin()], dim=1)  # (181, 2)
    if threshold is None:
        threshold = 1.5 * math.sqrt(float(geometry.matrix().diagonal().mean()))
    bound = markov_bound(geometry, around, threshold)
    with torch.no_grad():
        scores = torch.cat([n(point[None], torch.zeros(1)) for n in fresh]).double()  # (1000, 2)
        profiles = torch.stack(
            [
                torch.stack([_profile(n, point, v.flatten().float(), distances) for n in fresh])
                for v in directions.vectors
            ]
        )  # (2, networks, distances)
    observed = (scores @ around.T).abs().ge(bound.threshold).double().mean(dim=0)
    picture = figures.plot_markov(
        *_find_ridge(fresh), directions, profiles, distances, angles, observed, bound
    )
    both = markov_bound(geometry, directions.vectors, bound.threshold)
    seen = (scores @ directions.vectors.reshape(2, 2).T).abs().ge(bound.threshold)
    seen = seen.double().mean(dim=0)
    summary = {
        "threshold": bound.threshold,
        "networks": networks,
        "seed": seed,
        "directions": [
            {
                "direction": name,
                "angle": float(torch.rad2deg(torch.atan2(v[1], v[0]))) % 180,
                "energy": float(both.energies[i]),
                "energy_error": float(both.energy_errors[i]),
                "bound": float(both.bounds[i]),
                "observed": float(seen[i]),
            }
            for i, (name, v) in enumerate(
                zip(("v_perp", "v_par"), directions.vectors.reshape(2, 2), strict=True)
            )
        ],
        "largest_observed_over_bound": float((observed / bound.bounds).max()),
    }
    columns = {
        "direction": lambda r: r["direction"],
        "angle": lambda r: f"{r['angle']:.1f}°",
        "v^T G v": lambda r: f"{r['energy']:.3g} ± {r['energy_error']:.1g}",
        "bound": lambda r: f"{r['bound']:.3g}",
        "observed": lambda r: f"{r['observed']:.3g}",
    }
    _finish(out, "markov", picture, summary, as_json, columns)


def _find_ridge(networks: list[Landscape]) -> tuple[Landscape, Tensor]:
    """The first landscape with a summit near the origin, a place on its "manifold"."""
    side = torch.linspace(-1.5, 1.5, 61)
    grid = torch.cartesian_prod(side, side)
    for network in networks:
        with torch.no_grad():
            summit = grid[network.log_density(grid).argmax()]
        if float(summit.abs().max()) < 1.4:  # inside the square, not on its edge
            return network, summit
    return networks[0], torch.zeros(2)


def _profile(network: Landscape, point: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    path = network.log_density(point + distances[:, None] * v)
    return (path - path[0]).abs()


@app.command(
    epilog="**Examples**\n\n- `sads theory symmetry`\n\n"
    "- `sads theory symmetry --shape 1x32x32 -o depth=2 --networks 64`"
)
def symmetry(
    shape: Shape = None,
    networks: Networks = 64,
    level: Annotated[int, typer.Option(help="Noise level, counted from 0.")] = 500,
    option: Options = None,
    seed: Seed = 0,
    out: Out = Path("out/symmetry"),
    as_json: AsJson = False,
) -> None:
    """Figure 3: responses of a U-Net with symmetric kernels to a centred impulse."""
    from sads.theory import figures

    check_folder(out)
    responses = {
        name: impulse_response(
            read_family("iddpm", shape, [*(option or []), f"resample={name}"], "epsilon", "linear"),
            networks, level=level, seed=seed,
        )
        for name in ("nearest", "area")
    }  # fmt: skip
    rows = []
    for name, result in responses.items():
        for flip, values in result.asymmetry.items():
            error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
            rows.append(
                {"resampling": name, "flip": flip, "mean": float(values.mean()), "error": error}
            )
    columns = {
        "resampling": lambda r: r["resampling"],
        "symmetry": lambda r: r["flip"],
        "energy of the odd part": lambda r: f"{r['mean']:.3g} ± {r['error']:.1g}",
    }
    summary = {"networks": networks, "level": level, "seed": seed, "directions": rows}
    _finish(out, "symmetry", figures.plot_symmetry(responses), summary, as_json, columns)


@app.command(
    epilog="**Examples**\n\n- `sads theory adaptive` (a digit of scikit-learn's)\n\n"
    "- `sads theory adaptive iddpm --image mnist_10k.npz:7 --shape 1x28x28`"
)
def adaptive(
    family: Annotated[
        str, typer.Argument(help="A name from `sads families`, or FILE.py:FUNCTION.")
    ] = "iddpm",
    image: Annotated[
        str | None, typer.Option(help="IMAGES[:INDEX], resized; else a digit of scikit-learn's.")
    ] = None,
    shape: Shape = None,
    networks: Networks = 2048,
    option: Options = None,
    seed: Seed = 0,
    out: Out = Path("out/adaptive"),
    as_json: AsJson = False,
) -> None:
    """Figure 9: the geometry along the forward process from one image."""
    from sads.theory import figures

    check_folder(out)
    score_family = read_family(family, shape, option or [], "epsilon", "linear")
    images, name = read_data(image, score_family.shape, resize=True)
    picture_of = images[0]
    with progress_bar("networks", "error {:.1%}", quiet=as_json) as progress:
        geometry = sads.estimate_geometry(
            score_family, networks, seed=seed, progress=progress,
            probe=sads.probe("forward", images=picture_of[None]),
        )  # fmt: skip
    directions = geometry.directions()
    along = unit(picture_of)
    first = directions.avoided(min(12, geometry.dimension)).flatten(1)
    energy = geometry.energy(along)
    summary = {
        "image": name,
        "networks": geometry.num_networks,
        "eigenvalues": directions.values[:12].tolist(),
        "eigenvalue_errors": directions.value_errors[:12].tolist(),
        "trace": float(directions.values.sum()),
        "energy_along_image": {"value": energy.value, "error": energy.error},
        "image_energy_in_first_12": float((first @ along).square().sum()),
    }
    if not as_json:
        print_rows(
            {
                "networks": f"{geometry.num_networks:,}",
                "first eigenvalues": ", ".join(f"{v:.4g}" for v in directions.values[:4].tolist()),
                "trace": f"{summary['trace']:.4g}",
                "v^T G v along the image": f"{energy.value:.4g} ± {energy.error:.1g}",
                "of the image in the first 12": f"{summary['image_energy_in_first_12']:.1%}",
            }
        )
    _finish(
        out, "adaptive", figures.plot_adaptive(picture_of, geometry, directions), summary, as_json
    )


@app.command(
    epilog="**Examples**\n\n- `sads theory predict iddpm --shape 1x16x16`\n\n"
    "- `sads theory predict dit -o patch_size=4`"
)
def predict(
    geometry: Source = "iddpm",
    shape: Shape = None,
    networks: Networks = 2048,
    option: Options = None,
    seed: Seed = 0,
    out: Out = Path("out/predict"),
    as_json: AsJson = False,
) -> None:
    """Figure 2 before training: `v^T G v` for every vector of the five bases."""
    from sads.theory import figures
    from sads.theory import predict as predict_bases
    from sads.theory.predict import claims

    check_folder(out)
    result = read_geometry(geometry, shape, option, networks, seed, as_json)
    predictions = predict_bases(result)
    rows = [{"basis": name, **row} for name, row in claims(predictions).items()]

    def pair(row: dict[str, Any], first: str, second: str) -> str:
        if first not in row:
            return ""
        return " / ".join(f"{row[k]:.3g} ± {row[f'{k} error']:.1g}" for k in (first, second))

    columns = {
        "basis": lambda r: r["basis"],
        "easiest": lambda r: f"{r['easiest']:.3g}",
        "median": lambda r: f"{r['median']:.3g}",
        "hardest": lambda r: f"{r['hardest']:.3g}",
        "low / high frequencies": lambda r: pair(r, "low frequencies", "high frequencies"),
        "border / inside": lambda r: pair(r, "border", "inside"),
    }
    summary = {
        "mean_energy": next(iter(predictions.values())).mean_energy,
        "directions": rows,
        "energies": {name: p.energies.tolist() for name, p in predictions.items()},
        "energy_errors": {name: p.energy_errors.tolist() for name, p in predictions.items()},
    }
    picture = figures.plot_predictions(result, predictions)
    _finish(out, "predict", picture, summary, as_json, columns)


def read_data(
    text: str | None, shape: tuple[int, ...], *, resize: bool = False
) -> tuple[Tensor, str]:
    """Images (N, *shape) and their name; scikit-learn's digits, resized, if none are given."""

    if len(shape) != 3:
        raise InvalidArgumentError(
            f"images have channels, height and width, the networks take {format_shape(shape)}: "
            "give --shape CxHxW"
        )
    if text is None:
        return read_images("digits", shape), "digits"
    images = read_images(text, shape if resize else None)
    given = tuple(images.shape[1:])
    if given != shape:
        raise InvalidArgumentError(
            f"the images are {format_shape(given)}, the networks {format_shape(shape)}: "
            f"give --shape {format_shape(given)}"
        )
    return images, Path(text.partition(":")[0]).stem


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text!r} is not a list of numbers; write 1,0.5,0.25 or the like"
        ) from error


def _spread_steps(last: int) -> list[int]:
    """0 and about 60 steps up to the last, evenly spread on a logarithmic scale."""
    if last < 1:
        raise InvalidArgumentError(f"give at least 1 step, got {last}")
    return sorted({0, *(round(last ** (k / 60)) for k in range(61))})


def _finish(
    out: Path,
    name: str,
    picture: Any,
    summary: dict[str, Any],
    as_json: bool,
    columns: dict[str, Any] | None = None,
) -> None:
    """Write the picture and the JSON; print a table of `summary["directions"]`, or the JSON."""
    from sads import plots

    files = {"picture": str(plots.save(picture, out / f"{name}.png"))}
    files["json"] = str(out / f"{name}.json")
    summary = {**summary, "files": files}
    write_json(out / f"{name}.json", summary)
    if as_json:
        print(to_json(summary))
        return
    if columns:
        table = Table(box=None, header_style="bold")
        for title in columns:
            table.add_column(title)
        for row in summary["directions"]:
            table.add_row(*(show(row) for show in columns.values()))
        console.print(table)
    for path in files.values():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
