"""What set-up found out about large networks, remembered between runs.

The questions of `inspection` take some evaluations, minutes for a large network, and their answers
do not change as long as the architecture and this library do not. They are kept as a small JSON
file in the user's private folder. What is remembered counts only if the network, evaluated once,
gives the numbers that it gave then: a wrong answer cannot come from another network.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from sads.files import digest
from sads.from_json import decode_known
from sads.geometry.response import same_response
from sads.private_folder import (
    NotPrivateError,
    cache_folder,
    private_folder,
    read_private,
    write_private,
)
from sads.untrusted import DAMAGE, parse_json

FORMAT = 3  # raise it whenever set-up asks or answers differently
# An AttributeError where the system has no way to keep other users out.
UNREADABLE: tuple[type[Exception], ...] = (OSError, NotPrivateError, AttributeError, *DAMAGE)
CLOSE = 1e-4  # by which the numbers of an evaluation may differ, relatively


@dataclass(frozen=True)
class Findings:
    """The answers for one architecture under one probe."""

    response: tuple[float, ...]  # of the network that was looked at
    symmetries: tuple[str, ...]


def key_of(parts: Mapping[str, Any]) -> str:
    """The name of what is remembered, from everything that answers depend on."""
    return digest(json.dumps([FORMAT, parts], sort_keys=True, default=str).encode())[:32]


def recall(key: str, response: tuple[float, ...]) -> Findings | None:
    """What is known of a network that gives these numbers; None if nothing is."""
    try:
        folder = cache_folder()
        with private_folder(folder) as opened:
            found = decode_known(Findings, parse_json(read_private(opened, folder, _name(key))))
    except UNREADABLE:
        return None
    return found if same_response(found.response, response, CLOSE) else None


def remember(key: str, findings: Findings) -> None:
    """Keep it for the next run, if there is a place that is the user's alone."""
    with (
        suppress(OSError, NotPrivateError, AttributeError),
        private_folder(cache_folder()) as opened,
    ):
        write_private(opened, _name(key), json.dumps(asdict(findings)).encode())


def _name(key: str) -> str:
    return f"setup-{key}.json"
