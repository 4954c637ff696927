"""Symmetric initialisation and impulse responses (Figure 3): is an architecture lopsided?

If every kernel of a network is unchanged by flips and transposition, convolution commutes with
them, and so does all else that treats positions alike. What is left of an asymmetry in the
response to a symmetric input then comes from the architecture: its resampling layers. A
convolution of stride 2 with padding 1 is centred on pixels 0, 2, 4, ... and so reads the padding
on one side only; averaging blocks of two ("area") treats both sides alike.

On an image of even size the centred impulse is the block of 2 x 2 pixels around the centre, the
smallest input that all the symmetries leave alone. Kernels are made symmetric to the last bit and
networks run in double precision: at 4 x 4 pixels GroupNorm divides by spreads so small that
rounding in single precision is multiplied by 10^5 and looks like an asymmetry.
"""

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sads.arguments import check_count, shown
from sads.checked import checked
from sads.errors import InvalidArgumentError, NetworkError
from sads.families import ScoreFamily, as_family
from sads.geometry.invariance import Move, generate_group
from sads.geometry.memory import check_evaluation
from sads.geometry.plan import check_network
from sads.networks.layers import CONVOLUTIONS
from sads.scales import moderate_rows
from sads.seeds import all_bits, seeded

ANY_CONVOLUTION = tuple(CONVOLUTIONS.values())


@checked
def symmetric_family(family: ScoreFamily | str) -> ScoreFamily:
    """The networks of a family, every convolution kernel made symmetric when it is drawn."""
    given = as_family(family)

    def factory() -> nn.Module:
        network = given.factory()
        for module in network.modules():
            if isinstance(module, ANY_CONVOLUTION):
                if not isinstance(module.weight, nn.Parameter) or is_lazy(module.weight):
                    raise NetworkError(
                        f"a kernel of {given.name} is made of other parameters, or later, and "
                        "cannot be made symmetric: build networks of plain convolutions"
                    )
                with torch.no_grad():
                    module.weight.copy_(symmetrise(module.weight, module.weight.ndim - 2))
        return network

    return replace(given, factory=factory, name=f"{given.name}-symmetric")


@checked
def symmetrise(kernel: Tensor, num_axes: int) -> Tensor:
    """Average over flips and permutations of the last axes, with the variance of entries kept.

    The mean over the m entries of an orbit has 1/m of their variance, so it is multiplied by
    sqrt(m): as if one value had been drawn for each orbit.
    """
    if not kernel.is_floating_point():
        kernel = kernel.float()
    if not 1 <= num_axes <= kernel.ndim:
        raise InvalidArgumentError(
            f"a kernel of {kernel.ndim} axes has no {shown(num_axes)} last ones to average over"
        )
    sizes = tuple(kernel.shape[kernel.ndim - num_axes :])
    images = torch.stack(symmetry_group(sizes))  # (moves, positions)
    flat = kernel.flatten(-num_axes)  # (..., positions)
    result = torch.empty_like(flat)
    for orbit in images.T.sort(dim=1).values.unique(dim=0):
        members = orbit.unique()  # one value for all of them: symmetric to the last bit
        result[..., members] = flat[..., members].mean(-1, keepdim=True) * math.sqrt(len(members))
    return result.reshape(kernel.shape)


def symmetry_group(sizes: tuple[int, ...]) -> list[Tensor]:
    """All flips and exchanges of axes of equal size, each as a permutation of the positions.

    On a square these are the eight symmetries of the dihedral group.
    """
    positions = torch.arange(math.prod(sizes)).reshape(sizes)
    moves = [Move(axis, None) for axis in range(len(sizes))]
    moves += [
        Move(a, b) for a, b in itertools.combinations(range(len(sizes)), 2) if sizes[a] == sizes[b]
    ]
    return generate_group([move(positions, 0).flatten() for move in moves])


@dataclass(frozen=True, eq=False)
class ImpulseResponse:
    """Responses of random networks to a centred impulse."""

    impulse: Tensor  # (*shape)
    responses: Tensor  # (networks, *shape), float64
    level: int

    @property
    def asymmetry(self) -> dict[str, Tensor]:
        """`asymmetry` of every network's response, each (networks,)."""
        return asymmetry(self.responses)

    @property
    def root_mean_square(self) -> Tensor:
        """Over networks, (*shape): what all responses have in common in size."""
        return self.responses.square().mean(dim=0).sqrt()


@checked
def impulse_response(
    family: ScoreFamily | str,
    num_networks: int = 64,
    *,
    level: int | None = None,
    seed: int = 0,
    symmetric: bool = True,
) -> ImpulseResponse:
    """Scores of `num_networks` random networks for a centred impulse at one noise level.

    Args:
        level: the noise level, counted from 0; the middle one if not given.
        symmetric: make kernels symmetric, as in Figure 3.
    """
    family = as_family(family)
    levels = family.schedule.num_levels
    level = levels // 2 if level is None else level
    check_count("num_networks", num_networks)
    if not 0 <= level < levels:
        raise InvalidArgumentError(f"give a level from 0 to {levels - 1}, got {shown(level)}")
    impulse = centred_impulse(family.shape)
    check_evaluation(family, dtype=impulse.dtype)
    source = symmetric_family(family) if symmetric else family
    responses = []
    with seeded(all_bits(seed)), torch.no_grad():
        check_network(source, source.build())
    with seeded(all_bits(seed)), torch.no_grad():
        for _ in range(num_networks):
            network = source.build().double()
            responses.append(source.score(network, impulse[None], torch.tensor([level]))[0])
    return ImpulseResponse(impulse=impulse, responses=torch.stack(responses), level=level)


def centred_impulse(shape: tuple[int, ...]) -> Tensor:
    """1 at the centre of every channel, over 1 pixel (odd sizes) or 2 (even), (*shape) float64."""
    if len(shape) < 2:
        raise InvalidArgumentError(f"an impulse has a centre in space, got the shape {shape}")
    impulse = torch.zeros(shape, dtype=torch.float64)
    centre = tuple(slice((n - 1) // 2, n // 2 + 1) for n in shape[1:])
    impulse[(slice(None), *centre)] = 1
    return impulse


@checked
def asymmetry(responses: Tensor) -> dict[str, Tensor]:
    """Share of energy in the odd part, `|y - g y|^2 / 4 |y|^2`, for each flip `g`.

    0 for a response that `g` leaves alone (no response at all, for one), 1 for one that it turns
    into its negative, 1/2 on average for noise. For (networks, channels, *spatial), by name, each
    (networks,).

    >>> asymmetry(torch.tensor([[[1.0, 0.0]]]))
    {'flip of axis 0': tensor([0.5000])}
    """
    axes = responses.ndim - 2
    if axes < 1 or not responses.numel():
        raise InvalidArgumentError(
            f"responses are (networks, channels, *spatial), got the shape {tuple(responses.shape)}"
        )
    moves = {f"flip of axis {a}": Move(a, None) for a in range(axes)}
    if axes == 2 and responses.shape[-1] == responses.shape[-2]:
        moves["transposition"] = Move(0, 1)
    plain = moderate_rows(responses.detach().flatten(1).double()).reshape(responses.shape)
    energy = plain.flatten(1).square().sum(dim=1)
    energy = torch.where(energy == 0, 1, energy)
    result = responses.dtype if responses.is_floating_point() else torch.get_default_dtype()
    return {
        name: ((plain - move(plain, 2)).flatten(1).square().sum(dim=1) / (4 * energy)).to(result)
        for name, move in moves.items()
    }
