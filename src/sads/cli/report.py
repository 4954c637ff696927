"""`sads report`: results as one page to explore and to send to others."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sads.cli.options import AsJson
from sads.cli.printing import print_line, working
from sads.errors import printable

if TYPE_CHECKING:
    from sads.report.sources import Source

app = typer.Typer(rich_markup_mode="markdown")
REPORT = "report.html"  # what commands call it that write one beside their results

EXAMPLES = """
**Examples**

- `sads report out/iddpm-1x16x16`

- `sads report out/iddpm-1x16x16 out/dit-1x16x16 --out compared.html` (side by side)

- `sads report out/align-digits runs/digits --out digits.html`

- `sads report results/laptop --out claims.html` (the paper's claims)

- `sads report huge.safetensors --directions 200`
"""


@app.command(epilog=EXAMPLES, rich_help_panel="Look at results")
def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="A geometry.safetensors, or the folder of sads geometry, align, rank, train, "
            "evaluate, reproduce or atlas.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write, which must be new.")] = Path(REPORT),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    directions: Annotated[
        int | None,
        typer.Option(help="Directions of a geometry that have pictures; all if not given.", min=3),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Results as one HTML file, which opens in any browser and needs no network.

    Spectra, directions and their certificates to step through, data, training runs, the paper's
    claims; several geometries are compared. Numbers of every chart can be saved as CSV.
    """
    from sads.files import to_json
    from sads.report.build import write_report

    with working("writing the report", quiet=as_json):
        written = write_report(sources, out, title=title, max_directions=directions)
    summary = ReportSummary(written, written.stat().st_size)
    if as_json:
        print(to_json(summary))
    else:
        size = f"{summary.size / 1e6:.1f} MB"
        print_line(f"wrote {printable(written)} ({size}): open it in a browser")


@dataclass(frozen=True)
class ReportSummary:
    """A report that was written."""

    report: Path
    size: int  # bytes


def add_report(
    folder: Path, quiet: bool = False, *, name: str = REPORT, source: "Source | None" = None
) -> Path:
    """Write the report of a command's folder beside its results, in the place of an earlier one.

    Args:
        source: what it is about, if that is not what the folder holds.
    """
    from sads.report.build import renew_report

    with working("writing the report", quiet):
        return renew_report(source or folder, folder / name)
