"""How well data is aligned with a geometry, and the rotations that make it more or less so.

    alpha = E[ (W x)^T G (W x) ] = tr(W^T G W C),   C = E[x x^T],   W orthogonal     (Equation 6)

Theorem 2. With `G = U diag(lambda) U^T` and `C = V diag(s) V^T`, both in descending order, `alpha`
is a sum of `lambda_i s_j` with doubly stochastic weights, so that permutations are extreme:

    maximum  sum_i lambda_i s_i        at  W = U V^T
    minimum  sum_i lambda_i s_{D+1-i}  at  W = U R V^T,  R the reversal of order.

`G = Q (I (x) A) Q^T` is used as such: its eigenvectors are copies of those of the small factor
`A`, and no D x D matrix is made of it. Data are read in chunks, moments summed in float64.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import torch
from torch import Tensor

from sads.directions import EQUAL
from sads.errors import InvalidArgumentError, UndefinedGeometryError
from sads.geometry.geometry import Geometry
from sads.rotations import Kind, Middle, Rotation, chunks, flatten, random_axes, working_type

NUM_PARTS = 10  # of the directions, for the shares of energy


@dataclass(frozen=True)
class Alignment:
    """`alpha` of data with a geometry, and where it stands between its extremes.

    Errors are standard errors. Two independent sources add up in them: the data are a sample
    (taken as independent: duplicates count as if they were new), and the geometry is an estimate.
    They are first-order; the extremes of a sample also lean outwards, as its eigenvalues spread.
    With a single sample the data's part is unknown and the error infinite.
    """

    alpha: float
    error: float
    data_error: float
    geometry_error: float
    minimum: float  # over all rotations of the data
    minimum_error: float
    maximum: float
    maximum_error: float
    random: float  # the mean over all rotations, tr(G) tr(C) / D
    random_error: float
    share: float  # (alpha - minimum) / (maximum - minimum); NaN where these are equal
    share_error: float
    num_samples: int


@dataclass(frozen=True, eq=False)
class DataSpectrum:
    """How the energy of data, `E|x|^2`, is spread over the eigenvectors of a geometry."""

    values: Tensor  # (D,) eigenvalues of the geometry, descending: most avoided first
    energies: Tensor  # (D,) E[(u_i . x)^2]
    shares: Tensor  # (10,) of the energy, in each tenth of the directions, most avoided first
    share_errors: Tensor  # (10,) standard errors from the samples


def alignment(geometry: Geometry, x: Tensor) -> Alignment:
    """`alpha = E[x^T G x]` of data `x` (N, *shape), its extremes over rotations, its share.

    Data whose second moment has a rank below D, a constant pixel, or copies of one image are
    no special case. Where `G` or `C` is a multiple of the identity (or the data are all zero),
    minimum and maximum coincide and the share is NaN.
    """
    return pair(geometry, x).alignment()


def rotation(geometry: Geometry, x: Tensor, kind: str) -> Rotation:
    """A rotation of data `x` (N, *shape), with the `alpha` that it reaches.

    Args:
        kind: "min" or "max" for the least or largest `alpha`, "share:S" for that share of the way
            from one to the other, "partial:F" for the order reversed in part, "random:SEED", or
            "identity", which leaves data alone; see `sads.rotations`.

    Theorem 2 for the second moment of these samples. For several rotations of the same data, or
    their alignment as well, use `pair`.
    """
    return pair(geometry, x).rotation(kind)


def pair(geometry: Geometry, x: Tensor) -> "Pairing":
    """Geometry and data `x` (N, *shape) together, so that what is costly is computed only once."""
    return Pairing(geometry, as_rows(geometry, x))


@dataclass(frozen=True, eq=False)
class Pairing:
    """A geometry and data, and the eigenvectors of both, found when they are first asked for."""

    geometry: Geometry
    rows: Tensor  # (N, D)

    def alignment(self) -> Alignment:
        """As `sads.alignment`."""
        size = self.geometry.dimension
        extremes = [Middle.of(Kind(name), size) for name in ("min", "max")]
        energies, moment = self._measure()
        mean_value = self._values.mean()
        norms = torch.cat([c.square().sum(dim=1) for c in chunks(self.rows)])  # (N,)
        evenly = norms.mean() / size * self.geometry.lift.groups * torch.eye(len(moment))
        columns = [energies[:, None], self._energies_along(extremes), mean_value * norms[:, None]]
        data = torch.cat(columns, dim=1)  # (N, 4): as it is, min, max, random
        batches = self._per_batch([moment, *map(self._moment_after, extremes), evenly])  # (K, 4)
        alpha = float(energies.mean())
        minimum, maximum = map(self._alpha_after, extremes)
        width = maximum - minimum
        if width > EQUAL * maximum:
            share = (alpha - minimum) / width
            slope = torch.tensor([[1.0, share - 1, -share, 0]], dtype=torch.float64).T / width
        else:
            share, slope = math.nan, torch.full((4, 1), math.nan, dtype=torch.float64)
        data, batches = (torch.cat([z, z @ slope], dim=1) for z in (data, batches))  # 5 columns
        from_data, from_batches = _data_errors(data), batch_errors(batches, self.geometry)
        errors = torch.hypot(from_data, from_batches).tolist()
        return Alignment(
            alpha, errors[0], float(from_data[0]), float(from_batches[0]),
            minimum, errors[1], maximum, errors[2], float(mean_value * norms.mean()), errors[3],
            share, errors[4], len(self.rows),
        )  # fmt: skip

    def rotation(self, kind: str) -> Rotation:
        """As `sads.rotation`."""
        parsed = Kind.parse(kind)
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
        from_data = _data_errors(energies[:, None])
        error = torch.hypot(from_data, batch_errors(self._per_batch([moment]), self.geometry))
        provenance = {
            "geometry": dict(self.geometry.provenance),
            "data": {"num_samples": len(self.rows), "sha256": self.digest},
            "versions": {"sads": version("sads"), "torch": torch.__version__},
        }
        return Rotation(
            kind, self.geometry.shape, alpha, float(error), provenance,
            axes.contiguous(), middle, basis.contiguous(), self.geometry.lift,
        )  # fmt: skip

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
        errors = _data_errors((per_sample - shares * energy) / energy.mean())
        return DataSpectrum(self._values, total / len(self.rows), shares, errors)

    @cached_property
    def _geometry_eigen(self) -> tuple[Tensor, Tensor]:
        return eigenbasis(self.geometry.factor())

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
        digest = hashlib.sha256()
        for chunk in chunks(self.rows, torch.float32):
            digest.update(chunk.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

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

    def _energies_along(self, middles: list[Middle]) -> Tensor:
        """`z^T G z` of every sample rotated by `U M V^T`, for each `M`, (N, len(middles)).

        Their spread gives the error. As an eigenvalue of `C` moves by `v_i^T dC v_i`, it is also
        that of the extremes, whose eigenvectors change with the sample.
        """
        dtype = working_type(self.rows)
        axes, values = self.axes.to(dtype), self._values.to(dtype)
        parts = []
        for chunk in chunks(self.rows, dtype):
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

    def _per_batch(self, moments: list[Tensor]) -> Tensor:
        """Alpha of every batch of networks, for each second moment (P, P), (K, len(moments))."""
        return torch.stack(
            [torch.stack([(f * m).sum() for m in moments]) for f in self.geometry.factors]
        )


def as_rows(geometry: Geometry, x: Tensor) -> Tensor:
    """Data or directions (N, *shape) or (N, D) as (N, D), checked against a geometry."""
    check_defined(geometry)
    rows = flatten(x, geometry.shape, geometry.dimension)
    if not all(c.isfinite().all() for c in chunks(rows, rows.dtype)):
        raise InvalidArgumentError("the data hold NaN or infinity; remove or mend those samples")
    return rows


def check_defined(geometry: Geometry) -> None:
    """Refuse a geometry that says nothing about directions."""
    factor = geometry.factor()
    if not factor.isfinite().all() or not float(factor.diagonal().sum()) > 0:
        raise UndefinedGeometryError(
            "the geometry is 0 or not finite, so every direction is as good as any other; "
            "estimate it again, with zero_readout='default' if the output layer starts at zero"
        )


def eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (descending, at least 0) and eigenvectors (columns) of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0).clamp(min=0), vectors.flip(1)


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
        return eigenbasis(moment.div_(num_samples))
    q, r = torch.linalg.qr(rows.to("cpu", torch.float64).T, mode="complete")  # (D, D), (D, N)
    r = r[:num_samples]
    values = torch.zeros(dimension, dtype=torch.float64)
    values[:num_samples], left = eigenbasis(r @ r.T / num_samples)
    q[:, :num_samples] = q[:, :num_samples] @ left
    return values, q


def _data_errors(samples: Tensor) -> Tensor:
    """Standard errors of the columns' means, (columns,)."""
    if len(samples) < 2:
        return torch.full((samples.shape[1],), math.inf, dtype=torch.float64)
    return samples.std(dim=0) / math.sqrt(len(samples))


def batch_errors(batches: Tensor, geometry: Geometry) -> Tensor:
    """Standard errors from the spread of the geometry's batches (K, columns), (columns,)."""
    if geometry.exact:
        return torch.zeros(batches.shape[1], dtype=torch.float64)
    used = geometry.counts > 0
    if int(used.sum()) < 2:
        return torch.full((batches.shape[1],), math.inf, dtype=torch.float64)
    weights = (geometry.counts.double() / geometry.num_networks)[used][:, None]
    deviation = batches[used] - (weights * batches[used]).sum(dim=0)
    return (weights**2 / (1 - weights) * deviation**2).sum(dim=0).sqrt()
