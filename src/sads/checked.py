"""Public functions take what their annotations say, and refuse the rest in one line.

    @checked
    def impulse_response(family: ScoreFamily, num_networks: int = 64, *, seed: int = 0, ...): ...

What is right in Python is right here: a list for a tuple, an array for a tensor, NumPy's numbers
for Python's. What Python would take and nobody means is not: `"yes"` or 3 for a bool (both are
true), True for a number or a seed, NaN for a number. Which numbers make sense (how many, how large)
a function says itself. It runs in PyTorch's ordinary modes, whatever the caller's are.
"""

import inspect
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from sads.arguments import as_tensor, check_seed, shown
from sads.errors import InvalidArgumentError
from sads.modes import is_ordinary, ordinary

Target = TypeVar("Target", bound=Callable[..., Any])
_SEVERAL = "a list of"
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    Tensor: "a tensor or a NumPy array",
    Callable: "a function",
    os.PathLike: "a path",
}
_OWN_WORDS = ("shape", "family", "tolerance")  # which are refused in words that help more
_PLURALS = {int: "whole numbers", float: "finite numbers", str: "texts"}
_SOURCES = {  # where to get one
    "Geometry": "a geometry (see sads.estimate_geometry, sads.load_geometry)",
    "League": "a league (see sads.experiments.standings)",
    "Rotation": "a rotation (see sads.rotation, sads.load_rotation)",
    "Schedule": "a sads.Schedule",
    "ScoreModel": "a model (see sads.train, sads.load_model)",
}


def checked(target: Target) -> Target:
    """A function, a method or a class whose arguments are looked at before it starts."""
    if inspect.isclass(target):
        setattr(target, "__init__", checked(target.__init__))  # noqa: B010, mypy knows no other way
        return target
    signature = inspect.signature(target)

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return target(*args, **kwargs)  # as Python says it
        annotations = _annotations(target)
        for name, value in bound.arguments.items():
            if name in annotations:
                bound.arguments[name] = _taken(name, value, annotations[name])
        if is_ordinary():
            return target(*bound.args, **bound.kwargs)
        with ordinary():
            return target(*bound.args, **bound.kwargs)

    return cast(Target, call)


@cache
def _annotations(target: Callable[..., Any]) -> dict[str, Any]:
    """What the parameters are, but those of `*args` and `**kwargs`, and those we do not look at."""
    hints = typing.get_type_hints(target)
    single = (
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in _OWN_WORDS
    )
    return {name: hints[name] for name in single if name in hints}


def _taken(name: str, value: Any, annotation: Any) -> Any:
    """An argument as the function gets it: arrays as tensors, NumPy's numbers as Python's."""
    members = _members(annotation)
    if name == "seed" and not (value is None and types.NoneType in members):
        return check_seed(value)
    if Tensor in members and isinstance(value, Tensor | np.ndarray):
        tensor = as_tensor(value, name)
        return value if isinstance(value, Tensor) else tensor
    if not any(_fits(value, member) for member in members):
        raise InvalidArgumentError(f"{name} must be {_words(members)}, got {shown(value)}")
    return _plain(value, members)


def _plain(value: Any, members: tuple[Any, ...]) -> Any:
    """A number as Python's own, which can be written to files; all else as it is."""
    if bool in members and isinstance(value, np.bool_):
        return bool(value)
    if int in members and _is_whole(value):
        return operator.index(value)
    if float in members and _is_finite(value):
        return value if isinstance(value, int) else float(value)
    return value


def _members(annotation: Any) -> tuple[Any, ...]:
    """Each of the types of a union."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _fits(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    if origin is Any or not isinstance(origin, type):
        return True  # nothing is known of it
    return _is_one(value, origin, typing.get_args(annotation))


def _is_one(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is bool:
        return isinstance(value, bool | np.bool_)
    if origin is int:
        return _is_whole(value)
    if origin is float:
        return _is_finite(value)
    if issubclass(origin, os.PathLike):
        return isinstance(value, os.PathLike)
    if origin is Callable:
        return callable(value)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if issubclass(origin, Iterable) and arguments:
        return _is_list(value, arguments[0])
    return isinstance(value, origin)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool | str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _is_list(value: Any, of: Any) -> bool:
    """Is it several things of a kind? What is read once (a generator) is not looked into."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        return False
    if isinstance(value, Tensor | np.ndarray) and value.ndim != 1:
        return False
    again = iter(value) is not value
    return not again or all(any(_fits(v, member) for member in _members(of)) for v in value)


def _words(members: tuple[Any, ...]) -> str:
    """What is taken.

    >>> _words((bool, types.NoneType))
    'True or False (or left out)'
    >>> _words((int, str))
    'a whole number or a text'
    """
    words = [_word(member) for member in members if member is not types.NoneType]
    left_out = " (or left out)" if types.NoneType in members else ""
    return " or ".join(dict.fromkeys(words)) + left_out


def _word(annotation: Any) -> str:
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin in _WORDS:
        return _WORDS[origin]
    if issubclass(origin, os.PathLike):
        return _WORDS[os.PathLike]
    if issubclass(origin, Iterable) and arguments:
        return f"{_SEVERAL} {_plural(arguments[0])}"
    return _SOURCES.get(origin.__name__, f"a {origin.__name__}")


def _plural(annotation: Any) -> str:
    return _PLURALS.get(annotation) or f"which each is {_words(_members(annotation))}"
