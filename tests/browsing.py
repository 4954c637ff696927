"""Pages in a real browser, Debian's Chromium driven by Playwright; without it tests are skipped."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-compositing",
    "--disable-software-rasterizer",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH = 1280
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


@dataclass
class Seen:
    """A page that is open, and what it did: nothing of this may ever be there."""

    page: Any
    problems: list[str] = field(default_factory=list)  # errors and messages of the console
    requests: list[str] = field(default_factory=list)  # to anywhere but the file itself

    def check_quiet(self) -> None:
        assert self.problems == []
        assert self.requests == []

    def check_accessible(self) -> None:
        """No finding of axe that it calls serious or worse."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
        grave = [
            f"{rule['id']}: {node['html'][:200]}"
            for rule in found
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]
        assert grave == []


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: make test has it")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no browser: install Chromium with `make browser`")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def usual(browser: Any) -> Any:
    """The context of all pages that need no options of their own: a new one takes a second."""
    context = browser.new_context(**_sized(WIDTH))
    context.new_page()  # stays, or each page would have a window to itself, which takes as long
    return context


def _sized(width: int) -> dict[str, Any]:
    return {"viewport": {"width": width, "height": 900}}


@pytest.fixture
def visit(browser: Any, usual: Any) -> Iterator[Callable[..., Seen]]:
    """Opens a file as a page, once it is drawn; options are those of a browser's context."""
    pages, contexts = [], []

    def open_page(path: Path, width: int = WIDTH, **options: Any) -> Seen:
        context = usual
        if width != WIDTH or options:
            context = browser.new_context(**_sized(width), **options)
            contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        pages.append(page)
        seen = Seen(page)
        page.on("console", lambda message: seen.problems.append(message.text))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        own = path.resolve().as_uri()
        page.on(
            "request",
            lambda request: (
                None
                if request.url == own or request.url.startswith(("data:", "blob:"))
                else seen.requests.append(request.url)
            ),
        )
        page.goto(own)
        page.wait_for_selector("html[data-ready]", state="attached")
        return seen

    yield open_page
    for page in pages:
        page.evaluate("localStorage.clear()")  # the next test's page is that of a new reader
        page.close()
    for context in contexts:
        context.close()
