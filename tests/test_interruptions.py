"""Signals and `kill -9` at any moment: what stops, what is kept, and what goes on from there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
import typer.core

import sads
from commands import Sads
from killing import disturb, finish, run_command, start
from sads.cli import folders
from sads.cli.interrupts import Interrupts, raise_if_lost
from sads.errors import CheckpointError, ExperimentError, InterruptedEstimate, OutputError
from sads.experiments.run import get_geometry
from sads.experiments.spec import FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.geometry import loop

MLP = ["--shape", "1x4x4", "-o", "width=8", "-o", "depth=1"]
CNN = ["-o", "channels=4", "-o", "depth=1", "--shape", "1x6x6"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sads.__file__).parents[1])}
posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


def family() -> sads.ScoreFamily:
    return sads.family("cnn", (1, 6, 6), channels=4, depth=1)


def interrupt_after(count: int, number: int = signal.SIGINT) -> Callable[..., None]:
    def progress(done: int, *_: object) -> None:
        if done >= count:
            signal.raise_signal(number)

    return progress


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every estimate gets SIGTERM after its first stack of networks."""
    original = loop.draw_grams

    def grams(*arguments: object) -> object:
        for result in original(*arguments):  # type: ignore[arg-type]
            yield result
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "draw_grams", grams)


class TestEstimates:
    """`estimate_geometry(checkpoint=...)`, in this process."""

    def stop(self, path: Path, after: int = 500, **options: object) -> sads.Geometry:
        with pytest.raises(InterruptedEstimate) as caught:
            sads.estimate_geometry(
                family(), checkpoint=path, progress=interrupt_after(after), **options
            )
        return caught.value.geometry

    def test_go_on_to_the_same_numbers(self, tmp_path: Path) -> None:
        path = tmp_path / "part"
        whole = sads.estimate_geometry(family(), 1000, batch_size=7)
        part = self.stop(path, num_networks=1000, batch_size=7)
        assert 500 <= part.num_networks < 600
        assert part.provenance.interrupted
        # The size of the stacks is that of the first attempt, whatever the second one would take.
        again = sads.estimate_geometry(family(), 1000, checkpoint=path)
        assert torch.equal(again.factors, whole.factors)
        assert torch.equal(again.counts, whole.counts)
        assert again.provenance.draws == whole.provenance.draws == ((0, 0, 1000),)
        assert not again.provenance.interrupted
        assert again.provenance.seconds > part.provenance.seconds

    def test_a_part_has_only_whole_stacks(self, tmp_path: Path) -> None:
        """Its mean is that of the very networks that it counts, not more, not fewer."""
        part = self.stop(tmp_path / "part", after=64, num_networks=1000, batch_size=16)
        assert torch.equal(
            part.factors, sads.estimate_geometry(family(), 64, batch_size=16).factors
        )

    def test_go_on_to_the_same_tolerance(self, tmp_path: Path) -> None:
        dct = sads.family("mlp", (1, 2, 2), width=16, depth=1)
        options = {"tolerance": 0.3, "estimator": "outer-product", "batch_size": 16}
        whole = sads.estimate_geometry(dct, **options)
        path = tmp_path / "part"
        with pytest.raises(InterruptedEstimate):
            sads.estimate_geometry(dct, checkpoint=path, progress=interrupt_after(1), **options)
        again = sads.estimate_geometry(dct, checkpoint=path, **options)
        assert again.num_networks == whole.num_networks
        assert torch.equal(again.factors, whole.factors)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"seed": 1, "num_networks": 1000}, "seed was 0, now it is 1"),
            ({"num_networks": 999}, "networks was 1000, now it is 999"),
            ({"num_networks": 1000, "first_network": 16}, "first_network was 0, now it is 16"),
            ({"num_networks": 1000, "probe": "gaussian"}, "probe was"),
            ({"num_networks": 1000, "estimator": "outer-product"}, "estimator was"),
            ({"tolerance": 0.1, "max_networks": 1000}, "tolerance was null, now it is 0.1"),
        ],
    )
    def test_refuse_a_part_of_something_else(
        self, tmp_path: Path, options: dict[str, object], says: str
    ) -> None:
        path = tmp_path / "part"
        self.stop(path, num_networks=1000)
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match=says):
            sads.estimate_geometry(family(), checkpoint=path, **options)
        assert path.read_bytes() == before

    def test_refuse_a_damaged_part(self, tmp_path: Path) -> None:
        path = tmp_path / "part"
        self.stop(path, num_networks=1000)
        content = bytearray(path.read_bytes())
        for place in (3, 100, len(content) // 2, len(content) - 3):
            damaged = bytearray(content)
            damaged[place] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="part"):
                sads.estimate_geometry(family(), 1000, checkpoint=path)
        whole = sads.estimate_geometry(family(), 16).save(tmp_path / "geometry")
        with pytest.raises(CheckpointError, match="is not a partial-geometry"):
            sads.estimate_geometry(family(), 1000, checkpoint=whole)

    def test_nothing_was_drawn_yet(self) -> None:
        def stop(_: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(InterruptedEstimate) as caught:
            sads.estimate_geometry(family(), 1000, stage=stop)
        assert caught.value.geometry is None


@posix
@pytest.mark.usefixtures("interrupted")
class TestOnlyGeometryKeepsAPart:
    def test_geometry_keeps_it_and_goes_on(self, command: Sads, tmp_path, monkeypatch):
        arguments = ("geometry", "cnn", *CNN, "--networks", "300", "--out", "results")
        status, out, err = command(*arguments)
        assert status == 143
        assert "interrupted: a part" in out
        assert err.startswith("interrupted: kept the ")
        assert f"continue with: sads {' '.join(arguments)}" in err
        assert err.count("\n") == 1
        part = sads.load_geometry(tmp_path / "results/geometry.safetensors")
        assert part.provenance.interrupted
        assert json.loads((tmp_path / "results/geometry.json").read_text())["provenance"][
            "interrupted"
        ]
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert command(*arguments)[0] == 0
        whole = sads.load_geometry(tmp_path / "results/geometry.safetensors")
        assert torch.equal(whole.factors, sads.estimate_geometry(family(), 300).factors)
        assert sorted(p.name for p in (tmp_path / "results").iterdir()) == [
            "directions.png",
            "geometry.json",
            "geometry.safetensors",
            "spectrum.png",
        ]

    @pytest.mark.parametrize(
        "arguments",
        [
            ["align", "rank-one:dct:3", "--family", "cnn", *CNN],
            ["train", "cnn", "rank-one:dct:3", *CNN, "--rotation", "min", "--out", "run"],
            ["theory", "predict", "cnn", *CNN],
            ["theory", "theorem2", "cnn", *CNN],
            ["theory", "propositions"],
        ],
    )
    def test_others_stop_and_leave_nothing(self, command: Sads, tmp_path, arguments):
        status, out, err = command(*arguments)
        assert (status, out) == (143, "")
        assert err.splitlines()[-1].startswith("interrupted: nothing was kept; run it again with: ")
        assert list(tmp_path.iterdir()) == []

    def test_reproduce_keeps_no_part(self, command: Sads, tmp_path):
        status, _, err = command("reproduce", "fig2", "--only", "canonical", "--workers", "1")
        assert status == 143
        assert err.splitlines()[-1].startswith("interrupted: what is finished is in ")
        assert not list(tmp_path.rglob("geometries/*"))


class TestStore:
    SPEC = GeometrySpec(FamilySpec("cnn", (1, 6, 6), (("channels", 4), ("depth", 1))), 64)

    def others(self) -> dict[str, sads.Geometry]:
        with pytest.raises(InterruptedEstimate) as caught:
            sads.estimate_geometry(family(), 1000, batch_size=16, progress=interrupt_after(64))
        first = sads.estimate_geometry(family(), 32)
        gap = sads.estimate_geometry(family(), 32, first_network=64)
        return {
            "holds 32 networks, not 64": first,
            "was interrupted": caught.value.geometry,
            "other networks than the first of seed 0": sads.estimate_geometry(family(), 64, seed=1),
            "other networks than the first of seed 0 ": first.merge(gap),
            "is of": sads.estimate_geometry(sads.family("cnn", (1, 6, 6), channels=5, depth=1), 64),
            "was probed by": sads.estimate_geometry(family(), 64, probe="gaussian"),
        }

    def test_refuses_what_its_specification_does_not_say(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        for words, geometry in self.others().items():
            with pytest.raises(ExperimentError, match=words.strip()):
                store.put_geometry(self.SPEC, geometry)
            assert store.geometry(self.SPEC) is None

    def test_sets_aside_what_is_there_all_the_same(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        path = tmp_path / f"geometries/{self.SPEC.hash}.safetensors"
        for words, geometry in self.others().items():
            geometry.save(path)
            assert store.geometry(self.SPEC) is None
            (note,) = store.take_notes()
            assert words.strip() in note
            assert not path.exists()
        assert len(list((tmp_path / "damaged").iterdir())) == 6

    def test_takes_the_whole_in_parts_too(self, tmp_path: Path) -> None:
        parts = [sads.estimate_geometry(family(), 32, first_network=first) for first in (32, 0)]
        store = Store(tmp_path)
        store.put_geometry(self.SPEC, parts[0].merge(parts[1]))
        assert store.geometry(self.SPEC) is not None
        exact = GeometrySpec(FamilySpec("dit", (1, 4, 4), (("patch_size", 2),)), 64)
        store.put_geometry(exact, sads.estimate_geometry(exact.family.build()))
        assert store.geometry(exact) is not None

    def test_goes_on_where_an_estimate_was_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As `sads reproduce` does after a kill; a damaged part is thrown away."""
        spec, store = replace(self.SPEC, num_networks=300), Store(tmp_path)
        original, stacks = loop.draw_grams, []

        def count(*arguments: object, stop: bool) -> object:
            for result in original(*arguments):  # type: ignore[arg-type]
                stacks.append(result)
                yield result
                if stop:
                    raise KeyboardInterrupt

        def drawn(stop: bool = False) -> int:
            stacks.clear()
            monkeypatch.setattr(loop, "draw_grams", partial(count, stop=stop))
            if stop:
                with pytest.raises(InterruptedEstimate):
                    get_geometry(spec, store)
                assert store.geometry(spec) is None
                assert store.partial_geometry(spec).exists()
            else:
                get_geometry(spec, store)
                assert not store.partial_geometry(spec).exists()
            return len(stacks)

        assert drawn(stop=True) == 1
        left = drawn()
        whole = sads.estimate_geometry(family(), 300)
        assert torch.equal(store.geometry(spec).factors, whole.factors)
        path = tmp_path / f"geometries/{spec.hash}.safetensors"
        path.unlink()
        drawn(stop=True)
        store.partial_geometry(spec).write_bytes(b"damaged")
        assert drawn() == left + 1
        assert torch.equal(store.geometry(spec).factors, whole.factors)


class TestSamples:
    def model(self) -> sads.ScoreModel:
        x = torch.randn(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
        tiny = sads.family("mlp", (1, 2, 2), width=8, depth=1)
        return sads.train(tiny, x, iterations=3, batch_size=8)

    def test_go_on_to_the_same_samples(self, tmp_path: Path) -> None:
        model, path = self.model(), tmp_path / "part"
        options = {"num_samples": 420, "steps": 20, "batch_size": 50}
        whole = sads.sample(model, **options)
        for after in (50, 90, 125):  # of 9 x 20 evaluations, from where the last one was
            with pytest.raises(KeyboardInterrupt):
                sads.sample(model, checkpoint=path, progress=interrupt_after(after), **options)
        done = []
        again = sads.sample(
            model, checkpoint=path, progress=lambda n, *_: done.append(n), **options
        )
        assert torch.equal(again, whole)
        assert min(done) > 41
        assert max(done) == 180
        for changes in ({"seed": 1}, {"num_samples": 419}, {"sampler": "ddim"}, {"steps": 19}):
            with pytest.raises(CheckpointError, match="part of another piece of work"):
                sads.sample(model, checkpoint=path, **{**options, **changes})
        other = self.model()
        torch.nn.init.zeros_(next(other.network.parameters()))
        with pytest.raises(CheckpointError, match="weights"):
            sads.sample(other, checkpoint=path, **options)


@posix
def test_between_the_lines_of_typer(command: Sads) -> None:
    """It takes interrupts for its own; a signal may come between two of its lines, too."""
    for line in range(1, 100):
        passed = 0

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
            nonlocal passed
            passed += event == "line"
            if event == "line" and passed == line:  # noqa: B023
                signal.raise_signal(signal.SIGTERM)
            return trace if frame.f_code is typer.core._main.__code__ else None  # type: ignore[attr-defined]

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            status, _, err = command("families")
        finally:
            sys.settrace(before)
        if passed < line:
            break
        assert status == 143, line
        assert err == "interrupted: nothing was kept; run it again with: sads families\n"
    assert line > 10


@posix
class TestKills:
    """Ten random moments of every command, by `kill -9` and SIGTERM in turn."""

    def test_geometry(self, tmp_path: Path, processes: ForkServerContext) -> None:
        arguments = ["geometry", "cnn", *CNN, "--networks", "10000", "--out"]
        folder = tmp_path / "disturbed"

        def check() -> None:
            path = folder / "geometry.safetensors"
            if path.exists() and (folder / "geometry.partial.safetensors").exists():
                found = sads.load_geometry(path)
                assert found.provenance.interrupted or found.num_networks == 10000

        finish(processes, run_command, tmp_path, [*arguments, "calm"])
        disturb(
            processes,
            tmp_path,
            [*arguments, "disturbed"],
            check,
            progress=folder / "geometry.partial.safetensors",
            longest=0.05,
        )
        calm, found = (
            sads.load_geometry(tmp_path / name / "geometry.safetensors")
            for name in ("calm", "disturbed")
        )
        assert torch.equal(calm.factors, found.factors)
        assert not found.provenance.interrupted
        assert names(folder) == names(tmp_path / "calm")

    def test_sample(self, tmp_path: Path, processes: ForkServerContext) -> None:
        TestSamples().model().save(tmp_path / "model.safetensors")
        options = ["--samples", "1500", "--batch-size", "50", "--steps", "100"]
        arguments = ["sample", "model.safetensors", *options]
        folder = tmp_path / "disturbed"

        def check() -> None:
            if (folder / "samples.npz").exists():
                with np.load(folder / "samples.npz") as arrays:
                    assert len(arrays["images"]) == 1500

        finish(processes, run_command, tmp_path, [*arguments, "--out", "calm"])
        disturb(
            processes,
            tmp_path,
            [*arguments, "--out", "disturbed"],
            check,
            progress=folder / "samples.partial.safetensors",
            longest=0.05,
        )
        calm, found = (
            np.load(tmp_path / name / "samples.npz")["images"] for name in ("calm", "disturbed")
        )
        assert np.array_equal(calm, found)
        assert names(folder) == names(tmp_path / "calm")

    @pytest.mark.parametrize(
        ("arguments", "result"),
        [
            (["align", "digits", "--family", "mlp", *MLP[2:], "--shape", "1x8x8"], "alignment"),
            (
                ["evaluate", "samples.npz", "rank-one:dct:3", "--test-samples", "1000"],
                "evaluate",
            ),
        ],
        ids=["align", "evaluate"],
    )
    def test_short_commands(
        self, tmp_path: Path, processes: ForkServerContext, arguments: list[str], result: str
    ) -> None:
        samples = sads.rank_one(sads.basis("dct", (1, 4, 4)).vectors[3], 500, seed=1)
        np.savez(tmp_path / "samples.npz", images=samples.numpy())
        started = time.perf_counter()
        finish(processes, run_command, tmp_path, [*arguments, "--out", "calm"])
        seconds = time.perf_counter() - started
        calm = json.loads((tmp_path / f"calm/{result}.json").read_text())
        folder = tmp_path / "disturbed"

        def numbers(content: dict[str, object]) -> dict[str, object]:
            varying = ("command", "seconds", "files", "geometry")
            return {k: v for k, v in content.items() if k not in varying}

        def check() -> None:
            if (folder / f"{result}.json").exists():  # the last file to be written
                found = json.loads((folder / f"{result}.json").read_text())
                assert numbers(found) == numbers(calm)
                assert names(folder) - {mark(folder)} >= names(tmp_path / "calm")

        disturb(
            processes,
            tmp_path,
            [*arguments, "--out", "disturbed"],
            check,
            longest=1.1 * seconds,
        )
        check()
        assert names(folder) == names(tmp_path / "calm")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def mark(folder: Path) -> str:
    return next((n for n in names(folder) if n.endswith(".unfinished")), "")


@posix
class TestProcesses:
    """Whole processes, as a shell starts them."""

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    @pytest.mark.parametrize(
        ("module", "number"),
        [
            ("typer", signal.SIGINT),
            ("rich.text", signal.SIGTERM),
            ("numpy", signal.SIGINT),
            ("torch._utils", signal.SIGINT),
            ("torch.types", signal.SIGTERM),
        ],
    )
    def test_ctrl_c_during_imports(self, tmp_path: Path, module: str, number: int) -> None:
        """`-X importtime` says a module's name as soon as it is imported.

        PyTorch's own code aborts the process if it is interrupted in the midst of its import.
        """
        command = (
            "-X",
            "importtime",
            "-m",
            "sads.cli",
            "geometry",
            "cnn",
            "--networks",
            "99999999",
        )
        process = self.start(*command, cwd=tmp_path)
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith(f" {module}"):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        messages = [line for line in err.splitlines() if not line.startswith("import time:")]
        assert len(messages) == 1, messages
        assert messages[0].startswith("interrupted: ")
        assert process.returncode == 128 + number

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_where_nothing_can_be_raised(self, number: int) -> None:
        """Python would print the interrupt, drop it and go on; ours is raised a moment later."""
        program = (
            "import signal, time, sads.cli.root as root\n"
            "from sads.cli.main import main\n"
            "class Finalised:\n"
            "    def __del__(self):\n"
            f"        signal.raise_signal({int(number)})\n"
            "        print('finalised', flush=True)\n"
            "def run():\n"
            "    Finalised()\n"
            "    time.sleep(60)\n"
            "root.run = run\n"
            "main()\n"
        )
        process = self.start("-c", program)
        out, err = process.communicate(timeout=50)
        assert out == ""  # it was raised there, and then again where it counts
        assert err == "interrupted: run it again with: sads\n"
        assert process.returncode == 128 + number

    def test_the_second_ctrl_c_ends_it_at_once(self, tmp_path: Path) -> None:
        """A worker that does not stop would keep the first one waiting."""
        program = (
            "import sys, time, sads.cli.root as root\n"
            "from sads.cli.main import main\n"
            "def run():\n"
            "    try:\n"
            "        print('ready', flush=True)\n"
            "        time.sleep(60)\n"
            "    finally:\n"
            "        print('cleaning', flush=True)\n"
            "        time.sleep(60)\n"
            "root.run = run\n"
            "main()\n"
        )
        process = self.start("-c", program)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)  # the same one again, as `timeout` sends it: ignored
        time.sleep(0.7)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 130
        assert err == "interrupted again: stopped at once\n"

    @pytest.mark.parametrize("redirection", ["| true", "| head -1 >/dev/null", ">&-", ">/dev/full"])
    @pytest.mark.parametrize("arguments", ["--help", "--version"])  # by Rich, and by Python
    def test_closed_output(self, redirection: str, arguments: str) -> None:
        program = f"set -o pipefail; {sys.executable} -m sads.cli {arguments} {redirection}"
        done = subprocess.run(
            ["bash", "-c", program], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert done.returncode in ((0,) if redirection == ">&-" else (0, 1))
        assert done.stderr.count("\n") == (redirection == ">/dev/full")

    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
    @pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the parent", "to all"])
    def test_workers_end_with_their_sweep(
        self, tmp_path: Path, processes: ForkServerContext, send: Callable[[int, int], None]
    ) -> None:
        command = ["reproduce", "fig6", "--only", "dit-4", "--workers", "2"]
        process = start(processes, run_in_a_session, tmp_path, command)
        assert process.pid is not None
        deadline = time.monotonic() + 60
        while len(session(process.pid)) < 4 and process.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.1)  # two workers, and what starts them
        send(process.pid, signal.SIGTERM)  # Slurm sends it to all
        process.join(60)
        messages = (tmp_path / "messages").read_text()
        assert process.exitcode == 143, messages
        assert "Traceback" not in messages
        assert messages.splitlines()[-1].endswith("continue with: sads " + " ".join(command))
        while session(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def run_in_a_session(folder: Path, arguments: list[str]) -> None:
    os.setsid()
    run_command(folder, arguments)


def session(leader: int) -> list[str]:
    """Processes of a session, by number."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may end at this moment
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(path.parent.name)
    return found


class TestFolders:
    """Claims on folders; see also the table in test_cli_misuse.py."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["sads", "test"])
        yield
        folders.let_go()

    def test_the_same_name_twice_at_once(self) -> None:
        assert folders.new_folder(None, "a", ["x"]) == Path("out/a")
        assert folders.new_folder(None, "a", ["x"]) == Path("out/a-2")

    @posix
    def test_two_processes_at_once(self, tmp_path: Path, processes: ForkServerContext) -> None:
        for attempt in range(5):  # who is first differs from one to the next
            folder = tmp_path / str(attempt)
            folder.mkdir()
            several = [start(processes, write_a_result, folder, str(n)) for n in range(6)]
            for process in several:
                process.join(60)
                assert process.exitcode == 0
            found = sorted((p.parent.name, p.read_text()) for p in folder.rglob("result"))
            assert [name for name, _ in found] == ["a", "a-2", "a-3", "a-4", "a-5", "a-6"]
            assert sorted(text for _, text in found) == ["0", "1", "2", "3", "4", "5"]

    def test_an_empty_folder_is_removed_again(self, tmp_path: Path) -> None:
        folders.new_folder(Path("a/b/c"), "", ["x"])
        folders.let_go()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "mine").mkdir()
        folders.new_folder(Path("mine"), "", ["x"])
        folders.let_go()
        assert list((tmp_path / "mine").iterdir()) == []

    def test_unfinished_results_are_replaced_and_no_others(self) -> None:
        folder = folders.new_folder(None, "a", ["x", "y"])
        (folder / "x").write_text("half")
        folders.let_go()  # as if killed
        assert folders.new_folder(None, "a", ["x", "y"]) == folder
        (folder / "y").write_text("whole")
        folders.finish(folder)
        folders.let_go()
        assert folders.new_folder(None, "a", ["x", "y"]) == Path("out/a-2")
        with pytest.raises(OutputError, match="already holds x"):
            folders.new_folder(folder, "a", ["x", "y"])

    def test_other_commands_leave_unfinished_results_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = folders.new_folder(None, "a", ["x", "y"])
        (folder / "x").write_text("half")
        folders.let_go()
        monkeypatch.setattr(sys, "argv", ["sads", "test", "--seed", "1"])
        assert folders.new_folder(None, "a", ["x", "y"]) == Path("out/a-2")

    def test_a_folder_in_use(self) -> None:
        folders.new_folder(Path("a"), "", ["x"])
        with pytest.raises(OutputError, match="another command is writing to a"):
            folders.new_folder(Path("a"), "", ["y"])

    @pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"files": 3}', "[" * 10000])
    def test_a_mark_that_is_not_ours_marks_nothing(self, tmp_path: Path, content: str) -> None:
        (tmp_path / ".x.unfinished").write_text(content)
        (tmp_path / "x").write_text("mine")
        with pytest.raises(OutputError, match="already holds x"):
            folders.new_folder(tmp_path, "", ["x"])


def write_a_result(folder: Path, text: str) -> None:
    os.chdir(folder)
    sys.argv = ["sads", "test"]
    place = folders.new_folder(None, "a", ["result"])
    (place / "result").write_text(text)
    folders.finish(place)
    folders.let_go()


@pytest.mark.parametrize("matrix_free", [False, True])
def test_work_goes_on_in_the_precision_in_which_it_began(matrix_free: bool, tmp_path: Path) -> None:
    family = sads.family("mlp", (1, 2, 2), width=4, depth=1)
    options = {"num_networks": 512, "batch_size": 16, "matrix_free": matrix_free}

    def estimate(dtype: str, progress: Callable[[int, int, float], None]) -> sads.Geometry:
        kept = tmp_path / dtype
        return sads.estimate_geometry(
            family, dtype=dtype, checkpoint=kept, progress=progress, **options
        )

    for dtype, other in (("bfloat16", "float32"), ("float32", "bfloat16")):
        with pytest.raises(InterruptedEstimate):
            estimate(dtype, interrupt_after(1))
        (tmp_path / dtype).rename(tmp_path / other)
        with pytest.raises(CheckpointError, match=r"dtype was .* now it is"):
            estimate(other, interrupt_after(1))
        (tmp_path / other).unlink()


def test_an_interrupt_that_something_swallows_is_raised_again() -> None:
    """Code of others may catch everything, or PyTorch's C code forget it."""
    with Interrupts() as interrupts:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            raise_if_lost()
        try:
            raise InterruptedEstimate
        except KeyboardInterrupt:
            raise_if_lost()  # it is on its way
