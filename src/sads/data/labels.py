"""Class labels of images, where their source has any."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sads.arguments import as_path
from sads.checked import checked
from sads.data.arrays import load_array
from sads.data.digits import load_digits
from sads.errors import DataError, InvalidArgumentError, printable

NAMES = ("labels", "y")
EXPECTED = "one whole number for each image"


@checked
def load_labels(source: str | Path, limit: int | None = None) -> Tensor | None:
    """Whole numbers (N,), one for each image that `load_images` reads; None if there are none.

    The digits of scikit-learn have them, and an npz file with an array `labels` or `y`.

    >>> load_labels("digits", limit=5).tolist()
    [0, 1, 2, 3, 4]
    """
    if limit is not None and limit < 1:
        raise InvalidArgumentError(f"limit must be at least 1, got {limit!r}")
    as_path(source)
    if str(source) == "digits":
        return torch.from_numpy(load_digits()[1])[:limit]
    path = Path(source)
    if path.suffix.lower() != ".npz" or os.path.isdir(path):
        return None
    chosen: list[str] = []

    def choose(names: Sequence[str]) -> str | None:
        chosen.extend(name for name in NAMES if name in names)
        return chosen[0] if chosen else None

    labels = load_array(path, choose, EXPECTED)
    if labels is None or not chosen:  # an npy file by another name has no labels
        return None
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{printable(path)} has {chosen[0]} of shape {labels.shape} and type {labels.dtype}, "
            f"expected {EXPECTED}"
        )
    if labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{printable(path)} has {chosen[0]} up to {labels.max()}, expected classes")
    return torch.from_numpy(labels.astype(np.int64))[:limit]
