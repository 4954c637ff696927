"""A few numbers by which networks, and probes, are told apart where their descriptions agree."""

import math
from collections.abc import Sequence

from torch import Tensor

FEW = 3  # numbers of one tensor: its length, its mean and its first entry


def response_of(output: Tensor, probed: Tensor) -> tuple[float, ...]:
    """Of what one network gives for one input, and of one input that the probe draws."""
    return tuple(float(v) for z in (output, probed) for v in (z.norm(), z.mean(), z.flatten()[0]))


def same_response(a: Sequence[float], b: Sequence[float], tolerance: float = 1e-2) -> bool:
    """May two estimates be of the same networks and the same probe?

    Numbers may differ by the tolerance, or by a hundredth of it of the length of their tensor.

    >>> same_response((1e-9, 1e-10, 0.0), (2e-9, 1e-10, 0.0))
    False
    >>> same_response((1.0, 0.0, 1e-6), (1.0, 0.0, 0.0))
    True
    """
    lengths = [length for i in range(0, len(b), FEW) for length in [abs(b[i])] * FEW]
    return len(a) == len(b) and all(
        math.isclose(p, q, rel_tol=tolerance, abs_tol=tolerance / 100 * length)
        for p, q, length in zip(a, b, lengths, strict=False)
    )
