"""`sads align`: how data lie in a geometry, and the rotation that suits the network better."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given import refuse_given
from sads.cli.interrupts import command_line
from sads.cli.options import (
    AsJson,
    DataArgument,
    Layout,
    NetworkOptions,
    Networks,
    NewFolder,
    Resize,
    Seed,
    Shape,
    ValueRange,
    WithReport,
)
from sads.cli.printing import (
    print_note,
    print_rows,
    print_table,
    print_written,
    working,
)
from sads.cli.reading import OF_A_FILE, announce, estimate, read_dataset, read_family
from sads.cli.report import REPORT, add_report
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate
from sads.tables import Row, column

if TYPE_CHECKING:
    from sads.data.spec import DataSet
    from sads.rotations.alignment import Alignment, Pairing
    from sads.rotations.rotation import Kind, Rotation

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads align digits --family iddpm --shape 1x8x8`

- `sads align mnist_10k.npz --geometry out/iddpm-1x28x28/geometry.safetensors`

- `sads align faces/ --family my_model.py:build --shape 3x64x64 --resize --json`

- `sads align digits --family dit --shape 1x8x8 --rotation share:0.5 --out out/half`
"""
FILES = (
    "alignment.json",
    "alignment.safetensors",
    "alignment.png",
    "rotation.safetensors",
    REPORT,
)
TENTHS = ["most avoided tenth", *(f"tenth {i}" for i in range(2, 10)), "most preferred tenth"]


@app.command(epilog=EXAMPLES, rich_help_panel="Before training")
def align(
    data: DataArgument,
    family: Annotated[
        str | None, typer.Option(help="A name from `sads families`, or FILE.py:FUNCTION.")
    ] = None,
    geometry: Annotated[
        Path | None, typer.Option(help="A geometry.safetensors, instead of --family.")
    ] = None,
    shape: Shape = None,
    option: NetworkOptions = None,
    networks: Networks = 1024,
    rotation: Annotated[
        str, typer.Option(help="To save: min, max, identity, random:SEED, share:S, partial:F.")
    ] = "min",
    samples: Annotated[
        int, typer.Option(help="Images to read at most, or samples to draw.", min=1)
    ] = 10_000,
    seed: Seed = 0,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    out: NewFolder = None,
    report: WithReport = False,
    as_json: AsJson = False,
) -> None:
    """Alignment of data with the geometry of a network, before anybody trains it.

    Says where alpha stands between its extremes, in which directions of the network the energy of
    the data lies, and which rotation should train best. Writes `alignment.json`,
    `alignment.safetensors` (for reports), `alignment.png` and `rotation.safetensors`.
    """
    from sads.files import to_json, write_json
    from sads.plots.alignment import plot_alignment
    from sads.plots.style import save
    from sads.rotations.portrait import Portrait
    from sads.rotations.rotation import Kind

    kind = Kind.parse(rotation)  # before any work is done
    if (family is None) == (geometry is None):
        raise InvalidArgumentError("give either --family NAME or --geometry FILE, and not both")
    if geometry is not None:
        refuse_given(OF_A_FILE, "shape", "option", "networks")
    name = Path(data).stem or "data"
    folder = new_folder(out, f"align-{name}", FILES)
    known = None if geometry is None else sads.load_geometry(geometry)
    networks_of = None if family is None else read_family(family, shape, option)
    data_shape = (known or networks_of).shape  # type: ignore[union-attr]  # one of them is given
    dataset = read_dataset(
        data, data_shape, samples, seed, resize, value_range, layout, announced=True
    )
    if networks_of is not None:
        known = estimate(networks_of, networks, seed, as_json, measure=dataset.samples)
    assert known is not None
    result = known
    with working("pairing eigenvectors", quiet=as_json):
        both = sads.pair(result, dataset.samples)
        if result.matrix_free:
            align_measured(both, kind, dataset, data, folder, as_json)
            return
        chosen = with_source(both.rotation(kind), dataset.statement)
        portrait = Portrait.of(both, name, chosen.kind)
    found, spectrum = portrait.alignment, portrait.spectrum
    picture = plot_alignment(result, found, spectrum, both.data_values, name)
    summary = AlignmentSummary(
        command=command_line(),
        alignment=found,
        note=few_samples_note(found),
        tenths=tuple(spectrum.shares),
        ranking=ranking(found),
        rotation={"kind": chosen.kind, "alpha": chosen.alpha},
        data={"source": data, "statement": dataset.statement, "sha256": both.digest},
        geometry=result.provenance,
        files={
            "rotation": chosen.save(folder / "rotation.safetensors"),
            "picture": save(picture, folder / "alignment.png"),
            "portrait": portrait.save(folder / "alignment.safetensors"),
            "json": folder / "alignment.json",
            **({"report": folder / REPORT} if report else {}),
        },
    )
    write_json(summary.files["json"], summary)
    if report:
        add_report(folder, quiet=as_json)
    finish(folder)
    if as_json:
        announce(dataset)
        print(to_json(summary))
    else:
        print_alignment(summary)


def align_measured(
    both: "Pairing", kind: "Kind", dataset: "DataSet", source: str, folder: Path, as_json: bool
) -> None:
    """What is known with a geometry without a matrix: alpha of the data as they are."""
    from sads.files import to_json, write_json
    from sads.rotations.rotation import Kind

    found = both.alignment()
    files = {"json": folder / "alignment.json"}
    chosen = both.rotation(Kind("identity") if kind.name == "min" else kind)
    if kind.name == "identity":
        chosen = with_source(chosen, dataset.statement)
        files["rotation"] = chosen.save(folder / "rotation.safetensors")
    summary = AlignmentSummary(
        command=command_line(),
        alignment=found,
        note=None
        if kind.name == "identity"
        else "the geometry is kept without a matrix: rotations that need all its directions are "
        "not known, and none is written",
        tenths=(),
        ranking=ranking(found),
        rotation={"kind": chosen.kind, "alpha": chosen.alpha},
        data={"source": source, "statement": dataset.statement, "sha256": both.digest},
        geometry=both.geometry.provenance,
        files=files,
    )
    write_json(summary.files["json"], summary)
    finish(folder)
    if as_json:
        announce(dataset)
        print(to_json(summary))
    else:
        print_alignment(summary)


@dataclass(frozen=True)
class Expected(Row):
    """A rotation with its alpha; the paper expects the least to train best."""

    rotation: str = column("rotation, best expected first")
    alpha: Estimate = column("alpha")


@dataclass(frozen=True)
class Tenth(Row):
    """The share of the data's energy in a tenth of the network's directions."""

    directions: str = column("directions of the network")
    energy: str = column("energy of the data")


@dataclass(frozen=True)
class AlignmentSummary:
    """An alignment in numbers: what `alignment.json` holds."""

    command: str
    alignment: "Alignment"
    note: str | None  # few samples
    tenths: tuple[Estimate, ...]
    ranking: tuple[Expected, ...]
    rotation: dict[str, Any]
    data: dict[str, Any]
    geometry: Any
    files: dict[str, Path]


def with_source(rotation: "Rotation", statement: str) -> "Rotation":
    """A rotation whose provenance also says where its data are from, and by which command."""
    data = replace(rotation.provenance.data, statement=statement)
    provenance = replace(rotation.provenance, data=data, command=command_line())
    return replace(rotation, provenance=provenance)


def ranking(report: "Alignment") -> tuple[Expected, ...]:
    """Rotations by alpha, the least first: the paper expects that to be the order of quality."""
    rows = [
        Expected("min", report.minimum),
        Expected("identity (as it is)", report.alpha),
        Expected("random (mean of all)", report.random),
        Expected("max", report.maximum),
    ]
    known = (row for row in rows if not math.isnan(row.alpha))
    return tuple(sorted(known, key=lambda row: row.alpha))


def few_samples_note(report: "Alignment") -> str | None:
    """One line that says so if the samples are few beside the coordinates."""
    if not report.few_samples:
        return None
    return (
        f"{report.num_samples:,} samples are few for {report.dimension:,} coordinates: the "
        "extremes of alpha are rough, and on new samples a rotation reaches about what it does on "
        "held-out ones; give ten samples for each coordinate if you can"
    )


def print_alignment(summary: AlignmentSummary) -> None:
    print_rows({"data": summary.data["statement"], **summary.alignment.describe()})
    if summary.note is not None:
        print_note(summary.note)
    if summary.tenths:
        print_table(
            [
                Tenth(name, f"{share.value:.2%} ± {share.error:.2%}")
                for name, share in zip(TENTHS, summary.tenths, strict=True)
            ]
        )
    print_table(summary.ranking)
    print_written(*summary.files.values())
