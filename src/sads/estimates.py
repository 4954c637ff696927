"""Numbers that know how sure they are, and the one formula for errors over batches.

An estimate is a mean over independent things: batches of random networks, seeds, samples. For
batches `k` of `n_k` networks with weights `w_k = n_k / n` and means `m_k`, the variance of the mean
`m = sum_k w_k m_k` is estimated by

    sum_k w_k^2 / (1 - w_k) (m_k - m)^2,

which is the usual `s^2 / K` for equal weights and unbiased up to the inequality of the weights.
Fewer than eight batches say too little about their own spread: the error is then infinite, which
is written `± ?`.

What an error claims, nominally: two of them hold the truth in 94 cases of 100 (Student's t with 15
degrees of freedom, for 16 batches: 2.13 errors hold it in 95, one error in 67). How far that is so
for geometries is measured in docs/certificate.md.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sads.markup import element

if TYPE_CHECKING:  # commands print estimates before anybody needs PyTorch, which is slow to import
    from torch import Tensor

MIN_BATCHES = 8  # below this, their spread says too little
SKEW = 0.2  # by which an error grows for a squared skewness of 1, see `skew_factor`
MAX_RELATIVE = 0.25  # a larger error of a positive mean, in units of it, is not known by batches
FEW_NUMBERS = 1 << 14  # of which copies take no time, and every operation more than its numbers


def format_error(error: float, form: str = ".2g") -> str:
    """A standard error as it is shown.

    >>> format_error(0.1234), format_error(0.1234, ".1%"), format_error(math.inf)
    ('0.12', '12.3%', '?')
    """
    return format(error, form) if math.isfinite(error) else "?"


class Estimate(float):
    """A number and its standard error.

    It is used like any number, and what is computed from it is a plain one. The error is infinite
    or NaN where nothing is known about it.

    >>> estimate = Estimate(2.5, 0.1)
    >>> print(estimate, estimate.error, estimate > 2)
    2.5 ± 0.1 0.1 True
    """

    __slots__ = ("_error",)
    _error: float

    def __new__(cls, value: float, error: float) -> "Estimate":
        self = super().__new__(cls, value)
        self._error = float(error)
        return self

    @property
    def value(self) -> float:
        return float(self)

    @property
    def error(self) -> float:
        return self._error

    def __str__(self) -> str:
        """Four digits, with two of the error, or `?` for it; six digits if the number is exact."""
        if self.error == 0:
            return f"{self.value:.6g}"
        if self.error == math.inf:
            return f"{self.value:.4g} ± ?"
        if not math.isfinite(self.error):
            return f"{self.value:.4g}"
        return f"{self.value:.4g} ± {self.error:.2g}"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return str(element("span", self))

    def __repr__(self) -> str:
        return f"Estimate({self.value!r}, {self.error!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimate, (self.value, self.error)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Many numbers and their standard errors."""

    values: "Tensor"  # (n,) float64
    errors: "Tensor"  # (n,)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(float(self.values[index]), float(self.errors[index]))

    def __iter__(self) -> Iterator[Estimate]:
        return (self[i] for i in range(len(self)))


def batch_mean(values: "Tensor", counts: "Tensor") -> "Tensor":
    """The mean over all networks of the means (K, ...) of batches of `counts` (K,) of them.

    A single batch of no networks is exact: its value is the mean.
    """
    total = int(counts.sum())
    if total == 0:
        return values[0]
    weights = counts.to(values.dtype) / total
    return (
        (weights @ values.flatten(1)).reshape(values.shape[1:])
        if values.ndim > 1
        else (weights @ values)
    )


def batch_error(values: "Tensor", counts: "Tensor") -> "Tensor":
    """The standard error of `batch_mean`, (...): see the head of this module.

    Zero for the single batch of an exact result, infinite for too few batches.
    """
    if int(counts.sum()) == 0:
        return values[0].new_zeros(values[0].shape)
    used = counts > 0
    if int(used.sum()) < MIN_BATCHES:
        return values[0].new_full(values[0].shape, math.inf)
    mean = batch_mean(values, counts)
    variance = mean.new_zeros(mean.shape)
    weights = (counts.double() / counts.sum())[used].tolist()
    factors = [weight**2 / (1 - weight) for weight in weights]
    if values.numel() < FEW_NUMBERS:  # all at once: the same operations, and sums in this order
        each = mean.new_tensor(factors).reshape(-1, *[1] * mean.ndim)
        for part in each * (values[used] - mean) ** 2:
            variance += part
        return variance.sqrt()
    for value, factor in zip(values[used], factors, strict=True):
        variance += factor * (value - mean) ** 2
    return variance.sqrt()


def batch_skewness(values: "Tensor", counts: "Tensor") -> "Tensor":
    """The skewness of the numbers (K, ...) that every batch has, (...); 0 where they are equal.

    The usual `sqrt(K (K - 1)) / (K - 2) m_3 / m_2^(3/2)`, for batches of about the same size.
    """
    import torch

    used = values[counts > 0]
    number = len(used)
    if number < MIN_BATCHES:
        return values[0].new_zeros(values[0].shape)
    deviations = used - used.mean(dim=0)
    spread = deviations.square().mean(dim=0)
    rounding = (1e-12 * used.abs().amax(dim=0)).square()
    factor = math.sqrt(number * (number - 1)) / (number - 2)
    skewness = factor * deviations.pow(3).mean(dim=0) / spread.clamp(min=1e-300).pow(1.5)
    return torch.where(spread > rounding, skewness, 0.0)


def skew_factor(skewness: "Tensor") -> "Tensor":
    """What errors from batches of this skewness must be multiplied with to hold what they claim.

    Student's t is for batches of normal law. If that is skewed, an estimate that is too small comes
    with a spread that is too small, and 2.13 errors of 16 batches miss not 5 % but `5 % + 1.4 %
    skewness^2` (the Edgeworth expansion of Student's statistic, to leading order), which an error
    wider by `0.08 skewness^2` would mend if the skewness were known. What 16 batches show of it is
    about two thirds, hence 0.2: with it the means of Gamma, lognormal and compound Poisson laws of
    a skewness up to 2 are missed in 4 to 6 % (`pytest tests/test_coverage.py -k skewed`).
    """
    return 1 + SKEW * skewness.square()


def positive_errors(values: "Tensor", errors: "Tensor") -> "Tensor":
    """The errors of means of positive numbers, whose laws are skewed.

    Where a mean came out too small, so did the spread of its batches. On the scale of logarithms
    the two have nothing to do with each other, to first order: the error is taken there, `errors /
    values`, and the wider side of it, upwards, taken back. A relative error of more than a quarter
    means that few networks decide the mean, and nobody knows how many like them were not met: then
    it is infinite.
    """
    import torch

    relative = torch.where(values > 0, errors / values, 0.0)
    skewed = torch.where(values > 0, values * torch.expm1(relative), errors)
    return torch.where(relative > MAX_RELATIVE, math.inf, skewed)


def mean_estimate(values: Iterable[Any]) -> Estimate:
    """The mean of independent repetitions and its standard error; NaN for the error of one.

    >>> print(mean_estimate([1.0, 2.0, 3.0]))
    2 ± 0.58
    """
    numbers = [float(value) for value in values]
    if not numbers:
        return Estimate(math.nan, math.nan)
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return Estimate(mean, math.nan)
    variance = sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return Estimate(mean, math.sqrt(variance / len(numbers)))


def share_estimate(count: int, total: int) -> Estimate:
    """A share of independent things, and the standard deviation of Jeffreys' posterior for it.

    That of Beta(count + 1/2, total - count + 1/2): `sqrt(p (1 - p) / n)` for large counts, and not
    0 if nothing, or everything, was counted.

    >>> print(share_estimate(0, 100))
    0 ± 0.0069
    """
    if total == 0:
        return Estimate(math.nan, math.nan)
    a, b = count + 0.5, total - count + 0.5
    return Estimate(count / total, math.sqrt(a * b / (a + b) ** 2 / (a + b + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of tests, adjusted (Holm, 1979): m times the smallest, and so on.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted
