"""Compute many cells: one after the other, in local processes, or on a Ray cluster.

Every way of running yields the same events, and every cell writes its own result to the store as
it finishes. So a sweep that is stopped, however rudely, loses only the cells under way, and these
go on from their checkpoints when it is started again.
"""

import itertools
import logging
import math
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from sads.errors import (
    InvalidArgumentError,
    NotEnoughMemoryError,
    RayClusterError,
    SadsError,
    describe_failure,
)
from sads.experiments.run import Report, Sources, get_geometry, run_cell
from sads.experiments.spec import Cell, GeometrySpec
from sads.experiments.store import Store
from sads.geometry.estimate import estimate_geometry
from sads.geometry.result import Geometry

ATTEMPTS = 3  # at a cell whose worker dies
REPORT_SECONDS = 0.5  # between two reports of one worker
BUSY_SECONDS = 1.0  # before asking again for a cell that another sweep is at


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell; `text` is the reason of a failure.

    `lost` is a worker that died, `busy` a cell that another sweep is computing.
    """

    kind: Literal["started", "progress", "finished", "failed", "lost", "busy"]
    cell: Cell
    share: float = 0.0
    text: str = ""


Events = Generator[Event, None, None]


@dataclass
class Board:
    """The state of a sweep, for whoever watches it."""

    total: int
    found: int = 0  # were in the store already
    finished: int = 0
    failed: dict[Cell, str] = field(default_factory=dict)
    running: dict[Cell, float] = field(default_factory=dict)  # the share that is done
    elsewhere: set[Cell] = field(default_factory=set)  # another process has what they need
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def waiting(self) -> int:
        return self.total - self.found - self.finished - len(self.failed) - len(self.running)

    def seconds_left(self) -> float | None:
        """At the speed so far, if that can be told."""
        done = self.finished + sum(self.running.values())
        left = self.waiting + len(self.running) - sum(self.running.values())
        return (time.perf_counter() - self.started) * left / done if done > 0.05 else None


@dataclass(frozen=True)
class RayCluster:
    """An existing Ray cluster, and what each cell may take of it."""

    address: str  # HOST:PORT, or "auto" for the one of this machine
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if not (0 < self.cpus < math.inf and 0 <= self.gpus < math.inf):
            raise InvalidArgumentError(
                "a cell takes more than 0 CPUs and at least 0 GPUs of a cluster, "
                f"got {self.cpus:g} and {self.gpus:g}"
            )


Watch = Callable[[Board], None]


def sweep(
    cells: Iterable[Cell],
    store: Store,
    *,
    num_workers: int | None = None,
    cluster: RayCluster | None = None,
    sources: Sources | None = None,
    watch: Watch | None = None,
) -> Board:
    """Compute the cells that are not in the store yet.

    Args:
        num_workers: local processes, one thread each; 1 computes in this process. As many as there
            are cores if not given.
        cluster: compute on Ray instead; the store must be a place that all its nodes see.
        sources: where the images of a name are.
        watch: called with the board whenever something has happened.
    """
    num_workers = os.cpu_count() or 1 if num_workers is None else num_workers
    if num_workers < 1:
        raise InvalidArgumentError(f"give at least 1 worker, got {num_workers}")
    cells = list(dict.fromkeys(cells))
    missing = store.missing(cells)
    board = Board(len(cells), found=len(cells) - len(missing))
    board.notes += store.take_notes()
    store.clear_leftovers()
    watch = watch or (lambda board: None)
    watch(board)
    if not missing:
        return board
    sources = sources or {}
    if cluster is not None:
        connect(cluster)
    for spec in dict.fromkeys(cell.geometry for cell in missing):
        prepare_geometry(spec, store, cluster)  # here, on all cores, and not in every worker
    board.started = time.perf_counter()
    queue = _Queue(missing)
    if cluster is not None:
        events = _on_ray(queue, store, sources, cluster)
    elif num_workers == 1:
        events = _in_turn(queue, store, sources)
    else:
        events = _in_processes(queue, store, sources, min(num_workers, len(missing)))
    with closing(events):  # ends the workers, whatever `watch` does
        for event in events:
            _note(board, queue, event)
            watch(board)
    return board


class _Queue:
    """Cells that wait, some of them not before a certain time; each keeps its place.

    So cells that share a training, of which all but one find it busy, are done as soon as it is,
    and a sweep that is stopped leaves no model that is sampled in one of its ways only.
    """

    def __init__(self, cells: list[Cell]):
        self._due = dict.fromkeys(cells, 0.0)  # infinite for those that do not wait
        self._attempts = dict.fromkeys(cells, 0)

    def take(self) -> Cell | None:
        """The first cell whose time has come."""
        now = time.monotonic()
        cell = next((cell for cell, due in self._due.items() if due <= now), None)
        if cell is not None:
            self._due[cell] = math.inf
        return cell

    def put_back(self, cell: Cell, delay: float = 0.0) -> None:
        self._due[cell] = time.monotonic() + delay

    def count_loss(self, cell: Cell) -> bool:
        """Whether a cell whose worker died may be tried again."""
        self._attempts[cell] += 1
        return self._attempts[cell] < ATTEMPTS

    def __len__(self) -> int:
        return sum(due < math.inf for due in self._due.values())


def _note(board: Board, queue: _Queue, event: Event) -> None:
    """Bring the board up to date, and give back to the queue what must be tried again."""
    if event.kind in ("started", "progress"):
        board.running[event.cell] = event.share
        if event.kind == "progress":
            board.elsewhere.discard(event.cell)
        return
    board.running.pop(event.cell, None)
    if event.kind == "busy":
        board.elsewhere.add(event.cell)
    else:
        board.elsewhere.discard(event.cell)
    if event.kind == "finished":
        board.finished += 1
    elif event.kind == "failed":
        board.failed[event.cell] = event.text
    elif event.kind == "busy":
        queue.put_back(event.cell, BUSY_SECONDS)
    elif queue.count_loss(event.cell):
        board.notes.append(f"{event.cell.label}: {event.text}; it is tried again")
        queue.put_back(event.cell)
    else:
        board.failed[event.cell] = f"{event.text}, {ATTEMPTS} times"


def _in_turn(queue: _Queue, store: Store, sources: Sources) -> Events:
    while queue:
        cell = queue.take()
        if cell is None:
            time.sleep(BUSY_SECONDS / 4)
            continue
        yield Event("started", cell)
        yield _attempt(cell, store, sources)


def _attempt(
    cell: Cell, store: Store, sources: Sources, report: Report | None = None, device: str = "cpu"
) -> Event:
    """One attempt at a cell; what goes wrong would go wrong again, and is the cell's failure."""
    try:
        record = run_cell(cell, store, sources, report, device)
    except SadsError as error:
        return Event("failed", cell, text=str(error))
    except Exception as error:
        return Event("failed", cell, text=describe_failure(error))
    return Event("busy" if record is None else "finished", cell)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    cell: Cell | None = None


def _in_processes(queue: _Queue, store: Store, sources: Sources, num_workers: int) -> Events:
    """A process at a time for each worker; one that dies is replaced and its cell reported lost."""
    workers = [_start_worker(store, sources) for _ in range(num_workers)]
    try:
        while queue or any(worker.cell for worker in workers):
            for worker in workers:
                if worker.cell is None and (cell := queue.take()) is not None:
                    worker.cell = cell
                    with suppress(OSError):  # it died while it had nothing to do: seen below
                        worker.connection.send(cell)
                    yield Event("started", cell)
            ready = wait([w.connection for w in workers if w.cell], timeout=BUSY_SECONDS)
            for i, worker in enumerate(workers):
                if worker.cell is None or worker.connection not in ready:
                    continue
                try:
                    event: Event = worker.connection.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    reason = f"its process died (exit code {worker.process.exitcode})"
                    event = Event("lost", worker.cell, text=reason)
                    workers[i] = worker = _start_worker(store, sources)
                if event.kind != "progress":
                    worker.cell = None
                yield event
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def _start_worker(store: Store, sources: Sources) -> _Worker:
    context = _new_processes()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, store.url, dict(sources)), daemon=True)
    with _without_interrupts():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _new_processes() -> Any:
    """Processes that share nothing with this one, from a server that has PyTorch imported."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sads.experiments.run", "torch._dynamo"])  # slow to import
    return context


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started here is deaf to Ctrl-C from its first moment; ours comes later.

    So is the server that it comes from. It is started after Python's tracker of resources, whose
    start would make it hear again.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, url: str, sources: Sources) -> None:
    """Compute cells until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    torch.set_num_threads(1)
    store: Store | None = None

    def tell(event: Event) -> None:
        try:
            connection.send(event)
        except OSError:  # the parent was killed
            raise SystemExit from None

    while True:
        try:
            cell: Cell = connection.recv()
        except (EOFError, OSError):
            return
        last = 0.0

        def report(share: float, cell: Cell = cell) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                tell(Event("progress", cell, share))

        try:
            store = store or Store(url)
        except SadsError as error:  # somebody has removed or exchanged it since
            tell(Event("failed", cell, text=str(error)))
        else:
            tell(_attempt(cell, store, sources, report))


def connect(cluster: RayCluster) -> Any:
    """Join an existing Ray cluster; one line if there is none."""
    host, _, port = cluster.address.rpartition(":")
    if host in ("127.0.0.1", "localhost"):
        # Ray would look for it at this machine's outer address, where such a cluster is not.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise RayClusterError("Ray is not installed; pip install 'sads[ray]'") from error
    if ray.is_initialized():
        return ray
    if cluster.address != "auto":
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            raise RayClusterError(
                f"no Ray cluster answers at {cluster.address} ({error}); start one with "
                "`ray start --head` and give its HOST:PORT"
            ) from error
    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayClusterError(
            f"cannot join the Ray cluster at {cluster.address} "
            f"({(str(error).splitlines() or [''])[0]}); start one with `ray start --head`"
        ) from error
    return ray


def _on_ray(queue: _Queue, store: Store, sources: Sources, cluster: RayCluster) -> Events:
    """Tasks on a cluster, as many as it has room for; those of a dead node are tried elsewhere."""
    ray = connect(cluster)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(n.get("CPU", 0) >= cluster.cpus and n.get("GPU", 0) >= cluster.gpus for n in nodes):
        raise RayClusterError(
            f"no node of the cluster has the {cluster.cpus:g} CPUs and {cluster.gpus:g} GPUs of a "
            "cell; ask for less with --cpus and --gpus"
        )
    resources = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus}
    task = ray.remote(**resources, max_retries=0)(_ray_attempt)
    pending: dict[Any, Cell] = {}
    try:
        while queue or pending:
            while (cell := queue.take()) is not None:
                pending[task.remote(cell, store.url, dict(sources), cluster.gpus > 0)] = cell
            done, _ = ray.wait(list(pending), timeout=BUSY_SECONDS) if pending else ([], [])
            if not pending:
                time.sleep(BUSY_SECONDS / 4)
            for reference in done:
                yield _ray_event(ray, reference, pending.pop(reference), store)
    finally:
        for reference in pending:  # a notebook goes on after Ctrl-C, and so would its tasks
            ray.cancel(reference, force=True)


def _ray_event(ray: Any, reference: Any, cell: Cell, store: Store) -> Event:
    """How a task ended."""
    try:
        event: Event = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return Event("failed", cell, text=str(error.cause))
    except ray.exceptions.RayError as error:
        return Event("lost", cell, text=f"its Ray task was lost ({type(error).__name__})")
    if event.kind == "finished" and not _appears(cell, store):
        reason = f"its node does not see the store {store.url}; use one that all share"
        return Event("failed", cell, text=reason)
    return event


def _appears(cell: Cell, store: Store) -> bool:
    """Whether a record that a node wrote is there; network file systems take their time."""
    for _ in range(10):
        if store.get(cell) is not None:
            return True
        time.sleep(BUSY_SECONDS)
    return False


def _ray_attempt(cell: Cell, url: str, sources: Sources, on_gpu: bool) -> Event:
    torch.set_num_threads(1)
    device = str(torch.accelerator.current_accelerator() or "cpu") if on_gpu else "cpu"
    return _attempt(cell, Store(url), sources, device=device)


def prepare_geometry(spec: GeometrySpec, store: Store, cluster: RayCluster | None) -> Geometry:
    """A geometry from the store, or estimated here or on a cluster and kept there."""
    if cluster is not None and store.geometry(spec) is None:
        store.put_geometry(spec, geometry_on_ray(spec, cluster))
    return get_geometry(spec, store)


def geometry_on_ray(spec: GeometrySpec, cluster: RayCluster, first_network: int = 0) -> Geometry:
    """A geometry whose networks are drawn on a cluster, in shards that are merged.

    Network number `n` has its own random stream, so the shards draw the very networks that one
    process would, and the result is the same up to rounding. Shards are kept as matrices, however
    large: without one the ends of the spectrum do not add up.
    """
    ray = connect(cluster)
    cpus = int(ray.cluster_resources().get("CPU", 1) // cluster.cpus)
    count = min(max(1, cpus), spec.num_networks)
    bounds = [spec.num_networks * k // count for k in range(count + 1)]
    task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=ATTEMPTS)(_shard)
    references = [
        task.remote(spec, first_network + start, stop - start)
        for start, stop in itertools.pairwise(bounds)
    ]
    try:
        first, *others = ray.get(references)
    except ray.exceptions.RayTaskError as error:
        raise RayClusterError(f"a shard of the geometry failed: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise RayClusterError(f"the geometry was lost on the cluster: {error}") from error
    return first if first.exact else first.merge(*others)


def _shard(spec: GeometrySpec, first_network: int, num_networks: int) -> Geometry:
    try:
        return estimate_geometry(
            spec.family.build(),
            num_networks,
            seed=spec.seed,
            first_network=first_network,
            matrix_free=False,
        )
    except NotEnoughMemoryError as error:
        raise NotEnoughMemoryError(
            f"{error}; one without a matrix is not drawn in shards: leave --ray out"
        ) from error
