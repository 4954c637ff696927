"""What a factor does within small windows: where the preferred end is, and a preconditioner.

The directions that random convolutional networks prefer are local: checkerboards of a few pixels,
at a border or inside. So the factor is looked at through windows of 8 x 8 positions (64
of them on any grid) that overlap by half. Every window's own matrix is small and dense:

- its smallest eigenvectors, with zeros around, start the search for the preferred end. By Cauchy's
  interlacing its eigenvalues lie above those of the whole;
- the inverses of all of them together, `sum_w R_w^T A_w^-1 R_w` with `R_w` the restriction to a
  window, approximate the inverse of the whole (the additive Schwarz method, as for partial
  differential equations), so that a search needs few steps. It need not be exact, and symmetries
  are left out of it.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

AREA = 64  # positions of a window
FLOOR = 1e-9  # of the largest eigenvalue of a window: less is rounding
CHUNK = 1 << 20  # numbers that are gathered at a time: they stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows on a grid of positions."""

    index: Tensor  # (W, s): the positions of each

    @classmethod
    def on(cls, sizes: tuple[int, ...]) -> "Windows":
        """Windows on a grid of these sizes, that overlap by half and reach every border."""
        side = max(1, round(AREA ** (1 / len(sizes))))
        places = torch.arange(int(torch.tensor(sizes).prod())).reshape(sizes)
        starts = [
            sorted({*range(0, max(1, n - side), max(1, side // 2)), max(0, n - side)})
            for n in sizes
        ]
        corners = itertools.product(*starts)
        index = [places[tuple(slice(c, c + side) for c in corner)].flatten() for corner in corners]
        return cls(torch.stack(index))

    def gram(self, rows: Tensor) -> Tensor:
        """`R_w Phi^T Phi R_w^T` of every window from rows (r, P), (W, s, s) float64."""
        count, area = self.index.shape
        total = torch.empty(count, area, area, dtype=torch.float64)
        places = rows.T.contiguous()  # (P, r): what is gathered lies together
        for part in torch.arange(count).split(max(1, CHUNK // (len(rows) * area))):
            inside = places[self.index[part]].double()  # (w, s, r)
            torch.bmm(inside, inside.mT, out=total[part[0] : part[-1] + 1])
        return total


@dataclass(frozen=True, eq=False)
class LocalInverse:
    """The windows of a factor, taken apart."""

    windows: Windows
    size: int  # P
    values: Tensor  # (W, s) ascending
    vectors: Tensor  # (W, s, s), columns

    @classmethod
    def of(cls, windows: Windows, size: int, gram: Tensor) -> "LocalInverse":
        values, vectors = torch.linalg.eigh(gram)
        floor = FLOOR * values[:, -1:].clamp(min=torch.finfo(values.dtype).tiny)
        return cls(windows, size, values.clamp(min=floor), vectors)

    def preferred(self, count: int) -> Tensor:
        """The smallest directions of the `count` windows where they are smallest, (P, count)."""
        best = self.values[:, 0].argsort()[:count]
        start = torch.zeros(len(best), self.size, dtype=torch.float64)
        start.scatter_(1, self.windows.index[best], self.vectors[best, :, 0])
        return start.T.contiguous()

    def apply(self, x: Tensor) -> Tensor:
        """`sum_w R_w^T A_w^-1 R_w x` for `x` of (P, b)."""
        result = torch.zeros_like(x)
        for part in torch.arange(len(self.values)).split(
            max(1, CHUNK // (AREA * (x.shape[1] + 1)))
        ):
            index, vectors = self.windows.index[part], self.vectors[part]
            inside = vectors.mT @ x[index]  # (w, s, b)
            solved = vectors @ (inside / self.values[part][:, :, None])
            result.index_add_(0, index.flatten(), solved.flatten(0, 1))
        return result
