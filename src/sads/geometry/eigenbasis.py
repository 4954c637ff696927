"""How far the batches of a geometry are spread, in the eigenbasis of their mean."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.estimates import batch_error, batch_mean, batch_skewness

EQUAL = 1e-12  # eigenvalues this close, in units of the largest, are the same number
TIE = 1e-6  # entries of an eigenvector this close have the same size
CHUNK = 1 << 22  # numbers that are made at a time for all pairs of directions


@dataclass(frozen=True, eq=False)
class Spread:
    """A mean of batches in its own eigenbasis, and how far the batches are spread there."""

    values: Tensor  # (P,), descending; what is zero up to rounding is 0
    basis: Tensor  # (P, P), columns are eigenvectors
    errors: Tensor  # (P, P), of u_i^T G u_j
    forms: Tensor  # (K, P), u_i^T G_k u_i
    skewness: Tensor  # (P, P) float32, of u_i^T G_k u_j over the batches

    @classmethod
    def of(cls, factors: Tensor, counts: Tensor) -> "Spread":
        """The spread of the factors of batches, (K, P, P), and the networks in each, (K,)."""
        values, basis = torch.linalg.eigh(batch_mean(factors, counts))
        values, basis = values.flip(0), _fix_signs(basis.flip(1))
        values = torch.where(values > EQUAL * values[0], values, 0.0)  # the rest is rounding
        return cls(values, basis, *form_errors(factors, counts, basis))

    def whitened_error(self, counts: Tensor) -> float:
        """`sqrt(sum_ij Var_ij / (lambda_i lambda_j) / P)` over eigenvalues that are not zero."""
        kept = self.values > 0
        if not kept.any() or (int(counts.sum()) < len(self.values) and not kept.all()):
            return math.inf  # too few networks to see all directions
        values = self.values[kept]
        rows = self.errors[: len(values)].split(rows_at_once(len(self.values)))
        total = 0.0
        for part, of_part in zip(rows, values.split(len(rows[0])), strict=True):
            variance = part[:, : len(values)].square()
            total += float((variance / of_part[:, None] / values).sum())
        return math.sqrt(total / len(values))


def form_errors(factors: Tensor, counts: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The standard errors of `u_i^T G u_j` for the columns `u` of a basis (P, r), as (r, r).

    With them `u_i^T G_k u_i` of every batch, (K, r), and the skewness of `u_i^T G_k u_j` over the
    batches, (r, r) in single precision.
    """
    size, width = basis.shape
    errors = torch.empty(width, width, dtype=factors.dtype)
    skewed = torch.empty(width, width, dtype=torch.float32)
    diagonals = torch.empty(len(factors), width, dtype=factors.dtype)
    for rows in torch.arange(width).split(max(1, CHUNK // (len(factors) * size))):
        forms = torch.stack([basis[:, rows].T @ factor @ basis for factor in factors])
        errors[rows] = batch_error(forms, counts)  # of (K, rows, r)
        skewed[rows] = batch_skewness(forms, counts).float()
        diagonals[:, rows] = forms[:, torch.arange(len(rows)), rows]
    return errors, diagonals, skewed


def rows_at_once(size: int) -> int:
    """How many rows of a matrix of this width to work on at a time."""
    return max(1, CHUNK // size)


def _fix_signs(basis: Tensor) -> Tensor:
    """The entry of largest magnitude of every column is positive, the first of those that tie.

    An odd vector has two that differ in rounding alone, which is not the same on every machine.
    """
    sizes = basis.abs()
    largest = (sizes >= (1 - TIE) * sizes.amax(dim=0)).int().argmax(dim=0)
    return basis * torch.sign(basis[largest, torch.arange(basis.shape[1])])
