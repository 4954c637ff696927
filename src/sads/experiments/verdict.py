"""What measurements say about a claim: intervals, and one of three words derived from them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

SUPPORTED, NOT_SUPPORTED, NOT_TESTED = "supported", "not supported", "not tested at this scale"
CONFIDENCE = 0.95
MIN_SEEDS = 5  # of a sign test that can reach 90 %; the paper has five


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
class Claim:
    """A statement of the paper, the numbers that bear on it, and the word they lead to."""

    text: str
    evidence: str
    verdict: str


def judge(text: str, evidence: str, interval: Interval, threshold: float = 0.0) -> Claim:
    """Supported if the whole interval lies above the threshold; not tested if there is none."""
    if math.isnan(interval.low) or math.isnan(interval.value):
        verdict = NOT_TESTED
    else:
        verdict = SUPPORTED if interval.low > threshold else NOT_SUPPORTED
    return Claim(text, evidence, verdict)


def rank_correlation(x: ArrayLike, rows: Iterable[ArrayLike]) -> Interval:
    """Spearman's correlation of `x` with each row, and a t-interval over the rows.

    A row is one seed: seeds are what was repeated independently, points of a row are not. The
    interval is cut at one.
    """
    values = np.array([_spearman(x, row) for row in rows])
    if not len(values) or not np.isfinite(values).all():  # to leave a seed out would be to choose
        return Interval(math.nan, math.nan, math.nan, CONFIDENCE, len(values))
    return mean_interval(values, -1.0, 1.0)


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
        signs[generator.integers(len(a), size=len(a))][:, generator.integers(len(b), size=len(b))]
        .mean()
        for _ in range(2000)
    ]  # fmt: skip
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(signs.mean()), float(low), float(high), CONFIDENCE, min(len(a), len(b)))


def correlation_over_elements(x: ArrayLike, y: ArrayLike, seed: int = 0) -> Interval:
    """Spearman's correlation with a percentile bootstrap over the elements."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(a) < 2 * MIN_SEEDS:
        return Interval(math.nan, math.nan, math.nan, CONFIDENCE, len(a))
    generator = np.random.default_rng(seed)
    draws = []
    for _ in range(2000):
        chosen = generator.integers(len(a), size=len(a))
        draws.append(_spearman(a[chosen], b[chosen]))
    low, high = np.nanquantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(_spearman(a, b), float(low), float(high), CONFIDENCE, len(a))


def _spearman(x: ArrayLike, y: ArrayLike) -> float:
    from scipy import stats  # slow to import

    return float(stats.spearmanr(x, y).statistic)


def mean_and_error(values: ArrayLike) -> tuple[float, float]:
    """Mean and standard error; NaN for the error of a single value."""
    array = np.asarray(values, dtype=float)
    error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()) if len(array) else math.nan, error
