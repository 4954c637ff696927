"""How well data is aligned with a geometry, and the rotations that make it more or less so.

    alpha = E[ (W x)^T G (W x) ] = tr(W^T G W C),   C = E[x x^T],   W orthogonal     (Equation 6)

Theorem 2. With `G = U diag(lambda) U^T` and `C = V diag(s) V^T`, both in descending order, `alpha`
is a sum of `lambda_i s_j` with doubly stochastic weights, so that permutations are extreme:

    maximum  sum_i lambda_i s_i        at  W = U V^T
    minimum  sum_i lambda_i s_{D+1-i}  at  W = U R V^T,  R the reversal of order.

`G = Q (I (x) A) Q^T` is used as such: its eigenvectors are copies of those of the small factor
`A`, and no D x D matrix is made of it. Data are read in chunks, moments summed in float64.

*Extremes of a sample lean outwards.* `C` is the moment of N samples, and a minimum over rotations
is a concave function of it: on average the minimum of a sample lies below that of the law
(Jensen), far below for N not much larger than D. The rotation that was found on some samples
reaches, on others, an alpha above the minimum of the law, which no rotation goes below. The truth
lies between the two. So each half of the samples is measured along the eigenvectors of the other
half, and half of the distance between this and the minimum is added to its standard error: two
errors reach as far. The same holds for the maximum, the other way round. In simulations with known
covariances and from 6 to 720 samples in 24 dimensions, two errors cover the truth in at least 96 %
(`tests/test_alignment.py`): they are cautious, not exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from sads.arguments import check_type
from sads.checked import checked
from sads.environment import check_memory, gigabytes, used_memory, versions
from sads.errors import UndefinedGeometryError
from sads.estimates import Estimate, Estimates, format_error
from sads.files import tensor_digest
from sads.geometry.eigenbasis import EQUAL
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.result import Geometry
from sads.markup import card, facts
from sads.rotations.kinds import Kind, Middle, random_axes
from sads.rotations.rotation import (
    DataProvenance,
    Rotation,
    RotationProvenance,
    chunks,
    working_type,
)
from sads.samples import as_samples, check_values
from sads.scales import scale_of
from sads.seeds import torch_stream

NUM_PARTS = 10  # of the directions, for the shares of energy
FEW_SAMPLES = 10  # times D: with fewer, the extremes of a sample lean outwards visibly


@dataclass(frozen=True)
class Alignment:
    """`alpha` of data with a geometry, and where it stands between its extremes.

    Two independent sources add up in every error: the data are a sample (taken as independent:
    duplicates count as if they were new), and the geometry is an estimate. The errors of minimum,
    maximum and share also cover that the extremes of a sample lean outwards. With a single sample
    the data's part is unknown and the error infinite; with fewer than a hundred it is too small
    where the energies of samples are skewed (two errors of ten samples hold alpha in 84 %, if all
    energy lies along one direction).
    """

    alpha: Estimate
    minimum: Estimate  # over all rotations of these samples; its error is towards other samples
    maximum: Estimate
    random: Estimate  # the mean over all rotations, tr(G) tr(C) / D
    share: Estimate  # (alpha - minimum) / (maximum - minimum); NaN where these are equal
    held_out_minimum: Estimate  # what rotations found on one half of the samples reach on the other
    held_out_maximum: Estimate
    data_error: float  # of alpha
    geometry_error: float  # of alpha
    num_samples: int
    dimension: int

    @property
    def few_samples(self) -> bool:
        """Fewer than ten samples for every coordinate, so that the extremes are rough."""
        return self.num_samples < FEW_SAMPLES * self.dimension

    @property
    def note(self) -> str | None:
        """One line that says so if the samples are few beside the coordinates."""
        if not self.few_samples:
            return None
        return (
            f"{self.num_samples:,} samples are few for {self.dimension:,} coordinates: the "
            "extremes of alpha are rough, and on new samples a rotation reaches about what it does "
            "on held-out ones; give ten samples for each coordinate if you can"
        )

    @property
    def place(self) -> str:
        """Where alpha stands, in words."""
        if math.isnan(self.share):
            return "all rotations are alike"
        return f"{self.share:.1%} of the way from least to most aligned"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return card("Alignment", facts(self.describe()))

    def describe(self) -> dict[str, str]:
        """Names and values for people; what is indented belongs to the line above."""
        return {
            "samples": f"{self.num_samples:,}",
            "alpha": str(self.alpha),
            "  from the data": f"± {format_error(self.data_error)}",
            "  from the geometry": f"± {format_error(self.geometry_error)}",
            **self._extremes(),
        }

    def _extremes(self) -> dict[str, str]:
        if math.isnan(self.minimum):
            return {"minimum, maximum": "not known: the geometry is kept without a matrix"}
        alone = math.isnan(self.held_out_minimum)  # a single sample, and nothing to hold out
        return {
            "minimum": str(self.minimum),
            "  on held-out samples": "not known" if alone else str(self.held_out_minimum),
            "maximum": str(self.maximum),
            "  on held-out samples ": "not known" if alone else str(self.held_out_maximum),
            "share": self._share(),
        }

    def _share(self) -> str:
        if math.isnan(self.share):
            return "none: all rotations are alike"
        return f"{self.share.value:.3%} ± {format_error(self.share.error, '.2%')}"


@dataclass(frozen=True, eq=False)
class DataSpectrum:
    """How the energy of data, `E|x|^2`, is spread over the eigenvectors of a geometry."""

    values: Tensor  # (D,) eigenvalues of the geometry, descending: most avoided first
    energies: Tensor  # (D,) E[(u_i . x)^2]
    shares: Estimates  # (10,) of the energy, in each tenth of the directions, most avoided first


@checked
def alignment(geometry: Geometry, x: Tensor) -> Alignment:
    """`alpha = E[x^T G x]` of data `x` in a `geometry`, its extremes over rotations, its share.

    Args:
        x: (N, *shape) or (N, D), floating-point numbers on the scale of training.

    Raises:
        SamplesError: the data have another shape than the geometry, or are not scaled.
        UndefinedGeometryError: the geometry is 0 or not finite.

    Data whose second moment has a rank below D, a constant pixel, or copies of one image are
    no special case. Where `G` or `C` is a multiple of the identity (or the data are all zero),
    minimum and maximum coincide and the share is NaN.
    """
    return pair(geometry, x).alignment()


@checked
def rotation(geometry: Geometry, x: Tensor, kind: str | Kind) -> Rotation:
    """A rotation of data `x` in a `geometry`, with the `alpha` that it reaches.

    Args:
        x: (N, *shape) or (N, D), floating-point numbers on the scale of training.
        kind: "min" or "max" for the least or largest `alpha`, "share:S" for that share of the way
            from one to the other, "partial:F" for the order reversed in part, "random:SEED", or
            "identity", which leaves data alone; see `sads.rotations`.

    Theorem 2 for the second moment of these samples, and `Rotation.alpha` is alpha of these very
    samples. On new ones it is larger after "min" (see `Alignment.held_out_minimum`) and smaller
    after "max". For several rotations of the same data, or their alignment as well, use `pair`.
    """
    return pair(geometry, x).rotation(kind)


@checked
def pair(geometry: Geometry, x: Tensor) -> "Pairing":
    """A `geometry` and data `x` (N, *shape) together: what is costly is computed only once."""
    check_type(geometry, Geometry, "the geometry", "see sads.estimate_geometry")
    rows = as_rows(geometry, x)
    _check_size(geometry, len(rows))
    return Pairing(geometry, rows)


def _check_size(geometry: Geometry, num_samples: int) -> None:
    """Refuse data whose eigenvectors cannot fit: matrices of D x D, and work on them."""
    dimension = geometry.dimension
    if geometry.matrix_free:
        return  # it refuses what needs them
    needed = used_memory() + 6 * 8 * dimension**2 + 6 * 8 * geometry.lift.size**2
    if num_samples < dimension:
        needed += 2 * 8 * num_samples * dimension
    if needed > used_memory() + (1 << 28):
        check_memory(
            needed,
            f"pairing with data of {dimension:,} coordinates needs about {gigabytes(needed)} (the "
            f"eigenvectors of the data, {dimension:,} x {dimension:,})",
            "choose a smaller shape",
        )


@dataclass(frozen=True, eq=False)
class Pairing:
    """A geometry and data, and the eigenvectors of both, found when they are first asked for."""

    geometry: Geometry
    rows: Tensor  # (N, D)

    def alignment(self) -> Alignment:
        """As `sads.alignment`."""
        if self.geometry.matrix_free:
            return self._measured_alignment()
        size = self.geometry.dimension
        energies, moment = self._measure()
        mean_value = self._values.mean()
        norms = torch.cat([c.square().sum(dim=1) for c in chunks(self.rows)])  # (N,)
        evenly = norms.mean() / size * self.geometry.lift.groups * torch.eye(len(moment))
        alpha, (minimum, maximum) = float(energies.mean()), map(self._alpha_after, self._extremes)
        width = maximum - minimum
        if width > EQUAL * maximum:
            share = (alpha - minimum) / width
            slope = torch.tensor([1.0, share - 1, -share, 0], dtype=torch.float64) / width
        else:
            share, slope = math.nan, torch.full((4,), math.nan, dtype=torch.float64)

        def with_share(columns: Tensor) -> Tensor:
            """As it is, min, max, random; and what the share changes with them, to first order."""
            return torch.cat([columns, (columns @ slope)[:, None]], dim=1)

        outer = [energies[:, None], mean_value * norms[:, None]]
        inside = self._energies_along(self._extremes)  # (N, 2)
        moments = [moment, *map(self._moment_after, self._extremes), evenly]
        from_batches = self.geometry.batch_errors(
            with_share(inner_products(self.geometry, moments))
        )
        from_data, from_held_out = (
            _sample_errors(with_share(torch.cat([outer[0], columns, outer[1]], dim=1)))
            for columns in (inside, self._held_out)
        )
        errors = torch.hypot(torch.maximum(from_data, from_held_out), from_batches)
        low, high = self._lean(inside)
        lean_of_share = 0.0 if math.isnan(share) else max((1 - share) * low, share * high) / width
        errors += torch.tensor([0, low, high, 0, lean_of_share]) / 2
        held_out = map(
            Estimate,
            self._held_out.mean(dim=0).tolist(),
            torch.hypot(from_held_out, from_batches)[1:3].tolist(),
        )
        return Alignment(
            alpha=Estimate(alpha, float(errors[0])),
            minimum=Estimate(minimum, float(errors[1])),
            maximum=Estimate(maximum, float(errors[2])),
            random=Estimate(float(mean_value * norms.mean()), float(errors[3])),
            share=Estimate(share, float(errors[4])),
            held_out_minimum=next(held_out),
            held_out_maximum=next(held_out),
            data_error=float(from_data[0]),
            geometry_error=float(from_batches[0]),
            num_samples=len(self.rows),
            dimension=size,
        )

    def _measured_alignment(self) -> Alignment:
        """Without a matrix: alpha of data that were measured; its extremes are not known."""
        alpha, data_error, geometry_error = self._measured_alpha()
        norms = torch.cat([c.square().sum(dim=1) for c in chunks(self.rows)])
        unknown = Estimate(math.nan, math.inf)
        moments = self.geometry.moments
        assert isinstance(moments, MatrixFree)
        values = moments.basis_energies("canonical").mean(dim=1)  # (K,) tr(G_k) / D
        mean_value = self.geometry.trace / self.geometry.dimension
        random_error = math.hypot(
            mean_value * float(_sample_errors(norms[:, None])),
            float(norms.mean() * self.geometry.batch_errors(values[:, None])),
        )
        return Alignment(
            alpha=Estimate(alpha, math.hypot(data_error, geometry_error)),
            minimum=unknown,
            maximum=unknown,
            random=Estimate(mean_value * float(norms.mean()), random_error),
            share=unknown,
            held_out_minimum=unknown,
            held_out_maximum=unknown,
            data_error=data_error,
            geometry_error=geometry_error,
            num_samples=len(self.rows),
            dimension=self.geometry.dimension,
        )

    def _measured_alpha(self) -> tuple[float, float, float]:
        """Alpha, and its errors from the data and from the geometry, of data that were measured."""
        batches = self.geometry.moments.quadratic(self.rows)  # (K, N)
        energies = self.geometry.quadratic(self.rows).values
        from_data = float(_sample_errors(energies[:, None]))
        from_batches = float(self.geometry.batch_errors(batches.mean(dim=1, keepdim=True)))
        return float(energies.mean()), from_data, from_batches

    def rotation(self, kind: str | Kind) -> Rotation:
        """As `sads.rotation`."""
        parsed = Kind.parse(kind)
        if self.geometry.matrix_free and parsed.name == "identity":
            alpha, *errors = self._measured_alpha()
            return self._rotation(parsed, Estimate(alpha, math.hypot(*errors)))
        middle = Middle.of(parsed, self.geometry.dimension)
        axes = basis = torch.empty(0, 0, dtype=torch.float64)
        if parsed.paired:
            axes, basis = self.axes, self.basis
            alpha, energies = self._alpha_after(middle), self._energies_along([middle])[:, 0]
            moment = self._moment_after(middle)
        else:
            if parsed.name == "random":
                axes = random_axes(self.geometry.dimension, int(parsed.number))
            energies, moment = self._measure(axes)
            alpha = float(energies.mean())
        from_batches = self.geometry.batch_errors(inner_products(self.geometry, [moment]))
        error = torch.hypot(_sample_errors(energies[:, None]), from_batches)
        return self._rotation(parsed, Estimate(alpha, float(error)), axes, basis)

    def _rotation(
        self,
        kind: Kind,
        alpha: Estimate,
        axes: Tensor | None = None,
        basis: Tensor | None = None,
    ) -> Rotation:
        none = torch.empty(0, 0, dtype=torch.float64)
        provenance = RotationProvenance(
            geometry=vars(self.geometry.provenance),
            data=DataProvenance(len(self.rows), self.digest),
            versions=versions(),
        )
        return Rotation(
            kind=str(kind),
            shape=self.geometry.shape,
            alpha=alpha,
            provenance=provenance,
            _axes=(none if axes is None else axes).contiguous(),
            _middle=Middle.of(kind, self.geometry.dimension),
            _basis=(none if basis is None else basis).contiguous(),
            _lift=self.geometry.lift,
        )

    def spectrum(self) -> DataSpectrum:
        """Where the energy of the data lies among the eigenvectors of the geometry."""
        dimension = self.geometry.dimension
        part = torch.arange(dimension) * NUM_PARTS // dimension
        member = torch.nn.functional.one_hot(part, NUM_PARTS).double()  # (D, 10)
        total = torch.zeros(dimension, dtype=torch.float64)
        parts = []
        for chunk in chunks(self.rows):
            squares = (self.geometry.lift.split(chunk) @ self.basis).mT.flatten(1).square()
            total += squares.sum(dim=0)
            parts.append(squares @ member)
        per_sample = torch.cat(parts)  # (N, 10)
        energy = per_sample.sum(dim=1, keepdim=True)
        shares = per_sample.mean(dim=0) / energy.mean()
        errors = _sample_errors((per_sample - shares * energy) / energy.mean())
        return DataSpectrum(
            values=self._values,
            energies=total / len(self.rows),
            shares=Estimates(shares, errors),
        )

    @cached_property
    def _geometry_eigen(self) -> tuple[Tensor, Tensor]:
        return _eigenbasis(self.geometry.factor())

    @property
    def basis(self) -> Tensor:
        """Eigenvectors of the geometry's factor, (P, P), columns in descending order."""
        return self._geometry_eigen[1]

    @property
    def _values(self) -> Tensor:
        """Eigenvalues of the geometry, (D,) descending, each once for every group."""
        return self._geometry_eigen[0].repeat_interleave(self.geometry.lift.groups)

    @cached_property
    def _data_eigen(self) -> tuple[Tensor, Tensor]:
        return _principal_axes(self.rows)

    @property
    def axes(self) -> Tensor:
        """Eigenvectors of the data's second moment, (D, D), columns in descending order."""
        return self._data_eigen[1]

    @property
    def data_values(self) -> Tensor:
        """Eigenvalues of the data's second moment, (D,) descending."""
        return self._data_eigen[0]

    @cached_property
    def digest(self) -> str:
        """What `sads.train` calls these data in the provenance of a model."""
        return tensor_digest(self.rows)

    def _alpha_after(self, middle: Middle) -> float:
        """`sum_i lambda_i E[z_i^2]` of the data rotated by `U M V^T`."""
        return float(self._values @ middle.moment(self.data_values)[0])

    def _moment_after(self, middle: Middle) -> Tensor:
        """`E[sum over groups of z_g z_g^T]` of the data rotated by `U M V^T`, (P, P).

        Along `U`, rank `p` of group `g` has its partner at the other end, in the last group but
        `g`: what correlates within a group is the group in the middle, if there is one.
        """
        size, groups = self.geometry.lift.size, self.geometry.lift.groups
        squares, cross = (m.reshape(size, groups) for m in middle.moment(self.data_values))
        turned = self.basis * squares.sum(dim=1)
        if groups % 2:
            turned += (self.basis * cross[:, groups // 2]).flip(1)
        return turned @ self.basis.T

    @cached_property
    def _extremes(self) -> list[Middle]:
        return [Middle.of(Kind(name), self.geometry.dimension) for name in ("min", "max")]

    @cached_property
    def _held_out(self) -> Tensor:
        """As `_energies_along` the extremes, with the eigenvectors of the other half, (N, 2).

        Halves are drawn at random, as data may be in the order of their classes or take turns.
        """
        energies = torch.full((len(self.rows), 2), math.nan, dtype=torch.float64)
        if len(self.rows) > 1:
            order = torch.randperm(len(self.rows), generator=torch_stream("halves of data"))
            first, second = order.to(self.rows.device).tensor_split(2)
            for mine, other in ((first, second), (second, first)):
                axes = _principal_axes(self.rows[other])[1]
                energies[mine.cpu()] = self._energies_along(self._extremes, self.rows[mine], axes)
        return energies

    def _lean(self, inside: Tensor) -> tuple[float, float]:
        """How far minimum and maximum may lie outwards of those of the law.

        That is the distance from the energies of all samples along the eigenvectors of all (N, 2)
        to the held-out ones, and a standard error of this distance. The means of the two halves
        may go together, so they count as one in it.
        """
        if len(inside) < 2:
            return math.inf, math.inf
        distances = (self._held_out - inside) * torch.tensor([1.0, -1.0])
        reach = distances.mean(dim=0) + math.sqrt(2) * _sample_errors(distances)
        low, high = reach.clamp(min=0).tolist()
        return low, high

    def _energies_along(
        self, middles: list[Middle], rows: Tensor | None = None, axes: Tensor | None = None
    ) -> Tensor:
        """`z^T G z` of every sample rotated by `U M V^T`, for each `M`, (N, len(middles)).

        Their spread gives the error. As an eigenvalue of `C` moves by `v_i^T dC v_i`, it is also
        that of the extremes, whose eigenvectors change with the sample. Other `rows` and `axes`
        may stand for the data and for `V`.
        """
        dtype = working_type(self.rows)
        if scale_of(self.rows) != 1:  # single precision cannot hold squares of these
            dtype = torch.float64
        axes = (self.axes if axes is None else axes).to(dtype)
        values = self._values.to(dtype)
        parts = []
        for chunk in chunks(self.rows if rows is None else rows, dtype):
            y = chunk @ axes
            parts.append(torch.stack([m.forward(y).square() @ values for m in middles], dim=1))
        return torch.cat(parts).double()

    def _measure(self, axes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`z^T G z` of every sample, (N,), and `E[sum over groups of z_g z_g^T]`, (P, P).

        `z` is the data as they are, or along the columns of `axes`. Alpha is the mean of the one
        and the inner product of the other with the factor.
        """
        lift, factor = self.geometry.lift, self.geometry.factor()
        moment = torch.zeros(lift.size, lift.size, dtype=torch.float64)
        energies = []
        for chunk in chunks(self.rows):
            z = lift.split(chunk if axes is None or not len(axes) else chunk @ axes)
            energies.append(((z @ factor) * z).sum(dim=(1, 2)))  # z: (n, groups, P)
            z = z.flatten(0, 1)
            moment.addmm_(z.T, z)
        return torch.cat(energies), moment / len(self.rows)


def inner_products(geometry: Geometry, moments: Sequence[Tensor]) -> Tensor:
    """`tr(A_k M)` of every batch of networks with each second moment (P, P), (K, len(moments)).

    With `M = E[sum over groups of z_g z_g^T]` this is alpha of data as one batch sees them.
    """
    return torch.stack([torch.stack([(f * m).sum() for m in moments]) for f in geometry.factors])


def as_rows(geometry: Geometry, x: Tensor, what: str = "the data") -> Tensor:
    """Data or directions, (N, *shape) or (N, D), as (N, D) and checked against a geometry."""
    check_defined(geometry)
    x = as_samples(x, what, geometry.shape, flat=True)
    check_values(x, what)
    return x.flatten(1)


def check_defined(geometry: Geometry) -> None:
    """Refuse a geometry that says nothing about directions."""
    finite = geometry.matrix_free or bool(geometry.factor().isfinite().all())
    if not finite or not 0 < geometry.trace < math.inf:
        raise UndefinedGeometryError(
            "the geometry is 0 or not finite, so every direction is as good as any other; "
            "estimate it again, with zero_readout='default' if the output layer starts at zero"
        )


def _eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (descending, at least 0) and eigenvectors (columns) of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    return values, _settle(values, vectors)


def _settle(values: Tensor, vectors: Tensor) -> Tensor:
    """The same eigenvectors on every machine, whatever its LAPACK chooses.

    An eigenvector may be turned round, and those of equal eigenvalues may be any basis of their
    span: what was rotated on one machine could not be turned back by the rotation that is found on
    another. Here they are the one basis `B` of a span for which `B^T` times some fixed vectors is
    triangular with a positive diagonal.
    """
    apart = torch.nonzero(values[:-1] - values[1:] > EQUAL * values[0]).flatten().cpu() + 1
    ends = [0, *apart.tolist(), len(values)]
    spans = [(start, end) for start, end in pairwise(ends) if end - start > 1]
    widest = max((end - start for start, end in spans), default=1)
    stream = torch_stream("eigenvectors that are settled")
    fixed = torch.randn(len(vectors), widest, generator=stream, dtype=torch.float64).to(vectors)
    settled = vectors * torch.where(fixed[:, 0] @ vectors < 0, -1.0, 1.0)
    for start, end in spans:
        span = vectors[:, start:end]
        q, r = torch.linalg.qr(span.T @ fixed[:, : end - start])
        settled[:, start:end] = span @ (q * r.diagonal().sign())
    return settled


def _principal_axes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (D,) and eigenvectors (D, D) of `E[x x^T]`, descending.

    From the second moment, or, for fewer samples than coordinates, from the samples themselves:
    `X^T = Q R` with all D columns of `Q`, and the eigenvectors of the small `R R^T` turn the first.
    """
    num_samples, dimension = rows.shape
    if num_samples >= dimension:
        moment = torch.zeros(dimension, dimension, dtype=torch.float64)
        for chunk in chunks(rows):
            moment.addmm_(chunk.T, chunk)
        return _eigenbasis(moment.div_(num_samples))
    q, r = torch.linalg.qr(rows.to("cpu", torch.float64).T, mode="complete")  # (D, D), (D, N)
    r = r[:num_samples]
    values = torch.zeros(dimension, dtype=torch.float64)
    values[:num_samples], left = _eigenbasis(r @ r.T / num_samples)
    q[:, :num_samples] = q[:, :num_samples] @ left
    return values, q  # which does not depend on the machine: the signs of QR are fixed


def _sample_errors(samples: Tensor) -> Tensor:
    """Standard errors of the columns' means, (columns,); infinite for a single sample."""
    if len(samples) < 2:
        return torch.full((samples.shape[1],), math.inf, dtype=torch.float64)
    return samples.std(dim=0) / math.sqrt(len(samples))
