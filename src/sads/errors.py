"""What can go wrong for a user, as exceptions whose message is the one line to print.

Every message says what was given, what was expected and what to do. The command
line prints it and exits with status 2.
"""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_NOT_USERS = tuple(
    {
        str(Path(__file__).parent) + os.sep,
        *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
        "<frozen",
    }
)
LONGEST = 300  # characters of a message that is not ours


def printable(name: object) -> str:
    """A name from outside as it may be printed; what ends a line or moves the cursor is escaped.

    >>> printable("a\\nb\\x1b[31m.png")
    'a\\\\nb\\\\x1b[31m.png'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things, as one says it.

    >>> counted(1, "cell"), counted(1200, "cell"), counted(2, "entry", "entries")
    ('1 cell', '1,200 cells', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def describe_failure(error: BaseException) -> str:
    """What went wrong in code that is not ours, and where: the last line of a traceback.

    `model.py, line 12, in build: NameError: name 'x' is not defined`. The place is the last one in
    a file of the user's: an error of PyTorch is shown where PyTorch was called.
    """
    message = printable(" ".join(str(error).split()))
    if len(message) > LONGEST:
        message = message[:LONGEST] + " ..."
    name = type(error).__name__
    what = f"{name}: {message}" if message else name
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}, line {error.lineno}: {name}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_USERS)
    ]
    if not frames:
        return what
    inside = "" if frames[-1].name == "<module>" else f", in {frames[-1].name}"
    return f"{_shown(frames[-1].filename)}, line {frames[-1].lineno}{inside}: {what}"


@contextmanager
def evaluating_networks() -> Iterator[None]:
    """What a user's network raises in the block is a `NetworkError` that says where."""
    try:
        yield
    except SadsError:
        raise
    except (Exception, SystemExit) as error:
        raise NetworkError(f"a network cannot be evaluated: {describe_failure(error)}") from error


def _shown(filename: str) -> str:
    """A file as a user would call it: relative if it is below the current folder."""
    path = Path(filename)
    with suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return printable(path)


class SadsError(Exception):
    """Base of all errors that a user can cause and mend."""


class InvalidArgumentError(SadsError, ValueError):
    """A value outside what the function or command accepts."""


class NotEnoughMemoryError(SadsError, MemoryError):
    """Something that this machine cannot hold, found out before it was tried."""


class NetworkError(SadsError):
    """A network that cannot be used as a score network."""


class NonFiniteError(NetworkError):
    """A network that returned NaN or infinity."""


class ZeroReadoutError(NetworkError):
    """A network whose output layer starts at zero: its geometry is 0, its directions undefined."""

    def __init__(self, message: str, layer_path: str | None = None):
        super().__init__(message)
        self.layer_path = layer_path


class GeometryFileError(SadsError):
    """A geometry file that is damaged or was not written by sads."""


class DataError(SadsError):
    """Images that cannot be read, or that do not fit together or with what was asked for."""


class SamplesError(DataError, InvalidArgumentError):
    """Samples that do not fit what they are given to: of another shape, or not scaled."""


class MergeError(SadsError):
    """Geometries that do not add up: of different families, or with networks in common."""


class OutputError(SadsError):
    """A place that results cannot be written to."""


class UndefinedGeometryError(SadsError):
    """A geometry that is 0 or not finite, so that it prefers no direction."""


class NotKeptError(SadsError):
    """A question that a geometry without a matrix cannot answer."""


class RotationFileError(SadsError):
    """A rotation file that is damaged or was not written by sads."""


class AlignmentFileError(SadsError):
    """A kept alignment that is damaged or was not written by sads."""


class CheckpointError(SadsError):
    """A model or checkpoint that is damaged, or belongs to another family, data set or run."""


class DivergedError(SadsError):
    """A training run whose loss became NaN or infinite."""


class ExperimentError(SadsError):
    """A cell whose numbers would not be those that its specification names."""


class StoreError(SadsError):
    """A place that is not a store of experiments, or was written by a newer sads."""


class RayClusterError(SadsError):
    """A Ray cluster that does not answer, or cannot run what was asked."""


class ReportError(SadsError):
    """Something that no report can be made of, or a report that cannot be written."""


class InterruptedEstimate(KeyboardInterrupt):
    """Ctrl-C during an estimate; `geometry` is that of the networks so far, or None.

    A KeyboardInterrupt, so that whoever does not ask for the part stops.
    """

    def __init__(self, geometry: Any = None):
        super().__init__("the estimate was interrupted")
        self.geometry = geometry
