"""Compute one cell: data, training, samples, distances; resumed where it was left."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.alignment import rotation
from sads.classify import classify
from sads.data.bases import basis
from sads.data.images import read_images
from sads.data.labels import load_labels
from sads.data.source import SPHERE_DIRECTIONS
from sads.data.synthetic import rank_one, sphere
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import sample
from sads.diffusion.train import train, versions
from sads.errors import CheckpointError, DataError, InvalidArgumentError
from sads.experiments.spec import Cell, GeometrySpec
from sads.experiments.store import Record, Store
from sads.files import write_json
from sads.geometry.estimate import estimate_geometry
from sads.geometry.geometry import Geometry
from sads.metrics import sliced_wasserstein

LOSS_POINTS = 100  # of the loss curve that a record keeps
DIGITS = ("images:digits", "images:mnist")  # what samples show can be judged
CHECKPOINTS = 20  # of a training, at most one an update

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
            with one_thread():
                report = report or (lambda share: None)
                record = _resume(cell, store, work, sources or {}, report, device)
        store.clear_work(cell)
        return record


def _resume(
    cell: Cell, store: Store, work: Path, sources: Sources, report: Report, device: str
) -> Record:
    """From where an earlier attempt was left, or from the start if that cannot be read.

    A checkpoint may be damaged, or belong to a geometry that has been estimated anew since.
    """
    try:
        return _compute(cell, store, work, sources, report, device)
    except (CheckpointError, json.JSONDecodeError):
        for path in work.iterdir():
            if path.name != "lock":
                path.unlink()
        return _compute(cell, store, work, sources, report, device)


def _compute(
    cell: Cell, store: Store, work: Path, sources: Sources, report: Report, device: str
) -> Record:
    started = time.perf_counter()
    spent = _Clock(work / "seconds.json")
    geometry = get_geometry(cell.geometry, store)
    data = make_data(cell, geometry, sources)
    turned = rotation(geometry, data.train, cell.rotation)
    facts = {**data.facts, "alpha": turned.alpha, "alpha_error": turned.alpha_error}
    x = turned.apply(data.train)
    budget = cell.budget
    evaluations = []
    for iterations in cell.evaluations:
        path = work / f"evaluation-{iterations}.json"
        if path.exists():
            evaluations.append(json.loads(path.read_text()))
            continue
        model = _train(cell, x, iterations, work, spent, report, device)
        y = turned.undo(_sample(cell, model, iterations, report, device))
        evaluations.append({"iterations": iterations, **_measure(cell, data, y)})
        if iterations < budget.iterations:
            write_json(path, evaluations[-1])
    folder = store.new_folder(cell)
    if cell.keep_samples:
        np.savez_compressed(folder / "samples.npz", images=y[: cell.keep_samples].numpy())
    seconds = spent.total + time.perf_counter() - started
    made_with = {**versions(), "device": device}
    losses = _means(model.losses.double(), LOSS_POINTS)
    record = Record(cell, evaluations, losses, facts, round(seconds, 2), made_with, {})
    return store.put(record, folder)


def _train(
    cell: Cell,
    x: Tensor,
    iterations: int,
    work: Path,
    spent: "_Clock",
    report: Report,
    device: str,
) -> ScoreModel:
    """The cell's model after some updates, from its checkpoint on."""
    budget = cell.budget

    def progress(done: int, total: int, loss: float) -> None:
        spent.tick()
        report(done / budget.iterations)

    return train(
        cell.family.build(),
        x,
        iterations=iterations,
        batch_size=budget.batch_size,
        learning_rate=budget.learning_rate,
        seed=_seed(cell, "train"),
        checkpoint=work / "checkpoint.safetensors",
        checkpoint_every=math.ceil(budget.iterations / CHECKPOINTS),
        device=device,
        progress=progress,
    )


def _sample(cell: Cell, model: ScoreModel, iterations: int, report: Report, device: str) -> Tensor:
    budget = cell.budget
    return sample(
        model,
        budget.num_samples,
        steps=budget.steps,
        sampler=budget.sampler,
        seed=_seed(cell, f"sample {iterations}"),
        device=device,
        progress=lambda done, total, share: report(iterations / budget.iterations),
    )


def get_geometry(spec: GeometrySpec, store: Store) -> Geometry:
    """A geometry from the store, or estimated and kept there."""
    geometry = store.geometry(spec)
    if geometry is None:
        geometry = estimate_geometry(spec.family.build(), spec.num_networks, seed=spec.seed)
        store.put_geometry(spec, geometry)
    return geometry


@dataclass(frozen=True, eq=False)
class CellData:
    """What a cell trains on and is measured against, and what is known of it."""

    train: Tensor  # (N, *shape)
    test: Tensor  # (M, *shape), of which none is in `train`
    facts: dict[str, Any]
    labels: Tensor | None = None  # (N,), of `train`


def make_data(cell: Cell, geometry: Geometry, sources: Sources) -> CellData:
    kind, _, rest = cell.data.partition(":")
    if kind == "images":
        return _split_images(cell, rest, sources)
    sizes = {"train": cell.budget.num_data, "test": cell.budget.num_samples}
    if kind == "sphere":
        directions = geometry.directions()
        ends = directions.preferred if rest == "preferred" else directions.avoided
        vectors = ends(SPHERE_DIRECTIONS)
        draws = {k: sphere(vectors, n, _seed(cell, k)) for k, n in sizes.items()}
        energy = geometry.energy(vectors[0])
        return CellData(**draws, facts={"energy": energy.value, "energy_error": energy.error})
    vector = data_vector(cell, geometry)
    energy = geometry.energy(vector)
    draws = {k: rank_one(vector, n, _seed(cell, k)) for k, n in sizes.items()}
    return CellData(**draws, facts={"energy": energy.value, "energy_error": energy.error})


def data_vector(cell: Cell, geometry: Geometry) -> Tensor:
    """The direction of a cell's rank-one data, (*shape), unit."""
    kind, *rest = cell.data.split(":")
    if kind == "basis":
        return basis(rest[0], cell.family.shape).vectors[int(rest[1])]
    directions = geometry.directions()
    if kind == "eigenvector":
        return directions.vectors[int(rest[0])]
    if kind == "subspace":
        start, stop, rank = map(int, rest)
        span = directions.vectors[start:stop]
        generator = torch.Generator().manual_seed(_seed(cell, f"direction {rank}"))
        # A Gaussian vector projected on the span: it does not depend on the basis of the span.
        ambient = torch.randn(cell.family.shape, generator=generator, dtype=torch.float64)
        vector = torch.einsum("k...,k->...", span, span.flatten(1) @ ambient.flatten())
        return vector / vector.norm()
    raise InvalidArgumentError(f"a cell cannot have the data {cell.data!r}; see sads.experiments")


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
            f"{source} has {len(labels)} labels for {len(order)} images, expected one for each: "
            "mend or remove them"
        )
    return read.images[order], labels[order]


def digest_images(images: Tensor) -> str:
    """Of images as users see them: 8 bits a value, so that no rounding of a resize enters."""
    return hashlib.sha256(((images + 1) * 127.5).round().byte().numpy().tobytes()).hexdigest()[:16]


def _split_images(cell: Cell, name: str, sources: Sources) -> CellData:
    """The first images train, the last ones test; at most a third of all are kept for the test."""
    images, labels = read_source(name, cell.family.shape, sources)
    if digest_images(images) != cell.data_sha256:
        raise DataError(f"the images {name!r} are not those of the cell: they have changed")
    num_test = min(cell.budget.num_samples, len(images) // 3)
    num_train = min(cell.budget.num_data, len(images) - num_test)
    facts = {"num_train": num_train, "num_test": num_test}
    labels = None if labels is None else labels[:num_train]
    return CellData(images[:num_train], images[len(images) - num_test :], facts, labels)


def _measure(cell: Cell, data: CellData, y: Tensor) -> dict[str, Any]:
    """Distances of samples to fresh data; not finite samples are counted and left out."""
    whole = y.flatten(1).isfinite().all(dim=1)
    result: dict[str, Any] = {"finite_share": float(whole.double().mean())}
    if not whole.any():
        return {**result, "sw2": None, "sw2_error": None, "msw2": None}
    num_projections = cell.budget.projections_per_dimension * y[0].numel()
    distance = sliced_wasserstein(
        data.test, y[whole], num_projections=num_projections, seed=_seed(cell, "projections")
    )
    result |= {"sw2": distance.sw2, "sw2_error": distance.sw2_error, "msw2": distance.msw2}
    if cell.data in DIGITS:
        result |= _judge_digits(y, data)
    return result


def _judge_digits(y: Tensor, data: CellData) -> dict[str, Any]:
    """How many samples hold no digit, and which digits the others are."""
    judged = classify(y, data.train, data.labels)
    result: dict[str, Any] = {
        "without_digit": judged.share_without_digit,
        "without_digit_of_real": judged.held_out_without_digit,
    }
    if judged.classes:
        result |= {
            "class_shares": judged.shares.tolist(),
            "class_entropy": judged.entropy,
            "classifier_accuracy": judged.accuracy,
        }
    if 1 in judged.classes:
        result["share_of_ones"] = float(judged.shares[judged.classes.index(1)])
    return result


class _Clock:
    """Seconds that earlier, killed attempts at a cell took, kept beside its checkpoint."""

    def __init__(self, path: Path):
        self._path = path
        self.total = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
        self._started = self._saved = time.perf_counter()

    def tick(self) -> None:
        now = time.perf_counter()
        if now - self._saved > 5:
            write_json(self._path, {"seconds": self.total + now - self._started})
            self._saved = now


@contextmanager
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _means(values: Tensor, count: int) -> list[float]:
    """Means over at most `count` equal parts."""
    return [round(float(part.mean()), 6) for part in values.chunk(min(count, len(values)))]


def _seed(cell: Cell, purpose: str) -> int:
    """A seed of its own for each purpose; cells that differ in their seed only share nothing.

    Cells of one seed share initial weights, noise and projections: their differences are paired.
    """
    content = hashlib.sha256(f"{purpose},{cell.seed}".encode()).digest()
    return int.from_bytes(content[:6], "little")
