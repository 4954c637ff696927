"""Files that appear whole or not at all."""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sads.errors import OutputError, SadsError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block succeeds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise OutputError(
            f"cannot write {path}: {error}; choose a folder that you can write to"
        ) from error


@contextmanager
def reading(
    path: Path, form: str, failure: type[SadsError], version: int = 1
) -> Iterator[tuple[dict[str, Tensor], dict[str, str]]]:
    """The tensors and the metadata of a safetensors file of ours, such as a `sads-geometry`.

    What is missing from them, or does not fit together in the block, is a `failure` too.
    """
    what = form.removeprefix("sads-")
    if not path.is_file():
        raise failure(f"there is no file {path}; give a {what} written by sads")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form:
                raise failure(f"{path} is not a {what} written by sads")
            if int(metadata.get("format_version", 1)) > version:
                raise failure(
                    f"{path} was written by a newer sads (format {metadata['format_version']}, "
                    f"this one reads {version}): upgrade sads"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        yield tensors, metadata
    except failure:
        raise
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise failure(
            f"{path} cannot be read as a {what} ({error}): it is damaged or another program's"
        ) from error


def check_folder(folder: Path) -> None:
    """Make sure that results can be written to a folder before any work is done."""
    with replacing(folder / ".sads") as temporary:
        temporary.touch()
    (folder / ".sads").unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, content: object) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(to_json(content) + "\n")
    return path


def to_json(content: object) -> str:
    """JSON as every reader takes it: what is not finite becomes null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(content: object) -> object:
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
