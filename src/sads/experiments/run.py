"""Compute one cell: data, training, samples, distances; resumed where it was left."""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sads.data.images import read_images
from sads.data.labels import load_labels
from sads.data.spec import read_data, sphere_directions
from sads.diffusion.anatomy import energy_parts, measure_anatomy
from sads.diffusion.clipping import range_of
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import SamplingOptions, draw
from sads.diffusion.skip import gaussian_skip
from sads.diffusion.train import train
from sads.environment import versions
from sads.errors import CheckpointError, DataError, ExperimentError, counted, printable
from sads.estimates import Estimate
from sads.experiments.preregistration import claims_versions
from sads.experiments.records import LOSS_POINTS, Facts, Record
from sads.experiments.spec import Cell, GeometrySpec
from sads.experiments.store import Store
from sads.families import ScoreFamily
from sads.files import digest, tensor_digest, write_json
from sads.from_json import decode
from sads.geometry.estimate import estimate_geometry
from sads.geometry.result import Geometry
from sads.metrics.digits import MIN_REAL
from sads.pipeline import Evaluation, Reference
from sads.rotations.alignment import rotation
from sads.rotations.rotation import Rotation
from sads.seeds import derive_seed
from sads.threads import pinned_threads
from sads.untrusted import first_line, read_json

DIGITS = ("digits", "mnist")  # images of digits: what samples show can be judged
CHECKPOINTS = 20  # of a training, at most one an update

Left = TypeVar("Left")
Report = Callable[[float], None]  # the share of a cell's training that is done, called often
Sources = Mapping[str, str]  # where images of a name are: a file, a folder, a hub name


def run_cell(
    cell: Cell,
    store: Store,
    sources: Sources | None = None,
    report: Report | None = None,
    device: str = "cpu",
) -> Record | None:
    """The record of a cell, from the store or computed; None if another process is at it.

    All of it runs in one thread: two cells on two cores do not wait for each other, and a cell's
    numbers do not depend on how many cores a machine has.
    """
    if (record := store.get(cell)) is not None:
        return record
    with store.work_folder(cell) as work:
        if work is None:
            return None
        record = store.get(cell)  # perhaps finished by the one who had the folder
        if record is None:
            with pinned_threads(1):
                attempt = _Attempt(
                    cell, store, work, sources or {}, report or (lambda share: None), device
                )
                record = _resume(attempt)
        store.clear_work(cell)
        return record


def get_geometry(spec: GeometrySpec, store: Store) -> Geometry:
    """A geometry from the store, or estimated, from where that was left, and kept there.

    Of several processes that need it one estimates it, and the others wait.
    """
    geometry = store.geometry(spec)
    if geometry is not None:
        return geometry
    with store.estimating(spec) as partial:
        geometry = store.geometry(spec)
        if geometry is None:
            try:
                geometry = _estimate(spec, partial)
            except CheckpointError:  # damaged, or of another version
                partial.unlink(missing_ok=True)
                geometry = _estimate(spec, partial)
            store.put_geometry(spec, geometry)
            partial.unlink(missing_ok=True)
    return geometry


def _estimate(spec: GeometrySpec, checkpoint: Path) -> Geometry:
    family = spec.family.build()
    return estimate_geometry(family, spec.num_networks, seed=spec.seed, checkpoint=checkpoint)


def seed_of(cell: Cell, purpose: str) -> int:
    """A seed of its own for each purpose; cells that differ in their seed only share nothing.

    Cells of one seed share initial weights, noise and projections: their differences are paired.
    """
    return derive_seed(purpose, cell.seed) % 2**48


@dataclass(frozen=True)
class _Attempt:
    """A cell and all that computing it needs."""

    cell: Cell
    store: Store
    work: Path
    sources: Sources
    report: Report
    device: str


def _resume(attempt: _Attempt) -> Record:
    """Go on from where an earlier attempt was left, or from the start if that cannot be read.

    A checkpoint may be damaged, or belong to a geometry that has been estimated anew since.
    """
    try:
        return _compute(attempt)
    except CheckpointError:
        for path in attempt.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        return _compute(attempt)


def _left(kind: type[Left], path: Path) -> Left:
    """What an earlier attempt wrote to its work folder."""
    try:
        return decode(kind, read_json(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{printable(path)} is damaged ({first_line(error)}); remove it"
        ) from error


@dataclass(frozen=True)
class _Spent:
    """What `seconds.json` holds."""

    seconds: float


def _compute(attempt: _Attempt) -> Record:
    cell, work = attempt.cell, attempt.work
    started = time.perf_counter()
    spent = _Clock(work / "seconds.json")
    geometry = get_geometry(cell.geometry, attempt.store)
    data = make_data(cell, geometry, attempt.sources)
    turned = rotation(geometry, data.train, cell.rotation)
    x = turned.apply(data.train)
    family = build_family(cell, x)
    evaluations = []
    reference = reference_of(cell, data)
    baselines = reference.baselines(cell.sampling.num_samples)
    for iterations in cell.evaluations:
        path = work / f"{cell.hash}-{iterations}.json"
        if path.exists():
            evaluations.append(_left(Evaluation, path))
            continue
        model = _trained(attempt, x, iterations, spent, family, turned, data)
        options = SamplingOptions(
            steps=cell.sampling.steps,
            sampler=cell.sampling.sampler,
            seed=seed_of(cell, f"sample {iterations}"),
            clip=range_of(data.train) if cell.practice.clip else None,
            rotation=turned,
            device=attempt.device,
        )
        share = iterations / cell.training.iterations
        drawn = draw(
            model,
            cell.sampling.num_samples,
            options,
            progress=lambda *_, share=share: attempt.report(share),
        )
        y = drawn.values
        measured = reference.evaluate(y, baselines, ascend=data.vector is not None)
        evaluations.append(with_anatomy(cell, data, turned, model, y, measured))
        if iterations < cell.training.iterations:
            write_json(path, evaluations[-1])
    folder = attempt.store.new_folder(cell)
    if cell.keep_samples:
        np.savez_compressed(folder / "samples.npz", images=y[: cell.keep_samples].numpy())
    record = Record(
        cell=cell,
        evaluations=tuple(evaluations),
        losses=_means(model.losses.double(), LOSS_POINTS),
        facts=Facts(turned.alpha, data.energy, data.num_train, data.num_test),
        seconds=round(spent.total + time.perf_counter() - started, 2),
        versions={**versions(), "device": attempt.device, **claims_versions()},
    )
    return attempt.store.put(record, folder)


def build_family(cell: Cell, x: Tensor) -> ScoreFamily:
    """The family of a cell's practice, for its (rotated) training data."""
    family = replace(cell.family.build(), prediction=cell.practice.prediction)
    return gaussian_skip(family, x) if cell.practice.skip == "gaussian" else family


def _trained(
    attempt: _Attempt,
    x: Tensor,
    iterations: int,
    spent: "_Clock",
    family: ScoreFamily,
    turned: Rotation,
    data: "CellData",
) -> ScoreModel:
    """The cell's model after some updates: its kept weights, or trained and kept.

    It has the average of the weights if the cell asks for that; both are kept, with the rotation
    and the range of the data, so that commands can use the file too.
    """
    cell = attempt.cell
    kept = attempt.store.weights(cell, iterations)
    if kept is not None and kept.provenance.data == tensor_digest(x):
        return kept
    model = _train(attempt, x, iterations, spent, family)
    beside = None if turned.kind == "identity" else turned
    described = None if beside is None else {"kind": turned.kind, "alpha": turned.alpha}
    provenance = replace(model.provenance, rotation=described, data_range=range_of(data.train))
    model = replace(model, provenance=provenance)
    attempt.store.put_weights(cell, iterations, model, beside)
    return model if cell.practice.ema_decay is not None else model.unaveraged()


def _train(
    attempt: _Attempt, x: Tensor, iterations: int, spent: "_Clock", family: ScoreFamily
) -> ScoreModel:
    """The cell's model after some updates, from its checkpoint on."""
    cell = attempt.cell

    def progress(done: int, total: int, loss: float) -> None:
        spent.tick()
        attempt.report(done / cell.training.iterations)

    model = train(
        family,
        x,
        iterations=iterations,
        batch_size=cell.training.batch_size,
        learning_rate=cell.training.learning_rate,
        ema_decay=cell.average_decay,
        centre=cell.practice.centre,
        seed=seed_of(cell, "train"),
        checkpoint=attempt.work / "checkpoint.safetensors",
        checkpoint_every=math.ceil(cell.training.iterations / CHECKPOINTS),
        device=attempt.device,
        progress=progress,
    )
    if model.provenance.layers != cell.layers:
        raise ExperimentError(
            f"the cell is to be computed by the layers {cell.layers}, here "
            f"{model.provenance.layers} computed it; start the sweep on a machine like those that "
            "compute"
        )
    return model


@dataclass(frozen=True, eq=False)
class CellData:
    """What a cell trains on and is measured against, and what is known of it."""

    train: Tensor  # (N, *shape)
    test: Tensor  # (M, *shape), of which none is in `train`
    labels: Tensor | None = None  # (N,), of `train`
    vector: Tensor | None = None  # v of rank-one data
    energy: Estimate | None = None  # v^T G v, of synthetic data
    num_train: int | None = None  # of images
    num_test: int | None = None


def make_data(cell: Cell, geometry: Geometry, sources: Sources) -> CellData:
    data = draw_data(cell, geometry, sources)
    if cell.data.kind == "images":
        return data
    vector = data.vector
    if vector is None:
        seed = _direction_seed(cell)
        vector = sphere_directions(geometry.data_directions(), cell.data.which, seed)[0]
    return replace(data, energy=geometry.energy(vector))


def draw_data(cell: Cell, geometry: Geometry | None, sources: Sources) -> CellData:
    """The data of a cell; the geometry is needed only if they lie along its directions."""
    if cell.data.kind == "images":
        return _split_images(cell, sources)

    def fresh(purpose: str, count: int) -> tuple[Tensor, Tensor | None]:
        drawn = read_data(
            cell.data,
            cell.family.shape,
            count,
            seed_of(cell, purpose),
            geometry=geometry,
            direction_seed=_direction_seed(cell),
        )
        return drawn.samples, drawn.vector

    x, vector = fresh("train", cell.num_data)
    test, _ = fresh("test", cell.sampling.num_samples)
    return CellData(x, test, vector=vector)


def _direction_seed(cell: Cell) -> int:
    span = cell.data.span
    return seed_of(cell, "directions" if span is None else f"direction {span[2]}")


def reference_of(cell: Cell, data: CellData) -> Reference:
    """What the models of a cell are measured against: it depends on its data alone."""
    return Reference(
        data.test,
        train=data.train,
        num_projections=cell.sampling.projections_per_dimension * math.prod(cell.family.shape),
        seed=seed_of(cell, "projections"),
        vector=data.vector,
        bounded=cell.data.kind == "images",
        real_digits=data.train if str(cell.data) in DIGITS else None,
        labels=data.labels,
    )


def read_source(
    name: str, shape: tuple[int, ...], sources: Sources
) -> tuple[Tensor, Tensor | None]:
    """All images of a name, resized, and their labels if known; shuffled, always the same way."""
    if name not in sources and name != "digits":
        raise DataError(
            f"where are the images {name!r}? Give --images {name}=FILE, a folder or hub:NAME"
        )
    source = sources.get(name, name)
    read = read_images(source, size=(shape[1], shape[2]), channels=shape[0])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(read.images)))
    labels = load_labels(source)
    if labels is None:
        return read.images[order], None
    if len(labels) != len(order):
        raise DataError(
            f"{source} has {counted(len(labels), 'label')} for {counted(len(order), 'image')}, "
            "expected one for each: mend or remove them"
        )
    return read.images[order], labels[order]


def check_enough(name: str, images: Tensor) -> None:
    """Refuse images of which too few would be left for training, a third of them being the test."""
    least = 3 * MIN_REAL // 2 if name in DIGITS else 3
    if len(images) < least:
        raise DataError(
            f"--images {name} has {counted(len(images), 'image')}; give at least {least}, of which "
            "a third tests what was trained on the others"
        )


def digest_images(images: Tensor) -> str:
    """The digest of images in 8 bits a value, so that no rounding of a resize enters."""
    return digest(((images + 1) * 127.5).round().byte().numpy().tobytes())[:16]


def _split_images(cell: Cell, sources: Sources) -> CellData:
    """The first images train, the last ones test; at most a third of all are kept for the test."""
    images, labels = read_source(cell.data.source, cell.family.shape, sources)
    if digest_images(images) != cell.data_sha256:
        raise DataError(
            f"the images {cell.data.source!r} are not those of the cell: they have changed"
        )
    num_test = min(cell.sampling.num_samples, len(images) // 3)
    num_train = min(cell.num_data, len(images) - num_test)
    return CellData(
        train=images[:num_train],
        test=images[len(images) - num_test :],
        labels=None if labels is None else labels[:num_train],
        num_train=num_train,
        num_test=num_test,
    )


def with_anatomy(
    cell: Cell,
    data: CellData,
    turned: Rotation,
    model: ScoreModel,
    y: Tensor,
    evaluation: Evaluation,
) -> Evaluation:
    """An evaluation of samples `y` with the errors of their model, along the data and off them."""
    finite = y[y.flatten(1).isfinite().all(dim=1)]
    return replace(
        evaluation,
        denoising=measure_anatomy(
            model, data.test, data.train, rotation=turned, seed=seed_of(cell, "anatomy")
        ).summary,
        energies=energy_parts(finite, data.test, data.train) if len(finite) else None,
    )


class _Clock:
    """Seconds that earlier, killed attempts at a cell took, kept beside its checkpoint."""

    def __init__(self, path: Path):
        self._path = path
        self.total = _left(_Spent, path).seconds if path.exists() else 0.0
        self._started = self._saved = time.perf_counter()

    def tick(self) -> None:
        now = time.perf_counter()
        if now - self._saved > 5:
            write_json(self._path, _Spent(self.total + now - self._started))
            self._saved = now


def _means(values: Tensor, count: int) -> tuple[float, ...]:
    """Means over at most `count` equal parts."""
    return tuple(round(float(part.mean()), 6) for part in values.chunk(min(count, len(values))))
