"""One end of the spectrum of a geometry: its directions, and what is certain about them."""

from dataclasses import dataclass

from torch import Tensor

from sads.errors import counted
from sads.estimates import Estimates


@dataclass(frozen=True, eq=False, repr=False)
class End:
    """The directions at one end, outermost first, one copy of each.

    Of a geometry without a matrix, directions are *found* with a quarter of the networks
    and *judged* by the others, which know nothing of them. So `energies` are free of bias, and by
    Courant and Fischer the j-th eigenvalue of the geometry lies at or below `bounds[j]` (preferred
    end), or at or above it (avoided end), within the error. What was found leans outwards, as the
    extremes of a sample do: where a residual is small beside it, the eigenvalue should lie between
    `found` and `bounds`.

    Where there is a matrix, all of these are the eigenvalues and their errors.
    """

    side: str  # "avoided" or "preferred"
    vectors: Tensor  # (k, *shape) float64, of length 1
    energies: Estimates  # (k,), v^T G v
    bounds: Estimates  # (k,), of the eigenvalues
    found: Tensor  # (k,), Ritz values of the networks that the directions were found with
    residuals: Tensor  # (k,), |A v - found v| for these networks: an eigenvalue of A is as close
    copies: int  # of each eigenvalue: the groups of the output layer

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        sign = "<=" if self.side == "preferred" else ">="
        size = counted(len(self), f"{self.side} direction")
        return f"End({size}, eigenvalue {sign} {self.bounds[0]})"
