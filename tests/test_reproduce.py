"""`sads reproduce`: refusals, a small run, and verdicts that can go either way."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Picture

from sads.cli.main import main
from sads.data.bases import BASES, basis
from sads.diffusion.anatomy import DenoisingError
from sads.errors import OutputError
from sads.estimates import Estimate
from sads.experiments.archive import Archive
from sads.experiments.drawing import commands_of, refuse_to_lose, to_draw, write_outcome
from sads.experiments.figures import (
    all_figures,
    fig1,
    fig2,
    fig6,
    fig7,
    fig8,
    practice,
    rotated_images,
)
from sads.experiments.figures.figure import SCALES, Context, Figure, Outcome, note_cells
from sads.experiments.figures.practice import arms
from sads.experiments.page import Summary, describe_claim, write_page
from sads.experiments.preregistration import find_registered
from sads.experiments.records import Facts, Record
from sads.experiments.reproduction import Request
from sads.experiments.spec import COMMON, PAPER, FamilySpec
from sads.experiments.store import Store
from sads.experiments.verdict import Claim, correct
from sads.metrics.baselines import Baselines, Distance
from sads.pipeline import DigitShares, Evaluation

FIGURES = all_figures()


@pytest.fixture
def reproduce(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sads", "reproduce", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return SimpleNamespace(status=exit_.value.code, out=captured.out, err=captured.err)

    return run


def refused(result):
    """The one line of a refusal."""
    assert result.status == 2, result.err
    assert result.err.startswith("error: ")
    assert len(result.err.strip().splitlines()) == 1
    return result.err


def test_all_nine_figures_are_there():
    """And what the paper has no figure for comes after them."""
    assert list(FIGURES)[:9] == [f"fig{n}" for n in range(1, 10)]
    assert "practice" in FIGURES


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fig10"], "unknown figure 'fig10'; choose from fig1"),
        (["fig6", "--scale", "huge"], "unknown scale 'huge'; choose one of smoke, laptop, paper"),
        (["fig6", "--only", "dit-8"], "no panel 'dit-8'; --only takes iddpm-nearest"),
        (["fig8", "--images", "mnist"], "write mnist=FILE"),
        (["fig8", "--images", "foo=bar"], "no images 'foo'; --images takes digits, mnist"),
        (["fig8", "--images", "mnist=a", "--images", "mnist=b"], "says twice where mnist is"),
        (["fig6", "--images", "mnist=x"], "no images 'mnist'; --images takes nothing here"),
        (["fig6", "--seeds", "0"], "at least 1 seed"),
        (["fig6", "--ray", "auto", "--cpus", "0"], "more than 0 CPUs"),
        (["fig6", "--only", "[/b]"], "no panel '[/b]'"),
        (["fig7", "--only", "mnist", "--images", "mnist=no.npz"], "no.npz"),
        (["fig6", "--ray", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["fig6", "--out", "nosuch://place"], "fsspec"),
    ],
)
def test_refusals(reproduce, arguments, says, tmp_path):
    if "--out" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "out")]
    assert says in refused(reproduce(*arguments))


def test_refuses_folders_of_others(reproduce, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    assert "holds no store of sads" in refused(reproduce("fig6", "--out", str(tmp_path)))
    (tmp_path / "new" / "store").mkdir(parents=True)  # another process makes it at this moment
    for name in (".sads-lock", ".sads-tmp-1"):
        (tmp_path / "new" / name).touch()
    Request((), out=str(tmp_path / "new")).open_store()
    store = tmp_path / "newer" / "store"
    store.mkdir(parents=True)
    (store / "sads-store.json").write_text('{"format": "sads-store", "version": 99}')
    assert "newer sads" in refused(reproduce("fig6", "--out", str(tmp_path / "newer")))


@pytest.mark.slow
def test_a_small_run_and_its_repetition(reproduce, tmp_path, monkeypatch):
    panel = fig6.PANELS["smoke"]["dit-4"]
    column = replace(panel.column, options=(*panel.column.options, ("depth", 1)))  # of 8 blocks
    monkeypatch.setitem(fig6.PANELS["smoke"], "dit-4", replace(panel, column=column))
    arguments = ("fig6", "--only", "dit-4", "--workers", "2", "--out", str(tmp_path / "out"))
    first = reproduce(*arguments, "--json")
    assert first.status == 0, first.err
    summary = json.loads(first.out)["figures"]["fig6"]
    assert [row["rank"] for row in summary["table"]] == [0, 127, 255]
    assert summary["claims"][0]["verdict"] == "not tested"
    assert summary["claims"][0]["reason"] == "a smoke test trains next to nothing"
    assert summary["table"][0]["zeros"] > summary["table"][0]["real"] > 0
    assert (tmp_path / "out" / "fig6-dit-4.png").stat().st_size > 10_000
    page = (tmp_path / "out" / "README.md").read_text()
    assert "fig6-dit-4.png" in page
    again = reproduce(*arguments)
    assert again.status == 0
    drawn_again = json.loads((tmp_path / "out" / "fig6.json").read_text())
    assert drawn_again["table"] == summary["table"], "to the last digit"
    assert "3 of 3 cells done (3 were there)" in again.err
    assert "MSW2" in again.out


@pytest.mark.slow
def test_panels_of_an_earlier_command_stay(reproduce, tmp_path, monkeypatch):
    fewer = replace(fig2.COLUMNS["smoke"], shape=(1, 2, 2))  # 4 cells a basis, not 16
    monkeypatch.setitem(fig2.COLUMNS, "smoke", fewer)
    common = ("--workers", "1", "--out", str(tmp_path))
    assert reproduce("fig2", "--only", "canonical", *common).status == 0
    assert reproduce("fig2", "--only", "haar", *common).status == 0
    summary = json.loads((tmp_path / "fig2.json").read_text())
    assert [row["basis"] for row in summary["table"]] == ["canonical", "haar"]


def summary(name, **fields):
    """A figure that was made before, of no cells and no claims."""
    empty = Summary(name, name, "laptop", (), "sads reproduce then", (), {}, (), (), {})
    return replace(empty, **fields)


class TestAFolderThatWasMadeBefore:
    """What does not go with what is there is said at once: nothing has been computed."""

    @pytest.fixture
    def refuse(self, reproduce, tmp_path, monkeypatch):
        def compute(*arguments, **options):
            pytest.fail("something was computed")

        for name in ("sweep", "prepare_geometry"):
            monkeypatch.setattr(f"sads.experiments.reproduction.{name}", compute)
        (tmp_path / "records.jsonl").touch()  # so that the folder is ours

        def run(*arguments):
            return refused(reproduce(*arguments, "--out", str(tmp_path)))

        return run

    def test_at_another_scale(self, refuse, tmp_path):
        summary("fig8").save(tmp_path)
        line = refuse("fig6", "--scale", "smoke")
        assert "fig8.json is of --scale laptop, not smoke" in line
        assert line.endswith("give --scale laptop or another --out\n")
        assert not (tmp_path / "store").exists()

    @pytest.mark.parametrize("content", ["damaged", "{}", '{"figure": "fig8"}', "[" * 99])
    def test_with_a_figure_that_is_damaged(self, refuse, tmp_path, content):
        (tmp_path / "practice.json").write_text(content)
        assert "practice.json is damaged or not ours" in refuse("fig6")
        assert (tmp_path / "practice.json").read_text() == content

    def test_with_a_figure_of_more_seeds_than_anybody_trains(self, refuse, tmp_path):
        content = json.loads(summary("fig7").save(tmp_path).read_text())
        content["num_seeds"] = {"digits": 10**9}
        (tmp_path / "fig7.json").write_text(json.dumps(content))
        assert "num_seeds must lie between 1 and 1,024" in refuse("fig7", "--scale", "laptop")

    def test_with_a_figure_under_another_s_name(self, refuse, tmp_path):
        summary("fig8", scale="smoke").save(tmp_path).rename(tmp_path / "fig7.json")
        assert "fig7.json is damaged or not ours (it is of 'fig8')" in refuse("fig6")

    def test_with_pages_of_somebody_else(self, refuse, tmp_path):
        for name in ("README.md", "figures.md"):
            (tmp_path / name).write_text("mine")
        assert "is ours to write; move one of them away" in refuse("fig6")

    @pytest.mark.parametrize("names", [("README.md", "figures.md"), (".sads-lock",)])
    def test_with_pipes_that_would_hang(self, tmp_path, names):
        for name in names:
            os.mkfifo(tmp_path / name)
        with pytest.raises(OutputError, match=r"move (it|one of them) away"):
            write_page(tmp_path, [])

    def test_images_are_read_before_the_first_figure(self, refuse, tmp_path):
        (tmp_path / "mnist.npz").write_text("junk")
        images = f"mnist={tmp_path / 'mnist.npz'}"
        assert "mnist.npz" in refuse("fig6", "fig7", "--only", "dit-4,mnist", "--images", images)

    def test_other_images_are_refused_before_the_first_figure(self, refuse, tmp_path):
        """Those of the cells that a later figure shows."""
        store = Store(tmp_path / "store")
        cells = FIGURES["fig7"].cells(Context("smoke", store, "torch", only=("digits",)))
        for cell in cells:
            made = replace(record(1.0, {10: 1.0, 20: 1.0}), cell=cell, losses=(1.0,))
            folder = store.new_folder(cell)
            if cell.keep_samples:
                np.savez(folder / "samples.npz", images=np.zeros((1, 1, 8, 8)))
            store.put(made, folder)
        shown = tuple(cell.hash for cell in cells)
        summary("fig7", scale="smoke", panels=("digits",), cells=shown).save(tmp_path)
        np.savez(tmp_path / "other.npz", images=np.random.default_rng(0).random((150, 1, 8, 8)))
        images = f"digits={tmp_path / 'other.npz'}"
        line = refuse("fig6", "fig7", "--only", "dit-4,digits", "--images", images)
        assert "fig7.json shows 3 cells that would be left out (digits)" in line

    @pytest.mark.parametrize(("name", "least"), [("mnist", 150), ("faces", 3)])
    def test_images_must_be_enough(self, refuse, tmp_path, name, least):
        np.savez(tmp_path / "few.npz", images=np.random.default_rng(0).random((2, 1, 14, 14)))
        line = refuse("fig7", "--only", name, "--images", f"{name}={tmp_path / 'few.npz'}")
        assert f"--images {name} has 2 images; give at least {least}, of which a third" in line


class TestDrawnAgain:
    """With fewer panels, seeds or images than before: what is there stays."""

    @pytest.fixture
    def context(self, tmp_path):
        return Context("smoke", Store(tmp_path / "store"), "torch")

    @pytest.mark.parametrize(
        ("only", "earlier", "expected"),
        [
            ((), (), list(fig6.TABLE1)),
            (("dit-4",), (), ["dit-4"]),
            (("dit-4",), ("dit-2",), ["dit-2", "dit-4"]),
            ((), (fig6.ENDS,), [*fig6.TABLE1, fig6.ENDS]),  # made on request, once
        ],
    )
    def test_panels(self, context, only, earlier, expected):
        drawn = to_draw(FIGURES["fig6"], replace(context, only=only), summary("f", panels=earlier))
        assert fig6.chosen_panels(drawn) == expected

    @pytest.mark.parametrize(
        ("asked", "earlier", "expected"),
        [(2, None, 5), (2, 8, 8), (None, 8, 8), (8, None, 8), (None, None, 5)],
    )
    def test_seeds(self, context, asked, earlier, expected):
        """As many as were asked for are computed, but all that are finished are drawn.

        Of these panels: others, which were made before, have seeds of their own.
        """
        asking = replace(context, num_seeds=asked, only=("dit-4",))
        assert len(asking.seeds(5, "dit-4")) == (asked or 5)
        known = None if earlier is None else {"dit-4": earlier}
        made = summary("fig6", panels=("dit-2", "dit-4"), num_seeds=known)
        drawn = to_draw(FIGURES["fig6"], asking, made)
        assert len(drawn.seeds(5, "dit-4")) == expected
        assert len(drawn.seeds(5, "dit-2")) == 5

    def test_images_that_are_given_no_more(self, context, tmp_path):
        """Finished cells are drawn without them, unless nobody knows of which images they are."""
        name, shape = "mnist", (1, 14, 14)
        images = tmp_path / "mnist.npz"
        np.savez(images, images=np.random.default_rng(0).random((150, *shape[1:])))
        given = replace(context, sources={name: str(images)}, only=(name,))
        cells = FIGURES["fig7"].cells(given)
        records = {cell.hash: replace(record(1.0, {20: 1.0}), cell=cell) for cell in cells}
        earlier = summary("fig7", scale="smoke", panels=("digits", name), cells=tuple(records))
        earlier.save(tmp_path)
        asking = replace(context, only=("digits",))
        refuse_to_lose(FIGURES["fig7"], asking, tmp_path)  # nobody has these cells any more
        context.store.archive = Archive(tmp_path, records)
        refuse_to_lose(FIGURES["fig7"], asking, tmp_path)
        drawn = to_draw(FIGURES["fig7"], asking, earlier)
        assert {cell.hash for cell in FIGURES["fig7"].cells(drawn)} > set(records)
        other = replace(cells[0], data_sha256="others")
        records[other.hash] = replace(record(1.0, {20: 1.0}), cell=other)
        with pytest.raises(OutputError, match=r"shows 3 cells that would be left out .mnist"):
            refuse_to_lose(FIGURES["fig7"], asking, tmp_path)

    def test_commands(self):
        """Whoever makes it anew needs them all, unless the last one asked for everything."""
        cells = [SimpleNamespace(twin_hash=name) for name in "ab"]
        done = [replace(record(1.0, {20: 1.0}), cell=cell) for cell in cells]
        earlier = summary("fig7", command="first\nsecond")
        assert commands_of(None, "second", {"b"}, done) == "second"
        assert commands_of(earlier, "third", {"b"}, done) == "first\nsecond\nthird"
        assert commands_of(earlier, "first", {"b"}, done) == "first\nsecond"
        assert commands_of(earlier, "third", {"a", "b"}, done) == "third"

    def test_a_picture_that_cannot_be_written_changes_nothing(self, context, tmp_path):
        """The summary goes with the pictures that are there."""

        def draw(fails):
            def fail(path):
                raise OSError(28, "No space left on device")

            pictures = {
                "one": Picture(),
                "two": SimpleNamespace(savefig=fail) if fails else Picture(),
            }
            return Outcome(pictures, [], [], ["later" if fails else "first"])

        figure = Figure("ours", "An answer", draw)
        write_outcome(figure, draw(False), tmp_path, context, "first")
        before = {path.name: path.read_bytes() for path in tmp_path.glob("ours*")}
        assert set(before) == {"ours.json", "ours-one.png", "ours-two.png"}
        with pytest.raises(OutputError, match="No space left"):
            write_outcome(figure, draw(True), tmp_path, context, "later")
        assert {path.name: path.read_bytes() for path in tmp_path.glob("ours*")} == before
        assert not list(tmp_path.glob(".sads*"))
        fewer = Outcome({"one": Picture()}, [], [])
        with pytest.raises(OutputError, match=r"ours would lose ours-two\.png, for which cells of"):
            write_outcome(figure, fewer, tmp_path, context, "later")
        assert {path.name: path.read_bytes() for path in tmp_path.glob("ours*")} == before


def test_images_that_are_not_given_are_named(reproduce, tmp_path):
    result = reproduce("fig7", "--only", "mnist", "--json", "--out", str(tmp_path / "out"))
    assert result.status == 0, result.err
    notes = json.loads(result.out)["figures"]["fig7"]["notes"]
    assert notes == ["mnist: not run, its images are not known; give --images mnist=SOURCE"]


def test_figures_without_a_chosen_panel_are_left_alone(reproduce, tmp_path):
    """Their earlier results would be overwritten with nothing."""
    out = tmp_path / "out"
    result = reproduce("fig2", "fig7", "--only", "mnist", "--json", "--out", str(out))
    assert list(json.loads(result.out)["figures"]) == ["fig7"]
    assert not (out / "fig2.json").exists()


def test_what_is_made_is_on_the_page_before_the_next_figure(reproduce, tmp_path, monkeypatch):
    """Its words are those of the page, too, when the next figure takes hours and is stopped."""

    def stop(context):
        raise KeyboardInterrupt

    tested = {"p_for": 0.04, "p_against": 0.96, "smallest_p": 0.004}
    claim = Claim("first", "", unit="seeds", num_units=8, **tested)
    made = Figure("made", "An answer", lambda context: Outcome({}, [], [claim, claim]))
    ours = {"made": made, "stopped": Figure("stopped", "No answer", stop)}
    monkeypatch.setattr("sads.experiments.figures._registered", ours)
    assert reproduce("made", "stopped", "--out", str(tmp_path / "out")).status == 130
    assert "| made | first" in (tmp_path / "out" / "README.md").read_text()
    found = Summary.load(tmp_path / "out", "made")
    assert [claim.verdict for claim in found.claims] == ["inconclusive"] * 2


def test_interrupted(reproduce, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sads.experiments.reproduction.sweep", interrupt)
    arguments = ("fig7", "--only", "mnist", "--out", str(tmp_path / "a folder"))
    result = reproduce(*arguments)
    assert result.status == 130
    assert "continue with: sads reproduce fig7 --only mnist --out '" in result.err
    assert result.err.count("\n") == 1


class TestPaperScale:
    """Table 1 and Appendix A, to the letter."""

    def test_rank_one(self):
        ranks = fig6.PANELS["paper"]["iddpm-nearest"].ranks
        assert ranks == (0, 31, 63, 95, 127, 159, 191, 223, 255)
        for panel, column in fig6.TABLE1.items():
            assert (column.num_seeds, column.num_networks) == (5, 1_000_000)
            assert column.training.iterations == (4000 if panel == "dit-4" else 2000)
            assert (column.training.batch_size, column.training.learning_rate) == (1000, 1e-4)
            assert (column.num_data, column.sampling.num_samples) == (10_000, 10_000)
            assert (column.sampling.steps, column.sampling.sampler) == (1000, "ddpm")
            assert column.sampling.projections_per_dimension == 64

    def test_the_ends_of_the_spectrum_are_made_on_request(self, tmp_path):
        """At the paper's full training, with fewer steps of the sampler; nobody waits by chance."""
        for scale in ("laptop", "paper"):
            column = fig6.PANELS[scale][fig6.ENDS].column
            assert column.training == fig6.TABLE1["iddpm-nearest"].training
            assert (column.sampling.num_samples, column.sampling.steps) == (10_000, 100)
        context = Context("smoke", Store(tmp_path / "store"), "torch")
        assert fig6.ENDS not in fig6.chosen_panels(context)
        asked = replace(context, only=(fig6.ENDS,))
        assert fig6.chosen_panels(asked) == [fig6.ENDS]
        assert [rank for _, rank in fig6.panel_cells(asked, fig6.ENDS)] == [0, 255]

    @pytest.mark.parametrize(
        ("figure", "panel"),
        [(fig1, "spheres"), (fig2, "dct"), (fig6, "dit-4")],
        ids=["fig1", "fig2", "fig6"],
    )
    def test_common_practice_trains_on_the_same_data(self, figure, panel, tmp_path):
        context = Context("smoke", Store(tmp_path / "store"), "torch")
        assert {cell.practice for cell in figure.cells(context)} == {PAPER}
        common = figure.cells(replace(context, only=(f"{panel}-common",)))
        paper = figure.cells(replace(context, only=(panel,)))
        assert {cell.practice for cell in common} == {COMMON}
        assert [replace(cell, practice=PAPER) for cell in common] == paper

    def test_bases_have_all_256_elements(self):
        assert fig2.COLUMNS["paper"].shape == (1, 16, 16)
        context = SimpleNamespace(
            scale="paper",
            layers="torch",
            panels=lambda names, on_request: [n for n in names if n not in on_request],
            seeds=lambda n, panel: range(n),
        )
        assert len(fig2.cells(context)) == 5 * 5 * 256

    @pytest.mark.parametrize(
        ("panel", "shape", "iterations"),
        [
            ("mnist", (1, 28, 28), 100_000),
            ("faces", (1, 56, 56), 100_000),
            ("cifar10", (3, 32, 32), 200_000),
        ],
    )
    def test_images(self, panel, shape, iterations):
        column = rotated_images.PANELS["paper"][panel].column
        training = column.training
        assert column.shape == shape
        assert (training.iterations, training.batch_size) == (iterations, 500)
        assert training.learning_rate == 1e-3

    def test_every_scale_is_there(self):
        for settings in (fig2.COLUMNS, fig6.PANELS, rotated_images.PANELS):
            assert tuple(settings) == SCALES


def evaluation(sw2, finite_share=1.0, digits=None, constant=100.0):
    """A model that is trained, unless the best constant is better."""

    def at(value):
        return Distance(Estimate(value, 0.01), 2 * value, 64)

    return Evaluation(
        finite_share=finite_share,
        distance=None if sw2 is None else at(sw2),
        digits=digits,
        baselines=Baselines(
            zeros=at(constant + 1),
            mean=at(constant),
            gaussian=at(2.0),
            real=at(1.0),
            moments_of="training data",
        ),
    )


def record(alpha, sw2, rotation="identity", **options):
    """A made-up record with SW2 by number of updates."""
    return Record(
        cell=SimpleNamespace(evaluations=tuple(sw2), layers="torch", rotation=rotation),
        evaluations=tuple(evaluation(v, **options) for v in sw2.values()),
        losses=(),
        facts=Facts(alpha=Estimate(alpha, 0.0)),
        seconds=0.0,
        versions={},
    )


class TestFigure8:
    """On made-up records whose answer is known."""

    KINDS = ("min", "random:0", "identity", "max")

    def done(self, sign, **options):
        """SW2 rises (sign 1) or falls (-1) with alpha, at all of five seeds."""
        alphas = dict(zip(self.KINDS, (1.0, 2.0, 4.0, 8.0), strict=True))
        noise = np.random.default_rng(0).normal(scale=0.01, size=5)
        return {
            (seed, kind): record(
                alpha,
                {100: 10 + sign * alpha + noise[seed], 400: 5 + sign * alpha / 2 + noise[seed]},
                kind,
                **options,
            )
            for seed in range(5)
            for kind, alpha in alphas.items()
        }

    def curves(self, done):
        return fig8.Curves.of("made up", done, range(5), self.KINDS)

    def verdicts(self, sign):
        claims = fig8.judge_curves(self.curves(self.done(sign)))
        return [claim.verdict for claim in claims]

    def test_supported_where_it_holds(self):
        """Alone on a page; a single random rotation says nothing about random rotations."""
        assert self.verdicts(1) == ["supported", "not tested", "supported", "inconclusive"]

    def test_contradicted_where_the_opposite_holds(self):
        opposite = ["contradicted", "not tested", "contradicted", "inconclusive"]
        assert self.verdicts(-1) == opposite

    def test_five_seeds_are_too_few_beside_other_claims(self):
        claims = correct(fig8.judge_curves(self.curves(self.done(1))))
        assert {claim.verdict for claim in claims} == {"not tested"}
        assert "5 seeds can give a p-value of 0.031 at best" in claims[0].reason

    def test_checkpoints_are_evidence_and_not_claims(self):
        claims = fig8.judge_curves(self.curves(self.done(1)))
        assert len(claims) == 4
        assert "earlier 3" in claims[0].evidence
        assert "after 100" in claims[0].evidence

    def test_nothing_rests_on_models_that_are_not_trained(self):
        """The best constant is as good as the worst of them."""
        curves = self.curves(self.done(1, constant=8.0))
        claims = fig8.judge_curves(curves)
        assert claims[0].verdict == "supported"  # min and identity are at 5.5 and 7
        assert [c.verdict for c in claims[2:]] == ["not tested"] * 2
        assert claims[2].gate.startswith("5 of 20 models are not trained (their SW2 is 1.1 times")
        rows = fig8.stages(curves)
        assert rows[-1].state == "5 not trained"
        assert rows[0].state == "5 not trained"  # after 100 updates
        assert rows[1].state == "5 trained"
        far = fig8.judge_curves(self.curves(self.done(1, constant=2.0)))
        assert {c.verdict for c in far} == {"not tested"}
        assert "20 of 20 models have diverged" in far[2].gate

    def test_a_random_rotation_of_each_seed_is_a_unit(self):
        done = self.done(1)
        for seed in range(5):
            cell = SimpleNamespace(**vars(done[seed, "random:0"].cell))
            cell.rotation = f"random:{seed}"
            done[seed, "random:0"] = replace(done[seed, "random:0"], cell=cell)
        claim = fig8.judge_curves(self.curves(done))[1]
        assert (claim.verdict, claim.units) == ("supported", "5 random rotations")

    @pytest.mark.parametrize(("spread", "verdict"), [(0.05, "supported"), (0.5, "inconclusive")])
    def test_alike_is_more_than_no_difference_found(self, spread, verdict):
        largest = 1 + spread * np.linspace(-1, 1, 5)
        assert fig8.judge_alike("made up", largest, np.ones(5)).verdict == verdict

    def test_rows_count_wins(self):
        rows = fig8.stages(self.curves(self.done(1)))
        assert [row.rotation for row in rows[::2]] == list(self.KINDS)
        assert rows[0].beats_identity == "5 of 5"
        assert rows[-1].beats_identity == "0 of 5"

    def test_a_seed_whose_samples_are_not_finite_decides_nothing(self):
        done = self.done(1)
        done[0, "min"] = record(1.0, {100: 11.0, 400: None})
        curves = self.curves(done)
        claims = fig8.judge_curves(curves)
        assert [c.verdict for c in claims[:3]] == ["not tested"] * 3
        assert math.isnan(fig8.stages(curves)[1].sw2)
        assert fig8.stages(curves)[1].state == "1 diverged, 4 trained"
        (note,) = fig8.practical_numbers(curves)  # of the checkpoint at which all are trained
        assert "100 updates" in note

    def test_the_control_s_share_of_the_gain(self):
        """Identity less random is 2 of the 3 that the minimising rotation gains."""
        notes = fig8.practical_numbers(self.curves(self.done(1)))
        assert "a random rotation gives 0.6666" in notes[1]

    def test_updates_to_reach(self):
        reach = fig8.updates_to_reach
        assert reach(1.0, [100, 400], [2.0, 0.5]) == pytest.approx(200)  # half-way in logarithms
        assert reach(3.0, [100, 400], [2.0, 0.5]) == 100
        assert reach(0.1, [100, 400], [2.0, 0.5]) is None


class TestPractice:
    """On made-up records whose answer is known: v-prediction and no rotation are best."""

    SW2: ClassVar = {"paper": 0.4, "common": 0.2, "skip": 0.1}
    ROTATIONS: ClassVar = {"identity": 8.0, "min": 1.0, "random": 2.0, "max": 9.0}

    def done(self, seeds=8, constant=100.0):
        noise = np.random.default_rng(1).normal(scale=0.001, size=seeds)
        practices = zip(self.SW2.values(), arms.TESTED.values(), strict=True)
        found = {}
        for sw2, way in practices:
            for kind, alpha in self.ROTATIONS.items():
                for seed in range(seeds):
                    worse = {"identity": 0.0, "min": 0.03, "random": 0.02, "max": 0.01}[kind]
                    made = record(
                        alpha,
                        {400: sw2 + worse + noise[seed]},
                        arms.rotation_of(kind, seed),
                        constant=constant,
                    )
                    wrong = DenoisingError(
                        loss=Estimate(0.1 + worse, 0.01),
                        along=Estimate(0.1, 0.01),
                        off=Estimate(worse, 0.01),
                        linear=0.12,
                        num_along=1,
                        levels=(500,),
                        level_losses=(0.1,),
                    )
                    (last,) = made.evaluations
                    found[way, kind, seed] = replace(
                        made, evaluations=(replace(last, denoising=wrong),)
                    )
        return found

    def judge(self, done, missing=()):
        return practice.judge_practices("digits", done, [*done, *missing])

    def test_a_claim_waits_for_all_that_it_compares(self):
        """And for nothing else: the paper's way may be finished, and common practice not."""
        done = self.done()
        missing = [(COMMON, kind, seed) for kind in self.ROTATIONS for seed in range(8, 10)]
        claims = self.judge(done, missing)
        waiting = [c for c in claims if "common practice" in c.text and "without" not in c.text]
        assert [c.reason for c in waiting] == [
            *["16 of its 20 cells finished"] * 2,
            *["32 of its 40 cells finished"] * 2,
        ]
        assert {c.verdict for c in waiting} == {"not tested"}
        before = {c.text: c for c in self.judge(done)}
        assert all(c == before[c.text] for c in claims if c not in waiting)

    def test_every_claim_is_registered(self):
        claims = self.judge(self.done())
        assert len(claims) == 3 * 4 + 2
        for claim in claims:
            assert "found later" not in describe_claim("practice", claim)

    def test_claims_follow_the_numbers(self):
        words = {c.text: c.verdict for c in self.judge(self.done())}
        place = "digits, common practice: "
        assert words[f"{place}the minimising rotation beats the identity"] == "contradicted"
        assert words[f"{place}the minimising rotation beats random rotations"] == "contradicted"
        start = "digits: without a rotation, "
        end = "beats the paper's way behind the minimising rotation"
        assert words[f"{start}common practice {end}"] == "supported"
        assert words[f"{start}Gaussian skip {end}"] == "supported"

    def test_on_one_page_eight_seeds_are_enough_and_five_are_not(self):
        for seeds, expected in ((8, {"supported", "contradicted"}), (5, {"not tested"})):
            claims = correct(self.judge(self.done(seeds)))
            assert {c.verdict for c in claims if "alpha" not in c.text} == expected

    def test_losses_count_whatever_a_sampler_makes_of_them(self):
        claims = self.judge(self.done(constant=0.01))
        closed = {claim.text for claim in claims if claim.gate}
        losses = {claim.text for claim in claims if "denoising loss" in claim.text}
        assert len(losses) == 3
        assert closed == {claim.text for claim in claims} - losses

    def test_a_random_rotation_is_drawn_anew_for_each_seed(self, tmp_path):
        context = Context("laptop", Store(tmp_path / "store"), "torch")
        cells = practice.panel_cells(context, "digits")
        drawn = [c.rotation for (p, kind, _), c in cells.items() if (p, kind) == (PAPER, "random")]
        assert len(drawn) == len(set(drawn)) == 8
        kinds = {kind for way, kind, _ in cells if way == PAPER}
        assert len(kinds) == 8  # rotations, as in Figure 8

    def test_seeds_may_be_fewer_or_more_than_the_scale_has(self, tmp_path):
        context = Context("laptop", Store(tmp_path / "store"), "torch")
        few, many = (replace(context, num_seeds=count) for count in (1, 9))
        for chosen, seeds in ((few, {0}), (many, set(range(9)))):
            assert {seed for *_, seed in practice.panel_cells(chosen, "digits")} == seeds

    def test_a_training_serves_all_ways_of_sampling(self, tmp_path):
        context = Context("laptop", Store(tmp_path / "store"), "torch")
        cells = practice.panel_cells(context, "digits")
        trainings = {cell.training_hash for cell in cells.values()}
        assert (len(cells), len(trainings)) == (444, 154)
        longer = practice.panel_cells(context, arms.LONG).values()
        assert {c.evaluations for c in longer} == {(400, 1_000, 2_000, 4_000)}
        assert len({c.training_hash for c in longer}) == 24
        assert {c.training_hash for c in longer} <= trainings  # the same models, trained on
        brief = practice.panel_cells(context, arms.BRIEF).values()
        assert len(brief) == 3
        assert {cell.hash for cell in brief} <= {cell.hash for cell in cells.values()}

    def test_what_is_not_finished_is_left_out_if_asked(self, reproduce, tmp_path):
        result = reproduce("practice", "--finished", "--only", "digits", "--out", str(tmp_path))
        assert result.status == 0, result.err
        assert "digits: no cell is finished" in result.out
        assert not list((tmp_path / "store" / "weights").iterdir())

    def test_a_small_run(self, reproduce, tmp_path):
        result = reproduce(
            *("practice", "--only", "digits-brief", "--workers", "1", "--out", str(tmp_path))
        )
        assert result.status == 0, result.err
        assert "not tested" in result.out  # by a smoke test
        table = json.loads((tmp_path / "practice.json").read_text())["table"]
        nothing = ["zeros", "the mean", "Gaussian with the data's moments", "real data"]
        assert [row["practice"] for row in table[:4]] == nothing
        assert [row["rotation"] for row in table[4:]] == ["identity", "min", "identity"]
        assert (tmp_path / "practice-digits-brief-samples.png").exists()


class TestFigure7:
    def test_no_digit_at_all_is_no_share_of_ones(self):
        """All of the samples of one seed are blank: nobody can say which digits they are."""

        def one(blank, ones):
            digits = DigitShares(
                without_digit=Estimate(blank, 0.01),
                without_digit_of_real=Estimate(0.01, 0.01),
                classes=(0, 1),
                shares=(1 - ones, ones),
            )
            return record(1.0, {400: 5.0}, digits=digits)

        records = {
            "min": [one(0.1, 0.5 + 0.01 * seed if seed else math.nan) for seed in range(5)],
            "max": [one(0.9, 0.5 + 0.01 * seed) for seed in range(5)],
        }
        records["identity"] = records["max"]
        verdicts = [claim.verdict for claim in fig7.judge_digits("made up", records)]
        assert verdicts == ["supported", "not tested"]


class TestFigure6:
    """Nine directions with eigenvalues 9 to 1, five seeds."""

    DIRECTIONS = SimpleNamespace(values=torch.arange(9.0, 0.0, -1.0), cluster_of=lambda rank: None)

    def judge(self, distance, **options):
        noise = np.random.default_rng(0).normal(size=5)  # of the seed
        done = {
            (seed, rank): record(1.0, {400: distance(rank) + noise[seed]}, **options)
            for seed in range(5)
            for rank in range(9)
        }
        return fig6.judge_panel("made up", done, self.DIRECTIONS)

    def test_directions_are_the_units(self):
        claim = self.judge(lambda rank: 20.0 - rank)
        assert (claim.verdict, claim.units) == ("supported", "9 directions")
        assert claim.p_for == pytest.approx(1 / math.factorial(9))
        assert self.judge(lambda rank: 20.0 + rank).verdict == "contradicted"
        assert self.judge(lambda rank: 20.0 + (rank - 4) ** 2 % 7).verdict == "inconclusive"

    def test_no_claim_is_tested_on_a_part_of_its_cells(self, monkeypatch):
        """The second seed came as far as the sixth direction."""
        chosen = {(seed, rank): (seed, rank) for seed in range(2) for rank in range(9)}
        done = {key: record(1.0, {400: 20.0 - key[1]}) for key in list(chosen)[:15]}
        geometry = SimpleNamespace(data_directions=lambda: self.DIRECTIONS)
        for name in ("plot_panel", "_row"):
            monkeypatch.setattr(fig6, name, lambda *_: None)
        monkeypatch.setattr(fig6, "_note_doubtful", lambda *_: [])
        monkeypatch.setattr(fig6, "panel_cells", lambda *_: chosen)
        context = SimpleNamespace(
            scale="laptop",
            layers="torch",
            panels=lambda *_, **__: ["dit-4"],
            geometry=lambda spec: geometry,
            finished=lambda cells: done,
            tested=list,
        )
        (claim,) = fig6.draw(context).claims
        assert (claim.verdict, claim.reason) == ("not tested", "15 of its 18 cells finished")

    def test_five_seeds_of_an_accident_are_one_accident(self):
        """The first direction is worst in all seeds, the others are as they are."""
        claim = self.judge(lambda rank: 30.0 if rank == 0 else 20.0 + rank % 3)
        assert claim.verdict == "inconclusive"

    def test_diverged_models_rank_nothing(self):
        claim = self.judge(lambda rank: 20.0 - rank, constant=1.0)
        assert claim.verdict == "not tested"
        assert claim.reason.startswith("45 of 45 models have diverged (their SW2 is 16 times")


class TestFigure2:
    def test_claims_follow_the_numbers(self):
        shape = (1, 8, 8)
        values, energies = {}, {}
        for name in ("canonical", "dct"):
            parts = basis(name, shape).groups()
            hard = parts["low"] if name == "dct" else parts["inside"]
            values[name] = np.where(hard, 5.0, 1.0) + np.linspace(0, 0.1, 64)
            energies[name] = values[name] ** 2
        done = fig2.Behind([], {})
        claims = {c.text: c.verdict for c in fig2.judge_bases(values, energies, shape, done)}
        assert claims["dct: low frequencies are modelled worse"] == "supported"
        assert claims["canonical: the border is modelled better"] == "supported"
        assert claims["vectors localised in space are modelled better"] == "contradicted"
        reverse = {k: -v for k, v in values.items()}
        claims = {c.text: c.verdict for c in fig2.judge_bases(reverse, energies, shape, done)}
        local = claims.pop("vectors localised in space are modelled better")
        assert (local, set(claims.values())) == ("supported", {"contradicted"})
        common = fig2.judge_bases(values, energies, shape, done, "common practice, ")
        texts = [*claims, *(claim.text for claim in common)]
        assert all(find_registered("fig2", text) for text in texts)

    def test_claims_rest_on_the_cells_of_their_bases(self):
        """A basis whose models have diverged, or are missing, closes no claim about another."""
        shape = (1, 4, 4)
        values = {name: np.linspace(1.0, 2.0, 16) for name in BASES}
        good, bad = (record(1.0, {400: 5.0}, constant=constant) for constant in (100.0, 1.0))
        done = {(0, name, 0): bad if name == "dst" else good for name in BASES}
        missing = [(1, "dct", 0)]
        claims = fig2.judge_bases(values, values, shape, fig2.Behind([*done, *missing], done))
        reasons = {claim.text.partition(":")[0]: claim.reason for claim in claims}
        diverged = "1 of {} has diverged (their SW2 is 5 times that of the best constant"
        assert reasons.pop("dst").startswith(diverged.format("1 model"))
        assert reasons.pop("dct") == "1 of its 2 cells finished"
        assert reasons.pop("hadamard") == reasons.pop("canonical") == ""
        assert all(reason.startswith(diverged.format("5 models")) for reason in reasons.values())
        assert len(reasons) == 2  # of all bases


def test_notes_name_what_is_missing():
    records = [
        record(1.0, {400: 5.0 if share else None}, finite_share=share) for share in (1.0, 0.5, 0.0)
    ]
    missing, broken = note_cells(records, 4, "torch", "digits")
    assert missing == "digits: 3 of 4 cells are finished"
    assert broken.startswith("digits: in 2 of 3 cells some samples are not finite")
    assert note_cells(records[:1], 1, "torch") == []
    assert note_cells(records[:1], 1, "other") == [
        "cells were computed by different layers: 1 by torch"
    ]


def test_a_cell_names_its_family():
    assert str(FamilySpec.of(fig6.TABLE1["iddpm-area"])) == "iddpm (area) 1x16x16"
    assert str(FamilySpec.of(fig6.TABLE1["dit-4"])) == "dit/4 1x16x16"


@pytest.mark.parametrize("scale", ["laptop"])
def test_committed_records_are_cells_of_the_figures(scale, tmp_path):
    """What is in `results` is found, whatever computed it: nothing of it is computed again."""
    results = Path(__file__).parents[1] / "results" / scale
    store = Store(tmp_path / "store", archive=results)
    context = Context(scale=scale, store=store, layers="another")
    cells = fig2.cells(context)
    assert store.missing(cells) == []
    assert len(store.archive.records) >= 523
