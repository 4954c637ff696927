"""Pictures of the reports for the documentation, at the widths of a desk and of a phone.

    python examples/report_screenshots.py docs/images

Makes the results that it shows with the commands below, in out/screenshots, unless they are there.
Needs Chromium (`make browser`) and Playwright (of the extra dev).
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

RESULTS = Path("out/screenshots")
COMMANDS = (
    "geometry iddpm --shape 1x16x16 --networks 2048 --out {0}/iddpm",
    "geometry iddpm --shape 1x16x16 -o resample=area --networks 2048 --out {0}/area",
    "geometry dit --shape 1x16x16 -o patch_size=4 --out {0}/dit-4",
    "align digits --family iddpm --shape 1x8x8 --networks 2048 --out {0}/digits",
    "train mlp digits --shape 1x8x8 --prediction v --iterations 3000 --batch-size 250 "
    "--learning-rate 1e-3 --out {0}/run",
    "sample {0}/run --samples 600 --steps 100",
    "evaluate {0}/run digits --anatomy --networks 512",
)
PAGES = {
    "geometry": "{0}/iddpm",
    "comparison": "{0}/iddpm {0}/area {0}/dit-4",
    "alignment": "{0}/digits",
    "training": "{0}/run",
    "paper": "results/laptop",
}
WIDTHS = {"": 1280, "-phone": 390}
LONGEST = {"": 1700, "-phone": 1500}  # pixels of a page that are shown


def main(folder: Path) -> None:
    if not RESULTS.exists():
        for line in COMMANDS:
            run(line)
    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, sources in PAGES.items():
            path = RESULTS / f"{name}.html"
            path.unlink(missing_ok=True)
            run(f"report {sources} --out {path}")
            for suffix, width in WIDTHS.items():
                page = browser.new_page(viewport={"width": width, "height": 900})
                photograph(page, path, folder / f"report-{name}{suffix}.png", LONGEST[suffix])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
        photograph(page, RESULTS / "geometry.html", folder / "report-geometry-dark.png", 900)
        browser.close()


def run(line: str) -> None:
    arguments = shlex.split(line.format(RESULTS))
    subprocess.run([sys.executable, "-m", "sads.cli", *arguments], check=True)


def photograph(page: Page, path: Path, picture: Path, longest: int) -> None:
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    if path.stem == "geometry":
        page.locator(".search input").fill("40")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    page.screenshot(path=picture, full_page=True)
    page.close()
    with Image.open(picture) as whole:
        shown = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, longest)))
    shown.quantize(160).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
