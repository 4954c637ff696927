"""How noise pushes eigenvalues apart: large ones come out too large, small ones too small.

The eigenvalues of a mean with noise obey Dyson's law as the noise grows,

    d lambda_i / d s = sum_j Var_ij / (lambda_i - lambda_j)

Following it back from the eigenvalues that were found, until the
noise is gone, says how far each of them was pushed.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FLOW_STEPS = 16  # in which the noise is taken out of the eigenvalues
WIDTH_STEPS = 5  # in which it is found how far each must be kept from its neighbours
CLOSE = 256.0  # squared distance of two eigenvalues, in units of Var_ij, up to which they fluctuate
VERY_CLOSE = 16.0  # the same, up to which they may well be equal
NUMBERS = 1 << 14  # of a matrix, worked on at a time: they stay in the cache
TINY = float(np.finfo(np.float64).tiny)

Array = NDArray[np.float64]


@np.errstate(over="ignore")  # two that are equal are infinitely near
def largest_push(values: Tensor, variance: Tensor, bias: Tensor) -> Tensor:
    """How far noise may have pushed every eigenvalue, (P,), if one neighbour is not counted.

    In `bias` the pushes of the neighbour above and of the one below cancel. But either may be far
    away in truth, and the other one the partner of an equal pair. For two on their own Dyson's law
    is `d^2 = d_0^2 + 4 Var_ij`, with `Var_ij` counted as in `pushed`.
    """
    if len(values) < 2:
        return bias.abs()
    distance = values[:-1] - values[1:]  # to the one below, (P - 1,)
    noise = variance.diagonal(1)
    near = noise / distance.square().clamp(min=TINY)
    noise = noise * torch.from_numpy(_closeness(near.cpu().numpy())).to(noise)
    before = (distance.square() - 4 * noise).clamp(min=0).sqrt()
    push = torch.where(noise > 0, (distance - before) / 2, 0.0)
    from_below, from_above = torch.zeros_like(bias), torch.zeros_like(bias)
    from_below[:-1], from_above[1:] = push, push
    without = torch.stack([bias, bias - from_below, bias + from_above])
    return without.abs().amax(dim=0)


def _closeness(near: Array) -> Array:
    """How often `Var_ij` counts, once to three times, from `Var_ij / (lambda_i - lambda_j)^2`."""
    often = np.minimum(VERY_CLOSE * near, 1)
    often *= often
    near = np.minimum(CLOSE * near, 1)
    near *= near
    often += near
    often += 1
    return often


@np.errstate(over="ignore")
def pushed(values: Tensor, variance: Tensor) -> Tensor:
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
    found, spread = values.cpu().numpy(), variance.cpu().numpy()
    at_once = max(1, NUMBERS // len(found))
    starts = range(0, len(found), at_once)
    positive, clean = found > 0, found.copy()
    for _ in range(FLOW_STEPS):
        scale = np.divide(clean, found, out=np.ones_like(found), where=positive)

        def of_rows(start: int, clean: Array = clean, scale: Array = scale) -> tuple[Array, ...]:
            """Difference, its square, and noise of some rows and all columns."""
            rows = slice(start, start + at_once)
            difference = clean[rows, None] - clean
            square = np.square(difference)
            noise = _closeness(spread[rows] / np.maximum(square, TINY))
            noise *= spread[rows]
            noise *= scale[rows, None]
            noise *= scale / FLOW_STEPS
            return difference, square, noise

        only = of_rows(0) if len(starts) == 1 else None  # else made twice: they are large
        width = np.concatenate([_width(*(only or of_rows(start))[1:]) for start in starts])
        drift = np.empty_like(clean)
        for start in starts:
            difference, square, noise = only or of_rows(start)
            square += np.maximum(width[start : start + at_once, None], width)
            noise *= difference
            noise /= square
            drift[start : start + at_once] = noise.sum(axis=1)
        clean = np.maximum(clean - drift, 0)
    return values - torch.from_numpy(clean).to(values)


def _width(square: Array, noise: Array) -> Array:
    """The squares of widths with which `sum_j noise / (d^2 + width^2)` is about a half, (rows,)."""
    width = np.maximum(2 * noise.sum(axis=1), TINY)
    share = np.empty_like(noise)
    for _ in range(WIDTH_STEPS):
        np.add(square, width[:, None], out=share)
        np.divide(noise, share, out=share)
        width *= np.maximum(2 * share.sum(axis=1), 0.01)
    return width
