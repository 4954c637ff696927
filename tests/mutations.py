"""Files as they come out of a bad disk or a bad mind: bytes flipped, cut, doubled, inserted.

And JSON in which values are of another kind, missing, or there in addition.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

# Numbers that sizes in headers are made of, and that break them.
TELLING = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff", b"\n", b"-1"),
    *(b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00" * 8, b"9" * 12, b"\xf0\x9f", b"null"),
)
MOST_CHANGES = 4


def mutated(data: bytes, head: int | None = None) -> SearchStrategy[bytes]:
    """Copies of `data` with one to four changes.

    Args:
        head: if given, half of all changes are among the first so many bytes, where headers are.
    """
    return _mutated(data, len(data) if head is None else head)


@st.composite
def _mutated(draw: DrawFn, data: bytes, head: int) -> bytes:
    content = bytearray(data)
    for _ in range(draw(st.integers(1, MOST_CHANGES))):
        last = max(0, len(content) - 1)
        place = draw(st.integers(0, min(head, last)) | st.integers(0, last))
        kind = draw(
            st.sampled_from(("flip", "set", "cut", "remove", "insert", "overwrite", "copy"))
        )
        if kind == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and content:
            content[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place:]
        elif kind == "remove":
            del content[place : place + draw(st.integers(1, 16))]
        elif kind == "insert":
            content[place:place] = draw(st.sampled_from(TELLING) | st.binary(max_size=8))
        elif kind == "overwrite":
            new = draw(st.sampled_from(TELLING))
            content[place : place + len(new)] = new
        else:
            piece = content[place : place + draw(st.integers(1, 64))]
            other = draw(st.integers(0, last))
            content[other:other] = piece
    return bytes(content)


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


@st.composite
def mutated_tree(draw: DrawFn, content: Any, odd: Sequence[Any] = ODD) -> Any:
    """Copies of JSON with one to three values replaced, removed, added or exchanged."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        content = _changed(draw, content, odd)
    return content


def _changed(draw: DrawFn, content: Any, odd: Sequence[Any]) -> Any:
    places = list(_places(content))
    holder, key = draw(st.sampled_from(places)) if places else (None, None)
    kind = draw(st.sampled_from(("replace", "replace", "replace", "nudge", "remove", "add")))
    value = copy.deepcopy(draw(st.sampled_from(odd)))  # it may be changed in turn
    if holder is None:
        return value
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(("extra", "", "__class__", "\x1b[2J")))] = value
    elif kind == "add":
        holder.insert(key, value)
    elif kind == "nudge" and isinstance(holder[key], int | float):
        holder[key] += draw(st.sampled_from((1, -1, 0.25)))
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
