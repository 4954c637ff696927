"""Kinds of rotations of data by name: `min`, `max`, `share:0.25` and others.

A rotation is an orthogonal matrix `W = U M V^T`. `V` holds the eigenvectors of the data's second
moment `C` and `U` those of the geometry `G`, both in descending order of eigenvalue. `M` says which
of the one goes to which of the other. It mixes coordinate `i` with its partner `D+1-i` only,

    z_i = c_i y_i + s_i y_{D+1-i},

so that `alpha = sum_i lambda_i E[z_i^2]` is known in advance:

    max          c = 1, s = 0: in order
    min          c = 0, s = 1: reversed
    share:S      plane rotations by phi with cos^2(phi) = S: alpha = min + S (max - min)
    partial:F    the outermost F of the D/2 pairs exchanged, the others in order
    identity     W = I
    random:SEED  W from Haar measure; it depends on the seed and on D only

In `share` a pair of uncorrelated coordinates with second moments `a` and `b` becomes one with
`S a + (1 - S) b` and `S b + (1 - S) a`, hence the straight line between the extremes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.arguments import check_number, check_seed, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.seeds import user_stream

PLAIN = ("min", "max", "identity")  # kinds without a number
KINDS = "min, max, identity, random:SEED, share:S or partial:F with S and F from 0 to 1"


@dataclass(frozen=True)
class Kind:
    """The name of a rotation, taken apart: `share:0.25` is `("share", 0.25)`."""

    name: str
    number: float = 0.0

    def __post_init__(self) -> None:
        if self.name == "random":
            check_seed(self.number)
        elif self.name in ("share", "partial"):
            check_number(f"the number of {self.name!r}", self.number)
            if not 0 <= self.number <= 1:
                raise InvalidArgumentError(
                    f"the number of {self.name!r} is from 0 to 1, got {shown(self.number)}"
                )
        elif self.name not in PLAIN or self.number != 0:
            raise InvalidArgumentError(f"unknown rotation {shown(self.name)}; choose {KINDS}")

    @classmethod
    def parse(cls, text: "str | Kind") -> "Kind":
        """A kind from its name, or one line that lists the names.

        >>> str(Kind.parse("share:0.250")), Kind.parse("min").paired
        ('share:0.25', True)
        """
        if isinstance(text, Kind):
            return text
        name, colon, argument = str(text).partition(":")
        reason = ""
        try:
            if colon and name in ("random", "share", "partial"):
                return cls(name, int(argument) if name == "random" else float(argument))
            if not colon and name in PLAIN:
                return cls(name)
        except InvalidArgumentError as error:
            reason = f" ({error})"
        except ValueError:  # of a text that is no number
            pass
        raise InvalidArgumentError(f"unknown rotation {shown(text)}{reason}; choose {KINDS}")

    def __str__(self) -> str:
        if self.name in PLAIN:
            return self.name
        return f"{self.name}:{int(self.number) if self.number % 1 == 0 else self.number}"

    @property
    def paired(self) -> bool:
        """Made of the eigenvectors of geometry and data, so that alpha is known in advance."""
        return self.name not in ("identity", "random")


@dataclass(frozen=True, eq=False)
class Middle:
    """The orthogonal map `M`: `z_i = c_i y_i + s_i y_{D+1-i}`."""

    cosines: Tensor  # (D,) float64
    sines: Tensor  # (D,)

    @classmethod
    def of(cls, kind: Kind, dimension: int) -> "Middle":
        pairs = dimension // 2  # an odd D leaves the coordinate in the middle alone
        cosine, sine = torch.ones(pairs).double(), torch.zeros(pairs).double()  # outermost first
        partner = sine
        if kind.name == "share":
            cosine[:], sine[:] = math.sqrt(kind.number), math.sqrt(1 - kind.number)
            partner = -sine
        else:
            share = {"min": 1.0, "partial": kind.number}.get(kind.name, 0.0)
            exchanged = round(share * pairs)
            cosine[:exchanged], sine[:exchanged] = 0, 1
        alone = torch.ones(dimension % 2).double()
        return cls(
            torch.cat([cosine, alone, cosine.flip(0)]),
            torch.cat([sine, 0 * alone, partner.flip(0)]),
        )

    def forward(self, y: Tensor) -> Tensor:
        """`M y`, (..., D)."""
        return self.cosines.to(y) * y + self.sines.to(y) * y.flip(-1)

    def backward(self, z: Tensor) -> Tensor:
        """`M^T z`, (..., D)."""
        return self.cosines.to(z) * z + (self.sines.to(z) * z).flip(-1)

    def moment(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """`M diag(values) M^T`, all of which is `E[z_i^2]` and `E[z_i z_{D+1-i}]`, (D,) each."""
        squares = self.cosines**2 * values + self.sines**2 * values.flip(0)
        half = self.cosines * self.sines.flip(0) * values
        return squares, half + half.flip(0)


@checked
def random_axes(dimension: int, seed: int) -> Tensor:
    """An orthogonal matrix from Haar measure: the QR of a Gaussian one, with `R`'s signs fixed."""
    generator = user_stream(seed)
    gaussian = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()
