"""Output layers that can be integrated out, one kind a file; each registers itself."""

from sads.geometry.readouts.convolution import ConvolutionReadout
from sads.geometry.readouts.linear import LinearReadout

__all__ = ["ConvolutionReadout", "LinearReadout"]
