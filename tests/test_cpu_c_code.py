"""The cache of compiled layers: private, whole, and what happens without a compiler."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import sads
from cases import needs_compiler
from killing import finish, run_command
from sads import environment
from sads.cpu import c_code, layers_name
from sads.diffusion.execution import fast_forward, fast_inference
from sads.threads import pinned_threads

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(sys.platform == "win32", reason="other users are kept out otherwise"),
]
ANOTHER_USER = 65534


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "_noted", set())
    c_code.library.cache_clear()
    yield tmp_path / "sads"
    c_code.library.cache_clear()


@pytest.fixture(scope="module")
def compiled():
    """The compiled code, once for all tests."""
    return c_code._compile()


@pytest.fixture
def counted(monkeypatch, compiled):
    """How often the compiler ran; its work is not done again."""
    calls = []
    monkeypatch.setattr(c_code, "_compile", lambda: calls.append(1) or compiled)
    return calls


def load():
    c_code.library.cache_clear()
    return c_code.library()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_cache_is_private_and_used_again(cache, counted):
    load()
    load()
    assert len(counted) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    (name,) = names(cache)
    assert stat.S_IMODE((cache / name).stat().st_mode) == 0o600
    assert name.startswith("kernels-")


def test_a_cache_of_ours_that_others_could_read_is_closed_and_used(cache, counted):
    cache.mkdir(mode=0o755)
    load()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_compiled_anew(damage, cache, counted):
    load()
    (name,) = names(cache)
    content = (cache / name).read_bytes()
    (cache / name).write_bytes(content[: len(content) // 2] if damage is None else damage)
    load()
    assert len(counted) == 2
    assert (cache / name).read_bytes() == content
    assert names(cache) == [name]


def plant(folder: Path, marker: Path) -> Path:
    """A library that runs somebody's code when it is loaded, under a name that is looked for."""
    source = folder.parent / "evil.c"
    source.write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) void run(void) {{ fclose(fopen("{marker}", "w")); }}\n'
    )
    made = folder.parent / "evil.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    content = made.read_bytes()
    key = c_code._key()
    folder.mkdir(exist_ok=True)
    planted = folder / f"kernels-{key[:16]}-{c_code.digest(content)[:32]}.so"
    planted.write_bytes(content)
    return planted


def refuse_as_another(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, ANOTHER_USER, ANOTHER_USER)


@pytest.mark.parametrize(
    ("arrange", "reason"),
    [
        (lambda folder, planted: folder.chmod(0o777), "can be written by other users"),
        (lambda folder, planted: folder.chmod(0o770), "can be written by other users"),
        (lambda folder, planted: refuse_as_another(folder), "belongs to other users"),
        (lambda folder, planted: refuse_as_another(planted), "belongs to other users"),
        (lambda folder, planted: planted.chmod(0o666), "can be written by other users"),
        (lambda folder, planted: link(folder), "is a link"),
        (lambda folder, planted: link(planted), "cannot be kept or loaded"),
    ],
    ids=["open", "group", "another's folder", "another's file", "open file", "link", "linked file"],
)
def test_what_others_could_have_planted_is_not_loaded(arrange, reason, cache, counted, tmp_path):
    """With the name and the digest that a library of ours would have."""
    marker = tmp_path / "ran"
    planted = plant(cache, marker)
    arrange(cache, planted)
    with pytest.raises(c_code.NoLibraryError, match=reason):
        load()
    assert not marker.exists()
    assert layers_name() == "torch"


def link(path):
    elsewhere = path.with_name("elsewhere")
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def test_the_planted_library_would_have_run(tmp_path):
    """Else the test above would show nothing."""
    marker = tmp_path / "ran"
    planted = plant(tmp_path / "sads", marker)
    ctypes.CDLL(str(planted))
    assert marker.exists()


def test_a_full_disk_leaves_nothing_half_made(cache, counted, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(c_code.os, "replace", full)
    with pytest.raises(c_code.NoLibraryError, match="No space left"):
        load()
    assert names(cache) == []


@pytest.mark.parametrize("broken", ["no compiler", "compiler fails", "no place"])
def test_without_our_layers_one_line_says_so(broken, cache, monkeypatch, tmp_path):
    if broken == "no compiler":
        monkeypatch.setattr(c_code.shutil, "which", lambda name: None)
    elif broken == "compiler fails":
        failure = subprocess.CompletedProcess([], 1, "", "kernels.c:1: error: no such vector")
        monkeypatch.setattr(c_code.subprocess, "run", lambda *_, **__: failure)
    else:
        cache.write_text("a file")
    family = sads.family("iddpm", (1, 8, 8))
    network = family.build()
    with pinned_threads(1):
        with pytest.warns(UserWarning, match="using PyTorch's") as caught:
            forward = fast_forward(network, family, 1)
        assert forward.function is network
        assert forward.layers == layers_name() == "torch"
        assert Path(caught[0].filename).parts[-3:] == ("sads", "diffusion", "execution.py")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the reason is shown once
            assert fast_inference(network, family, 1, 50).function is network
    assert not list(tmp_path.glob("sads/*")), "nothing half-made stays in the cache"


@pytest.mark.parametrize("command", ["train", "sample"])
def test_commands_say_that_there_is_no_compiler(command, tmp_path, processes):
    run = tmp_path / "run"
    family = ["iddpm", "rank-one:dct:1", "--shape", "1x8x8", "--samples", "32"]
    arguments = [
        *("train", *family, "--iterations", "1"),
        *("--batch-size", "16", "--out", str(run)),
    ]
    if command == "sample":
        model = sads.train(
            sads.family("iddpm", (1, 8, 8), channel_mults=(), depth=1),
            torch.randn(8, 1, 8, 8),
            iterations=1,
            batch_size=4,
        )
        model.save(tmp_path / "model.safetensors")
        arguments = ["sample", str(tmp_path / "model.safetensors"), "--samples", "60"]
        arguments += ["--steps", "1", "--out", str(run)]
    finish(processes, run_without_a_compiler, tmp_path, arguments)
    said = "note: our faster layers do not work here (there is no C compiler); using PyTorch's"
    assert (tmp_path / "messages").read_text().count(said) == 1


def run_without_a_compiler(folder, arguments):
    changes = {"PATH": "", "CC": "/nonexistent", "XDG_CACHE_HOME": str(folder / "cache")}
    os.environ.update(changes)
    run_command(folder, arguments)


def test_a_cache_that_is_emptied_later_kills_nobody(tmp_path, processes, compiled):
    """A page of a file that was cut is a page less: SIGBUS, if the file itself were loaded."""
    finish(processes, empty_the_cache, tmp_path, compiled)


def empty_the_cache(folder, compiled):
    os.environ["XDG_CACHE_HOME"] = str(folder)
    c_code._compile = lambda: compiled
    loaded = c_code.library()
    (kept,) = folder.rglob("*.so")
    os.truncate(kept, 0)
    loaded.kernel_points(None, None, 0, 0, 0)
