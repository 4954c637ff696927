"""Wheel and sdist: what they hold, and that the wheel works away from the source tree."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

import sads

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, from a copy of what git has: nothing else is shipped."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, stdout=-1)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().splitlines():
        wanted = name.startswith("src/") or "/" not in name
        if wanted and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_wheel_and_sdist_hold_all_that_the_package_needs(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    package = ROOT / "src" / "sads"
    needed = {
        f"sads/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed <= set(names)
    assert not [n for n in names if n.startswith(("tests", "docs", "benchmarks"))]
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("src/sads/cpu/kernels.c") for name in archive.getnames())


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own_without_a_compiler(
    built: Path, tmp_path: Path
) -> None:
    """Dependencies are those of these tests, by path; the package is the wheel's."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True
    )
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    environ = {
        "PATH": str(tmp_path / "env" / "bin"),  # no cc here
        "PYTHONPATH": str(Path(torch.__file__).parents[1]),  # editable installs are not seen so
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run("-c", "import sads; print(sads.__file__, sads.__version__)").split()
    assert Path(where[0]).is_relative_to(tmp_path / "env")
    assert where[1] == PROJECT["version"]
    small = ("geometry", "cnn", "--shape", "1x4x4", "--networks", "32", "--out", "out")
    sads_command = str(tmp_path / "env" / "bin" / "sads")
    assert "largest eigenvalue" in run(sads_command, *small)
    assert sads.load_geometry(tmp_path / "out" / "geometry.safetensors").num_networks == 32
    run(sads_command, "report", "out", "--out", "report.html")
    assert "Content-Security-Policy" in (tmp_path / "report.html").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
