"""`sads geometry`: the average geometry of untrained networks and its directions."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given_options import refuse_given
from sads.cli.interrupts import Interrupted, command_line, raise_if_lost
from sads.cli.options import (
    AsJson,
    Condition,
    Device,
    DropVariance,
    FamilyArgument,
    GuidanceScale,
    Layout,
    NetworkOptions,
    NewFolder,
    Prediction,
    Resize,
    Schedule,
    Seed,
    Shape,
    ValueRange,
    WithReport,
)
from sads.cli.printing import (
    print_line,
    print_note,
    print_rows,
    print_summary,
    print_written,
    progress_bar,
)
from sads.cli.reading import read_dataset, read_family, read_probe
from sads.cli.report import REPORT, add_report
from sads.errors import InterruptedEstimate, InvalidArgumentError, counted
from sads.estimates import Estimate
from sads.shapes import format_shape

if TYPE_CHECKING:
    from sads.families import ScoreFamily
    from sads.geometry.result import Geometry

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads geometry iddpm --shape 1x16x16`

- `sads geometry dit --shape 1x16x16 -o patch_size=4 --out dit4`

- `sads geometry iddpm --shape 1x16x16 -o resample=area --tolerance 0.05`

- `sads geometry iddpm --shape 1x28x28 --probe forward:mnist_10k.npz --networks 2000`

- `sads geometry my_model.py:build --shape 3x64x64 --json`

- `sads geometry diffusers:stable-diffusion-v1-5/unet --networks 64`

- `sads geometry diffusers:DiT-XL-2-256/transformer --drop-variance --condition normal`

- `sads geometry iddpm --shape 3x256x256 --networks 32 --memory 2GB` (without a matrix)

- `sads geometry iddpm --probe my_probe.py:Probe` (a class with a method `draw`)
"""
FILES = ("geometry.safetensors", "geometry.json", "spectrum.png", "directions.png", REPORT)
PARTIAL = "geometry.partial.safetensors"
MEASURED = 10_000  # images at most, as `sads align` reads them


@app.command(epilog=EXAMPLES, rich_help_panel="Before training")
def geometry(
    family: FamilyArgument,
    shape: Shape = None,
    networks: Annotated[
        int | None, typer.Option(help="Random networks to draw; 1024 if no tolerance is given.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Draw until directions are sure to this angle (radians).")
    ] = None,
    max_networks: Annotated[
        int | None, typer.Option(help="Limit for --tolerance; 16,384 if not given.")
    ] = None,
    option: NetworkOptions = None,
    probe: Annotated[
        str, typer.Option(help="zero, gaussian:WIDTH, forward:IMAGES[:INDEX] or FILE.py:CLASS.")
    ] = "zero",
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    prediction: Prediction = None,
    schedule: Schedule = None,
    condition: Condition = None,
    guidance_scale: GuidanceScale = None,
    drop_variance: DropVariance = None,
    seed: Seed = 0,
    estimator: Annotated[
        str, typer.Option(help="auto, outer-product, or monte-carlo (the paper's loop).")
    ] = "auto",
    readout: Annotated[
        str | None, typer.Option(help="Name of the output layer, if it is not found.")
    ] = None,
    zero_readout: Annotated[
        str | None,
        typer.Option(
            help="For an output layer that starts at zero: error, or default for its type's "
            "initialisation, as in the paper; else default for models of diffusers only."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="In which networks are evaluated: float32, bfloat16 or float16.")
    ] = "float32",
    streaming: Annotated[
        bool | None,
        typer.Option(
            help="Draw weights layer by layer, so that no network exists as a whole; else chosen "
            "by its size. The numbers are the same."
        ),
    ] = None,
    matrix_free: Annotated[
        bool | None,
        typer.Option(
            "--matrix-free/--matrix",
            help="Keep no matrix: by itself above 5,000 positions or what --memory allows.",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="For matrices, or features between passes: 2GB.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Data whose alignment a geometry without a matrix should know."),
    ] = None,
    out: NewFolder = None,
    report: WithReport = False,
    as_json: AsJson = False,
) -> None:
    """The average geometry of untrained networks, its directions, and how sure they are.

    A *probe* is the input at which networks are evaluated; a direction is *resolved* if its angle
    is sure to the tolerance, else part of a *cluster*: see docs/glossary.md.

    Writes `geometry.safetensors`, `geometry.json`, `spectrum.png` and `directions.png`.
    Ctrl-C and SIGTERM keep what was computed, marked as interrupted. The same command goes on from
    there, also after it was killed, to the same numbers.
    """
    if max_networks is not None and tolerance is None:
        raise InvalidArgumentError(
            "--max-networks is the limit for --tolerance; give both, or --networks alone"
        )
    if measure is None and not probe.startswith("forward:"):
        refuse_given(
            "how images of --probe forward:IMAGES or --measure are read, and none are given",
            "resize",
            "value_range",
            "layout",
        )
    if measure is not None and matrix_free is False:
        raise InvalidArgumentError(
            "--measure is for a geometry without a matrix, and --matrix keeps one, of which "
            "`sads align` finds the alignment of any data: leave one of them out"
        )
    score_family = read_family(
        family,
        shape,
        option,
        prediction,
        schedule,
        condition=condition,
        guidance_scale=guidance_scale,
        drop_variance=drop_variance,
    )
    chosen_probe = read_probe(probe, score_family.shape, resize, value_range, layout)
    measured = None
    if measure is not None:
        measured = read_dataset(
            measure, score_family.shape, MEASURED, seed, resize, value_range, layout
        ).samples
    folder = new_folder(out, folder_stem(score_family, probe), FILES, partial=PARTIAL)
    try:
        with progress_bar("networks", "error {:.1%}", quiet=as_json) as progress:
            result = sads.estimate_geometry(
                score_family,
                networks,
                tolerance,
                probe=chosen_probe,
                seed=seed,
                estimator=estimator,
                readout=readout,
                zero_readout=zero_readout,
                **({} if max_networks is None else {"max_networks": max_networks}),
                device=device,
                dtype=dtype,
                streaming=streaming,
                matrix_free=matrix_free,
                memory=memory,
                measure=measured,
                checkpoint=folder / PARTIAL,
                progress=progress,
                stage=progress.stage if progress else None,
                forecast=partial(_show_forecast, as_json),
            )
    except InterruptedEstimate as interrupted:
        if interrupted.geometry is None:
            raise
        result = interrupted.geometry
    if measure is not None and not result.matrix_free:
        print_note(
            "this geometry is kept with its matrix, which needs no --measure: sads align finds the "
            "alignment of any data"
        )
    report = report and not result.provenance.interrupted
    summary = write_geometry(result, folder, report)
    if not result.provenance.interrupted:
        finish(folder)
        (folder / PARTIAL).unlink(missing_ok=True)
        if report:
            add_report(folder, quiet=as_json)
    print_summary(summary, partial(print_geometry, result), as_json)
    if result.provenance.interrupted:
        raise Interrupted(
            f"kept the {counted(result.num_networks, 'network')} drawn so far; continue with: "
            f"{command_line()}"
        )


@dataclass(frozen=True)
class GeometrySummary:
    """A geometry in numbers: what `geometry.json` holds."""

    command: str
    dimension: int
    networks: int
    exact: bool
    estimator: str
    seconds: float
    largest: Estimate
    smallest: Estimate
    rank: int
    condition_number: float | None  # None if it is infinite
    effective_rank: float
    whitened_error: float
    errors_unknown: str | None  # why errors are infinite (null in JSON): nobody can know them
    tolerance: float
    settled: bool | None  # to the tolerance that was asked for; None if none was
    resolved: int
    clusters: tuple[Any, ...]
    values: Any
    value_errors: Any
    angle_errors: Any
    provenance: Any
    files: dict[str, Path]


@dataclass(frozen=True)
class EndSummary:
    """One end of a geometry without a matrix in numbers, outermost direction first."""

    bounds: tuple[Estimate, ...]  # of the eigenvalues: at least, or at most
    energies: tuple[Estimate, ...]
    found: Any
    residuals: Any
    copies: int


@dataclass(frozen=True)
class EndsSummary:
    """A geometry without a matrix in numbers: what `geometry.json` then holds."""

    command: str
    matrix_free: bool
    dimension: int
    networks: int
    exact: bool
    estimator: str
    seconds: float
    trace: float
    avoided: EndSummary | None  # None if networks were too few
    preferred: EndSummary | None
    errors_unknown: str | None
    provenance: Any
    files: dict[str, Path]


def _show_forecast(as_json: bool, memory: object) -> None:
    raise_if_lost()  # before the longest part
    if not as_json:
        print_line(str(memory))


def write_ends(result: "Geometry", folder: Path, report: bool) -> EndsSummary:
    """Write a geometry without a matrix, with its pictures."""
    from sads.files import write_json
    from sads.geometry.summary import has_ends
    from sads.plots.ends import plot_ends, plot_known
    from sads.plots.style import save

    def summary_of(side: str) -> EndSummary | None:
        if not has_ends(result):
            return None
        end = result.end(side)
        bounds, energies = tuple(end.bounds), tuple(end.energies)
        return EndSummary(bounds, energies, end.found, end.residuals, end.copies)

    summary = EndsSummary(
        command=command_line(),
        matrix_free=True,
        dimension=result.dimension,
        networks=result.num_networks,
        exact=result.exact,
        estimator=result.estimator,
        seconds=round(result.provenance.seconds, 3),
        trace=result.trace,
        avoided=summary_of("avoided"),
        preferred=summary_of("preferred"),
        errors_unknown=result.errors_unknown,
        provenance=result.provenance,
        files={
            "geometry": result.save(folder / "geometry.safetensors"),
            "spectrum": save(plot_known(result), folder / "spectrum.png"),
            "directions": save(plot_ends(result), folder / "directions.png"),
            "json": folder / "geometry.json",
            **({"report": folder / REPORT} if report else {}),
        },
    )
    write_json(summary.files["json"], summary)
    return summary


def write_geometry(
    result: "Geometry", folder: Path, report: bool = False
) -> GeometrySummary | EndsSummary:
    """Write a geometry with its pictures; returns the summary that is written as JSON.

    Args:
        report: whether there will also be a report.
    """
    if result.matrix_free:
        return write_ends(result, folder, report)
    from sads.files import write_json
    from sads.geometry.loop import is_settled
    from sads.geometry.summary import why_unknown
    from sads.plots.geometry import plot_directions, plot_spectrum
    from sads.plots.style import save

    directions = result.directions()
    summary = GeometrySummary(
        command=command_line(),
        dimension=result.dimension,
        networks=result.num_networks,
        exact=result.exact,
        estimator=result.estimator,
        seconds=round(result.provenance.seconds, 3),
        largest=directions.eigenvalue(0),
        smallest=directions.eigenvalue(-1),
        rank=result.rank,
        condition_number=result.condition_number if result.rank == result.dimension else None,
        effective_rank=result.effective_rank,
        whitened_error=result.whitened_error(),
        errors_unknown=why_unknown(result),
        tolerance=directions.tolerance,
        settled=None if result.provenance.tolerance is None else is_settled(result),
        resolved=int(directions.resolved.sum()),
        clusters=directions.clusters,
        values=directions.values,
        value_errors=directions.value_errors,
        angle_errors=directions.angle_errors,
        provenance=result.provenance,
        files={
            "geometry": result.save(folder / "geometry.safetensors"),
            "spectrum": save(plot_spectrum(result, directions), folder / "spectrum.png"),
            "directions": save(plot_directions(result, directions), folder / "directions.png"),
            "json": folder / "geometry.json",
            **({"report": folder / REPORT} if report else {}),
        },
    )
    write_json(summary.files["json"], summary)
    return summary


def print_geometry(result: "Geometry", summary: GeometrySummary | EndsSummary) -> None:
    from sads.geometry.summary import describe

    print_rows(describe(result))
    if summary.errors_unknown:
        print_line(f"errors are not known (± ?): {summary.errors_unknown}")
    print_written(*summary.files.values())
    for note in result.provenance.notes:
        print_line(f"note: {note}")


def folder_stem(family: "ScoreFamily", probe: str = "zero") -> str:
    """A name for the results of a family: `iddpm-1x16x16`."""
    probed = "" if probe == "zero" else f"-{Path(probe.partition(':')[0]).stem}"
    return f"{family.name or 'network'}-{format_shape(family.shape)}{probed}"
