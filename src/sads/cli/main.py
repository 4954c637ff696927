"""Where a command starts and ends: signals, streams that are closed, the exit status.

| status | |
|---|---|
| 0 | done |
| 1 | done, but some cells failed, or not all of the output could be printed |
| 2 | refused, with one line that says why |
| 130, 143, 129 | interrupted by Ctrl-C, SIGTERM, SIGHUP |

Imports nothing slow, so that Ctrl-C is one line however early it comes.
"""

import codecs
import contextlib
import io
import os
import sys

from sads.cli.interrupts import Interrupts, command_line


def main() -> None:
    """Run the command of `sys.argv`; what a user can mend is one line, never a traceback."""
    with Interrupts() as interrupts:
        status = _status(interrupts)
        exec("")  # else CPython, if interrupted inside an exec (of an import, say), dies of SIGINT
        sys.exit(status)


def _status(interrupts: Interrupts) -> int:
    try:
        _open_closed_streams()
        _print_anything()
        from sads.cli.root import run

        status = run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        return 1
    except OSError as error:  # of our own files it is an OutputError
        if interrupts.received is None:
            _drop_output()
            what = "cannot print the output: " if error.filename is None else ""
            _print(f"error: {what}{error}")
            return 1
        return _end(interrupts)
    except KeyboardInterrupt as error:
        return _end(interrupts, str(error))
    except BaseException:  # what an import makes of an interrupt, for instance
        if interrupts.received is None:
            raise
        return _end(interrupts)
    return status


def _end(interrupts: Interrupts, text: str = "") -> int:
    _print(f"interrupted: {text or f'run it again with: {command_line()}'}")
    return interrupts.status


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)


def _open_closed_streams() -> None:
    """What a shell has closed (`>&-`) leads nowhere, and never into a file that we open."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _print_anything() -> None:
    """What the encoding of a terminal or a file lacks, as ± in ASCII, is written in other words."""
    codecs.register_error("sads", _in_other_words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sads")


def _in_other_words(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    known = {"±": "+-", "→": "->", "…": "..."}
    text = error.object[error.start : error.end]
    return "".join(known.get(c, c.encode("unicode_escape").decode()) for c in text), error.end


def _drop_output() -> None:
    """What is still to be printed goes nowhere, or Python would complain when it ends."""
    with contextlib.suppress(OSError, ValueError):
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, sys.stdout.fileno())
        os.close(handle)
