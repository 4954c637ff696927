"""Four words: exact tests against enumeration and SciPy, and how often they are wrong."""

import itertools
import json
import math
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sads.experiments.figures.fig3 import ROUNDING, VISIBLE
from sads.experiments.figures.fig4 import CLOSE, GREATLY
from sads.experiments.figures.fig8 import ALIKE, judge_alike
from sads.experiments.page import Summary, describe_claim, judge_page, write_page
from sads.experiments.preregistration import (
    CLAIMS,
    VERSION_KEY,
    claims_digest,
    claims_versions,
    describe_commit,
    find_registered,
    note_registration,
)
from sads.experiments.verdict import (
    LEVEL,
    Claim,
    Test,
    all_of,
    blocked_correlation_test,
    correct,
    correlation_over_units,
    correlation_test,
    group_test,
    judge,
    sign_flip_test,
    untested,
    until_finished,
    within_test,
)

GENERATOR = np.random.default_rng(0)
BEGINNING = GENERATOR.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers_for_every_test() -> None:
    """Whatever ran before in this process."""
    GENERATOR.bit_generator.state = BEGINNING


class TestTests:
    def test_correlation_is_the_exact_permutation_test(self):
        """Against SciPy's Spearman in every order, one by one."""
        x, rows = np.array([3.0, 1.0, 4.0, 1.5, 9.0]), GENERATOR.normal(size=(3, 5))

        def mean(order):
            return np.mean([stats.spearmanr(x[list(order)], row).statistic for row in rows])

        values = np.array([mean(order) for order in itertools.permutations(range(5))])
        test = correlation_test(x, rows, "rotations")
        assert test.p_for == pytest.approx((values >= values[0] - 1e-9).mean())
        assert test.p_against == pytest.approx((values <= values[0] + 1e-9).mean())
        assert test.smallest_p == pytest.approx((values >= values.max() - 1e-9).mean())
        assert (test.num_units, test.unit) == (5, "rotations")
        assert correlation_over_units(x, rows).value == pytest.approx(values[0])

    def test_ties_are_counted(self):
        """Two units with the same x can be exchanged: the best order is there twice."""
        test = correlation_test([1.0, 1.0, 2.0], [[1.0, 2.0, 3.0]], "directions")
        assert test.p_for == test.smallest_p == pytest.approx(2 / 6)

    def test_a_sample_of_permutations_is_near_scipy_s(self):
        x = GENERATOR.normal(size=30)
        y = 0.4 * x + GENERATOR.normal(size=30)
        expected = stats.spearmanr(x, y, alternative="greater").pvalue
        test = correlation_test(x, y[None], "vectors")
        assert test.p_for == pytest.approx(expected, abs=4 * math.sqrt(expected / 5000))
        assert test.smallest_p == 1 / 5000

    def test_groups_are_wilcoxon_s(self):
        a, b = GENERATOR.normal(size=4) + 1, GENERATOR.normal(size=4)
        expected = stats.mannwhitneyu(a, b, alternative="greater", method="exact").pvalue
        assert group_test(a, b, "vectors").p_for == pytest.approx(expected)

    def test_blocks_are_permuted_within(self):
        """A difference between blocks is no evidence of a relation inside them."""
        x = [np.arange(20.0), 100 + np.arange(20.0)]
        y = [GENERATOR.normal(size=20), 100 + GENERATOR.normal(size=20)]
        assert correlation_test(np.concatenate(x), np.concatenate(y)[None], "v").p_for < 0.001
        assert blocked_correlation_test(x, y, "v").p_for > 0.01
        assert blocked_correlation_test(x, x, "v").p_for == 1 / 5000

    @pytest.mark.parametrize("num", [5, 9])
    def test_sign_flips_are_scipy_s(self, num):
        d = GENERATOR.normal(size=num) + 0.5
        expected = stats.permutation_test(
            (d,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
        )
        test = sign_flip_test(d, "seeds")
        assert test.p_for == pytest.approx(expected.pvalue)
        assert test.smallest_p == 2.0**-num
        assert sign_flip_test(d + 7, "seeds", 7.0).p_for == pytest.approx(test.p_for)

    def test_many_units_are_student_s(self):
        d = GENERATOR.normal(size=150) + 0.1
        expected = stats.ttest_1samp(d, 0, alternative="greater").pvalue
        assert sign_flip_test(d, "networks").p_for == pytest.approx(expected)
        assert sign_flip_test(d[:100], "networks").p_for == pytest.approx(
            stats.ttest_1samp(d[:100], 0, alternative="greater").pvalue, abs=0.03
        )

    def test_within_and_all(self):
        d = 0.01 * GENERATOR.normal(size=10)
        assert within_test(d, 0.1, "seeds").p_for == 2**-10
        assert within_test(d + 1, 0.1, "seeds").p_against == 2 * 2**-10
        first, second = Test(0.01, 0.99, 0.001, 8, "runs"), Test(0.2, 0.8, 0.01, 7, "runs")
        assert all_of([first, second]) == Test(0.2, 1.0, 0.01, 7, "runs")

    def test_what_is_not_finite_tests_nothing(self):
        for test in (
            sign_flip_test([1.0, math.nan], "seeds"),
            sign_flip_test([], "seeds"),
            correlation_test([1, 2, 3], [[1.0, math.nan, 2.0]], "rotations"),
            correlation_test([1, 2, 3], [[1.0, 1.0, 1.0]], "rotations"),
            within_test([math.nan] * 5, 0.1, "seeds"),
        ):
            assert math.isnan(test.p_for)
            assert judge("", "", test).verdict == "not tested"


def claim(p_for: float, smallest_p: float = 1e-4, gate: str = "", text: str = "") -> Claim:
    return judge(text, "", Test(p_for, 1 - p_for, smallest_p, 8, "rotations"), gate=gate)


class TestWords:
    def test_alone(self):
        assert claim(0.04).verdict == "supported"
        assert claim(0.96).verdict == "contradicted"
        assert claim(0.5).verdict == "inconclusive"
        assert claim(0.06, smallest_p=0.06).verdict == "not tested"
        assert claim(0.001, gate="3 of 3 models have diverged").verdict == "not tested"
        assert claim(0.001, gate="3 of 3 models have diverged").reason.startswith("3 of 3")
        assert untested(claim(0.001), "one seed").verdict == "not tested"

    def test_holm_s_own_example(self):
        """Four tests: 0.005 and 0.01 pass at 5 %, 0.03 does not (0.03 * 2 > 0.05), nor 0.04."""
        words = [c.verdict for c in correct([claim(p) for p in (0.01, 0.04, 0.03, 0.005)])]
        assert words == ["supported", "inconclusive", "inconclusive", "supported"]

    def test_claims_that_cannot_be_tested_cost_nothing(self):
        hopeless = [claim(0.03, smallest_p=1 / 32) for _ in range(10)]
        closed = [claim(0.001, gate="diverged") for _ in range(10)]
        found = correct([*hopeless, claim(0.04), *closed])
        assert [c.verdict for c in found] == ["not tested"] * 10 + ["supported"] + [
            "not tested"
        ] * 10
        assert "8 rotations can give a p-value of 0.031 at best" in found[0].reason

    def test_correcting_twice_is_correcting_once(self):
        once = correct([claim(p) for p in (0.01, 0.04, 0.03, 0.005)])
        assert correct(once) == once


def page(alphas, sw2, directions, distances):
    """A page of three panels about rotations and one about directions, as the figures have."""
    claims = [
        judge("SW2 rises with alpha", "", correlation_test(alphas, rows.T, "rotations"))
        for rows in sw2
    ]
    claims.append(
        judge("Conjecture 1", "", correlation_test(directions, distances.T, "directions"))
    )
    best, identity = sw2[0][0], sw2[0][-1]  # in each seed
    claims.append(judge("it beats the identity", "", sign_flip_test(identity - best, "seeds")))
    return correct(claims)


def simulate(generator, effect: float, rotation: float, num: int = 6, seeds: int = 5):
    """Distances with effects of the rotation and of the seed, and of alpha if there is one."""
    alphas = np.sort(generator.normal(size=num))
    parts = [
        effect * alphas[:, None]
        + rotation * generator.normal(size=(num, 1))
        + generator.normal(size=(1, seeds))
        + 0.3 * generator.normal(size=(num, seeds))
        for _ in range(4)
    ]
    return page(alphas, parts[:3], alphas, parts[3])


def test_a_null_with_real_seed_and_rotation_effects_is_supported_in_5_percent_of_pages():
    """Rotations differ, seeds differ, alpha has nothing to do with it: 1,000 pages."""
    generator = np.random.default_rng(1)
    tries = 1000
    pages = [simulate(generator, effect=0.0, rotation=1.0) for _ in range(tries)]
    most = stats.binom.ppf(0.99, tries, LEVEL)
    for word in ("supported", "contradicted"):
        wrong = sum(any(c.verdict == word for c in found) for found in pages)
        assert wrong <= most, f"{wrong} of {tries} pages have a claim that is {word}"


def test_an_effect_is_found():
    generator = np.random.default_rng(2)
    pages = [simulate(generator, effect=2.0, rotation=0.3) for _ in range(100)]
    shares = np.mean([[c.verdict == "supported" for c in found[:4]] for found in pages], axis=0)
    assert shares.min() > 0.8
    assert not any(c.verdict == "contradicted" for found in pages for c in found)


def summary(name: str, *claims: Claim) -> Summary:
    return Summary(name, name, "laptop", (), "sads", claims, {}, (), (), {})


@pytest.mark.parametrize(
    ("number", "unit", "said"),
    [
        (1, "seeds with a subspace each", "1 seed with a subspace each"),
        (1, "random rotations", "1 random rotation"),
        (5, "seeds", "5 seeds"),
        (4096, "networks", "4,096 networks"),
        (0, "", ""),
    ],
)
def test_units_are_counted_as_one_says_it(number, unit, said):
    assert replace(claim(0.5), num_units=number, unit=unit).units == said


def test_no_claim_is_tested_before_its_cells_are_finished():
    """Nor does the page find a word for it; what is wrong with the models is said first."""
    good = claim(0.001, text="first")
    assert until_finished(good, "abc", "xcba") == good
    waiting = correct([until_finished(good, "abc", "ab")])[0]
    assert (waiting.verdict, waiting.reason) == ("not tested", "2 of its 3 cells finished")
    closed = until_finished(replace(good, gate="they have diverged"), "abc", "")
    assert correct([closed])[0].reason == "they have diverged"


def test_a_page_is_corrected_as_a_whole(tmp_path):
    """A claim that stands alone does not stand beside others; figures are written again."""
    summary("fig6", claim(0.04, text="first")).save(tmp_path)
    assert judge_page(tmp_path, ["fig6"])["fig6"].claims[0].verdict == "supported"
    summary("fig8", claim(0.04, text="second"), claim(0.001, text="third")).save(tmp_path)
    judged = judge_page(tmp_path, ["fig6", "fig8"])
    assert judged["fig6"].claims[0].verdict == "inconclusive"
    assert [c.verdict for c in judged["fig8"].claims] == ["inconclusive", "supported"]
    assert Summary.load(tmp_path, "fig6") == judged["fig6"]
    text = write_page(tmp_path, ["fig6", "fig8"]).read_text()
    assert (
        "| fig8 | third (*found later, not registered*) | ✅ supported | 0.001 | 1 | 8 rot" in text
    )


def test_claims_of_an_earlier_format_are_not_tested(tmp_path):
    summary("fig1", Claim("old", "as it was", "supported")).save(tmp_path)
    (found,) = judge_page(tmp_path, ["fig1"])["fig1"].claims
    assert (found.verdict, found.reason[:26]) == ("not tested", "made by an earlier sads, w")


class TestRegistration:
    """`claims.toml` says before the runs what figures claim after them."""

    def test_thresholds_are_those_of_the_code(self):
        def threshold(figure, text):
            return find_registered(figure, text).threshold

        assert threshold("fig3", "the default resampling (nearest) introduces asymmetry") == VISIBLE
        assert threshold("fig3", "area resampling introduces none") == ROUNDING
        assert threshold("fig4", "anisotropy is greatly amplified in SGD") == GREATLY
        assert threshold("fig4", "for small t, SGD is well predicted by gradient descent") == CLOSE
        alike = judge_alike("digits", np.ones(5), np.ones(5))
        assert threshold("fig8", alike.text) == ALIKE
        content = tomllib.loads(CLAIMS.read_text())
        assert content["level"] == LEVEL

    def test_every_committed_claim_is_registered(self):
        """Texts as the figures write them; checkpoints that are claims no more are left out."""
        results = Path(__file__).parents[1] / "results" / "laptop"
        last = {"digits": "400", "mnist": "800", "cifar10": "150"}
        for path in sorted(results.glob("fig*.json")):
            for found in json.loads(path.read_text())["claims"]:
                place = re.match(r"(\w+), (\d+) updates", found["text"])
                if place is None or last[place[1]] == place[2]:
                    assert find_registered(path.stem, found["text"]) is not None, found["text"]

    def test_what_was_thought_of_later_is_marked(self, tmp_path):
        assert find_registered("fig6", "dit-4: something else") is None
        assert find_registered("fig5", "area resampling introduces none") is None  # of Figure 3
        later = claim(0.001, text="something else")
        wrong_unit = claim(0.001, text="area resampling introduces none")  # of networks, not these
        assert "found later" in describe_claim("fig6", later)
        assert "found later" in describe_claim("fig3", wrong_unit)
        summary("fig6", later).save(tmp_path)
        text = write_page(tmp_path, ["fig6"]).read_text()
        assert "something else (*found later, not registered*)" in text

    def test_runs_that_are_older_than_the_claims_are_counted(self):
        now = {VERSION_KEY: claims_digest()}
        assert note_registration([now, now]) == []
        (note,) = note_registration([now, {}, {VERSION_KEY: "another"}])
        own = {VERSION_KEY: "another", f"{VERSION_KEY} fig8": claims_digest("fig8")}
        assert note_registration([own], "fig8") == []  # another figure's claims have changed since
        assert note_registration([own], "fig7") != []
        assert claims_versions()[f"{VERSION_KEY} fig8"] == claims_digest("fig8")
        assert note.startswith("2 of 3 cells were run before the claims stood as they do now")

    def test_commits(self, tmp_path):
        path = tmp_path / "claims.toml"
        path.write_text("level = 0.05")
        assert describe_commit(path) == "not in a git checkout here"

        def git(*arguments):
            name = ["-c", "user.name=x", "-c", "user.email=x@x"]
            subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True)

        git("init", "-q")
        git("add", "-A")
        git("commit", "-qm", "claims")
        assert describe_commit(path).startswith("commit ")
        path.write_text("level = 0.5")
        assert describe_commit(path) == "changed since its last commit"
