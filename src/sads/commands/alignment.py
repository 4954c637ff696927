"""`sads align`: how data lie in a geometry, and the rotation that suits the network better."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import sads
from sads.commands.printing import (
    AsJson,
    command_line,
    console,
    messages,
    print_rows,
    progress_bar,
    working,
)
from sads.commands.reading import format_shape, read_geometry
from sads.data.source import DataSet, read_data
from sads.errors import InvalidArgumentError
from sads.family import ScoreFamily
from sads.files import check_folder, to_json, write_json
from sads.rotations import Kind

app = typer.Typer(rich_markup_mode="markdown")

ALIGN_EXAMPLES = """
**Examples**

- `sads align digits --family iddpm --shape 1x8x8`

- `sads align mnist_10k.npz --geometry out/iddpm-1x28x28/geometry.safetensors`

- `sads align faces/ --family my_model.py:build --shape 3x64x64 --resize --json`

- `sads align digits --family dit --shape 1x8x8 --rotation share:0.5 --out out/half`
"""
TENTHS = ["most avoided tenth", *(f"tenth {i}" for i in range(2, 10)), "most preferred tenth"]


@app.command(epilog=ALIGN_EXAMPLES)
def align(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Images: digits, a file, a folder, hub:NAME; or as in `train`."
        ),
    ],
    family: Annotated[
        str | None, typer.Option(help="A name from `sads families`, or FILE.py:FUNCTION.")
    ] = None,
    geometry: Annotated[
        Path | None, typer.Option(help="A geometry.safetensors, instead of --family.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the data, such as 1x16x16; else the preset's.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", help="Option of the network, KEY=VALUE; repeatable."),
    ] = None,
    networks: Annotated[int, typer.Option(help="Random networks to draw for --family.")] = 1024,
    rotation: Annotated[
        str, typer.Option(help="To save: min, max, identity, random:SEED, share:S, partial:F.")
    ] = "min",
    samples: Annotated[
        int, typer.Option(help="Images to read at most, or samples to draw.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of networks and synthetic data.")] = 0,
    resize: Annotated[
        bool, typer.Option("--resize", help="Resize, crop and recolour images to the shape.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/align"),
    as_json: AsJson = False,
) -> None:
    """Alignment of data with the geometry of a network, before anybody trains it.

    Says where alpha stands between its extremes, in which directions of the network the energy of
    the data lies, and which rotation should train best. Writes `alignment.json`, `alignment.png`
    and `rotation.safetensors`.
    """
    Kind.parse(rotation)  # before any work is done
    if (family is None) == (geometry is None):
        raise InvalidArgumentError("give either --family NAME or --geometry FILE, and not both")
    if geometry is not None and (shape or option):
        raise InvalidArgumentError("--shape and --option go with --family; a geometry has its own")
    check_folder(out)
    result = read_geometry(
        str(family or geometry), shape, option, networks, seed, as_json, file=geometry is not None
    )
    dataset = read_data(data, result.shape, samples, seed, resize=resize)
    if dataset.skipped:
        messages.print(f"note: {dataset.statement}", highlight=False, soft_wrap=True)
    with working("pairing eigenvectors", quiet=as_json):
        both = sads.pair(result, dataset.samples)
        report, spectrum = both.alignment(), both.spectrum()
        chosen = with_source(both.rotation(rotation), dataset.statement)
    from sads import plots  # matplotlib is slow to import

    picture = plots.plot_alignment(result, report, spectrum, both.data_values, Path(data).stem)
    files = {
        "rotation": chosen.save(out / "rotation.safetensors"),
        "picture": plots.save(picture, out / "alignment.png"),
        "json": out / "alignment.json",
    }
    summary = {
        "command": command_line(),
        **vars(report),
        "tenths": [
            {"share": share, "error": error}
            for share, error in zip(
                spectrum.shares.tolist(), spectrum.share_errors.tolist(), strict=True
            )
        ],
        "ranking": ranking(report),
        "rotation": {"kind": rotation, "alpha": chosen.alpha, "error": chosen.alpha_error},
        "data": {"source": data, "statement": dataset.statement, "sha256": both.digest},
        "geometry": dict(result.provenance),
        "files": {name: str(path) for name, path in files.items()},
    }
    write_json(files["json"], summary)
    if as_json:
        print(to_json(summary))
    else:
        print_alignment(report, summary)


def with_source(rotation: sads.Rotation, statement: str) -> sads.Rotation:
    """A rotation whose provenance also says where its data are from, and by which command."""
    data = {**rotation.provenance["data"], "statement": statement}
    provenance = {**rotation.provenance, "data": data, "command": command_line()}
    return replace(rotation, provenance=provenance)


def rotate_for_training(
    kind: str | None,
    family: ScoreFamily,
    dataset: DataSet,
    folder: Path,
    *,
    geometry: Path | None,
    networks: int,
    seed: int,
    quiet: bool,
) -> tuple[sads.Rotation | None, DataSet]:
    """The rotation of a training run, if there is one, and its data rotated.

    `kind` is one of `sads.rotation`'s or the file of one; a run that is continued keeps its own.
    """
    kept = folder / "rotation.safetensors"
    if kept.exists():
        rotation = sads.load_rotation(kept)
        same = same_rotation(kind, kept) if is_file(kind) else kind in (None, rotation.kind)
        if not same:
            raise InvalidArgumentError(
                f"the run in {folder} was started with --rotation {rotation.kind}, not {kind}; "
                "continue it as it was started, or choose another --out"
            )
    elif kind is None:
        return None, dataset
    elif is_file(kind):
        rotation = sads.load_rotation(kind)
    else:
        Kind.parse(kind)
        source = load_or_estimate(geometry, family, networks, seed, quiet)
        with working("pairing eigenvectors", quiet):
            rotation = sads.rotation(source, dataset.samples, kind)
        rotation = with_source(rotation, dataset.statement)
    if rotation.shape != family.shape:
        raise InvalidArgumentError(
            f"the rotation is of {format_shape(rotation.shape)}, the data are "
            f"{format_shape(family.shape)}: give one for that shape"
        )
    x = dataset.samples.contiguous()
    statement = f"{dataset.statement}; rotated ({rotation.kind}), alpha {rotation.alpha:.4g}"
    return rotation, replace(dataset, samples=rotation.apply(x, out=x), statement=statement)


def same_rotation(file: str | None, kept: Path) -> bool:
    return file is not None and torch.equal(
        sads.load_rotation(file).matrix(), sads.load_rotation(kept).matrix()
    )


def is_file(kind: str | None) -> bool:
    return kind is not None and kind.endswith(".safetensors")


def load_or_estimate(
    path: Path | None, family: ScoreFamily, networks: int, seed: int, quiet: bool
) -> sads.Geometry:
    if path is not None:
        return sads.load_geometry(path)
    with progress_bar("networks", "error {:.1%}", quiet) as progress:
        return sads.estimate_geometry(family, networks, seed=seed, progress=progress)


def ranking(report: sads.Alignment) -> list[dict[str, Any]]:
    """Rotations by alpha, the least first: the paper expects that to be the order of quality."""
    alphas = {
        "min": (report.minimum, report.minimum_error),
        "identity": (report.alpha, report.error),
        "random": (report.random, report.random_error),
        "max": (report.maximum, report.maximum_error),
    }
    rows = [{"rotation": k, "alpha": v, "error": error} for k, (v, error) in alphas.items()]
    return sorted(rows, key=lambda row: row["alpha"])


def alignment_rows(report: sads.Alignment) -> dict[str, str]:
    """An alignment as rows of a table."""
    return {
        "samples": f"{report.num_samples:,}",
        "alpha": f"{report.alpha:.4g} ± {report.error:.2g}",
        "  from the data": f"± {report.data_error:.2g}",
        "  from the geometry": f"± {report.geometry_error:.2g}",
        "minimum": f"{report.minimum:.4g} ± {report.minimum_error:.2g}",
        "maximum": f"{report.maximum:.4g} ± {report.maximum_error:.2g}",
        "share": f"{report.share:.3%} ± {report.share_error:.2%}",
    }


def print_alignment(report: sads.Alignment, summary: dict[str, Any]) -> None:
    print_rows({"data": summary["data"]["statement"], **alignment_rows(report)})
    tenths = Table("directions of the network", "energy of the data", box=None)
    for name, row in zip(TENTHS, summary["tenths"], strict=True):
        tenths.add_row(name, f"{row['share']:.2%} ± {row['error']:.2%}")
    order = Table("rotation, best expected first", "alpha", box=None)
    notes = {"identity": " (as it is)", "random": " (mean of all)"}
    for row in summary["ranking"]:
        name = row["rotation"] + notes.get(row["rotation"], "")
        order.add_row(name, f"{row['alpha']:.4g} ± {row['error']:.2g}")
    console.print(tenths, order)
    for path in summary["files"].values():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
