"""Sweeps: in turn, in processes, on Ray; killed at any moment."""

import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import torch

import killing
from sads import environment
from sads.cpu import layers_name
from sads.data.spec import DataSpec
from sads.errors import InvalidArgumentError, NotEnoughMemoryError, RayClusterError
from sads.experiments import run
from sads.experiments import sweep as sweeping
from sads.experiments.run import get_geometry
from sads.experiments.spec import Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.experiments.sweep import RayCluster, _shard, connect, geometry_on_ray, sweep
from sads.files import write_json
from sads.openmp import SETTINGS
from sads.table1 import Sampling, Training

FAMILY = FamilySpec("mlp", (1, 4, 4), (("depth", 1), ("width", 16)))
GEOMETRY = GeometrySpec(FAMILY, 32)
QUICK = Training(5, 20, 1e-3)
SLOW = Training(600, 20, 1e-3)  # long enough for a node to die under it
KILLED = Training(300, 20, 1e-3)  # six cells of it are long enough to be killed in ten times


def cell_along(data, training=QUICK):
    return Cell(
        geometry=GEOMETRY,
        data=DataSpec.parse(data),
        num_data=100,
        training=training,
        sampling=Sampling(20, 3, projections_per_dimension=1),
        seed=0,
        layers=layers_name(),
    )


def cells(training=QUICK, count=4):
    return [cell_along(f"rank-one:geometry:{rank}", training) for rank in range(count)]


def numbers(store):
    """What must not depend on how a sweep was run."""
    return {k: (r.evaluations, r.losses, r.facts) for k, r in store.records().items()}


def test_processes_give_the_numbers_of_one(tmp_path):
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    assert sweep(cells(), one, num_workers=1).finished == 4
    seen = []
    board = sweep(cells(), two, num_workers=2, watch=lambda b: seen.append(len(b.running)))
    assert (board.finished, board.failed, board.found) == (4, {}, 0)
    assert max(seen) == 2
    assert numbers(one) == numbers(two)
    again = sweep(cells(), two, num_workers=2)
    assert (again.finished, again.found) == (0, 4)


def test_a_cell_that_cannot_be_computed_fails_alone(tmp_path):
    store = Store(tmp_path / "store")
    bad = cell_along("nowhere")
    board = sweep([bad, *cells(count=1)], store, num_workers=1)
    assert board.finished == 1
    assert "--images nowhere=" in board.failed[bad]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_of_the_system_is_the_failure_of_its_cell(tmp_path, num_workers):
    """As a full disk would be; here a folder stands where a file should."""
    store = Store(tmp_path / "store")
    bad, good = cells(count=2)
    (tmp_path / "store" / "work" / bad.training_hash / "lock").mkdir(parents=True)
    board = sweep([bad, good], store, num_workers=num_workers)
    assert board.finished == 1
    assert board.failed[bad].startswith("IsADirectoryError: ")


def test_workers_that_die_at_once_do_not_end_the_sweep(tmp_path, monkeypatch):
    """They cannot even be told of a cell; after three of them it counts as failed."""
    monkeypatch.setattr("sads.experiments.sweep._work", end_at_once)
    original = sweeping._start_worker

    def start(*arguments):
        worker = original(*arguments)
        worker.process.join()
        return worker

    monkeypatch.setattr(sweeping, "_start_worker", start)
    board = sweep(cells(count=2), Store(tmp_path / "store"), num_workers=2)
    assert len(board.failed) == 2
    assert all(reason.endswith("3 times") for reason in board.failed.values())


def end_at_once(*_):
    """In place of what a worker does."""


def test_workers_end_with_a_watcher_that_fails(tmp_path):
    def watch(board):
        if board.running:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(cells(count=2), Store(tmp_path / "store"), num_workers=2, watch=watch)
    assert caught.tb is not None  # as in a notebook, the frames of the sweep live on
    assert not multiprocessing.active_children()


def test_a_worker_without_a_store_says_so(tmp_path, monkeypatch):
    """Somebody has put another thing in its place since the sweep began."""
    monkeypatch.setattr(sweeping.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sweeping.torch, "set_num_threads", lambda _: None)
    (tmp_path / "store").write_text("thesis")
    (cell,) = cells(count=1)
    ours, theirs = multiprocessing.Pipe()
    ours.send(cell)
    worker = threading.Thread(target=sweeping._work, args=(theirs, str(tmp_path / "store"), {}))
    worker.start()
    assert ours.poll(10)
    event = ours.recv()
    ours.close()
    worker.join()
    assert (event.kind, event.cell) == ("failed", cell)
    assert "not a store of sads" in event.text


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no masks")
def test_what_is_started_is_deaf_to_interrupts(monkeypatch):
    """Also the first of all processes, before which Python starts a tracker, and lets them in."""
    tracker = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    with sweeping._without_interrupts():
        resource_tracker.ensure_running()  # as `process.start` does
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os.close(tracker.getfd())
    os.waitpid(tracker._pid, 0)
    assert signal.SIGINT in blocked


@pytest.mark.parametrize(("cpus", "gpus"), [(0, 1), (-1, 0), (1, -1)])
def test_refuses_impossible_shares_of_a_cluster(cpus, gpus):
    with pytest.raises(InvalidArgumentError, match="more than 0 CPUs"):
        RayCluster("auto", cpus, gpus)


def test_a_cell_of_another_sweep_is_waited_for(tmp_path, monkeypatch):
    """Somebody else holds the cell; when he lets go without a result, it is computed here."""
    store = Store(tmp_path / "store")
    (cell,) = cells(count=1)
    get_geometry(GEOMETRY, store)
    busy = []

    def attempt(*arguments, original=run.run_cell):
        if len(busy) < 2:
            with store.work_folder(cell) as mine:
                assert mine is not None
                result = original(*arguments)
            busy.append(result)
            return result
        return original(*arguments)

    monkeypatch.setattr("sads.experiments.sweep.run_cell", attempt)
    monkeypatch.setattr("sads.experiments.sweep.BUSY_SECONDS", 0.01)
    seen = []
    board = sweep([cell], store, num_workers=1, watch=lambda b: seen.append(set(b.elsewhere)))
    assert busy == [None, None]
    assert {cell} in seen, "whoever watches knows why nothing happens"
    assert seen[-1] == set()
    assert (board.finished, board.failed) == (1, {})


def test_a_cell_that_was_busy_keeps_its_place():
    """What only samples a model otherwise comes before the next training, as soon as it can."""
    first, other_way, second, third = all_of_them = cells()
    queue = sweeping._Queue(all_of_them)
    assert [queue.take(), queue.take()] == [first, other_way]
    queue.put_back(other_way, delay=3600.0)  # its training is busy
    assert queue.take() == second
    queue.put_back(other_way)
    assert len(queue) == 2
    assert [queue.take(), queue.take(), queue.take()] == [other_way, third, None]
    assert not queue


def test_refuses_no_workers(tmp_path):
    with pytest.raises(InvalidArgumentError, match="at least 1 worker"):
        sweep(cells(), Store(tmp_path / "store"), num_workers=0)


def drive(folder, num_workers):
    """A sweep in a process of its own that says which processes they are and how it ended."""
    killing.share_server()

    def watch(board):
        pids = [process.pid for process in multiprocessing.active_children()]
        write_json(folder.with_suffix(".workers"), pids)  # whole, when it is read

    board = sweep(cells(KILLED, 6), Store(folder), num_workers=num_workers, watch=watch)
    outcome = [board.finished + board.found, len(board.failed), board.notes]
    folder.with_suffix(".outcome").write_text(json.dumps(outcome))


def workers_of(folder):
    path = folder.with_suffix(".workers")
    return json.loads(path.read_text()) if path.exists() else []


def work_since(folder, start):
    """Whether a worker has saved a checkpoint after a moment."""
    try:
        saved = [p.stat().st_mtime for p in folder.glob("work/*/checkpoint.safetensors")]
    except FileNotFoundError:  # a cell was finished at this moment
        return False
    return any(moment > start for moment in saved)


def wait_until(condition, seconds=300):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc")
def test_ten_kills_and_a_dead_worker_change_nothing(tmp_path, processes):
    """`kill -9` of a sweep at ten random moments, and of a worker under it once.

    Eight of the ten compute their cells themselves; two have workers, which end with them.
    """
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    sweep(cells(KILLED, 6), Store(undisturbed), num_workers=2)
    get_geometry(GEOMETRY, Store(folder))
    moments = random.Random(0)
    for turn in range(10):
        num_workers = 2 if turn in (3, 7) else 1
        start = time.time()
        process = killing.start(processes, drive, folder, num_workers)
        wait_until(lambda start=start: work_since(folder, start))
        process.join(moments.uniform(0, 0.05))
        assert process.is_alive(), "the sweep ended before it was killed"
        process.kill()
        process.join()
        gone = workers_of(folder)
        assert len(gone) == (2 if num_workers == 2 else 0)
        wait_until(lambda pids=gone: not any(Path(f"/proc/{p}").exists() for p in pids))
    start = time.time()
    folder.with_suffix(".workers").unlink()
    process = killing.start(processes, drive, folder, 2)
    wait_until(lambda: len(workers_of(folder)) == 2 and work_since(folder, start))
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    process.join(timeout=300)
    done, failed, notes = json.loads(folder.with_suffix(".outcome").read_text())
    assert (done, failed) == (6, 0)
    assert any("its process died (exit code -9)" in note for note in notes)
    assert numbers(Store(folder)) == numbers(Store(undisturbed))
    journal = (folder / "journal.txt").read_text().splitlines()
    finished = Counter(line.split()[0] for line in journal)
    assert set(finished.values()) == {1}
    assert not list(folder.glob("work/*"))


def test_no_cluster_answers():
    with pytest.raises(RayClusterError, match=r"no Ray cluster answers at 127.0.0.1:1 "):
        connect(RayCluster("127.0.0.1:1"))


NICENESS = "RAY_worker_niceness"
OF_ITS_OWN = "SADS_RAY_TESTS"  # set in the process that Ray has for itself


@pytest.mark.long
@pytest.mark.slow
def test_ray_in_a_process_of_its_own(tmp_path, processes):
    """Ray does not always start in a process that has forked, killed and run others before."""
    pytest.importorskip("ray")
    process = killing.start(processes, run_ray_tests, tmp_path / "output")
    process.join(400)
    process.kill()
    assert process.exitcode == 0, (tmp_path / "output").read_text()[-3000:]


def test_shards_of_a_geometry_are_matrices_that_add_up(monkeypatch):
    monkeypatch.setattr("sads.geometry.estimate.DENSE_POSITIONS", 1)
    first, second = (_shard(GEOMETRY, start, 16) for start in (0, 16))
    assert first.merge(second).end("avoided").vectors.shape[0] > 0
    monkeypatch.setattr(environment, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(environment, "used_memory", lambda: 0)
    with pytest.raises(NotEnoughMemoryError, match="not drawn in shards: leave --ray out"):
        _shard(GEOMETRY, 0, 16)


def run_ray_tests(output):
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ[OF_ITS_OWN] = "1"
    torch.set_num_threads(1)
    for name in (__name__, "killing"):  # pytest imports them again, and rewrites their assertions
        del sys.modules[name]
    command = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "TestRay", __file__]
    raise SystemExit(pytest.main(command))


@pytest.mark.skipif(OF_ITS_OWN not in os.environ, reason="runs in a process of its own, above")
class TestRay:
    """A cluster of two nodes on this machine."""

    @pytest.fixture(scope="class")
    def nodes(self):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ[NICENESS] = "0"  # with Ray's 15 its tasks would wait for all other tests
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # see `connect`
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster as LocalCluster

        options = {
            "num_cpus": 1,
            "node_ip_address": "127.0.0.1",
            "object_store_memory": 100 << 20,
            "include_log_monitor": False,
        }
        head = {**options, "include_dashboard": False, "no_monitor": True}  # nothing grows
        ours = {name: os.environ.pop(name) for name in SETTINGS if name in os.environ}
        local = LocalCluster(initialize_head=True, head_node_args=head)
        second = local.add_node(**options)
        os.environ.update(ours)  # the nodes of a real cluster do not have it
        local.wait_for_nodes()
        yield local, second
        ray.shutdown()
        local.shutdown()

    @pytest.mark.filterwarnings("ignore")
    def test_workers_wait_without_spinning(self, nodes, tmp_path):
        """A task of ours imports `sads` first, which sets the policy before PyTorch is loaded."""
        ray = connect(RayCluster(nodes[0].address))
        show = ray.remote(
            lambda: (
                os.environ.get("OMP_WAIT_POLICY"),
                "torch" in sys.modules,
                importlib.import_module("sads.experiments.sweep") and os.environ["OMP_WAIT_POLICY"],
            )
        )
        assert ray.get(show.remote(), timeout=200) == (None, False, "passive")

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_sweep_and_geometry_survive_the_death_of_a_node(self, nodes, tmp_path):
        local, second = nodes
        cluster = RayCluster(local.address)
        spec = GeometrySpec(FamilySpec("cnn", (1, 4, 4)), 256)
        sharded = geometry_on_ray(spec, cluster)
        alone = get_geometry(spec, Store(tmp_path / "alone"))
        assert sharded.num_networks == alone.num_networks == 256
        difference = (sharded.matrix() - alone.matrix()).abs().max()
        assert difference <= 1e-7 * alone.matrix().abs().max()  # networks run in float32

        in_turn, on_ray = Store(tmp_path / "in-turn"), Store(tmp_path / "on-ray")
        several = cells(SLOW, 4)  # two are finished, then one is under way on each node
        sweep(several, in_turn, num_workers=1)
        on_ray.put_geometry(GEOMETRY, in_turn.geometry(GEOMETRY))  # equal to the last bit
        removed = []

        def kill_a_node(board):
            if board.finished >= 2 and not removed:
                removed.append(second)
                local.remove_node(second, allow_graceful=False)

        board = sweep(several, on_ray, cluster=cluster, watch=kill_a_node)
        assert removed
        assert (board.finished, board.failed) == (4, {})
        assert numbers(on_ray) == numbers(in_turn)
