"""`sads compare`: what distinguishes geometries, and which differences are more than noise."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given_options import refuse_given
from sads.cli.interrupts import command_line
from sads.cli.options import AsJson, NetworkOptions, Networks, NewFolder, Seed, Shape
from sads.cli.printing import print_line, print_summary, print_table, print_written
from sads.cli.reading import estimate, read_geometry_or_family
from sads.errors import InvalidArgumentError, counted
from sads.estimates import format_error
from sads.tables import Row, distinct, titled

if TYPE_CHECKING:
    from sads.geometry.compare import Comparison, EndAngles, Pair

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads compare iddpm dit --shape 1x16x16`

- `sads compare out/a/geometry.safetensors out/b/geometry.safetensors --json`

- `sads compare iddpm cnn mlp --shape 1x8x8 --networks 512`
"""
MOST_COMPARED = 12
FILES = ("comparison.json", "comparison.png")


@app.command(epilog=EXAMPLES, rich_help_panel="Before training")
def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C...]", help="Geometries (files), or families to estimate them for."
        ),
    ],
    shape: Shape = None,
    option: NetworkOptions = None,
    networks: Networks = 1024,
    directions: Annotated[
        int, typer.Option(help="Directions of each end whose subspaces are compared.", min=1)
    ] = 8,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare geometries of one shape: both ends, spectra, energies against frequency.

    Differences are significant at 5 % after Holm's correction over all questions. Writes
    `comparison.json` and `comparison.png`.
    """
    from sads.files import write_json
    from sads.geometry.compare import check_directions, check_shapes
    from sads.geometry.summary import why_unknown
    from sads.plots.compare import plot_comparison
    from sads.plots.style import save

    if len(sources) < 2:
        raise InvalidArgumentError(f"a comparison takes two or more, got only {sources[0]}")
    if len(sources) > MOST_COMPARED:
        raise InvalidArgumentError(
            f"a comparison takes at most {MOST_COMPARED}, or nobody can see anything in its "
            f"picture, got {len(sources)}: compare fewer at a time"
        )
    if all(map(_is_file, sources)):
        refuse_given(
            "are for families, and only files are compared", "shape", "option", "networks", "seed"
        )
    folder = new_folder(out, "compare", FILES)
    names = distinct(map(_name, sources))
    found = [
        read_geometry_or_family(source, None if _is_file(source) else shape, option)
        for source in sources
    ]
    check_shapes([one.shape for one in found], names)  # before anything is estimated
    for one, name in zip(found, names, strict=True):
        if isinstance(one, sads.Geometry):
            check_directions(one, name)
    geometries = [
        one if isinstance(one, sads.Geometry) else estimate(one, networks, seed, as_json)
        for one in found
    ]
    result = sads.compare(*geometries, names=names, directions=directions)
    summary = ComparisonSummary(
        command=command_line(),
        comparison=result,
        geometries=tuple(geometry.provenance for geometry in geometries),
        errors_unknown={
            name: reason
            for name, geometry in zip(result.names, geometries, strict=True)
            if (reason := why_unknown(geometry)) is not None
        },
        files={
            "json": folder / "comparison.json",
            "picture": save(plot_comparison(result, geometries), folder / "comparison.png"),
        },
    )
    write_json(summary.files["json"], summary)
    finish(folder)
    print_summary(summary, _print, as_json)


@dataclass(frozen=True)
class ComparisonSummary:
    """A comparison in numbers: what `comparison.json` holds."""

    command: str
    comparison: "Comparison"
    geometries: tuple[Any, ...]
    errors_unknown: dict[str, str]  # why errors are infinite (null in JSON), by name
    files: dict[str, Path]


@dataclass(frozen=True)
class PairRow(Row):
    """Two geometries: how alike their ends are, and how many differences are significant."""

    pair: str
    avoided: str = titled("avoided ends: overlap, largest angle")
    preferred: str = titled("preferred ends")
    spectrum: str = titled("spectrum differs")
    frequency: str = titled("energies differ")


def _print(summary: ComparisonSummary) -> None:
    result = summary.comparison
    print_table([_row(pair) for pair in result.pairs])
    ends = [end for pair in result.pairs for end in (pair.avoided, pair.preferred)]
    sizes = sorted({len(end.angles) for end in ends if end.unknown is None})
    known = ""
    if sizes:
        *others, last = sizes
        numbers = "".join(f"{size} or " for size in others) + counted(last, "direction")
        known = f"; ends are subspaces of {numbers}"
    print_line(
        f"{result.significant} of {result.tests} differences are significant at 5 % (Holm){known}; "
        "* more than noise"
    )
    for reason in dict.fromkeys(end.unknown for end in ends if end.unknown is not None):
        print_line(f"unknown: {reason}")
    for name, reason in summary.errors_unknown.items():
        print_line(f"errors of {name} are not known (± ?; of these nothing is claimed): {reason}")
    print_written(*summary.files.values())


def _row(pair: "Pair") -> PairRow:
    def count(what: str) -> str:
        found = [d for d in pair.differences if d.what == what]
        return f"at {sum(d.significant for d in found)} of {len(found)}"

    def end(one: "EndAngles") -> str:
        if one.overlap is None:
            return "unknown"
        star = " *" if one.significant else ""
        return f"{one.overlap:.3f}, {max(one.angles):.2f} ± {format_error(one.noise)} rad{star}"

    return PairRow(
        f"{pair.first}, {pair.second}",
        end(pair.avoided),
        end(pair.preferred),
        count("spectrum"),
        count("frequency"),
    )


def _is_file(source: str) -> bool:
    return source.endswith(".safetensors")


def _name(source: str) -> str:
    path = Path(source)
    if not _is_file(source):
        return source
    return path.parent.name if path.stem == "geometry" and path.parent.name else path.stem
