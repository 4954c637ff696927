"""The league of predictors: which of them is right, on data that it was not chosen on?

A *block* is a data set, a family and a seed, trained on behind several rotations. In a block a
predictor is right as far as its numbers have the order of the outcomes: Spearman's correlation over
the rotations. Blocks count alike.

- *Chosen*: for each practice and outcome, the predictor with the largest absolute mean correlation
  on the data sets for choosing, with the sign that it has there. A predictor whose sign is -1 is
  one that is right the other way round: larger is better.
- *Judged*: by its mean correlation, with this sign, on the other data sets.

`claims.toml` says all this, and was committed before the runs.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sads.errors import DataError, counted, printable
from sads.experiments.verdict import (
    SUPPORTED,
    Claim,
    Interval,
    Test,
    judge,
    shared_correlation,
    shared_correlation_test,
)
from sads.from_json import DecodingError, decode, decode_known
from sads.predictors.registry import OUTCOMES, Prediction
from sads.tables import Row, titled
from sads.untrusted import DAMAGE, first_line, read_json

SHIPPED = Path(__file__).with_name("league.json")
UNIT = "rotations"
NAMES = {"loss": "held-out loss", "distance": "distance of samples"}
PAPER, COMMON, SKIP = "paper", "common", "common + skip"
PRACTICES = {
    PAPER: "the paper's practice",
    COMMON: "common practice",
    SKIP: "common practice with the Gaussian skip",
}
SKIP_ITSELF = "the Gaussian skip"  # in the place of a predictor: whether it helps


@dataclass(frozen=True)
class Block:
    """A data set, a family and a seed under one practice, behind several rotations."""

    data: str
    family: str
    seed: int
    practice: str
    predictions: Mapping[str, Sequence[Prediction]]  # by predictor, one for each rotation
    outcomes: Mapping[str, Sequence[float]]  # by outcome, likewise
    trained: bool  # whether all of its models are

    def counts_for(self, outcome: str) -> bool:
        """Distances of models that are not trained say how they fail, and nothing else."""
        return outcome != "distance" or self.trained

    def predicted(self, predictor: str, outcome: str, sign: int = 1) -> list[float]:
        return [sign * prediction.of(outcome) for prediction in self.predictions[predictor]]


@dataclass(frozen=True)
class Standing(Row):
    """How a predictor did in one contest: a practice and an outcome."""

    practice: str
    outcome: str
    predictor: str
    chosen: bool
    sign: str = titled("larger is")  # "worse" or "better", as found where it was chosen
    correlation: float | None = titled("where chosen", default=None)
    held_out: float | None = titled("held out", default=None)  # with this sign
    low: float | None = None
    high: float | None = None
    blocks: int | None = titled("blocks", default=None)
    right: int = titled("right", default=0)  # of rotations, in held-out blocks
    pairs: int = 0
    right_between: int | None = titled("right between", default=None)
    pairs_between: int | None = titled("pairs between", default=None)


@dataclass(frozen=True)
class League:
    """All standings, and what was made of those that were chosen."""

    standings: tuple[Standing, ...]
    claims: tuple[Claim, ...] = ()

    def winner(self, practice: str, outcome: str) -> Standing | None:
        """The predictor that was chosen for a contest, whether it was right or not."""
        found = (s for s in self.standings if (s.practice, s.outcome) == (practice, outcome))
        return next((s for s in found if s.chosen), None)

    def verdict(self, practice: str, outcome: str) -> Claim | None:
        """What the held-out data say about it."""
        text = winner_claim(practice, outcome)
        return next((claim for claim in self.claims if claim.text == text), None)

    def is_right(self, practice: str, outcome: str) -> bool:
        """Whether the chosen predictor was right on held-out data, more than by chance."""
        claim = self.verdict(practice, outcome)
        return claim is not None and claim.verdict == SUPPORTED

    def skip_record(self, outcome: str) -> Standing | None:
        """How often models with the Gaussian skip were better than the same without it."""
        found = (s for s in self.standings if s.predictor == SKIP_ITSELF)
        return next((s for s in found if s.outcome == outcome), None)


def winner_claim(practice: str, outcome: str) -> str:
    return (
        f"{PRACTICES[practice]}, {NAMES[outcome]}: the predictor chosen on digits and MNIST is "
        "right on faces and CIFAR-10"
    )


def is_about(claim: Claim, practice: str) -> bool:
    """Whether a claim of the league is about this practice."""
    return claim.text.startswith((f"{PRACTICES[practice]}, ", f"{PRACTICES[practice]}: "))


def read_league(path: Path | None = None) -> League:
    """The league from the JSON of a figure, ours if none is given."""
    path = SHIPPED if path is None else path
    try:
        content = decode_known(_Figure, read_json(path))
        standings = tuple(decode(Standing, row) for row in content.table)
    except OSError as error:
        raise DataError(
            f"cannot read the league {printable(path)} ({first_line(error)}); give a league.json "
            "that `sads reproduce league` wrote"
        ) from error
    except DAMAGE as error:
        raise DataError(
            f"{printable(path)} is not a league ({first_line(error)}); give a league.json that "
            "`sads reproduce league` wrote"
        ) from error
    return League(standings, content.claims)


@dataclass(frozen=True)
class _Figure:
    """What a figure's JSON says of the league."""

    figure: str
    claims: tuple[Claim, ...]
    table: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        if self.figure != "league":
            raise DecodingError("it is of another figure")


def play(chosen_on: Sequence[Block], judged_on: Sequence[Block]) -> League:
    """Choose predictors on some blocks and judge them on others."""
    standings: list[Standing] = []
    claims: list[Claim] = []
    for practice, outcome in itertools.product(PRACTICES, OUTCOMES):
        first, second = (
            [b for b in blocks if b.practice == practice and b.counts_for(outcome)]
            for blocks in (chosen_on, judged_on)
        )
        closed = sum(b.practice == practice and not b.counts_for(outcome) for b in judged_on)
        gate = (
            f"in all {counted(closed, 'block')} some models are not trained"
            if closed and not second
            else ""
        )
        rows = contest(practice, outcome, first, second)
        standings += rows
        claims += judge_contest(practice, outcome, rows, second, gate)
    skips = [compare_skip(judged_on, outcome) for outcome in OUTCOMES]
    return League((*standings, *(s for s in skips if s is not None)), tuple(claims))


def contest(
    practice: str, outcome: str, chosen_on: Sequence[Block], judged_on: Sequence[Block]
) -> list[Standing]:
    """The standings of all predictors in one contest."""
    names = list((chosen_on or judged_on)[0].predictions) if (chosen_on or judged_on) else []
    there = {name: correlate(chosen_on, name, outcome).value for name in names}
    best = choose(there)
    rows = []
    for name in names:
        sign = -1 if there[name] < 0 else 1
        held_out = correlate(judged_on, name, outcome, sign)
        right, pairs = count_right(judged_on, name, outcome, sign)
        between = count_right_between(judged_on, name, outcome, sign)
        rows.append(
            Standing(
                practice=practice,
                outcome=outcome,
                predictor=name,
                chosen=name == best,
                sign="better" if sign < 0 else "worse",
                correlation=_known(there[name]),
                held_out=_known(held_out.value),
                low=_known(held_out.low),
                high=_known(held_out.high),
                blocks=len(judged_on),
                right=right,
                pairs=pairs,
                right_between=between[0],
                pairs_between=between[1],
            )
        )
    return rows


def choose(correlations: Mapping[str, float]) -> str | None:
    """The predictor with the largest absolute correlation, the first one of equals."""
    known = {name: abs(value) for name, value in correlations.items() if not math.isnan(value)}
    return max(known, key=known.__getitem__) if known else None


def correlate(blocks: Sequence[Block], predictor: str, outcome: str, sign: int = 1) -> Interval:
    """The mean over blocks of the rank correlation of predictor and outcome over rotations."""
    return shared_correlation(
        [b.predicted(predictor, outcome, sign) for b in blocks],
        [b.outcomes[outcome] for b in blocks],
    )


def significance(blocks: Sequence[Block], predictor: str, outcome: str, sign: int = 1) -> Test:
    """The correlation, tested by permuting rotations in all blocks alike."""
    return shared_correlation_test(
        [b.predicted(predictor, outcome, sign) for b in blocks],
        [b.outcomes[outcome] for b in blocks],
        UNIT,
    )


def judge_contest(
    practice: str, outcome: str, rows: Sequence[Standing], blocks: Sequence[Block], gate: str
) -> list[Claim]:
    """Whether the chosen predictor is right on held-out blocks, and what alpha says on them."""
    claims = []
    winner = next((row for row in rows if row.chosen), None)
    if winner is not None:
        sign = -1 if winner.sign == "better" else 1
        claims.append(
            judge(
                winner_claim(practice, outcome),
                f"{winner.predictor} (larger is {winner.sign}), rank correlation with this sign "
                f"{correlate(blocks, winner.predictor, outcome, sign)}; right in {winner.right} of "
                f"{counted(winner.pairs, 'pair')} of rotations",
                significance(blocks, winner.predictor, outcome, sign),
                correlate(blocks, winner.predictor, outcome, sign),
                gate,
            )
        )
    if not any(row.predictor == "alpha" for row in rows):
        return claims
    sign, text = {
        "loss": (-1, "the held-out loss falls as alpha rises (a high alpha is a good prior)"),
        "distance": (1, "the distance of samples rises with alpha (Conjecture 1)"),
    }[outcome]
    found = correlate(blocks, "alpha", outcome, sign)
    plain = correlate(blocks, "alpha", outcome)
    claims.append(
        judge(
            f"{PRACTICES[practice]}: {text}",
            f"rank correlation of alpha and {NAMES[outcome]} {plain}, "
            f"{counted(len(blocks), 'block')}",
            significance(blocks, "alpha", outcome, sign),
            found,
            gate,
        )
    )
    return claims


def count_right(
    blocks: Iterable[Block], predictor: str, outcome: str, sign: int
) -> tuple[int, int]:
    """Pairs of rotations in the order that was predicted, and all pairs that are not ties."""
    right = total = 0
    for block in blocks:
        right_here, here = _in_order(
            block.predicted(predictor, outcome, sign), block.outcomes[outcome]
        )
        right, total = right + right_here, total + here
    return right, total


def count_right_between(
    blocks: Sequence[Block], predictor: str, outcome: str, sign: int
) -> tuple[int, int]:
    """Pairs of families, of like data and rotations, in the order predicted, and all pairs."""
    right = total = 0
    for first, second in itertools.combinations(blocks, 2):
        if (first.data, first.seed) != (second.data, second.seed):
            continue
        pairs = zip(
            first.predicted(predictor, outcome, sign),
            second.predicted(predictor, outcome, sign),
            first.outcomes[outcome],
            second.outcomes[outcome],
            strict=True,
        )
        for a, b, one, other in pairs:
            right_here, here = _in_order((a, b), (one, other))
            right, total = right + right_here, total + here
    return right, total


def compare_skip(blocks: Sequence[Block], outcome: str) -> Standing | None:
    """How often a model with the Gaussian skip beat the same one without it, in blocks at all."""
    without = {(b.data, b.family, b.seed): b for b in blocks if b.practice == COMMON}
    right = pairs = 0
    for block in (b for b in blocks if b.practice == SKIP):
        other = without.get((block.data, block.family, block.seed))
        if other is not None:
            differences = np.subtract(other.outcomes[outcome], block.outcomes[outcome])
            right, pairs = right + int((differences > 0).sum()), pairs + len(differences)
    if not pairs:
        return None
    return Standing(
        practice=SKIP,
        outcome=outcome,
        predictor=SKIP_ITSELF,
        chosen=False,
        sign="better",
        right=right,
        pairs=pairs,
    )


def _in_order(predicted: Sequence[float], found: Sequence[float]) -> tuple[int, int]:
    """Pairs in the same order, and pairs of which neither side is a tie."""
    signs = [
        np.sign((predicted[i] - predicted[j]) * (found[i] - found[j]))
        for i, j in itertools.combinations(range(len(found)), 2)
    ]
    return sum(s > 0 for s in signs), sum(s != 0 for s in signs)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
