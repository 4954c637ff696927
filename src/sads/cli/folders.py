"""Where a command writes: never over another result, never over a file that is not its own.

A command *claims* its folder: it holds a lock on it, which the system lets go when the process
dies, and leaves a mark in it until its results are whole. So two commands never write to one
folder, and the results of a command that was killed are known to be unfinished: the same command
goes on there.
"""

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from sads.errors import OutputError, printable
from sads.from_json import decode
from sads.untrusted import read_json

try:
    import fcntl
except ImportError:  # not on Windows, where nobody warns two commands of each other
    fcntl = None  # type: ignore[assignment]


@dataclass
class _Claim:
    """A folder that the running command writes to."""

    folder: Path
    lock: int | None = None
    made: list[Path] = field(default_factory=list)  # folders that were not there, innermost first
    names: tuple[str, ...] = ()
    mark: Path | None = None

    def let_go(self) -> None:
        """Leave nothing behind of a command that has written nothing."""
        with contextlib.suppress(OSError):
            if self.mark and not any(_is_there(self.folder / name) for name in self.names):
                self.mark.unlink(missing_ok=True)
            for folder in self.made:
                folder.rmdir()  # only if it is empty
        if self.lock is not None:
            os.close(self.lock)


@dataclass(frozen=True)
class Mark:
    """What is unfinished in a folder, and by which command."""

    arguments: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class BusyError(OutputError, BlockingIOError):
    """A folder that another command is writing to."""


LONGEST_STEM = 100  # characters of the name of a folder that the user did not choose

_claims: list[_Claim] = []


def new_folder(
    out: Path | None,
    stem: str,
    names: Iterable[str],
    *,
    beside: Path | None = None,
    partial: str | None = None,
) -> Path:
    """Claim a folder in which none of the files `names` is there yet.

    It is the one that was asked for, or the first that is free of `out/STEM`, `out/STEM-2`, ...
    What a killed command left unfinished is replaced: by whatever is written to the folder that
    was asked for, and elsewhere by the same command.

    Args:
        beside: a folder to write to by default, and to `STEM-2`, ... in it.
        partial: name of the file that work under way is kept in.
    """
    from sads.files import write_json

    names = tuple(names)
    if out is not None:
        refuse_existing(out, names)
        claim = _claim(out)
    else:
        claim = _claim_free(_as_file_name(stem), names, beside)
    claim.names = names if partial is None else (*names, partial)
    claim.mark = _mark_of(claim.folder, names)
    _claims.append(claim)
    write_json(claim.mark, Mark(tuple(sys.argv[1:]), claim.names))
    return claim.folder


def claim_folder(folder: Path, names: Iterable[str] = ()) -> None:
    """Claim a folder whose files the command looks after by itself.

    From files of these names it would go on.
    """
    claim = _claim(folder)
    claim.names = tuple(names)
    _claims.append(claim)


def finish(folder: Path) -> None:
    """Say that the results in a folder are whole."""
    for claim in _claims:
        if claim.folder == folder and claim.mark is not None:
            claim.mark.unlink(missing_ok=True)


def holds() -> bool:
    """Is there anything in the folders of this command that it would go on from?"""
    return any(_is_there(c.folder / name) for c in _claims for name in c.names)


def let_go() -> None:
    """Let go of all folders, at the end of a command."""
    while _claims:
        _claims.pop().let_go()


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """One line if a folder already holds any of these files, unless they are unfinished."""
    names = tuple(names)
    unfinished = _read_mark(_mark_of(folder, names)).files
    for name in names:
        if name not in unfinished and _is_there(folder / name):
            raise OutputError(
                f"{printable(folder)} already holds {name}, and nothing is overwritten; choose "
                "another --out, or remove it"
            )


def _as_file_name(text: str) -> str:
    """One name of a folder, whatever is in the names of networks and data that it is made of.

    >>> _as_file_name("rank-one:dct:3"), _as_file_name("../x.py:Probe")
    ('rank-one-dct-3', 'x.py-Probe')
    """
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
    return name[:LONGEST_STEM].strip("-.") or "results"


def _claim_free(stem: str, names: tuple[str, ...], beside: Path | None) -> _Claim:
    for number in count(1):
        if beside is not None and number == 1:
            folder, shared = beside, True
        else:
            name = stem if number == 1 else f"{stem}-{number}"
            folder, shared = (beside or Path("out")) / name, False
        if _is_there(folder) and not folder.is_dir():
            continue  # a file of that name
        try:
            claim = _claim(folder)
        except BusyError:
            continue
        if _is_free(folder, names, shared):
            return claim
        claim.let_go()
    raise AssertionError  # there is always another number


def _is_free(folder: Path, names: tuple[str, ...], shared: bool) -> bool:
    mark = _mark_of(folder, names)
    if _read_mark(mark).arguments == tuple(sys.argv[1:]):
        return True
    if shared:
        return not any(_is_there(folder / name) for name in (mark.name, *names))
    return not any(folder.iterdir())


def _claim(folder: Path) -> _Claim:
    """Make a folder if need be, lock it, and check that it can be written to.

    Only who has the lock writes to a folder or removes it.
    """
    from sads.files import check_folder, check_folder_name, clear_leftovers

    if _is_there(folder) and not folder.is_dir():
        raise OutputError(
            f"cannot write to {printable(folder)}: it is not a folder; choose another --out"
        )
    check_folder_name(folder)
    while True:
        claim = _Claim(folder, made=_make(folder))
        try:
            claim.lock = _lock(folder)
            if claim.lock is None or os.path.samestat(os.fstat(claim.lock), os.stat(folder)):
                check_folder(folder)
                clear_leftovers(folder)
                return claim
        except FileNotFoundError:  # its maker has just removed it again
            pass
        except BusyError:  # whoever has locked it writes to it: it is not ours to remove
            raise
        except BaseException:
            claim.let_go()
            raise
        if claim.lock is not None:
            os.close(claim.lock)  # what is there now was made by somebody else


def _make(folder: Path) -> list[Path]:
    """Make a folder and those above it; those that were made here, innermost first."""
    missing = []
    for place in (folder, *folder.parents):
        if _is_there(place):
            break
        missing.append(place)
    made: list[Path] = []
    for place in reversed(missing):
        try:
            place.mkdir()
        except FileExistsError:  # by another command, at this moment
            continue
        except OSError as error:
            _Claim(folder, made=made).let_go()
            raise OutputError(
                f"cannot make {printable(place)}: {error.strerror}; choose a folder that you can "
                "write to"
            ) from error
        made.insert(0, place)
    return made


def _lock(folder: Path) -> int | None:
    """A lock on a folder itself: no file is left behind, whatever happens."""
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # `check_folder` says it
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BusyError(
            f"another command is writing to {printable(folder)}; wait for it, or choose another "
            "--out"
        ) from error
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _mark_of(folder: Path, names: tuple[str, ...]) -> Path:
    return folder / f".{names[0]}.unfinished"


def _read_mark(path: Path) -> Mark:
    """What is unfinished; nothing, if there is no mark or it is not ours."""
    try:
        return decode(Mark, read_json(path))
    except (OSError, ValueError):
        return Mark()
