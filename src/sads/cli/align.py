"""`sads align`: how data lie in a geometry, and the rotation that suits the network better."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given_options import refuse_given
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
    print_summary,
    print_table,
    print_written,
    working,
)
from sads.cli.reading import OF_A_FILE, announce, estimate, read_dataset, read_family
from sads.cli.report import REPORT, add_report
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate, format_error
from sads.tables import Row, titled

if TYPE_CHECKING:
    from sads.data.spec import DataSet
    from sads.rotations.alignment import Alignment, Pairing
    from sads.rotations.kinds import Kind
    from sads.rotations.rotation import Rotation

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
    from sads.files import write_json
    from sads.rotations.kinds import Kind

    kind = Kind.parse(rotation)  # before any work is done
    if (family is None) == (geometry is None):
        raise InvalidArgumentError("give either --family NAME or --geometry FILE, and not both")
    if geometry is not None:
        refuse_given(OF_A_FILE, "shape", "option", "networks")
    folder = new_folder(out, f"align-{Path(data).stem or 'data'}", FILES)
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
        summarise = measured_summary if result.matrix_free else whole_summary
        summary = summarise(both, kind, dataset, data, folder)
    if report:
        summary.files["report"] = folder / REPORT
    write_json(summary.files["json"], summary)
    finish(folder)
    if report:
        add_report(folder, quiet=as_json)
    if as_json:
        announce(dataset)
    print_summary(summary, print_alignment, as_json)


def whole_summary(
    both: "Pairing", kind: "Kind", dataset: "DataSet", source: str, folder: Path
) -> "AlignmentSummary":
    """All that is known with the matrix of a geometry; writes the rotation and the pictures."""
    from sads.plots.alignment import plot_alignment
    from sads.plots.style import save
    from sads.rotations.alignment_file import Portrait

    name = Path(source).stem or "data"
    chosen = both.rotation(kind).with_source(dataset.statement, command_line())
    portrait = Portrait.of(both, name, chosen.kind)
    found, spectrum = portrait.alignment, portrait.spectrum
    picture = plot_alignment(both.geometry, found, spectrum, both.data_values, name)
    return AlignmentSummary.of(
        both,
        chosen,
        found,
        dataset,
        source,
        note=found.note,
        tenths=tuple(spectrum.shares),
        files={
            "rotation": chosen.save(folder / "rotation.safetensors"),
            "picture": save(picture, folder / "alignment.png"),
            "portrait": portrait.save(folder / "alignment.safetensors"),
            "json": folder / "alignment.json",
        },
    )


def measured_summary(
    both: "Pairing", kind: "Kind", dataset: "DataSet", source: str, folder: Path
) -> "AlignmentSummary":
    """What is known with a geometry without a matrix: alpha of the data as they are."""
    from sads.rotations.kinds import Kind

    files = {"json": folder / "alignment.json"}
    note = None
    chosen = both.rotation(Kind("identity") if kind.name == "min" else kind)
    if kind.name == "identity":
        chosen = chosen.with_source(dataset.statement, command_line())
        files["rotation"] = chosen.save(folder / "rotation.safetensors")
    else:
        note = (
            "the geometry is kept without a matrix: rotations that need all its directions are "
            "not known, and none is written"
        )
    found = both.alignment()
    return AlignmentSummary.of(both, chosen, found, dataset, source, note=note, files=files)


@dataclass(frozen=True)
class Expected(Row):
    """A rotation with its alpha; the paper expects the least to train best."""

    rotation: str = titled("rotation, best expected first")
    alpha: Estimate = titled("alpha")


@dataclass(frozen=True)
class Tenth(Row):
    """The share of the data's energy in a tenth of the network's directions."""

    directions: str = titled("directions of the network")
    energy: str = titled("energy of the data")


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

    @classmethod
    def of(
        cls,
        both: "Pairing",
        chosen: "Rotation",
        found: "Alignment",
        dataset: "DataSet",
        source: str,
        *,
        note: str | None,
        files: dict[str, Path],
        tenths: tuple[Estimate, ...] = (),
    ) -> "AlignmentSummary":
        return cls(
            command=command_line(),
            alignment=found,
            note=note,
            tenths=tenths,
            ranking=ranking(found),
            rotation={"kind": chosen.kind, "alpha": chosen.alpha},
            data={"source": source, "statement": dataset.statement, "sha256": both.digest},
            geometry=both.geometry.provenance,
            files=files,
        )


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


def print_alignment(summary: AlignmentSummary) -> None:
    print_rows({"data": summary.data["statement"], **summary.alignment.describe()})
    if summary.note is not None:
        print_note(summary.note)
    if summary.tenths:
        print_table(
            [
                Tenth(name, f"{share.value:.2%} ± {format_error(share.error, '.2%')}")
                for name, share in zip(TENTHS, summary.tenths, strict=True)
            ]
        )
    print_table(summary.ranking)
    print_written(*summary.files.values())
