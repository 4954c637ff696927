"""What measurements say about a claim: tests, intervals, and one of four words.

A claim is about a population: of rotations, of directions, of seeds. Its test permutes the members
of this population, which are its *units*; everything else is averaged inside them. Of two one-sided
tests one asks whether the claim holds, the other whether its opposite does:

- *supported*: the first is significant at 5 %, corrected for all claims of a page;
- *contradicted*: the second one is;
- *inconclusive*: neither is;
- *not tested*: its cells are not all finished, the models behind it are not all trained, or there
  are so few units that no measurement could have been significant.

**Correction.** Of the claims of a page only those count that could become significant, which their
design tells before any measurement (Tarone, 1990): with `k` the least number for which at most `k`
claims can reach a p-value of 5 % / k, these are the family, and Holm's procedure holds the chance
of any false *supported* on the page, and of any false *contradicted*, to 5 % each.

**The gate** asks whether all models of a claim are trained. Neither permuting the units nor
exchanging the two sides of a pair changes the answer, so that the tests are exact given an open
gate, and claims behind a closed one need not be corrected for.
"""

import functools
import itertools
import math
import re
from collections.abc import Collection, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sads.errors import counted
from sads.estimates import holm

SUPPORTED, CONTRADICTED = "supported", "contradicted"
INCONCLUSIVE, NOT_TESTED = "inconclusive", "not tested"
CONFIDENCE = 0.95
LEVEL = 0.05  # of each of the two one-sided tests, over a page
MIN_SEEDS = 5  # of an interval; the paper has five
SEEDS_FOR_SIGNS = 8  # a sign test of eight reaches 1/256, which a page of a dozen claims needs
EXACT_PERMUTATIONS = math.factorial(9)  # up to so many all are taken, beyond that a sample
EXACT_SIGNS = 16  # differences whose signs are all taken
MANY = 100  # differences beyond which their mean is normal
NUM_DRAWS = 4_999  # of such a sample
TOUCH = 1e-9  # rounding that does not make two statistics differ

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval; NaN where there is too little to tell."""

    value: float
    low: float
    high: float
    confidence: float
    num: int  # independent repetitions behind it

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3g} (no interval from {self.num})"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Test:
    """Two one-sided tests of a claim. NaN if there is nothing to test."""

    __test__ = False  # pytest looks for classes of this name

    p_for: float  # the chance of numbers that favour the claim so much, if nothing is there
    p_against: float
    smallest_p: float  # that numbers of this design could give
    num_units: int
    unit: str  # in the plural: rotations, directions, seeds


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the numbers that bear on it, and the word they lead to."""

    text: str
    evidence: str
    verdict: str = NOT_TESTED  # corrected for all claims of the page, see `correct`
    statistic: Interval | None = None
    p_for: float = math.nan
    p_against: float = math.nan
    smallest_p: float = math.nan
    num_units: int = 0
    unit: str = ""
    gate: str = ""  # why nothing rests on the models; empty if they are all trained
    reason: str = ""  # of *not tested*

    @property
    def units(self) -> str:
        if not self.unit:
            return ""
        one = re.sub(r"s\b", "", self.unit, count=1)  # "seed with a subspace each"
        return counted(self.num_units, one, self.unit)

    @property
    def testable(self) -> bool:
        return not self.gate and not math.isnan(self.p_for)


def judge(
    text: str,
    evidence: str,
    test: Test,
    statistic: Interval | None = None,
    gate: str = "",
) -> Claim:
    """A claim with the word that it has on a page of its own."""
    claim = Claim(
        text=text,
        evidence=evidence,
        statistic=statistic,
        p_for=test.p_for,
        p_against=test.p_against,
        smallest_p=test.smallest_p,
        num_units=test.num_units,
        unit=test.unit,
        gate=gate,
    )
    return correct([claim])[0]


def correct(claims: Sequence[Claim]) -> list[Claim]:
    """The claims of a page with their words: see the head of this module."""
    family = _testable(claims)
    sides = [
        dict(zip(family, holm([getattr(claims[i], side) for i in family]), strict=True))
        for side in ("p_for", "p_against")
    ]
    words = [_word(claim, i, family, sides) for i, claim in enumerate(claims)]
    return [
        replace(claim, verdict=word, reason=reason)
        for claim, (word, reason) in zip(claims, words, strict=True)
    ]


def _testable(claims: Sequence[Claim]) -> set[int]:
    """The claims that could become significant beside all others that could (Tarone)."""
    smallest = {i: claim.smallest_p for i, claim in enumerate(claims) if claim.testable}
    for k in range(1, len(smallest) + 1):
        chosen = {i for i, p in smallest.items() if p <= LEVEL / k}
        if len(chosen) <= k:
            return chosen
    return set()


def _word(
    claim: Claim, i: int, family: Collection[int], sides: Sequence[dict[int, float]]
) -> tuple[str, str]:
    """The word of a claim, and why it is not tested."""
    if math.isnan(claim.p_for):
        reason = claim.reason or claim.gate or f"{claim.units or 'nothing'} cannot be tested"
        return NOT_TESTED, reason
    if claim.gate:
        return NOT_TESTED, claim.gate
    if i not in family:
        return NOT_TESTED, (
            f"{claim.units} can give a p-value of {claim.smallest_p:.2g} at best, too few for "
            f"{LEVEL:g} over this page"
        )
    if sides[0][i] <= LEVEL:
        return SUPPORTED, ""
    return (CONTRADICTED, "") if sides[1][i] <= LEVEL else (INCONCLUSIVE, "")


def untested(claim: Claim, reason: str) -> Claim:
    """A claim that this page does not test, whatever its numbers are."""
    return replace(claim, verdict=NOT_TESTED, reason=reason, p_for=math.nan, p_against=math.nan)


def until_finished(
    claim: Claim, cells: Collection[Hashable], finished: Container[Hashable]
) -> Claim:
    """A claim; not tested before all cells that it was registered for are there.

    Whoever stops when the numbers look well, or leaves some out, chooses.

    Args:
        cells: names of the cells that the claim is about.
        finished: names of those that are there, perhaps among others.
    """
    there = sum(cell in finished for cell in cells)
    if there == len(cells):
        return claim
    return untested(claim, claim.gate or f"{there} of its {counted(len(cells), 'cell')} finished")


def correlation_test(x: ArrayLike, rows: ArrayLike, unit: str) -> Test:
    """Whether rows (K, n) rise with `x` (n,), by permuting `x` over its n units.

    The statistic is the mean over rows of Spearman's correlation. Rows are repetitions of the same
    units, such as seeds, and stay together: what a unit has in all of them is one thing.
    """
    ranks, scores = _ranked(x), _ranked(rows).mean(axis=0)
    num = len(ranks)
    if num < 2 or not (np.isfinite(ranks).all() and np.isfinite(scores).all()):
        return Test(math.nan, math.nan, math.nan, num, unit)
    orders = _permutations(num)
    values = ranks[orders] @ scores
    return _of_values(values, float(ranks @ scores), len(orders) < math.factorial(num), num, unit)


def blocked_correlation_test(x: Sequence[ArrayLike], y: Sequence[ArrayLike], unit: str) -> Test:
    """A correlation of units in blocks, such as the vectors of each basis: permuted within blocks.

    The statistic is the sum over blocks of Spearman's correlation.
    """
    pairs = [(_ranked(a), _ranked(b)) for a, b in zip(x, y, strict=True)]
    num = sum(len(a) for a, _ in pairs)
    if not all(len(a) > 1 and np.isfinite(a).all() and np.isfinite(b).all() for a, b in pairs):
        return Test(math.nan, math.nan, math.nan, num, unit)
    generator = np.random.default_rng(0)
    count = NUM_DRAWS
    values = np.zeros(count)
    for a, b in pairs:
        values += generator.permuted(np.tile(a, (count, 1)), axis=1) @ b
    return _of_values(values, sum(float(a @ b) for a, b in pairs), True, num, unit)


def shared_correlation_test(x: Sequence[ArrayLike], y: Sequence[ArrayLike], unit: str) -> Test:
    """A correlation in blocks that share their units, such as rotations of several data sets.

    Permuted in all blocks alike: what a unit does may be one thing in all of them, and then blocks
    repeat it. The statistic is the mean over blocks of Spearman's correlation; a block whose `x`
    are all equal has none and counts as zero.
    """
    first, second = [np.nan_to_num(_ranked(a)) for a in x], [_ranked(b) for b in y]
    num = len(first[0]) if first else 0
    if num < 2 or not all(np.isfinite(b).all() for b in second):
        return Test(math.nan, math.nan, math.nan, num, unit)
    products = np.stack(first).T @ np.stack(second)  # (n, n), of unit i's x with unit j's y
    orders = _permutations(num)
    values = products[orders, np.arange(num)].sum(axis=1)
    sampled = len(orders) < math.factorial(num)
    return _of_values(values, float(products.trace()), sampled, num, unit)


def shared_correlation(x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> Interval:
    """The mean over such blocks of Spearman's correlation, and an interval over their units."""
    values = [float(np.nan_to_num(_ranked(a)) @ _ranked(b)) for a, b in zip(x, y, strict=True)]
    num = np.size(x[0]) if len(values) else 0
    return fisher_interval(float(np.mean(values)) if values else math.nan, num)


def means_by_unit(units: Iterable[Hashable], values: Iterable[float]) -> list[float]:
    """The mean of the values of each unit: what is repeated in it is one member of a population."""
    found: dict[Hashable, list[float]] = {}
    for unit, value in zip(units, values, strict=True):
        found.setdefault(unit, []).append(float(value))
    return [float(np.mean(of_one)) for of_one in found.values()]


def group_test(first: ArrayLike, second: ArrayLike, unit: str) -> Test:
    """Whether numbers of the first group are larger, by permuting groups over all units.

    The statistic is the sum of ranks of the first group (Wilcoxon).
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    return correlation_test(
        np.repeat([1.0, 0.0], [len(a), len(b)]), np.concatenate([a, b])[None], unit
    )


def sign_flip_test(differences: ArrayLike, unit: str, threshold: float = 0.0) -> Test:
    """Whether differences (n,) lie above a threshold, by exchanging the two sides of each.

    All `2^n` ways for up to 16 units, a sample of them beyond, and Student's t, which comes to the
    same, for more than a hundred. Five units reach 1/32.
    """
    values = np.asarray(differences, dtype=float) - threshold
    num = len(values)
    if num == 0 or not np.isfinite(values).all():
        return Test(math.nan, math.nan, math.nan, num, unit)
    if num > MANY:
        error = float(values.std(ddof=1)) / math.sqrt(num)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.nan_to_num(np.float64(values.mean()) / error)
        above, below = (float(special.stdtr(num - 1, sign * t)) for sign in (-1, 1))
        return Test(above, below, 0.0, num, unit)
    signs = _signs(num)
    return _of_values(signs @ values, float(values.sum()), len(signs) < 2**num, num, unit)


def all_of(tests: Sequence[Test]) -> Test:
    """The claim that several things hold at once (intersection and union).

    It is as unsure as the least sure of them. Against it speaks any of them, corrected for their
    number (Bonferroni).
    """
    return Test(
        p_for=max(test.p_for for test in tests),
        p_against=min(1.0, len(tests) * min(test.p_against for test in tests)),
        smallest_p=max(test.smallest_p for test in tests),
        num_units=min(test.num_units for test in tests),
        unit=tests[0].unit,
    )


def within_test(differences: ArrayLike, reach: float, unit: str) -> Test:
    """Whether differences lie within a reach of zero: that none was found is not enough."""
    values = np.asarray(differences, dtype=float)
    return all_of([sign_flip_test(sign * values, unit, -reach) for sign in (1, -1)])


def _of_values(values: Array, observed: float, sampled: bool, num: int, unit: str) -> Test:
    """P-values of an observed statistic among all others, or among a sample and itself."""
    reach = TOUCH * float(np.abs(values).max())
    above, below = (int((side * (values - observed) >= -reach).sum()) for side in (1, -1))
    highest = int((values >= values.max() - reach).sum())
    own, count = int(sampled), len(values)
    return Test(
        p_for=(above + own) / (count + own),
        p_against=(below + own) / (count + own),
        smallest_p=1 / (count + own) if sampled else highest / count,
        num_units=num,
        unit=unit,
    )


@functools.lru_cache(maxsize=8)
def _permutations(num: int) -> NDArray[np.intp]:
    """All orders of so many things, or a sample, (orders, num)."""
    if math.factorial(num) <= EXACT_PERMUTATIONS:
        return np.array(list(itertools.permutations(range(num))))
    orders = np.tile(np.arange(num), (NUM_DRAWS, 1))
    return np.random.default_rng(0).permuted(orders, axis=1)


@functools.lru_cache(maxsize=8)
def _signs(num: int) -> Array:
    """All signs of so many differences, or a sample, (ways, num)."""
    if num <= EXACT_SIGNS:
        return np.array(list(itertools.product([1.0, -1.0], repeat=num)))
    return np.random.default_rng(0).choice([1.0, -1.0], size=(NUM_DRAWS, num))


def _ranked(values: ArrayLike) -> Array:
    """Ranks along the last axis, centred and of unit length; NaN if they are all equal."""
    array = np.asarray(values, dtype=float)
    if not array.size or not np.isfinite(array).all():
        return np.full(array.shape, np.nan)
    ranks = _mean_ranks(array)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks / np.linalg.norm(ranks, axis=-1, keepdims=True))


def _mean_ranks(array: Array) -> Array:
    """Ranks along the last axis; equal numbers share the mean of theirs."""
    if array.shape[-1] > MANY:
        from scipy import stats  # slow to import

        return np.asarray(stats.rankdata(array, axis=-1))
    first, second = array[..., :, None], array[..., None, :]  # many calls of few numbers
    smaller, equal = (first > second).sum(axis=-1), (first == second).sum(axis=-1)
    return np.asarray(smaller + (equal + 1) / 2)


def correlation_over_units(x: ArrayLike, rows: ArrayLike) -> Interval:
    """The mean over rows of Spearman's correlation with `x`, and an interval over the n units."""
    ranks, scores = _ranked(x), _ranked(rows).mean(axis=0)
    return fisher_interval(float(ranks @ scores), len(ranks))


def fisher_interval(value: float, num: int) -> Interval:
    """A rank correlation over `num` units with its interval.

    Fisher's transformation with the standard error `1.03 / sqrt(n - 3)` (Fieller et al., 1957); no
    interval for fewer than five units or for a perfect order.
    """
    if num < MIN_SEEDS or not abs(value) < 1 - TOUCH:
        return Interval(value, math.nan, math.nan, CONFIDENCE, num)
    reach = 1.03 / math.sqrt(num - 3) * float(special.ndtri((1 + CONFIDENCE) / 2))
    low, high = (math.tanh(math.atanh(value) + sign * reach) for sign in (-1, 1))
    return Interval(value, low, high, CONFIDENCE, num)


def rank_correlation(x: ArrayLike, rows: Iterable[ArrayLike]) -> Interval:
    """Spearman's correlation of `x` with each row, and a t-interval over the rows.

    A row is one seed: seeds are what was repeated independently, points of a row are not. The
    interval is cut at one.
    """
    values = row_correlations(x, rows)
    if not len(values) or not np.isfinite(values).all():  # to leave a seed out would be to choose
        return Interval(math.nan, math.nan, math.nan, CONFIDENCE, len(values))
    return mean_interval(values, -1.0, 1.0)


def row_correlations(x: ArrayLike, rows: Iterable[ArrayLike]) -> Array:
    """Spearman's correlation of `x` with each row, (K,)."""
    return np.array([_spearman(x, row) for row in rows])


def mean_interval(values: ArrayLike, least: float = -math.inf, most: float = math.inf) -> Interval:
    """The mean of independent repetitions with a t-interval; none for fewer than five."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    if len(array) < MIN_SEEDS:
        return Interval(mean, math.nan, math.nan, CONFIDENCE, len(array))
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    reach = error * float(special.stdtrit(len(array) - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean, max(least, mean - reach), min(most, mean + reach), CONFIDENCE, len(array))


@dataclass(frozen=True)
class Paired:
    """Differences of pairs: their median with an exact interval, and how many are positive."""

    interval: Interval
    positive: int
    num: int

    def __str__(self) -> str:
        level = f" at {self.interval.confidence:.2%}" if not math.isnan(self.interval.low) else ""
        return f"{self.interval}{level}, positive in {self.positive} of {self.num}"


def paired_difference(first: ArrayLike, second: ArrayLike) -> Paired:
    """The median of `first - second` over pairs, with the interval of the sign test.

    Between the k-th smallest and k-th largest difference the median lies with probability
    `1 - 2 P(Binomial(n, 1/2) < k)`, whatever the law of the differences. `k` is the largest for
    which this is 95 %, or 1; five pairs reach 93.75 %. No interval for fewer than five.
    """
    differences = np.sort(np.asarray(first, dtype=float) - np.asarray(second, dtype=float))
    num, positive = len(differences), int((differences > 0).sum())
    median = float(np.median(differences)) if num else math.nan
    if num < MIN_SEEDS:
        return Paired(Interval(median, math.nan, math.nan, CONFIDENCE, num), positive, num)

    def coverage(k: int) -> float:
        return 1 - 2 * float(special.bdtr(k - 1, num, 0.5))

    k = max([1, *(k for k in range(1, num // 2 + 1) if coverage(k) >= CONFIDENCE)])
    interval = Interval(
        median, float(differences[k - 1]), float(differences[num - k]), coverage(k), num
    )
    return Paired(interval, positive, num)


def superiority(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Interval:
    """The chance that one of `first` exceeds one of `second`, less that of the reverse.

    With a percentile bootstrap over the elements of both. Zero means no tendency.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if min(len(a), len(b)) < MIN_SEEDS:
        return Interval(math.nan, math.nan, math.nan, CONFIDENCE, min(len(a), len(b)))
    signs = np.sign(a[:, None] - b)  # (first, second)
    generator = np.random.default_rng(seed)
    draws = [
        signs[generator.integers(len(a), size=len(a))][
            :, generator.integers(len(b), size=len(b))
        ].mean()
        for _ in range(2000)
    ]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(signs.mean()), float(low), float(high), CONFIDENCE, min(len(a), len(b)))


def correlation_over_elements(x: ArrayLike, y: ArrayLike, seed: int = 0) -> Interval:
    """Spearman's correlation with a percentile bootstrap over the elements."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(a) < 2 * MIN_SEEDS:
        return Interval(math.nan, math.nan, math.nan, CONFIDENCE, len(a))
    generator = np.random.default_rng(seed)
    chosen = np.array([generator.integers(len(a), size=len(a)) for _ in range(2000)])
    draws = (_ranked(a[chosen]) * _ranked(b[chosen])).sum(axis=1)
    low, high = np.nanquantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(_spearman(a, b), float(low), float(high), CONFIDENCE, len(a))


def _spearman(x: ArrayLike, y: ArrayLike) -> float:
    return float(_ranked(x) @ _ranked(y))
