"""Kill runs at random moments: one fork server, with everything imported, for all such tests.

The workers of pytest-xdist share the one that their parent starts.

`processes` is a fixture. A test gives `kill_repeatedly` a function that works towards something in
a folder, from where an earlier attempt was left, and a file whose changes show that it does.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300  # for what takes a moment on a quiet machine


def pytest_configure(config: pytest.Config) -> None:
    """Sweeps start processes, too: whoever asks for a server of his own gets the one of all tests.

    Else it would be that of the first who asks, and most of what the others need not be loaded.
    """
    forkserver.set_forkserver_preload = _start_server
    if server := getattr(config, "workerinput", {}).get("fork_server"):
        vars(forkserver._forkserver).update(server, _forkserver_alive_fd=os.pipe()[1])
        share_server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called in the parent for each worker, before it starts."""
    _start_server()
    names = ("_forkserver_address", "_forkserver_authkey")  # the key since Python 3.14
    server = vars(forkserver._forkserver)
    node.workerinput["fork_server"] = {name: server[name] for name in names if name in server}


def _start_server(_: list[str] | None = None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver._forkserver.set_forkserver_preload(["preloaded"])
        forkserver.ensure_running()


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Starts processes in some milliseconds that know nothing of this one."""
    _start_server()
    return multiprocessing.get_context("forkserver")


def share_server() -> None:
    """Called in a process of the server's: those that it starts come from the same one."""
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None


def start(
    processes: ForkServerContext, target: Callable[..., object], *arguments: object
) -> BaseProcess:
    process = processes.Process(target=target, args=arguments)
    process.start()
    return process


def finish(processes: ForkServerContext, target: Callable[..., object], *arguments: object) -> None:
    """Run a function in a process of its own, undisturbed, to its end."""
    process = start(processes, target, *arguments)
    process.join(SECONDS)
    assert process.exitcode == 0


def kill_repeatedly(
    processes: ForkServerContext,
    target: Callable[..., object],
    *arguments: object,
    progress: Path,
    times: int,
    delay: float,
    seed: int = 0,
) -> None:
    """Start a run so many times and `kill -9` it each time, then let it finish.

    It is killed up to `delay` seconds after it has written to the file `progress`.
    """
    chance = random.Random(seed)
    for _ in range(times):
        before = _written(progress)
        process = start(processes, target, *arguments)
        while _written(progress) in (None, before):
            time.sleep(0.002)
            assert process.is_alive(), f"the run ended before it was killed {times} times"
        time.sleep(delay * chance.random())
        assert process.is_alive(), f"the run ended before it was killed {times} times"
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    finish(processes, target, *arguments)


def run_command(folder: Path, arguments: list[str]) -> None:
    """A command of ours as a shell would run it in a folder; its messages go to `messages`."""
    import torch
    from matplotlib.figure import Figure

    from pictures import leave_empty

    Figure.savefig = leave_empty  # type: ignore[method-assign]
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["SADS_CHECKPOINT_SECONDS"] = "0.02"
    sys.argv = ["sads", *arguments]
    sys.stdout = sys.stderr = (folder / "messages").open("w")
    from sads.cli.main import main

    main()


def _is_whole(results: Path) -> bool:
    """Was a command ended when all was written, in its last moments?"""
    names = [path.name for path in results.iterdir()] if results.is_dir() else []
    return bool(names) and not any(name.endswith(".unfinished") for name in names)


def disturb(
    processes: ForkServerContext,
    folder: Path,
    arguments: list[str],
    check: Callable[[], object],
    *,
    progress: Path | None = None,
    times: int = 10,
    longest: float,
    seed: int = 0,
) -> None:
    """End a command so many times, by `kill -9` and SIGTERM in turn, then let it finish.

    Every other one is ended at a random moment of its life, the others at a random moment after it
    has written to the file `progress`. After each, `check` looks at what is there. A command that
    is done before it is ended, on a fast machine, starts over in a new place: its last argument
    names the folder that it writes to.
    """
    chance, ended = random.Random(seed), 0
    for _ in range(5 * times):
        number = (signal.SIGKILL, signal.SIGTERM)[ended % 2]
        before = _written(progress)
        process = start(processes, run_command, folder, arguments)
        if ended % 4 < 2 and progress is not None:
            while process.is_alive() and _written(progress) == before:
                time.sleep(0.002)
        waiting = time.perf_counter()
        process.join(longest * chance.random())
        if process.is_alive():  # by multiprocessing, which knows if it ends at this very moment
            process.kill() if number == signal.SIGKILL else process.terminate()
        else:  # the machine has become faster than it was
            longest = min(longest, time.perf_counter() - waiting)
        process.join(SECONDS)
        assert process.exitcode is not None, f"{arguments[0]} goes on after {number.name}"
        messages = (folder / "messages").read_text() if (folder / "messages").exists() else ""
        assert "Traceback" not in messages
        if process.exitcode == 128 + signal.SIGTERM:
            assert messages.splitlines()[-1].startswith("interrupted: ")
            assert f"with: sads {arguments[0]}" in messages.splitlines()[-1]
        else:  # a signal may come before main has begun
            assert process.exitcode in (0, -number), messages
        check()
        ended += process.exitcode != 0
        if process.exitcode == 0 or _is_whole(folder / arguments[-1]):
            shutil.rmtree(folder / arguments[-1])
        if ended == times:
            finish(processes, run_command, folder, arguments)
            return
    pytest.fail(f"{arguments[0]} was ended {ended} times only: it is done too soon")


def _written(path: Path | None) -> int | None:
    """When a file was written; None if it is not there, or no more."""
    try:
        return None if path is None else path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
