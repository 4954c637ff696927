"""Finished cells in a form that one commits: a line each, and the samples that pictures show.

    records.jsonl        a record a line, in the order of their hashes
    samples/HASH.npz     samples that a record kept, in half precision
    geometries.json      what geometries the records rest on: checksum, and the command for each

A store beside such files takes their cells for finished and computes the others only. Several
processes may add to them: each waits for the others, and adds to what they have left.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.data.arrays import load_images_array
from sads.errors import DataError, StoreError, printable
from sads.experiments.locks import folder_lock
from sads.experiments.records import Record, format_of
from sads.experiments.spec import FORMAT
from sads.files import ANYTHING_WRONG, digest, file_digest, plain, replacing, write_json
from sads.from_json import DecodingError, decode_as
from sads.untrusted import DAMAGE, JSON_BYTES, first_line, open_regular, parse_json, read_json

RECORDS, SAMPLES, GEOMETRIES = "records.jsonl", "samples", "geometries.json"


@dataclass(frozen=True)
class Archive:
    """A folder with finished cells; empty if there is nothing in it."""

    folder: Path
    records: Mapping[str, Record]  # by hash
    older: tuple[str, ...] = ()  # lines of an older format, whose numbers mean something else

    @classmethod
    def read(cls, folder: Path) -> "Archive":
        path = folder / RECORDS
        _read_geometries(folder)  # refused now if it is damaged, not when there is more to write
        if not os.path.lexists(path):
            return cls(folder, {})
        records: dict[str, Record] = {}
        older = []
        number = 0
        try:
            with open_regular(path) as file:
                while line := file.readline(JSON_BYTES + 1):
                    number += 1
                    content = parse_json(line)
                    form = format_of(content)
                    if form > FORMAT:
                        raise StoreError(
                            f"line {number} of {printable(path)} was written by a newer sads "
                            f"(format {form}, this one reads {FORMAT}): upgrade sads"
                        )
                    if form < FORMAT:
                        older.append(line.decode().rstrip("\n"))
                        continue
                    record = Record.from_json(content)
                    if adds_to(records, record):  # lines of two branches may be there twice
                        records[record.cell.hash] = record
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"cannot read {printable(path)} ({first_line(error)}); restore the file"
            ) from error
        except DAMAGE as error:
            raise StoreError(
                f"line {number} of {printable(path)} is damaged ({first_line(error)}); restore the "
                "file, or remove the line to compute its cell again"
            ) from error
        return cls(folder, records, tuple(older))

    @contextmanager
    def renewed(self) -> Iterator["Archive"]:
        """The archive as it is now, to which no other process adds in the block."""
        with folder_lock(self.folder):
            yield Archive.read(self.folder)

    def samples(self, record: Record) -> Tensor:
        """The samples that a record kept, (N, *shape) float32."""
        name = f"{record.cell.hash}.npz"
        path = self.folder / SAMPLES / name
        try:
            if file_digest(path) != record.files.get(name):
                raise DecodingError("it is not what was written")
            return read_samples(path, record)
        except ANYTHING_WRONG as error:
            raise StoreError(
                f"the samples {name} of {printable(self.folder)} cannot be read "
                f"({first_line(error)}); remove the line of {record.cell.hash} from {RECORDS} to "
                "compute them again"
            ) from error

    def extend(self, records: Iterable[tuple[Record, Tensor | None]]) -> "Archive":
        """Add records, with the samples that they kept, and write the whole archive."""
        merged = dict(self.records)
        for record, samples in records:
            name = f"{record.cell.hash}.npz"
            files = {}
            if samples is not None:
                files[name] = digest(content := _pack(samples))
                with replacing(self.folder / SAMPLES / name) as temporary:
                    temporary.write_bytes(content)
            merged[record.cell.hash] = _as_kept(replace(record, files=files))
        return self._write(merged)

    def update(self, records: Iterable[Record]) -> "Archive":
        """Put records in the place of those of the same cells; samples stay as they are."""
        merged = dict(self.records)
        for record in records:
            old = self.records[record.cell.hash]
            merged[record.cell.hash] = _as_kept(replace(record, files=old.files))
        return self._write(merged)

    def _write(self, merged: dict[str, Record]) -> "Archive":
        lines = [*(_line(merged[name]) for name in sorted(merged)), *self.older]
        with replacing(self.folder / RECORDS) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return replace(self, records=merged)

    def write_geometries(self, geometries: Iterable[tuple[str, str, str]]) -> None:
        """Say which geometries the records rest on: hash, checksum and command of each."""
        known = _read_geometries(self.folder)
        for name, checksum, command in geometries:
            known[name] = {"sha256": checksum, "command": command}
        write_json(self.folder / GEOMETRIES, {name: known[name] for name in sorted(known)})


def _read_geometries(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / GEOMETRIES
    if not os.path.lexists(path):
        return {}
    try:
        known: dict[str, dict[str, str]] = decode_as(
            dict[str, dict[str, str]], read_json(path), GEOMETRIES
        )
    except DAMAGE as error:
        raise StoreError(
            f"{printable(path)} is damaged ({first_line(error)}); restore the file, or move it away"
        ) from error
    return known


def adds_to(known: Mapping[str, Record], record: Record) -> bool:
    """Whether a record is not known yet, or has baselines that the known one has not."""
    old = known.get(record.cell.hash)
    return old is None or (record.has_baselines and not old.has_baselines)


def read_samples(path: Path, record: Record) -> Tensor:
    """Samples of a record in an npz file, (N, *shape) float32; `DataError` if they are not."""
    array = load_images_array(path)
    if array.dtype.kind != "f" or array.shape[1:] != record.cell.family.shape:
        raise DataError(f"{printable(path)} does not hold samples of the cell")
    return torch.from_numpy(array.astype(np.float32))


def _as_kept(record: Record) -> Record:
    """A record as whoever reads the archive will find it."""
    return Record.from_json(parse_json(_line(record)))


def _line(record: Record) -> str:
    content = plain(record.to_json())
    return json.dumps(_short(content), separators=(",", ":"), allow_nan=False)


def _short(content: Any) -> Any:
    """Numbers to seven digits: more than their errors allow, a third of the bytes."""
    if isinstance(content, float):
        return float(f"{content:.7g}")
    if isinstance(content, dict):
        return {
            key: value if key in ("cell", "hash") else _short(value)
            for key, value in content.items()
        }
    return [_short(value) for value in content] if isinstance(content, list) else content


def _pack(samples: Tensor) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=samples.half().numpy())
    return buffer.getvalue()
