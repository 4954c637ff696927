"""A convolution, in any number of dimensions and with any padding:

    G|h = I (x) [ s2_w sum_{c,d} S_d h_c h_c^T S_d^T + s2_b 11^T ]

with `h_c` the feature map of channel `c` and `S_d` the shift of kernel tap `d`, padding included.
The bias of a channel is shared by all positions, hence `11^T`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sads.geometry.lift import Lift
from sads.geometry.readout import NoReadout, OutputLayer, Readout, our_readout
from sads.networks.layers import CONVOLUTIONS

ANY_CONVOLUTION = tuple(CONVOLUTIONS.values())


@our_readout
@dataclass(frozen=True, eq=False)
class ConvolutionReadout(Readout):
    """A convolution; positions are pixels, groups are output channels."""

    layers = ANY_CONVOLUTION
    spatial = True

    path: str
    num_features: int  # channels that enter the layer
    weight_variance: float
    bias_variance: float
    taps: Tensor  # (num_taps, out positions): the in position that each tap reads, -1 for padding
    lift: Lift

    @classmethod
    def fit(cls, found: OutputLayer) -> "ConvolutionReadout | NoReadout":
        layer = found.layer
        assert isinstance(layer, ANY_CONVOLUTION)
        if layer.groups != 1 or found.features.shape[0] != 1:
            return NoReadout(f"{found.path} is a grouped convolution, or mixes samples")
        taps = _kernel_taps(layer, tuple(found.features.shape[2:]))
        size = taps.shape[1]
        lift = Lift.from_places(found.index // size, found.index % size, size)
        if lift is None:
            return NoReadout(f"the output holds only parts of the channels of {found.path}")
        return cls(
            path=found.path,
            num_features=layer.in_channels,
            weight_variance=found.laws["weight"].variance,
            bias_variance=found.laws["bias"].variance,
            taps=taps,
            lift=lift,
        )

    def rows(self, h: Tensor) -> Tensor:
        return h.reshape(len(h), self.num_features, -1)

    def factor(self, gram: Tensor) -> Tensor:
        padded = F.pad(gram, (0, 1, 0, 1))  # the last row and column are what padding reads
        total = torch.zeros(self.taps.shape[1], self.taps.shape[1], dtype=gram.dtype)
        for tap in self.taps % len(padded):
            total += padded[tap].index_select(1, tap)  # whole rows first: a third less time
        return self.weight_variance * total + self.bias_variance

    def factor_rows(self, h: Tensor) -> Iterator[Tensor]:
        """The shifted maps `S_d h_c` of one tap after the other, and the bias."""
        padded = F.pad(h, (0, 1))
        for tap in self.taps:
            yield math.sqrt(self.weight_variance) * padded[:, tap]
        if self.bias_variance:
            yield h.new_full((1, self.taps.shape[1]), math.sqrt(self.bias_variance))


def _kernel_taps(layer: nn.Module, size: tuple[int, ...]) -> Tensor:
    """For every kernel tap and out position, the in position that is read, or -1 for padding."""
    assert isinstance(layer, ANY_CONVOLUTION)
    numbers = torch.arange(1.0, math.prod(size) + 1).reshape(1, 1, *size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(numbers, layer._reversed_padding_repeated_twice, mode=mode)[0, 0]
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    taps = []
    for offsets in itertools.product(*map(range, layer.kernel_size)):
        window = tuple(
            slice(o * d, n - r + o * d, s)
            for o, d, n, r, s in zip(
                offsets, layer.dilation, padded.shape, reach, layer.stride, strict=True
            )
        )
        taps.append(padded[window].flatten())
    return torch.stack(taps).long() - 1
