"""A report: one HTML file with all that it needs, which loads nothing from anywhere.

The page has three kinds of parts: HTML that templates make of results, in which everything is
escaped; the results' numbers as JSON, which the browser does not run; and scripts of ours and of
Observable Plot, which draw the second into the first. A content security policy allows these
scripts and styles by their hashes and nothing else, from nowhere.
"""

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import sads
from sads.errors import ReportError, printable
from sads.files import plain, replacing
from sads.markup import text
from sads.untrusted import open_regular

MARK = b'<meta name="generator" content="sads '
HEAD_BYTES = 8192  # in which the mark of a report stands
LARGEST = 50_000_000  # bytes of a page
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.min.js")
SCRIPTS = (
    "core.js",
    "charts.js",
    "pictures.js",
    "gallery.js",
    "curves.js",
    "geometry.js",
    "ends.js",
    "comparison.js",
    "alignment.js",
    "training.js",
    "paper.js",
    "atlas.js",
    "start.js",
)
# What Observable Plot writes into every chart, for the class that charts.js gives it.
PLOT_STYLE = """:where(.sads-plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.sads-plot text),
:where(.sads-plot tspan) {
  white-space: pre;
}"""


@dataclass(frozen=True)
class Section:
    """One result on a page."""

    kind: str  # of which scripts it is drawn by
    id: str
    title: str
    html: Markup
    data: Mapping[str, Any] = field(default_factory=dict)  # for the scripts


def render(template: str, **values: Any) -> Markup:
    """A template with values in it; whatever is not HTML already is escaped."""
    return Markup(_templates().get_template(template).render(**values))


def make_page(title: str, sections: Sequence[Section]) -> str:
    """The text of a report."""
    scripts = [_asset(name) for name in (*LIBRARIES, *SCRIPTS)]
    style = _asset("report.css")
    data = [{"id": s.id, "kind": s.kind, **s.data} for s in sections]
    return render(
        "page.html",
        title=title,
        version=sads.__version__,
        sections=sections,
        policy=_policy(scripts, [style, PLOT_STYLE]),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        data=Markup(_embedded(data)),
    )


def write_page(page: str, path: Path, shrink: str = "") -> Path:
    """Write a report to a file; `shrink` says how to make it smaller."""
    content = page.encode()
    if len(content) > LARGEST:
        raise ReportError(
            f"the report would have {len(content) / 1e6:.0f} MB, more than {LARGEST / 1e6:.0f}, "
            f"which browsers open slowly if at all; {shrink or 'give fewer sources'}"
        )
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def check_new(path: Path) -> None:
    """One line if there is something already where a report is to go."""
    if os.path.lexists(path):
        raise ReportError(
            f"{printable(path)} is there already, and nothing is overwritten; choose another "
            "--out, or remove it"
        )


def check_page_name(path: Path) -> None:
    """One line for a name that no browser opens as a page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ReportError(
            f"{printable(path)} would not open in a browser: a report is a page, call it "
            f"{printable(path.name or 'report')}.html or the like"
        )


def check_ours(path: Path) -> None:
    """One line if there is something at a place that is not a report."""
    if os.path.lexists(path) and not _is_report(path):
        raise ReportError(
            f"{printable(path)} is there already and not a report of sads; move it away"
        )


def _is_report(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return MARK in file.read(HEAD_BYTES)
    except OSError:
        return False


def pack(array: Any) -> dict[str, str]:
    """A NumPy array as base64, to be read by `sads.unpack` in the browser."""
    content = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return {"type": array.dtype.name, "bytes": base64.b64encode(content).decode()}


def _embedded(content: object) -> str:
    """JSON that can stand inside a script element, whatever words are in it."""
    written = json.dumps(_printable(plain(content)), allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(content: Any) -> Any:
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, dict):
        return {printable(key): _printable(value) for key, value in content.items()}
    return [_printable(value) for value in content] if isinstance(content, list) else content


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The page's own scripts and styles, pictures inside it, and nothing else."""
    allowed = {"script-src": scripts, "style-src": styles}
    rules = [f"{name} {' '.join(map(_hash, texts))}" for name, texts in allowed.items()]
    closed = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*closed, "img-src data:", *rules])


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    content = resources.files("sads.report").joinpath("assets", name).read_text("utf-8")
    assert "</script" not in content
    assert "</style" not in content
    return content


@functools.cache
def _templates() -> jinja2.Environment:
    folder = resources.files("sads.report") / "templates"
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=text,
    )
