"""Work under way, kept in a file, so that a process that is killed loses half a minute of it."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sads.errors import CheckpointError, InvalidArgumentError, printable
from sads.files import opening, plain, replacing
from sads.tensorfile import write_tensors
from sads.untrusted import parse_json

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 30.0  # between two writes of work under way
SECONDS_VARIABLE = "SADS_CHECKPOINT_SECONDS"
WRITING_SHARE = 0.05  # of the time, at most


class Partial:
    """The file of one piece of work, which is never taken for its result or for other work.

    Args:
        path: where it is; with no path nothing is kept.
        form: the kind of work, such as `sads-partial-geometry`.
        identity: everything that the numbers depend on.
        seconds: between two writes; 30 if neither this nor SADS_CHECKPOINT_SECONDS is given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        form: str,
        identity: Mapping[str, Any],
        seconds: float | None = None,
    ):
        self.path = None if path is None else Path(path)
        self._form = form
        self._identity = json.loads(json.dumps(plain(identity)))
        self._seconds = _default_seconds() if seconds is None else seconds
        self._saved = time.monotonic()

    def load(self) -> "dict[str, Tensor] | None":
        """What was done, or None if nothing was kept.

        A file that is damaged, or of other work, is refused: it may be worth hours to somebody.
        """
        if self.path is None or not os.path.lexists(self.path):
            return None
        with opening(self.path, self._form, CheckpointError) as file:
            saved = parse_json(file.metadata["identity"])
            if not isinstance(saved, dict):
                raise ValueError("it does not say what it is of")
            for key in dict.fromkeys((*self._identity, *saved)):  # what one of them does not say
                was, now = saved.get(key), self._identity.get(key)
                if was != now:
                    raise CheckpointError(
                        f"{printable(self.path)} is part of another piece of work "
                        f"({printable(key)} was {printable(_short(was))}, now it is "
                        f"{_short(now)}); continue it as it was started, or choose another place"
                    )
            tensors = dict(file)
            if file.metadata["sha256"] != _digest(tensors):
                raise ValueError("it is not what was written")
        return tensors

    @property
    def due(self) -> bool:
        """Is it time to write?"""
        return self.path is not None and time.monotonic() - self._saved >= self._seconds

    def save(self, tensors: "Mapping[str, Tensor]") -> None:
        """Write what is done, all at once or not at all."""
        if self.path is None:
            return
        started = time.monotonic()
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        metadata = {
            "format": self._form,
            "identity": json.dumps(self._identity),
            "sha256": _digest(tensors),
        }
        with replacing(self.path) as temporary:
            write_tensors(temporary, tensors, metadata)
        self._saved = time.monotonic()
        self._seconds = max(self._seconds, (self._saved - started) / WRITING_SHARE)


def _digest(tensors: "Mapping[str, Tensor]") -> str:
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(f"{name} {tuple(tensors[name].shape)}".encode())
        whole.update(tensors[name].numpy().data)
    return whole.hexdigest()


def _default_seconds() -> float:
    text = os.environ.get(SECONDS_VARIABLE, str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InvalidArgumentError(
            f"{SECONDS_VARIABLE} is {printable(text)!r}; set it to a number of seconds, or not at "
            "all"
        )
    return seconds


def _short(what: Any) -> str:
    text = json.dumps(what)
    return text if len(text) <= 80 else f"{text[:77]}..."
