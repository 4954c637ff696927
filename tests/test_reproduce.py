"""`sads reproduce`: refusals, a small run, and verdicts that can go either way."""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sads.cli import main
from sads.experiments import figure2, figure6, figure7, figure8
from sads.experiments.figure import SCALES, note_cells
from sads.experiments.figures import FIGURES
from sads.experiments.page import format_value, table_lines
from sads.experiments.rotations import SETTINGS as ROTATION_SETTINGS
from sads.experiments.store import Record


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
    assert list(FIGURES) == [f"fig{n}" for n in range(1, 10)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fig10"], "unknown figure 'fig10'; choose from fig1"),
        (["fig6", "--scale", "huge"], "unknown scale 'huge'; choose one of smoke, laptop, paper"),
        (["fig6", "--only", "dit-8"], "no panel 'dit-8'; --only takes iddpm-nearest"),
        (["fig8", "--images", "mnist"], "write mnist=FILE"),
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
    store = tmp_path / "newer" / "store"
    store.mkdir(parents=True)
    (store / "sads-store.json").write_text('{"format": "sads-store", "version": 99}')
    assert "newer sads" in refused(reproduce("fig6", "--out", str(tmp_path / "newer")))


@pytest.mark.slow
def test_a_small_run_and_its_repetition(reproduce, tmp_path):
    arguments = ("fig6", "--only", "dit-4", "--workers", "2", "--out", str(tmp_path / "out"))
    first = reproduce(*arguments, "--json")
    assert first.status == 0, first.err
    summary = json.loads(first.out)["figures"]["fig6"]
    assert [row["rank"] for row in summary["table"]] == [0, 127, 255]
    assert summary["claims"][0]["verdict"] == "not tested at this scale"
    assert (tmp_path / "out" / "fig6-dit-4.png").stat().st_size > 10_000
    page = (tmp_path / "out" / "README.md").read_text()
    assert "fig6-dit-4.png" in page
    again = reproduce(*arguments)
    assert again.status == 0
    assert "3 of 3 cells done (3 were there)" in again.err
    assert "MSW2" in again.out


@pytest.mark.slow
def test_panels_of_an_earlier_command_stay(reproduce, tmp_path):
    common = ("--workers", "1", "--out", str(tmp_path))
    assert reproduce("fig2", "--only", "canonical", *common).status == 0
    (tmp_path / "fig9.json").write_text("damaged")
    assert reproduce("fig2", "--only", "haar", *common).status == 0
    summary = json.loads((tmp_path / "fig2.json").read_text())
    assert [row["basis"] for row in summary["table"]] == ["canonical", "haar"]


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


def test_interrupted(reproduce, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sads.commands.reproduce.sweep", interrupt)
    arguments = ("fig7", "--only", "mnist", "--out", str(tmp_path / "a folder"))
    result = reproduce(*arguments)
    assert result.status == 130
    assert "go on with\nsads reproduce fig7 --only mnist --out '" in result.err


class TestPaperScale:
    """Table 1 and Appendix A, to the letter."""

    def test_rank_one(self):
        settings = figure6.SETTINGS["paper"]
        assert settings.seeds == 5
        assert settings.num_networks == 1_000_000
        assert settings.ranks == (0, 31, 63, 95, 127, 159, 191, 223, 255)
        for panel, budget in settings.budgets.items():
            assert budget.iterations == (4000 if panel == "dit-4" else 2000)
            assert (budget.batch_size, budget.learning_rate) == (1000, 1e-4)
            assert (budget.num_data, budget.num_samples) == (10_000, 10_000)
            assert (budget.steps, budget.sampler) == (1000, "ddpm")
            assert budget.projections_per_dimension == 64

    def test_bases_have_all_256_elements(self):
        settings = figure2.SETTINGS["paper"]
        assert settings.family.shape == (1, 16, 16)
        context = SimpleNamespace(
            scale="paper", panels=lambda names: list(names), seeds=lambda n: range(n)
        )
        assert len(figure2.all_cells(context)) == 5 * 5 * 256

    @pytest.mark.parametrize(
        ("panel", "shape", "iterations"),
        [
            ("mnist", (1, 28, 28), 100_000),
            ("faces", (1, 56, 56), 100_000),
            ("cifar10", (3, 32, 32), 200_000),
        ],
    )
    def test_images(self, panel, shape, iterations):
        settings = ROTATION_SETTINGS["paper"][panel]
        budget = settings.budget
        assert settings.family.shape == shape
        assert (budget.iterations, budget.batch_size, budget.learning_rate) == (
            iterations, 500, 1e-3,
        )  # fmt: skip

    def test_every_scale_is_there(self):
        for settings in (figure2.SETTINGS, figure6.SETTINGS, ROTATION_SETTINGS):
            assert tuple(settings) == SCALES


def record(alpha, sw2):
    evaluations = [{"iterations": k, "sw2": v, "msw2": 2 * v} for k, v in sw2.items()]
    return Record(None, evaluations, [], {"alpha": alpha}, 0.0, {}, {})


class TestFigure8:
    """On made-up records whose answer is known."""

    KINDS = ("min", "random:0", "identity", "max")

    def done(self, sign):
        """SW2 rises (sign 1) or falls (-1) with alpha, at all of five seeds."""
        alphas = dict(zip(self.KINDS, (1.0, 2.0, 4.0, 8.0), strict=True))
        noise = np.random.default_rng(0).normal(scale=0.01, size=5)
        return {
            (seed, kind): record(
                alpha,
                {100: 10 + sign * alpha + noise[seed], 400: 5 + sign * alpha / 2 + noise[seed]},
            )
            for seed in range(5)
            for kind, alpha in alphas.items()
        }

    def verdicts(self, sign):
        claims = figure8.judge_panel("made up", self.done(sign), range(5), self.KINDS)
        return [claim.verdict for claim in claims]

    def test_supported_where_it_holds(self):
        assert self.verdicts(1) == ["supported"] * 6 + ["not supported"]

    def test_not_supported_where_the_opposite_holds(self):
        assert self.verdicts(-1) == ["not supported"] * 7

    @pytest.mark.parametrize(("spread", "verdict"), [(0.05, "supported"), (0.5, "not supported")])
    def test_alike_is_more_than_no_difference_found(self, spread, verdict):
        largest = 1 + spread * np.linspace(-1, 1, 5)
        assert figure8.judge_alike("made up", largest, np.ones(5)).verdict == verdict

    def test_rows_count_wins(self):
        rows = figure8.panel_rows("made up", self.done(1), range(5), self.KINDS)
        assert [row["rotation"] for row in rows[::2]] == list(self.KINDS)
        assert rows[0]["beats identity"] == "5 of 5"
        assert rows[-1]["beats identity"] == "0 of 5"

    def test_a_seed_whose_samples_are_not_finite_decides_nothing(self):
        done = self.done(1)
        done[0, "min"] = record(1.0, {100: 11.0, 400: 5.5})
        done[0, "min"].evaluations[-1].update(sw2=None, msw2=None)
        claims = figure8.judge_panel("made up", done, range(5), self.KINDS)
        assert [c.verdict for c in claims[3:6]] == ["not tested at this scale"] * 3
        rows = figure8.panel_rows("made up", done, range(5), self.KINDS)
        assert math.isnan(rows[1]["SW2"])
        assert figure8.practical_numbers("made up", done, range(5), self.KINDS)

    def test_the_control_s_share_of_the_gain(self):
        """Identity less random is 2 of the 3 that the minimising rotation gains."""
        notes = figure8.practical_numbers("made up", self.done(1), range(5), self.KINDS)
        assert "a random rotation gives 0.67" in notes[1]

    def test_updates_to_reach(self):
        reach = figure8.updates_to_reach
        assert reach(1.0, [100, 400], [2.0, 0.5]) == pytest.approx(200)  # half-way in logarithms
        assert reach(3.0, [100, 400], [2.0, 0.5]) == 100
        assert reach(0.1, [100, 400], [2.0, 0.5]) is None


class TestFigure7:
    def test_no_digit_at_all_is_no_share_of_ones(self):
        """All of the samples of one seed are blank: nobody can say which digits they are."""
        records = {kind: [record(1.0, {400: 5.0}) for _ in range(5)] for kind in ("min", "max")}
        records["identity"] = records["max"]
        for kind, blank in (("min", 0.1), ("max", 0.9)):
            for seed, one in enumerate(records[kind]):
                ones = 0.5 + 0.01 * seed if kind == "max" or seed else None
                one.evaluations[-1].update(without_digit=blank, share_of_ones=ones)
        verdicts = [claim.verdict for claim in figure7._judge_digits("made up", records)]
        assert verdicts == ["supported", "not tested at this scale"]


class TestFigure2:
    def test_claims_follow_the_numbers(self):
        shape = (1, 8, 8)
        values, energies = {}, {}
        for name in ("canonical", "dct"):
            parts = figure2.groups(name, shape)
            hard = parts["low"] if name == "dct" else parts["inside"]
            values[name] = np.where(hard, 5.0, 1.0) + np.linspace(0, 0.1, 64)
            energies[name] = values[name] ** 2
        claims = {c.text: c.verdict for c in figure2.judge_bases(values, energies, shape)}
        assert claims["dct: low frequencies are modelled worse"] == "supported"
        assert claims["canonical: the border is modelled better"] == "supported"
        assert claims["vectors localised in space are modelled better"] == "not supported"
        reverse = {k: -v for k, v in values.items()}
        claims = {c.text: c.verdict for c in figure2.judge_bases(reverse, energies, shape)}
        claims.pop("vectors localised in space are modelled better")
        assert set(claims.values()) == {"not supported"}


def test_notes_name_what_is_missing():
    records = [record(1.0, {400: 5.0}) for _ in range(3)]
    for one, share in zip(records, (1.0, 0.5, 0.0), strict=True):
        one.evaluations[-1]["finite_share"] = share
    missing, broken = note_cells(records, 4, "digits")
    assert missing == "digits: 3 of 4 cells are finished"
    assert broken.startswith("digits: in 2 of 3 cells some samples are not finite")
    assert note_cells(records[:1], 1) == []


def test_tables_show_errors_beside_values():
    assert format_value(1.23456, 0.0123) == "1.235 ± 0.012"
    assert format_value(1.23456, math.nan) == "1.235"
    assert format_value(None) == ""
    lines = table_lines([{"a": 1.0, "a error": 0.5}, {"b": "x"}])
    assert lines == ["| a | b |", "|---|---|", "| 1 ± 0.5 |  |", "|  | x |"]


def test_a_cell_names_its_family():
    spec = figure6.PANELS["iddpm-area"]
    assert str(spec) == "iddpm (area) 1x16x16"
    assert str(replace(spec, options=())) == "iddpm 1x16x16"
