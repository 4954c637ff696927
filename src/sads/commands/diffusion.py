"""`sads train`, `sads sample` and `sads evaluate`. Parsing and printing only."""

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor

import sads
from sads.commands.alignment import rotate_for_training
from sads.commands.printing import (
    AsJson,
    Update,
    command_line,
    console,
    messages,
    print_rows,
    progress_bar,
    shown_warnings,
    working,
)
from sads.commands.reading import read_factory, read_family
from sads.data.readers import read_numpy
from sads.data.source import DataSet, fresh_seed, read_data
from sads.diffusion.sample import SAMPLERS
from sads.diffusion.train import TrainingOptions, check_data, versions
from sads.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    InvalidArgumentError,
    OutputError,
)
from sads.family import ScoreFamily, training_preset
from sads.files import check_folder, replacing, to_json, write_json

app = typer.Typer(rich_markup_mode="markdown")
ROTATION = "rotation.safetensors"  # beside the model of a run on rotated data

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Images (digits, a file, a folder, hub:NAME), rank-one:GEOMETRY:RANK, "
        "rank-one:BASIS:INDEX, or sphere:GEOMETRY:preferred|avoided. RANK 0 is the most avoided "
        "eigenvector, -1 the most preferred.",
    ),
]
Resize = Annotated[
    bool, typer.Option("--resize", help="Resize, crop and recolour images to the shape.")
]
Device = Annotated[str, typer.Option(help="Where the network runs: cpu, cuda, mps.")]

TRAIN_EXAMPLES = """
**Examples**

- `sads train iddpm rank-one:dct:17 --shape 1x16x16 --out runs/dct17`

- `sads train iddpm rank-one:out/iddpm-1x16x16/geometry.safetensors:-1 --out runs/preferred`

- `sads train dit sphere:out/dit-1x16x16/geometry.safetensors:avoided --out runs/sphere`

- `sads train mlp digits --shape 1x8x8 --iterations 2000 --batch-size 500 --out runs/digits`

- `sads train iddpm digits --shape 1x8x8 --rotation min --out runs/rotated`

- `sads train iddpm digits --shape 1x8x8 --out runs/digits --resume` (continue after Ctrl-C)
"""
SAMPLE_EXAMPLES = """
**Examples**

- `sads sample runs/dct17`

- `sads sample runs/dct17 --samples 10000 --out runs/dct17/test`

- `sads sample runs/digits --sampler dpm-solver --steps 50 --samples 1000`
"""
EVALUATE_EXAMPLES = """
**Examples**

- `sads evaluate runs/dct17/samples.npz rank-one:dct:17`

- `sads evaluate runs/dct17 rank-one:dct:17 --projections 4096 --ascend`

- `sads evaluate runs/digits digits --json`
"""


@app.command(epilog=TRAIN_EXAMPLES)
def train(
    family: Annotated[
        str,
        typer.Argument(help="A name from `sads families`, or FILE.py:FUNCTION that builds one."),
    ],
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    shape: Annotated[
        str | None, typer.Option(help="Shape of the data, such as 1x16x16; else the preset's.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", help="Option of the network, KEY=VALUE; repeatable."),
    ] = None,
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
    seed: Annotated[int, typer.Option(help="Seed of weights, noise and synthetic data.")] = 0,
    samples: Annotated[
        int, typer.Option(help="Samples to draw, or images to read at most.")
    ] = 10_000,
    resize: Resize = False,
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
    networks: Annotated[int, typer.Option(help="Random networks for that estimate.")] = 1024,
    prediction: Annotated[
        str, typer.Option(help="What the network predicts: epsilon, score, x0 or v.")
    ] = "epsilon",
    schedule: Annotated[str, typer.Option(help="Noise schedule: linear or cosine.")] = "linear",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Updates between checkpoints.", min=1)] = 50,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a score model as the paper does: Adam, clipped gradients, a fixed set of samples.

    Writes `checkpoint.safetensors` on the way, then `model.safetensors`, `run.json` and
    `loss.png`. Ctrl-C keeps the last checkpoint; the same command with `--resume` continues it to
    the same weights. With `--rotation` the rotation is kept as `rotation.safetensors`.
    """

    check_new(out, resume)
    if geometry is not None and rotation is None:
        raise InvalidArgumentError("--geometry is for --rotation, which is not given; add it")
    score_family = read_family(family, shape, option or [], prediction, schedule)
    dataset = read_data(data, score_family.shape, samples, seed, resize=resize)
    if dataset.skipped:
        messages.print(f"note: {dataset.statement}", highlight=False, soft_wrap=True)
    given = {"iterations": iterations, "batch_size": batch_size, "learning_rate": learning_rate}
    options, sources = resolve_options(score_family, dataset.kind, given, ema, seed)
    check_data(score_family, dataset.samples, options.batch_size)
    check_folder(out)
    turned, dataset = rotate_for_training(
        rotation, score_family, dataset, out,
        geometry=geometry, networks=networks, seed=seed, quiet=as_json,
    )  # fmt: skip
    run: dict[str, Any] = {
        "command": command_line(),
        "status": "running",
        "family": score_family.describe(),
        "data": {"source": data, "samples": len(dataset.samples), "statement": dataset.statement},
        "options": {**vars(options), "checkpoint_every": checkpoint_every, "device": device},
        "option_sources": sources,
        "rotation": None if turned is None else describe_rotation(turned),
        "versions": versions(),
    }

    def begin() -> None:
        if turned is not None and not (out / ROTATION).exists():
            turned.save(out / ROTATION)
        write_json(out / "run.json", run)

    try:
        with progress_bar("updates", "loss {:.4g}", quiet=as_json) as progress, shown_warnings():
            update = at_first(begin, progress)
            model = sads.train(
                score_family,
                dataset.samples,
                **vars(options),
                checkpoint=out / "checkpoint.safetensors",
                checkpoint_every=checkpoint_every,
                device=device,
                progress=update,
            )
    except DivergedError:
        write_json(out / "run.json", {**run, "status": "diverged"})
        raise
    except KeyboardInterrupt:
        write_json(out / "run.json", {**run, "status": "interrupted"})
        kept = (out / "checkpoint.safetensors").exists()
        what = "the last checkpoint is kept" if kept else "there is no checkpoint yet"
        again = shlex.join([*shlex.split(command_line()), *([] if resume else ["--resume"])])
        messages.print(f"interrupted: {what}; continue with\n{again}", highlight=False)
        raise typer.Exit(130) from None
    if turned is not None:
        model = replace(model, provenance={**model.provenance, "rotation": run["rotation"]})
    summary = write_run(model, out, run)
    if as_json:
        print(to_json(summary))
    else:
        print_run(model, summary)


def describe_rotation(rotation: sads.Rotation) -> dict[str, Any]:
    geometry = rotation.provenance["geometry"]
    return {
        "kind": rotation.kind,
        "alpha": rotation.alpha,
        "alpha_error": rotation.alpha_error,
        "geometry": {"family": geometry["family"], "draws": geometry.get("draws")},
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


def check_new(folder: Path, resume: bool) -> None:
    """A run is never overwritten."""
    if resume:
        return
    for name in ("checkpoint.safetensors", "model.safetensors", "run.json"):
        if (folder / name).exists():
            raise OutputError(
                f"{folder} already holds a run ({name}); continue it with --resume, or choose "
                "another --out"
            )
    if (folder / ROTATION).exists():
        raise OutputError(f"{folder} already holds a rotation ({ROTATION}); choose another --out")


def resolve_options(
    family: ScoreFamily, kind: str, given: Mapping[str, Any], ema: float | None, seed: int
) -> tuple[TrainingOptions, dict[str, str]]:
    """The options of a run, and where each of Table 1's comes from."""
    preset = training_preset(family, kind)
    source = f"{preset.source} ({preset.name} {'x'.join(map(str, preset.shape))})"
    chosen = {k: preset.training[k] if v is None else v for k, v in given.items()}
    sources = {k: source if v is None else "given" for k, v in given.items()}
    return TrainingOptions(**chosen, ema_decay=ema, seed=seed), sources


def write_run(model: sads.ScoreModel, folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    from sads import plots  # matplotlib is slow to import

    last = model.losses[-max(1, len(model.losses) // 20) :].double()
    spread = float(last.std() / len(last) ** 0.5) if len(last) > 1 else None
    title = f"{model.family.name}  {'x'.join(map(str, model.family.shape))}"
    files = {
        "model": model.save(folder / "model.safetensors"),
        "checkpoint": folder / "checkpoint.safetensors",
        "loss": plots.save(plots.plot_losses(model.losses, title), folder / "loss.png"),
    }
    summary = {
        **run,
        "status": "finished",
        "seconds": round(model.provenance["seconds"], 3),
        "compiled": model.provenance["compiled"],
        "data_sha256": model.provenance["data"],
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "loss": {"last": float(last.mean()), "error": spread, "updates": len(last)},
        "files": {name: str(path) for name, path in files.items()},
    }
    write_json(folder / "run.json", summary)
    return summary


def print_run(model: sads.ScoreModel, summary: dict[str, Any]) -> None:
    options, sources = summary["options"], summary["option_sources"]
    loss = summary["loss"]
    error = "" if loss["error"] is None else f" ± {loss['error']:.1g}"
    print_rows(
        {
            "family": f"{model.family.name}, {summary['parameters']:,} parameters",
            "data": summary["data"]["statement"],
            "updates": f"{options['iterations']:,}  ({sources['iterations']})",
            "batch size": f"{options['batch_size']:,}  ({sources['batch_size']})",
            "learning rate": f"{options['learning_rate']:g}  ({sources['learning_rate']})",
            "loss": f"{loss['last']:.4g}{error}  (last {loss['updates']:,} updates)",
            "seconds": f"{summary['seconds']:.1f}" + ("  (compiled)" * summary["compiled"]),
        },
        [*summary["files"].values(), str(Path(summary["files"]["model"]).parent / "run.json")],
    )


@app.command(epilog=SAMPLE_EXAMPLES)
def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a model.safetensors.")],
    samples: Annotated[int, typer.Option(help="How many to draw.")] = 100,
    steps: Annotated[int, typer.Option(help="Network evaluations per sample.")] = 1000,
    sampler: Annotated[str, typer.Option(help=f"One of {', '.join(SAMPLERS)}.")] = "ddpm",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples at a time; does not change the result.")
    ] = None,
    factory: Annotated[
        str | None,
        typer.Option("--family", help="FILE.py:FUNCTION that built the network, if it is yours."),
    ] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the samples; else the run's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw samples from a trained model, in the space of the data: a rotation is undone.

    Writes `samples.npz` (array `images`, float32, values as the model gives them), `samples.json`
    and `samples.png`. Read them with `sads.load_images("samples.npz", value_range=(-1, 1))`.
    """

    path = find_model(run)
    model = sads.load_model(path, None if factory is None else read_factory(factory))
    turned = rotation_of(model, path.parent)
    folder = path.parent if out is None else out
    check_folder(folder)
    started = time.perf_counter()
    with progress_bar("evaluations", "{:.0%}", quiet=as_json) as progress, shown_warnings():
        y = sads.sample(
            model,
            samples,
            steps=steps,
            sampler=sampler,
            seed=seed,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )
    if turned is not None:
        y = turned.undo(y, out=y)
    summary: dict[str, Any] = {
        "command": command_line(),
        "model": str(path),
        "family": model.family.describe(),
        "shape": list(y.shape[1:]),
        "samples": samples,
        "steps": steps,
        "sampler": sampler,
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 3),
        "mean": float(y.mean()),
        "standard_deviation": float(y.std()),
        "finite": bool(y.isfinite().all()),
        "training": dict(model.provenance),
        "versions": versions(),
    }
    summary["files"] = write_samples(y, folder, summary)
    write_json(folder / "samples.json", summary)
    if as_json:
        print(to_json(summary))
    else:
        print_rows(
            {
                "model": str(path),
                "samples": f"{samples:,} by {sampler}, {steps:,} steps",
                "mean": f"{summary['mean']:.4g}",
                "standard deviation": f"{summary['standard_deviation']:.4g}",
                "seconds": f"{summary['seconds']:.1f}",
            },
            [*summary["files"].values(), str(folder / "samples.json")],
        )
    if not summary["finite"]:
        messages.print("note: some samples are NaN or infinite: did the training diverge?")


def rotation_of(model: sads.ScoreModel, folder: Path) -> sads.Rotation | None:
    """The rotation that a model was trained behind, kept beside it."""
    if model.provenance.get("rotation") is None:
        return None
    return sads.load_rotation(folder / ROTATION)


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


def write_samples(y: Tensor, folder: Path, summary: Mapping[str, Any]) -> dict[str, str]:
    from sads import plots

    with replacing(folder / "samples.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, images=y.numpy())
    name = summary["family"]["name"]
    title = f"{name}: samples by {summary['sampler']}, {summary['steps']:,} steps"
    picture = plots.save(plots.plot_samples(y.nan_to_num(), title), folder / "samples.png")
    return {"samples": str(folder / "samples.npz"), "picture": str(picture)}


@app.command(epilog=EVALUATE_EXAMPLES)
def evaluate(
    samples: Annotated[Path, typer.Argument(help="A samples.npz, or the folder it is in.")],
    data: DataArgument,
    projections: Annotated[
        int | None, typer.Option(help="Random directions; 64 D as in the paper if not given.")
    ] = None,
    test_samples: Annotated[
        int, typer.Option(help="Fresh samples of the data, or images to read at most.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of directions and fresh samples.")] = 0,
    ascend: Annotated[
        bool, typer.Option("--ascend", help="Also seek the largest distance by ascent.")
    ] = False,
    resize: Resize = False,
    as_json: AsJson = False,
) -> None:
    """Sliced Wasserstein distances between samples and data: SW2 with its error, and MSW2.

    Synthetic data is drawn afresh, never as it was for training; the line "fresh data" is what a
    perfect model would get. Writes `evaluate.json` beside the samples.
    """
    path = samples / "samples.npz" if samples.is_dir() else samples
    y = read_samples(path)
    dataset = read_data(data, tuple(y.shape[1:]), test_samples, fresh_seed(seed), resize=resize)
    if dataset.skipped:
        messages.print(f"note: {dataset.statement}", highlight=False, soft_wrap=True)
    check_folder(path.parent)
    started = time.perf_counter()
    with working("measuring distances", quiet=as_json):
        distances = measure(y, dataset, data, projections, seed, ascend)
    summary = {
        "command": command_line(),
        "samples": {"source": str(path), "samples": len(y)},
        "data": {"source": data, "samples": len(dataset.samples), "statement": dataset.statement},
        "seed": seed,
        "dimension": y[0].numel(),
        **distances,
        "seconds": round(time.perf_counter() - started, 3),
        "versions": versions(),
    }
    written = write_json(path.parent / "evaluate.json", summary)
    if as_json:
        print(to_json(summary))
    else:
        print_distances(summary, written)


def read_samples(path: Path) -> Tensor:
    """Samples of a model as they are, (N, *shape) float32; whole numbers as images."""
    if path.suffix != ".npz":
        return sads.load_images(path)
    blocks = [block for _, block in read_numpy(path) if isinstance(block, np.ndarray)]
    if not blocks:
        raise DataError(f"{path} has no samples")
    if blocks[0].dtype.kind != "f":
        return sads.load_images(path)
    y = torch.from_numpy(np.concatenate(blocks).astype(np.float32))
    described = path.with_suffix(".json")
    if described.exists():  # an array of three axes may be lines of several channels
        shape = json.loads(described.read_text()).get("shape", y.shape[1:])
        y = y.reshape(len(y), *shape)
    return y


def measure(
    y: Tensor, dataset: DataSet, source: str, projections: int | None, seed: int, ascend: bool
) -> dict[str, Any]:
    """All distances of one evaluation."""
    common: dict[str, Any] = {"num_projections": projections, "seed": seed}
    result = {"distance": _distances(sads.sliced_wasserstein(dataset.samples, y, **common))}
    if dataset.kind != "images":
        shape = tuple(y.shape[1:])
        ideal = read_data(source, shape, len(y), fresh_seed(fresh_seed(seed))).samples
        result["fresh_data"] = _distances(sads.sliced_wasserstein(dataset.samples, ideal, **common))
    if dataset.vector is not None:
        to_gaussian = sads.sliced_wasserstein_to_gaussian(y, vector=dataset.vector, **common)
        result["closed_form"] = _distances(to_gaussian)
    if ascend:
        best = sads.max_sliced_wasserstein(dataset.samples, y, **common)
        result["ascent"] = {"msw2": best.msw2, "from": best.random_msw2}
    return result


def _distances(d: sads.SlicedWasserstein) -> dict[str, float]:
    return {
        "sw2": d.sw2,
        "sw2_error": d.sw2_error,
        "msw2": d.msw2,
        "projections": d.num_projections,
    }


def print_distances(summary: dict[str, Any], written: Path) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in ("SW2", "MSW2", "projections"):
        table.add_column(name, justify="right")
    names = {
        "distance": "samples",
        "closed_form": "samples, closed-form target",
        "fresh_data": "fresh data (a perfect model)",
    }
    for key, name in names.items():
        if key in summary:
            d = summary[key]
            sw2 = f"{d['sw2']:.4g} ± {d['sw2_error']:.2g}"
            table.add_row(name, sw2, f"{d['msw2']:.4g}", f"{d['projections']:,}")
    if "ascent" in summary:
        table.add_row("samples, largest by ascent", "", f"{summary['ascent']['msw2']:.4g}", "")
    console.print(table)
    console.print(f"against {summary['data']['statement']}", highlight=False, soft_wrap=True)
    console.print(f"wrote {written}", highlight=False, soft_wrap=True)
