"""`sads evaluate`: how far samples are from data."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.interrupts import command_line
from sads.cli.options import AsJson, DataArgument, Layout, Resize, Seed, ValueRange
from sads.cli.printing import print_line, print_table, print_written, working
from sads.cli.reading import announce, read_dataset
from sads.errors import DataError, printable
from sads.estimates import Estimate
from sads.shapes import checked_shape
from sads.tables import Row, column
from sads.untrusted import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from sads.metrics.baselines import Distance
    from sads.pipeline import Evaluation

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads evaluate runs/dct17/samples.npz rank-one:dct:17`

- `sads evaluate runs/dct17 rank-one:dct:17 --projections 4096 --ascend`

- `sads evaluate runs/digits digits --json`
"""


@app.command(epilog=EXAMPLES, rich_help_panel="Training")
def evaluate(
    samples: Annotated[Path, typer.Argument(help="A samples.npz, or the folder it is in.")],
    data: DataArgument,
    projections: Annotated[
        int | None, typer.Option(help="Random directions; 64 D as in the paper if not given.")
    ] = None,
    test_samples: Annotated[
        int, typer.Option(help="Fresh samples of the data, or images to read at most.", min=1)
    ] = 10_000,
    seed: Seed = 0,
    ascend: Annotated[
        bool, typer.Option("--ascend", help="Also seek the largest distance by ascent.")
    ] = False,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluate.json; else a new one by the samples.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sliced Wasserstein distances between samples and data: SW2 with its error, and MSW2.

    Synthetic data is drawn afresh, never as it was for training; the line "fresh data" is what a
    perfect model would get. Beside the distances stand those of what needs no training: zeros, the
    mean, a Gaussian with the data's moments. Samples that are no better than the best constant are
    called *diverged* or *not trained*. Writes `evaluate.json` beside the samples.
    """
    from sads.data.spec import fresh_seed
    from sads.environment import versions
    from sads.files import to_json, write_json
    from sads.pipeline import Reference, draw_fresh

    path = samples / "samples.npz" if samples.is_dir() else samples
    y = read_samples(path)
    shape = tuple(y.shape[1:])
    dataset = read_dataset(
        data,
        shape,
        test_samples,
        fresh_seed(seed),
        resize,
        value_range,
        layout,
        announced=True,
    )
    folder = new_folder(out, "evaluation", ["evaluate.json"], beside=path.parent)
    started = time.perf_counter()
    with working("measuring distances", quiet=as_json):
        synthetic = dataset.kind != "images"
        reference = Reference(
            dataset.samples,
            fresh=draw_fresh(data, shape, len(y), seed) if synthetic else None,
            num_projections=projections,
            seed=seed,
            vector=dataset.vector,
            bounded=not synthetic,
        )
        result = reference.evaluate(y, ascend=ascend)
    summary = EvaluationSummary(
        command=command_line(),
        samples={"source": path, "samples": len(y)},
        data={"source": data, "samples": len(dataset.samples), "statement": dataset.statement},
        seed=seed,
        dimension=y[0].numel(),
        evaluation=result,
        state=result.state,
        seconds=round(time.perf_counter() - started, 3),
        versions=versions(),
    )
    written = write_json(folder / "evaluate.json", summary)
    finish(folder)
    if as_json:
        announce(dataset)
        print(to_json(summary))
        return
    print_table(rows_of(result))
    for line in statements_of(result):
        print_line(line)
    print_line(f"against {dataset.statement}")
    print_written(written)


@dataclass(frozen=True)
class EvaluationSummary:
    """An evaluation with what it is about: what `evaluate.json` holds."""

    command: str
    samples: dict[str, Any]
    data: dict[str, Any]
    seed: int
    dimension: int
    evaluation: "Evaluation"
    state: str | None  # of the model: trained, not trained or diverged
    seconds: float
    versions: dict[str, str]


@dataclass(frozen=True)
class DistanceRow(Row):
    """A distance as it is printed."""

    name: str = column("")
    sw2: Estimate | None = column("SW2")
    msw2: float | None = column("MSW2")
    projections: int | None = None
    along: float | None = column("W2 along v", default=None)


def rows_of(evaluation: "Evaluation") -> list[DistanceRow]:
    def row(
        name: str, distance: "Distance | None", along: float | None = None
    ) -> list[DistanceRow]:
        if distance is None:
            return []
        return [DistanceRow(name, distance.sw2, distance.msw2, distance.num_projections, along)]

    rows = row("samples", evaluation.distance, evaluation.along)
    rows += row("samples, closed-form target", evaluation.closed_form)
    if evaluation.ascent_msw2 is not None:
        rows.append(DistanceRow("samples, largest by ascent", None, evaluation.ascent_msw2))
    if (known := evaluation.baselines) is None:
        return rows + row("fresh data (a perfect model)", evaluation.fresh_data)
    along, halves = known.along, known.moments_of == "test data"

    def near(name: str) -> float | None:
        return None if along is None else getattr(along, name)

    real = "real against real, halves of the data" if halves else "fresh data (a perfect model)"
    rows += row(real, known.real, near("real"))
    rows += row("Gaussian with the data's moments", known.gaussian, near("gaussian"))
    rows += row("the data's mean", known.mean, near("mean"))
    return rows + row("zeros", known.zeros, near("zeros"))


STATES = {
    "trained": "trained: the samples are nearer to the data than zeros and the mean",
    "not trained": "not trained: the samples are no nearer to the data than zeros or the mean",
    "diverged": "diverged: the samples are no nearer to the data than zeros or the mean, far out",
}


def statements_of(evaluation: "Evaluation") -> list[str]:
    """What the numbers say of the model, in words."""
    lines = [] if evaluation.state is None else [STATES[evaluation.state]]
    if evaluation.energy is not None and evaluation.data_energy is not None:
        lines.append(
            f"energy E|y|^2/D of the samples {evaluation.energy:.4g}, of the data "
            f"{evaluation.data_energy:.4g}"
        )
    if evaluation.out_of_range is not None:
        lines.append(f"{evaluation.out_of_range:.1%} of all values lie beyond the data's range")
    if evaluation.baselines is not None and evaluation.baselines.moments_of == "test data":
        lines.append("mean and Gaussian are those of the test data, for want of training data")
    return lines


def read_samples(path: Path) -> "Tensor":
    """Samples, (N, *shape) float32: floats of an npz file as they are, anything else as images."""
    from sads.data.arrays import load_images_array

    if path.suffix.lower() != ".npz" or path.is_dir():
        return sads.load_images(path)
    array = load_images_array(path)
    if array.dtype.kind != "f":
        return sads.load_images(path)
    shape = written_shape(path)
    layout = {3: "NHW", 4: "NCHW"}.get(array.ndim) if shape is None else None
    return sads.load_images(path, shape=shape, value_range=(-1, 1), layout=layout)


def written_shape(path: Path) -> tuple[int, ...] | None:
    """The shape of samples as `sads sample` notes it, which tells lines from images."""
    described = path.with_suffix(".json")
    if not described.is_file():
        return None
    try:
        content = read_json(described)
        return checked_shape(content["shape"]) if "shape" in content else None
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"{printable(described)} does not say the shape of the samples beside it: it is "
            "damaged or another program's; move it away"
        ) from error
