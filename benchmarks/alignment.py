"""Rotations of images: seconds and peak memory, against the obvious dense code, side by side.

    python benchmarks/alignment.py            # 10,000 images of 3x32x32 and 400 of 1x56x56
    python benchmarks/alignment.py --quick    # 2,000 of 3x16x16

The dense code is Theorem 2 by the letter: eigendecompositions of two D x D matrices, `W = U R V^T`
as a matrix, all data at once in float64. Both find the rotation to the minimum and rotate the data
with it; `sads` also finds the error of alpha. Each measurement is a process of its own that
reports the seconds and the peak of its resident memory above what it held before, which is the
geometry and the data (Linux only: the peak is set back in /proc). The geometry is a quick estimate
(a CNN, 64 networks), the data random and uneven along one axis. A last table is the time to rotate
batches in a training loop.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

import sads
from sads.shapes import format_shape, parse_shape

FULL = ["3x32x32:10000", "1x56x56:400"]
QUICK = ["3x16x16:2000"]


def problem(shape: tuple[int, ...], num_samples: int) -> tuple[sads.Geometry, Tensor]:
    geometry = sads.estimate_geometry(sads.family("cnn", shape), 64)
    noise = torch.randn(num_samples, *shape, generator=torch.Generator().manual_seed(0))
    frequency = 1 + torch.arange(shape[-1]).float()
    return geometry, 0.1 + noise / frequency  # uneven along one axis


def dense(geometry: sads.Geometry, x: Tensor) -> tuple[float, Tensor]:
    rows = x.double().flatten(1)
    values, u = torch.linalg.eigh(geometry.matrix())
    moments, v = torch.linalg.eigh(rows.T @ rows / len(rows))
    w = u @ v.flip(1).T  # ascending u_i meets descending v_i
    return float(values @ moments.flip(0)), (rows @ w.T).float().reshape(x.shape)


def ours(geometry: sads.Geometry, x: Tensor) -> tuple[float, Tensor]:
    rotation = sads.rotation(geometry, x, "min")
    return rotation.alpha, rotation.apply(x, out=x)


def measure(name: str, shape: tuple[int, ...], num_samples: int) -> None:
    """Run one of the two in this process and print what it took, as JSON."""
    geometry, x = problem(shape, num_samples)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before, start = peak_memory(), time.perf_counter()
    alpha, z = (dense if name == "dense" else ours)(geometry, x)
    seconds, memory = time.perf_counter() - start, peak_memory() - before
    reached = sads.pair(geometry, z).rotation("identity").alpha
    print(json.dumps({"seconds": seconds, "bytes": memory, "alpha": alpha, "reached": reached}))


def peak_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(name: str, case: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, case]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def read(case: str) -> tuple[tuple[int, ...], int]:
    shape, _, count = case.partition(":")
    return parse_shape(shape), int(count)


def compare(case: str) -> None:
    shape, _, count = case.partition(":")
    results = {name: run(name, case) for name in ("dense", "sads")}
    print(f"\n{int(count):,} images of {shape}")
    for name, r in results.items():
        print(
            f"  {name:6}{r['seconds']:8.1f} s{r['bytes'] / 2**20:8.0f} MB   "
            f"alpha {r['alpha']:.4g}, of the rotated data {r['reached']:.4g}"
        )
    seconds, memory = (results["dense"][k] / results["sads"][k] for k in ("seconds", "bytes"))
    print(f"  ratio {seconds:8.2f} x{memory:8.2f} x less")


def compare_loading(shape: tuple[int, ...], batch_size: int = 128, batches: int = 4) -> None:
    geometry, x = problem(shape, batch_size * batches)
    rotation = sads.rotation(geometry, x, "min")
    rotation.apply(x[:1])
    loaders = {
        "plain": {"dataset": x},
        "one by one": {"dataset": sads.RotatedDataset(x, rotation)},
        "by batch": {"dataset": x, "collate_fn": sads.rotate_collate(rotation)},
    }
    print(f"\na batch of {batch_size} images of {format_shape(shape)} from a DataLoader")
    for name, arguments in loaders.items():
        loader = torch.utils.data.DataLoader(**arguments, batch_size=batch_size)
        start = time.perf_counter()
        for _ in loader:
            pass
        print(f"  {name:12}{1e3 * (time.perf_counter() - start) / batches:10.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a size that takes seconds")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, case = arguments.measure
        measure(name, *read(case))
        return
    print(f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, torch {torch.__version__}")
    for case in QUICK if arguments.quick else FULL:
        compare(case)
    compare_loading((3, 16, 16) if arguments.quick else (3, 32, 32))


if __name__ == "__main__":
    main()
