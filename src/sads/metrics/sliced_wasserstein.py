"""Sliced Wasserstein distances, streamed over projections.

The distance between two laws along a unit direction `theta` is that of their projections,

    W2^2(theta) = integral over q in (0, 1) of ( F^-1(q) - G^-1(q) )^2,

`F`, `G` the distributions of `theta^T x` and `theta^T y`. For samples both quantile functions are
steps, so the integral is a finite sum over sorted projections, without any discretisation. Then,
over `L` directions that are uniform on the sphere (Bonneel et al., 2015; Deshpande et al., 2019),

    SW2 = sqrt( mean of W2^2 ),    MSW2 = max of W2.

A chunk of directions at a time is projected (one matrix product), sorted and reduced to one
number a direction, so memory does not grow with `L`.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from sads.arguments import as_tensor, check_count, check_seed
from sads.checked import checked
from sads.environment import check_memory, gigabytes, used_memory
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate
from sads.samples import as_samples, check_alike
from sads.scales import moderate_rows, scale_of
from sads.seeds import seed_sequence
from sads.table1 import PROJECTIONS_PER_DIMENSION
from sads.threads import map_on_cores

LARGEST_DOUBLE = 1e150  # above which squares of float64 overflow
CHUNK_BYTES = 2**24  # of projected samples, in each thread: smaller ones slow the matrix product

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class SlicedWasserstein:
    """Distances between two laws along many directions."""

    sw2: Estimate  # the error is over projections; NaN for a single one
    msw2: float  # over these projections
    per_projection: Tensor  # (L,) float64, W2 along each
    direction: Tensor  # (*shape) float64, unit: the projection where W2 is largest

    @property
    def num_projections(self) -> int:
        return len(self.per_projection)


@dataclass(frozen=True, eq=False)
class MaxSlicedWasserstein:
    """The largest distance that ascent on the sphere found: a lower bound of the supremum."""

    msw2: float
    direction: Tensor  # (*shape) float64, unit: where it was found
    random_msw2: float  # the largest over the random directions that ascent started from


@checked
def sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    num_projections: int | None = None,
    projections: Tensor | None = None,
    seed: int = 0,
) -> SlicedWasserstein:
    """SW2 and MSW2 between two sets of samples, as the paper measures them (Section 3).

    With directions drawn uniformly, the mean of `W2^2` over them is unbiased for `SW2^2` between
    the two sets, and its standard error carried through the root is the error of `sw2`. The sets
    themselves differ by sampling even where their laws agree: see
    `sliced_wasserstein_to_gaussian` for a target without this noise.

    The computation is in float32 unless one of the sets is float64, the sums always in float64.

    Args:
        x: (N, *shape).
        y: (M, *shape); `M` may differ from `N`.
        num_projections: directions to draw; 64 D if not given, as in the paper.
        projections: (L, *shape), directions to use in place of drawn ones; they are normalised.
        seed: of the drawn directions.

    >>> x = torch.tensor([[0.0], [2.0]])
    >>> sliced_wasserstein(x, x + 1, num_projections=1).sw2.value
    1.0
    """
    x, y, shape, scale = _paired(x, y)
    directions = _directions(projections, num_projections, shape, seed)
    return _summarise(_stream(directions, _ToSamples(x, y)), shape, scale)


@checked
def sliced_wasserstein_to_gaussian(
    y: Tensor,
    *,
    covariance: Tensor | None = None,
    vector: Tensor | None = None,
    num_projections: int | None = None,
    projections: Tensor | None = None,
    seed: int = 0,
) -> SlicedWasserstein:
    """SW2 and MSW2 between samples and `N(0, covariance)`, known in closed form.

    Projected on `theta` the target is `N(0, s^2)` with `s^2 = theta^T covariance theta`. On the
    cell of quantiles `(i - 1) / M < q < i / M` of the i-th smallest sample, its quantile function
    has the mean `s m_i`, `m_i = M (phi(z_{i-1}) - phi(z_i))`, `z_i` the normal quantile of
    `i / M`. Splitting the square in every cell into its mean and the rest,

        W2^2(theta) = mean_i (y_(i) - s m_i)^2 + s^2 (1 - mean_i m_i^2),

    exactly: no test samples, hence no noise from them.

    Args:
        y: (M, *shape).
        covariance: (D, D) of the target, positive semi-definite.
        vector: the direction `v` of a target `N(0, D v v^T)`, as in `rank_one`; this or
            `covariance`.
        num_projections: as in `sliced_wasserstein`.
        projections: as in `sliced_wasserstein`.
        seed: as in `sliced_wasserstein`.
    """
    y, shape = _samples(y, "y")
    factor = _factor(covariance, vector, tuple(shape))
    (y, factor), scale = _without_scale(y.dtype, y, factor)
    directions = _directions(projections, num_projections, shape, seed)
    return _summarise(_stream(directions, _ToGaussian(y, factor)), shape, scale)


@checked
@torch.inference_mode(False)  # ascent needs gradients, whatever the caller does without
@torch.enable_grad()
def max_sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    num_projections: int | None = None,
    num_starts: int = 8,
    num_steps: int = 100,
    seed: int = 0,
) -> MaxSlicedWasserstein:
    """The supremum of W2 over all directions, sought by ascent from the best random ones.

    With the optimal matching of sorted projections held fixed, `W2^2(theta)` is the quadratic
    form of the matched differences, whose gradient is that of `W2^2` wherever no two projections
    are equal. Each start follows the great circle along its gradient by an angle that grows after
    a gain and halves after a loss, which is then undone: no start ends below where it began. The
    supremum is a maximum of a function that is not concave, so the result is a lower bound of it.

    In high dimensions random directions miss it by far (Deshpande et al., 2019).

    Args:
        x: (N, *shape).
        y: (M, *shape).
        num_projections: random directions to choose starts from; 64 D if not given.
        num_starts: how many of the best to start from.
        num_steps: of ascent, at most.
        seed: of the random directions.
    """
    check_count("num_starts", num_starts)
    check_count("num_steps", num_steps, 0)
    x, y, shape, scale = _paired(x, y)
    distances = _ToSamples(x, y)
    directions = _directions(None, num_projections, shape, seed)
    _, values, starts = _stream(directions, distances, keep=num_starts)
    ends = _ascend(starts, distances, num_steps)
    # Measured beside their starts, so that rounding cannot put the result below them.
    _, best, where = _stream(torch.cat([ends, starts]).split, distances)
    return MaxSlicedWasserstein(
        msw2=scale * math.sqrt(best[0]),
        direction=where[0].double().reshape(shape),
        random_msw2=scale * math.sqrt(values[0]),
    )


class _ToSamples:
    """`W2^2` between the projections of two sets of samples, exact for any two counts."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x.T.contiguous(), y.T.contiguous()  # (D, N), (D, M)
        self.cells = None if len(x) == len(y) else _quantile_cells(len(x), len(y))
        self.num_rows = _num_rows(max(len(x), len(y)), x)
        self._memory = _Memory(self.num_rows, self.x, self.y)

    def __call__(self, theta: Tensor) -> Tensor:
        """(K,) float64 for directions (K, D), at most `num_rows` of them."""
        a, b = (_sort_projections(theta, *pair) for pair in self._memory.pairs)
        if self.cells is None:
            return _mean_square(np.subtract(a, b, out=a))
        i, j, weights = self.cells
        return torch.from_numpy(np.square(a[:, i] - b[:, j]) @ weights)

    def with_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) and (K, D), by automatic differentiation through the sorted projections."""
        theta = theta.clone().requires_grad_()
        a, b = (torch.sort(theta @ samples).values for samples in (self.x, self.y))
        if self.cells is None:
            values = (a - b).square().mean(dim=1)
        else:
            i, j, weights = map(torch.from_numpy, self.cells)
            values = (a[:, i] - b[:, j]).square() @ weights.to(a)
        (gradient,) = torch.autograd.grad(values.sum(), theta)
        return values.detach(), gradient


class _ToGaussian:
    """`W2^2` between projected samples and the normal law that the target projects to."""

    def __init__(self, y: Tensor, factor: Tensor):
        self.y = y.T.contiguous()  # (D, M)
        self.factor = factor  # (D, R) with covariance = factor factor^T
        quantiles = ndtri(np.arange(len(y) + 1) / len(y))
        density = np.exp(-np.square(quantiles) / 2) / math.sqrt(2 * math.pi)
        means = len(y) * -np.diff(density)
        self.means = means.astype(y.numpy().dtype)
        self.within = float(1 - np.mean(means**2))
        self.num_rows = _num_rows(len(y), y)
        self._memory = _Memory(self.num_rows, self.y)

    def __call__(self, theta: Tensor) -> Tensor:
        """(K,) float64 for directions (K, D), at most `num_rows` of them."""
        spread = (theta @ self.factor).norm(dim=1)  # (K,)
        a = _sort_projections(theta, *self._memory.pairs[0])
        a -= spread.numpy()[:, None] * self.means
        return _mean_square(a) + spread.double().square() * self.within


class _Memory(threading.local):
    """Samples, each with memory for their projections, of its own in every thread.

    It is used again for every chunk: fresh memory costs as much as the sorting.
    """

    def __init__(self, num_rows: int, *samples: Tensor):
        self.pairs = [(x, x.new_empty(num_rows, x.shape[1])) for x in samples]


def _quantile_cells(n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Where two step functions with `n` and `m` equal steps on (0, 1) are both constant.

    Returns the step of each on every such cell and the cell's length. Ends of steps are compared
    as whole numbers, in units of `1 / (n m)`, so that none is split by rounding.
    """
    ends = np.union1d(m * np.arange(1, n + 1), n * np.arange(1, m + 1))
    lengths = np.diff(ends, prepend=0)
    return (ends - 1) // m, (ends - 1) // n, lengths / (n * m)


def _sort_projections(theta: Tensor, samples: Tensor, memory: Tensor) -> Array:
    """(K, N), rows ascending, in the given memory."""
    projected = torch.mm(theta, samples, out=memory[: len(theta)]).numpy()
    projected.sort(axis=1)  # by SIMD, twenty times as fast as torch's
    return projected


def _mean_square(a: Array) -> Tensor:
    return torch.from_numpy(np.square(a, out=a).mean(axis=1, dtype=np.float64))


def _num_rows(num_samples: int, samples: Tensor) -> int:
    """How many directions to take at a time."""
    row = max(num_samples, samples.shape[1]) * samples.element_size()
    return max(1, CHUNK_BYTES // row)


def _stream(
    directions: Callable[[int], Iterable[Tensor]],
    distances: _ToSamples | _ToGaussian,
    keep: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """`W2^2` along all directions (L,), and the `keep` largest with their directions."""
    dtype = distances.y.dtype
    values = []
    best, where = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=dtype)
    chunks = (chunk.to(dtype) for chunk in directions(distances.num_rows))
    for theta, squares in map_on_cores(distances, chunks):  # no product or sort holds the GIL
        values.append(squares)
        where = torch.cat([where.reshape(-1, theta.shape[1]), theta])
        best, order = torch.cat([best, squares]).sort(descending=True, stable=True)
        best, where = best[:keep], where[order[:keep]]
    return torch.cat(values), best, where


def _summarise(
    result: tuple[Tensor, Tensor, Tensor], shape: torch.Size, scale: float
) -> SlicedWasserstein:
    squares, _, where = result
    sw2 = math.sqrt(squares.mean())
    error = float(squares.std() / math.sqrt(len(squares))) if len(squares) > 1 else math.nan
    return SlicedWasserstein(
        # The derivative of the root.
        sw2=Estimate(scale * sw2, scale * (error / (2 * sw2) if sw2 > 0 else error)),
        msw2=scale * math.sqrt(squares.max()),
        per_projection=scale * squares.sqrt(),
        direction=where[0].double().reshape(shape),
    )


def _ascend(theta: Tensor, distances: _ToSamples, num_steps: int) -> Tensor:
    """Follow the gradient along great circles from each of `theta` (K, D), uphill only."""
    value, gradient = distances.with_gradient(theta)
    angle = torch.full((len(theta), 1), 0.5, dtype=theta.dtype)  # radians
    for _ in range(num_steps):
        tangent = gradient - (gradient * theta).sum(dim=1, keepdim=True) * theta
        uphill = torch.nn.functional.normalize(tangent, dim=1)
        candidate = torch.cos(angle) * theta + torch.sin(angle) * uphill
        candidate = torch.nn.functional.normalize(candidate, dim=1)
        new_value, new_gradient = distances.with_gradient(candidate)
        better = (new_value > value)[:, None]
        theta, gradient = (
            torch.where(better, new, old)
            for new, old in ((candidate, theta), (new_gradient, gradient))
        )
        value = torch.maximum(value, new_value)
        angle = torch.where(better, 1.5 * angle, angle / 2)
        if float(angle.max()) < 1e-5:
            break
    return theta


def _directions(
    given: Tensor | None, num_projections: int | None, shape: torch.Size, seed: int
) -> Callable[[int], Iterable[Tensor]]:
    """A function that yields the directions (K, D) float64, so many at a time."""
    dimension = math.prod(shape)
    if given is None:
        number = (
            PROJECTIONS_PER_DIMENSION * dimension if num_projections is None else num_projections
        )
        check_count("num_projections", number)
        check_seed(seed)
        if 64 * number > 1 << 28:
            what = f"{number:,} projections need about {gigabytes(64 * number)}"
            check_memory(64 * number + used_memory(), what, "the paper takes 64 D")
        return lambda num_rows: _draw(number, dimension, seed, num_rows)
    if num_projections is not None:
        raise InvalidArgumentError("give num_projections or projections, not both")
    given = as_samples(given, "projections", tuple(shape), flat=True)
    if not len(given):
        raise InvalidArgumentError("there are no projections: give at least one, (L, *shape)")
    flat = moderate_rows(given.cpu().double().flatten(1))
    lengths = flat.norm(dim=1, keepdim=True)
    if not bool(lengths.isfinite().all() and (lengths > 0).all()):
        raise InvalidArgumentError("projections must be finite and not zero")
    return (flat / lengths).split


def _draw(number: int, dimension: int, seed: int, num_rows: int) -> Iterator[Tensor]:
    """Uniform on the sphere; the same whatever `num_rows` is."""
    # A key of its own: samples drawn with the same seed must not be correlated with these.
    rng = np.random.default_rng(seed_sequence(seed, 1))
    for start in range(0, number, num_rows):
        normal = rng.standard_normal((min(num_rows, number - start), dimension))
        yield torch.nn.functional.normalize(torch.from_numpy(normal), dim=1)


def _factor(covariance: Tensor | None, vector: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """(D, R) float64 with `covariance = factor factor^T`."""
    if (covariance is None) == (vector is None):
        raise InvalidArgumentError("give the target's covariance or its vector, one of the two")
    dimension = math.prod(shape)
    if vector is not None:
        vector = as_tensor(vector, "the target's vector")
        flat = moderate_rows(vector.cpu().double().reshape(1, -1)).T
        fits = tuple(vector.shape) in (shape, (dimension,))
        if not fits or not bool(flat.isfinite().all() and flat.norm() > 0):
            raise InvalidArgumentError(
                f"the target's vector has shape {tuple(vector.shape)}, expected {shape} and finite "
                "numbers that are not all zero"
            )
        return math.sqrt(dimension) * flat / flat.norm()
    assert covariance is not None
    covariance = as_tensor(covariance, "the target's covariance")
    matrix = covariance.detach().cpu().double()
    if matrix.shape != (dimension, dimension) or not bool(matrix.isfinite().all()):
        raise InvalidArgumentError(
            f"the target's covariance has shape {tuple(covariance.shape)}, expected a finite "
            f"matrix of shape {(dimension, dimension)}"
        )
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    rounding = 1e-6 * float(matrix.abs().max())
    if float((matrix - matrix.T).abs().max()) > rounding or float(values[0]) < -rounding:
        raise InvalidArgumentError(
            "the target's covariance must be symmetric and positive semi-definite, got a matrix "
            f"with smallest eigenvalue {float(values[0]):.3g}"
        )
    return vectors * values.clamp(min=0).sqrt()


def _paired(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, torch.Size, float]:
    """Both sets as (N, D) and (M, D) of one dtype, the shape of a sample, and their scale."""
    check_alike(x, y)
    (flat_x, shape), (flat_y, shape_y) = _samples(x, "x"), _samples(y, "y")
    if shape != shape_y:
        raise InvalidArgumentError(
            f"samples of shapes {tuple(shape)} and {tuple(shape_y)} cannot be compared: "
            "x and y must agree in all but the number of samples"
        )
    dtype = torch.promote_types(flat_x.dtype, flat_y.dtype)
    (flat_x, flat_y), scale = _without_scale(dtype, flat_x, flat_y)
    return flat_x, flat_y, shape, scale


def _without_scale(dtype: torch.dtype, *sets: Tensor) -> tuple[list[Tensor], float]:
    """The sets without a scale that they share, and that scale.

    It is 1, and nothing is changed, unless squares could overflow or vanish: a model diverged, say.
    """
    scale = scale_of(*sets)
    if scale == 1:
        return [x.to(dtype) for x in sets], scale
    return [x.double() / scale for x in sets], scale


def _samples(x: Tensor, name: str) -> tuple[Tensor, torch.Size]:
    """(N, D), float64 if it was, else float32, and the shape of a sample."""
    x = as_tensor(x, name, floating=True).cpu()
    x = x.clone() if x.is_inference() else x  # which could not enter a gradient
    if x.ndim < 2 or x.numel() == 0:
        raise InvalidArgumentError(
            f"{name} has shape {tuple(x.shape)}, expected (N, *shape) with at least one sample"
        )
    if not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).flatten(1).any(dim=1).sum())
        raise InvalidArgumentError(
            f"{name} has {bad} of {len(x)} samples with NaN or infinity: did the model diverge?"
        )
    x = x if x.is_floating_point() else x.float()
    largest = float(x.abs().max())
    if largest > LARGEST_DOUBLE:
        raise InvalidArgumentError(
            f"{name} has values up to {largest:.3g}, whose squares are too large: did the model "
            "diverge?"
        )
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.flatten(1).to(dtype).contiguous(), x.shape[1:]
