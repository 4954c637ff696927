"""Large networks: weights that are drawn layer by layer against weights that are in memory.

One forward pass of a network of the atlas, by PyTorch with all of its weights in memory, and as an
estimate does it, each layer's weights drawn just before it runs and dropped after. Both take turns
in one process, on the same threads; the peak memory of each is that of a process of its own.

    python benchmarks/large.py                         # Stable Diffusion 1.5 and DiT-XL/2
    python benchmarks/large.py sd15 --rounds 5
    python benchmarks/large.py sd15 --dtype bfloat16   # both in half precision

Processor seconds are shown beside the clock's: on a machine that others use, compare those.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import sads  # before PyTorch, whose threads do not spin then, as in our commands

# isort: split
import torch
from torch import Tensor

from sads.environment import peak_memory, usable_dtype
from sads.geometry.streaming.networks import Streamed, StreamedNetwork
from sads.seeds import numpy_stream

NETWORKS = ("sd15", "dit-xl-2")
WANTED = 0.8  # of PyTorch's speed with weights in memory
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--peak-of", choices=("whole", "streamed"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in given.networks:
        if given.peak_of:
            evaluation(name, given.peak_of, given.dtype)()
            print(peak_memory() / 1e9)
        else:
            compare(name, given.rounds, given.dtype)


def compare(name: str, rounds: int, dtype: str) -> None:
    """Print the times of both ways, medians over rounds in which they take turns."""
    ways = {way: evaluation(name, way, dtype) for way in ("whole", "streamed")}
    for evaluate in ways.values():
        evaluate()  # a first time, after which the order of layers is known
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, evaluate in ways.items():
            taken[way].append(timed(evaluate))
    for way, times in taken.items():
        clock, processor = (statistics.median(t[i] for t in times) for i in (0, 1))
        print(
            f"{name}, {dtype}, {way}: {clock:.2f} s, {processor:.2f} s of processors, "
            f"peak {peak(name, way, dtype):.2f} GB"
        )
    pairs = list(zip(taken["whole"], taken["streamed"], strict=True))
    for i, what in enumerate(("the clock", "processors")):
        ratio = statistics.median(whole[i] / streamed[i] for whole, streamed in pairs)
        verdict = "enough" if ratio >= WANTED else "TOO LITTLE"
        print(f"{name}: {ratio:.0%} of the speed with weights in memory by {what}, {verdict}")


def evaluation(name: str, way: str, dtype: str) -> Callable[[], Tensor]:
    """A function that evaluates a network once, at x = 0 in the middle of the levels."""
    family = sads.family(f"atlas:{name}")
    kind = usable_dtype(dtype)
    x = torch.zeros(1, *family.shape)
    t = family.schedule.network_time(torch.tensor([family.schedule.num_levels // 2]))
    if way == "streamed":
        networks = Streamed(family.build)
        streamed = StreamedNetwork(networks, CPU, kind)
        return lambda: streamed(networks.draw([numpy_stream(0)])[0], x, t)
    network = family.build().to(kind)

    def whole() -> Tensor:
        with torch.no_grad():
            return network(x.to(kind), t)

    return whole


def timed(evaluate: Callable[[], Tensor]) -> tuple[float, float]:
    """Seconds of the clock and of all processors."""
    clock, processor = time.perf_counter(), time.process_time()
    evaluate()
    return time.perf_counter() - clock, time.process_time() - processor


def peak(name: str, way: str, dtype: str) -> float:
    """The most memory of a process that evaluates one network, in GB."""
    command = [sys.executable, __file__, name, "--dtype", dtype, "--peak-of", way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
