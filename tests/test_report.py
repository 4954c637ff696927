"""Reports: what is in the file, and what a browser makes of it."""

import base64
import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import sads
from browsing import Seen
from commands import Sads
from pictures import leave_empty
from sads.adapters.presets import Preset
from sads.atlas.entry import describe, save
from sads.cli.main import main
from sads.cli.report import add_report
from sads.data.bases import Basis
from sads.errors import ReportError
from sads.estimates import Estimate
from sads.report import page as page_module
from sads.report.build import make_sections, write_report
from sads.report.geometry import shown_ranks
from sads.report.page import make_page
from sads.report.sources import GeometrySource
from sads.theory.predictions import predict

Visit = Callable[..., Seen]
LAPTOP = Path(__file__).parents[1] / "results" / "laptop"
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u202egnp.exe\u200f&amp;"
)


@pytest.fixture(scope="module")
def geometry() -> sads.Geometry:
    return sads.estimate_geometry(sads.family("iddpm", shape=(1, 8, 8)), num_networks=512)


@pytest.fixture(scope="module")
def dit() -> sads.Geometry:
    return sads.estimate_geometry(sads.family("dit", shape=(1, 8, 8), patch_size=2))


@pytest.fixture(scope="module")
def color() -> sads.Geometry:
    family = sads.family("cnn", shape=(3, 8, 8), channels=8)
    return sads.estimate_geometry(family, num_networks=64)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, geometry: sads.Geometry) -> Path:
    """What `sads align`, `train`, `sample` and `evaluate` write, each asked for its report."""
    folder = tmp_path_factory.mktemp("results")
    geometry.save(folder / "g.safetensors")
    lines = [
        "align digits --geometry g.safetensors --rotation share:0.5 --out align --report",
        "train mlp digits --shape 1x8x8 --iterations 250 --batch-size 50 --out run --report",
        "rank digits --families cnn --networks 16 --predictors alpha --out rank",
        "sample run --samples 90 --steps 4",
        "evaluate run digits --projections 64 --anatomy --networks 32 --report",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(Figure, "savefig", leave_empty)
        for line in lines:
            patch.setattr(sys, "argv", ["sads", *line.split()])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
    return folder


@pytest.fixture(scope="module")
def ends() -> sads.Geometry:
    """A geometry without a matrix."""
    family = sads.family("cnn", shape=(3, 8, 8), channels=8)
    return sads.estimate_geometry(family, num_networks=64, matrix_free=True)


@pytest.fixture(scope="module")
def atlas(
    tmp_path_factory: pytest.TempPathFactory, color: sads.Geometry, dit: sads.Geometry
) -> Path:
    """A folder as `sads atlas` writes it, of small networks."""
    folder = tmp_path_factory.mktemp("atlas")
    for name, geometry in {"one": color, "two": dit}.items():
        preset = Preset(name, f"{name} {HOSTILE}", "U-Net", geometry.shape, "M", {}, {}, "S", 64)
        save(*describe(preset, geometry, 10**6, "sads atlas"), folder)
    return folder


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory,
    geometry: sads.Geometry,
    dit: sads.Geometry,
    color: sads.Geometry,
    results: Path,
    ends: sads.Geometry,
    atlas: Path,
) -> dict[str, Path]:
    """A report of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    paper = folder / "laptop"
    shutil.copytree(LAPTOP, paper)
    records = (paper / "records.jsonl").read_text().splitlines(keepends=True)
    (paper / "records.jsonl").write_text("".join(records[:40]))
    made: dict[str, list[Any]] = {
        "geometry": [geometry],
        "color": [color],
        "comparison": [geometry, dit],
        "alignment": [results / "align"],
        "training": [results / "run"],
        "paper": [paper],
        "ranking": [results / "rank"],
        "ends": [ends, color],
        "atlas": [atlas],
    }
    return {name: write_report(of, folder / f"{name}.html") for name, of in made.items()}


def _pixels(page: Any, selector: str) -> np.ndarray:
    """The colours of a canvas, (height, width, 3)."""
    address = page.evaluate("(name) => document.querySelector(name).toDataURL()", selector)
    file = io.BytesIO(base64.b64decode(address.partition(",")[2]))
    return np.array(Image.open(file).convert("RGB")).astype(int)


def _terms(page: Any) -> dict[str, str]:
    names = page.locator("[data-terms] dt").all_inner_texts()
    return dict(zip(names, page.locator("[data-terms] dd").all_inner_texts(), strict=True))


def _check_direction(page: Any, geometry: sads.Geometry, index: int) -> None:
    """The page shows the picture and the numbers of this direction."""
    sad = geometry.directions()
    vector = sad.vectors[index]
    expected = (0.5 + vector[0] / vector.abs().max() / 2).numpy() * 255
    assert np.abs(_pixels(page, "[data-vector]")[..., 0] - expected).max() <= 0.51
    energy = np.fft.fftshift(np.abs(np.fft.fft2(vector[0].numpy())) ** 2)
    brightest = np.unravel_index(energy.argmax(), energy.shape)
    shown = _pixels(page, "[data-fourier]").sum(axis=2)
    assert shown[brightest] == shown.max()
    terms = _terms(page)
    assert terms["rank"] == f"{index + 1} of {geometry.dimension}"
    assert terms["eigenvalue"] == str(sad.eigenvalue(index))
    low, high = int(sad.rank_low[index]) + 1, int(sad.rank_high[index]) + 1
    assert terms["order"] == ("sure" if low == high else f"may be rank {low} to {high}")
    cluster = sad.cluster_of(index)
    if cluster is None:
        assert terms["certificate"].startswith("resolved")
        assert terms["angle error"].startswith(f"{sad.angle_errors[index]:.2g} rad")
    else:
        assert f"one of {len(cluster)} " in terms["certificate"]
        assert f"ranks {cluster.start + 1} to {cluster.stop}:" in terms["certificate"]


def test_stepping_by_mouse_keys_slider_and_search(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    seen = visit(pages["geometry"])
    page = seen.page
    _check_direction(page, geometry, 0)
    slider = page.locator(".spectra input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    _check_direction(page, geometry, 2)
    page.keyboard.press("End")
    _check_direction(page, geometry, 63)
    page.locator(".search input").fill("17")
    page.keyboard.press("Enter")
    _check_direction(page, geometry, 16)
    page.locator("[data-step='1']").click()
    _check_direction(page, geometry, 17)
    chart = page.locator("#s1-spectrum svg").bounding_box()
    across = chart["x"] + 60 + (chart["width"] - 76) * 39.5 / 64
    page.mouse.move(across, chart["y"] + 100)  # to point at rank 40 shows it
    _check_direction(page, geometry, 39)
    page.mouse.move(chart["x"] + 100, chart["y"] + chart["height"] + 300)  # and no longer
    _check_direction(page, geometry, 17)
    page.mouse.click(across, chart["y"] + 100)
    page.mouse.move(0, 0)
    _check_direction(page, geometry, 39)
    page.keyboard.press("ArrowLeft")  # the keys go on from where the mouse was
    _check_direction(page, geometry, 38)
    seen.check_quiet()


def test_touch_and_a_narrow_screen(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    seen = visit(pages["geometry"], width=390, has_touch=True, is_mobile=True)
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#s1-spectrum svg").scroll_into_view_if_needed()
    chart = page.locator("#s1-spectrum svg").bounding_box()
    across = chart["x"] + 60 + (chart["width"] - 76) * 11.5 / 64
    page.touchscreen.tap(across, chart["y"] + 100)
    _check_direction(page, geometry, 11)
    seen.check_quiet()


def test_the_spectrum_is_drawn_where_the_numbers_say(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    seen = visit(pages["geometry"])
    read = """() => {
      const svg = document.querySelector("#s1-spectrum svg");
      const path = svg.querySelector("g[fill=none][stroke='var(--blue)'] path").getAttribute("d");
      const points = path.slice(1).split("L").map((pair) => pair.split(",").map(Number));
      const [x, y] = [svg.scale("x"), svg.scale("y")];
      return points.map(([a, b]) => [x.invert(a), y.invert(b)]);
    }"""
    values = geometry.directions().values.numpy()
    for tick in (True, False):  # logarithmic, and not
        seen.page.locator("[data-log]").set_checked(tick)
        ranks, drawn = np.array(seen.page.evaluate(read)).T
        np.testing.assert_allclose(ranks, np.arange(1, 65), atol=1e-2)
        np.testing.assert_allclose(drawn, values, rtol=1e-3, atol=0 if tick else 1e-2)
    seen.check_quiet()


def test_a_cluster_is_shown_as_a_subspace(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    cluster = next(c for c in geometry.directions().clusters if len(c) > 2)
    seen = visit(pages["geometry"])
    page = seen.page
    page.locator(".search input").fill(str(cluster.start + 1))
    page.keyboard.press("Enter")
    members = geometry.directions().vectors[cluster.start : cluster.stop, 0]
    where = members.square().sum(dim=0).numpy()
    shown = _pixels(page, "[data-where]").sum(axis=2)
    assert shown[np.unravel_index(where.argmax(), where.shape)] == shown.max()
    page.locator("[data-turn]").fill("90")  # from the first member to the second
    np.testing.assert_allclose(
        _pixels(page, "[data-plane]")[..., 0],
        (0.5 + members[1] / members[1].abs().max() / 2).numpy() * 255,
        atol=0.51,
    )
    seen.check_quiet()


def test_colours_and_channels(visit: Visit, pages: dict[str, Path], color: sads.Geometry) -> None:
    seen = visit(pages["color"])
    page = seen.page
    vectors = color.directions().vectors
    for index in (0, 1, 2, 100):
        page.locator(".search input").fill(str(index + 1))
        page.keyboard.press("Enter")
        vector = vectors[index]
        whole = ((0.5 + vector / vector.abs().max() / 2) * 255).permute(1, 2, 0).numpy()
        page.locator("[data-channel]").select_option("all")
        np.testing.assert_allclose(_pixels(page, "[data-vector]"), whole, atol=0.6)
        page.locator("[data-channel]").select_option("1")
        shown = _pixels(page, "[data-vector]")[..., 0]
        np.testing.assert_allclose(shown, whole[..., 1], atol=0.6)
    seen.check_quiet()


def test_pointing_at_the_maps_of_bases(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    seen = visit(pages["geometry"])
    page = seen.page
    found = predict(geometry)
    for name, prediction in found.items():
        map_ = page.locator(f"#s1-{name} > canvas")
        map_.scroll_into_view_if_needed()
        map_.focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        index = int(prediction.basis.layout(np.arange(64))[1, 2])
        text = page.locator(f"#s1-{name} output").inner_text()
        assert str(prediction.basis.index[index]) in text
        assert str(prediction.energies[index]) in text
    seen.check_quiet()


def test_numbers_can_be_saved(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry
) -> None:
    seen = visit(pages["geometry"])
    with seen.page.expect_download() as waiting:
        seen.page.locator("#s1-spectrum [data-csv]").click()
    head, *rows = Path(waiting.value.path()).read_text().splitlines()
    assert head.startswith("rank,eigenvalue,eigenvalue error,angle error,resolved")
    written = np.array([row.split(",")[1:3] for row in rows], dtype=float)
    sad = geometry.directions()
    np.testing.assert_array_equal(written[:, 0], sad.values)
    np.testing.assert_array_equal(written[:, 1], sad.value_errors)
    seen.check_quiet()


def test_themes(visit: Visit, pages: dict[str, Path]) -> None:
    seen = visit(pages["geometry"], color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(background)
    assert light == "rgb(255, 255, 255)"
    seen.page.locator("#theme").select_option("dark")
    dark = seen.page.evaluate(background)
    assert dark != light
    seen.check_accessible()  # contrast in the dark
    seen.page.locator("#theme").select_option("auto")
    assert seen.page.evaluate(background) == light
    seen.page.emulate_media(color_scheme="dark")
    assert seen.page.evaluate(background) == dark
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate(background) == light
    seen.check_quiet()


@pytest.mark.parametrize(
    "kind",
    [
        "geometry",
        "color",
        "comparison",
        "alignment",
        "training",
        "ranking",
        "paper",
        "ends",
        "atlas",
    ],
)
def test_every_page_is_quiet_accessible_and_fits(
    visit: Visit, pages: dict[str, Path], kind: str
) -> None:
    seen = visit(pages[kind])
    seen.check_accessible()
    for width in (1280, 390):
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    shown = (
        "[...document.querySelectorAll('main > section')].map((s) => getComputedStyle(s).display)"
    )
    assert set(seen.page.evaluate(shown)) == {"block"}, "parts stand below each other"
    seen.check_quiet()


def test_hostile_names_stay_text(
    visit: Visit, geometry: sads.Geometry, dit: sads.Geometry, tmp_path: Path
) -> None:
    family = {**geometry.provenance.family, "name": HOSTILE, "options": {HOSTILE: HOSTILE}}
    provenance = replace(geometry.provenance, family=family, notes=(HOSTILE,), readout=HOSTILE)
    bad = replace(geometry, provenance=provenance)
    sections = make_sections([GeometrySource(bad, f"sads {HOSTILE}"), GeometrySource(dit)])
    page = make_page(HOSTILE, sections)
    assert "\u202e" not in page
    assert "\u200f" not in page
    path = tmp_path / "hostile.html"
    path.write_text(page)
    seen = visit(path)
    assert seen.page.title().startswith("</script><script>alert(1)")
    assert seen.page.locator("img").count() == 0
    assert seen.page.locator("#s1-command").inner_text().startswith("sads </script><script>")
    seen.check_quiet()


def test_a_foreign_script_would_not_run(
    visit: Visit, pages: dict[str, Path], tmp_path: Path
) -> None:
    """The policy, not our escaping, is what is tried here."""
    path = tmp_path / "injected.html"
    body = "<script>document.title='run'</script><img src='https://example.org/x.png'></body>"
    path.write_text(pages["geometry"].read_text().replace("</body>", body))
    seen = visit(path)
    assert seen.page.title() != "run"
    assert len(seen.problems) == 2
    assert all("Content Security Policy" in problem for problem in seen.problems)


def test_comparison_numbers(
    visit: Visit, pages: dict[str, Path], geometry: sads.Geometry, dit: sads.Geometry
) -> None:
    seen = visit(pages["comparison"])
    content = json.loads(seen.page.locator("#data").text_content())
    compared = next(part for part in content if part["kind"] == "comparison")
    pair = compared["pairs"][0]
    assert pair["sizes"] == [4, 8, 12, 20]  # the eigenvalues of a DiT have four copies
    for k, said in zip(pair["sizes"], pair["ends"]["avoided"], strict=True):
        ours, theirs = (g.directions().avoided(k).reshape(k, -1).numpy() for g in (geometry, dit))
        projectors = [rows.T @ rows for rows in (ours, theirs)]
        assert said["shared"] == pytest.approx(np.trace(projectors[0] @ projectors[1]) / k)
    assert {end["shared"] for end in pair["ends"]["preferred"]} == {None}  # 36 of which are zero
    assert "No angles of the most preferred" in seen.page.locator("#comparison").inner_text()
    cosines = np.abs(
        geometry.directions().vectors.flatten(1) @ dit.directions().vectors.flatten(1).T
    )
    assert pair["matches"]["cosines"] == pytest.approx(cosines.max(dim=1).values.tolist())
    slider = seen.page.locator(".matched input")
    slider.fill("9")
    match = int(cosines[9].argmax())
    assert f"rank {match + 1}" in seen.page.locator("[data-two-text]").inner_text()
    seen.check_quiet()


def test_a_geometry_without_a_matrix(
    visit: Visit, pages: dict[str, Path], ends: sads.Geometry
) -> None:
    seen = visit(pages["ends"])
    page = seen.page
    end = ends.end("preferred", 6)
    captions = page.locator("[data-side=preferred] figcaption").all_inner_texts()
    assert len(captions) == len(end)
    assert f"λ ≤ {end.bounds[0]}" in captions[0]
    vector = end.vectors[0][end.vectors[0].flatten(1).norm(dim=1).argmax()]
    expected = (0.5 + vector / vector.abs().max() / 2).numpy() * 255
    shown = _pixels(page, "[data-side=preferred] canvas")[..., 0]
    assert np.abs(shown - expected).max() <= 2
    assert "kept without a matrix" in page.locator("#comparison").inner_text()
    for name in ("canonical", "dct", "haar"):
        energies = ends.basis_energies(name)
        page.locator(f"#s1-{name} > canvas").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        number = int(Basis(name, (1, 8, 8)).layout(np.arange(64))[0, 0])
        mean = float(energies.values.reshape(3, 64)[:, number].mean())
        text = page.locator(f"#s1-{name} output").inner_text()
        assert text.startswith(f"({number // 8}, {number % 8}): {mean:.4g} ±")
    seen.check_quiet()


def test_the_atlas(visit: Visit, pages: dict[str, Path], atlas: Path) -> None:
    seen = visit(pages["atlas"])
    page = seen.page
    said = json.loads((atlas / "one.json").read_text())
    titles = page.locator("article h3").all_inner_texts()
    assert len(titles) == 2
    assert titles[0].startswith("one </script>")
    assert page.locator("[data-entry='0'] [data-side=avoided] canvas").count() == 4
    avoided = np.load(atlas / "one.npz")["avoided"][0]
    shown = _pixels(page, "[data-entry='0'] [data-side=avoided] canvas")[..., 0]
    assert np.abs(shown - (0.5 + avoided / np.abs(avoided).max() / 2) * 255).max() <= 2
    drawn = page.locator("#s1-spectrum svg").get_attribute("aria-label")
    assert "Spectra of one" in drawn
    mean = said["trace"] / np.prod(said["shape"])
    largest = Estimate(said["largest"]["value"] / mean, said["largest"]["error"] / mean)
    assert str(largest) in page.locator("section table").first.inner_text()
    seen.check_quiet()


def test_alignment_numbers(visit: Visit, pages: dict[str, Path], results: Path) -> None:
    seen = visit(pages["alignment"])
    page = seen.page
    said = json.loads((results / "align/alignment.json").read_text())
    facts = page.locator(".overview").inner_text()
    assert str(Estimate(**said["alignment"]["alpha"])) in facts
    label = page.locator("#s1-alpha svg").get_attribute("aria-label")
    assert f"minimum {Estimate(**said['alignment']['minimum'])}" in label
    shares = page.locator("#s1-tenths svg").get_attribute("aria-label")
    assert f"tenth 1: {100 * said['tenths'][0]['value']:.3g}%" in shares
    x = sads.load_images("digits")
    found = sads.pair(sads.load_geometry(results / "g.safetensors"), x)
    rows = page.locator("figure.row")
    assert rows.count() == 4  # as they are, min, max, and the one that was asked for
    for number, kind in enumerate(("identity", "min", "max", "share:0.5")):
        value = float(found.rotation(kind).apply(x[:1])[0, 0, 3, 4])
        canvas = page.locator(f"[data-row='{number}']")
        canvas.focus()
        for key in ["ArrowRight"] * 4 + ["ArrowDown"] * 3:
            page.keyboard.press(key)
        text = rows.nth(number).locator("output").inner_text()
        assert text.startswith("sample 1, (3, 4): ")
        shown = float(text.split(": ")[1])  # four digits are off by 5e-4 of the number at most
        assert shown == pytest.approx(value, rel=5e-4, abs=2e-4)
    seen.check_quiet()


def test_candidates_before_training(visit: Visit, pages: dict[str, Path], results: Path) -> None:
    said = json.loads((results / "rank/ranking.json").read_text())["ranking"]
    seen = visit(pages["ranking"])
    page = seen.page
    rows = page.locator("tbody tr:visible")
    assert rows.count() == len(said["candidates"])
    best = min(said["candidates"], key=lambda c: c["facts"]["alpha"]["distance"])
    page.get_by_role("button", name="alpha", exact=True).click()
    assert f"{best['facts']['alpha']['distance']:.4g}" in rows.first.inner_text()
    page.locator("[data-rows]").fill("max")
    assert rows.count() == sum(c["rotation"] == "max" for c in said["candidates"])
    for statement in said["statements"]:
        assert statement in page.locator("main").inner_text()
    seen.check_quiet()


def test_training_numbers(visit: Visit, pages: dict[str, Path], results: Path) -> None:
    seen = visit(pages["training"])
    page = seen.page
    run = results / "run"
    with page.expect_download() as waiting:
        page.locator("#s1-loss [data-csv]").click()
    rows = Path(waiting.value.path()).read_text().splitlines()[1:]
    losses = np.array([float(row.split(",")[1]) for row in rows])
    np.testing.assert_allclose(losses, sads.load_model(run / "model.safetensors").losses, rtol=1e-6)
    said = json.loads((run / "evaluate.json").read_text())["evaluation"]
    label = page.locator("#s1-sw2 svg").get_attribute("aria-label")
    assert f"samples {Estimate(**said['distance']['sw2'])}" in label
    assert f"zeros {Estimate(**said['baselines']['zeros']['sw2'])}" in label
    loss = Estimate(**said["denoising"]["loss"])
    assert str(loss) in page.locator("#s1-levels svg").get_attribute("aria-label")
    assert page.locator(".posters img").count() == 1
    samples = np.load(run / "samples.npz")["images"]
    canvas = page.locator("[data-samples]")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 9 * 8 + 8 * 2 + 3, "y": 8 * 5 + 3})  # 8 screen pixels a pixel
    text = page.locator("figure.row output").inner_text()
    assert text.startswith("sample 2, (5, 2): ")
    assert float(text.split(": ")[1]) == pytest.approx(float(samples[1, 0, 5, 2]), rel=2e-3)
    seen.check_quiet()


def test_reports_that_were_asked_for(results: Path) -> None:
    for name in ("align/report.html", "run/report.html", "run/evaluation.html"):
        assert "<!doctype html>" in (results / name).read_text()[:20]
    assert "-sw2" in (results / "run/evaluation.html").read_text()
    files = json.loads((results / "align/alignment.json").read_text())["files"]
    assert files["report"] == "align/report.html"
    with pytest.raises(sads.SadsError, match="--directions is about geometries with a matrix"):
        write_report(results / "align", results / "few.html", max_directions=9)


def test_an_unfinished_run(visit: Visit, results: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(results / "run/checkpoint.safetensors", run)
    said = json.loads((results / "run/run.json").read_text())
    unfinished = {**said, "status": "interrupted", "loss": None, "seconds": None}
    (run / "run.json").write_text(json.dumps(unfinished))
    seen = visit(write_report(run, tmp_path / "r.html"))
    assert "This run is interrupted" in seen.page.locator("main").inner_text()
    assert seen.page.locator("#s1-loss svg").count() == 1
    assert seen.page.locator("[data-samples]").count() == 0
    seen.check_quiet()


def test_claims_are_filtered_and_sorted(visit: Visit, pages: dict[str, Path]) -> None:
    seen = visit(pages["paper"])
    page = seen.page
    figures = [
        content
        for path in LAPTOP.glob("*.json")
        if "claims" in (content := json.loads(path.read_text()))
    ]
    claims = [(f["figure"], claim) for f in figures for claim in f["claims"]]
    rows = page.locator("table.claims tbody tr:visible")
    assert rows.count() == len(claims)
    words = page.locator("table.claims td .verdict").all_inner_texts()
    assert sorted(words) == sorted(claim["verdict"] for _, claim in claims)
    page.locator("select[data-figure]").select_option("fig6")
    assert rows.count() == sum(figure == "fig6" for figure, _ in claims)
    page.locator("[data-find]").fill("dit-4 EIGENVALUE")
    found = [claim for figure, claim in claims if figure == "fig6" and "dit-4" in claim["text"]]
    assert 0 < len(found) < len(claims)
    assert rows.count() == len(found)
    assert page.locator("[data-count]").inner_text() == f"{len(found)} of {len(claims)} claims"
    page.locator("input[data-verdict][value='not tested']").uncheck()
    assert rows.count() == sum(claim["verdict"] != "not tested" for claim in found)
    assert page.locator(".posters img").count() == sum(len(f["pictures"]) for f in figures)
    broken = "[...document.images].filter((image) => !image.naturalWidth).length"
    assert page.evaluate(broken) == 0
    table = page.locator("details[open]", has_text="Table of fig6").locator("table.sortable")
    head = table.locator("th", has_text="MSW2").first
    column = table.locator("th").all_inner_texts().index(head.inner_text())
    for order in ("ascending", "descending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        shown = [
            float(t.split()[0])
            for t in table.locator(f"td:nth-child({column + 1})").all_inner_texts()
            if t
        ]
        assert shown == sorted(shown, reverse=order == "descending")
    seen.check_quiet()


def test_tables_are_saved_as_numbers(visit: Visit, pages: dict[str, Path]) -> None:
    """In full, errors in columns of their own, as the files of the figures have them."""
    page = visit(pages["paper"]).page
    with page.expect_download() as waiting:
        page.locator("[data-table-csv='fig6-table']").click()
    rows = list(csv.DictReader(waiting.value.path().read_text().splitlines()))
    said = json.loads((LAPTOP / "fig6.json").read_text())
    shown = dict(said["columns"])
    assert len(rows) == len(said["table"])
    for row, known in zip(rows, said["table"], strict=True):
        for name, title in shown.items():
            value = known.get(name)
            if isinstance(value, dict):
                assert float(row[title]) == value["value"]
                assert row[f"{title} error"] == "" or value["error"] is not None
                assert float(row[f"{title} error"] or 0) == (value["error"] or 0)
            elif isinstance(value, float):
                assert float(row[title]) == value


def test_the_cells_behind_a_figure(visit: Visit, tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    shutil.copytree(LAPTOP, folder)
    lines = (folder / "records.jsonl").read_text().splitlines()[:20]
    (folder / "records.jsonl").write_text("\n".join(lines))
    hashes = [json.loads(line)["hash"] for line in lines[:7]]
    said = json.loads((folder / "fig6.json").read_text())
    (folder / "fig6.json").write_text(json.dumps({**said, "cells": hashes}))
    seen = visit(write_report(folder, tmp_path / "r.html"))
    section = seen.page.locator("details", has_text="The 7 cells behind fig6")
    section.locator("summary").click()
    shown = section.locator("tbody tr td:last-child").all_inner_texts()
    assert sorted(shown) == sorted(hashes)
    section.locator("[data-rows]").fill(hashes[3])
    assert section.locator("tbody tr:visible").count() == 1
    seen.check_quiet()


def test_a_hostile_folder_of_figures(visit: Visit, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "")
    folder.mkdir()
    said = json.loads((LAPTOP / "fig6.json").read_text())
    claim = {**said["claims"][0], "text": HOSTILE, "evidence": HOSTILE, "reason": HOSTILE}
    said |= {"claims": [claim], "title": HOSTILE, "command": HOSTILE, "notes": [HOSTILE]}
    said |= {"pictures": {HOSTILE: "fig6-dit-4.png"}, "columns": {"a": HOSTILE}}
    said |= {"table": [{"a": HOSTILE}]}
    (folder / "fig6.json").write_text(json.dumps(said))
    shutil.copy(LAPTOP / "fig6-dit-4.png", folder)
    seen = visit(write_report(folder, tmp_path / "r.html"))
    assert seen.page.locator("main img").count() == 1
    assert seen.page.locator("main script").count() == 0
    assert "</script>" in seen.page.locator("table.claims").inner_text()
    seen.check_quiet()


@pytest.mark.parametrize(
    ("file", "change", "line"),
    [
        ("align/alignment.json", lambda text: text[:100], "alignment.json cannot be read"),
        ("align/alignment.json", lambda text: "[]", "alignment.json cannot be read"),
        ("align/alignment.safetensors", lambda text: text[:500], "alignment.safetensors cannot be"),
        ("run/run.json", lambda text: text.replace('"status"', '"s"'), "lacks the key 'status'"),
        ("run/samples.json", lambda text: text.replace("8", "9"), "samples.npz cannot be read"),
        ("run/model.safetensors", lambda text: text[:9999], "model.safetensors cannot be read"),
        ("run/evaluate.json", lambda text: text.replace("sw2", "x"), "evaluate.json cannot be"),
    ],
)
def test_damaged_results_are_one_line(
    command: Sads, results: Path, tmp_path: Path, file: str, change: Any, line: str
) -> None:
    shutil.copytree(results, tmp_path / "copy")
    path = tmp_path / "copy" / file
    if path.suffix == ".json":
        path.write_text(change(path.read_text()))
    else:
        path.write_bytes(change(path.read_bytes()))
    assert line in command.fail("report", path.parent)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"pictures": {"a": "../secret.png"}}, "is not a picture in"),
        ({"pictures": {"a": "nowhere.png"}}, "cannot be read"),
        ({"pictures": {"a": "fig6.json"}}, "is not a picture that"),
        ({"claims": 3}, "fig6.json is damaged"),
    ],
)
def test_damaged_figures_are_one_line(
    command: Sads, tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    said = json.loads((LAPTOP / "fig6.json").read_text())
    (tmp_path / "f").mkdir()
    (tmp_path / "f/fig6.json").write_text(json.dumps({**said, **change}))
    assert line in command.fail("report", "f")


def test_the_page_is_small_and_complete(pages: dict[str, Path], geometry: sads.Geometry) -> None:
    text = pages["geometry"].read_text()
    assert len(text) < 1_000_000
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:|//)""", text)
    assert "unsafe" not in text[:3000]  # of the policy


def test_256_directions_are_under_5_mb_and_drawn_at_once(visit: Visit, tmp_path: Path) -> None:
    made = sads.estimate_geometry(sads.family("dit", shape=(1, 16, 16)))
    path = write_report(made, tmp_path / "r.html")
    assert path.stat().st_size < 5_000_000
    seen = visit(path)
    assert seen.page.locator("#s1-spectrum svg").is_visible()
    seen.check_quiet()


def test_many_directions(visit: Visit, tmp_path: Path) -> None:
    """Thousands of directions: those that are kept have pictures, all have numbers."""
    made = sads.estimate_geometry(sads.family("dit", shape=(3, 40, 40), patch_size=2))
    path = write_report(made, tmp_path / "r.html", max_directions=60)
    seen = visit(path)
    page = seen.page
    page.locator(".search input").fill("4800")
    page.keyboard.press("Enter")
    page.locator("[data-channel]").select_option("0")
    vector = made.directions().select([4799])[0]
    expected = (0.5 + vector[0] / vector.abs().max() / 2).numpy() * 255
    assert np.abs(_pixels(page, "[data-vector]")[..., 0] - expected).max() <= 2  # of 8 bits
    page.locator(".search input").fill("1000")
    page.keyboard.press("Enter")
    assert "not in this report" in _terms(page)["picture"]
    seen.check_quiet()


def test_shown_ranks() -> None:
    assert shown_ranks(5, None) == [0, 1, 2, 3, 4]
    for count, most in ((100, 9), (1000, 3), (10, 9), (64, 63)):
        ranks = shown_ranks(count, most)
        assert ranks == sorted(set(ranks))
        assert len(ranks) <= most
        assert {0, count - 1} <= set(ranks)


class TestCommand:
    def test_geometry_and_its_report(self, command: Sads, tmp_path: Path) -> None:
        out = command.succeed("geometry", "dit", "--shape", "1x8x8", "--out", "g", "--report")
        assert "wrote g/report.html" in out
        text = (tmp_path / "g/report.html").read_text()
        assert "sads geometry dit --shape 1x8x8 --out g --report" in text
        out = command.succeed("report", "g", "--out", "r.html", "--title", "Mine", "--json")
        assert json.loads(out)["size"] == (tmp_path / "r.html").stat().st_size
        assert "<title>Mine</title>" in (tmp_path / "r.html").read_text()

    def test_refusals(self, command: Sads, tmp_path: Path, dit: sads.Geometry) -> None:
        dit.save(tmp_path / "g.safetensors")
        assert "there is no" in command.fail("report", "nowhere")
        (tmp_path / "empty").mkdir()
        assert "holds no result of sads" in command.fail("report", "empty")
        (tmp_path / "text.txt").write_text("hello")
        assert "cannot be read as a result of sads" in command.fail("report", "text.txt")
        whole = (tmp_path / "g.safetensors").read_bytes()
        (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
        assert "cannot be read as a result of sads" in command.fail("report", "cut.safetensors")
        (tmp_path / "report.html").write_text("mine")
        assert "nothing is overwritten" in command.fail("report", "g.safetensors")
        assert (tmp_path / "report.html").read_text() == "mine"

    def test_a_page_that_is_too_large(
        self,
        command: Sads,
        tmp_path: Path,
        dit: sads.Geometry,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        dit.save(tmp_path / "g.safetensors")
        monkeypatch.setattr(page_module, "LARGEST", 100_000)
        text = command.fail("report", "g.safetensors")
        assert "--directions" in text
        assert not (tmp_path / "report.html").exists()


def test_the_old_page_stays_if_there_is_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sads.estimate_geometry(sads.family("dit", (1, 4, 4))).save(tmp_path / "geometry.safetensors")
    old = add_report(tmp_path, quiet=True).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(page_module, "LARGEST", 1000)
        with pytest.raises(ReportError, match="the report would have"):
            add_report(tmp_path, quiet=True)
    assert (tmp_path / "report.html").read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "geometry.safetensors").unlink()
    sads.estimate_geometry(sads.family("dit", (1, 8, 8))).save(tmp_path / "geometry.safetensors")
    assert add_report(tmp_path, quiet=True).read_bytes() != old


def test_a_geometry_without_a_matrix_has_a_report_that_was_asked_for(
    command: Sads, tmp_path: Path
) -> None:
    options = ("--shape", "1x4x4", "--networks", 16, "--matrix-free", "--report", "--json")
    said = json.loads(command.succeed("geometry", "cnn", *options))
    assert (tmp_path / said["files"]["report"]).is_file()


def test_misuse_in_python(tmp_path: Path, dit: sads.Geometry) -> None:
    with pytest.raises(ReportError, match="at least one"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(sads.SadsError, match="at least 3"):
        write_report(dit, tmp_path / "r.html", max_directions=2)


def test_numbers_read_as_python_writes_them(visit: Visit, pages: dict[str, Path]) -> None:
    seen = visit(pages["geometry"])
    numbers = [(133.2, 0.35), (0.0983, 0.00096), (1e-9, 1e-11), (12345.6, 12.0), (2.0, 0.0)]
    for value, error in [*numbers, (1.5, np.inf)]:
        given = [value, None if np.isinf(error) else error]
        shown = seen.page.evaluate("([value, error]) => sads.estimate(value, error)", given)
        assert shown == str(Estimate(value, error))
