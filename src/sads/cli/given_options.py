"""Which options of a command were typed, as opposed to those that have their default.

What nothing is made of is refused: whoever types it expects something of it.
"""

from collections.abc import Iterable

from sads.errors import InvalidArgumentError

_given: set[str] = set()


def remember_given(names: Iterable[str]) -> None:
    """The options of the command that is about to run, by the names of its parameters."""
    _given.clear()
    _given.update(names)


def refuse_given(why: str, *names: str) -> None:
    """Refuse those of these options that were typed; `why` says what makes them useless."""
    unused = [f"--{name.replace('_', '-')}" for name in names if name in _given]
    if unused:
        raise InvalidArgumentError(f"{' and '.join(unused)}: {why}; leave it out")
