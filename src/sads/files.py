"""Files that appear whole or not at all; JSON; digests."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sads.errors import OutputError, SadsError, printable
from sads.estimates import Estimate
from sads.tensorfile import TensorFile
from sads.untrusted import DAMAGE, first_line, open_regular

if TYPE_CHECKING:
    from torch import Tensor

ANYTHING_WRONG: tuple[type[Exception], ...] = (SadsError, *DAMAGE)
TEMPORARY = ".sads-tmp-"  # how files begin that are being written
OF_FILES = (".safetensors", ".json", ".npz", ".png", ".html")
DIGEST_CHUNK = 1 << 22  # numbers that are converted at a time


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block succeeds."""
    if "\0" in str(path):
        raise OutputError(f"cannot write {printable(path)}: no file can have this name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY, suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose a folder that you can write to"
        ) from error


@contextmanager
def opening(
    path: Path, form: str, failure: type[SadsError], version: int = 1
) -> Iterator[TensorFile]:
    """A safetensors file of ours, such as a `sads-geometry`, as somebody else may have changed it.

    Whatever is wrong with it, or does not fit together in the block, is a `failure` of one line.
    """
    what = form.removeprefix("sads-")
    if path.is_dir():
        raise failure(f"there is no file {printable(path)}, but a folder; give a {what} in it")
    try:
        with open_regular(path) as file:
            content = TensorFile(file)
            if content.metadata.get("format") != form:
                raise failure(f"{printable(path)} is not a {what} written by sads")
            written = content.metadata.get("format_version", "1")
            if not re.fullmatch("[0-9]{1,9}", written, re.ASCII):
                raise ValueError("its version is not a number")
            if int(written) > version:
                raise failure(
                    f"{printable(path)} was written by a newer sads (format {written}, this one "
                    f"reads {version}): upgrade sads"
                )
            yield content
    except failure:
        raise
    except FileNotFoundError as error:
        raise failure(
            f"there is no file {printable(path)}; give a {what} written by sads"
        ) from error
    except ANYTHING_WRONG as error:
        raise failure(
            f"{printable(path)} cannot be read as a {what} ({first_line(error)[:300]}): it is "
            "damaged or another program's"
        ) from error


def check_folder_name(folder: Path) -> None:
    """One line for the name of a file, where a folder is to be made for several."""
    if os.path.isdir(folder):
        return
    if folder.name == "-":
        raise OutputError(
            "results are files in a folder, which - is not; choose one, and print numbers with "
            "--json"
        )
    if folder.suffix.lower() in OF_FILES:
        raise OutputError(
            f"{printable(folder)} is the name of a file, and the results are several, in a folder: "
            f"write {printable(folder.with_suffix(''))}"
        )


def check_folder(folder: Path) -> None:
    """Make sure that results can be written to a folder before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder}: {error}; choose a folder that you can write to"
        ) from error


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing to a folder that is now ours alone."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, content: object) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(to_json(content) + "\n", encoding="utf-8")
    return path


def to_json(content: object) -> str:
    """JSON as every reader takes it; see `plain`."""
    return json.dumps(plain(content), indent=2, allow_nan=False)


def plain(content: object) -> object:
    """What JSON can say of a result: what is not finite becomes null, an estimate both numbers.

    Classes, functions and other objects, which options of a user's network may be, become names.

    >>> plain({"alpha": Estimate(1.5, math.inf), "shape": (1, 16), "kind": dict})
    {'alpha': {'value': 1.5, 'error': None}, 'shape': [1, 16], 'kind': 'builtins.dict'}
    """
    if content is None or isinstance(content, bool | int):
        return content
    if isinstance(content, str):
        return content.encode(errors="replace").decode()  # no halves of characters
    if isinstance(content, Estimate):
        return {"value": plain(content.value), "error": plain(content.error)}
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        return {f.name: plain(getattr(content, f.name)) for f in dataclasses.fields(content)}
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if hasattr(content, "tolist"):  # of PyTorch or NumPy
        return plain(content.tolist())
    if isinstance(content, set | frozenset):
        return sorted(map(plain, content), key=str)
    return _named(content)


def _named(content: object) -> str:
    """An object in words that are the same in every process: without the place in its memory."""
    named = getattr(content, "__qualname__", None)
    if isinstance(named, str):
        return f"{getattr(content, '__module__', '')}.{named}".lstrip(".")
    try:
        text = str(content)
    except Exception:  # of a user's class
        text = " at 0x"
    return text if " at 0x" not in text else _named(type(content))


def digest(*parts: bytes) -> str:
    """SHA-256 of some bytes, in hexadecimal."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """`digest` of a file's content, a piece at a time; `OSError` if it is not a regular file."""
    whole = hashlib.sha256()
    with open_regular(path) as file:
        while part := file.read(DIGEST_CHUNK):
            whole.update(part)
    return whole.hexdigest()


def tensor_digest(x: "Tensor") -> str:
    """What data are called in provenances: of their numbers in float32, whatever type they have."""
    parts = x.detach().reshape(-1).split(DIGEST_CHUNK)
    return digest(*(p.cpu().float().contiguous().numpy().tobytes() for p in parts))[:16]
