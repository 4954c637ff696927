"""`sads evaluate`: how far samples are from data."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.given_options import refuse_given
from sads.cli.interrupts import command_line
from sads.cli.options import AsJson, DataArgument, Layout, Networks, Resize, Seed, ValueRange
from sads.cli.printing import print_line, print_note, print_table, print_written, working
from sads.cli.reading import announce, estimate, read_dataset, read_factory
from sads.cli.report import add_report
from sads.cli.runs import rotation_of
from sads.errors import DataError, InvalidArgumentError, printable
from sads.from_json import decode
from sads.shapes import checked_shape, format_shape
from sads.untrusted import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from sads.diffusion.model import ScoreModel
    from sads.diffusion.sample import SamplingOptions
    from sads.families import Factory, ScoreFamily
    from sads.geometry.result import Geometry
    from sads.pipeline import Evaluation

app = typer.Typer(rich_markup_mode="markdown")
PAGE = "evaluation.html"  # beside the report of the run that it may be about

EXAMPLES = """
**Examples**

- `sads evaluate runs/dct17/samples.npz rank-one:dct:17`

- `sads evaluate runs/dct17 rank-one:dct:17 --projections 4096 --ascend`

- `sads evaluate runs/digits digits --json`

- `sads evaluate runs/digits digits --anatomy` (where the model is wrong, in one picture)
"""
PICTURE = "anatomy.png"
MOST_STEPS = 250  # of a sampler that is followed for the picture


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
    anatomy: Annotated[
        bool,
        typer.Option(
            "--anatomy", help="Also say where the model is wrong: by direction and noise level."
        ),
    ] = False,
    geometry: Annotated[
        Path | None,
        typer.Option(help="geometry.safetensors for --anatomy; else the family's is estimated."),
    ] = None,
    networks: Networks = 1024,
    factory: Annotated[
        str | None,
        typer.Option("--family", help="FILE.py:FUNCTION that built the network, if it is yours."),
    ] = None,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluate.json; else a new one by the samples.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write evaluation.html, a page to explore.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sliced Wasserstein distances between samples and data: SW2 with its error, and MSW2.

    Synthetic data is drawn afresh, never as it was for training; the line "fresh data" is what a
    perfect model would get. Beside the distances stand those of what needs no training: zeros, the
    mean, a Gaussian with the data's moments. Samples that are no better than the best constant are
    called *diverged* or *not trained*. Writes `evaluate.json` beside the samples.

    With `--anatomy` the model of the samples is read from their folder. Its denoising error on the
    data is taken apart, along the data and off them, by principal components, by the architecture's
    own directions and by noise level, and the sampler is followed: `anatomy.png`.
    """
    from sads.data.spec import fresh_seed
    from sads.environment import versions
    from sads.files import to_json, write_json
    from sads.pipeline import Reference, draw_fresh
    from sads.report.distances import rows_of, statements_of
    from sads.report.sources import read_training

    path = samples / "samples.npz" if samples.is_dir() else samples
    if not anatomy and not (geometry is None and factory is None):
        raise InvalidArgumentError("--geometry and --family are for --anatomy, which is not given")
    if not anatomy or geometry is not None:
        refuse_given("for --anatomy without --geometry", "networks")
    y = read_samples(path)
    drawn = read_drawn(path, factory) if anatomy else None
    known = None
    if drawn is not None and geometry is not None:
        known = read_geometry_of(geometry, drawn.model.family)
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
    files = ["evaluate.json", PICTURE, PAGE]
    folder = new_folder(out, "evaluation", files, beside=path.parent)
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
    pictures: list[Path] = []
    if drawn is not None:
        family = replace(drawn.model.family, skip=None)
        chosen = known or estimate(family, networks, seed, as_json)
        with working("taking errors apart", quiet=as_json):
            pictures = [folder / PICTURE]
            result = dissect(result, drawn, chosen, y, dataset.samples, seed, folder / PICTURE)
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
    written = [write_json(folder / "evaluate.json", summary)]
    finish(folder)
    if report:
        source = read_training(path.parent, evaluated=folder, samples=y)
        written.append(add_report(folder, quiet=as_json, name=PAGE, source=source))
    if as_json:
        announce(dataset)
        print(to_json(summary))
        return
    print_table(rows_of(result))
    for line in statements_of(result):
        print_line(line)
    print_line(f"the data: {dataset.statement}")
    if anatomy and not synthetic:
        print_note("images that the model was trained on are not held out: its loss flatters it")
    print_written(*written, *pictures)


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
class Drawn:
    """The model that samples are from, and how they were drawn."""

    model: "ScoreModel"
    options: "SamplingOptions"


@dataclass(frozen=True)
class _Written:
    """What `samples.json` says of it."""

    model: str | None = None
    steps: int = MOST_STEPS
    sampler: str = "ddpm"
    clip: tuple[float, float] | None = None
    averaged: bool = True
    training: Mapping[str, Any] = field(default_factory=dict)  # a model's provenance


def read_drawn(path: Path, factory: str | None) -> Drawn:
    """The model that samples were drawn from; one line if it is not there."""
    from sads.diffusion.sample import SamplingOptions

    written = _Written()
    described = path.with_suffix(".json")
    if described.is_file():
        try:
            content = read_json(described)
            known = {k: v for k, v in content.items() if k in _Written.__dataclass_fields__}
            written = decode(_Written, known)
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(
                f"{printable(described)} does not say how the samples beside it were drawn: it is "
                "damaged or another program's; move it away"
            ) from error
    found, model = find_drawn(path, written, None if factory is None else read_factory(factory))
    options = SamplingOptions(
        steps=min(written.steps, MOST_STEPS),
        sampler=written.sampler,
        clip=written.clip,
        rotation=rotation_of(model, found.parent),
    )
    return Drawn(model if written.averaged else model.unaveraged(), options)


def read_geometry_of(path: Path, family: "ScoreFamily") -> "Geometry":
    """A geometry from a file, which must be that of a family; what it predicts is not asked."""
    from sads.families import is_same_network

    geometry = sads.load_geometry(path)
    if not is_same_network(geometry.provenance.family, family.describe()):
        raise InvalidArgumentError(
            f"{printable(path)} is of another network, {printable(geometry.label)}, than the model "
            f"({printable(family.name)} {format_shape(family.shape)}): give the geometry of its "
            "family, or leave --geometry out"
        )
    return geometry


def find_drawn(path: Path, written: _Written, build: "Factory | None") -> "tuple[Path, ScoreModel]":
    """The model that samples were drawn from, as their own file names it, or beside them.

    A name may have become that of another model, or have been written in another folder.
    """
    from sads.files import plain

    beside = [folder / "model.safetensors" for folder in (path.parent, path.parent.parent)]
    named = [] if written.model is None else [Path(written.model)]
    places = [place for place in (*named, *beside) if place.is_file()]
    if not places:
        raise InvalidArgumentError(
            f"there is no model.safetensors beside {printable(path)}, whose errors --anatomy could "
            "take apart; give samples in the folder of a run of sads train"
        )
    for place in dict.fromkeys(places):
        model = sads.load_model(place, build)
        known = plain(model.provenance)
        assert isinstance(known, dict)
        if all(known.get(name, said) == said for name, said in written.training.items()):
            return place, model
    raise InvalidArgumentError(
        f"{printable(path)} was not drawn from {printable(places[0])}, which was trained otherwise "
        "or went on since: draw samples from it again"
    )


def dissect(
    evaluation: "Evaluation",
    drawn: Drawn,
    geometry: "Geometry",
    y: "Tensor",
    data: "Tensor",
    seed: int,
    picture: Path,
) -> "Evaluation":
    """The evaluation with the errors of the model; their picture is written."""
    from sads.diffusion.anatomy import (
        energy_parts,
        energy_spectrum,
        follow_sampler,
        measure_anatomy,
    )
    from sads.plots.anatomy import plot_anatomy
    from sads.plots.style import save

    family = drawn.model.family
    turned = drawn.options.rotation
    found = measure_anatomy(
        drawn.model,
        data,
        rotation=turned,
        directions=geometry.directions().vectors,
        seed=seed,
    )
    walk = follow_sampler(drawn.model, data, drawn.options, seed=seed)
    finite = y[y.flatten(1).isfinite().all(dim=1)]
    spectrum = energy_spectrum(finite, data) if len(finite) else None
    name = f"{family.name} {format_shape(family.shape)}, predicts {family.prediction}"
    if turned is not None:
        name += f", rotation {turned.kind}"
    energies = energy_parts(finite, data) if len(finite) else None
    evaluation = replace(evaluation, denoising=found.summary, energies=energies)
    save(plot_anatomy(found, f"{name}; {evaluation.state}", walk, spectrum), picture)
    return evaluation


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
