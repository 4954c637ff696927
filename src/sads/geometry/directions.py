"""The Score Anisotropy Directions: eigenvectors of a geometry, and how sure each of them is.

A geometry keeps the moments of K independent batches of networks. In the eigenbasis
`u_1, u_2, ...` of their mean, the spread of the batches gives `Var_ij = Var(u_i^T G u_j)`, and

    angle_i^2 = sum_{j != i} Var_ij / gap_ij^2
    error_i^2 = spread_i^2 + bias_i^2

the first by perturbation theory to first order. `gap_ij` is `lambda_i - lambda_j`, made smaller for
its own error: of directions in a crowd, just those whose distance came out too large look resolved
(`_cautious`). `spread_i` is the root of `Var_ii`, made wider as the law of a positive mean is
skewed (`positive_errors`, `skew_factor`). `bias_i` is how far noise has pushed the eigenvalue:
large ones come out too large, small ones too small. Eigenvalues are not corrected for it; it counts
as an error. It is found by letting the noise flow out again, see `repulsion`.

An error that the batches cannot know is infinite: where the spread is more than a quarter of an
eigenvalue, where `sum_j Var_ij / (lambda_i max(lambda_i, lambda_j))` is more than a sixteenth (for
the smallest eigenvalues of n outer products in D dimensions it is D / n), or more than 1/64 if the
batches hold fewer than 16 networks each, and everywhere if the networks that the batches hold are
too few (`Geometry.errors_unknown` says why).

Directions that are not sure enough on their own are gathered into clusters of neighbouring
eigenvalues until what remains, the subspace of each cluster, is.

A direction can be sure while its *rank* is not: two eigenvalues of different symmetry do not mix
(`Var_ij = 0`), however close they are. So the order is certified on its own. The batches give the
error of every difference, what two eigenvalues have in common left out,

    error(lambda_i - lambda_j)^2 = Var( u_i^T G u_i - u_j^T G u_j ) + ( bias_i - bias_j )^2

and `rank_low[i] .. rank_high[i]` are the ranks that direction `i` has when only those differences
count that are larger than two of their errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.arguments import check_count, check_number, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError, counted
from sads.estimates import (
    Estimate,
    Estimates,
    batch_error,
    batch_skewness,
    positive_errors,
    skew_factor,
)
from sads.geometry.eigenbasis import CHUNK, EQUAL, Spread, rows_at_once
from sads.geometry.lift import Lift
from sads.geometry.repulsion import largest_push, pushed
from sads.markup import card, strip
from sads.shapes import format_shape
from sads.table1 import figure6_ranks

SURE = 2.0  # standard errors that a difference of eigenvalues must have to fix their order
CROWDED = 1 / 16  # noise against the others at which the error of an eigenvalue is not known
FEW = 16  # networks in a batch, below which rare networks are not seen in its spread
CROWDED_FEW = 1 / 64  # and that noise for such batches
UNDETERMINED = 10.0  # squared angle, far beyond the quarter turn that means no information
DOUBT = 3.0  # squared errors of a distance, in units of it, by which it is taken smaller
NEVER = 1 / 16  # of its error: whatever a distance is, it is larger than that in 95 cases of 100


@dataclass(frozen=True)
class Cluster:
    """Directions `start .. stop - 1` (descending order) whose common subspace is certified.

    `reason`: `"multiplicity"` (equal by the structure of the output layer), `"equal"` (their
    eigenvalues agree within the errors, perhaps by symmetry, or are zero), or `"unresolved"`
    (different eigenvalues, but more networks are needed to separate the directions).
    """

    start: int
    stop: int
    value: float  # mean eigenvalue
    value_error: float
    angle_error: float  # radians by which a direction of the cluster may leave the subspace
    reason: str

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False, repr=False)
class Directions:
    """Eigenvectors of a geometry in descending order of eigenvalue, with their errors.

    `vectors[0]` is the most avoided direction, `vectors[-1]` the most preferred one. Direction
    `i` may in truth have any of the ranks `rank_low[i]` to `rank_high[i]`; its order is sure where
    both are `i`.
    """

    values: Tensor  # (D,) float64, descending
    value_errors: Tensor  # (D,)
    angle_errors: Tensor  # (D,) radians, at most pi / 2: not determined
    resolved: Tensor  # (D,) bool: an individual direction at the tolerance
    rank_low: Tensor  # (D,) int64: the first of the ranks, from 0, that a direction may have
    rank_high: Tensor  # (D,) int64: the last of them
    clusters: tuple[Cluster, ...]
    tolerance: float  # radians
    shape: tuple[int, ...]
    _basis: Tensor  # (P, P), columns are eigenvectors of the factor
    _lift: Lift

    def __repr__(self) -> str:
        return (
            f"Directions({format_shape(self.shape)}, {int(self.resolved.sum()):,} of "
            f"{len(self.values):,} resolved to {self.tolerance:g} rad, "
            f"{counted(len(self.clusters), 'cluster')})"
        )

    def _repr_html_(self) -> str:
        """As a notebook shows it: directions as in Figure 6, and how sure they are."""
        ranks = figure6_ranks(len(self.values))
        captions = [f"u{rank + 1}: {self.eigenvalue(rank)}" for rank in ranks]
        pictures = zip(self.select(ranks), captions, strict=True)
        return card(repr(self), strip(pictures))

    @cached_property
    def vectors(self) -> Tensor:
        """(D, *shape) float64."""
        return self._lifted(torch.arange(len(self.values)))

    @checked
    def select(self, ranks: Sequence[int]) -> Tensor:
        """The directions of some ranks, (len(ranks), *shape), without making all of `vectors`."""
        found = [self._rank(rank) for rank in ranks]
        return self._lifted(torch.tensor(found, dtype=torch.long))

    @checked
    def preferred(self, count: int = 1) -> Tensor:
        """The `count` most preferred directions, best first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(len(self.values)).flip(0)[:count])

    @checked
    def avoided(self, count: int = 1) -> Tensor:
        """The `count` most avoided directions, worst first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(count))

    def cuts(self, side: str) -> Tensor:
        """Does the m-th eigenvalue from an end differ from the next one? (D,) bool, for m from 1.

        Only then does the spectrum say which m directions are the outermost ones of this side.
        """
        values = self.values if side == "avoided" else self.values.flip(0)
        distant = values.diff().abs() > EQUAL * self.values[0]
        return torch.cat([distant, torch.ones(1, dtype=torch.bool)])

    @checked
    def eigenvalue(self, index: int) -> Estimate:
        """The eigenvalue of direction `index` with its standard error."""
        return Estimates(self.values, self.value_errors)[self._rank(index)]

    @checked
    def cluster_of(self, index: int) -> Cluster | None:
        """The cluster that direction `index` belongs to; None if it is resolved."""
        index = self._rank(index)
        return next((c for c in self.clusters if c.start <= index < c.stop), None)

    def _rank(self, index: int) -> int:
        """A rank, counted from 0, or from the end if it is negative."""
        try:
            return range(len(self.values))[index]
        except IndexError:
            raise InvalidArgumentError(
                f"there is no direction {shown(index)} of {len(self.values)}; ranks are counted "
                "from 0, or from the end: -1 is the most preferred one"
            ) from None

    def _check_count(self, count: int) -> None:
        if not 1 <= check_count("the number of directions", count) <= len(self.values):
            raise InvalidArgumentError(
                f"asked for {count} directions of {len(self.values)}; give a number from 1 to D"
            )

    def _lifted(self, indices: Tensor) -> Tensor:
        groups = self._lift.groups
        z = torch.zeros(len(indices), groups, self._lift.size, dtype=torch.float64)
        z[torch.arange(len(indices)), indices % groups] = self._basis[:, indices // groups].T
        return self._lift.join(z).reshape(len(indices), *self.shape)


def find_directions(
    found: Spread,
    counts: Tensor,
    lift: Lift,
    shape: tuple[int, ...],
    tolerance: float,
    known: bool = True,
    first_order: bool = False,
) -> Directions:
    """Eigenvectors, errors and clusters from the batches of a geometry.

    Args:
        found: eigenvectors of the batches' mean, and their spread, whose errors are used up.
        counts: (K,), networks in each batch; one batch of zero networks is exact.
        known: can the batches know their errors? If not, all of them are infinite.
        first_order: take distances of eigenvalues as they came out. Angles are then too small in
            a crowd; see `Geometry.data_directions` for what needs them.
    """
    check_number("the tolerance, an angle in radians,", tolerance, 0)
    values, basis, forms = found.values, found.basis, found.forms
    variance = found.errors.square_()
    unseen = values == 0
    sampled = int(counts.sum()) > 0
    if unseen.any() and sampled and int(counts.sum()) < len(values):
        # Fewer networks than directions: batches vanish where their mean does, whatever the truth.
        known = False
    if not known:
        variance.fill_(math.inf)

    same = _equal(values)  # (P, P)
    all_known = bool(variance.isfinite().all())
    of_values = variance.diagonal().clone()
    variance.masked_fill_(same, 0.0)
    bias = pushed(values, variance) if all_known else torch.full_like(values, math.inf)
    skewness = _skewness(forms, counts, ~unseen)
    push = largest_push(values, variance, bias)
    value_errors = _value_errors(values, of_values, bias, push, skewness)
    few = sampled and int(counts.sum()) < FEW * len(counts)
    value_errors[_noise(values, variance) > (CROWDED_FEW if few else CROWDED)] = math.inf
    if sampled:  # zeros are so up to rounding
        value_errors[unseen] = value_errors[unseen].clamp(min=float(EQUAL * values[0]))
    of_pairs = None if first_order else found.skewness
    low, high = _turn(variance, same, values, forms, counts, bias, of_pairs)
    rotation = variance  # squared angles from here on
    alone = (same.sum(dim=1) == 1) & (lift.groups == 1)
    angles = rotation.sum(dim=1).sqrt().clamp(max=math.pi / 2)
    angles = torch.where(alone, angles, math.pi / 2)

    parts = _partition(rotation, same, tolerance)
    resolved = torch.zeros(len(values), dtype=torch.bool)
    clusters = []
    for start, stop, leak in parts:
        if stop - start == 1 and lift.groups == 1:
            resolved[start] = leak <= tolerance
            if resolved[start]:
                continue
        inside = slice(start, stop)
        error = math.inf
        if bool(value_errors[inside].isfinite().all()):
            together = batch_error(forms[:, inside].mean(dim=1), counts)
            together = together * skew_factor(skewness[inside]).amax()
            # Where a cluster ends depends on the noise too: its bias counts as that of its members.
            error = math.hypot(float(together), float(bias[inside].square().mean().sqrt()))
        spread = float(values[start] - values[stop - 1])
        doubt = float(value_errors[start] + value_errors[stop - 1])
        average = float(values[inside].mean())
        rounding = float(EQUAL * values[0] * (stop - start))
        if stop - start == 1:
            reason = "multiplicity"
        elif doubt <= max(0.2 * average, rounding) and spread <= max(2 * doubt, rounding):
            reason = "equal"
        else:
            reason = "unresolved"
        clusters.append(
            Cluster(
                start=start * lift.groups,
                stop=stop * lift.groups,
                value=average,
                value_error=error,
                angle_error=min(leak, math.pi / 2),
                reason=reason,
            )
        )
    copies = lift.groups
    return Directions(
        values=values.repeat_interleave(copies),
        value_errors=value_errors.repeat_interleave(copies),
        angle_errors=angles.repeat_interleave(copies),
        resolved=resolved.repeat_interleave(copies),
        rank_low=(low * copies).repeat_interleave(copies),
        rank_high=(high * copies + copies - 1).repeat_interleave(copies),
        clusters=tuple(clusters),
        tolerance=tolerance,
        shape=shape,
        _basis=basis,
        _lift=lift,
    )


def _equal(values: Tensor) -> Tensor:
    """Which eigenvalues are the same number, (P, P) bool."""
    parts = values.split(rows_at_once(len(values)))
    limit = EQUAL * values[0]
    return torch.cat([(part[:, None] - values).abs() <= limit for part in parts])


def _noise(values: Tensor, variance: Tensor) -> Tensor:
    """`sum_j Var_ij / (lambda_i max(lambda_i, lambda_j))`, (P,)."""
    sums = []
    at_once = rows_at_once(len(values))
    for part, of_part in zip(values.split(at_once), variance.split(at_once), strict=True):
        higher = torch.maximum(part[:, None], values) * part[:, None]
        ratio = torch.where((of_part == 0) | (higher == 0), 0.0, of_part / higher)
        sums.append(ratio.sum(dim=1))
    return torch.cat(sums)


def _value_errors(
    values: Tensor, variance: Tensor, bias: Tensor, push: Tensor, skewness: Tensor
) -> Tensor:
    """Standard errors of eigenvalues, (P,): their spread, and how far noise may have pushed them.

    The spread of an eigenvalue that came out too small is too small by the same factor.
    """
    spread = positive_errors(values, variance.sqrt() * skew_factor(skewness))
    shrunk = torch.where(values > 0, (values - bias) / values, 1.0).clamp(min=1.0)
    return torch.hypot(spread * shrunk, push).nan_to_num(nan=math.inf, posinf=math.inf)


def _skewness(forms: Tensor, counts: Tensor, seen: Tensor) -> Tensor:
    """The skewness of `u_i^T G_k u_i` over the batches, (P,).

    At least its root mean square over all directions: the networks are the same, and a direction
    in which the rare ones happened to be missing does not show its own.
    """
    skewness = batch_skewness(forms, counts)
    if not seen.any():
        return skewness
    return skewness.abs().maximum(skewness[seen].square().mean().sqrt())


def _turn(
    variance: Tensor,
    same: Tensor,
    values: Tensor,
    forms: Tensor,
    counts: Tensor,
    bias: Tensor,
    skewness: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Variances of pairs become squared angles between them, where they stand.

    No larger than `UNDETERMINED`, so that sums and differences of them stay accurate.

    Args:
        variance: (P, P), of `u_i^T G u_j`.
        same: (P, P), which eigenvalues are the same number.
        forms: (K, P), `u_i^T G_k u_i` of every batch.
        bias: (P,), how far noise pushes each eigenvalue.
        skewness: (P, P), of `u_i^T G_k u_j`. Without it angles are of first order: distances
            count as they came out.

    Returns:
        The first and the last rank that each direction may have, (P,) each.
    """
    size = len(values)
    low, high = torch.empty(2, size, dtype=torch.int64)
    for rows in torch.arange(size).split(max(1, CHUNK // forms.numel())):
        difference = values[rows, None] - values  # (rows, P)
        spread = batch_error(forms[:, rows, None] - forms[:, None], counts)
        error = torch.hypot(spread, bias[rows, None] - bias).nan_to_num(nan=math.inf)
        sure = difference.abs() > (SURE * error).clamp(min=float(EQUAL * values[0]))
        low[rows] = (sure & (difference < 0)).sum(dim=1)
        high[rows] = size - 1 - (sure & (difference > 0)).sum(dim=1)
        distance = difference.abs_()
        if skewness is None:
            angles = variance[rows] / distance.square_()
        else:
            angles = variance[rows] / _cautious(distance, error).square_()
            angles *= skew_factor(skewness[rows]).square_()
        angles = angles.nan_to_num_(nan=UNDETERMINED).clamp_(max=UNDETERMINED)
        variance[rows] = angles.masked_fill_(same[rows], 0.0)
    return low, high


def _cautious(distance: Tensor, error: Tensor) -> Tensor:
    """Distances of eigenvalues, made smaller for what is not known about them.

    With `d` the distance that was found, `s` its error and `sigma^2 = Var_ij`, the direction is
    turned by `|e| sigma / (d - x s)`, where `e` and `x` are of standard normal law. That is beyond
    `k` errors `sigma / d` more often than for `x = 0`, to leading order by `(s / d)^2 k^3 phi(k)`
    with the normal density `phi`. An error wider by `1 + (s / d)^2 k^2 / 2` makes up for it, so
    that the distance should count as `d - 2 s^2 / d` for `k = 2`. It is 3 instead of 2 because the
    pairs that look apart are not any pairs but those of a crowd that noise moved most: with 2, 9 %
    of the directions of 64 networks were missed where it is worst, with 3, 5 % (on seeds that are
    not those of the table in docs/certificate.md). Less than 1.7 errors are no distance at all.

    But even then two that hardly mix, because they are of different symmetry, are not turned: the
    density of the true distance is `0.4 / s` at most, so that it is larger than `s / 16` in 95
    cases of 100 whatever was found.
    """
    doubt = torch.where(distance > 0, DOUBT * error.square() / distance, math.inf)
    return torch.maximum(distance - doubt, NEVER * error)


def _partition(rotation: Tensor, same: Tensor, tolerance: float) -> list[tuple[int, int, float]]:
    """Runs `[start, stop)` of neighbours whose subspaces are sure to the tolerance, with angles.

    Greedy: while some run leaks more than the tolerance, merge the leakiest one with the
    neighbour that it leaks into most. A run's leak is the largest among its members.
    """
    size = len(rotation)
    starts = [0] + [i for i in range(1, size) if not same[i - 1, i]]
    runs = [[a, b] for a, b in zip(starts, [*starts[1:], size], strict=True)]
    outside = rotation.sum(dim=1)  # squared angle by which each direction leaves its run
    for a, b in runs:
        if b - a > 1:
            outside[a:b] = rotation[a:b].sum(dim=1) - rotation[a:b, a:b].sum(dim=1)

    def leak(run: list[int]) -> float:
        return float(outside[run[0] : run[1]].max())

    leaks = [leak(run) for run in runs]
    while len(runs) > 1 and max(leaks) > tolerance**2:
        i = max(range(len(runs)), key=leaks.__getitem__)
        mine = slice(*runs[i])

        def into(k: int, mine: slice = mine) -> float:
            if not 0 <= k < len(runs):
                return -1.0
            return float(rotation[mine, slice(*runs[k])].sum())

        j = max((i - 1, i + 1), key=into)
        other = slice(*runs[j])
        outside[mine] -= rotation[mine, other].sum(dim=1)
        outside[other] -= rotation[other, mine].sum(dim=1)
        low, high = min(i, j), max(i, j)
        runs[low : high + 1] = [[runs[low][0], runs[high][1]]]
        outside[slice(*runs[low])].clamp_(min=0)
        leaks[low : high + 1] = [leak(runs[low])]
    if len(runs) == 1:
        leaks = [0.0]
    return [(a, b, math.sqrt(max(0.0, x))) for (a, b), x in zip(runs, leaks, strict=True)]
