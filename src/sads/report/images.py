"""Images for the browser: data as whole numbers of 16 bits, and pictures that commands made."""

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from sads.errors import ReportError, printable
from sads.markup import data_url
from sads.report.page import pack
from sads.untrusted import open_regular

PNG = b"\x89PNG\r\n\x1a\n"  # how such files begin
MAX_PICTURE = 20_000_000  # bytes
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


def signed_data(vectors: Tensor) -> dict[str, Any]:
    """Directions of one channel (k, *spatial) as numbers of 8 bits, in units of the largest."""
    rows = vectors.detach().double().flatten(1)
    scales = rows.abs().amax(dim=1).clamp(min=1e-300) / 127
    height = vectors.shape[1] if vectors.ndim > 2 else 1
    return {
        "count": len(rows),
        "rows": height,
        "columns": rows.shape[1] // height,
        "pixels": pack((rows / scales[:, None]).round().nan_to_num().numpy().astype(np.int8)),
        "scales": scales,
    }


def picture_url(folder: Path, name: str) -> Markup:
    """A picture in a folder, as an address of itself."""
    path = folder / name
    if Path(name).name != name:
        raise ReportError(f"{printable(path)} is not a picture in {printable(folder)}")
    try:
        with open_regular(path) as file:
            content = file.read(MAX_PICTURE + 1)
    except OSError as error:
        raise ReportError(
            f"the picture {printable(path)} cannot be read; make it again with the command that "
            "made it"
        ) from error
    if not content.startswith(PNG) or len(content) > MAX_PICTURE:
        raise ReportError(f"{printable(path)} is not a picture that sads made")
    return Markup(data_url(content, "image/png"))
