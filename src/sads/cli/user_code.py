"""A user's own Python file: loaded as Python would, its errors shown in one line.

A file finds the modules beside it, and a file of a package is imported as a module of that package,
so that relative imports work. What it cannot do is to take the place of something else: the
standard library, our dependencies and sads itself come first, whatever the file is called, and two
files of the same name in different folders are two modules.
"""

import difflib
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from sads.errors import InvalidArgumentError, describe_failure, printable

# Imported by us, perhaps later than the user's file: nothing beside it may take their names.
OURS = frozenset(
    {"sads", "torch", "numpy", "scipy", "pywt", "safetensors", "typer", "click", "rich"}
    | {"matplotlib", "mpl_toolkits", "PIL", "fsspec", "sklearn", "ray", "diffusers", "datasets"}
)
_modules: dict[tuple[str, int, int], ModuleType] = {}  # by path, time and size
_roots: list[str] = []  # folders that users' modules were loaded from


def read_object(text: str, what: str, called: bool = False) -> Any:
    """`FILE.py:NAME` or `package.module:NAME`; with `called`, it must be callable."""
    source, _, name = text.rpartition(":")
    hint = f"give FILE.py:NAME, where {what}"
    if not source or not name:
        raise InvalidArgumentError(f"{printable(text)!r} names nothing to load; {hint}")
    try:
        module = _load_file(Path(source)) if source.endswith(".py") else _import_module(source)
    except InvalidArgumentError:
        raise
    except SystemExit as error:
        raise InvalidArgumentError(
            f"cannot load {printable(text)}: it calls sys.exit ({describe_failure(error)}); keep "
            'that under if __name__ == "__main__":'
        ) from error
    except Exception as error:  # whatever the user's file raises
        raise InvalidArgumentError(
            f"cannot load {printable(text)}: {describe_failure(error)}; {hint}{_advice(error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidArgumentError(
                f"{printable(source)} has no {part!r}{_similar(part, found)}"
            )
        found = getattr(found, part)
    if called and not callable(found):
        raise InvalidArgumentError(
            f"{printable(text)} is {type(found).__name__}, which cannot be called; {hint}"
        )
    return found


def is_users(error: BaseException) -> bool:
    """Did an error come through a file that was loaded here?"""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.startswith(tuple(r + os.sep for r in _roots)) for frame in frames)


def _load_file(given: Path) -> ModuleType:
    path = given.resolve()
    if not path.is_file():
        raise InvalidArgumentError(
            f"cannot load {printable(given)}: there is no such file; give FILE.py:NAME"
        )
    known = path.stat()
    key = (str(path), known.st_mtime_ns, known.st_size)
    if key not in _modules:
        root, name = path.parent, path.stem
        while (root / "__init__.py").is_file() and root.parent != root:
            root, name = root.parent, f"{root.name}.{name}"
        name = name.removesuffix(".__init__")
        with _folder_of_modules(str(root)):
            _modules[key] = _load_as(name, path, root)
    return _modules[key]


def _load_as(name: str, path: Path, root: Path) -> ModuleType:
    """Import a file as module `name` of a root folder, or by a name of its own if that is taken."""
    top, _, rest = name.partition(".")
    if _is_free(top, root):
        if rest:
            return importlib.import_module(name)
        return _execute(name, path)
    top = f"{top}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if not rest:
        return _execute(top, path)
    folder = root / name.partition(".")[0]
    _execute(top, folder / "__init__.py", [str(folder)])
    return importlib.import_module(f"{top}.{rest}")


def _is_free(name: str, root: Path) -> bool:
    """May a module of this folder have the name?"""
    if not name.isidentifier() or name == "__main__" or _is_protected(name):
        return False
    there = sys.modules.get(name)
    place = getattr(there, "__file__", None)
    return there is None or (place is not None and Path(place).is_relative_to(root))


def _execute(name: str, path: Path, search: list[str] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return sys.modules.get(name, module)  # a module may put another object in its place


class _Beside(importlib.abc.MetaPathFinder):
    """Finds modules beside a user's file before those of the same name elsewhere."""

    def __init__(self, folder: str):
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or _is_protected(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [self.folder])
        # A folder without __init__.py is a package only if there is no other of its name.
        return spec if spec is not None and spec.loader is not None else None


@contextmanager
def _folder_of_modules(root: str) -> Iterator[None]:
    """Modules of a folder can be imported, now first of all and later if no other has their name.

    Functions import what they need when they are called, and processes that are started copy
    `sys.path`: so the folder stays. Modules of other users' folders step aside for the block.
    """
    importlib.invalidate_caches()
    others = tuple(r + os.sep for r in _roots if r != root)
    aside = {
        name: module
        for name, module in list(sys.modules.items())
        if others
        and str(getattr(module, "__file__", None) or "").startswith(others)
        and not str(module.__file__).startswith(root + os.sep)
    }
    for name in aside:
        del sys.modules[name]
    finder = _Beside(root)
    sys.meta_path.insert(0, finder)
    if root not in _roots:
        _roots.append(root)
    if root not in sys.path:
        sys.path.append(root)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.meta_path.append(finder)
        sys.modules.update(aside)


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does
    return importlib.import_module(name)


def _is_protected(name: str) -> bool:
    return name in OURS or name in sys.stdlib_module_names


def _similar(name: str, owner: Any) -> str:
    public = [n for n in vars(owner) if not n.startswith("_")] if hasattr(owner, "__dict__") else []
    close = difflib.get_close_matches(name, public, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    made = [n for n in public if getattr(vars(owner)[n], "__module__", None) == owner.__name__]
    return f"; it has {', '.join(made[:8])}" if made else "; nothing is defined in it"


def _advice(error: Exception) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "; for relative imports put an __init__.py beside the file"
    return ""
