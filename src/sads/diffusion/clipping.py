"""Where samples are clipped: the prediction of `x_0`, in the frame of the data.

A network may see data that are rotated or centred. What it predicts is taken back to the data,
clipped to their range, and brought to the network again. All samplers take the prediction of the
noise from one function, so that is where it happens: the noise becomes the one that goes with the
clipped `x_0`. A sample that is within the range keeps its noise, to the bit.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sads.arguments import check_type
from sads.diffusion.model import ScoreModel
from sads.errors import InvalidArgumentError, printable
from sads.rotations.rotation import Rotation
from sads.shapes import format_shape

Clip = tuple[float, float] | Literal["data"]


@dataclass(frozen=True, eq=False)
class Frame:
    """How the data of a network, `z = W x - mean`, come from the data."""

    mean: Tensor | None = None  # (*shape)
    rotation: Rotation | None = None

    def to_data(self, z: Tensor) -> Tensor:
        """`x` of `z` (N, *shape); `z` itself is changed if it is rotated."""
        if self.mean is not None:
            z = z + self.mean.to(z)
        return z if self.rotation is None else self.rotation.undo(z, out=z.contiguous())

    def to_network(self, x: Tensor) -> Tensor:
        z = x if self.rotation is None else self.rotation.apply(x)
        return z if self.mean is None else z - self.mean.to(z)


@dataclass(frozen=True, eq=False)
class Clipping:
    """The prediction of `x_0` is kept between `low` and `high`, in the frame of the data."""

    low: float
    high: float
    frame: Frame
    shape: tuple[int, ...]  # of a sample

    def noise(self, eps: Tensor, x: Tensor, abar: float) -> Tensor:
        """The noise in `x` that goes with the clipped `x_0`, for a prediction `eps` of it."""
        clean = (x - math.sqrt(1 - abar) * eps) / math.sqrt(abar)
        seen = self.frame.to_data(clean)
        outside = ((seen < self.low) | (seen > self.high)).flatten(1).any(dim=1)  # (N,)
        if not outside.any():
            return eps
        clipped = self.frame.to_network(seen[outside].clamp(self.low, self.high))
        eps = eps.clone()
        eps[outside] = (x[outside] - math.sqrt(abar) * clipped) / math.sqrt(1 - abar)
        return eps

    def samples(self, y: Tensor) -> Tensor:
        """Samples in the frame of the data; only rounding is left to be clipped of them."""
        return y.clamp_(self.low, self.high)


def frame_of(model: ScoreModel, rotation: Rotation | None) -> Frame:
    """The frame of a model whose data were rotated, by a rotation of their shape, or were not."""
    if rotation is None:
        return Frame(model.mean)
    check_type(
        rotation, Rotation, "the rotation", "give one that sads.rotation or load_rotation returned"
    )
    if rotation.shape != model.family.shape:
        raise InvalidArgumentError(
            f"the rotation is of {format_shape(rotation.shape)}, the model of "
            f"{format_shape(model.family.shape)}: give the one that the data were rotated by"
        )
    return Frame(model.mean, rotation)


def clipping_of(model: ScoreModel, clip: Clip | None, frame: Frame) -> Clipping | None:
    """What a range, or the range of a model's data, says; one clear line if there is none."""
    if clip is None:
        return None
    if isinstance(clip, str) and clip == "data":
        known = model.provenance
        if known.data_range is None:
            raise InvalidArgumentError(
                "the range of the model's data is not known, as it was not kept when it was "
                "trained: give it, such as clip=(-1, 1) (--clip-range -1,1)"
            )
        if frame.rotation is not None and known.rotation is None:
            raise InvalidArgumentError(
                "the model knows the range of its rotated data only: give that of the data before "
                "the rotation, such as clip=(-1, 1) (--clip-range -1,1)"
            )
        low, high = known.data_range
    else:
        try:
            low, high = (float(end) for end in clip)
        except (TypeError, ValueError, RuntimeError):
            low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise InvalidArgumentError(
            f"samples cannot be clipped to {printable(clip)[:60]!r}; give a range such as (-1, 1), "
            "or 'data'"
        )
    return Clipping(low, high, frame, model.family.shape)


def range_of(x: Tensor) -> tuple[float, float]:
    """The least and the largest value of data."""
    low, high = torch.aminmax(x)
    return float(low), float(high)
