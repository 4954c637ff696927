"""Memory is forecast before it is used, and what cannot fit is refused in one line."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import sads
from sads import environment
from sads.environment import _group_limits, available_memory, check_memory
from sads.errors import NotEnoughMemoryError
from sads.geometry.memory import evaluation_bytes, forecast, least, peak_activations

MEASURE = """
import sads
said = []
def own():
    import torch
    from torch import nn
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)
        def forward(self, x, t):
            return torch.tanh(self.b(torch.relu(self.a(x))))
    return sads.family(Own, shape=(1, 32, 32))
family = {FAMILY}
geometry = sads.estimate_geometry(family, {NETWORKS}, forecast=said.append)
geometry.directions()
geometry.save({PATH})
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(said[0].total / 1024, status["VmHWM"].split()[0])  # ru_maxrss would be the parent's, too
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "networks"),
    [
        ("sads.family('iddpm')", 256),
        ("sads.family('iddpm', shape=(1, 32, 32))", 64),
        ("sads.family('dit')", 64),
        ("own()", 128),
    ],
)
def test_the_forecast_agrees_with_what_a_process_took(family, networks, tmp_path):
    code = MEASURE.replace("{FAMILY}", family).replace("{NETWORKS}", str(networks))
    code = code.replace("{PATH}", repr(str(tmp_path / "geometry.safetensors")))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    said, took = map(float, run.stdout.split())
    assert 1 / 1.6 < said / took < 1.6


def test_factors_are_made_and_written_one_at_a_time(tmp_path):
    """Beside sixteen sums, and then factors, some matrices are in memory, and no second sixteen."""
    code = """
import torch, sads
from sads.geometry.moments import Moments, Sums
class Same:
    lift = sads.geometry.lift.Lift.trivial(1024)
    def factor(self, gram): return gram
gram = torch.eye(1024).double()
moments = Moments(1, Sums((1,) * 16, tuple(gram.clone() for _ in range(16)), 16, 16), ())
def reset(): open("/proc/self/clear_refs", "w").write("5")
def peak(): return int(dict(x.split(":", 1) for x in open("/proc/self/status"))["VmHWM"].split()[0])
# PyTorch's code takes memory when it runs for the first time: a few small factors go first.
few, nobody = torch.eye(1024)[None, :64, :64].double(), torch.zeros(1, dtype=torch.int64)
lift = sads.geometry.lift.Lift.trivial(64)
small = sads.Geometry.dense(few, nobody, lift, (64,), sads.Provenance({}, "exact"))
sads.load_geometry(small.save({PATH}))
reset()
before = peak()
factors, counts = moments.factors(Same(), last=True)
made = peak()
geometry = sads.Geometry.dense(factors, counts, Same.lift, (1024,), sads.Provenance({}, "exact"))
geometry.save({PATH})
written = peak()
loaded = sads.load_geometry({PATH})
assert torch.equal(loaded.factors, factors)
print(*((x - before) * 1024 / gram.nbytes for x in (made, written, peak())))
"""
    code = code.replace("{PATH}", repr(str(tmp_path / "geometry.safetensors")))
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=250,
        # The C library would keep the memory of matrices as small as these.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
    )
    assert run.returncode == 0, run.stderr
    made, written, loaded = map(float, run.stdout.split())
    assert made < 4
    assert written < 4
    assert loaded < 16 + 6  # the loaded factors, and work on one


COMMANDS = [  # what no machine can hold or count to, what is said about it
    (["geometry", "iddpm", "--shape", "1x16x16", "--networks", str(10**30)], "more than the"),
    (["geometry", "dit", "--networks", str(10**15)], "more than the 1,000,000,000 that we count"),
    (["align", "rank-one:dct:3", "--family", "cnn", "--networks", str(10**15)], "more than the"),
    (["theory", "predict", "mlp", "--shape", "1x4x4", "--networks", str(10**12)], "more than the"),
    (["theory", "theorem2", "dit", "--rotations", str(10**12)], "more than the"),
    (
        ["train", "mlp", "rank-one:dct:3", "--iterations", str(10**15), "--out", "o"],
        "more than the",
    ),
    (
        ["train", "mlp", "rank-one:dct:3", "--batch-size", str(10**12), "--out", "o"],
        "more than the",
    ),
    (["train", "mlp", "rank-one:dct:3", "--samples", str(10**12), "--out", "o"], "more than the"),
    (["train", "mlp", "rank-one:dct:3", "--samples", str(10**9), "--out", "o"], "need about"),
    (["align", "rank-one:dct:3", "--family", "dit", "--samples", str(10**9)], "need about"),
    (["theory", "theorem1", "--runs", str(10**9)], "need about"),
    (["theory", "theorem1", "--runs", str(10**40)], "more than the"),
]


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_numbers_that_no_machine_can_hold_are_one_line(
    arguments, message, tmp_path, monkeypatch, capsys
):
    from sads.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sads", *arguments])
    with pytest.raises(SystemExit) as exit_status:
        main()
    printed = capsys.readouterr().err
    assert exit_status.value.code == 2
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert message in printed


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OverflowError("int too large to convert to float"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory"),
        RuntimeError("Storage size calculation overflowed with sizes=[1000000000000, 256]"),
        ValueError("Maximum allowed dimension exceeded"),
    ],
)
def test_the_last_resort_is_one_line_too(error, monkeypatch, capsys):
    from sads.cli import main as module
    from sads.cli import root

    def fail():
        raise error

    monkeypatch.setattr(root, "command", fail)
    monkeypatch.setattr(sys, "argv", ["sads", "families"])
    with pytest.raises(SystemExit) as exit_status:
        module.main()
    assert exit_status.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_estimate_that_does_not_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(environment, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(environment, "used_memory", lambda: 0)
    with pytest.raises(NotEnoughMemoryError, match=r"factor of 16 x 16.*left; choose"):
        sads.estimate_geometry(sads.family("cnn", shape=(1, 4, 4)), 16)


def test_control_groups_of_both_versions_limit_the_memory(tmp_path):
    first, second = tmp_path / "v1", tmp_path / "v2"
    (first / "memory" / "job").mkdir(parents=True)
    (first / "memory" / "job" / "memory.limit_in_bytes").write_text("1000\n")
    (first / "memory" / "job" / "memory.usage_in_bytes").write_text("400\n")
    (first / "member").write_text("4:cpu,memory:/job\n")
    assert _group_limits(first, first / "member") == [600]
    inner = second / "slice" / "job"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("10\n")
    (second / "slice" / "memory.max").write_text("5000\n")
    (second / "slice" / "memory.current").write_text("3000\n")
    (second / "slice" / "memory.stat").write_text("anon 1\ninactive_file 500\n")
    (second / "member").write_text("0::/slice/job\n")
    assert _group_limits(second, second / "member") == [2500]
    assert _group_limits(tmp_path / "none", tmp_path / "none") == []


def test_available_memory_is_less_than_the_machine_has():
    with open("/proc/meminfo") as file:
        total = 1024 * int(file.readline().split()[1])
    assert 0 < available_memory() < total
    check_memory(1, "a byte", "do nothing")


def test_activations_are_counted_while_they_live():
    x = torch.zeros(1000)  # 4000 bytes; not counted, as it was there before

    def chain():
        y = x + 1
        for _ in range(5):
            y = y * 2  # the one before is let go
        return y

    def kept():
        return [x + i for i in range(5)]

    assert peak_activations(chain)[1] == 2 * 4000
    assert peak_activations(kept)[1] == 5 * 4000
    assert peak_activations(lambda: x.reshape(10, 100))[1] == 0


def test_more_of_anything_needs_no_less():
    small = forecast(num_factors=16, gram_size=64, size=64, network_bytes=1 << 20, stack_size=4)
    large = forecast(num_factors=16, gram_size=64, size=64, network_bytes=1 << 20, stack_size=64)
    assert small.total < large.total
    assert least(2048).total < least(4096).total
    assert least(2048, exact=True).total < least(2048).total


class TestOneEvaluation:
    """What one evaluation of a network holds is known from its shapes, before it is made."""

    @pytest.mark.parametrize("name", ["cnn", "iddpm"])
    def test_shapes_without_numbers_say_what_numbers_take(self, name):
        family = sads.family(name, shape=(1, 16, 16))
        network, x, t = family.build(), torch.zeros(4, 1, 16, 16), torch.zeros(4)
        with torch.no_grad():
            taken = peak_activations(lambda: network(x, t))[1]
        assert evaluation_bytes(family, 4) == taken
        assert evaluation_bytes(family, 4, dtype=torch.float64) == 2 * taken

        def trained():
            torch.autograd.grad(network(x, t).sum(), list(network.parameters()))

        taken = peak_activations(trained)[1]
        assert taken > 2 * evaluation_bytes(family, 4)
        assert evaluation_bytes(family, 4, training=True) == pytest.approx(taken, rel=0.1)

    def test_attention_counts_with_its_matrix_whether_it_is_held_or_not(self):
        family = sads.family("dit", shape=(1, 16, 16))
        network, x, t = family.build(), torch.zeros(4, 1, 16, 16), torch.zeros(4)
        with torch.no_grad():
            taken = peak_activations(lambda: network(x, t))[1]
        assert taken <= evaluation_bytes(family, 4) < evaluation_bytes(family, 4, training=True)

    def test_of_a_network_that_needs_numbers_nothing_is_known(self):
        class Choosing(nn.Linear):
            def forward(self, x, t):
                return super().forward(x) if x.sum() > 0 else x

        family = sads.family(lambda: Choosing(4, 4), shape=(4,))
        assert evaluation_bytes(family) == 0

    @pytest.mark.parametrize(
        "ask",
        [
            lambda family: sads.estimate_geometry(family, 4),
            lambda family: sads.theory.impulse_response(family, 4),
            lambda family: sads.train(
                family, torch.eye(2, 1 << 22).reshape(2, *family.shape), batch_size=2
            ),
        ],
        ids=["geometry", "symmetry", "train"],
    )
    def test_what_cannot_fit_is_refused_before_it_is_tried(self, ask):
        family = sads.family("iddpm", shape=(1, 2048, 2048))
        with pytest.raises(NotEnoughMemoryError, match=r"1x2048x2048 at a time needs about [\d,]+"):
            ask(family)
