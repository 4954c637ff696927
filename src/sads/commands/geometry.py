"""`sads families` and `sads geometry`."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import sads
from sads.commands.printing import AsJson, console, messages, print_rows, progress_bar
from sads.commands.reading import format_shape, read_family, read_probe
from sads.directions import EQUAL
from sads.family import PRESETS
from sads.files import check_folder, to_json, write_json

app = typer.Typer(rich_markup_mode="markdown")

GEOMETRY_EXAMPLES = """
**Examples**

- `sads geometry iddpm --shape 1x16x16`

- `sads geometry dit --shape 1x16x16 -o patch_size=4 --out dit4`

- `sads geometry iddpm --shape 1x16x16 -o resample=area --tolerance 0.05`

- `sads geometry iddpm --shape 1x28x28 --probe forward:mnist_10k.npz --networks 2000`

- `sads geometry my_model.py:build --shape 3x64x64 --json`
"""


@app.command(epilog="**Example**: `sads families --json`")
def families(
    as_json: AsJson = False,
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
    as_json: AsJson = False,
) -> None:
    """The average geometry of untrained networks, its directions, and how sure they are.

    Writes `geometry.safetensors`, `geometry.json`, `spectrum.png` and `directions.png`.
    Ctrl-C keeps what was computed.
    """
    score_family = read_family(family, shape, option or [], prediction, schedule)
    folder = out or Path("out") / f"{_stem(family)}-{format_shape(score_family.shape)}"
    check_folder(folder)
    with (
        progress_bar("networks", "error {:.1%}", quiet=as_json) as progress,
        warnings.catch_warnings(),
    ):
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
    print_rows(rows, list(summary["files"].values()))
    for note in result.provenance["notes"]:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def _stem(family: str) -> str:
    return Path(family.rpartition(":")[0] or family).stem


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _with_error(estimate: dict[str, float]) -> str:
    if estimate["error"] == 0:
        return f"{estimate['value']:.6g}"
    return f"{estimate['value']:.4g} ± {estimate['error']:.2g}"
