"""Ctrl-C, SIGTERM (what Slurm sends) and SIGHUP end a command in order, whenever they come.

Imports nothing slow: signals are handled before anything that takes time is imported.
"""

import _thread
import os
import shlex
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from sads.errors import printable

if TYPE_CHECKING:  # it exists for type checkers only
    from sys import UnraisableHookArgs

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
AGAIN_SECONDS = 0.5  # a signal within this time is the same one: `timeout` sends two of each
LATER_SECONDS = 0.01  # after which an interrupt is tried again that could not be raised
PATIENCE_SECONDS = 5.0  # of imports of other modules than PyTorch


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


_entered: "Interrupts | None" = None  # that of this process


class Interrupted(KeyboardInterrupt):
    """A command that was interrupted and put things in order; its text says what was kept."""


class Interrupts:
    """While it is entered, the first of these signals is a KeyboardInterrupt in the main thread.

    One that comes while Python runs a callback from which nothing can be raised (a finaliser, say)
    would be printed and dropped; a module that is imported may catch everything, and PyTorch aborts
    the process. It is raised when that is over, or after five seconds of imports of others.

    The second one ends the process at once, in whatever it does to put things in order; all files
    are whole or not there at any moment. What a shell or `nohup` ignores stays ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._when = 0.0
        self._waiting = False  # was one received that is not raised yet?
        self._again = False  # do we call our own handler?
        self._before: dict[int, Any] = {}
        self._hook_before: Any = None

    @property
    def status(self) -> int:
        """The exit status of an interrupted command: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.received or signal.SIGINT)

    def __enter__(self) -> Self:
        global _entered
        _entered = self
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._handle)
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._drop
        return self

    def __exit__(self, *_: object) -> None:
        """Give a program its own handlers back.

        If there were none the process is about to end, and a signal may simply kill it: Python's
        own handler would print where the interpreter was.
        """
        for number, before in self._before.items():
            own = before not in (signal.SIG_DFL, signal.default_int_handler)
            signal.signal(number, before if own else signal.SIG_DFL)
        if self._hook_before is not None:
            sys.unraisablehook = self._hook_before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self._again = self._again, False
        now = time.monotonic()
        if self.received is None:
            self.received, self._when, self._waiting = number, now, True
        elif not again and now - self._when > AGAIN_SECONDS:
            show_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides it
            os.write(2, show_cursor + b"interrupted again: stopped at once\n")
            os._exit(self.status)
        patient = now - self._when < PATIENCE_SECONDS and _in_import(frame)
        if self._waiting and (patient or _importing("torch")):
            self._try_later()
        elif self._waiting:
            self._waiting = False
            raise KeyboardInterrupt

    def raise_if_lost(self) -> None:
        """Raise an interrupt after which work goes on: something has caught it that should not."""
        in_order = sys.exc_info()[1] is not None  # is it on its way to whoever waits for it?
        on_main_thread = threading.current_thread() is threading.main_thread()
        if self.received is not None and on_main_thread and not in_order:
            self._waiting = False
            raise KeyboardInterrupt

    def _drop(self, dropped: "UnraisableHookArgs") -> None:
        """What cannot be raised is printed, as without us, unless it is our interrupt."""
        if self.received is None or not issubclass(dropped.exc_type, KeyboardInterrupt):
            self._hook_before(dropped)
            return
        self._waiting = True
        self._try_later()

    def _try_later(self) -> None:
        later = threading.Timer(LATER_SECONDS, self._try_again)
        later.daemon = True
        later.start()

    def _try_again(self) -> None:
        """In another thread: have the handler called in the main one, whatever it waits for."""
        if not self._waiting:
            return
        self._again = True
        number = self.received or signal.SIGINT
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:  # on Windows
            _thread.interrupt_main(signal.Signals(number))


def raise_if_lost() -> None:
    """Called while a command works: see `Interrupts.raise_if_lost`."""
    if _entered is not None:
        _entered.raise_if_lost()


def _in_import(frame: FrameType | None) -> bool:
    """Is any module being imported where the main thread is?"""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _importing(name: str) -> bool:
    """Is a module being imported at this moment?"""
    specification = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(specification, "_initializing", False))
