"""Files of a user's own on the command line: loaded as Python would, errors in one line."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sads.cli.user_code import read_object
from sads.errors import InvalidArgumentError

NETWORK = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(1, 1, 3, padding=1)
    def forward(self, x, t):
        return self.out(x + t[:, None, None, None])
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(autouse=True)
def python_as_it_was(tmp_path_factory, monkeypatch):
    """What a test imports is not left to the next one."""
    from sads.cli import user_code

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(user_code, "_roots", [])
    monkeypatch.setattr(user_code, "_modules", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        place = str(getattr(sys.modules[name], "__file__", ""))
        if "sads" not in name and place.startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


LOADED = [  # files, what to load, what it returns when called
    pytest.param(
        {"model.py": "import layers\ndef build(): return layers.WIDTH", "layers.py": "WIDTH = 7"},
        "model.py:build",
        7,
        id="a module beside it",
    ),
    pytest.param(
        {"model.py": "def build():\n    import late\n    return late.X", "late.py": "X = 3"},
        "model.py:build",
        3,
        id="imported when it is called",
    ),
    pytest.param(
        {
            "pkg/__init__.py": "",
            "pkg/layers.py": "WIDTH = 8",
            "pkg/model.py": "from .layers import WIDTH\ndef build(): return WIDTH",
        },
        "pkg/model.py:build",
        8,
        id="relative import",
    ),
    pytest.param(
        {
            "pkg/__init__.py": "",
            "pkg/deep/__init__.py": "",
            "pkg/layers.py": "WIDTH = 9",
            "pkg/deep/model.py": "from ..layers import WIDTH\nfrom pkg import layers\n"
            "def build(): return WIDTH if layers.WIDTH == WIDTH else None",
        },
        "pkg/deep/model.py:build",
        9,
        id="relative import of a package's package",
    ),
    pytest.param(
        {
            "model.py": "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "@dataclass\nclass Options:\n    width: int = 5\ndef build(): return Options().width"
        },
        "model.py:build",
        5,
        id="a dataclass with postponed annotations",
    ),
    pytest.param(
        {"torch.py": "import torch\ndef build(): return torch.tensor([4]).item()"},
        "torch.py:build",
        4,
        id="called torch.py",
    ),
    pytest.param(
        {
            "json.py": "import json\ndef build(): return json.loads('6')",
            "random.py": "raise Exception('never imported')",
        },
        "json.py:build",
        6,
        id="called json.py",
    ),
    pytest.param(
        {"sads.py": "import sads\ndef build(): return len(sads.__all__) > 10"},
        "sads.py:build",
        True,
        id="called sads.py",
    ),
    pytest.param(
        {
            "torch/__init__.py": "",
            "torch/layers.py": "X = 2",
            "torch/model.py": "from . import layers\nimport torch\n"
            "def build(): return layers.X * torch.ones(1).int().item()",
        },
        "torch/model.py:build",
        2,
        id="a package called torch",
    ),
    pytest.param(
        {"my-model 2.py": "def build(): return 1"}, "my-model 2.py:build", 1, id="no identifier"
    ),
    pytest.param(
        {"model.py": "class Nets:\n    @staticmethod\n    def small(): return 1"},
        "model.py:Nets.small",
        1,
        id="a method of a class",
    ),
    pytest.param(
        {"pkg2/model.py": "def build(): return 11"}, "pkg2.model:build", 11, id="a module's name"
    ),
]


@pytest.mark.parametrize(("files", "text", "value"), LOADED)
def test_a_file_is_loaded_as_python_would(files, text, value, tmp_path, monkeypatch):
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    before = {name: import_module(name) for name in ("torch", "json", "sads", "random")}
    assert read_object(text, "it is a test", called=True)() == value
    assert all(sys.modules[name] is module for name, module in before.items())


def test_two_files_of_one_name_are_two_modules_each_with_its_own_neighbours(tmp_path, monkeypatch):
    for folder, value in (("a", 1), ("b", 2)):
        write(
            tmp_path / folder,
            {
                "model.py": "import layers\ndef build(): return layers.X",
                "layers.py": f"X = {value}",
            },
        )
    monkeypatch.chdir(tmp_path)
    first = read_object("a/model.py:build", "")
    second = read_object("b/model.py:build", "")
    assert (first(), second()) == (1, 2)
    assert read_object("a/model.py:build", "") is first  # loaded once, as Python does


REFUSED = [
    ("import missing_thing", "model.py:build", "model.py, line 1: ModuleNotFoundError: No module"),
    ("x = 1\nx.y", "model.py:build", "model.py, line 2: AttributeError"),
    ("def build(:\n    pass", "model.py:build", "model.py, line 1: SyntaxError"),
    ("import sys\nsys.exit(3)", "model.py:build", "model.py, line 2: SystemExit: 3"),
    ("from . import layers", "model.py:build", "put an __init__.py beside the file"),
    ("def build_unet(): pass", "model.py:build_une", "did you mean build_unet?"),
    ("def make(): pass", "model.py:zzz", "it has make"),
    ("", "model.py:zzz", "nothing is defined in it"),
    ("build = 3", "model.py:build", "is int, which cannot be called"),
    ("", "model.py:", "names nothing to load"),
    ("", "nowhere.py:build", "cannot load nowhere.py: there is no such file"),
    ("raise ValueError('a' * 5000 + '\\n\\x1b[31m')", "model.py:build", "ValueError: aaa"),
]


@pytest.mark.parametrize(("source", "text", "message"), REFUSED)
def test_what_cannot_be_loaded_is_one_line_that_says_where(
    source, text, message, tmp_path, monkeypatch
):
    write(tmp_path, {"model.py": source})
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.meta_path)
    with pytest.raises(InvalidArgumentError) as raised:
        read_object(text, "it builds a network", called=True)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 600
    if "line" in message:  # half-executed modules do not stay
        assert "model" not in set(sys.modules) - modules
    assert len(sys.meta_path) <= len(path) + 1


COMMANDS = [  # the file, the command, what is printed
    (
        NETWORK + "def build():\n    return Net(widht)",
        ["geometry", "model.py:build", "--shape", "1x4x4"],
        "model.py, line 11, in build: NameError: name 'widht' is not defined",
    ),
    (
        NETWORK.replace("t[:, None", "self.scale[:, None"),
        ["geometry", "model.py:Net", "--shape", "1x4x4"],
        "model.py, line 9, in forward: AttributeError",
    ),
    (
        NETWORK + "def build(width):\n    return Net()",
        ["geometry", "model.py:build", "--shape", "1x4x4"],
        "it is called without arguments",
    ),
    (
        NETWORK + "def build():\n    raise SystemExit(4)",
        ["geometry", "model.py:build", "--shape", "1x4x4"],
        "SystemExit: 4",
    ),
    (
        NETWORK + "class P:\n    def draw(self, *a):\n        return 1 / 0",
        ["geometry", "model.py:Net", "--shape", "1x4x4", "--probe", "model.py:P"],
        "in draw: ZeroDivisionError",
    ),
    (
        NETWORK + "class P:\n    def __init__(self, width): pass\n    def draw(self): pass",
        ["geometry", "model.py:Net", "--shape", "1x4x4", "--probe", "model.py:P"],
        "cannot make a probe of model.py:P",
    ),
    (
        NETWORK + "class P:\n    pass",
        ["geometry", "model.py:Net", "--shape", "1x4x4", "--probe", "model.py:Q"],
        "model.py has no 'Q'",
    ),
    (NETWORK, ["geometry", "model.py", "--shape", "1x4x4"], "say which function of model.py"),
    (
        # Only networks after the first fail, where no check looks.
        NETWORK.replace(
            "        return self", "        assert not self.training\n        return self"
        )
        + "count = 0\ndef build():\n    global count\n    count += 1\n"
        "    if count > 5:\n        raise KeyError('late')\n    return Net()",
        ["geometry", "model.py:build", "--shape", "1x4x4", "--estimator", "monte-carlo"],
        "KeyError: 'late'",
    ),
]


@pytest.mark.parametrize(("source", "arguments", "message"), COMMANDS)
def test_a_command_says_in_one_line_what_is_wrong_with_a_file(
    source, arguments, message, tmp_path, monkeypatch, capsys
):
    from sads.cli.main import main

    write(tmp_path, {"model.py": source})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sads", *arguments])
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.slow
def test_a_package_with_neighbours_from_a_fresh_process(tmp_path):
    write(
        tmp_path,
        {
            "nets/__init__.py": "",
            "nets/blocks.py": NETWORK,
            "nets/model.py": "from __future__ import annotations\nfrom .blocks import Net\n"
            "def build() -> Net:\n    return Net()",
            "json.py": "raise Exception('never imported')",
        },
    )
    command = [sys.executable, "-m", "sads.cli", "geometry", "nets/model.py:build"]
    run = subprocess.run(
        [*command, "--shape", "1x4x4", "--networks", "32", "--out", "o", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["dimension"] == 16
