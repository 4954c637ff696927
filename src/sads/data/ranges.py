"""Which values are black and white: understood from all values of a source, or refused.

Whole numbers of 8 or 16 bits have the range of their type, unless they use so little of it that
they must be something else, such as masks of 0 and 1, or images of 4 or 12 bits. Floats are taken
as 0 to 1 or as -1 to 1, whichever holds them all to a rounding error of 1e-4; nothing is clamped.
They are -1 to 1 only if that is what the bulk of them says: one in a thousand is negative, some lie
below -0.5, and three of four files have negative ones. What lies between, such as images of 0 to 1
that a resize has overshot, or that are among others of -1 to 1, is refused.
"""

from dataclasses import dataclass, field

import numpy as np

from sads.data.rows import Array
from sads.errors import DataError

Range = tuple[float, float]

TYPES: dict[str, Range] = {"bool": (0, 1), "uint8": (0, 255), "uint16": (0, 65535)}
# The largest value that images of the type hardly have: of 5 bits and fewer, of 14 bits and fewer.
TOO_DARK = {"uint8": 31, "uint16": 16383, "float": 0.01}
WHITES = (1, 3, 7, 15, 16, 31, 255, 1023, 4095, 16383)  # 16: of scikit-learn's digits
ROUNDING = 1e-4
NEGATIVE_SHARE, NEGATIVE, POSITIVE_SHARE = 1e-3, -0.5, 0.25
FLOAT = "float"


@dataclass
class Values:
    """Extremes of the values of one type, gathered block by block."""

    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    num_negative: int = 0
    num_images: int = 0
    num_positive: int = 0  # of the images, those of files or blocks without any negative value
    example: str = ""  # where a value of this type is

    def add(self, name: str, array: Array) -> None:
        self.example = self.example or name
        low, high = float(array.min()), float(array.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += array.size
        self.num_images += len(array)
        self.num_positive += len(array) if low >= -ROUNDING else 0
        if self.low < 0:
            self.num_negative += int((array < -ROUNDING).sum())


@dataclass
class Ranges:
    """The ranges of a source, type by type."""

    given: Range | None = None
    found: dict[str, Values] = field(default_factory=dict)
    known: dict[str, Range] = field(default_factory=dict)

    def add(self, name: str, array: Array, known: Range | None = None) -> Range | None:
        """Take note of values; the range to scale them with, None for floats to be decided."""
        kind = FLOAT if array.dtype.kind == "f" else array.dtype.name
        self.found.setdefault(kind, Values()).add(name, array)
        known = self.given or known or TYPES.get(kind)
        if known is None and kind != FLOAT:
            raise DataError(
                f"{name} has values of type {array.dtype}, whose range is not known: give it as "
                "value_range, for instance (0, 255) (--value-range 0,255)"
            )
        if known is not None and known != TYPES.get(kind):
            self.known[kind] = known
        return known

    def decide(self, source: str) -> dict[str, Range]:
        """The range of each type, from all values."""
        return {
            kind: self.known[kind] if kind in self.known else _understand(kind, values, source)
            for kind, values in self.found.items()
        }

    def statement(self, decided: dict[str, Range]) -> str:
        """`values 0 to 255`, with the values found where they are of another size."""
        parts: list[str] = []
        for kind, (low, high) in decided.items():
            values = self.found[kind]
            beyond = values.low < low - ROUNDING or values.high > high + ROUNDING
            text = f"{low:g} to {high:g}" + (" as given" if self.given else "")
            if beyond or values.high < (low + high) / 2:
                text += f", found {values.low:.4g} to {values.high:.4g}"
            parts.append(text)
        return "values " + " and ".join(dict.fromkeys(parts))


def _understand(kind: str, values: Values, source: str) -> Range:
    low, high = values.low, values.high
    if kind == FLOAT:
        return _understand_floats(values, source)
    if kind in TOO_DARK and 0 < high <= TOO_DARK[kind]:
        span = f"0 to {TYPES[kind][1]:g}"
        likely = next(v for v in WHITES if high <= v)
        raise DataError(
            f"{source} has whole numbers from {low:g} to {high:g} in {kind}: is {likely} white, or "
            f"are they nearly black in {span}? Give value_range=(0, {likely}) or "
            f"(0, {TYPES[kind][1]:g}) (--value-range 0,{likely})"
        )
    return TYPES[kind]


def _understand_floats(values: Values, source: str) -> Range:
    low, high = values.low, values.high
    found = f"{source} has floats from {low:.4g} to {high:.4g}"
    if low < -1 - ROUNDING or high > 1 + ROUNDING:
        raise DataError(
            f"{found}, expected 0 to 1 or -1 to 1: give the values of black and white as "
            "value_range, for instance (0, 255) (--value-range 0,255)"
        )
    if low >= -ROUNDING:
        if 0 < high <= TOO_DARK[FLOAT]:
            raise DataError(
                f"{found}, nearly black if white is 1: give the values of black and white as "
                "value_range, for instance (0, 1) (--value-range 0,1)"
            )
        return 0, 1
    if low > NEGATIVE or values.num_negative < NEGATIVE_SHARE * values.count:
        raise DataError(
            f"{found}, {values.num_negative:,} of {values.count:,} below 0: is black 0 or -1? Give "
            "value_range=(0, 1) or (-1, 1) (--value-range 0,1)"
        )
    if values.num_positive > POSITIVE_SHARE * values.num_images:
        raise DataError(
            f"{found}, but {values.num_positive:,} of {values.num_images:,} images have none below "
            "0: are these 0 to 1, and the others -1 to 1? Save all in one range"
        )
    return -1, 1
