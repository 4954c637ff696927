"""What users write on the command line, read into what the library takes."""

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

import sads
from sads.commands.printing import messages, progress_bar
from sads.errors import InvalidArgumentError, SadsError
from sads.family import ScoreFamily
from sads.probe import Probe


def read_family(
    name: str, shape: str | None, options: list[str], prediction: str, schedule: str
) -> ScoreFamily:
    overrides = dict(read_option(text) for text in options)
    if reserved := {"name", "shape", "prediction", "schedule"} & set(overrides):
        raise InvalidArgumentError(
            f"{', '.join(sorted(reserved))} is not an option of a network; "
            "write --shape, --prediction or --schedule"
        )
    sizes = None if shape is None else read_shape(shape)
    return sads.family(
        read_factory(name) if ":" in name else name,
        sizes,
        prediction=prediction,
        schedule=schedule,
        **overrides,
    )


def read_geometry(
    source: str,
    shape: str | None,
    option: list[str] | None,
    networks: int,
    seed: int,
    quiet: bool,
    estimator: str = "auto",
    file: bool = False,
) -> sads.Geometry:
    """A geometry from a file, or estimated for a family."""
    if file or source.endswith(".safetensors"):
        return sads.load_geometry(source)
    family = read_family(source, shape, option or [], "epsilon", "linear")
    with progress_bar("networks", "error {:.1%}", quiet=quiet) as progress:
        return sads.estimate_geometry(
            family, networks, seed=seed, estimator=estimator, progress=progress
        )


def read_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise InvalidArgumentError(f"{text!r} is not a shape; write sizes such as 1x16x16")
    return shape


def read_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise InvalidArgumentError(f"{text!r} is not an option; write KEY=VALUE, e.g. depth=2")
    try:
        parsed = json.loads(f"[{value}]" if "," in value and "[" not in value else value)
    except json.JSONDecodeError:
        parsed = value
    return key, tuple(parsed) if isinstance(parsed, list) else parsed


def read_probe(text: str) -> Probe:
    kind, _, argument = text.partition(":")
    if kind == "gaussian":
        try:
            return sads.probe("gaussian", width=float(argument) if argument else None)
        except ValueError as error:
            if isinstance(error, SadsError):
                raise
            raise InvalidArgumentError(
                f"{argument!r} is not a width; write gaussian:0.5 or the like"
            ) from error
    if kind == "forward":
        return sads.probe("forward", images=read_images(argument))
    return sads.probe(kind)


def read_images(text: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """`IMAGES` or `IMAGES:INDEX`, with anything that `load_images` takes; resized to a shape."""
    source, _, last = text.rpartition(":")
    indexed = bool(source) and last.lstrip("-").isdigit()
    fit: dict[str, Any] = {} if shape is None else {"size": shape[1:], "channels": shape[0]}
    result = sads.read_images(source if indexed else text, **fit)
    if result.skipped:
        messages.print(f"note: {result.statement()}", highlight=False, soft_wrap=True)
    if not indexed:
        return result.images
    if not -result.num_read <= int(last) < result.num_read:
        raise InvalidArgumentError(
            f"{source} has {result.num_read:,} images, there is no number {last}: "
            f"give 0 to {result.num_read - 1}"
        )
    return result.images[int(last)][None]


def read_factory(text: str) -> Any:
    """`FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    source, _, name = text.rpartition(":")
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        return getattr(module, name)
    except Exception as error:  # whatever the user's file raises
        raise InvalidArgumentError(
            f"cannot load {text!r} ({error}); give FILE.py:FUNCTION, where FUNCTION() returns a "
            "new nn.Module at every call"
        ) from error


def format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
