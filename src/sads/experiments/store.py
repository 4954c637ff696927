"""Where the results of cells are kept, so that nothing is lost and nothing computed twice.

    sads-store.json         says that this folder is ours, and the version of its layout
    cells/HASH/record.json  specification, metrics, loss curve, seconds, versions; digests of the
                            other files of the cell (samples.npz, if asked for)
    geometries/HASH.safetensors
    weights/TRAINING/UPDATES.safetensors  networks of the cells, with the average of their weights,
                            and rotation.safetensors, as `sads sample` reads them
    work/TRAINING/          checkpoint of a cell under way, and its lock
    damaged/                cells that could not be read, set aside
    journal.txt             a line for every cell that was finished here, in that order

A cell appears by one rename, so it is there and whole or not there. On object stores, which have
no rename, `record.json` is written last and plays that part. A process that computes a cell holds
a lock on its work folder, which the system lets go when the process dies: two sweeps on one store
do not compute the same cell, and where there are no locks (object stores), the first to finish
is kept.

`TRAINING` is the hash of all that weights depend on. Cells that sample one model in several ways
share it, so that the model is trained once, and measured again whenever there is a new question.
Weights are kept in single precision, as they were trained: samples drawn from them are, to the bit,
those that were drawn right after the training, which half precision would not give back (samplers
multiply errors of a noise prediction by up to 157).

Beside a local store may lie an archive of finished cells (`archive`); they count as there.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from sads.diffusion.model import ScoreModel, load_model
from sads.errors import (
    CheckpointError,
    DataError,
    ExperimentError,
    GeometryFileError,
    OutputError,
    SadsError,
    StoreError,
    counted,
    printable,
)
from sads.experiments.archive import RECORDS, Archive, adds_to, read_samples
from sads.experiments.locks import lock, wait_for
from sads.experiments.records import Record
from sads.experiments.spec import Cell, GeometrySpec
from sads.files import digest, file_digest, plain, replacing, to_json, write_json
from sads.from_json import decode
from sads.geometry.result import Geometry, load_geometry
from sads.private_folder import NotPrivateError, cache_folder
from sads.rotations.rotation import Rotation
from sads.untrusted import first_line, read_json

VERSION = 2
MARK = "sads-store.json"
LEFT = ".left-"  # how the names of work folders begin that are being removed


@dataclass(frozen=True)
class _Mark:
    """What `sads-store.json` holds."""

    format: Literal["sads-store"]
    version: int


class Store:
    """Finished cells by hash, in a folder or at an fsspec URL.

    Args:
        archive: a folder with an archive whose cells count as finished.
    """

    def __init__(self, url: str | os.PathLike[str], archive: Path | None = None):
        self.url = os.fspath(url)
        self.archive = Archive(Path(), {}) if archive is None else Archive.read(archive)
        self._twins = {r.cell.twin_hash: r for r in self.archive.records.values()}
        try:
            # Other processes write here too, so that no listing may be remembered.
            self._fs, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise StoreError(
                f"cannot open a store at {self.url} ({error}); give a folder or an fsspec URL"
            ) from error
        self.is_local = isinstance(self._fs, LocalFileSystem)
        if self.is_local:  # processes of a cluster may have another working directory
            self.url = self._root
        self._notes: list[str] = []  # what was damaged, and why
        if older := len(self.archive.older):
            self._notes.append(
                f"{counted(older, 'record')} in {RECORDS} of an older format, whose numbers would "
                "be others today: kept there, not used"
            )
        self._open()

    def find(self, cell: Cell) -> Record | None:
        """The record of a cell from the store or the archive, whatever layers computed it.

        A record of other layers is the same experiment with other rounding. It stands in for the
        cell where it was committed; `Record.cell.layers` says so.
        """
        archived = self.archive.records.get(cell.hash)
        return archived or self.get(cell) or self._twins.get(cell.twin_hash)

    def find_hash(self, name: str) -> Record | None:
        """The record of the cell of this hash from the store or the archive, if it is whole."""
        if name in self.archive.records:
            return self.archive.records[name]
        with contextlib.suppress(OSError, ValueError):
            return self._read(name)
        return None

    def get(self, cell: Cell) -> Record | None:
        """The record of a cell that is in the store itself, or None; a damaged one is set aside."""
        folder = self._path("cells", cell.hash)
        # Asked in this order, because a folder that another sweep finishes appears with its record.
        there = self.is_local and self._fs.exists(folder)
        if not self._fs.exists(f"{folder}/record.json"):
            if there:
                self._set_cell_aside(cell, "it has no record")
            return None
        try:
            return self._read(cell.hash)
        except FileNotFoundError:  # set aside by another sweep at this moment
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._set_cell_aside(cell, first_line(error))
            return None

    def take_notes(self) -> list[str]:
        """What was found damaged since this was last asked."""
        notes, self._notes = self._notes, []
        return notes

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that are not there yet, each once, in their order."""
        return [cell for cell in dict.fromkeys(cells) if self.find(cell) is None]

    def put(self, record: Record, folder: Path) -> Record:
        """Keep a record and the other files of its folder; the first one to be kept counts."""
        digests = {path.name: digest(path.read_bytes()) for path in _files(folder)}
        record = replace(record, files=digests)
        write_json(folder / "record.json", record.to_json())
        kept = self.get(record.cell)  # which sets aside what is damaged, and in our place
        if kept is None:
            self._move(record, folder)
            kept = self.get(record.cell)
        shutil.rmtree(folder, ignore_errors=True)
        if kept is None:
            place = self._path("cells", record.cell.hash)
            raise OutputError(f"cannot write {printable(place)}; is the disk full?")
        return kept

    def _move(self, record: Record, folder: Path) -> None:
        """Put the files of a cell where they belong, unless somebody else's are there by now."""
        target = self._path("cells", record.cell.hash)
        if self.is_local:
            with contextlib.suppress(OSError):
                os.rename(folder, target)
                with open(self._path("journal.txt"), "a", encoding="utf-8") as journal:
                    journal.write(f"{record.cell.hash} {record.cell.label}\n")
            return
        for path in _files(folder, last="record.json"):
            self._fs.put_file(str(path), f"{target}/{path.name}")

    def samples(self, record: Record) -> Tensor:
        """The samples that a cell kept, (N, *shape)."""
        if record.cell.hash in self.archive.records:
            return self.archive.samples(self.archive.records[record.cell.hash])
        place = self._path("cells", record.cell.hash, "samples.npz")
        try:
            with self._local_copy(place) as path:
                return read_samples(path, record)
        except (OSError, DataError) as error:
            raise StoreError(
                f"the samples {printable(place)} cannot be read ({first_line(error)}); move the "
                "cell away to compute it again"
            ) from error

    def to_archive(self, records: Iterable[Record]) -> Archive:
        """Write those of these records that are not in the archive yet into it.

        A record that has baselines takes the place of one that has none. What other processes have
        added meanwhile stays.
        """
        given = list(records)
        if any(adds_to(self.archive.records, record) for record in given):
            with self.archive.renewed() as archive:
                self.archive = self._added(archive, given)
        return self.archive

    def _added(self, archive: Archive, given: Iterable[Record]) -> Archive:
        known = archive.records
        adding = [record for record in given if adds_to(known, record)]
        new = [record for record in adding if record.cell.hash not in known]
        fuller = [record for record in adding if record.cell.hash in known]
        if fuller:
            archive = archive.update(fuller)
        if not new:
            return archive
        archive = archive.extend((r, self.samples(r) if r.cell.keep_samples else None) for r in new)
        specs = dict.fromkeys(record.cell.geometry for record in new)
        found = ((spec, self._path("geometries", f"{spec.hash}.safetensors")) for spec in specs)
        archive.write_geometries(
            (spec.hash, digest(self._fs.cat_file(path)), spec.command)
            for spec, path in found
            if self._fs.exists(path)
        )
        return archive

    def geometry(self, spec: GeometrySpec) -> Geometry | None:
        """A geometry that was kept, or None; one that is damaged or another is set aside."""
        path = self._path("geometries", f"{spec.hash}.safetensors")
        if not self._fs.exists(path):
            return None
        try:
            with self._local_copy(path) as local:
                geometry = load_geometry(local)
            check_geometry(spec, geometry)
        except FileNotFoundError:  # set aside by another sweep at this moment
            return None
        except (GeometryFileError, ExperimentError) as error:
            self._set_aside(f"geometries/{spec.hash}.safetensors", f"geometry {spec.hash}", error)
            return None
        return geometry

    def put_geometry(self, spec: GeometrySpec, geometry: Geometry) -> None:
        """Keep a geometry, which must be the one that its specification names."""
        check_geometry(spec, geometry)
        path = self._path("geometries", f"{spec.hash}.safetensors")
        if self.is_local:
            geometry.save(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            geometry.save(Path(folder) / "geometry.safetensors")
            self._fs.put_file(f"{folder}/geometry.safetensors", path)

    def partial_geometry(self, spec: GeometrySpec) -> Path:
        """Where the networks that are drawn so far outlive a crash."""
        self._work.mkdir(parents=True, exist_ok=True)
        return self._work / f"{spec.hash}.geometry.safetensors"

    @contextlib.contextmanager
    def estimating(self, spec: GeometrySpec) -> Iterator[Path]:
        """The `partial_geometry`, when no other process estimates the geometry any more."""
        partial = self.partial_geometry(spec)
        with wait_for(partial.with_suffix(".lock")):
            yield partial

    def weights(self, cell: Cell, updates: int) -> ScoreModel | None:
        """The model of a cell after some updates, or None; a damaged one is set aside.

        Its weights are averages over the training if the cell asks for that.
        """
        name = f"weights/{cell.training_hash}/{updates}.safetensors"
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        family = replace(cell.family.build(), prediction=cell.practice.prediction)
        try:
            with self._local_copy(path) as local:
                model = load_model(local, family)
        except FileNotFoundError:  # set aside by another sweep at this moment
            return None
        except CheckpointError as error:
            self._set_aside(name, f"the weights {cell.training_hash}", first_line(error))
            return None
        return model if cell.practice.ema_decay is not None else model.unaveraged()

    def put_weights(
        self, cell: Cell, updates: int, model: ScoreModel, rotation: Rotation | None = None
    ) -> None:
        """Keep the model of a cell after some updates, and beside it the rotation of its data."""
        folder = self._path("weights", cell.training_hash)
        self._fs.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder if self.is_local else None) as temporary:
            written = [model.save(Path(temporary) / f"{updates}.safetensors")]
            if rotation is not None:
                written.insert(0, rotation.save(Path(temporary) / "rotation.safetensors"))
            for path in written:  # the model last: what is there is whole
                place = f"{folder}/{path.name}"
                if self.is_local:
                    os.replace(path, place)
                else:
                    self._fs.put_file(str(path), place)

    def records(self) -> dict[str, Record]:
        """All whole records of the store itself, by hash."""
        try:
            names = sorted(Path(p).name for p in self._fs.ls(self._path("cells"), detail=False))
        except FileNotFoundError:  # object stores have no empty folders
            return {}
        records = {}
        for name in (n for n in names if not n.startswith(".")):
            with contextlib.suppress(OSError, ValueError):
                records[name] = self._read(name)  # `get` sets a damaged one aside
        return records

    @contextlib.contextmanager
    def work_folder(self, cell: Cell) -> Iterator[Path | None]:
        """A folder for a cell's checkpoints that outlives crashes; None if it is taken.

        Cells that share a training share the folder, one after the other. Its lock says whose it
        was last.
        """
        folder = self._work / cell.training_hash
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "lock") as mine:
            if mine is not None:
                mine.truncate(0)
                mine.write(cell.hash)
                mine.flush()
            yield None if mine is None else folder

    def clear_work(self, cell: Cell) -> None:
        """Remove a work folder, which is ours, at once: nobody begins in what is being removed."""
        folder = self._work / cell.training_hash
        left = folder.with_name(f"{LEFT}{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            os.rename(folder, left)
        shutil.rmtree(left, ignore_errors=True)

    def clear_leftovers(self) -> None:
        """Work folders of finished cells, whose process was killed just before it removed them."""
        for folder in self._work.iterdir():
            if folder.name.startswith(LEFT):
                shutil.rmtree(folder, ignore_errors=True)
            if not (folder / "lock").is_file():  # nobody has worked there yet, or nobody of ours
                continue
            with lock(folder / "lock") as mine:
                if mine is not None and self._is_left(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def _is_left(self, folder: Path) -> bool:
        """Whether the cell that was last worked at in a folder is finished."""
        try:
            name = (folder / "lock").read_text(encoding="ascii")
        except (OSError, ValueError):
            return False
        return name.isalnum() and self._fs.exists(self._path("cells", name, "record.json"))

    def new_folder(self, cell: Cell) -> Path:
        """A folder to build a cell's results in, beside the place where they will be."""
        parent = Path(self._path("cells")) if self.is_local else self._work
        for left in parent.glob(f".{cell.hash}-*"):  # by a killed process: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        folder = parent / f".{cell.hash}-{os.urandom(4).hex()}"
        folder.mkdir()  # unlike those of tempfile, as readable for others as the user wants
        return folder

    @cached_property
    def _work(self) -> Path:
        if self.is_local:
            return Path(self._path("work"))
        name = digest(self.url.encode())[:12]
        try:
            return cache_folder() / name
        except NotPrivateError as error:
            raise StoreError(f"work on {printable(self.url)} has no place here: {error}") from error

    def _open(self) -> None:
        mark = self._path(MARK)
        try:
            if self._fs.exists(mark):
                described = decode(_Mark, self._read_json(MARK))
                if described.version > VERSION:
                    raise StoreError(
                        f"{self.url} was written by a newer sads (store version "
                        f"{described.version}, this one reads {VERSION}): upgrade sads"
                    )
            elif (
                self._fs.exists(self._root)
                and self._visible_files()
                and not self._fs.exists(mark)  # another process made the store meanwhile
            ):
                raise StoreError(
                    f"{self.url} is not empty and not a store of sads; choose another --out"
                )
            else:
                self._fs.makedirs(self._root, exist_ok=True)
                self._write(MARK, to_json({"format": "sads-store", "version": VERSION}))
            for name in ("cells", "geometries", "weights"):
                self._fs.makedirs(self._path(name), exist_ok=True)
            self._work.mkdir(parents=True, exist_ok=True)
        except SadsError:
            raise
        except ValueError as error:
            raise StoreError(
                f"{mark} is damaged ({first_line(error)}); choose another --out"
            ) from error
        except Exception as error:  # OSError, or what a cloud's client has instead
            raise StoreError(
                f"cannot use {self.url} as a store ({error}); choose a folder that you can write to"
            ) from error

    def _visible_files(self) -> list[str]:
        """The files of the root, without the mark that another sweep writes at this moment."""
        paths = self._fs.ls(self._root, detail=False)
        return [path for path in paths if not Path(path).name.startswith(".")]

    def _read(self, name: str) -> Record:
        record = Record.from_json(self._read_json("cells", name, "record.json"))
        if record.cell.hash != name:
            raise ValueError("it belongs to another cell")
        if record.cell.keep_samples and "samples.npz" not in record.files:
            raise ValueError("it has not kept its samples")
        for file, expected in record.files.items():
            with self._local_copy(self._path("cells", name, file)) as path:
                if file_digest(path) != expected:
                    raise ValueError(f"{file} is not what was written")
        return record

    def _read_json(self, *parts: str) -> Any:
        """JSON at a place of the store, which is not read if it is none of ours."""
        with self._local_copy(self._path(*parts)) as path:
            return read_json(path)

    def _set_cell_aside(self, cell: Cell, reason: str) -> None:
        self._set_aside(f"cells/{cell.hash}", f"cell {cell.hash}", reason)

    def _set_aside(self, path: str, what: str, reason: object) -> None:
        self._fs.makedirs(self._path("damaged"), exist_ok=True)
        source = self._path(path)
        place = self._path("damaged", f"{Path(path).name}-{os.urandom(4).hex()}")
        try:
            if self.is_local:
                os.rename(source, place)
            else:
                self._fs.mv(source, place, recursive=True)
        except FileNotFoundError:
            return  # another sweep was faster
        self._notes.append(f"{what} was damaged ({reason}) and is set aside in {place}")

    def _write(self, name: str, text: str) -> None:
        if self.is_local:
            with replacing(Path(self._path(name))) as temporary:
                temporary.write_text(text, encoding="utf-8")
        else:
            self._fs.pipe_file(self._path(name), text.encode())

    @contextlib.contextmanager
    def _local_copy(self, path: str) -> Iterator[Path]:
        if self.is_local:
            yield Path(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / Path(path).name
            self._fs.get_file(path, str(local))
            yield local

    def _path(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *parts])


def check_geometry(spec: GeometrySpec, geometry: Geometry) -> None:
    """Refuse a geometry that is not what its specification says: a part of it, for instance."""
    provenance = geometry.provenance
    family, drawn = plain(spec.family.build().describe()), sorted(provenance.draws)
    ends = [0, *(stop for _, _, stop in drawn)]
    whole = [(spec.seed, start, stop) for start, stop in itertools.pairwise(ends)]
    count = geometry.num_networks
    sampled = not geometry.exact
    problems = {
        f"it is of {plain(provenance.family)}, not of {family}": plain(provenance.family) != family,
        f"it was probed by {plain(provenance.probe)}": provenance.probe.get("name") != "zero",
        "its estimate was interrupted": provenance.interrupted,
        f"it holds {counted(count, 'network')}, not {spec.num_networks:,}": sampled
        and count != spec.num_networks,
        f"it holds other networks than the first of seed {spec.seed}": sampled
        and (drawn != whole or ends[-1] != spec.num_networks),
    }
    for problem, found in problems.items():
        if found:
            raise ExperimentError(
                f"this is not the geometry of `{spec.command}`: {problem}; estimate it again"
            )


def _files(folder: Path, last: str | None = None) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda p: (p.name == last, p.name))
