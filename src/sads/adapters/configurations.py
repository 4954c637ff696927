"""Configurations of diffusers' models, as the hub stores them: found, read and checked.

A model is a folder with a `config.json`; a pipeline is a folder of such folders with a
`model_index.json`, one of which, `scheduler/`, says what the model predicts. What they hold is
somebody else's word: JSON of a few kilobytes, of which nothing is used that was not checked.
Weights, which lie beside it, are never opened.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sads.errors import InvalidArgumentError, SadsError, printable
from sads.untrusted import first_line, read_json

MODEL, PIPELINE, SCHEDULER = "config.json", "model_index.json", "scheduler_config.json"
HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}((/[\w.-]{1,96})?)", re.ASCII)
LARGEST = 1 << 20  # of a number in a configuration
LONGEST = 64  # entries of a list, or characters of a word
MOST_LAYERS = 20_000  # layers, by the product of all numbers of layers and of blocks
HINT = "give a config.json, or the folder of a model that holds one"


@dataclass(frozen=True)
class Configuration:
    """What a model's `config.json` says, and its scheduler's, if there is one."""

    name: str  # for people, from where it was found
    path: Path
    content: Mapping[str, Any]
    scheduler: Mapping[str, Any] | None
    scheduler_path: Path | None


def find(text: str) -> Configuration:
    """The configuration that a path, or the name of a model on the hub, stands for."""
    path = Path(text)
    if not text:
        raise InvalidArgumentError(f"diffusers: names no model; {HINT}")
    try:
        there = path.exists()
    except OSError:  # a name too long, for instance
        there = False
    if not there:
        path = _download(text)
    folder = path if path.is_dir() else path.parent
    file = folder / MODEL if path.is_dir() else path
    if not file.exists():
        raise InvalidArgumentError(_no_model(folder))
    content = _read(file)
    if "_class_name" not in content and file.name == PIPELINE:
        raise InvalidArgumentError(_no_model(folder))
    scheduler = _beside(folder)
    return Configuration(
        name=_name(folder, file),
        path=file,
        content=content,
        scheduler=None if scheduler is None else _read(scheduler),
        scheduler_path=scheduler,
    )


def class_name(found: Configuration) -> str:
    """Which class of diffusers a configuration is of."""
    name = found.content.get("_class_name")
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgumentError(
            f"{printable(found.path)} does not say of which class of diffusers it is (its "
            f'"_class_name" is {_short(name)}); {HINT}'
        )
    if name.endswith("Pipeline"):
        raise InvalidArgumentError(_no_model(found.path.parent))
    if name == "Transformer2DModel":  # what older versions called several models
        kinds = {"ada_norm_zero": "DiTTransformer2DModel"}
        kinds["ada_norm_single"] = "PixArtTransformer2DModel"
        name = kinds.get(str(found.content.get("norm_type")), name)
    return name


def checked_arguments(
    kind: type, content: Mapping[str, Any], place: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a model's constructor, from its configuration and what a user changes.

    Keys that the constructor does not have are left out, as diffusers does; options that it does
    not have are refused.
    """
    known = set(inspect.signature(kind.__init__).parameters) - {"self"}  # type: ignore[misc]
    if unknown := set(options) - known:
        raise InvalidArgumentError(
            f"{kind.__name__} has no option {', '.join(sorted(unknown))}; it has "
            f"{', '.join(sorted(known))}"
        )
    arguments = {k: v for k, v in content.items() if k in known} | dict(options)
    for key, value in arguments.items():
        _check_value(value, f"{place}: {key}")
    _check_layers(arguments, place)
    return arguments


def _check_value(value: Any, place: str, depth: int = 0) -> None:
    """A number, a word, true, false, null, or a list of them."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        if not abs(value) <= LARGEST:
            raise InvalidArgumentError(
                f"{printable(place)} is {_short(value)}, expected a number of at most {LARGEST:,}"
            )
        return
    if isinstance(value, str) and len(value) <= LONGEST:
        return
    if isinstance(value, list | tuple) and len(value) <= LONGEST and depth < 2:
        for entry in value:
            _check_value(entry, place, depth + 1)
        return
    raise InvalidArgumentError(
        f"{printable(place)} is {_short(value)}, expected a number, a word of at most {LONGEST} "
        "characters, or a short list of them"
    )


def _check_layers(arguments: Mapping[str, Any], place: str) -> None:
    """So few layers that a module can be made of them."""
    total = 1.0
    for key, value in arguments.items():
        entries = value if isinstance(value, list | tuple) else [value]
        flat = [n for e in entries for n in (e if isinstance(e, list | tuple) else [e])]
        numbers = [n for n in flat if isinstance(n, int) and not isinstance(n, bool)]
        if "layers" in key and "attention_layers" not in key and numbers:
            total *= max(1, *map(abs, numbers))
        if key == "down_block_types":
            total *= max(1, len(entries))
    if total > MOST_LAYERS:
        raise InvalidArgumentError(
            f"{printable(place)} asks for about {total:,.0f} layers, more than {MOST_LAYERS:,}; is "
            "it damaged?"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"{printable(path)} cannot be read as a configuration ({first_line(error)}); {HINT}"
        ) from error
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{printable(path)} holds no configuration; {HINT}")
    return content


def _beside(folder: Path) -> Path | None:
    """The configuration of the scheduler that belongs to the model in a folder."""
    places = (folder, folder / "scheduler", folder.parent / "scheduler")
    return next((p / SCHEDULER for p in places if (p / SCHEDULER).is_file()), None)


def _no_model(folder: Path) -> str:
    """Why a folder holds no model: a pipeline has them in its sub-folders."""
    where = printable(folder)
    if not (folder / PIPELINE).is_file():
        return f"{where} holds no {MODEL}; {HINT}"
    models = []
    for name, entry in sorted(_read(folder / PIPELINE).items()):
        usable = isinstance(entry, list) and len(entry) == 2 and entry[0] == "diffusers"
        if usable and re.fullmatch(r"[\w-]{1,64}", name, re.ASCII) and name != "scheduler":
            models.append(f"{name} ({printable(entry[1])[:LONGEST]})")
    inside = ", ".join(models) or "none of diffusers"
    first = models[0].partition(" ")[0] if models else "FOLDER"
    first = next((n for n in ("unet", "transformer", "prior") if f"{n} (" in inside), first)
    return (
        f"{where} is a pipeline; its models are in sub-folders: {inside}; give one of them, such "
        f"as diffusers:{where}/{first}"
    )


def _name(folder: Path, file: Path) -> str:
    """`stable-diffusion-v1-5/unet`, `ddpm-cifar10-32`, or the name of a lone file."""
    if file.name != MODEL:
        return file.stem
    parts = [part for part in folder.absolute().parts if part not in ("/", "..")]
    generic = parts and re.fullmatch(r"(unet|transformer|prior)\w*", parts[-1])
    return "/".join(parts[-2:] if generic else parts[-1:]) or file.stem


def _download(text: str) -> Path:
    """The folder of a model from the hub, in which there are its configurations only."""
    if not HUB_NAME.fullmatch(text) or ".." in text:
        raise InvalidArgumentError(f"there is no file or folder {printable(text)}; {HINT}")
    owner, name, *inside = text.split("/")
    prefix = "".join(f"{part}/" for part in inside)
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise InvalidArgumentError(
            f"there is no file or folder {printable(text)}, and without huggingface_hub it cannot "
            "be looked up: pip install 'sads[diffusers]'"
        ) from error

    def get(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(f"{owner}/{name}", file, etag_timeout=10))
        except EntryNotFoundError:
            return None

    try:
        found = get(f"{prefix}{MODEL}") or get(PIPELINE)
        if found is None:
            raise InvalidArgumentError(f"{text} on the hub holds no {MODEL}; {HINT}")
        for file in (f"{prefix}{SCHEDULER}", f"scheduler/{SCHEDULER}"):
            if get(file) is not None:
                break
    except SadsError:
        raise
    except Exception as error:  # of the network, of the hub, of its many kinds
        raise InvalidArgumentError(
            f"there is no file or folder {printable(text)}, and on the hub it cannot be read "
            f"({first_line(error)[:200]}); {HINT}"
        ) from error
    return found.parent


def _short(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
