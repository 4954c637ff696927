"""Throughput of sweeps: one process, a process a core, and Ray, on the same cells in one run.

    python benchmarks/sweep.py
    python benchmarks/sweep.py --no-ray

Every way computes the same cells into a store of its own, which has the geometry beforehand. The
throughput is that after each worker's first cell, so that the start of processes does not count;
the second column counts everything.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.experiments.run import get_geometry
from sads.experiments.spec import Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.sweep import Board, RayCluster, sweep
from sads.table1 import Sampling, Training

FAMILY = FamilySpec("iddpm", (1, 8, 8))
GEOMETRY = GeometrySpec(FAMILY, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=14)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    workers = options.workers
    cells = [
        Cell(
            geometry=GEOMETRY,
            data=DataSpec.parse(f"rank-one:geometry:{k}"),
            num_data=1000,
            training=Training(40, 64, 1e-3),
            sampling=Sampling(100, 10, projections_per_dimension=16),
            seed=0,
            layers=layers_name(),
        )
        for k in range(options.cells)
    ]
    rates = {}
    with tempfile.TemporaryDirectory(prefix="sads-sweep-") as folder:
        rates["one"] = throughput(cells, f"{folder}/one", 1, num_workers=1)
        rates["local"] = throughput(cells, f"{folder}/local", workers, num_workers=workers)
        if not options.no_ray:
            with local_cluster(workers) as cluster:
                rates["ray"] = throughput(cells, f"{folder}/ray", workers, cluster=cluster)
    names = {"one": "one process", "local": f"{workers} processes", "ray": f"Ray, {workers} nodes"}
    print(f"{options.cells} cells of {FAMILY}, {workers} workers with one thread each\n")
    print(f"{'':16}{'cells/min':>11}{'with start':>12}")
    for way, (steady, whole) in rates.items():
        print(f"{names[way]:16}{60 * steady:11.1f}{60 * whole:12.1f}")
    print(f"\n{names['local']} against one: {rates['local'][0] / rates['one'][0]:.2f} x")
    if "ray" in rates:
        print(
            f"{names['ray']} against {names['local']}: {rates['ray'][0] / rates['local'][0]:.2f} x"
        )


def throughput(cells: list[Cell], folder: str, workers: int, **way: Any) -> tuple[float, float]:
    """Cells a second after each worker's first one, and over all."""
    store = Store(folder)
    get_geometry(GEOMETRY, store)
    ends: list[float] = []

    def watch(board: Board) -> None:
        if board.finished > len(ends):
            ends.append(time.perf_counter())

    started = time.perf_counter()
    board = sweep(cells, store, watch=watch, **way)
    assert board.finished == len(cells), board.failed
    steady = (len(cells) - workers) / (ends[-1] - ends[workers - 1])
    return steady, len(cells) / (ends[-1] - started)


@contextmanager
def local_cluster(num_nodes: int) -> Iterator[RayCluster]:
    """Nodes of one CPU each on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # see `connect`
    import ray
    from ray.cluster_utils import Cluster as LocalCluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
    local = LocalCluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(num_nodes - 1):
        local.add_node(**node)
    local.wait_for_nodes()
    try:
        yield RayCluster(local.address)
    finally:
        ray.shutdown()
        local.shutdown()


if __name__ == "__main__":
    main()
