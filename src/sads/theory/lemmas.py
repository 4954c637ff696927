"""Lemmas 1 and 2 of the paper (appendix D.1)."""

import torch
from torch import Tensor

from sads.arguments import check_count
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.scales import moderate_rows

MOST_COLUMNS = 30_000  # of a dense matrix: 7 GB
SMALLEST, LARGEST = 1e-50, 1e50  # beyond which its fourth power is 0 or infinite


def unit(v: Tensor) -> Tensor:
    """`v / |v|` as a flat float64 vector; a direction of zero length has none."""
    flat = v.detach().double().flatten()
    flat = moderate_rows(flat[None])[0]
    length = flat.norm()
    if not flat.isfinite().all() or not length > 0:
        raise InvalidArgumentError(
            f"a direction needs finite entries and a length above 0, got length {float(length)}"
        )
    check_count("the number of entries of a direction", len(flat), most=MOST_COLUMNS)
    return flat / length


@checked
def optimal_score(v: Tensor, sigma: float) -> Tensor:
    """Lemma 1: the score of `N(0, v v^T)` after noise `sigma` is linear, `x -> Omega x` with

        Omega = -(v v^T + sigma^2 I)^-1 = ( v v^T / (sigma^2 + 1) - I ) / sigma^2.

    A Gaussian's log-density is quadratic, so its gradient is linear; the inverse is Sherman and
    Morrison's. `v` is scaled to length 1. Returns (D, D) float64.

    >>> optimal_score(torch.tensor([1.0, 0.0]), sigma=1.0).tolist()
    [[-0.5, 0.0], [0.0, -1.0]]
    """
    check_sigma(sigma)
    v = unit(v)
    identity = torch.eye(len(v), dtype=torch.float64)
    return (torch.outer(v, v) / (sigma**2 + 1) - identity) / sigma**2


@checked
def expected_quadratic(x: Tensor, variance: float, num_columns: int) -> Tensor:
    """Lemma 2: `E[W^T X W] = variance tr(X) I` for `W` of iid entries with mean zero.

    Entry `(i, j)` is `sum_kl E[W_ki W_lj] X_kl`, and only `k = l, i = j` survive: different
    entries are uncorrelated. Returns (num_columns, num_columns) float64.
    """
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
        raise InvalidArgumentError(
            f"Lemma 2 takes a square matrix X, got a tensor of shape {tuple(x.shape)}"
        )
    check_count("num_columns", num_columns, most=MOST_COLUMNS)
    check_variance(variance)
    if not x.isfinite().all():
        raise InvalidArgumentError(
            "Lemma 2 takes a matrix X of finite entries, got NaN or infinity"
        )
    return variance * x.detach().double().trace() * torch.eye(num_columns, dtype=torch.float64)


def check_variance(variance: float) -> None:
    if not variance >= 0:
        raise InvalidArgumentError(f"a variance is at least 0, got {variance}")


def check_sigma(sigma: float) -> None:
    if not SMALLEST < sigma < LARGEST:
        raise InvalidArgumentError(
            f"the noise level sigma must be positive ({SMALLEST:g} to {LARGEST:g}), got {sigma:g}"
        )
