"""Where the results of cells are kept, so that nothing is lost and nothing computed twice.

    sads-store.json         says that this folder is ours, and the version of its layout
    cells/HASH/record.json  specification, metrics, loss curve, seconds, versions; digests of the
                            other files of the cell (samples.npz, if asked for)
    geometries/HASH.safetensors
    work/HASH/              checkpoint of a cell under way, and its lock
    damaged/                cells that could not be read, set aside
    index.json              all records in one file; a cache that is rebuilt from `cells`
    journal.txt             a line for every cell that was finished here, in that order

A cell appears by one rename, so it is there and whole or not there. On object stores, which have
no rename, `record.json` is written last and plays that part. A process that computes a cell holds
a lock on its work folder, which the system lets go when the process dies: two sweeps on one store
do not compute the same cell, and where there are no locks (object stores), the first to finish
is kept.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from sads.errors import GeometryFileError, OutputError, SadsError, StoreError
from sads.experiments.spec import Cell, GeometrySpec
from sads.files import replacing, to_json, write_json
from sads.geometry.geometry import Geometry, load_geometry

try:
    import fcntl
except ImportError:  # not on Windows, where nobody warns two sweeps of each other
    fcntl = None  # type: ignore[assignment]

VERSION = 1
MARK = "sads-store.json"


@dataclass(frozen=True)
class Record:
    """What is known of a finished cell."""

    cell: Cell
    evaluations: list[dict[str, Any]]  # one for each of the cell's evaluations
    losses: list[float]  # means over equal parts of the training
    facts: dict[str, Any]  # of the data: eigenvalue, alpha, ...
    seconds: float
    versions: dict[str, str]
    files: dict[str, str]  # digests by name

    def metric(self, name: str, stage: int = -1) -> float:
        """A number of an evaluation, of the last one if not said otherwise.

        NaN where there was nothing to measure: no sample was finite, none had a digit.
        """
        value = self.evaluations[stage].get(name)
        return math.nan if value is None else float(value)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "hash": self.cell.hash, "cell": self.cell.to_json()}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Record":
        fields = {k: v for k, v in content.items() if k != "hash"}
        record = Record(**{**fields, "cell": Cell.from_json(fields["cell"])})
        if record.cell.hash != content["hash"]:
            raise ValueError("its specification does not have its hash")
        return record


class Store:
    """Finished cells by hash, in a folder or at an fsspec URL."""

    def __init__(self, url: str | os.PathLike[str]):
        self.url = os.fspath(url)
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
        self._open()

    def get(self, cell: Cell) -> Record | None:
        """The record of a cell, or None; a damaged one is set aside."""
        folder = self._path("cells", cell.hash)
        # Asked in this order, because a folder that another sweep finishes appears with its record.
        there = self.is_local and self._fs.exists(folder)
        if not self._fs.exists(f"{folder}/record.json"):
            if there:
                self._set_aside(cell.hash, "it has no record")
            return None
        try:
            return self._read(cell.hash)
        except FileNotFoundError:  # set aside by another sweep at this moment
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(cell.hash, str(error) or type(error).__name__)
            return None

    def take_notes(self) -> list[str]:
        """What was found damaged since this was last asked."""
        notes, self._notes = self._notes, []
        return notes

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that are not there yet, each once, in their order."""
        return [cell for cell in dict.fromkeys(cells) if self.get(cell) is None]

    def put(self, record: Record, folder: Path) -> Record:
        """Keep a record and the other files of its folder; the first one to be kept counts."""
        record = Record(**{**vars(record), "files": {p.name: _digest(p) for p in _files(folder)}})
        write_json(folder / "record.json", record.to_json())
        target = self._path("cells", record.cell.hash)
        if self.is_local:
            with contextlib.suppress(OSError):  # somebody else's is there: theirs counts
                os.rename(folder, target)
                with open(self._path("journal.txt"), "a") as journal:
                    journal.write(f"{record.cell.hash} {record.cell.label}\n")
        elif self.get(record.cell) is None:
            for path in _files(folder, last="record.json"):
                self._fs.put_file(str(path), f"{target}/{path.name}")
        shutil.rmtree(folder, ignore_errors=True)
        kept = self.get(record.cell)
        if kept is None:
            raise OutputError(f"cannot write {target}; is the disk full?")
        return kept

    def samples(self, record: Record) -> Tensor:
        """The samples that a cell kept, (N, *shape)."""
        with (
            self._local_copy(self._path("cells", record.cell.hash, "samples.npz")) as path,
            np.load(path, allow_pickle=False) as arrays,
        ):
            return torch.from_numpy(arrays["images"])

    def geometry(self, spec: GeometrySpec) -> Geometry | None:
        path = self._path("geometries", f"{spec.hash}.safetensors")
        if not self._fs.exists(path):
            return None
        try:
            with self._local_copy(path) as local:
                return load_geometry(local)
        except GeometryFileError as error:
            self._notes.append(f"{path}: {error}")
            return None

    def put_geometry(self, spec: GeometrySpec, geometry: Geometry) -> None:
        path = self._path("geometries", f"{spec.hash}.safetensors")
        if self.is_local:
            geometry.save(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            geometry.save(Path(folder) / "geometry.safetensors")
            self._fs.put_file(f"{folder}/geometry.safetensors", path)

    def records(self) -> dict[str, Record]:
        """All whole records by hash. The index is read, brought up to date and written."""
        try:
            names = {Path(p).name for p in self._fs.ls(self._path("cells"), detail=False)}
        except FileNotFoundError:  # object stores have no empty folders
            names = set()
        known = self._read_index()
        records = {}
        for name in sorted(n for n in names if not n.startswith(".")):
            try:
                records[name] = Record.from_json(known[name]) if name in known else self._read(name)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # `get` sets it aside when somebody asks for this cell
        if set(records) != set(known):
            self._write("index.json", to_json({k: r.to_json() for k, r in records.items()}))
        return records

    @contextlib.contextmanager
    def work_folder(self, cell: Cell) -> Iterator[Path | None]:
        """A folder for a cell's checkpoints that outlives crashes; None if it is taken."""
        folder = self._work / cell.hash
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = (folder / "lock").open("w")
        except FileNotFoundError:  # removed by its owner between these two lines
            yield None
            return
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            yield None
            return
        except OSError:  # a file system without locks: as on object stores, the first one counts
            pass
        with lock:
            yield folder

    def clear_work(self, cell: Cell) -> None:
        shutil.rmtree(self._work / cell.hash, ignore_errors=True)

    def clear_leftovers(self) -> None:
        """Work folders of finished cells, whose process was killed just before it removed them."""
        for folder in self._work.iterdir():
            if self._fs.exists(self._path("cells", folder.name, "record.json")):
                shutil.rmtree(folder, ignore_errors=True)

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
        name = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return Path.home() / ".cache" / "sads" / name

    def _open(self) -> None:
        mark = self._path(MARK)
        try:
            if self._fs.exists(mark):
                described = json.loads(self._fs.cat_file(mark))
                if int(described["version"]) > VERSION:
                    raise StoreError(
                        f"{self.url} was written by a newer sads (store version "
                        f"{described['version']}, this one reads {VERSION}): upgrade sads"
                    )
            elif self._fs.exists(self._root) and self._visible_files():
                raise StoreError(
                    f"{self.url} is not empty and not a store of sads; choose another --out"
                )
            else:
                self._fs.makedirs(self._root, exist_ok=True)
                self._write(MARK, to_json({"format": "sads-store", "version": VERSION}))
            for name in ("cells", "geometries"):
                self._fs.makedirs(self._path(name), exist_ok=True)
            self._work.mkdir(parents=True, exist_ok=True)
        except SadsError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{mark} is damaged ({error}); choose another --out") from error
        except Exception as error:  # OSError, or what a cloud's client has instead
            raise StoreError(
                f"cannot use {self.url} as a store ({error}); choose a folder that you can write to"
            ) from error

    def _visible_files(self) -> list[str]:
        """Of the root; hidden is the mark that another sweep is writing at this moment."""
        paths = self._fs.ls(self._root, detail=False)
        return [path for path in paths if not Path(path).name.startswith(".")]

    def _read(self, name: str) -> Record:
        content = self._fs.cat_file(self._path("cells", name, "record.json"))
        record = Record.from_json(json.loads(content))
        if record.cell.hash != name:
            raise ValueError("it belongs to another cell")
        for file, digest in record.files.items():
            with self._local_copy(self._path("cells", name, file)) as local:
                if _digest(local) != digest:
                    raise ValueError(f"{file} is not what was written")
        return record

    def _read_index(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._fs.cat_file(self._path("index.json"))))
        except (OSError, ValueError, TypeError):
            return {}

    def _set_aside(self, name: str, reason: str) -> None:
        self._fs.makedirs(self._path("damaged"), exist_ok=True)
        source = self._path("cells", name)
        place = self._path("damaged", f"{name}-{os.urandom(4).hex()}")
        try:
            if self.is_local:
                os.rename(source, place)
            else:
                self._fs.mv(source, place, recursive=True)
        except FileNotFoundError:
            return  # another sweep was faster
        self._notes.append(f"cell {name} was damaged ({reason}) and is set aside in {place}")

    def _write(self, name: str, text: str) -> None:
        if self.is_local:
            with replacing(Path(self._path(name))) as temporary:
                temporary.write_text(text)
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


def _files(folder: Path, last: str | None = None) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda p: (p.name == last, p.name))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
