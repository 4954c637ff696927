"""Images for the browser: whole numbers of 16 bits, and the range of grey levels to show."""

from typing import Any

import numpy as np
from torch import Tensor

from sads.report.page import pack

LEVELS = 65_534  # from -32,767 to 32,767; -32,768 stands for what is not finite


def image_data(images: Tensor) -> dict[str, Any]:
    """Images (n, *shape) with their values to a 65,000th of their range.

    -1 is black and 1 white, as in images, unless more than a few values go beyond.
    """
    values = images.detach().double().numpy()
    finite = np.isfinite(values)
    known = values[finite] if finite.any() else np.zeros(1)
    low, high = float(known.min()), float(known.max())
    step = max((high - low) / LEVELS, np.finfo(np.float64).tiny)
    levels = np.rint((np.where(finite, values, low) - low) / step) - LEVELS // 2
    return {
        "count": len(images),
        "shape": tuple(images.shape[1:]),
        "pixels": pack(np.where(finite, levels, -LEVELS // 2 - 1).astype(np.int16)),
        "low": low,
        "step": step,
        "black": min(-1.0, float(np.quantile(known, 0.02))),
        "white": max(1.0, float(np.quantile(known, 0.98))),
    }
