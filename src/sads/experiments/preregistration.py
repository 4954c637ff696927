"""Claims as they stood before the runs: `claims.toml`, and which runs have seen them so.

What a claim says, which units it is about, and from which threshold on it holds must not be chosen
after looking at the numbers. The file is committed before the runs; every record keeps its digest.
"""

import functools
import re
import subprocess
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sads.errors import counted
from sads.files import digest

CLAIMS = Path(__file__).with_name("claims.toml")
VERSION_KEY = "claims"  # of the digest, among the versions that a record keeps


@dataclass(frozen=True)
class Registered:
    """A claim of the file."""

    figure: str
    text: str  # a word in braces stands for any text
    statistic: str
    unit: str
    threshold: float | None = None

    def covers(self, figure: str, text: str) -> bool:
        parts = re.split(r"\{\w+\}", self.text)
        return figure == self.figure and bool(
            re.fullmatch(".+".join(map(re.escape, parts)), text, flags=re.DOTALL)
        )


@functools.cache
def registered_claims() -> tuple[Registered, ...]:
    content = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    return tuple(Registered(**claim) for claim in content["claim"])


def find_registered(figure: str, text: str) -> Registered | None:
    """The claim of the file that a figure's claim is, or None if it was thought of later."""
    return next((c for c in registered_claims() if c.covers(figure, text)), None)


@functools.cache
def claims_digest(figure: str | None = None) -> str:
    """The digest of the claims, or of those of a figure; comments and places do not matter."""
    content = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    if figure is not None:
        content["claim"] = [claim for claim in content["claim"] if claim["figure"] == figure]
    return digest(repr(content).encode())[:12]


def claims_versions() -> dict[str, str]:
    """What a record keeps of the claims as they stand: digests of the file and of each figure.

    So that a claim which is added to one figure later does not make the runs of others older.
    """
    figures = dict.fromkeys(claim.figure for claim in registered_claims())
    return {
        VERSION_KEY: claims_digest(),
        **{f"{VERSION_KEY} {figure}": claims_digest(figure) for figure in figures},
    }


def describe_commit(path: Path = CLAIMS) -> str:
    """Which commit last changed the file, as far as git knows here."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(path.parent), *arguments, "--", path.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    changed, commit = git("status", "--porcelain"), git("log", "-1", "--format=%h of %cs")
    if not commit:
        return "not in a git checkout here"
    return "changed since its last commit" if changed else f"commit {commit}"


def note_registration(versions: Collection[dict[str, str]], figure: str | None = None) -> list[str]:
    """How many runs are older than the claims as they stand, from the versions they keep."""

    def as_now(kept: dict[str, str]) -> bool:
        own = kept.get(f"{VERSION_KEY} {figure}")
        return kept.get(VERSION_KEY) == claims_digest() or own == claims_digest(figure)

    older = sum(not as_now(kept) for kept in versions)
    if not older:
        return []
    cells = f"{older} of {counted(len(versions), 'cell')} {'was' if older == 1 else 'were'}"
    return [
        f"{cells} run before the claims stood as they do now (claims.toml, {claims_digest(figure)})"
    ]
