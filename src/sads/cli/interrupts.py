"""Ctrl-C, SIGTERM (what Slurm sends) and SIGHUP end a command in order, whenever they come.

Imports nothing slow: signals are handled before anything that takes time is imported.
"""

import os
import shlex
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

from sads.errors import printable

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
AGAIN_SECONDS = 0.5  # a signal within this time is the same one: `timeout` sends two of each


def command_line(*more: str) -> str:
    """What the user typed, and perhaps more, on one line that a shell reads."""
    return " ".join(["sads", *(_quote(argument) for argument in (*sys.argv[1:], *more))])


def _quote(argument: str) -> str:
    """As `shlex.quote`, but what would end the line or move the cursor is escaped.

    >>> print(_quote("it's"), _quote("it's\\n"))
    'it'"'"'s' $'it\\'s\\n'
    """
    if argument.isprintable():
        return shlex.quote(argument)
    escaped = argument.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{printable(escaped)}'"


class Interrupted(KeyboardInterrupt):
    """A command that was interrupted and put things in order; its text says what was kept."""


class Interrupts:
    """While it is entered, the first of these signals is a KeyboardInterrupt in the main thread.

    The second one ends the process at once, in whatever it does to put things in order; all files
    are whole or not there at any moment. What a shell or `nohup` ignores stays ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._when = 0.0
        self._before: dict[int, Any] = {}

    @property
    def status(self) -> int:
        """The exit status of an interrupted command: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.received or signal.SIGINT)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give a program its own handlers back.

        If there were none the process is about to end, and a signal may simply kill it: Python's
        own handler would print where the interpreter was.
        """
        for number, before in self._before.items():
            own = before not in (signal.SIG_DFL, signal.default_int_handler)
            signal.signal(number, before if own else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._when = number, now
            raise KeyboardInterrupt
        if now - self._when > AGAIN_SECONDS:
            show_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides it
            os.write(2, show_cursor + b"interrupted again: stopped at once\n")
            os._exit(self.status)
