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
as an error. It is found by letting the noise flow out again, see `_pushed` and `_largest_push`.

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

from sads.arguments import check_count, check_number
from sads.errors import InvalidArgumentError
from sads.estimates import (
    Estimate,
    Estimates,
    batch_error,
    batch_mean,
    batch_skewness,
    positive_errors,
    skew_factor,
)
from sads.geometry.lift import Lift
from sads.pieces import card, strip
from sads.shapes import format_shape

EQUAL = 1e-12  # eigenvalues this close, in units of the largest, are the same number
SURE = 2.0  # standard errors that a difference of eigenvalues must have to fix their order
CHUNK = 1 << 22  # numbers that are made at a time for all pairs of directions
FLOW_STEPS = 16  # in which the noise is taken out of the eigenvalues
WIDTH_STEPS = 5  # in which it is found how far each must be kept from its neighbours
CLOSE = 256.0  # squared distance of two eigenvalues, in units of Var_ij, up to which they fluctuate
VERY_CLOSE = 16.0  # the same, up to which they may well be equal
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
    eigenvalues agree within the errors, perhaps by symmetry), or `"unresolved"` (different
    eigenvalues, but more networks are needed to separate the directions).
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
            f"{len(self.clusters):,} clusters)"
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

    def select(self, ranks: Sequence[int]) -> Tensor:
        """The directions of some ranks, (len(ranks), *shape), without making all of `vectors`."""
        return self._lifted(torch.arange(len(self.values))[list(ranks)])

    def preferred(self, count: int = 1) -> Tensor:
        """The `count` most preferred directions, best first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(len(self.values)).flip(0)[:count])

    def avoided(self, count: int = 1) -> Tensor:
        """The `count` most avoided directions, worst first, (count, *shape)."""
        self._check_count(count)
        return self._lifted(torch.arange(count))

    def eigenvalue(self, index: int) -> Estimate:
        """The eigenvalue of direction `index` with its standard error."""
        return Estimates(self.values, self.value_errors)[index]

    def cluster_of(self, index: int) -> Cluster | None:
        """The cluster that direction `index` belongs to; None if it is resolved."""
        index = range(len(self.values))[index]
        return next((c for c in self.clusters if c.start <= index < c.stop), None)

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


def figure6_ranks(dimension: int, count: int = 9) -> list[int]:
    """Evenly spread ranks, counted from 0, as in Figure 6: 0, 31, 63, ... 255 of 256."""
    if dimension <= count:
        return list(range(dimension))
    return [0, *(round(k * dimension / (count - 1)) - 1 for k in range(1, count))]


def find_directions(
    factors: Tensor,
    counts: Tensor,
    lift: Lift,
    shape: tuple[int, ...],
    tolerance: float,
    known: bool = True,
    first_order: bool = False,
) -> Directions:
    """Eigenvectors, errors and clusters from the batches of a geometry.

    Args:
        factors: (K, P, P), the factor of each batch. One batch of zero networks is exact.
        counts: (K,), networks in each batch.
        known: can the batches know their errors? If not, all of them are infinite.
        first_order: take distances of eigenvalues as they came out. Angles are then too small in
            a crowd; see `Geometry.data_directions` for what needs them.
    """
    check_number("the tolerance, an angle in radians,", tolerance, 0)
    values, basis = torch.linalg.eigh(batch_mean(factors, counts))
    values, basis = values.flip(0), _fix_signs(basis.flip(1))
    values = torch.where(values > EQUAL * values[0], values, 0.0)  # the rest is rounding
    errors, forms, skewed = form_errors(factors, counts, basis, skewness=True)
    variance = errors.square_()
    unseen = values == 0
    sampled = int(counts.sum()) > 0
    if unseen.any() and sampled and int(counts.sum()) < len(values):
        # Fewer networks than directions: batches vanish where their mean does, whatever the truth.
        known = False
    if not known:
        variance = torch.full_like(variance, math.inf)

    same = (values[:, None] - values).abs() <= EQUAL * values[0]  # (P, P)
    if bool(variance.isfinite().all()):
        bias = _pushed(values, torch.where(same, 0.0, variance))
    else:
        bias = torch.full_like(values, math.inf)
    skewness = _skewness(forms, counts, ~unseen)
    push = _largest_push(values, torch.where(same, 0.0, variance), bias)
    value_errors = _value_errors(values, variance.diagonal(), bias, push, skewness)
    higher = torch.maximum(values[:, None], values) * values[:, None]
    noise = torch.where(same | (higher == 0), 0.0, variance / higher).sum(dim=1)
    few = sampled and int(counts.sum()) < FEW * len(counts)
    value_errors[noise > (CROWDED_FEW if few else CROWDED)] = math.inf
    if sampled:  # zeros are so up to rounding
        value_errors[unseen] = value_errors[unseen].clamp(min=float(EQUAL * values[0]))
    low, high, rotation = _compare_pairs(values, forms, counts, bias, first_order)
    # From distances, squared, to squared angles; clamped so that sums of them stay accurate.
    rotation = torch.div(variance, rotation, out=rotation)
    if not first_order:
        rotation *= skew_factor(skewed).square_()
    rotation.nan_to_num_(nan=UNDETERMINED).clamp_(max=UNDETERMINED)
    rotation[same] = 0.0
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
        elif doubt <= 0.2 * average and spread <= max(2 * doubt, rounding):
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


def _largest_push(values: Tensor, variance: Tensor, bias: Tensor) -> Tensor:
    """How far noise may have pushed every eigenvalue, (P,), if one neighbour is not counted.

    In `bias` the pushes of the neighbour above and of the one below cancel. But either may be far
    away in truth, and the other one the partner of an equal pair. For two on their own Dyson's law
    is `d^2 = d_0^2 + 4 Var_ij`, with `Var_ij` counted as in `_pushed`.
    """
    if len(values) < 2:
        return bias.abs()
    distance = values[:-1] - values[1:]  # to the one below, (P - 1,)
    noise = variance.diagonal(1)
    noise = noise * _closeness(noise / distance.square().clamp(min=torch.finfo(values.dtype).tiny))
    before = (distance.square() - 4 * noise).clamp(min=0).sqrt()
    push = torch.where(noise > 0, (distance - before) / 2, 0.0)
    from_below, from_above = torch.zeros_like(bias), torch.zeros_like(bias)
    from_below[:-1], from_above[1:] = push, push
    without = torch.stack([bias, bias - from_below, bias + from_above])
    return without.abs().amax(dim=0)


def _closeness(near: Tensor) -> Tensor:
    """How often `Var_ij` counts, once to three times, from `Var_ij / (lambda_i - lambda_j)^2`."""
    often = (VERY_CLOSE * near).clamp_(max=1).square_().add_(1)
    return often.add_((CLOSE * near).clamp_(max=1).square_())


def _pushed(values: Tensor, variance: Tensor) -> Tensor:
    """How far noise has pushed every eigenvalue, (P,).

    If noise of variance `Var_ij` is added little by little (from `s = 0` to 1), eigenvalues repel
    each other by Dyson's law, `d lambda_i / ds = sum_j Var_ij / (lambda_i - lambda_j)`. Here it is
    followed back from what was found. The noise is taken to grow with both eigenvalues, as that of
    an average of outer products does (which makes this the law of Marchenko and Pastur for small
    noise). Two that are close also fluctuate: for two that are equal, the square of their distance
    is `8 Var_ij` on average and not the `4 Var_ij` of Dyson's law. So `Var_ij` counts twice where
    they are close, and three times where they may well be equal: `12 Var_ij` is seldom exceeded.

    A step replaces `1 / d` by `d / (d^2 + width^2)`, with widths such that no two eigenvalues pass
    each other; those that meet stay together.

    Args:
        values: (P,), descending.
        variance: (P, P), zero on the diagonal and between eigenvalues that are the same number.
    """
    tiny = torch.finfo(values.dtype).tiny
    clean = values.clone()
    for _ in range(FLOW_STEPS):
        scale = torch.where(values > 0, clean / values, 1.0)
        difference = clean[:, None] - clean  # (P, P)
        square = difference.square()
        times = _closeness(variance / square.clamp(min=tiny))
        noise = times.mul_(variance).mul_(scale[:, None]).mul_(scale).div_(FLOW_STEPS)
        width = noise.sum(dim=1).mul_(2).clamp(min=tiny)  # squared, (P,)
        for _ in range(WIDTH_STEPS):  # until sum_j noise / (d^2 + width^2) is about a half
            width = width * (noise / (square + width[:, None])).sum(dim=1).mul(2).clamp(min=0.01)
        softened = square.add_(torch.maximum(width[:, None], width))
        clean = (clean - noise.mul_(difference).div_(softened).sum(dim=1)).clamp(min=0)
    return values - clean


def form_errors(
    factors: Tensor, counts: Tensor, basis: Tensor, skewness: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The standard errors of `u_i^T G u_j` for the columns `u` of a basis (P, r), as (r, r).

    With them `u_i^T G_k u_i` of every batch, (K, r), and, if asked for, the skewness of
    `u_i^T G_k u_j` over the batches, (r, r).
    """
    size, width = basis.shape
    errors = torch.empty(width, width, dtype=factors.dtype)
    skewed = torch.empty(width, width, dtype=torch.float32) if skewness else torch.empty(0)
    diagonals = torch.empty(len(factors), width, dtype=factors.dtype)
    for rows in torch.arange(width).split(max(1, CHUNK // (len(factors) * size))):
        forms = torch.stack([basis[:, rows].T @ factor @ basis for factor in factors])
        errors[rows] = batch_error(forms, counts)  # of (K, rows, r)
        if skewness:
            skewed[rows] = batch_skewness(forms, counts).float()
        diagonals[:, rows] = forms[:, torch.arange(len(rows)), rows]
    return errors, diagonals, skewed


def _compare_pairs(
    values: Tensor, forms: Tensor, counts: Tensor, bias: Tensor, first_order: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The first and the last rank that each direction may have, (P,) each, and squared distances.

    Args:
        forms: (K, P), `u_i^T G_k u_i` of every batch.
        bias: (P,), how far noise pushes each eigenvalue.
        first_order: give the distances as they are, not cautiously.
    """
    size = len(values)
    low, high = torch.empty(2, size, dtype=torch.int64)
    squares = torch.empty(size, size, dtype=values.dtype)
    for rows in torch.arange(size).split(max(1, CHUNK // forms.numel())):
        difference = values[rows, None] - values  # (rows, P)
        spread = batch_error(forms[:, rows, None] - forms[:, None], counts)
        error = torch.hypot(spread, bias[rows, None] - bias).nan_to_num(nan=math.inf)
        sure = difference.abs() > (SURE * error).clamp(min=float(EQUAL * values[0]))
        low[rows] = (sure & (difference < 0)).sum(dim=1)
        high[rows] = size - 1 - (sure & (difference > 0)).sum(dim=1)
        distance = difference.abs()
        squares[rows] = (distance if first_order else _cautious(distance, error)).square()
    return low, high, squares


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


def _fix_signs(basis: Tensor) -> Tensor:
    """The entry of largest magnitude of every column is positive."""
    largest = basis.abs().argmax(dim=0)
    return basis * torch.sign(basis[largest, torch.arange(basis.shape[1])])
