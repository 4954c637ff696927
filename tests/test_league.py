"""The league of predictors and `sads rank`."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import sads
from commands import Sads
from sads.errors import DataError, InvalidArgumentError
from sads.experiments.figures import all_figures
from sads.experiments.figures.figure import Context
from sads.experiments.figures.league import (
    Key,
    all_cells,
    judge_finished,
    registered_keys,
)
from sads.experiments.preregistration import find_registered
from sads.experiments.ranking import rank
from sads.experiments.standings import (
    COMMON,
    PAPER,
    SHIPPED,
    SKIP,
    Block,
    Standing,
    choose,
    compare_skip,
    count_right,
    count_right_between,
    play,
    read_league,
    winner_claim,
)
from sads.experiments.store import Store
from sads.experiments.verdict import (
    SUPPORTED,
    Claim,
    correlation_test,
    fisher_interval,
    shared_correlation,
    shared_correlation_test,
)
from sads.files import write_json
from sads.predictors.registry import Prediction

ROOT = Path(__file__).parent.parent
KINDS = 7


def test_one_block_is_the_ordinary_test() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 6))
    shared, plain = shared_correlation_test([x], [y], "u"), correlation_test(x, y[None], "u")
    assert shared == plain
    assert shared_correlation([x], [y]).value == pytest.approx(stats.spearmanr(x, y).statistic)


def test_blocks_are_permuted_alike() -> None:
    """All orders of five units, one by one, with SciPy's correlation."""
    x, y = np.random.default_rng(1).standard_normal((2, 3, 5))

    def statistic(order: list[int]) -> float:
        return sum(stats.spearmanr(a[order], b).statistic for a, b in zip(x, y, strict=True))

    values = np.array([statistic(list(p)) for p in itertools.permutations(range(5))])
    found = shared_correlation_test(list(x), list(y), "u")
    observed = statistic([0, 1, 2, 3, 4])
    assert found.p_for == pytest.approx((values >= observed - 1e-9).mean())
    assert found.p_against == pytest.approx((values <= observed + 1e-9).mean())
    assert shared_correlation(list(x), list(y)).value == pytest.approx(observed / 3)


def test_a_predictor_that_says_nothing_counts_as_zero() -> None:
    y = np.arange(6.0)
    assert shared_correlation([np.ones(6), y], [y, y]).value == pytest.approx(0.5)
    assert math.isnan(shared_correlation_test([], [], "u").p_for)
    assert fisher_interval(0.5, 4).low != fisher_interval(0.5, 4).low  # none for four units


def test_rotations_with_effects_of_their_own_are_no_evidence() -> None:
    """What rotations do is the same in all twelve blocks, and has nothing to do with a predictor
    that is the same in all of them, too: at most 5 % of such leagues are significant."""
    generator = np.random.default_rng(2)
    found = []
    for _ in range(1000):
        effects, predictor = generator.standard_normal((2, KINDS))
        noise = 0.3 * generator.standard_normal((12, KINDS))
        found.append(shared_correlation_test([predictor] * 12, list(effects + noise), "u").p_for)
    rate = np.mean(np.array(found) <= 0.05)
    assert rate < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def block(
    data: str, outcomes: dict[str, list[float]], told: dict[str, list[float]], **fields: object
) -> Block:
    given = {"family": "cnn", "seed": 0, "practice": PAPER, "trained": True} | fields
    predictions = {name: [Prediction.same(v) for v in values] for name, values in told.items()}
    return Block(data=data, outcomes=outcomes, predictions=predictions, **given)  # type: ignore[arg-type]


def make_blocks(names: tuple[str, ...], seed: int, **fields: object) -> list[Block]:
    """Distances follow `good`, losses fall with `alpha`; `bad` is noise."""
    generator = np.random.default_rng(seed)
    blocks = []
    for name, family in itertools.product(names, ("cnn", "dit")):
        good, bad, alpha = generator.standard_normal((3, KINDS))
        outcomes = {"loss": (-alpha).tolist(), "distance": np.exp(good).tolist()}
        told = {"alpha": alpha.tolist(), "bad": bad.tolist(), "good": good.tolist()}
        blocks.append(block(name, outcomes, told, family=family, **fields))
    return blocks


def test_the_right_predictor_is_chosen_and_judged() -> None:
    league = play(make_blocks(("digits", "mnist"), 0), make_blocks(("faces", "cifar10"), 1))
    loss, distance = (league.winner(PAPER, outcome) for outcome in ("loss", "distance"))
    assert loss is not None
    assert distance is not None
    assert (loss.predictor, loss.sign, loss.correlation) == ("alpha", "better", pytest.approx(-1))
    assert (distance.predictor, distance.sign) == ("good", "worse")
    assert distance.held_out == pytest.approx(1)
    assert distance.right == distance.pairs == 4 * math.comb(KINDS, 2)
    assert league.is_right(PAPER, "loss")
    assert league.is_right(PAPER, "distance")
    assert not league.is_right(COMMON, "loss")
    prior = next(c for c in league.claims if "a good prior" in c.text)
    assert prior.verdict == SUPPORTED
    assert prior.num_units == KINDS
    for claim in league.claims:
        assert find_registered("league", claim.text) is not None, claim.text


def test_a_predictor_that_was_lucky_is_not_right() -> None:
    """Chosen where its noise happened to fit, it fails on held-out data."""
    first, second = make_blocks(("digits", "mnist"), 3), make_blocks(("faces", "cifar10"), 4)

    def only_bad(b: Block) -> Block:
        told = [prediction.loss for prediction in b.predictions["bad"]]
        return block(b.data, dict(b.outcomes), {"bad": told}, family=b.family)

    league = play([only_bad(b) for b in first], [only_bad(b) for b in second])
    assert league.winner(PAPER, "distance") is not None
    assert not league.is_right(PAPER, "distance")


def test_distances_of_models_that_are_not_trained_do_not_count() -> None:
    first = make_blocks(("digits", "mnist"), 0)
    second = make_blocks(("faces", "cifar10"), 1, trained=False)
    league = play(first, second)
    claim = league.verdict(PAPER, "distance")
    assert claim is not None
    assert claim.verdict == "not tested"
    assert "in all 4 blocks some models are not trained" in claim.reason
    assert league.is_right(PAPER, "loss")


def test_no_verdict_before_all_cells_of_a_practice_are_finished() -> None:
    """A league that was stopped when it looked well would be right too often."""
    league = play(make_blocks(("digits", "mnist"), 0), make_blocks(("faces", "cifar10"), 1))
    keys = [Key(data, "cnn", PAPER, "min", seed) for data in ("digits", "faces") for seed in (0, 1)]
    assert judge_finished(league.claims, keys, keys) == list(league.claims)
    for claim in judge_finished(league.claims, keys, keys[1:]):
        assert claim.verdict == "not tested"
        assert claim.reason == "3 of its 4 cells finished"


def test_all_data_and_families_are_registered(tmp_path: Path) -> None:
    """Whatever was asked for, and whatever images are known."""
    context = Context("laptop", Store(tmp_path / "store"), "torch", only=("cnn",), num_seeds=1)
    assert len(registered_keys(context.to_draw(("cnn",), {"cnn": 1}))) == 4 * 3 * 3 * 7 * 2
    assert len(all_cells(context)) == 3 * 7  # of the digits


def test_choosing() -> None:
    assert choose({"a": 0.5, "b": -0.7, "c": 0.7}) == "b"
    assert choose({"a": math.nan}) is None


def test_pairs_are_counted_one_by_one() -> None:
    told, found = [1.0, 2.0, 2.0, 4.0], [1.0, 3.0, 2.0, 0.0]
    right = total = 0
    for i, j in itertools.combinations(range(4), 2):
        if told[i] != told[j] and found[i] != found[j]:
            total += 1
            right += (told[i] < told[j]) == (found[i] < found[j])
    one = block("faces", {"loss": found}, {"p": told})
    assert count_right([one], "p", "loss", 1) == (right, total)
    assert count_right([one], "p", "loss", -1) == (total - right, total)
    other = block(
        "faces", {"loss": [f + 10 for f in found]}, {"p": [t + 9 for t in told]}, family="d"
    )
    assert count_right_between([one, other], "p", "loss", 1) == (4, 4)
    elsewhere = block("cifar10", {"loss": found}, {"p": told}, family="d")
    assert count_right_between([one, elsewhere], "p", "loss", 1) == (0, 0)


def test_the_skip_is_compared_with_the_same_model_without_it() -> None:
    without = block("faces", {"loss": [1.0, 2.0, 3.0]}, {}, practice=COMMON)
    beside = block("faces", {"loss": [0.5, 2.5, 1.0]}, {}, practice=SKIP)
    found = compare_skip([without, beside], "loss")
    assert found is not None
    assert (found.right, found.pairs) == (2, 3)
    assert compare_skip([beside], "loss") is None


def test_the_league_is_a_figure() -> None:
    assert all_figures()["league"].panels == ("cnn", "dit", "iddpm")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.pictures
def test_a_small_league_is_played_to_the_end(command: Sads, tmp_path: Path) -> None:
    """Cells, predictors, table, picture; digits only, so that there is nothing to judge."""
    command.succeed("reproduce", "league", "--scale", "smoke", "--workers", 1, "--out", "here")
    league = read_league(tmp_path / "here" / "league.json")
    assert {s.predictor for s in league.standings} >= {"alpha", "kernel", "forward-alpha"}
    assert league.winner(PAPER, "loss") is not None
    assert not league.is_right(PAPER, "loss")
    assert (tmp_path / "here" / "league.png").stat().st_size > 10_000


def write_league(path: Path, right: bool, between: int = 9) -> Path:
    """A league in which alpha was chosen for distances."""
    standings = [
        Standing(
            practice=practice,
            outcome="distance",
            predictor="alpha",
            chosen=True,
            sign="worse",
            held_out=0.8,
            low=0.1,
            high=0.9,
            right=30,
            pairs=42,
            right_between=between,
            pairs_between=12,
        )
        for practice in (COMMON, SKIP)
    ]
    skip = Standing(
        practice="", outcome="distance", predictor="the Gaussian skip", chosen=False, sign="better"
    )
    claims = [
        Claim(winner_claim(practice, "distance"), "", SUPPORTED if right else "inconclusive")
        for practice in (COMMON, SKIP)
    ]
    return write_json(
        path, {"figure": "league", "claims": claims, "table": [*standings, skip], "more": 1}
    )


def test_ranking_is_in_the_order_of_the_winner(tmp_path: Path) -> None:
    x = sads.load_images("digits")[:300]
    league = read_league(write_league(tmp_path / "league.json", right=True))
    result = rank(
        x, [sads.family("cnn", (1, 8, 8))], predictors=["alpha"], league=league, num_networks=32
    )
    assert result.is_ranked
    assert result.between_families
    common = [c for c in result.candidates if not c.skip]
    assert [c.place for c in common] == [1, 2, 3, 4]
    assert (common[0].rotation, common[-1].rotation) == ("min", "max")
    alphas = [c.facts["alpha"].distance for c in common]
    assert alphas == sorted(alphas)
    assert any("right in 30 of 42 pairs" in text for text in result.statements)


def test_no_order_where_nothing_was_right(tmp_path: Path) -> None:
    x = sads.load_images("digits")[:300]
    league = read_league(write_league(tmp_path / "league.json", right=False))
    result = rank(
        x, [sads.family("cnn", (1, 8, 8))], predictors=["alpha"], league=league, num_networks=32
    )
    assert not result.is_ranked
    assert all(c.place is None for c in result.candidates)
    assert all("facts only" in text for text in result.statements[:2])


def test_architectures_are_not_compared_by_what_was_wrong_about_them(tmp_path: Path) -> None:
    x = torch.randn(50, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    league = read_league(write_league(tmp_path / "league.json", right=True, between=5))
    families = [sads.family("cnn", (1, 4, 4), channels=n) for n in (4, 8)]
    result = rank(
        x, families, rotations=["min", "max"], predictors=[], league=league, num_networks=16
    )
    assert not result.between_families
    assert sorted(c.place or 0 for c in result.candidates) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert {c.family for c in result.candidates} == {"cnn", "cnn (2)"}


def test_the_league_that_we_ship_is_that_of_the_results() -> None:
    shipped = read_league()
    committed = ROOT / "results" / "league" / "league.json"
    if committed.exists():
        assert json.loads(SHIPPED.read_text()) == json.loads(committed.read_text())
        assert shipped.standings


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"figure": "fig1", "claims": [], "table": []}',
        '{"figure": "league", "claims": [], "table": [{"practice": 3}]}',
        "not JSON",
    ],
)
def test_what_is_no_league_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "league.json"
    path.write_text(content)
    with pytest.raises(DataError, match="is not a league"):
        read_league(path)


def test_facts_do_not_depend_on_what_a_family_predicts() -> None:
    """Predictors are about noise predictions; what is trained, the practice says."""
    x = sads.rank_one(sads.basis("dct", (1, 4, 4)).vectors[3], num_samples=50)
    families = [sads.family("cnn", shape=(1, 4, 4), prediction=p) for p in ("epsilon", "v")]
    both = [sads.rank(x, [f], rotations=["identity"], num_networks=32) for f in families]
    assert both[0].candidates == both[1].candidates


def test_rank_misuse() -> None:
    x = torch.zeros(5, 1, 16, 16)
    with pytest.raises(InvalidArgumentError, match="unknown outcome 'luck'"):
        sads.rank(x, ["cnn"], outcome="luck")
    with pytest.raises(InvalidArgumentError, match="at least one family"):
        sads.rank(x, [])
    with pytest.raises(InvalidArgumentError, match="unknown rotation"):
        sads.rank(x, ["cnn"], rotations=["left"])
    with pytest.raises(InvalidArgumentError, match="'min' is given twice"):
        sads.rank(x, ["cnn"], rotations=["min", "max", "min"])


RANK = ("rank", "digits", "--families", "cnn", "--networks", 16, "--samples", 100)
RANK = (*RANK, "--predictors", "alpha,kernel", "--rotations", "identity,min")


@pytest.mark.pictures
def test_the_command_prints_a_table(command: Sads, tmp_path: Path) -> None:
    league = write_league(tmp_path / "league.json", right=True)
    out = command.succeed(*RANK, "--league", league, "--out", "here")
    assert "Gaussian skip" in out
    assert "ordered by alpha (larger is worse)" in out
    assert (tmp_path / "here" / "ranking.png").stat().st_size > 5000
    known = json.loads((tmp_path / "here" / "ranking.json").read_text())
    assert len(known["ranking"]["candidates"]) == 4


def test_the_command_prints_json(command: Sads, tmp_path: Path) -> None:
    league = write_league(tmp_path / "league.json", right=False)
    content = json.loads(command.succeed(*RANK, "--league", league, "--json"))
    first = content["ranking"]["candidates"][0]
    assert first["place"] is None
    assert set(first["facts"]) == {"alpha", "kernel"}
    assert content["ranking"]["ranked_by"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--predictors", "tarot"], "unknown predictor 'tarot'; choose from alpha"),
        (["--families", "cnn,"], "names with commas"),
        (["--families", "resnet"], "unknown family 'resnet'"),
        (["--families", "cnn,mlp,cnn"], "--families has 'cnn' twice"),
        (["--rotations", "left"], "unknown rotation 'left'"),
        (["--outcome", "luck"], "unknown outcome 'luck'"),
        (["--practice", "mine"], "practice 'mine'"),
        (["--league", "nowhere.json"], "cannot read the league nowhere.json"),
    ],
)
def test_refusals_are_one_line(command: Sads, arguments: list[str], words: str) -> None:
    err = command.fail("rank", "digits", *arguments)
    assert words in err.replace("\n", " ")


def test_other_data_need_a_shape(command: Sads) -> None:
    assert "give the --shape" in command.fail("rank", "rank-one:dct:3", "--families", "cnn")
