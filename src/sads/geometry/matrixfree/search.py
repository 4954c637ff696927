"""Both ends of a spectrum without a matrix: Rayleigh and Ritz in a space that grows.

All that is asked of the symmetric matrix `A` is to be applied to a block of vectors, which takes
one pass over the networks. A space `S` starts from random vectors (a sketch: the avoided end has
large eigenvalues, and one application brings them out) and from what windows say about the
preferred end. In every pass the Ritz pairs `(theta, u)` at both ends of `S^T A S` are found, and
their residuals `A u - theta u` join the space: as they are at the avoided end (block Krylov), sent
through the windows' inverse at the preferred one (Davidson's method).

What is certain about `A` at any moment, converged or not:

- the j-th smallest Ritz value lies at or above the j-th smallest eigenvalue, the j-th largest at or
  below the j-th largest (Courant and Fischer, as `S` is a subspace);
- within `|A u - theta u|` of every Ritz value there is an eigenvalue.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sads.geometry.matrixfree.windows import LocalInverse

SURE = 0.05  # residual in units of its Ritz value at which a pair is no longer refined
TINY = 1e-12  # of the largest Ritz value: smaller ones are zero


@dataclass(frozen=True, eq=False)
class Ends:
    """Ritz pairs at the two ends, outermost first."""

    values: Tensor  # (a + p,), `avoided` of them descending, then the preferred ones ascending
    vectors: Tensor  # (P, a + p), orthonormal
    residuals: Tensor  # (a + p,), norms of A u - theta u
    num_avoided: int


@dataclass(frozen=True, eq=False)
class Search:
    """A space and what the matrix makes of it."""

    basis: Tensor  # (P, m), orthonormal columns
    images: Tensor  # (P, m), A times these

    def joined(self, block: Tensor, images: Tensor) -> "Search":
        """This space with a block that is orthogonal to the space, and its images."""
        return Search(torch.cat([self.basis, block], 1), torch.cat([self.images, images], 1))

    def ends(self, count: int) -> Ends:
        """Up to `count` Ritz pairs at each end."""
        values, rotation = self._ritz()
        avoided, preferred = _split(len(values), count)
        chosen = torch.cat([torch.arange(len(values)).flip(0)[:avoided], torch.arange(preferred)])
        vectors = self.basis @ rotation[:, chosen]
        residuals = self.images @ rotation[:, chosen] - vectors * values[chosen]
        return Ends(values[chosen], vectors, residuals.norm(dim=0), avoided)

    def next_block(
        self, inverse: LocalInverse, count: int, both: bool = True, sure: float = SURE
    ) -> Tensor | None:
        """What should join the space, (P, b) orthonormal; None if both ends are sure.

        With `both` false the preferred end is left as it is.
        """
        ends = self.ends(count)
        doubt = ends.residuals > sure * ends.values.clamp(min=TINY * float(ends.values.max()))
        if not both:
            doubt[ends.num_avoided :] = False
        if not doubt.any() or self.basis.shape[1] >= len(self.basis):
            return None
        values, vectors = ends.values[doubt], ends.vectors[:, doubt]
        rotation = self.basis.T @ vectors
        residuals = self.images @ rotation - vectors * values
        preferred = torch.arange(len(doubt))[doubt] >= ends.num_avoided
        residuals[:, preferred] = inverse.apply(residuals[:, preferred])
        return orthonormal(residuals, self.basis)

    def _ritz(self) -> tuple[Tensor, Tensor]:
        form = self.basis.T @ self.images
        return torch.linalg.eigh((form + form.T) / 2)


def _split(size: int, count: int) -> tuple[int, int]:
    """How many Ritz pairs belong to the avoided end and to the preferred one: none to both."""
    avoided = min(count, (size + 1) // 2)
    return avoided, min(count, size - avoided)


def orthonormal(block: Tensor, basis: Tensor | None = None) -> Tensor | None:
    """An orthonormal basis of what a block (P, b) has beyond a space (P, m); None if nothing."""
    block = block / block.norm(dim=0).clamp(min=torch.finfo(block.dtype).tiny)
    for _ in range(2):  # the second time takes out what rounding left of the first
        if basis is not None:
            block = block - basis @ (basis.T @ block)
        q, r = torch.linalg.qr(block)
        kept = r.diagonal().abs() > 1e-10
        block = q[:, kept]
        if not kept.any():
            return None
    return block
