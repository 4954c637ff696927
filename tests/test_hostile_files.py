"""Files from outside never cause a traceback, a hang, a gigabyte of memory or code execution.

Every reader of ours is fed with mutated valid files. Each case ends in the reader's own error, of
one line, or in an object that passes its own checks. Images have a file of their own,
`test_hostile_images.py`; the cache of compiled layers is tested in `test_cpu_c_code.py`.
"""

import ast
import io
import json
import math
import multiprocessing
import os
import re
import resource
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import sads
from mutations import (
    ODD,
    Change,
    Content,
    cases,
    deep,
    either,
    mutated,
    mutated_json,
    mutated_tree,
)
from sads.cli.main import main
from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.diffusion.checkpoints import TrainingState, load_checkpoint
from sads.diffusion.model import ScoreModel
from sads.diffusion.options import TrainingOptions
from sads.diffusion.train import new_state
from sads.errors import (
    AlignmentFileError,
    CheckpointError,
    DataError,
    GeometryFileError,
    OutputError,
    RotationFileError,
    SadsError,
    StoreError,
)
from sads.experiments import run as cells
from sads.experiments.archive import Archive
from sads.experiments.page import Summary, write_page
from sads.experiments.records import Record
from sads.experiments.spec import Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.verdict import Claim
from sads.files import opening, plain
from sads.from_json import decode
from sads.pipeline import Evaluation
from sads.report.alignment import AlignmentSource, alignment_section
from sads.report.page import make_page
from sads.rotations.alignment_file import Portrait, load_portrait
from sads.table1 import Sampling, Training
from sads.tensorfile import Pieces, TensorFile, write_tensors
from sads.unfinished import _digest
from sads.untrusted import open_regular, parse_json, read_json

SHAPE = (1, 4, 4)
FAMILY = FamilySpec("mlp", SHAPE, (("depth", 1), ("width", 8)))
CELL = Cell(
    geometry=GeometrySpec(FAMILY, 32),
    data=DataSpec.parse("rank-one:geometry:0"),
    num_data=40,
    training=Training(4, 20, 1e-3),
    sampling=Sampling(20, 3, projections_per_dimension=2),
    seed=0,
    layers=layers_name(),
    evaluate_at=(2, 4),
    keep_samples=3,
)
SECONDS = 5.0  # that one case may take
KILOBYTES = 400_000  # that memory may grow by, over all cases of a test


# ---------------------------------------------------------------------------------- valid files


@dataclass(frozen=True)
class Place:
    """Valid files of every kind, made once."""

    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("valid"))
    family = sads.family("cnn", SHAPE, channels=4, depth=2)
    geometry = sads.estimate_geometry(family, 32, seed=0)
    geometry.save(place / "geometry.safetensors")
    sads.estimate_geometry(sads.family("dit", SHAPE)).save(place / "exact.safetensors")
    x = sads.rank_one(geometry.directions().vectors[0], num_samples=64, seed=0)
    for kind in ("min", "identity", "random:3", "share:0.5"):
        sads.rotation(geometry, x, kind).save(place / f"{kind.split(':')[0]}.safetensors")
    Portrait.of(sads.pair(geometry, x), "data").save(place / "alignment.safetensors")
    for name, options in NETWORKS.items():
        trained = sads.family(name, SHAPE, **options)
        model = sads.train(
            trained, x, iterations=2, batch_size=16, checkpoint=place / f"{name}.checkpoint"
        )
        model.save(place / f"{name}.model")
    beside = sads.gaussian_skip(
        sads.family("mlp", SHAPE, prediction="v", **NETWORKS["mlp"]),
        torch.randn(40, *SHAPE),
        rank=5,
    )
    sads.train(beside, x, iterations=2, batch_size=16, centre=True).save(place / "skip.model")
    store = Store(place / "out/store")
    record = cells.run_cell(CELL, store)
    assert record is not None
    Store(place / "out/store", archive=place / "out").to_archive([record])
    np.savez(place / "samples.npz", images=x.numpy())
    (place / "samples.json").write_text(json.dumps({"shape": SHAPE}))
    (place / "evaluation.json").write_text(json.dumps(plain(record.evaluations[0])))
    summary().save(place.folder)
    return place


NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"width": 4, "depth": 1},
    "cnn": {"channels": 4, "depth": 2},
    "dit": {"hidden_size": 8, "depth": 1, "num_heads": 2},
    "iddpm": {"channels": 32, "channel_mults": (1,)},
}


def summary() -> Summary:
    return Summary(
        figure="fig6",
        title="a figure",
        scale="smoke",
        panels=("dit-4",),
        command="sads reproduce fig6",
        claims=(Claim("it holds", "1 of 1", "supported"),),
        columns={"sw2": "SW2", "name": "name"},
        table=({"sw2": {"value": 1.0, "error": 0.1}, "name": "a"},),
        notes=("a note",),
        pictures={"fig6": "fig6.png"},
    )


# -------------------------------------------------------------------- readers, and what they give


@dataclass(frozen=True)
class Reader:
    """How a kind of file is read, what of it must work then, and its error."""

    files: tuple[str, ...]
    read: Callable[[Path], Any]
    use: Callable[[Any], None]
    failure: type[SadsError]


def use_geometry(geometry: sads.Geometry) -> None:
    directions = geometry.directions()
    assert directions.values.isfinite().all()
    assert (directions.values >= 0).all()
    assert directions.vectors.shape == (geometry.dimension, *geometry.shape)
    assert directions.vectors.isfinite().all()
    assert geometry.matrix().isfinite().all()
    assert math.isfinite(geometry.energy(directions.preferred()).value)
    assert not math.isnan(geometry.whitened_error())
    assert "\n" not in repr(geometry)


def use_rotation(rotation: sads.Rotation) -> None:
    x = torch.randn(3, *rotation.shape, dtype=torch.float64)
    turned = rotation.apply(x)
    torch.testing.assert_close(rotation.undo(turned), x, rtol=0, atol=1e-4)
    torch.testing.assert_close(turned.square().sum(), x.square().sum(), rtol=1e-4, atol=0)


def use_portrait(portrait: Portrait) -> None:
    """What is read can be shown, however odd its numbers are."""
    source = AlignmentSource(
        portrait.alignment,
        tuple(portrait.spectrum.shares),
        "sads align",
        "data",
        "g",
        None,
        portrait,
    )
    make_page("data", [alignment_section(source, "s1")])


def use_model(model: ScoreModel) -> None:
    x = torch.zeros(2, *model.family.shape)
    with torch.no_grad():
        assert model.network(x, torch.ones(2)).shape == x.shape
    assert len(model.family.schedule.sigma) == model.family.schedule.num_levels
    assert model.losses.ndim == 1
    assert model.mean is None or model.mean.isfinite().all()
    if (skip := model.family.skip) is not None:
        level = torch.tensor([model.family.schedule.num_levels // 2])
        with_skip = model.family.with_skip(x, x, level)
        assert with_skip.shape == x.shape
        assert not with_skip.isnan().any()
        assert 1 <= skip.rank <= skip.dimension


def fresh_state() -> tuple[TrainingState, dict[str, Any]]:
    family = sads.family("mlp", SHAPE, **NETWORKS["mlp"])
    return new_state(family, TrainingOptions(), torch.device("cpu")), {"family": family.describe()}


def read_checkpoint(path: Path) -> TrainingState:
    state, identity = fresh_state()
    load_checkpoint(state, path, identity)
    return state


def use_state(state: TrainingState) -> None:
    """It can go on training."""
    x = torch.zeros(2, *SHAPE)
    state.network(x, torch.ones(2)).square().mean().backward()
    state.optimiser.step()
    assert all(math.isfinite(loss) for loss in state.losses)


def read_store(path: Path) -> Record | None:
    """A store in which one file was exchanged: of the cell, or the mark."""
    store = Store(path)
    records = store.records()
    found = store.get(CELL)
    assert (found is None) == (CELL.hash not in records)
    if found is None:
        assert len(store.take_notes()) <= 1
    else:
        assert store.samples(found).shape == (CELL.keep_samples, *SHAPE)
    return found


def use_record(record: Record | None) -> None:
    if record is not None:
        assert record.cell == CELL
        assert isinstance(record.last.sw2, float)
        assert json.dumps(record.to_json())


def read_archive(path: Path) -> Record | None:
    archive = Archive.read(path)
    record = archive.records.get(CELL.hash)
    if record is not None and record.files:
        assert archive.samples(record).ndim == 4
    archive.write_geometries([("hash", "sum", "command")])
    return record


def use_summary(loaded: Summary | None) -> None:
    if loaded is not None:
        assert loaded.columns is not None


def use_evaluation(evaluation: Evaluation) -> None:
    assert isinstance(evaluation.sw2, float)
    assert isinstance(evaluation.msw2, float)


def read_summary(path: Path) -> Summary | None:
    shutil.copy(path, path.parent / "fig6.json") if path.name != "fig6.json" else None
    loaded = Summary.load(path.parent, "fig6")
    write_page(path.parent, ["fig6"])
    return loaded


TENSOR_FILES = {
    "geometry": Reader(
        ("geometry.safetensors", "exact.safetensors"),
        sads.load_geometry,
        use_geometry,
        GeometryFileError,
    ),
    "rotation": Reader(
        tuple(f"{kind}.safetensors" for kind in ("min", "identity", "random", "share")),
        sads.load_rotation,
        use_rotation,
        RotationFileError,
    ),
    "portrait": Reader(
        ("alignment.safetensors",),
        load_portrait,
        use_portrait,
        AlignmentFileError,
    ),
    "model": Reader(
        tuple(f"{name}.model" for name in ("mlp", "cnn", "dit", "skip")),
        sads.load_model,
        use_model,
        CheckpointError,
    ),
    "checkpoint": Reader(("mlp.checkpoint",), read_checkpoint, use_state, CheckpointError),
}
JSON_FILES = {
    "summary": Reader(("fig6.json",), read_summary, use_summary, StoreError),
    "work": Reader(
        ("evaluation.json",),
        lambda path: cells._left(Evaluation, path),
        use_evaluation,
        CheckpointError,
    ),
}


def try_reading(reader: Reader, path: Path) -> str | None:
    """Reads and uses a file; the text of the error, if it is refused."""
    started = time.perf_counter()
    try:
        loaded = reader.read(path)
    except reader.failure as error:
        text = str(error)
        assert text.isprintable(), text
        assert len(text) < 1500
        return text
    finally:
        assert time.perf_counter() - started < SECONDS
    reader.use(loaded)
    return None


@pytest.fixture
def bounded() -> Iterator[None]:
    """All cases of a test together do not make the process grow."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KILOBYTES


# ------------------------------------------------------------------------- mutated tensor files


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and numbers of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(header: Any, numbers: bytes) -> Content:
    text = json.dumps(header).encode()
    return Content(len(text).to_bytes(8, "little") + text + numbers)


def mutated_metadata(content: bytes) -> Change[bytes]:
    """A word of the metadata replaced, or its JSON mutated."""

    def change(chance: Random) -> bytes:
        header, numbers = split(content)
        metadata = header["__metadata__"]
        key = chance.choice(sorted(metadata))
        try:
            tree = json.loads(metadata[key])
        except ValueError:
            tree = metadata[key]
        if isinstance(tree, dict | list):
            changed = mutated_tree(tree)(chance)
        else:
            changed = chance.choice(chance.choice(ODDS))
        metadata[key] = changed if isinstance(changed, str) else json.dumps(changed)
        return join(header, numbers)

    return change


def mutated_header(content: bytes) -> Change[bytes]:
    """The header's own JSON mutated: types, shapes, places."""
    header, numbers = split(content)
    change = mutated_tree(header)
    return lambda chance: join(change(chance), numbers)


def mutated_tensors(content: bytes) -> Change[bytes]:
    """Tensors of other types and shapes, missing, added, and with numbers that are none."""
    header, _ = split(content)

    def change(chance: Random) -> bytes:
        tensors = load_tensors(content)
        for _ in range(chance.randint(1, 2)):
            name = chance.choice(sorted(tensors))
            kind = chance.choice(sorted(CHANGES))
            changed = CHANGES[kind](tensors[name], chance.randint(0, 10**6))
            if changed is None:
                del tensors[name]
                if not tensors:
                    break
            else:
                tensors[name] = changed.contiguous()
        return Content(save_tensors(tensors, header["__metadata__"]))

    return change


def with_number(x: Tensor, index: int, value: float) -> Tensor:
    flat = x.clone().flatten()
    if len(flat):
        whole = not x.is_floating_point()
        flat[index % len(flat)] = int(max(-(2**62), min(2**62, value))) if whole else value
    return flat.reshape(x.shape)


CHANGES: dict[str, Callable[[Tensor, int], Tensor | None]] = {
    "missing": lambda x, _: None,
    "half": lambda x, _: x.half(),
    "single": lambda x, _: x.float(),
    "double": lambda x, _: x.double(),
    "whole": lambda x, _: x.nan_to_num().to(torch.int32),
    "flat": lambda x, _: x.flatten(),
    "one more axis": lambda x, _: x[None],
    "shorter": lambda x, _: x.flatten()[:-1],
    "longer": lambda x, _: torch.cat([x.flatten(), x.flatten()]),
    "empty": lambda x, _: x.flatten()[:0],
    "one": lambda x, _: x.flatten()[:1],
    "doubled": lambda x, _: 2 * x,
    "negative": lambda x, _: -x,
    "zeros": lambda x, _: torch.zeros_like(x),
    "reversed": lambda x, _: x.flip(0) if x.ndim else x,
    "nan": lambda x, i: with_number(x, i, 2**62 if not x.is_floating_point() else math.nan),
    "infinite": lambda x, i: with_number(x, i, -(2**62) if x.ndim == 1 else math.inf),
    "huge": lambda x, i: with_number(x, i, 1e300 if x.dtype == torch.float64 else 1e30),
    "minus one": lambda x, i: with_number(x, i, -1.0),
    "slightly off": lambda x, i: with_number(x, i, 1e-3),
}
ODDS = ([odd for odd in ODD if isinstance(odd, str)], [json.dumps(odd) for odd in ODD])


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("kind", TENSOR_FILES)
def test_mutated_tensor_files_are_refused_in_one_line_or_valid(
    kind: str, valid: Place, tmp_path: Path
) -> None:
    reader = TENSOR_FILES[kind]
    share = Fraction(1, 2) if kind in ("model", "checkpoint") else 1  # they take longer
    originals = [Content((valid / name).read_bytes()) for name in reader.files]
    path = tmp_path / "file.safetensors"
    outcomes = {"refused": 0, "valid": 0}

    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        outcomes["valid" if try_reading(reader, path) is None else "refused"] += 1

    for original in originals:
        attempt(original)
    assert outcomes == {"refused": 0, "valid": len(originals)}
    for count, change in (
        (200, lambda data: mutated(data, head=8 + len(data) // 4)),
        (300, mutated_metadata),
        (100, mutated_header),
        (200, mutated_tensors),
    ):
        for content in cases(int(share * count), either(*map(change, originals))):
            attempt(content)
    assert outcomes["refused"] > 150
    assert outcomes["valid"] > 5


def test_what_our_reader_of_tensors_takes_is_what_safetensors_takes(tmp_path: Path) -> None:
    """It is stricter than the reference, and never gives other numbers."""
    content = save_tensors(
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}, {"w": "x"}
    )
    path = tmp_path / "reference.safetensors"
    for changed in cases(300, either(mutated(content), mutated_header(content))):
        path.write_bytes(changed)
        compare_with_the_reference(path)


def compare_with_the_reference(path: Path) -> None:
    try:
        with open_regular(path) as file:
            ours = TensorFile(file)
            read = dict(ours)
    except (ValueError, OSError):
        return
    with safe_open(path, framework="pt") as reference:
        assert ours.metadata == (reference.metadata() or {})
        assert sorted(read) == sorted(reference.keys())
        for name in read:
            torch.testing.assert_close(
                read[name], reference.get_tensor(name), rtol=0, atol=0, equal_nan=True
            )


# --------------------------------------------------------------------------- mutated JSON files


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("kind", JSON_FILES)
def test_mutated_json_is_refused_or_valid(
    kind: str, valid: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = JSON_FILES[kind]
    monkeypatch.setattr("sads.experiments.page.describe_commit", str)  # it would ask git each time
    path = tmp_path / reader.files[0]
    original = (valid / reader.files[0]).read_bytes()

    for content in cases(400, either(mutated(original), mutated_json(original))):
        path.write_bytes(content)
        try_reading(reader, path)


STORE_FILES = (
    "sads-store.json",
    f"cells/{CELL.hash}/record.json",
    f"cells/{CELL.hash}/samples.npz",
    f"geometries/{CELL.geometry.hash}.safetensors",
)


def try_folder(
    folder: Path, file: str, place: Path, reader: Reader, count: int, check: Callable[[], None]
) -> None:
    """Read copies of a folder in which one file was mutated."""
    original = (folder / file).read_bytes()
    change = mutated(original)
    if file.endswith((".json", ".jsonl")):
        change = either(mutated_json(original), change)
    for content in cases(count, change):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place, ignore=shutil.ignore_patterns("store"))
        (place / file).write_bytes(content)
        try_reading(reader, place)
        check()


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("file", STORE_FILES)
def test_a_mutated_store(file: str, valid: Place, tmp_path: Path) -> None:
    """A cell is whole or set aside, a geometry is whole or made again, the mark is ours or not."""
    place = tmp_path / "store"

    def check() -> None:
        if file.startswith("geometries"):
            geometry = Store(place).geometry(CELL.geometry)
            assert geometry is None or geometry.shape == SHAPE

    reader = Reader((), read_store, use_record, StoreError)
    try_folder(valid / "out/store", file, place, reader, 120, check)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("file", ["records.jsonl", "geometries.json", f"samples/{CELL.hash}.npz"])
def test_a_mutated_archive(file: str, valid: Place, tmp_path: Path) -> None:
    reader = Reader((), read_archive, use_record, StoreError)
    try_folder(valid / "out", file, tmp_path / "out", reader, 200, lambda: None)


def rewritten(valid: Place, place: Path, files: dict[str, str]) -> Store:
    """A store whose record names these files, digests and all."""
    shutil.copytree(valid / "out/store", place)
    path = place / f"cells/{CELL.hash}/record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "files": files}))
    return Store(place)


@pytest.mark.parametrize(
    "name", ["../../../secret", "/etc/hostname", "a/../../../secret", "..", ".", "", "a\\b", "a\0"]
)
def test_files_of_a_record_do_not_leave_its_folder(
    name: str, valid: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        "os.open",
        lambda path, *rest, **more: (opened.append(str(path)), real(path, *rest, **more))[1],
    )
    store = rewritten(valid, tmp_path / "store", {name: "0" * 64})
    assert store.get(CELL) is None
    assert "no name" in store.take_notes()[0]
    assert not [path for path in opened if "secret" in path or "etc" in path]


def test_samples_that_unpack_to_gigabytes_are_refused(valid: Place, tmp_path: Path) -> None:
    """The digest in the record is right, as whoever made the bomb could compute it, too."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 26, *SHAPE)}
    )
    store = rewritten(valid, tmp_path / "store", {})
    path = tmp_path / f"store/cells/{CELL.hash}/samples.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header.getvalue())
        for _ in range(256):
            stream.write(bytes(1 << 20))
    record = path.with_name("record.json")
    content = json.loads(record.read_text())
    content["files"] = {"samples.npz": sads.files.file_digest(path)}
    record.write_text(json.dumps(content))
    found = store.get(CELL)
    assert found is not None
    with pytest.raises(StoreError, match="move the cell away"):
        store.samples(found)


def test_what_is_left_of_a_killed_attempt_may_be_anything(valid: Place, tmp_path: Path) -> None:
    """Work files are used if they are whole; the numbers are the same whatever is in them."""
    shutil.copytree(valid / "out/store", tmp_path / "store")
    undisturbed = Store(valid / "out/store").get(CELL)
    for number, content in enumerate((b"null", b"[]", b'{"seconds": "x"}', b"\xff", b"[" * 9000)):
        shutil.rmtree(tmp_path / "store/cells")
        store = Store(tmp_path / "store")
        with store.work_folder(CELL) as work:
            assert work is not None
            for name in ("seconds.json", "evaluation-2.json", "checkpoint.safetensors"):
                (work / name).write_bytes(content)
            (work / "folder").mkdir()
        record = cells.run_cell(CELL, store)
        assert record is not None, number
        assert undisturbed is not None
        assert record.evaluations == undisturbed.evaluations


# ----------------------------------------------------------------- absurd claims, little memory


def test_a_header_that_is_most_of_a_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    path.write_bytes((1 << 32).to_bytes(8, "little"))
    os.truncate(path, 8 + (1 << 32))
    with pytest.raises(GeometryFileError, match="its header has 4,294,967,296 bytes"):
        sads.load_geometry(path)


def test_a_key_that_is_there_twice_is_found_at_once() -> None:
    keys = [f'"{i:x}":0' for i in range(100_000)]
    with pytest.raises(ValueError, match="'1869f' is there twice"):
        parse_json("{" + ",".join([*keys, keys[-1]]) + "}")


def test_more_tensors_than_a_header_holds_are_not_written(tmp_path: Path) -> None:
    nothing = Pieces("float32", (0,), tuple)
    tensors = {f"{i:0100d}": nothing for i in range(60_000)}
    with pytest.raises(OutputError, match="60,001 tensors are more than"):
        write_tensors(tmp_path / "many.safetensors", tensors, {})


def claims() -> dict[str, tuple[str, Callable[[Place], bytes]]]:
    """Files that claim absurd things, by name: the reader, and how the file is made."""

    def model(name: str, /, **options: Any) -> Callable[[Place], bytes]:
        return lambda valid: with_family(valid / f"{name}.model", {"options": options})

    def family(name: str, /, **fields: Any) -> Callable[[Place], bytes]:
        return lambda valid: with_family(valid / f"{name}.model", fields)

    def geometry(**words: str) -> Callable[[Place], bytes]:
        return lambda valid: with_words((valid / "geometry.safetensors").read_bytes(), **words)

    def header(make: Callable[[], bytes]) -> Callable[[Place], bytes]:
        return lambda valid: make()

    def many() -> bytes:
        entry = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
        return join({f"t{i}": entry for i in range(200_000)}, b"")

    huge = {"a": {"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]}}
    return {
        "a billion channels": ("model", model("iddpm", channels=31_250_000 * 32)),
        "a billion layers": ("model", model("mlp", depth=10**9)),
        "a billion blocks": ("model", model("dit", depth=10**9)),
        "a billion convolutions": ("model", model("cnn", depth=10**9)),
        "a billion residual blocks": ("model", model("iddpm", depth=10**9)),
        "a million levels": ("model", model("iddpm", channel_mults=[1] * 10**5)),
        "a width of a million": ("model", model("mlp", width=10**6)),
        "negative heads": ("model", model("dit", num_heads=-2)),
        "no heads": ("model", model("dit", num_heads=0)),
        "an MLP of a large picture": ("model", family("mlp", shape=[3, 10**4, 10**4])),
        "a DiT of a large picture": ("model", family("dit", shape=[1, 8192, 8192])),
        "a picture of 10^24 pixels": ("model", family("cnn", shape=[1, 10**12, 10**12])),
        "many axes": ("model", family("cnn", shape=[1] * 10**5)),
        "a trillion levels": (
            "model",
            family("cnn", schedule={"name": "cosine", "num_levels": 10**12}),
        ),
        "options that are arguments": ("model", model("mlp", schedule="cosine", shape=[1])),
        "a name that is a module": ("model", family("mlp", name="os:system")),
        "no groups": ("geometry", geometry(groups="0")),
        "negative groups": ("geometry", geometry(groups="-1")),
        "a trillion groups": ("geometry", geometry(groups=str(10**12))),
        "a number of 10^4 digits": ("geometry", geometry(groups="9" * 10**4)),
        "a large shape": ("geometry", geometry(shape="[1000000, 1000000]")),
        "a newer version": ("geometry", geometry(format_version="9" * 100)),
        "deep JSON": ("geometry", geometry(provenance="[" * 10**5 + "]" * 10**5)),
        "JSON that is just too deep": ("geometry", geometry(provenance=json.dumps(deep(40)))),
        "long JSON": ("geometry", geometry(provenance="[" + "[]," * 2_000_000 + "1]")),
        "the same key twice": ("geometry", geometry(provenance='{"family": {}, "family": {}}')),
        "a huge tensor": ("geometry", header(lambda: join(huge, b""))),
        "a header of 10^18 bytes": (
            "geometry",
            header(lambda: b"\xff" * 7 + b"\0{}"),
        ),
        "a hundred thousand tensors": ("geometry", header(many)),
        "an absurd rotation": (
            "rotation",
            lambda valid: with_words(
                (valid / "min.safetensors").read_bytes(), kind="random:1" + "0" * 400
            ),
        ),
    }


def with_words(content: bytes, **words: str) -> bytes:
    header, numbers = split(content)
    return join({**header, "__metadata__": {**header["__metadata__"], **words}}, numbers)


def with_family(path: Path, fields: dict[str, Any]) -> bytes:
    """The file of a model with another description of its family."""
    content = path.read_bytes()
    described = json.loads(split(content)[0]["__metadata__"]["family"])
    if "options" in fields:
        fields = {**fields, "options": {**described["options"], **fields["options"]}}
    return with_words(content, family=json.dumps({**described, **fields}))


def refuse_all(place: Place, folder: Path) -> None:
    """In a process with half a gigabyte more than it has: each claim is refused, and quickly."""
    torch.set_num_threads(1)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), used + (1 << 29)))
    for name, (kind, make) in claims().items():
        path = folder / "claim.safetensors"
        path.write_bytes(make(place))
        text = try_reading(TENSOR_FILES[kind], path)
        assert text is not None, name
    path = folder / "sparse.safetensors"
    entry = {"dtype": "F64", "shape": [1 << 37], "data_offsets": [0, 1 << 40]}
    path.write_bytes(join({"order": entry, "__metadata__": {"format": "sads-geometry"}}, b""))
    os.truncate(path, path.stat().st_size + (1 << 40))  # a terabyte of nothing
    assert try_reading(TENSOR_FILES["geometry"], path) is not None


def test_absurd_claims_are_refused_in_little_memory(valid: Place, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=refuse_all, args=(valid, tmp_path))
    started = time.perf_counter()
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("claim", ["a billion channels", "a billion layers", "negative heads"])
def test_claims_are_refused_for_their_own_reason(claim: str, valid: Place, tmp_path: Path) -> None:
    """Not by chance: the same file without the claim is read."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(claims()[claim][1](valid))
    text = try_reading(TENSOR_FILES["model"], path)
    assert text is not None
    assert re.search(
        "larger than its weights|more layers than weights|cannot be built|num_heads|expected|shape",
        text,
    ), text


# -------------------------------------------------------------- work under way that was kept


def sealed(content: bytes) -> bytes:
    """A partial file whose digest is right, as whoever changed it could compute it, too."""
    header, _ = split(content)
    tensors = load_tensors(content)
    words = {**header["__metadata__"], "sha256": _digest(tensors)}
    return save_tensors(tensors, words)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("kind", ["geometry", "samples"])
def test_work_under_way_is_continued_or_refused(kind: str, valid: Place, tmp_path: Path) -> None:
    """The numbers of a file that somebody changed are used only if they fit."""
    path = tmp_path / "partial.safetensors"
    family = sads.family("cnn", SHAPE, channels=4, depth=2)
    model = sads.load_model(valid / "mlp.model")

    def work(path: Path) -> Any:
        if kind == "geometry":
            return sads.estimate_geometry(family, 32, checkpoint=path, checkpoint_seconds=0)
        return sads.sample(
            model, 12, steps=2, batch_size=4, seed=0, checkpoint=path, checkpoint_seconds=0
        )

    def use(result: Any) -> None:
        if kind == "geometry":
            assert result.num_networks == 32
            assert result.factors.isfinite().all()
        else:
            assert result.shape == (12, *SHAPE)

    reader = Reader((), work, use, CheckpointError)
    work(path)
    original = Content(path.read_bytes())
    assert try_reading(reader, path) is None

    tensors = mutated_tensors(original)
    change = either(
        lambda chance: sealed(tensors(chance)),
        mutated_metadata(original),
        mutated(original, head=len(original) // 4),
    )
    for content in cases(60, change):
        path.write_bytes(content)
        try_reading(reader, path)


# ------------------------------------------------------------- what is not a file, or not ours


PLACES = ("empty", "folder", "pipe", "device", "endless", "missing", "loop", "text")


def make_place(kind: str, folder: Path) -> Path:
    path = folder / kind
    if kind in ("empty", "text"):
        path.write_text("some text\n" * (kind == "text"))
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    return {"device": Path("/dev/tty"), "endless": Path("/dev/zero")}.get(kind, path)


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("reader", [*TENSOR_FILES, "work"])
def test_what_is_not_a_file_is_one_line_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    path = make_place(kind, tmp_path)
    assert try_reading((TENSOR_FILES | JSON_FILES)[reader], path) is not None


def test_a_file_that_one_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's word is feigned."""
    (tmp_path / "g").write_bytes(b"")

    def refuse(path: object, *rest: object, **more: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("sads.untrusted.os.open", refuse)
    for reader in TENSOR_FILES.values():
        text = try_reading(reader, tmp_path / "g")
        assert text is not None
        assert "Permission denied" in text


@pytest.mark.parametrize("kind", PLACES)
def test_stores_archives_and_summaries_that_are_not_files(
    kind: str, valid: Place, tmp_path: Path
) -> None:
    odd = make_place(kind, tmp_path)
    (tmp_path / "fig6.json").symlink_to(odd)
    with pytest.raises(StoreError, match=r"fig6\.json is damaged or not ours"):
        Summary.load(tmp_path, "fig6")
    for place, name in (("a", "store/sads-store.json"), ("b", "records.jsonl")):
        shutil.copytree(valid / "out", tmp_path / place)
        (tmp_path / place / name).unlink()
        (tmp_path / place / name).symlink_to(odd)
        if kind in ("missing", "loop") or (kind == "empty" and name == "records.jsonl"):
            continue  # not there, or no records
        with pytest.raises(StoreError) as caught:
            Store(tmp_path / place / "store", archive=tmp_path / place)
        assert str(caught.value).isprintable()
    shutil.copytree(valid / "out", tmp_path / "c")
    samples = tmp_path / f"c/samples/{CELL.hash}.npz"
    samples.unlink()
    samples.symlink_to(odd)
    archive = Archive.read(tmp_path / "c")
    with pytest.raises(StoreError, match="cannot be read"):
        archive.samples(archive.records[CELL.hash])
    record = tmp_path / f"c/store/cells/{CELL.hash}/record.json"
    record.unlink()
    record.symlink_to(odd)
    assert Store(tmp_path / "c/store").get(CELL) is None


def test_a_file_that_is_cut_while_it_is_read_is_one_line(valid: Place, tmp_path: Path) -> None:
    """If it were mapped into memory, the process would be killed."""
    path = tmp_path / "g.safetensors"
    shutil.copy(valid / "geometry.safetensors", path)

    def read() -> None:
        with opening(path, "sads-geometry", GeometryFileError) as file:
            os.truncate(path, 400)
            file["factors"]

    with pytest.raises(GeometryFileError, match="cut"):
        read()


def test_what_was_read_does_not_change_with_the_file(valid: Place, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    shutil.copy(valid / "geometry.safetensors", path)
    geometry = sads.load_geometry(path)
    before = geometry.counts.clone(), geometry.lift.order.clone(), geometry.matrix()
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for old, new in zip(
        before, (geometry.counts, geometry.lift.order, geometry.matrix()), strict=True
    ):
        assert torch.equal(old, new)


def test_readers_at_the_same_time_do_not_disturb_each_other(valid: Place, tmp_path: Path) -> None:
    """Four threads read the same files, one of which is damaged; so does building networks."""
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(with_family(valid / "mlp.model", {"options": {"depth": 10**6}}))
    expected = sads.load_geometry(valid / "geometry.safetensors").matrix()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                assert torch.equal(
                    sads.load_geometry(valid / "geometry.safetensors").matrix(), expected
                )
                with pytest.raises(CheckpointError):
                    sads.load_model(bad)
                use_model(sads.load_model(valid / "mlp.model"))
                assert sads.family("cnn", SHAPE, channels=64).build()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


# ------------------------------------------------------------------------------------- commands


COMMANDS = {
    "align": "align digits --geometry BAD",
    "sample": "sample BAD",
    "evaluate": "evaluate BAD rank-one:dct:3",
    "evaluate against": "evaluate SAMPLES rank-one:BAD:0",
    "train": "train mlp rank-one:dct:3 --shape 1x4x4 --out run --iterations 1 --batch-size 8 "
    "--samples 64 --rotation BAD",
    "train on": "train mlp rank-one:BAD:0 --shape 1x4x4 --out run --iterations 1 --batch-size 8",
    "train for": "train mlp rank-one:dct:3 --shape 1x4x4 --out run --iterations 1 --batch-size 8 "
    "--samples 64 --rotation min --geometry BAD",
    "propositions": "theory propositions BAD",
    "theorem2": "theory theorem2 BAD",
    "predict": "theory predict BAD",
    "sphere": "train mlp sphere:BAD:preferred --shape 1x4x4 --out run --batch-size 8",
}


def run(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["sads", *text.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "null", "escape", "empty", "pipe"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_bad_files_with_one_line_and_status_2(
    command: str,
    damage: str,
    valid: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    original = (valid / "geometry.safetensors").read_bytes()
    bad = tmp_path / "bad.safetensors"
    if damage == "pipe":
        os.mkfifo(bad)
    else:
        bad.write_bytes(
            {
                "cut": original[:-7],
                "null": with_words(original, provenance="null", family="null", kind="null"),
                "escape": with_words(original, format="\x1b[2J\x1b[31m\nowned"),
                "empty": b"",
            }[damage]
        )
    text = COMMANDS[command].replace("BAD", "bad.safetensors")
    status, printed = run(text.replace("SAMPLES", str(valid / "samples.npz")), monkeypatch, capsys)
    lines = [line for line in printed.splitlines() if not line.startswith("note: ")]
    assert status == 2, printed
    assert len(lines) == 1, printed
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    assert not (tmp_path / "run/model.safetensors").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("store/sads-store.json", b"[]"),
        ("store/sads-store.json", b'{"format": "sads-store", "version": 1e400}'),
        ("store/sads-store.json", b"[" * 10**5),
        ("records.jsonl", b"null\n"),
        ("records.jsonl", b"\xff\xfe\n"),
        ("records.jsonl", b"[" * 10**5),
    ],
)
def test_reproduce_refuses_a_damaged_folder(
    file: str,
    content: bytes,
    valid: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(valid / "out", tmp_path / "out")
    (tmp_path / "out" / file).write_bytes(content)
    status, printed = run(f"reproduce fig6 --out {tmp_path / 'out'}", monkeypatch, capsys)
    assert status == 2
    assert len(printed.splitlines()) == 1
    assert "damaged" in printed


def test_a_page_is_not_made_without_a_figure_that_cannot_be_read(
    valid: Place, tmp_path: Path
) -> None:
    """Claims are corrected for each other: without some of them the others would be too sure."""
    shutil.copy(valid / "fig6.json", tmp_path / "fig6.json")
    content = json.loads((valid / "fig6.json").read_text())
    content["table"] = [{"sw2": {"value": [], "error": 1}}]
    (tmp_path / "fig7.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"fig7\.json is damaged or not ours"):
        write_page(tmp_path, ["fig6", "fig7"])
    assert not (tmp_path / "README.md").exists()


# ----------------------------------------------------------------------------- what is printed


HOSTILE = "a\x1b[31mb\x07[bold]c[/bold]:smile:\rd\u202e"


def test_names_from_outside_cannot_move_the_cursor(
    valid: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Control characters are escaped, markup and emoji names stay as they are."""
    from sads.cli import printing

    printing.print_line(HOSTILE)
    printing.print_rows({"name": HOSTILE})
    printing.print_note(HOSTILE)
    printing.print_message(HOSTILE)
    printing.print_error(f"{HOSTILE}\nsecond line")
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(line.isprintable() for line in text.split("\n"))
        assert text.count("[bold]c[/bold]:smile:") >= 2
    assert "second line" in captured.err.splitlines()[-1]


def test_notes_of_a_geometry_are_printed_without_what_moves_the_cursor(
    valid: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A family of any name in pictures, too: it is no formula."""
    monkeypatch.chdir(tmp_path)
    original = (valid / "geometry.safetensors").read_bytes()
    provenance = json.loads(split(original)[0]["__metadata__"]["provenance"])
    provenance["family"]["name"] = f"$\\frac{{{HOSTILE}"
    provenance["notes"] = [HOSTILE]
    bad = tmp_path / "$x\x1b[2J.safetensors"
    bad.write_bytes(with_words(original, provenance=json.dumps(provenance)))
    monkeypatch.setattr(sys, "argv", ["sads", "theory", "predict", str(bad), "--out", "o"])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert stopped.value.code == 0, captured.err
    for text in (captured.out, captured.err):
        assert all(line.isprintable() for line in text.split("\n"))


# ---------------------------------------------------------------------------------- JSON, code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10**6, "deep"),
        (json.dumps(deep(40)), "deep"),
        ('"\\ud800"', "surrogates"),
        ('{"a": 1, "a": 1}', "twice"),
        ("9" * 10**4, "digits"),
        ('"' + "x" * (5 << 20) + '"', "longer"),
        (b"\xff\xfe", "utf-8"),
        ("", "Expecting"),
        ("{'a': 1}", "Expecting"),
    ],
)
def test_json_that_no_program_of_ours_writes(text: str | bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)


# Of every kind of character and every length in UTF-8; of all there are, Hypothesis makes a list.
KEYS = st.text("".join(map(chr, (*range(0x180), 0x5D0, 0x202E, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF))))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.recursive(st.sampled_from(ODD), lambda c: st.lists(c) | st.dictionaries(KEYS, c)))
def test_json_is_what_python_says_it_is(content: Any) -> None:
    text = json.dumps(content)
    try:
        found = parse_json(text)
    except ValueError:
        return
    assert json.dumps(found) == text


def test_decoding_gives_a_valid_object_or_its_own_error() -> None:
    for content in cases(300, mutated_json(json.dumps(CELL.to_json()).encode())):
        try:
            cell = Cell.from_json(json.loads(content))
        except ValueError:
            continue
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def test_nothing_is_unpickled_and_nothing_is_evaluated() -> None:
    """No call in the package that makes code of a file's content."""
    forbidden = {"eval", "exec", "compile", "__import__"}
    found = []
    for path in Path(sads.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [(path.name, n) for n in names if n.split(".")[0] in PICKLES]
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if (
                    name == "exec" and ast.unparse(node) == "exec('')"
                ):  # of no code at all: see cli/main.py
                    continue
                if name in forbidden or name in ("torch.load", "np.load", "numpy.load"):
                    found.append((path.name, name))
                if name.startswith(("os.system", "os.popen")):
                    found.append((path.name, name))
                for keyword in node.keywords:
                    if keyword.arg in ("allow_pickle", "shell", "trust_remote_code"):
                        found.append((path.name, ast.unparse(keyword)))
    assert found == []


PICKLES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml")


def test_read_json_and_decode_agree_with_what_was_written(tmp_path: Path) -> None:
    summary().save(tmp_path)
    assert decode(Summary, read_json(tmp_path / "fig6.json")) == summary()


# --------------------------------------------------------------------------- what is written


def test_results_do_not_go_through_links_that_somebody_planted(tmp_path: Path) -> None:
    """A file takes the place of a link; what the link led to stays as it was."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/fig6.json").symlink_to(tmp_path / "victim")
    summary().save(tmp_path / "out")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "out/fig6.json").is_symlink()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_results_are_as_readable_as_the_user_wants(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        path = summary().save(tmp_path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_read_samples_of_a_mutated_file(valid: Place, tmp_path: Path) -> None:
    """`samples.npz` with its `samples.json`, as `sads evaluate` reads them."""
    from sads.cli.evaluate import read_samples

    samples = (valid / "samples.npz").read_bytes()
    described = (valid / "samples.json").read_bytes()
    path = tmp_path / "samples.npz"
    reader = Reader((), read_samples, lambda y: None, DataError)

    numbers = either(mutated(samples), lambda chance: samples)
    words = either(mutated(described), mutated_json(described))
    for content in cases(200, lambda chance: (numbers(chance), words(chance))):
        path.write_bytes(content[0])
        path.with_suffix(".json").write_bytes(content[1])
        try_reading(reader, path)
