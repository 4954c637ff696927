"""`sads theory ...`: the statements of the paper as commands. Parsing and printing only."""

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
from sads.theory import Example, examples
from sads.theory.reports import (
    report_adaptive,
    report_markov,
    report_symmetry,
    report_theorem1,
)

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
    report = report_theorem1(
        _numbers(eigenvalues), sigma=sigma, learning_rate=learning_rate, steps=steps,
        num_runs=runs, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    columns = {
        "v": lambda r: f"u_{r['direction']}",
        "lambda": lambda r: f"{r['eigenvalue']:g}",
        "rate rho": lambda r: f"{r['rate']:.4g}",
        "tr Cov of gradient": lambda r: f"{r['gradient_covariance_trace']:.4g}",
        "plateau": lambda r: f"{r['plateau']:.4g}",
        "simulated": lambda r: f"{r['simulated']:.4g} ± {r['simulated_error']:.1g}",
        "largest |z|": lambda r: f"{r['largest_deviation_in_errors']:.2f}",
    }
    _finish(out, "theorem1", report.picture(), report.summary(), as_json, columns)


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
    check_folder(out)
    report = report_markov(networks, angle=angle, ratio=ratio, threshold=threshold, seed=seed)
    columns = {
        "direction": lambda r: r["direction"],
        "angle": lambda r: f"{r['angle']:.1f}°",
        "v^T G v": lambda r: f"{r['energy']:.3g} ± {r['energy_error']:.1g}",
        "bound": lambda r: f"{r['bound']:.3g}",
        "observed": lambda r: f"{r['observed']:.3g}",
    }
    _finish(out, "markov", report.picture(), report.summary(), as_json, columns)


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
    check_folder(out)
    families = {
        name: read_family(
            "iddpm", shape, [*(option or []), f"resample={name}"], "epsilon", "linear"
        )
        for name in ("nearest", "area")
    }
    report = report_symmetry(families, networks, level, seed)
    columns = {
        "resampling": lambda r: r["resampling"],
        "symmetry": lambda r: r["flip"],
        "energy of the odd part": lambda r: f"{r['mean']:.3g} ± {r['error']:.1g}",
    }
    _finish(out, "symmetry", report.picture(), report.summary(), as_json, columns)


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
    check_folder(out)
    score_family = read_family(family, shape, option or [], "epsilon", "linear")
    images, name = read_data(image, score_family.shape, resize=True)
    with progress_bar("networks", "error {:.1%}", quiet=as_json) as progress:
        report = report_adaptive(
            score_family, images[0], name, networks, seed=seed, progress=progress
        )
    summary = report.summary()
    energy = summary["energy_along_image"]
    if not as_json:
        print_rows(
            {
                "networks": f"{summary['networks']:,}",
                "first eigenvalues": ", ".join(f"{v:.4g}" for v in summary["eigenvalues"][:4]),
                "trace": f"{summary['trace']:.4g}",
                "v^T G v along the image": f"{energy['value']:.4g} ± {energy['error']:.1g}",
                "of the image in the first 12": f"{summary['image_energy_in_first_12']:.1%}",
            }
        )
    _finish(out, "adaptive", report.picture(), summary, as_json)


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
