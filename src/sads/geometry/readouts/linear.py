"""A linear layer for every token, and a rearrangement `Q` of its output (unpatchify, for instance):

    G|h = Q ( [ s2_w h h^T + s2_b 11^T ] (x) I ) Q^T

with `h` of (tokens, features). The bias vector is shared by all tokens, hence `11^T`. A dense
layer is one token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from sads.geometry.lift import Lift
from sads.geometry.readout import NoReadout, OutputLayer, Readout, our_readout


@our_readout
@dataclass(frozen=True, eq=False)
class LinearReadout(Readout):
    """A token-wise linear layer; positions are tokens, groups are the entries of a token."""

    layers = (nn.Linear,)

    path: str
    num_features: int  # of a token
    weight_variance: float
    bias_variance: float
    lift: Lift

    @classmethod
    def fit(cls, found: OutputLayer) -> "LinearReadout | NoReadout":
        layer = found.layer
        assert isinstance(layer, nn.Linear)
        tokens = found.features.numel() // layer.in_features
        position, group = found.index // layer.out_features, found.index % layer.out_features
        lift = Lift.from_places(group, position, tokens)
        if lift is None:
            return NoReadout(f"the output holds only parts of the channels of {found.path}")
        return cls(
            path=found.path,
            num_features=layer.in_features,
            weight_variance=found.laws["weight"].variance,
            bias_variance=found.laws["bias"].variance,
            lift=lift,
        )

    def rows(self, h: Tensor) -> Tensor:
        return h.reshape(len(h), -1, self.num_features).transpose(1, 2)

    def factor(self, gram: Tensor) -> Tensor:
        return self.weight_variance * gram + self.bias_variance

    def factor_rows(self, h: Tensor) -> Iterator[Tensor]:
        """The features of all tokens, and the bias."""
        yield math.sqrt(self.weight_variance) * h
        if self.bias_variance:
            yield h.new_full((1, h.shape[1]), math.sqrt(self.bias_variance))
