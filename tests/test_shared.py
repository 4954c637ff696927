"""Beside other work: threads that wait do not spin, here and in the processes that are started."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import sads
from sads.geometry.plan import Request, make_plan
from sads.openmp import SETTINGS
from sads.threads import map_on_cores

SHOW = f"import os; print({{k: v for k, v in os.environ.items() if k in {SETTINGS!r}}})"


def environment(**settings):
    return {k: v for k, v in os.environ.items() if k not in SETTINGS} | settings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "passive"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        ({"KMP_BLOCKTIME": "1"}, {"KMP_BLOCKTIME": "1"}),
    ],
)
def test_processes_inherit_the_policy_and_a_users_own_stays(given, expected):
    code = f"import sads, subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}])"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment(**given), capture_output=True, text=True
    )
    assert run.stdout.strip() == str(expected)


def test_a_worker_of_a_sweep_has_the_policy_before_pytorch():
    """Workers are started by multiprocessing, with the environment of their parent."""
    code = (
        "import sads, multiprocessing, os, sys\n"
        "def show(_): return os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('forkserver').Pool(1) as pool:\n"
        "        print(pool.map(show, [0]))\n"
    )
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"sads-worker-{os.getpid()}.py")
    with open(path, "w") as file:
        file.write(code)
    try:
        run = subprocess.run(
            [sys.executable, path], env=environment(), capture_output=True, text=True, timeout=60
        )
    finally:
        os.remove(path)
    assert run.stdout.strip() == "[('passive', False)]", run.stderr


def test_operations_of_workers_use_one_thread():
    seen = [r for _, r in map_on_cores(lambda _: torch.get_num_threads(), range(8), 2)]
    assert seen == [1] * 8


def test_the_set_up_of_a_small_network_shares_nothing_out(monkeypatch):
    threads = set()

    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x, t):
            threads.add((threading.current_thread().name, torch.get_num_threads()))
            return self.layer(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        make_plan(
            sads.family(Watched, shape=(1, 4, 4)),
            sads.probe("zero"),
            Request(),
            stage=lambda _: None,
        )
        assert {count for _, count in threads} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
