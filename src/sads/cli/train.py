"""`sads train`: train a score model as the paper does, perhaps on rotated data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import claim_folder, refuse_existing
from sads.cli.given_options import refuse_given
from sads.cli.interrupts import Interrupted, command_line
from sads.cli.options import (
    AsJson,
    DataArgument,
    Device,
    FamilyArgument,
    Layout,
    NetworkOptions,
    Networks,
    Prediction,
    Resize,
    Schedule,
    Seed,
    Shape,
    ValueRange,
    WithReport,
)
from sads.cli.printing import (
    Update,
    print_rows,
    print_summary,
    print_written,
    progress_bar,
    shown_warnings,
    working,
)
from sads.cli.reading import announce, estimate, read_dataset, read_family
from sads.cli.report import REPORT, add_report
from sads.cli.runs import ROTATION
from sads.errors import DivergedError, InvalidArgumentError, OutputError, counted
from sads.estimates import Estimate, mean_estimate
from sads.shapes import format_shape

if TYPE_CHECKING:
    from sads.data.spec import DataSet
    from sads.diffusion.model import ScoreModel
    from sads.diffusion.options import TrainingOptions
    from sads.families import ScoreFamily
    from sads.rotations.rotation import Rotation

app = typer.Typer(rich_markup_mode="markdown")
FILES = ("checkpoint.safetensors", "model.safetensors", "run.json", "loss.png", ROTATION, REPORT)

EXAMPLES = """
**Examples**

- `sads train iddpm rank-one:dct:17 --shape 1x16x16 --out runs/dct17`

- `sads train iddpm rank-one:out/iddpm-1x16x16/geometry.safetensors:-1 --out runs/preferred`

- `sads train dit sphere:out/dit-1x16x16/geometry.safetensors:avoided --out runs/sphere`

- `sads train mlp digits --shape 1x8x8 --iterations 2000 --batch-size 500 --out runs/digits`

- `sads train iddpm digits --shape 1x8x8 --rotation min --out runs/rotated`

- `sads train iddpm digits --shape 1x8x8 --prediction v --skip gaussian --ema 0.999 --out runs/skip`

- `sads train iddpm digits --shape 1x8x8 --out runs/digits --resume` (continue after Ctrl-C)
"""


@app.command(epilog=EXAMPLES, rich_help_panel="Training")
def train(
    family: FamilyArgument,
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    shape: Shape = None,
    option: NetworkOptions = None,
    iterations: Annotated[
        int | None, typer.Option(help="Updates; Table 1's for this family if not given.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per update; Table 1's if not given.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of Adam; Table 1's if not given.")
    ] = None,
    ema: Annotated[
        float | None, typer.Option(help="Average the weights with this decay, such as 0.999.")
    ] = None,
    centre: Annotated[
        bool, typer.Option("--centre", help="Train without the mean; samples get it back.")
    ] = False,
    skip: Annotated[
        str | None,
        typer.Option(
            help="`gaussian`: the Gaussian part of the score, in closed form, beside the network."
        ),
    ] = None,
    seed: Seed = 0,
    samples: Annotated[
        int, typer.Option(help="Samples to draw, or images to read at most.", min=1)
    ] = 10_000,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    rotation: Annotated[
        str | None,
        typer.Option(
            help="Train on rotated data: min, max, identity, random:SEED, share:S, partial:F or a "
            "rotation.safetensors. `sads sample` undoes it."
        ),
    ] = None,
    geometry: Annotated[
        Path | None,
        typer.Option(help="geometry.safetensors for --rotation; else the family's is estimated."),
    ] = None,
    networks: Networks = 1024,
    prediction: Prediction = None,
    schedule: Schedule = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Updates between checkpoints.", min=1)] = 50,
    device: Device = "cpu",
    report: WithReport = False,
    as_json: AsJson = False,
) -> None:
    """Train a score model as the paper does: Adam, clipped gradients, a fixed set of samples.

    Writes `checkpoint.safetensors` on the way, then `model.safetensors`, `run.json` and
    `loss.png`. Ctrl-C keeps the last checkpoint; the same command with `--resume` continues it to
    the same weights. With `--rotation` the rotation is kept as `rotation.safetensors`.
    """
    from sads.diffusion.clipping import range_of
    from sads.diffusion.train import check_data, fit
    from sads.environment import versions
    from sads.files import write_json
    from sads.pipeline import rotate
    from sads.report.page import check_ours

    check_run_folder(out, resume)
    if report:
        check_ours(out / REPORT)
    if geometry is not None and rotation is None:
        raise InvalidArgumentError("--geometry is for --rotation, which is not given; add it")
    if rotation is None or geometry is not None:
        refuse_given("for a --rotation without --geometry", "networks")
    if rotation is not None and is_file(rotation):
        refuse_given("a rotation in a file needs no geometry", "geometry", "networks")
    if skip not in (None, "gaussian"):
        raise InvalidArgumentError(f"unknown skip {skip!r}; write --skip gaussian, or leave it out")
    score_family = read_family(family, shape, option, prediction, schedule)
    dataset = read_dataset(
        data, score_family.shape, samples, seed, resize, value_range, layout, announced=True
    )
    options, sources = resolve_options(
        score_family, dataset.kind, iterations, batch_size, learning_rate, ema, seed, centre
    )
    x = check_data(score_family, dataset.samples, options.batch_size)
    dataset = replace(dataset, samples=x)
    claim_folder(out)
    check_run_folder(out, resume)  # perhaps another command was faster
    announce(dataset)
    turned = choose_rotation(
        rotation,
        score_family,
        dataset,
        out,
        geometry=geometry,
        networks=networks,
        seed=seed,
        quiet=as_json,
    )
    data_range = range_of(dataset.samples)
    dataset = rotate(dataset, turned)
    if skip is not None:
        with working("fitting the Gaussian part", as_json):
            score_family = sads.gaussian_skip(score_family, dataset.samples)
    run = Run(
        command=command_line(),
        status="running",
        family=score_family.describe(),
        data={"source": data, "samples": len(dataset.samples), "statement": dataset.statement},
        options={**vars(options), "checkpoint_every": checkpoint_every, "device": device},
        option_sources=sources,
        rotation=None if turned is None else describe_rotation(turned),
        versions=versions(),
    )

    def begin() -> None:
        if turned is not None and not (out / ROTATION).exists():
            turned.save(out / ROTATION)
        write_json(out / "run.json", run)

    try:
        with progress_bar("updates", "loss {:.4g}", quiet=as_json) as progress, shown_warnings():
            model = fit(
                score_family,
                dataset.samples,
                options,
                checkpoint=out / "checkpoint.safetensors",
                checkpoint_every=checkpoint_every,
                device=device,
                progress=at_first(begin, progress),
            )
    except DivergedError:
        write_json(out / "run.json", replace(run, status="diverged"))
        raise
    except KeyboardInterrupt:
        write_json(out / "run.json", replace(run, status="interrupted"))
        kept = (out / "checkpoint.safetensors").exists()
        what = "the last checkpoint is kept" if kept else "there is no checkpoint yet"
        again = command_line(*([] if resume else ["--resume"]))
        raise Interrupted(f"{what}; continue with: {again}") from None
    provenance = replace(model.provenance, rotation=run.rotation, data_range=data_range)
    model = replace(model, provenance=provenance)
    run = finish(model, out, run)
    written = add_report(out, quiet=as_json) if report else None
    print_summary(run, partial(print_run, model), as_json)
    if written is not None and not as_json:
        print_written(written)


@dataclass(frozen=True)
class Run:
    """A training run: what `run.json` holds."""

    command: str
    status: str  # "running", "finished", "interrupted" or "diverged"
    family: dict[str, Any]
    data: dict[str, Any]
    options: dict[str, Any]
    option_sources: dict[str, str]
    rotation: dict[str, Any] | None
    versions: dict[str, str]
    seconds: float | None = None
    layers: str | None = None
    compiled: bool | None = None
    data_sha256: str | None = None
    parameters: int | None = None
    loss: Estimate | None = None  # mean over the last updates
    loss_updates: int | None = None
    files: dict[str, Path] | None = None


def check_run_folder(folder: Path, resume: bool) -> None:
    """A run is never overwritten, and only a run is continued."""
    if not resume:
        if (folder / "checkpoint.safetensors").exists():
            raise OutputError(
                f"{folder} already holds a run (checkpoint.safetensors); continue it with "
                "--resume, or choose another --out"
            )
        refuse_existing(folder, FILES)
    elif not (folder / "run.json").exists():
        raise InvalidArgumentError(
            f"there is no run in {folder} to continue; leave --resume out to start one"
        )


def resolve_options(
    family: "ScoreFamily",
    kind: str,
    iterations: int | None,
    batch_size: int | None,
    learning_rate: float | None,
    ema: float | None,
    seed: int,
    centre: bool = False,
) -> tuple["TrainingOptions", dict[str, str]]:
    """The options of a run, and where each of Table 1's comes from."""
    from sads.diffusion.options import TrainingOptions
    from sads.families import training_column

    column = training_column(family, kind)
    source = f"{column.source} ({column.family} {format_shape(column.shape)})"
    given = {"iterations": iterations, "batch_size": batch_size, "learning_rate": learning_rate}
    options = TrainingOptions(
        iterations=column.training.iterations if iterations is None else iterations,
        batch_size=column.training.batch_size if batch_size is None else batch_size,
        learning_rate=column.training.learning_rate if learning_rate is None else learning_rate,
        ema_decay=ema,
        seed=seed,
        centre=centre,
    )
    return options, {k: source if v is None else "given" for k, v in given.items()}


def choose_rotation(
    kind: str | None,
    family: "ScoreFamily",
    dataset: "DataSet",
    folder: Path,
    *,
    geometry: Path | None,
    networks: int,
    seed: int,
    quiet: bool,
) -> "Rotation | None":
    """The rotation of a training run, if there is one.

    `kind` is one of `sads.rotation`'s or the file of one; a run that is continued keeps its own.
    """
    from sads.rotations.kinds import Kind

    kept = folder / ROTATION
    parsed = None if kind is None or is_file(kind) else Kind.parse(kind)
    if kept.exists():
        rotation = sads.load_rotation(kept)
        same = str(parsed) == rotation.kind if parsed else kind is None or same_file(kind, kept)
        if not same:
            raise InvalidArgumentError(
                f"the run in {folder} was started with --rotation {rotation.kind}, not {kind}; "
                "continue it as it was started, or choose another --out"
            )
    elif kind is None:
        return None
    elif parsed is None:
        rotation = sads.load_rotation(kind)
    else:
        source = (
            estimate(family, networks, seed, quiet)
            if geometry is None
            else sads.load_geometry(geometry)
        )
        with working("pairing eigenvectors", quiet):
            rotation = sads.rotation(source, dataset.samples, parsed)
        rotation = rotation.with_source(dataset.statement, command_line())
    if rotation.shape != family.shape:
        raise InvalidArgumentError(
            f"the rotation is of {format_shape(rotation.shape)}, the data are "
            f"{format_shape(family.shape)}: give one for that shape"
        )
    return rotation


def is_file(kind: str) -> bool:
    return kind.endswith(".safetensors")


def same_file(file: str, kept: Path) -> bool:
    import torch

    return torch.equal(sads.load_rotation(file).matrix(), sads.load_rotation(kept).matrix())


def describe_rotation(rotation: "Rotation") -> dict[str, Any]:
    geometry = rotation.provenance.geometry
    return {
        "kind": rotation.kind,
        "alpha": rotation.alpha,
        "geometry": {name: geometry.get(name) for name in ("family", "draws")},
    }


def at_first(action: Callable[[], object], progress: Update | None) -> Update:
    """`progress`, with an action before its first call: a run that is refused leaves no trace."""
    waiting = [action]

    def update(done: int, total: int, number: float) -> None:
        if waiting:
            waiting.pop()()
        if progress:
            progress(done, total, number)

    return update


def finish(model: "ScoreModel", folder: Path, run: Run) -> Run:
    """Write the model, its picture and the summary of its run."""
    from sads.files import write_json
    from sads.plots.style import save
    from sads.plots.training import plot_losses

    last = model.losses[-max(1, len(model.losses) // 20) :].double()
    title = f"{model.family.name}  {format_shape(model.family.shape)}"
    run = replace(
        run,
        status="finished",
        seconds=round(model.provenance.seconds, 3),
        layers=model.provenance.layers,
        compiled=model.provenance.compiled,
        data_sha256=model.provenance.data,
        parameters=sum(p.numel() for p in model.network.parameters()),
        loss=mean_estimate(last),
        loss_updates=len(last),
        files={
            "model": model.save(folder / "model.safetensors"),
            "checkpoint": folder / "checkpoint.safetensors",
            "loss": save(plot_losses(model.losses, title), folder / "loss.png"),
            "json": folder / "run.json",
        },
    )
    write_json(folder / "run.json", run)
    return run


def print_run(model: "ScoreModel", run: Run) -> None:
    options, sources = run.options, run.option_sources
    print_rows(
        {
            "family": f"{model.family.name}, {counted(run.parameters or 0, 'parameter')}",
            "data": run.data["statement"],
            "updates": f"{options['iterations']:,}  ({sources['iterations']})",
            "batch size": f"{options['batch_size']:,}  ({sources['batch_size']})",
            "learning rate": f"{options['learning_rate']:g}  ({sources['learning_rate']})",
            "loss": f"{run.loss}  (last {counted(run.loss_updates or 0, 'update')})",
            "seconds": f"{run.seconds:.1f}" + ("  (compiled)" if run.compiled else ""),
            "layers": str(run.layers),
        }
    )
    print_written(*(run.files or {}).values())
