"""Are two geometries different, where, and how sure is that?

Every geometry is taken in units of its mean eigenvalue: what is compared is preference, not size.
Three things are asked of a pair, of shapes that must be the same.

*Ends.* The principal angles between the subspaces of the m most avoided, and the m most preferred
directions. To first order, noise turns direction `i` of a subspace `S` out of it by

    noise^2 = sum_{i in S} sum_{j not in S} Var(u_i^T G u_j) / (lambda_i - lambda_j)^2

so for equal subspaces the sum of squared sines is on average the sum of both noises. Their ratio is
judged by F with 15 and 15 degrees of freedom, those of sixteen batches, or with fewer if one of the
geometries has fewer. The noise of what is exact
is rounding. Where the m-th eigenvalue equals the next one, nothing says which m directions are
meant: the ends are then as much larger as it takes for both geometries to have a distance there,
and *unknown* if no half of the directions has.

*Spectra and energies.* Eigenvalues at eleven ranks from the first to the last, and energies along
the DCT against frequency: differences of logarithms in units of their common error, by Student's t
with as many degrees of freedom.

All of these questions, of all pairs, are one family: a difference is *significant* if its p-value
is below 5 % after Holm's correction. Where an error is not known, nothing is claimed (p = 1).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import f as fisher
from scipy.stats import t as student
from torch import Tensor

from sads.arguments import check_count, check_type
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate, Estimates, batch_error, holm
from sads.geometry.directions import Directions
from sads.geometry.eigenbasis import EQUAL
from sads.geometry.profile import Profile, frequency_profile
from sads.geometry.result import SIDES, Geometry
from sads.shapes import format_shape
from sads.tables import distinct

LEVEL = 0.05
FREEDOM = 15  # of sixteen batches, and of what is exact
RANKS = 11  # at which spectra are compared
DIRECTIONS = 8  # of an end
SAME = 1e-9  # relative difference of two exact numbers that counts as none


@dataclass(frozen=True)
class Difference:
    """One number of two geometries, in units of their mean eigenvalues."""

    what: str  # "spectrum" or "frequency"
    place: float  # the rank or the frequency, from 0 to 1
    first: Estimate
    second: Estimate
    p: float
    adjusted: float = 1.0  # p after Holm's correction

    @property
    def significant(self) -> bool:
        return self.adjusted < LEVEL


@dataclass(frozen=True)
class EndAngles:
    """Principal angles between one end of two geometries; none if such ends are not defined."""

    side: str  # "avoided" or "preferred"
    angles: tuple[float, ...]  # radians, growing
    noise: float  # radians that they would have, together, if the ends were the same
    chance: float  # mean squared cosine of random subspaces
    p: float
    adjusted: float = 1.0
    unknown: str | None = None  # why there are no angles

    @property
    def overlap(self) -> float | None:
        """Mean squared cosine: 1 for the same subspace; None where it is unknown."""
        if self.unknown is not None:
            return None
        return sum(math.cos(angle) ** 2 for angle in self.angles) / len(self.angles)

    @property
    def significant(self) -> bool:
        return self.adjusted < LEVEL


@dataclass(frozen=True)
class Pair:
    """Two geometries against each other."""

    first: str
    second: str
    avoided: EndAngles
    preferred: EndAngles
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Comparison:
    """Two or more geometries of one shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    directions: int  # of each end, or as many more as have equal eigenvalues
    pairs: tuple[Pair, ...]
    tests: int  # that were corrected for each other

    @property
    def significant(self) -> int:
        """How many of the tests show a difference."""
        found = [d for pair in self.pairs for d in _questions(pair)]
        return sum(one.significant for one in found)


@checked
def compare(
    *geometries: Geometry, names: Sequence[str] | None = None, directions: int = DIRECTIONS
) -> Comparison:
    """What distinguishes geometries, and which differences are more than noise.

    Args:
        geometries: two or more, of one shape.
        names: what they are called; by their families if not given. Those of one name get numbers.
        directions: of each end, whose subspaces are compared; as many more as there are
            eigenvalues equal to the last of them.

    >>> import sads
    >>> dits = [sads.estimate_geometry(sads.family("dit", patch_size=p)) for p in (2, 4)]
    >>> compare(*dits, names=["DiT/2", "DiT/4"]).pairs[0].avoided.overlap < 1
    True
    """
    names = _checked(geometries, names)
    check_count("the number of directions", directions)
    count = min(directions, geometries[0].dimension // 2 or 1)
    known = [_Known.of(name, one) for name, one in zip(names, geometries, strict=True)]
    pairs = [
        _pair(known[i], known[j], count) for i, j in itertools.combinations(range(len(known)), 2)
    ]
    adjusted = iter(holm([one.p for pair in pairs for one in _questions(pair)]))
    corrected = tuple(
        replace(
            pair,
            avoided=replace(pair.avoided, adjusted=next(adjusted)),
            preferred=replace(pair.preferred, adjusted=next(adjusted)),
            differences=tuple(replace(d, adjusted=next(adjusted)) for d in pair.differences),
        )
        for pair in pairs
    )
    tests = sum(len(_questions(pair)) for pair in pairs)
    return Comparison(names, geometries[0].shape, count, corrected, tests)


@dataclass(frozen=True, eq=False)
class _Known:
    """What is asked of one geometry."""

    name: str
    geometry: Geometry
    directions: Directions
    spectrum: Estimates
    frequency: Estimates
    frequencies: Tensor
    rounding: float  # of an eigenvalue or an energy, as these in units of the mean eigenvalue

    @classmethod
    def of(cls, name: str, geometry: Geometry) -> "_Known":
        mean = geometry.trace / geometry.dimension
        found = geometry.directions()
        ranks = torch.linspace(0, geometry.dimension - 1, RANKS).round().long()
        nothing = torch.zeros(0, dtype=torch.float64)
        profile = Profile(nothing, Estimates(nothing, nothing), nothing)
        if len(geometry.shape) > 1:  # data without pixels have no frequencies
            profile = frequency_profile(geometry)
        return cls(
            name=name,
            geometry=geometry,
            directions=found,
            spectrum=Estimates(found.values[ranks] / mean, found.value_errors[ranks] / mean),
            frequency=profile.energies,
            frequencies=profile.places,
            rounding=EQUAL * float(found.values[0]) / mean,
        )

    @property
    def freedom(self) -> int:
        """Degrees of freedom of its errors."""
        if self.geometry.exact:
            return FREEDOM
        return max(1, int((self.geometry.counts > 0).sum()) - 1)

    def end(self, side: str, count: int) -> Tensor:
        """An orthonormal basis of an end, (count, D)."""
        directions = self.directions
        found = directions.avoided(count) if side == "avoided" else directions.preferred(count)
        return found.flatten(1)

    def noise(self, side: str, count: int) -> float:
        """The squared angle by which an end may be wrong; see the module's head."""
        geometry, copies = self.geometry, self.geometry.lift.groups
        if geometry.errors_unknown is not None:
            return math.inf
        basis, values = self.directions._basis, self.directions.values[::copies]
        inside = torch.arange(count // copies)
        if side == "preferred":
            inside = len(values) - 1 - inside
        if geometry.exact:
            variance = (EQUAL * values[0]).square()
        else:
            forms = torch.stack([basis[:, inside].T @ one @ basis for one in geometry.factors])
            variance = batch_error(forms, geometry.counts).square()  # (m, P)
        outside = torch.ones(len(values), dtype=torch.bool)
        outside[inside] = False
        distance = values[inside][:, None] - values
        return copies * float((variance / distance.square())[:, outside].sum())


def _pair(a: _Known, b: _Known, count: int) -> Pair:
    places = torch.linspace(0, 1, RANKS).tolist()
    differences = [
        *_differences("spectrum", places, a, b),
        *_differences("frequency", a.frequencies.tolist(), a, b),
    ]
    avoided, preferred = (_angles(side, a, b, count) for side in SIDES)
    return Pair(a.name, b.name, avoided, preferred, tuple(differences))


def _angles(side: str, a: _Known, b: _Known, count: int) -> EndAngles:
    """The angles between the smallest ends of `count` directions or more that both have."""
    dimension = a.geometry.dimension
    most = max(count, dimension // 2)
    cuts = a.directions.cuts(side) & b.directions.cuts(side)
    if not cuts[count - 1 : most].any():
        why = _why(side, a, b, count, most)
        return EndAngles(side, (), math.inf, count / dimension, 1.0, unknown=why)
    count += int(cuts[count - 1 :].int().argmax())
    cosines = torch.linalg.svdvals(a.end(side, count) @ b.end(side, count).T).clamp(max=1.0)
    sines = float((1 - cosines.square()).sum())
    noise = a.noise(side, count) + b.noise(side, count)
    p = 1.0
    if math.isfinite(noise) and sines > SAME:
        freedom = min(a.freedom, b.freedom)
        p = float(fisher.sf(sines / noise, freedom, freedom)) if noise > 0 else 0.0
    return EndAngles(side, tuple(cosines.acos().tolist()), math.sqrt(noise), count / dimension, p)


def _why(side: str, a: _Known, b: _Known, count: int, most: int) -> str:
    """Why two geometries have no common end of `count` to `most` directions."""
    for one in (a, b):
        if not one.directions.cuts(side)[count - 1 : most].any():
            return (
                f"eigenvalues {count:,} to {most + 1:,} of {one.name}, counted from the {side} "
                "end, are equal: nothing says which directions are its end"
            )
    return (
        f"{a.name} and {b.name} have no {side} ends of the same size, {count:,} to {most:,}, that "
        "are not cut between equal eigenvalues"
    )


def _differences(what: str, places: Sequence[float], a: _Known, b: _Known) -> list[Difference]:
    return [
        Difference(what, place, first, second, _p_value(first, second, a, b))
        for place, first, second in zip(places, getattr(a, what), getattr(b, what), strict=True)
    ]


def _p_value(first: Estimate, second: Estimate, a: _Known, b: _Known) -> float:
    """The p-value of a difference of logarithms, two-sided, of numbers of two geometries."""
    if first <= 0 or second <= 0:  # below rounding: nothing is known
        return 1.0
    error = math.hypot(first.error / first, second.error / second)
    difference = abs(math.log(first / second))
    if error == 0:
        return 0.0 if difference > SAME + a.rounding / first + b.rounding / second else 1.0
    freedom = min(a.freedom, b.freedom)
    return float(2 * student.sf(difference / error, freedom)) if math.isfinite(error) else 1.0


def _questions(pair: Pair) -> list[EndAngles | Difference]:
    return [pair.avoided, pair.preferred, *pair.differences]


def check_shapes(shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> None:
    """Refuse to compare geometries of different shapes, which may not be estimated yet."""
    for name, shape in zip(names, shapes, strict=True):
        if shape != shapes[0]:
            raise InvalidArgumentError(
                f"geometries of different shapes do not compare: {names[0]} is "
                f"{format_shape(shapes[0])}, {name} is {format_shape(shape)}; estimate both for "
                "one shape (--shape)"
            )


def check_directions(geometry: Geometry, name: str) -> None:
    """Refuse a geometry whose directions are not known."""
    if geometry.matrix_free:
        raise InvalidArgumentError(
            f"{name} is kept without a matrix, and its directions between the ends are not "
            "known; compare geometries of a smaller shape"
        )
    if not geometry.trace > 0:
        raise InvalidArgumentError(
            f"the geometry of {name} is zero, and without a preference to compare; leave it "
            "out, or estimate it with zero_readout='default'"
        )


def _checked(geometries: Sequence[Geometry], names: Sequence[str] | None) -> tuple[str, ...]:
    for geometry in geometries:
        check_type(geometry, Geometry, "what is compared", "give geometries of one shape")
    if len(geometries) < 2:
        raise InvalidArgumentError(
            f"a comparison takes at least two geometries, got {len(geometries)}"
        )
    called = [str(g.provenance.family.get("name", "unnamed")) for g in geometries]
    if names is not None:
        if len(names) != len(geometries):
            raise InvalidArgumentError(
                f"got {len(names)} names for {len(geometries)} geometries; give one for each"
            )
        called = [str(name) for name in names]
    check_shapes([geometry.shape for geometry in geometries], called)
    for name, geometry in zip(called, geometries, strict=True):
        check_directions(geometry, name)
    return tuple(distinct(called))
