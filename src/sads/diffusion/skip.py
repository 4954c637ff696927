"""A family with the Gaussian part of the score beside its networks: they have the rest to learn.

The mean and the covariance of the data are known before any training, and so is the best linear
prediction. Beside it a network starts where it would otherwise have to get to.
"""

from dataclasses import replace

import torch
from torch import Tensor

from sads.arguments import check_count
from sads.checked import checked
from sads.errors import DataError
from sads.families import ScoreFamily, as_family
from sads.networks.gaussian import GaussianPart
from sads.rotations.rotation import CHUNK_BYTES, chunks
from sads.samples import as_samples, check_values
from sads.seeds import torch_stream

MAX_EXACT = 4096  # coordinates, or samples: beyond, eigenvectors are found by iteration
MAX_FULL = 1024  # coordinates: beyond, all eigenvectors would slow sampling down
DEFAULT_RANK = 512  # then: 3 % of a sampling step of the paper's iDDPM at 3x32x32, instead of 15 %
OVERSAMPLING, ITERATIONS = 32, 6  # of it
NEGLIGIBLE = 1e-10  # eigenvalues in units of the largest: rounding


@checked
def gaussian_skip(family: ScoreFamily | str, x: Tensor, *, rank: int | None = None) -> ScoreFamily:
    """A family's networks with the Gaussian part of the score of data `x` (N, *shape) beside them.

    With mean `mu` and covariance `C` of the data, `net(x, t)` becomes

        sigma_t (abar_t C + sigma_t^2 I)^-1 (x - sqrt(abar_t) mu) + net(x, t)

    for noise predictions, and likewise for all others: what the network returns is added to what
    would be right for Gaussian data. Training, sampling and saved models take it along. The average
    geometry of the family stays that of its networks.

    Args:
        rank: how many eigenvectors of `C` to keep; the rest of the variance is spread evenly over
            the other directions (Tipping & Bishop, 1999). If not given, all up to 1,024
            coordinates, else 512: then this is a Gaussian with almost the data's covariance.
    """
    family = as_family(family)
    x = as_samples(x, "the data of the skip", family.shape)
    check_values(x, "the data of the skip")
    if rank is not None:
        rank = check_count("rank", rank)
    return replace(family, skip=fit_gaussian(x.flatten(1), rank))


def fit_gaussian(rows: Tensor, rank: int | None = None) -> GaussianPart:
    """The Gaussian with the mean and the covariance of samples (N, D), read in chunks."""
    num_samples, dimension = rows.shape
    if rank is None and dimension > MAX_FULL:
        rank = DEFAULT_RANK
    if num_samples < 2:
        raise DataError(
            f"a mean and a covariance take at least two samples, got {num_samples}: give more"
        )
    if not rows.isfinite().all():
        raise DataError("the data have NaN or infinite entries; remove or mend those samples")
    mean = torch.zeros(dimension, dtype=torch.float64)
    for chunk in chunks(rows):
        mean += chunk.sum(dim=0) / num_samples
    total = sum(float((c - mean).square().sum()) for c in chunks(rows)) / num_samples
    if total <= NEGLIGIBLE**2 * float(mean.square().sum()):
        raise DataError(
            "the data have rank 0: all samples are equal, and there is no covariance; "
            "give data that vary"
        )
    if dimension <= min(num_samples, MAX_EXACT):
        values, vectors = _from_covariance(rows, mean)
    elif num_samples <= MAX_EXACT:
        values, vectors = _from_products(rows, mean)
    else:
        values, vectors = _by_iteration(rows, mean, min(rank or dimension, dimension))
    kept = int((values > NEGLIGIBLE * values[0]).sum())
    kept = min(kept, rank or kept)
    others = dimension - kept
    rest = max(0.0, total - float(values[:kept].sum())) / others if others else 0.0
    if rest < NEGLIGIBLE * float(values[0]):
        rest = 0.0
    return GaussianPart(
        mean=mean, vectors=vectors[:, :kept].float().contiguous(), values=values[:kept], rest=rest
    )


def _from_covariance(rows: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors (D, D) of the covariance."""
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for chunk in chunks(rows):
        centred = chunk - mean
        covariance.addmm_(centred.T, centred, alpha=1 / len(rows))
    return _descending(covariance)


def _from_products(rows: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian from inner products of samples, of which there are fewer than coordinates.

    `X X^T u = N lambda u` makes `X^T u` an eigenvector of `X^T X / N`.
    """
    count = len(rows)
    width = max(1, CHUNK_BYTES // (8 * count))
    parts = list(zip(rows.split(width, dim=1), mean.split(width), strict=True))
    products = torch.zeros(count, count, dtype=torch.float64)
    for part, centre in parts:
        centred = part.to("cpu", torch.float64) - centre
        products.addmm_(centred, centred.T, alpha=1 / count)
    values, left = _descending(products)
    kept = values > NEGLIGIBLE * values[0]
    values, left = values[kept], left[:, kept]
    vectors = [(part.to("cpu", torch.float64) - centre).T @ left for part, centre in parts]
    return values, torch.cat(vectors) / (values * count).sqrt()


def _by_iteration(rows: Tensor, mean: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The first eigenvectors by subspace iteration from a random start (Halko et al., 2011)."""
    dimension = len(mean)
    width = min(dimension, rank + OVERSAMPLING)
    start = torch.randn(dimension, width, generator=torch_stream("gaussian skip"))
    span = torch.linalg.qr(start.double()).Q
    for _ in range(ITERATIONS):
        image = torch.zeros_like(span)
        for chunk in chunks(rows):
            centred = chunk - mean
            image.addmm_(centred.T, centred @ span, alpha=1 / len(rows))
        values, turn = _descending(span.T @ image)
        found = span @ turn
        span = torch.linalg.qr(image).Q
    return values[:rank], found[:, :rank]


def _descending(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return values.flip(0).clamp(min=0), vectors.flip(1)
