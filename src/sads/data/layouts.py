"""Which axis of an array is what: images N, channels C, and height, width, length or depth.

An array of a file has no names for its axes. What it can only mean is understood; where two
readings are likely, such as one image of 32x32 in colour or 32 images of 32x3, it is refused.
"""

import numpy as np

from sads.data.rows import Array
from sads.errors import DataError, InvalidArgumentError, counted
from sads.shapes import format_shape

SPATIAL = ("", "L", "HW", "DHW")
CHANNELS = (1, 3, 4)  # of images as people save them
# The readings of an array by its number of axes; the first of a kind is the usual one.
READINGS = {
    1: ("L", "C"),
    2: ("HW", "NL", "CL", "LC", "NC"),
    3: ("NHW", "CHW", "HWC", "NCL", "NLC"),
    4: ("NCHW", "NHWC"),
    5: ("NCDHW", "NDHWC"),
}


def parse_layout(text: str) -> str:
    """
    >>> parse_layout("nhwc")
    'NHWC'
    """
    layout = text.upper() if isinstance(text, str) else ""
    places = "".join(sorted(set(layout) - set("NC")))
    known = any(places == "".join(sorted(spatial)) for spatial in SPATIAL)
    if not known or not set(layout) - {"N"} or len(set(layout)) < len(layout):
        raise InvalidArgumentError(
            f"{text!r} is not a layout; name each axis once: N (images), C (channels), H, W, or L "
            "for lines, such as NCHW, NHWC, HWC, NHW, HW or NCL"
        )
    return layout


def arrange(array: Array, layout: str) -> Array:
    """The array as (N, C, *spatial)."""
    names = "NC" + _spatial(layout)
    array = array.transpose([layout.index(axis) for axis in names if axis in layout])
    missing = [place for place, axis in enumerate("NC") if axis not in layout]
    return np.expand_dims(array, tuple(missing))


def find_layout(
    name: str, shape: tuple[int, ...], layout: str | None, asked: tuple[int, ...] | None
) -> str:
    """The layout of an array of `shape`.

    Args:
        layout: as the user says, who knows.
        asked: (channels, *spatial) that images must have; it decides between two readings.
    """
    if layout is not None:
        if len(layout) != len(shape):
            raise DataError(
                f"{name} has an array of shape {shape}, which is not {spell(layout)}: the layout "
                f"must name {len(shape)} axes"
            )
        return layout
    places = 2 if asked is None else len(asked) - 1
    readings = [r for r in READINGS.get(len(shape), ()) if len(_spatial(r)) == places]
    fitting = [r for r in readings if image_shape(shape, r) == asked]
    likely = fitting if len(fitting) == 1 else _likely(shape, fitting or readings)
    if not likely or (readings == ["HW"] and not fitting):
        raise DataError(
            f"{name} has an array of shape {shape}, expected (N, height, width), (N, channels, "
            "height, width) or (N, height, width, channels); or name its axes with layout= "
            "(--layout), such as HW for one image or NL for lines"
        )
    if len(likely) > 1:
        meant = [f"{_count(shape, r)} of {format_shape(image_shape(shape, r))}" for r in likely]
        both = " or ".join(f"{m} ({r})" for m, r in zip(meant, likely, strict=True))
        raise DataError(
            f"{name} has an array of shape {shape}: is it {both}? Say it with layout= "
            f"(--layout {likely[-1]})"
        )
    return likely[0]


def _likely(shape: tuple[int, ...], readings: list[str]) -> list[str]:
    """The usual reading, and others whose number of channels is one that people use."""
    if len(readings) < 2:
        return readings
    distinct: dict[object, str] = {}
    for reading in readings:
        distinct.setdefault(_result(shape, reading), reading)
    whole = [r for r in distinct.values() if "N" in r and "C" in r]
    if len(whole) == len(distinct):  # (N, 1, 4, 4) is not 4 channels of 1x4
        thick = [r for r in whole if 1 not in image_shape(shape, r)[1:]]
        distinct = {r: r for r in thick or whole}
    usual, *others = distinct.values()
    others = [r for r in others if _has_channels(shape, r)]
    if "C" in usual and others and not _has_channels(shape, usual):
        return others
    return [usual, *others]


def _result(shape: tuple[int, ...], reading: str) -> object:
    """What a reading makes of an array; two readings may differ in axes of size 1 only."""
    places = [reading.index(axis) for axis in "NC" + _spatial(reading) if axis in reading]
    number = shape[reading.index("N")] if "N" in reading else 1
    return number, image_shape(shape, reading), tuple(p for p in places if shape[p] > 1)


def _has_channels(shape: tuple[int, ...], reading: str) -> bool:
    if "C" not in reading:
        return False
    channels = shape[reading.index("C")]
    if reading in ("NHWC", "NLC", "NDHWC") and channels == 2:  # rare: only if the other is not
        return shape[1] > max(CHANNELS)
    return channels in CHANNELS


def image_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """(channels, *spatial) of the images of an array."""
    sizes = dict(zip(layout, shape, strict=True))
    return sizes.get("C", 1), *(sizes[axis] for axis in _spatial(layout))


def spell(layout: str) -> str:
    """
    >>> spell("NHWC")
    'N x H x W x C'
    """
    return " x ".join(layout)


def count_images(shape: tuple[int, ...], layout: str) -> int:
    """How many images an array has."""
    return shape[layout.index("N")] if "N" in layout else 1


def _count(shape: tuple[int, ...], layout: str) -> str:
    number = count_images(shape, layout)
    return counted(number, "image")


def _spatial(layout: str) -> str:
    return next(s for s in SPATIAL if len(s) == len(set(layout) - set("NC")))
