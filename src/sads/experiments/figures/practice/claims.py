"""The claims of `claims.toml`, judged on the records that there are."""

from collections.abc import Callable, Collection, Iterable

import numpy as np

from sads.errors import counted
from sads.estimates import mean_estimate
from sads.experiments.figures.practice.arms import CORE, RANDOM, TESTED, Done, Key
from sads.experiments.figures.states import gate
from sads.experiments.spec import PAPER, Practice
from sads.experiments.verdict import (
    Claim,
    correlation_over_units,
    correlation_test,
    judge,
    paired_difference,
    sign_flip_test,
    until_finished,
)
from sads.pipeline import Evaluation


def judge_practices(name: str, done: Done, cells: Collection[Key]) -> list[Claim]:
    """The registered claims, of the seeds that have all that a claim compares.

    Args:
        cells: what was registered; a claim is tested when all of it that it compares is finished.
    """
    claims: list[Claim] = []
    for label, practice in TESTED.items():
        claims += _judge_pair(
            f"{name}, {label}: the minimising rotation beats the identity",
            done,
            cells,
            (practice, "identity"),
            (practice, "min"),
            "seeds",
        )
        claims += _judge_pair(
            f"{name}, {label}: the minimising rotation beats random rotations",
            done,
            cells,
            (practice, RANDOM),
            (practice, "min"),
            "random rotations",
        )
        claims += _judge_alpha(f"{name}, {label}", practice, done, cells)
    for label, practice in list(TESTED.items())[1:]:
        claims += _judge_pair(
            f"{name}: without a rotation, {label} beats the paper's way behind the minimising "
            "rotation",
            done,
            cells,
            (PAPER, "min"),
            (practice, "identity"),
            "seeds",
        )
    return claims


def _judge_pair(
    text: str,
    done: Done,
    cells: Collection[Key],
    worse: tuple[Practice, str],
    better: tuple[Practice, str],
    unit: str,
) -> list[Claim]:
    """The claim that one of two has the smaller SW2, seed by seed; nothing if no seed has both."""
    seeds, registered = (whole_seeds(found, (worse, better)) for found in (done, cells))
    first, second = ([done[*pair, s].last for s in seeds] for pair in (worse, better))
    if not seeds:
        return []
    high, low = (np.array([e.sw2 for e in side]) for side in (first, second))
    difference = paired_difference(high, low)
    claim = judge(
        text,
        f"SW2 {mean_estimate(high)} less {mean_estimate(low)}: {difference}",
        sign_flip_test(high - low, unit),
        difference.interval,
        gate([*first, *second]),
    )
    compared = [(*pair, seed) for pair in (worse, better) for seed in registered]
    return [until_finished(claim, compared, done)]


def whole_seeds(keys: Iterable[Key], pairs: Collection[tuple[Practice, str]]) -> list[int]:
    """Seeds that have all of these practices behind these rotations."""
    known = set(keys)
    seeds = dict.fromkeys(seed for _, _, seed in keys)
    return [s for s in seeds if all((*pair, s) in known for pair in pairs)]


def _judge_alpha(place: str, practice: Practice, done: Done, cells: Collection[Key]) -> list[Claim]:
    """Whether SW2, and the held-out loss, rise with alpha over all rotations of a practice."""

    def rotations(keys: Iterable[Key]) -> list[str]:
        return list(dict.fromkeys(r for p, r, _ in keys if p == practice))

    kinds = rotations(done)
    whole = sorted(whole_seeds(done, [(practice, kind) for kind in kinds]))
    pairs = [(practice, kind) for kind in rotations(cells)]
    registered = [(*pair, seed) for pair in pairs for seed in whole_seeds(cells, pairs)]
    if len(kinds) < len((*CORE, "max")) or not whole:
        return []
    records = [[done[practice, kind, s] for kind in kinds] for s in whole]
    alphas = np.mean([[r.facts.alpha.value for r in row] for row in records], axis=0)
    closed = gate([r.last for row in records for r in row])

    def rises(text: str, number: Callable[[Evaluation], float], closed: str) -> Claim:
        rows = [[number(record.last) for record in row] for row in records]
        correlation = correlation_over_units(alphas, rows)
        claim = judge(
            f"{place}: {text} rises with alpha",
            f"rank correlation {correlation}, {counted(len(whole), 'seed')}",
            correlation_test(alphas, rows, "rotations"),
            correlation,
            closed,
        )
        return until_finished(claim, registered, done)

    claims = [rises("SW2", lambda e: e.sw2, closed)]
    if all(r.last.denoising is not None for row in records for r in row):
        # A loss is what it is, whatever a sampler makes of it.
        claims.append(rises("the held-out denoising loss", _loss, ""))
    return claims


def _loss(evaluation: Evaluation) -> float:
    return float("nan") if evaluation.denoising is None else evaluation.denoising.loss.value
