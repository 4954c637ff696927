"""Files as they come out of a bad disk or a bad mind: bytes flipped, cut, doubled, inserted.

And JSON in which values are of another kind, missing, or there in addition.
"""

import copy
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

# Numbers that sizes in headers are made of, and that break them.
TELLING = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff", b"\n", b"-1"),
    *(b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00" * 8, b"9" * 12, b"\xf0\x9f", b"null"),
)
MOST_CHANGES = 4


T = TypeVar("T", bound=Hashable)
Change = Callable[[Random], T]  # makes a case by chance


def cases(count: int, make: Change[T]) -> Iterator[T]:
    """So many different cases, the same ones in every run."""
    chance, seen = Random(0), set[T]()
    while len(seen) < count:
        case = make(chance)
        if case not in seen:
            seen.add(case)
            yield case


def either(*changes: Change[T]) -> Change[T]:
    """One of several changes, each as often as the others."""
    return lambda chance: chance.choice(changes)(chance)


def mutated(data: bytes, head: int | None = None) -> Change[bytes]:
    """Copies of `data` with one to four changes.

    Args:
        head: if given, half of all changes are among the first so many bytes, where headers are.
    """
    head = len(data) if head is None else head
    return lambda chance: Content(_mutated(chance, data, head))


def _mutated(chance: Random, data: bytes, head: int) -> bytearray:
    content = bytearray(data)
    for _ in range(chance.randint(1, MOST_CHANGES)):
        last = max(0, len(content) - 1)
        place = chance.randint(0, chance.choice((min(head, last), last)))
        kind = chance.choice(("flip", "set", "cut", "remove", "insert", "overwrite", "copy"))
        if kind == "flip" and content:
            content[place] ^= 1 << chance.randint(0, 7)
        elif kind == "set" and content:
            content[place] = chance.choice((0, 255, chance.randint(0, 255)))
        elif kind == "cut":
            del content[place:]
        elif kind == "remove":
            del content[place : place + chance.randint(1, 16)]
        elif kind == "insert":
            any_bytes = chance.randbytes(chance.randint(0, 8))
            content[place:place] = chance.choice((chance.choice(TELLING), any_bytes))
        elif kind == "overwrite":
            new = chance.choice(TELLING)
            content[place : place + len(new)] = new
        else:
            piece = content[place : place + chance.randint(1, 64)]
            other = chance.randint(0, last)
            content[other:other] = piece
    return content


# What JSON may hold where something else is expected.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 10**12, -(10**12), 2**63, 10**400, 1e308),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "1", "null", "../../etc/passwd", "a/b"),
    *("\x1b[31mred\x07", "line\nline", "\ud800", "$\\frac{$", "[bold]", "9" * 5000, "y" * 3000),
    *("random:1" + "0" * 400, "share:nan", "rank-one:geometry:0", "sphere::", "\0"),
    *([], {}, [None], [1, 2, 3], [[1, 2, 3]], [0, 0], [-1, 4], [10**6, 10**6], {"a": 1}),
    *({"value": 1.0, "error": None}, [[[[[[[[]]]]]]]], {"name": "linear", "num_levels": 10**12}),
)


def deep(levels: int) -> Any:
    """Lists in lists."""
    content: Any = []
    for _ in range(levels):
        content = [content]
    return content


class Content(bytes):
    """Bytes of a file whose `repr` is short, so that a failure can be read."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def mutated_tree(content: Any, odd: Sequence[Any] = ODD) -> Callable[[Random], Any]:
    """Copies of JSON with one to three values replaced, removed, added or exchanged."""

    def change(chance: Random) -> Any:
        changed = copy.deepcopy(content)
        for _ in range(chance.randint(1, 3)):
            changed = _changed(chance, changed, odd)
        return changed

    return change


def mutated_json(content: bytes) -> Change[bytes]:
    """JSON with other values in it."""
    change = mutated_tree(json.loads(content))
    return lambda chance: Content(json.dumps(change(chance)).encode())


def _changed(chance: Random, content: Any, odd: Sequence[Any]) -> Any:
    places = list(_places(content))
    holder, key = chance.choice(places) if places else (None, None)
    kind = chance.choice(("replace", "replace", "replace", "nudge", "remove", "add"))
    value = copy.deepcopy(chance.choice(odd))  # it may be changed in turn
    if holder is None:
        return value
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder[chance.choice(("extra", "", "__class__", "\x1b[2J"))] = value
    elif kind == "add":
        holder.insert(key, value)
    elif kind == "nudge" and isinstance(holder[key], int | float):
        holder[key] += chance.choice((1, -1, 0.25))
    else:
        holder[key] = value
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(content, dict | list):
        return
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])
