"""Numbers of any scale: the square of 1e-200 is 0 and that of 1e200 infinite.

Where squares of what somebody gives are added up, its scale is taken out before and put back
afterwards. It is a power of two, so that no digit changes, and 1 where numbers are moderate.
"""

import math

import torch
from torch import Tensor

from sads.samples import LARGEST

LEAST, MOST = 1e-15, LARGEST  # whose squares, and sums of many, single precision can hold


def scale_of(*tensors: Tensor) -> float:
    """A power of two by which the largest of all entries is between 1 and 2; 1 if it is moderate.

    Whole numbers are.

    >>> scale_of(torch.tensor([0.5, -3.0])), scale_of(torch.tensor([3e-30])) == 2.0**-99
    (1.0, True)
    """
    ends = [end for x in tensors if x.is_floating_point() and x.numel() for end in x.aminmax()]
    return _scale(max((abs(float(end)) for end in ends), default=0.0))


def moderate_rows(rows: Tensor) -> Tensor:
    """Rows (n, D) of which each has entries of a moderate scale, and the direction that it had."""
    if not rows.numel():
        return rows
    scales = [_scale(largest) for largest in rows.abs().amax(dim=1).tolist()]
    if all(scale == 1 for scale in scales):
        return rows
    return rows.double() / torch.tensor(scales, dtype=torch.float64, device=rows.device)[:, None]


def _scale(largest: float) -> float:
    if largest == 0 or not math.isfinite(largest) or LEAST <= largest <= MOST:
        return 1.0
    return math.ldexp(1.0, math.frexp(largest)[1] - 1)
