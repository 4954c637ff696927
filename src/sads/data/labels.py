"""Class labels of images, where their source has any."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sads.data.readers import reading_file
from sads.errors import DataError

NAMES = ("labels", "y")


def load_labels(source: str | Path, limit: int | None = None) -> Tensor | None:
    """Whole numbers (N,), one for each image that `load_images` reads; None if there are none.

    The digits of scikit-learn have them, and an npz file with an array `labels` or `y`.

    >>> load_labels("digits", limit=5).tolist()
    [0, 1, 2, 3, 4]
    """
    if str(source) == "digits":
        from sklearn.datasets import load_digits  # slow to import

        return torch.from_numpy(load_digits().target)[:limit]
    path = Path(source)
    if path.suffix.lower() != ".npz":
        return None
    with reading_file(path), np.load(path, allow_pickle=False) as arrays:
        name = next((n for n in NAMES if n in arrays.files), None)
        labels = None if name is None else arrays[name]
    if labels is None:
        return None
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path} has {name} of shape {labels.shape} and type {labels.dtype}, expected one "
            "whole number for each image"
        )
    return torch.from_numpy(labels.astype(np.int64))[:limit]
