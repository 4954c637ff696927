"""Watch a network while it is built, layer by layer, and stop what would never end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from sads.errors import NetworkError

MOST_PARTS = 10_000  # parameters and layers of a network by name: seconds to build, on a busy core


class TooManyLayersError(NetworkError):
    """A network that nobody can build in reasonable time."""


@contextmanager
def watched_construction(look: Callable[[object], None]) -> Iterator[None]:
    """Whatever becomes part of a network in the block, in this thread, is shown to `look`."""
    thread = threading.get_ident()

    def check(module: nn.Module, name: str, part: object) -> None:
        if thread == threading.get_ident():  # the hooks are those of all threads
            look(part)

    hooks = [
        register_module_parameter_registration_hook(check),
        register_module_module_registration_hook(check),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def limited_construction() -> Iterator[None]:
    """Networks of more layers than anybody runs stop while they are built."""
    count = 0

    def look(_: object) -> None:
        nonlocal count
        count += 1
        if count > MOST_PARTS:
            raise TooManyLayersError(
                f"it has more than {MOST_PARTS:,} layers and parameters; ask for fewer layers"
            )

    with watched_construction(look):
        yield
