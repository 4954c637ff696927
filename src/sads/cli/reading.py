"""What users write on the command line, read into what the library takes."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sads
from sads.cli.given_options import refuse_given
from sads.cli.printing import print_note, progress_bar
from sads.cli.user_code import read_object
from sads.errors import InvalidArgumentError, SadsError, describe_failure, printable
from sads.shapes import parse_shape
from sads.untrusted import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    from sads.data.spec import DataSet
    from sads.experiments.sweep import RayCluster
    from sads.families import ScoreFamily
    from sads.geometry.result import Geometry
    from sads.probes import Probe

GEOMETRY = ".safetensors"  # how the name of a file that holds one ends
OF_A_FILE = "for families, and a geometry that is read from a file has its own"
RESERVED = ("name", "shape", "prediction", "schedule")  # of sads.family, not of a network


def read_family(
    name: str,
    shape: str | None,
    options: list[str] | None,
    prediction: str | None = None,
    schedule: str | None = None,
    **settings: Any,
) -> "ScoreFamily":
    """A family by its name; `settings` are further options, left out where they are None."""
    from sads.families import adapter_of

    overrides = read_options(options)
    given = {key: value for key, value in settings.items() if value is not None}
    if given and adapter_of(name) is None:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise InvalidArgumentError(
            f"{flags}: only for models of diffusers (diffusers:PATH), not for {printable(name)}"
        )
    if reserved := set(RESERVED) & set(overrides):
        raise InvalidArgumentError(
            f"{', '.join(sorted(reserved))} is not an option of a network; "
            "write --shape, --prediction or --schedule"
        )
    own = adapter_of(name) is None and (":" in name or name.endswith(".py"))
    return sads.family(
        read_factory(name) if own else name,
        None if shape is None else parse_shape(shape),
        prediction=prediction,
        schedule=schedule,
        **overrides,
        **given,
    )


def read_factory(text: str) -> Any:
    """`FILE.py:FUNCTION`, where the function builds a network."""
    if text.endswith(".py"):
        raise InvalidArgumentError(
            f"say which function of {printable(text)} builds the network: {printable(text)}:build"
        )
    return read_object(text, "NAME() returns a new nn.Module at every call", called=True)


def read_geometry(
    source: str,
    shape: str | None,
    options: list[str] | None,
    networks: int,
    seed: int,
    quiet: bool,
    estimator: str = "auto",
) -> "Geometry":
    """A geometry from a file, or estimated for a family; what a file has no use for is refused."""
    if source.endswith(GEOMETRY):
        refuse_given(OF_A_FILE, "shape", "option", "networks")
    found = read_geometry_or_family(source, shape, options)
    if isinstance(found, sads.Geometry):
        return found
    return estimate(found, networks, seed, quiet, estimator)


def read_geometry_or_family(
    source: str, shape: str | None, options: list[str] | None
) -> "Geometry | ScoreFamily":
    """A geometry from a file, or the family for which one is to be estimated."""
    from sads.families import ARCHITECTURES

    if source.endswith(GEOMETRY):
        return sads.load_geometry(source)
    if source.endswith((".json", ".npz")) and "diffusers:" not in source:
        raise InvalidArgumentError(
            f"{printable(source)} holds numbers and pictures of a geometry, not the geometry: give "
            "the .safetensors of it (of an entry of the atlas: work/NAME.safetensors, or "
            "atlas:NAME to estimate it)"
        )
    inside = Path(source) / "geometry.safetensors"
    if source not in ARCHITECTURES and os.path.isfile(inside):
        raise InvalidArgumentError(
            f"{printable(source)} is a folder with a geometry in it: give {printable(inside)}"
        )
    return read_family(source, shape, options)


def estimate(
    family: "ScoreFamily",
    networks: int,
    seed: int,
    quiet: bool,
    estimator: str = "auto",
    measure: "Tensor | None" = None,
) -> "Geometry":
    """A geometry, with a bar while networks are drawn."""
    with progress_bar("networks", "error {:.1%}", quiet=quiet) as progress:
        return sads.estimate_geometry(
            family,
            networks,
            seed=seed,
            estimator=estimator,
            measure=measure,
            progress=progress,
            stage=progress.stage if progress else None,
        )


def read_dataset(
    text: str,
    shape: tuple[int, ...],
    samples: int | None,
    seed: int = 0,
    resize: bool = False,
    value_range: str | None = None,
    layout: str | None = None,
    announced: bool = False,
) -> "DataSet":
    """Data by their line of text; what was skipped is said, unless the caller announces them."""
    from sads.data.spec import read_data

    data = read_data(
        text,
        shape,
        samples,
        seed,
        resize=resize,
        value_range=read_value_range(value_range),
        layout=layout,
    )
    if data.skipped and not announced:
        announce(data)
    return data


def announce(data: "DataSet") -> None:
    """Say how images were understood, and what was skipped."""
    if data.kind == "images":
        print_note(data.statement)


def read_value_range(text: str | None) -> tuple[float, float] | None:
    """`LOW,HIGH`, such as `0,255`."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise InvalidArgumentError(
            f"{text!r} is not a range of values; write LOW,HIGH, such as 0,255 or -1,1"
        )
    return low, high


def read_cluster(
    ray: str | None, cpus: float | None, gpus: float | None, workers: int | None = None
) -> "RayCluster | None":
    """The Ray cluster that was asked for, if any; what does not go together is refused."""
    from sads.experiments.sweep import RayCluster

    if ray is None:
        if cpus is not None or gpus is not None:
            raise InvalidArgumentError("--cpus and --gpus are what is taken of a --ray cluster")
        return None
    if workers is not None:
        raise InvalidArgumentError("--workers are processes here, --ray runs elsewhere: give one")
    return RayCluster(ray, 1.0 if cpus is None else cpus, 0.0 if gpus is None else gpus)


def read_options(texts: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` of every `-o`; a key that is there twice is refused, as one would be ignored."""
    options: dict[str, Any] = {}
    for text in texts or []:
        key, value = read_option(text)
        if key in options:
            raise InvalidArgumentError(f"the option {key} is given twice; leave one of them out")
        options[key] = value
    return options


def read_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise InvalidArgumentError(f"{text!r} is not an option; write KEY=VALUE, e.g. depth=2")
    try:
        parsed = parse_json(f"[{value}]" if "," in value and "[" not in value else value)
    except json.JSONDecodeError:
        parsed = value
    except ValueError as error:
        raise InvalidArgumentError(f"the value of option {key} is refused: {error}") from None
    return key, tuple(parsed) if isinstance(parsed, list) else parsed


def read_probe(
    text: str,
    shape: tuple[int, ...],
    resize: bool = False,
    value_range: str | None = None,
    layout: str | None = None,
) -> "Probe":
    """`zero`, `gaussian:WIDTH`, `forward:IMAGES` or `FILE.py:CLASS` of a probe of the user's."""
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
        data = read_dataset(
            argument,
            shape,
            None,
            resize=resize,
            value_range=value_range,
            layout=layout,
            announced=True,
        )
        announce(data)
        return sads.probe("forward", images=data.samples)
    if argument:
        made = read_object(text, "it is a class of probes, a probe, or a function")
        try:
            return sads.probe(made() if isinstance(made, type) else made)
        except SadsError:
            raise
        except Exception as error:  # of the class's constructor
            raise InvalidArgumentError(
                f"cannot make a probe of {printable(text)}: {describe_failure(error)}; a class is "
                "called without arguments"
            ) from error
    return sads.probe(kind)
