"""Commands, run in this process as a user would type them."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest


def changed(arguments: Iterable[object], option: str, value: object) -> list[object]:
    """The arguments of a command with another value of an option, which is taken once."""
    words = list(arguments)
    words[words.index(option) + 1] = value
    return words


class Sads:
    """The command, run in this process; `fail` expects one line and status 2."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        from sads.cli.main import main

        self.monkeypatch.setattr(sys, "argv", ["sads", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = self.capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    def succeed(self, *arguments: object) -> str:
        status, out, err = self(*arguments)
        assert status == 0, err
        return out

    def fail(self, *arguments: object) -> str:
        status, out, err = self(*arguments)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        return err


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hasty_pictures: None,
) -> Sads:
    monkeypatch.chdir(tmp_path)
    return Sads(capsys, monkeypatch)
