"""`sads sample`: draw samples from a trained model."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given_options import refuse_given
from sads.cli.interrupts import Interrupted, command_line
from sads.cli.options import AsJson, Device, Seed
from sads.cli.printing import (
    print_note,
    print_rows,
    print_summary,
    print_written,
    progress_bar,
    shown_warnings,
)
from sads.cli.reading import read_factory, read_value_range
from sads.cli.runs import rotation_of
from sads.errors import CheckpointError, InvalidArgumentError, counted, printable

if TYPE_CHECKING:
    from torch import Tensor


app = typer.Typer(rich_markup_mode="markdown")
FILES = ("samples.npz", "samples.json", "samples.png")
PARTIAL = "samples.partial.safetensors"

EXAMPLES = """
**Examples**

- `sads sample runs/dct17`

- `sads sample runs/dct17 --samples 10000 --out runs/dct17/test`

- `sads sample runs/digits --sampler dpm-solver --steps 50 --samples 1000`

- `sads sample runs/averaged --unaveraged` (the last weights of a run with --ema)

- `sads sample runs/digits --clip` (in the frame of the data, also under a rotation)
"""


@app.command(epilog=EXAMPLES, rich_help_panel="Training")
def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a model.safetensors.")],
    samples: Annotated[int, typer.Option(help="How many to draw.", min=1)] = 100,
    steps: Annotated[int, typer.Option(help="Network evaluations per sample.", min=1)] = 1000,
    sampler: Annotated[str, typer.Option(help="One of ddpm, ddim, dpm-solver, langevin.")] = "ddpm",
    seed: Seed = 0,
    clip: Annotated[
        bool,
        typer.Option("--clip", help="Clip x_0 at every step, to the range of the training data."),
    ] = False,
    clip_range: Annotated[
        str | None, typer.Option(help="LOW,HIGH: clip x_0 to this range instead.")
    ] = None,
    unaveraged: Annotated[
        bool,
        typer.Option("--unaveraged", help="Of a run with --ema: the weights of its last update."),
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples at a time; does not change the result.")
    ] = None,
    factory: Annotated[
        str | None,
        typer.Option("--family", help="FILE.py:FUNCTION that built the network, if it is yours."),
    ] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the samples; else the run's, or a new one in it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw samples from a trained model, in the space of the data: a rotation is undone.

    Writes `samples.npz` (array `images`, float32, values as the model gives them), `samples.json`
    and `samples.png`. Read them with `sads.load_images("samples.npz", value_range=(-1, 1))`.
    The same command goes on where it was, if it was interrupted or killed.
    """
    from sads.diffusion.sample import SamplingOptions, draw
    from sads.environment import versions
    from sads.files import write_json

    if clip_range is not None:
        refuse_given("--clip-range says another range to clip to", "clip")
    path = find_model(run)
    build = None if factory is None else read_factory(factory)
    model = sads.load_model(path, build)
    if unaveraged and not model.averaged:
        raise InvalidArgumentError(
            f"the weights of {printable(path)} are not averages (sads train --ema): leave "
            "--unaveraged out"
        )
    model = model.unaveraged() if unaveraged else model
    limits = read_value_range(clip_range) or (model.provenance.data_range if clip else None)
    if clip and limits is None:
        raise InvalidArgumentError(
            f"the range of the data of {printable(path)} is not known, as it was not kept when it "
            "was trained: give it, such as --clip-range -1,1"
        )
    options = SamplingOptions(
        steps=steps,
        sampler=sampler,
        seed=seed,
        clip=limits,
        rotation=rotation_of(model, path.parent),
        batch_size=batch_size,
        device=device,
    )
    folder = new_folder(out, "samples", FILES, beside=path.parent, partial=PARTIAL)
    started = time.perf_counter()
    try:
        with progress_bar("evaluations", "{:.0%}", quiet=as_json) as progress, shown_warnings():
            drawn = draw(model, samples, replace(options, checkpoint=folder / PARTIAL), progress)
    except KeyboardInterrupt:
        kept = (folder / PARTIAL).exists()
        what = "the batches drawn so far are kept" if kept else "no batch was drawn yet"
        raise Interrupted(f"{what}; continue with: {command_line()}") from None
    y = drawn.values
    summary = SampleSummary(
        command=command_line(),
        model=path,
        family=dict(model.family.describe()),
        shape=tuple(y.shape[1:]),
        samples=samples,
        steps=steps,
        sampler=sampler,
        seed=seed,
        clip=limits,
        averaged=model.averaged,
        seconds=round(time.perf_counter() - started, 3),
        layers=drawn.layers,
        mean=float(y.mean()),
        standard_deviation=float(y.std()),
        finite=bool(y.isfinite().all()),
        training=model.provenance,
        versions=versions(),
        files=write_samples(
            y, folder, f"{model.family.name}: samples by {sampler}, {counted(steps, 'step')}"
        ),
    )
    write_json(summary.files["json"], summary)
    finish(folder)
    (folder / PARTIAL).unlink(missing_ok=True)
    print_summary(summary, print_samples, as_json)
    if not summary.finite:
        print_note("some samples are NaN or infinite: did the training diverge?")


@dataclass(frozen=True)
class SampleSummary:
    """Samples in numbers: what `samples.json` holds."""

    command: str
    model: Path
    family: dict[str, Any]
    shape: tuple[int, ...]
    samples: int
    steps: int
    sampler: str
    seed: int
    clip: tuple[float, float] | None  # to what x_0 was clipped
    averaged: bool  # whether the weights are averages over the training
    seconds: float
    layers: str  # that computed them: see sads.cpu
    mean: float
    standard_deviation: float
    finite: bool
    training: Any
    versions: dict[str, str]
    files: dict[str, Path]


def find_model(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / "model.safetensors").exists():
        return path / "model.safetensors"
    if (path / "checkpoint.safetensors").exists():
        raise CheckpointError(
            f"the run in {path} is not finished: continue it with sads train ... --resume"
        )
    raise CheckpointError(f"there is no run in {path}; give a folder that sads train wrote")


def write_samples(y: "Tensor", folder: Path, title: str) -> dict[str, Path]:
    import numpy as np

    from sads.files import replacing
    from sads.plots.style import save
    from sads.plots.training import plot_samples

    with replacing(folder / "samples.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, images=y.numpy())
    return {
        "samples": folder / "samples.npz",
        "picture": save(plot_samples(y.nan_to_num(), title), folder / "samples.png"),
        "json": folder / "samples.json",
    }


def print_samples(summary: SampleSummary) -> None:
    print_rows(
        {
            "model": str(summary.model),
            "samples": f"{summary.samples:,} by {summary.sampler}, "
            f"{counted(summary.steps, 'step')}",
            "mean": f"{summary.mean:.4g}",
            "standard deviation": f"{summary.standard_deviation:.4g}",
            "seconds": f"{summary.seconds:.1f}",
        }
    )
    print_written(*summary.files.values())
