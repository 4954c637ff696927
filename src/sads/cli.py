"""The command line: parsing and printing only."""

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import sads
from sads.diffusion_cli import app as diffusion_app
from sads.directions import EQUAL
from sads.errors import InvalidArgumentError, SadsError
from sads.family import PRESETS, ScoreFamily
from sads.files import check_folder, to_json, write_json
from sads.geometry.estimate import Progress as ProgressCallback
from sads.probe import Probe
from sads.theory_cli import app as theory_app

app = typer.Typer(
    name="sads",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Score Anisotropy Directions: which directions an untrained diffusion model prefers.",
    epilog="Start with `sads geometry iddpm --shape 1x16x16`.",
)
app.add_typer(theory_app)
app.add_typer(diffusion_app)
# The base of all usage errors; typer carries a click of its own, so it is reached from here.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
console = Console()
messages = Console(stderr=True)

GEOMETRY_EXAMPLES = """
**Examples**

- `sads geometry iddpm --shape 1x16x16`

- `sads geometry dit --shape 1x16x16 -o patch_size=4 --out dit4`

- `sads geometry iddpm --shape 1x16x16 -o resample=area --tolerance 0.05`

- `sads geometry iddpm --shape 1x28x28 --probe forward:mnist_10k.npz --networks 2000`

- `sads geometry my_model.py:build --shape 3x64x64 --json`
"""


def _version(show: bool) -> None:
    if show:
        console.print(f"sads {sads.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command(epilog="**Example**: `sads families --json`")
def families(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the families of networks that sads knows, with the presets of the paper's Table 1."""
    rows: list[dict[str, Any]] = []
    for preset in PRESETS:
        family = sads.family(preset.name, preset.shape, **preset.options)
        rows.append(
            {
                "family": preset.name,
                "shape": format_shape(preset.shape),
                "parameters": sum(p.numel() for p in family.build().parameters()),
                "options": dict(preset.options),
                "training": dict(preset.training),
                "source": preset.source,
            }
        )
    if as_json:
        print(to_json(rows))
        return
    table = Table(box=None, header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="right" if name == "parameters" else "left")
    for row in rows:
        options = ", ".join(f"{k}={_plain(v)}" for k, v in row["options"].items())
        training = "{iterations:,} x {batch_size:,} at {learning_rate:g}".format(**row["training"])
        table.add_row(
            row["family"], row["shape"], f"{row['parameters']:,}", options, training, row["source"]
        )
    console.print(table)
    console.print(
        "\nAny shape and option may be given: sads geometry iddpm --shape 1x32x32 -o depth=2\n"
        "Your own network: sads geometry my_model.py:build --shape 3x64x64",
        highlight=False,
    )


@app.command(epilog=GEOMETRY_EXAMPLES)
def geometry(
    family: Annotated[
        str,
        typer.Argument(help="A name from `sads families`, or FILE.py:FUNCTION that builds one."),
    ],
    shape: Annotated[
        str | None, typer.Option(help="Shape of the data, such as 1x16x16; else the preset's.")
    ] = None,
    networks: Annotated[
        int | None, typer.Option(help="Random networks to draw (1024 if no --tolerance).")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Draw until directions are sure to this angle (radians).")
    ] = None,
    max_networks: Annotated[int, typer.Option(help="Budget of --tolerance.")] = 16_384,
    probe: Annotated[
        str,
        typer.Option(help="zero, gaussian[:WIDTH], or forward:IMAGES[:INDEX]."),
    ] = "zero",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    estimator: Annotated[
        str, typer.Option(help="auto, outer-product, or monte-carlo (the paper's loop).")
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", help="Option of the network, KEY=VALUE; repeatable."),
    ] = None,
    prediction: Annotated[
        str, typer.Option(help="What networks predict: epsilon, score, x0 or v.")
    ] = "epsilon",
    schedule: Annotated[str, typer.Option(help="Noise schedule: linear or cosine.")] = "linear",
    readout: Annotated[
        str | None, typer.Option(help="Name of the output layer; found by itself if not given.")
    ] = None,
    zero_readout: Annotated[
        str, typer.Option(help="For an output layer that starts at zero: error or default.")
    ] = "error",
    device: Annotated[str, typer.Option(help="Where networks run: cpu, cuda, mps.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; else out/FAMILY-SHAPE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The average geometry of untrained networks, its directions, and how sure they are.

    Writes `geometry.safetensors`, `geometry.json`, `spectrum.png` and `directions.png`.
    Ctrl-C keeps what was computed.
    """
    score_family = read_family(family, shape, option or [], prediction, schedule)
    folder = out or Path("out") / f"{_stem(family)}-{format_shape(score_family.shape)}"
    check_folder(folder)
    with progress_bar("networks", quiet=as_json) as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="interrupted")
        result = sads.estimate_geometry(
            score_family,
            networks,
            tolerance,
            probe=read_probe(probe),
            seed=seed,
            estimator=estimator,
            readout=readout,
            zero_readout=zero_readout,
            max_networks=max_networks,
            device=device,
            progress=progress,
        )
    summary = write_geometry(result, folder)
    if as_json:
        print(to_json(summary))
    else:
        print_geometry(result, summary)
    if result.provenance["interrupted"]:
        messages.print(f"interrupted: kept the {result.num_networks:,} networks drawn so far")
        raise typer.Exit(130)


def write_geometry(result: sads.Geometry, folder: Path) -> dict[str, Any]:
    """Write a geometry with its pictures; returns the summary that is written as JSON."""
    from sads import plots  # matplotlib is slow to import

    directions = result.directions()
    values, errors = directions.values, directions.value_errors
    positive = int((values > EQUAL * values[0]).sum())
    shares = values[:positive] / values.sum()
    files = {
        "geometry": result.save(folder / "geometry.safetensors"),
        "spectrum": plots.save(plots.plot_spectrum(result, directions), folder / "spectrum.png"),
        "directions": plots.save(
            plots.plot_directions(result, directions), folder / "directions.png"
        ),
    }
    summary = {
        "dimension": result.dimension,
        "networks": result.num_networks,
        "exact": result.exact,
        "estimator": result.estimator,
        "seconds": round(result.provenance["seconds"], 3),
        "largest": {"value": float(values[0]), "error": float(errors[0])},
        "smallest": {"value": float(values[-1]), "error": float(errors[-1])},
        "rank": positive,
        "condition_number": float(values[0] / values[-1]) if positive == len(values) else None,
        "effective_rank": float(torch.exp(-(shares * shares.log()).sum())),
        "whitened_error": result.whitened_error(),
        "tolerance": directions.tolerance,
        "resolved": int(directions.resolved.sum()),
        "clusters": [vars(cluster) for cluster in directions.clusters],
        "values": values.tolist(),
        "value_errors": errors.tolist(),
        "angle_errors": directions.angle_errors.tolist(),
        "provenance": dict(result.provenance),
        "files": {name: str(path) for name, path in files.items()},
    }
    write_json(folder / "geometry.json", summary)
    return summary


def print_geometry(result: sads.Geometry, summary: dict[str, Any]) -> None:
    condition = summary["condition_number"]
    clusters = summary["clusters"]
    kinds = {k: sum(c["reason"] == k for c in clusters) for k in ("multiplicity", "equal")}
    kinds["unresolved"] = len(clusters) - sum(kinds.values())
    rows = {
        "dimension": f"{summary['dimension']:,}",
        "networks": "none needed: exact" if result.exact else f"{summary['networks']:,}",
        "seconds": f"{summary['seconds']:.2f}",
        "estimator": summary["estimator"],
        "largest eigenvalue": _with_error(summary["largest"]),
        "smallest eigenvalue": _with_error(summary["smallest"]),
        "condition number": "infinite: rank " + str(summary["rank"])
        if condition is None
        else f"{condition:,.0f}",
        "effective rank": f"{summary['effective_rank']:.1f}",
        "whitened error": f"{summary['whitened_error']:.2%}",
        "resolved directions": f"{summary['resolved']} of {summary['dimension']} "
        f"(to {summary['tolerance']:g} rad)",
        "clusters": ", ".join(f"{n} {k}" for k, n in kinds.items() if n) or "none",
    }
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for note in result.provenance["notes"]:
        console.print(f"note: {note}", highlight=False)
    for path in summary["files"].values():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def read_family(
    name: str, shape: str | None, options: list[str], prediction: str, schedule: str
) -> ScoreFamily:
    overrides = dict(read_option(text) for text in options)
    sizes = None if shape is None else read_shape(shape)
    return sads.family(
        read_factory(name) if ":" in name else name,
        sizes,
        prediction=prediction,
        schedule=schedule,
        **overrides,
    )


def read_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise InvalidArgumentError(f"{text!r} is not a shape; write sizes such as 1x16x16")
    return shape


def read_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise InvalidArgumentError(f"{text!r} is not an option; write KEY=VALUE, e.g. depth=2")
    try:
        parsed = json.loads(f"[{value}]" if "," in value and "[" not in value else value)
    except json.JSONDecodeError:
        parsed = value
    return key, tuple(parsed) if isinstance(parsed, list) else parsed


def read_probe(text: str) -> Probe:
    kind, _, argument = text.partition(":")
    if kind == "gaussian":
        try:
            return sads.probe("gaussian", width=float(argument) if argument else None)
        except ValueError as error:
            if isinstance(error, SadsError):
                raise
            raise InvalidArgumentError(
                f"{argument!r} is not a width; write gaussian:0.5 or the like"
            ) from error
    if kind == "forward":
        return sads.probe("forward", images=read_images(argument))
    return sads.probe(kind)


def read_images(text: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """`IMAGES` or `IMAGES:INDEX`, with anything that `load_images` takes; resized to a shape."""
    source, _, last = text.rpartition(":")
    indexed = bool(source) and last.lstrip("-").isdigit()
    fit: dict[str, Any] = {} if shape is None else {"size": shape[1:], "channels": shape[0]}
    result = sads.read_images(source if indexed else text, **fit)
    if result.skipped:
        messages.print(f"note: {result.statement()}", highlight=False, soft_wrap=True)
    if not indexed:
        return result.images
    if not -result.num_read <= int(last) < result.num_read:
        raise InvalidArgumentError(
            f"{source} has {result.num_read:,} images, there is no number {last}: "
            f"give 0 to {result.num_read - 1}"
        )
    return result.images[int(last)][None]


def read_factory(text: str) -> Any:
    """`FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    source, _, name = text.rpartition(":")
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        return getattr(module, name)
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        raise InvalidArgumentError(
            f"cannot load {text!r} ({error}); give FILE.py:FUNCTION, where FUNCTION() returns a "
            "new nn.Module at every call"
        ) from error


def format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _stem(family: str) -> str:
    return Path(family.rpartition(":")[0] or family).stem


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _with_error(estimate: dict[str, float]) -> str:
    if estimate["error"] == 0:
        return f"{estimate['value']:.6g}"
    return f"{estimate['value']:.4g} ± {estimate['error']:.2g}"


@contextmanager
def progress_bar(unit: str, quiet: bool) -> Iterator[ProgressCallback | None]:
    """A bar on the terminal with the count and the current error."""
    if quiet or not messages.is_terminal:
        yield None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + " · error {task.fields[error]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as bar:
        task = bar.add_task(unit, total=None, error="?")

        def update(done: int, total: int, error: float) -> None:
            text = f"{error:.1%}" if np.isfinite(error) else "?"
            bar.update(task, completed=done, total=total, error=text)

        yield update


def main() -> None:
    """Run a command; what a user can mend is one line and status 2, never a traceback."""
    try:
        status = typer.main.get_command(app)(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except SadsError as error:
        messages.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)
    except ClickException as error:
        text = error.format_message()  # type: ignore[attr-defined]
        text = text.replace("\n", " ").rstrip(".")
        messages.print(f"error: {text}; try --help", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        messages.print("interrupted before anything was computed")
        sys.exit(130)


if __name__ == "__main__":
    main()
