"""What a path holds that a report can be made of.

A file says itself what it is. A folder is known by the files that the commands write to it; one may
hold several results, such as a training run that was sampled and evaluated.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.data.arrays import load_images_array
from sads.diffusion.checkpoints import FORMAT as CHECKPOINT
from sads.diffusion.model import FORMAT as MODEL
from sads.errors import ReportError, SadsError, printable
from sads.estimates import Estimate
from sads.experiments.archive import RECORDS
from sads.families import Description
from sads.from_json import decode_known, infinite_again
from sads.geometry.result import FORMAT as GEOMETRY
from sads.geometry.result import Geometry, load_geometry
from sads.report.alignment import AlignmentSource
from sads.report.atlas import AtlasSource, read_atlas
from sads.report.images import picture_url
from sads.report.paper import PaperSource, find_summaries, read_paper
from sads.report.ranking import RankingSource
from sads.report.training import EvaluatedFacts, RunFacts, TrainingSource
from sads.rotations.alignment import Alignment
from sads.rotations.alignment_file import FORMAT as PORTRAIT
from sads.rotations.alignment_file import load_portrait
from sads.tensorfile import TensorFile
from sads.untrusted import DAMAGE, first_line, open_regular, read_json

ANATOMY = "anatomy.png"
GEOMETRY_FILE = "geometry.safetensors"
WHAT = (
    "give a geometry.safetensors, or a folder that sads geometry, align, rank, train, evaluate, "
    "reproduce or atlas wrote"
)


@dataclass(frozen=True, eq=False)
class GeometrySource:
    """A geometry, and the command that made it if it is known."""

    geometry: Geometry
    command: str | None = None


Source = (
    GeometrySource | AlignmentSource | TrainingSource | RankingSource | PaperSource | AtlasSource
)


def read_source(path: Path) -> list[Source]:
    """All results at a path; `ReportError` if there is none."""
    if path.is_dir():
        found = list(_in_folder(path))
        if not found:
            raise ReportError(f"{printable(path)} holds no result of sads; {WHAT}")
        return found
    if path.suffix == ".json" and path.is_file():
        return read_source(path.absolute().parent)
    form = _format_of(path)
    if form == GEOMETRY:
        return [_read_geometry(path)]
    if form in (MODEL, CHECKPOINT, PORTRAIT):
        return read_source(path.absolute().parent)
    raise ReportError(f"{printable(path)} is no result that a report can show; {WHAT}")


def _in_folder(folder: Path) -> Iterator[Source]:
    if (folder / GEOMETRY_FILE).exists():
        yield _read_geometry(folder / GEOMETRY_FILE)
    if (folder / "alignment.json").exists():
        yield _read_alignment(folder)
    if (folder / "ranking.json").exists():
        with _blaming(folder / "ranking.json"):
            yield decode_known(RankingSource, read_json(folder / "ranking.json"))
    if any((folder / name).exists() for name in ("run.json", "samples.json", "evaluate.json")):
        yield read_training(folder)
    if (folder / RECORDS).exists() or find_summaries(folder):
        with _blaming(folder / RECORDS):
            yield read_paper(folder)
    with _blaming(folder):
        if (atlas := read_atlas(folder)) is not None:
            yield atlas


def _format_of(path: Path) -> str:
    """What a safetensors file of ours says that it is."""
    try:
        with open_regular(path) as file:
            return TensorFile(file).metadata.get("format", "")
    except FileNotFoundError as error:
        raise ReportError(f"there is no {printable(path)}; {WHAT}") from error
    except DAMAGE as error:
        raise ReportError(
            f"{printable(path)} cannot be read as a result of sads ({first_line(error)[:200]}); "
            f"{WHAT}"
        ) from error


def _read_geometry(path: Path) -> GeometrySource:
    with _blaming(path):
        geometry = load_geometry(path)
    return GeometrySource(geometry, _command_beside(path))


@dataclass(frozen=True)
class _Aligned:
    """What is needed of an `alignment.json`."""

    command: str
    alignment: Alignment
    tenths: tuple[Estimate, ...]
    data: Mapping[str, Any]
    geometry: Mapping[str, Any]
    note: str | None = None


def _read_alignment(folder: Path) -> AlignmentSource:
    path = folder / "alignment.json"
    with _blaming(path):
        said = decode_known(_Aligned, read_json(path))
        portrait = None
        if (folder / "alignment.safetensors").exists():
            portrait = load_portrait(folder / "alignment.safetensors")
        family = decode_known(Description, said.geometry.get("family", {}))
    return AlignmentSource(
        alignment=infinite_again(said.alignment),
        tenths=infinite_again(said.tenths),
        command=said.command,
        data=str(said.data.get("statement", "")),
        geometry=family.name if portrait is None else portrait.geometry,
        note=said.note,
        portrait=portrait,
    )


def read_training(
    folder: Path, *, evaluated: Path | None = None, samples: Tensor | None = None
) -> TrainingSource:
    """A training run, as far as it has come.

    Args:
        evaluated: where its `evaluate.json` is, if that is another folder.
        samples: those that were evaluated, if they are not the ones in the folder.
    """
    run = losses = sampled = None
    if (folder / "run.json").exists():
        with _blaming(folder / "run.json"):
            run = decode_known(RunFacts, read_json(folder / "run.json"))
    models = (folder / name for name in ("model.safetensors", "checkpoint.safetensors"))
    if (model := next((path for path in models if path.exists()), None)) is not None:
        losses = _read_losses(model)
    if (folder / "samples.json").exists():
        with _blaming(folder / "samples.json"):
            said = decode_known(_Sampled, read_json(folder / "samples.json"))
        sampled = said.command
        if samples is None:
            samples = _read_samples(folder / "samples.npz", said.shape)
    place = evaluated or folder
    return TrainingSource(
        name=folder.resolve().name or "run",
        run=run,
        losses=losses,
        samples=samples,
        sampled=sampled,
        evaluated=_read_evaluated(place / "evaluate.json"),
        anatomy=picture_url(place, ANATOMY) if (place / ANATOMY).exists() else None,
    )


@dataclass(frozen=True)
class _Sampled:
    """What is needed of a `samples.json`."""

    command: str
    shape: tuple[int, ...]


def _read_losses(path: Path) -> Tensor:
    """The loss of every update, which models and checkpoints keep; no network is built."""
    with _blaming(path), open_regular(path) as file:
        content = TensorFile(file)
        if content.metadata.get("format") not in (MODEL, CHECKPOINT):
            raise ReportError(f"{printable(path)} is not a model written by sads")
        losses = content["losses"]
        if losses.ndim != 1 or not losses.is_floating_point():
            raise ValueError("its losses are not numbers")
    return losses


def _read_samples(path: Path, shape: tuple[int, ...]) -> Tensor:
    with _blaming(path):
        array = load_images_array(path)
        if array.dtype.kind != "f" or array.shape[1:] != shape or not len(array):
            raise ValueError("it does not hold the samples of the samples.json beside it")
        return torch.from_numpy(array.astype(np.float32))


def _read_evaluated(path: Path) -> EvaluatedFacts | None:
    if not path.exists():
        return None
    with _blaming(path):
        return decode_known(EvaluatedFacts, read_json(path))


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file, or does not fit together, is one line that names it."""
    try:
        yield
    except ReportError:
        raise
    except SadsError as error:
        raise ReportError(str(error)) from error
    except DAMAGE as error:
        raise ReportError(
            f"{printable(path)} cannot be read as a result of sads ({first_line(error)[:200]}): "
            "it is damaged or another program's"
        ) from error


def _command_beside(path: Path) -> str | None:
    """The command in the `geometry.json` beside a geometry, if there is one."""
    try:
        command = read_json(path.with_name("geometry.json")).get("command")
    except (OSError, ValueError, AttributeError):
        return None
    return command if isinstance(command, str) else None
