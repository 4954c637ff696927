"""What README and docs say holds: Python runs, commands exist, links lead somewhere.

A block of code that is not run has `<!-- not run: why -->` on the line before it.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import sads
from sads.cli.root import app

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *DOCS]
FENCE = re.compile(r"(<!-- not run: .+? -->\s*)?```(\w+)\n(.*?)```", re.S)


def _blocks(language: str) -> list[tuple[str, str]]:
    """Name and content of all blocks of a language that claim to run."""
    return [
        (f"{page.relative_to(ROOT)}-{number}", match[3])
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text()))
        if match[2] == language and not match[1]
    ]


def _commands() -> list[tuple[str, str]]:
    """Every `sads ...` in shell blocks, indented ones and in the running text."""
    found = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        lines = re.findall(r"`(sads [^`\n]+)`", text) + re.findall(r"^    (sads .+)$", text, re.M)
        for _, block in [b for b in _blocks("sh") if b[0].startswith(str(page.relative_to(ROOT)))]:
            lines += block.replace("\\\n", " ").splitlines()
        found += [(page.name, line.split("#")[0].strip()) for line in lines]
    spoken = re.compile(r"\.\.\.|…|[|]|&&|\bOUT\b")  # abbreviated for the eye
    return [(page, c) for page, c in found if c.startswith("sads ") and not spoken.search(c)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code"), _blocks("python"), ids=[name for name, _ in _blocks("python")]
)
def test_examples_run(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "diffusers" in code:
        pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": "example"})


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    commands = _commands()
    assert len(commands) > 40
    root = typer.main.get_command(app)
    for page, line in commands:
        command = root
        words = shlex.split(line)[1:]
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands or words[0].startswith("-"), f"{page}: {line}"
            if words[0].startswith("-"):
                break
            command = command.commands[words.pop(0)]
        options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        options |= {"--help", "--version"}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.split("=")[0] in options, f"{page}: {line}: no option {word}"


def test_every_linked_file_is_there() -> None:
    for page in [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!http)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_file_of_code_that_is_named_is_there() -> None:
    """By its path or the end of it; `figN.py` and `NAME.py` stand for several."""
    files = [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if ".venv" not in path.parts
    ]
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`([a-z_0-9/]+\.py)`", page.read_text())
    }
    assert len(named) > 50
    assert [n for n in sorted(named) if not any(f"/{f}".endswith(f"/{n[1]}") for f in files)] == []


def test_every_public_name_is_in_the_reference_and_in_an_example_that_runs() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: sads\.(\w+)$", pages, re.M))
    assert documented == set(sads.__all__)
    code = "\n".join(block for _, block in _blocks("python"))
    shown = {name for name in sads.__all__ if re.search(rf"\bsads\.{name}\b", code)}
    shown |= {n for n in sads.__all__ if ">>>" in (getattr(sads, n).__doc__ or "")}
    assert shown == set(sads.__all__)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sads.family" in (tmp_path / "reference" / "geometry" / "index.html").read_text()
    assert (tmp_path / "results" / "laptop" / "index.html").exists()
    foreign = re.compile(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?|png))')
    assert not any(foreign.search(page.read_text()) for page in tmp_path.rglob("*.html"))
