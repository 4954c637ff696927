"""Score Anisotropy Directions: the directional biases of diffusion models before training.

Names are imported when they are first used: PyTorch takes seconds to import, and `sads --help`
needs none of it. `__init__.pyi` lists them.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from sads.openmp import wait_without_spinning as _wait_without_spinning

_wait_without_spinning()  # before PyTorch is imported, which reads this once

_LIST = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
_IMPORTS = [node for node in _LIST.body if isinstance(node, ast.ImportFrom)]
_HOMES = {name.name: str(node.module) for node in _IMPORTS for name in node.names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """A public name, from the module that it lives in."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("sads")
    if name not in _HOMES:
        raise AttributeError(f"module 'sads' has no attribute {name!r}")
    if _HOMES[name] == "sads":
        return importlib.import_module(f"sads.{name}")
    globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
