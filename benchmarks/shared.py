"""Beside other work: two estimates at once, and one beside a busy loop on each core.

OpenMP's threads spin while they wait for work, which steals the cores from whoever has some. `sads`
tells them not to (`sads/openmp.py`). Every process here starts without the user's own setting. The
time of one estimate alone, run beside nothing, is the unit:

    python benchmarks/shared.py            # ratios, medians of three rounds
    python benchmarks/shared.py --spinning # the same with OpenMP's default, for comparison

With fewer free cores than the machine has the ratios say little: run it on a quiet machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
LIMIT = 2.5
# PyTorch first, as in a user's script: our setting then comes too late for the library.
TORCH_FIRST = """
import sys, torch, sads, time
x = torch.randn(512, 512) @ torch.randn(512, 512)
started = time.perf_counter()
sads.estimate_geometry("iddpm", int(sys.argv[1]))
print(time.perf_counter() - started)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spinning", action="store_true", help="OpenMP's default")
    given = parser.parse_args()
    command = [sys.executable, "-m", "sads.cli", "geometry", "iddpm"]
    command += ["--networks", str(given.networks), "--json"]
    script = [sys.executable, "-c", TORCH_FIRST, str(given.networks)]
    worst = 0.0
    for name, each in (("sads geometry iddpm", command), ("torch imported first", script)):
        rounds = [measure(each, given.spinning) for _ in range(given.rounds)]
        alone = statistics.median(r[0] for r in rounds)
        two, busy = (statistics.median(r[i] / r[0] for r in rounds) for i in (1, 2))
        worst = max(worst, two, busy)
        print(
            f"{name}, {given.networks} networks: alone {alone:.2f} s, two at once {two:.2f} x, "
            f"beside {os.cpu_count()} busy loops {busy:.2f} x"
        )
    print(f"at most {worst:.2f} x, {'within' if worst <= LIMIT else 'ABOVE'} {LIMIT} x")
    sys.exit(worst > LIMIT and not given.spinning)


def measure(command: list[str], spinning: bool) -> tuple[float, float, float]:
    """Seconds of one alone, of two at once, and of one beside busy loops."""
    alone = seconds([command], spinning)
    two = seconds([command, command], spinning)
    with busy_loops():
        beside = seconds([command], spinning)
    return alone, two, beside


def seconds(commands: list[list[str]], spinning: bool) -> float:
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    if spinning:
        environment["OMP_WAIT_POLICY"] = "active"
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        running = []
        for i, command in enumerate(commands):
            place = os.path.join(folder, str(i))
            os.mkdir(place)
            running.append(
                subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL)
            )
        if any(process.wait() for process in running):
            sys.exit("a process failed")
        return time.perf_counter() - started


@contextmanager
def busy_loops() -> Iterator[None]:
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
