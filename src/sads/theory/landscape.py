"""Figure 5 from real networks: log-densities on the plane whose gradient is the score.

    log p_theta(x) = a^T sin(W Phi^T x + b) - |x|^2 / 2 w^2 + constant

A scalar network with one hidden layer behind a fixed anisotropic `Phi`, and a quadratic that makes
it normalisable (the sine is bounded). Its gradient, in closed form, is a score network like any
other. At `x = 0` its average geometry is `Phi Phi^T` times a number, as in Theorem 1: the
log-density of an untrained network changes fast along the first eigenvector, `v_perp`, and
slowly along the last, `v_par`, and so its ridges run along `v_par`.
"""

import math

import torch
from torch import Tensor, nn

from sads.arguments import check_count
from sads.checked import checked
from sads.families import ScoreFamily, family
from sads.seeds import all_bits, seeded


@checked
class Landscape(nn.Module):
    """A random log-density on the plane. `forward` is its gradient, the score."""

    phi: Tensor
    amplitude = 2.0  # of the random part: ridges several nats high
    window = 4.0  # standard deviation of the density at large

    def __init__(self, width: int = 48, angle: float = 30.0, ratio: float = 0.25):
        """`Phi Phi^T` has eigenvalues 1 and `ratio^2`; the second is at `angle` degrees."""
        super().__init__()
        check_count("width", width)
        turn = math.radians(angle)
        par = torch.tensor([math.cos(turn), math.sin(turn)])
        perp = torch.tensor([-math.sin(turn), math.cos(turn)])
        self.register_buffer("phi", torch.stack([perp, ratio * par], dim=1))
        self.weight = nn.Parameter(torch.randn(width, 2))
        self.phase = nn.Parameter(torch.rand(width) * (2 * math.pi))
        self.readout = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def log_density(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, for (N, 2) or (N, 2, 1), as (N,)."""
        x = x.flatten(1)
        hidden = torch.sin(x @ self.phi @ self.weight.T + self.phase)
        return self.amplitude * hidden @ self.readout - x.square().sum(1) / (2 * self.window**2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        flat = x.flatten(1)
        slope = torch.cos(flat @ self.phi @ self.weight.T + self.phase) * self.readout
        gradient = self.amplitude * slope @ self.weight @ self.phi.T - flat / self.window**2
        return gradient.reshape(x.shape)


@checked
def landscape_family(angle: float = 30.0, ratio: float = 0.25) -> ScoreFamily:
    """Untrained `Landscape`s as a family of score networks on the plane."""
    return family(Landscape, shape=(2, 1), prediction="score", angle=angle, ratio=ratio)


def draw_landscapes(score_family: ScoreFamily, count: int, seed: int) -> list[Landscape]:
    with seeded(all_bits(seed)):
        networks = [score_family.build() for _ in range(count)]
    return [network for network in networks if isinstance(network, Landscape)]
