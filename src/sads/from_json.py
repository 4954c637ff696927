"""Frozen dataclasses from JSON, with every type checked: the inverse of `files.plain`.

What a file says is not trusted: a key too many or too few, a number where a word should be, each is
a `DecodingError` that says where.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from sads.errors import SadsError, printable
from sads.estimates import Estimate

Kind = TypeVar("Kind")
SHOWN = 60  # characters of what a file says


class DecodingError(ValueError):
    """JSON that does not describe what was expected."""


def decode(kind: type[Kind], content: Any) -> Kind:
    """An object of a dataclass from its JSON.

    A class with a `parse` method may also be given as the text that it parses.
    """
    value: Kind = _decode(kind, content, _name(kind))
    return value


def _name(kind: type) -> str:
    return kind.__name__.lstrip("_")


def decode_known(kind: type[Kind], content: Any) -> Kind:
    """As `decode`, of what perhaps a newer sads wrote: keys that are not known are left out."""
    _expect(isinstance(content, dict), _name(kind), "an object", content)
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return decode(kind, {name: value for name, value in content.items() if name in names})


def decode_as(kind: Any, content: Any, place: str) -> Any:
    """What a type such as `tuple[int, ...]` allows; `place` is what errors call it."""
    return _decode(kind, content, place)


def infinite_again(found: Any) -> Any:
    """Errors that were infinite before JSON made null of them, in whatever was decoded.

    For results whose errors are there or unknown: others have estimates without any error.
    """
    if isinstance(found, Estimate):
        return Estimate(found.value, math.inf) if math.isnan(found.error) else found
    if isinstance(found, tuple):
        return tuple(map(infinite_again, found))
    if isinstance(found, Mapping):
        return {key: infinite_again(value) for key, value in found.items()}
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        names = [field.name for field in dataclasses.fields(found)]
        values = {name: infinite_again(getattr(found, name)) for name in names}
        for name, value in values.items():
            if name.endswith("_error") and math.isnan(value):
                values[name] = math.inf
        return dataclasses.replace(found, **values)
    return found


def _decode(kind: Any, content: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _hashable(content)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, content, place)
    if origin is typing.Literal:
        if content not in arguments:
            raise DecodingError(f"{place} is {_short(content)}, expected one of {arguments}")
        return content
    if origin is tuple:
        return _decode_tuple(arguments, content, place)
    if origin in (dict, Mapping) or (origin is not None and issubclass(origin, Mapping)):
        _expect(isinstance(content, dict), place, "an object", content)
        if arguments[1] is Any:
            return content
        return {k: _decode(arguments[1], v, f"{place}.{k}") for k, v in content.items()}
    if kind is Estimate:
        _expect(
            isinstance(content, dict) and content.keys() == {"value", "error"},
            place,
            "a value and its error",
            content,
        )
        return Estimate(*(_number(content[k], f"{place}.{k}") for k in ("value", "error")))
    if kind is float:
        return _number(content, place)
    if kind in (int, str, bool):
        _expect(type(content) is kind, place, kind.__name__, content)
        return content
    if isinstance(content, str) and hasattr(kind, "parse"):
        return _made(kind.parse, place, content)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, content, place)
    raise DecodingError(f"{place} is of a kind that no file holds, {kind}")


def _decode_union(kinds: tuple[Any, ...], content: Any, place: str) -> Any:
    if content is None and type(None) in kinds:
        return None
    reasons = []
    for kind in (k for k in kinds if k is not type(None)):
        try:
            return _decode(kind, content, place)
        except DecodingError as error:
            reasons.append(str(error))
    raise DecodingError(reasons[-1])


def _decode_tuple(kinds: tuple[Any, ...], content: Any, place: str) -> tuple[Any, ...]:
    _expect(isinstance(content, list), place, "a list", content)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(content)
    _expect(len(kinds) == len(content), place, f"{len(kinds)} entries", content)
    pairs = zip(kinds, content, strict=True)
    return tuple(_decode(kind, value, f"{place}[{i}]") for i, (kind, value) in enumerate(pairs))


def _decode_fields(kind: Any, content: Any, place: str) -> Any:
    _expect(isinstance(content, dict), place, "an object", content)
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := set(content) - set(fields):
        raise DecodingError(f"{place} has the unknown key {_short(sorted(unknown)[0])}")
    for name, field in fields.items():
        optional = not all(d is dataclasses.MISSING for d in (field.default, field.default_factory))
        if name not in content and not optional:
            raise DecodingError(f"{place} lacks the key {name!r}")
    values = {k: _decode(hints[k], v, f"{place}.{k}") for k, v in content.items()}
    return _made(kind, place, **values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields; a store has the same few classes in every record."""
    return typing.get_type_hints(kind)


def _made(make: Any, place: str, /, *arguments: Any, **fields: Any) -> Any:
    try:
        return make(*arguments, **fields)
    except (ValueError, ArithmeticError, SadsError) as error:  # what the class does not accept
        raise DecodingError(f"{place}: {error}") from error


def _number(content: Any, place: str) -> float:
    """A number; JSON has none that are not finite, and null in their place."""
    if content is None:
        return math.nan
    _expect(
        isinstance(content, int | float) and not isinstance(content, bool),
        place,
        "a number",
        content,
    )
    try:
        return float(content)
    except OverflowError as error:
        raise DecodingError(f"{place} is too large a number") from error


def _hashable(content: Any) -> Any:
    """Lists as tuples, so that frozen objects that hold them can be hashed."""
    return tuple(map(_hashable, content)) if isinstance(content, list) else content


def _expect(condition: bool, place: str, what: str, content: Any) -> None:
    if not condition:
        raise DecodingError(f"{place[:200]} is {_short(content)}, expected {what}")


def _short(content: Any) -> str:
    """What a file says, as it can be printed."""
    text = "null" if content is None else str(content)
    return repr(printable(text if len(text) <= SHOWN else f"{text[:SHOWN]}..."))
