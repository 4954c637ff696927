"""What MkDocs does not do by itself: pages and pictures that stand outside docs/.

`results/`, `CHANGELOG.md`, `CONTRIBUTING.md` and `SECURITY.md` are read where they are, on a shelf
of the repository that one opens without any site. Here they become pages, and the links between
them and docs/ are bent to where things are in the site. Source files that pages link to are
copied.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = {"results": (".md", ".png", ".json", ".jsonl"), "examples": (".py", ".ipynb")}
LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what stands outside docs/."""
    paths = [ROOT / name for name in PAGES]
    for folder, suffixes in FOLDERS.items():
        found = (ROOT / folder).rglob("*")
        paths += sorted(p for p in found if p.suffix in suffixes and "store" not in p.parts)
    for path in paths:
        where = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, where, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the repository become links of the site."""
    uri = page.file.src_uri
    outside = uri.split("/")[0] in (*PAGES, *FOLDERS)
    home = posixpath.dirname(uri if outside else f"docs/{uri}")

    def bend(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(home, match[2]))
        target = target.removeprefix("docs/")
        if (ROOT / target).is_dir() and (ROOT / target / "README.md").exists():
            target += "/README.md"
        return match[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(bend, markdown)
