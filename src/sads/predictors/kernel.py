"""How fast an untrained network learns along its directions: its tangent kernel.

To first order in its parameters, a network trained by gradient descent with step `eta` on the mean
squared error `E|f(x, t) - f*(x, t)|^2` changes its residual `r = f - f*` by

    r  <-  r - eta K r,      (K r)(x, t) = E_{x', t'}[ J(x, t) J(x', t')^T r(x', t') ],

with `J` the derivative of its outputs by its parameters (Jacot et al., 2018). What is to be learned
first is linear in `x`: for each direction `u_i` the function `phi_i(x) = (u_i . x) u_i`. How fast,
says the Rayleigh quotient

    kappa_i = <phi_i, K phi_i> / <phi_i, phi_i>
            = E_theta | d/dtheta E_{x, t}[ (u_i . x) (u_i . f(x, t)) ] |^2 / E[(u_i . x)^2],

which we write `u_i^T K u_i`: were `phi_i` an eigenfunction, the residual along `u_i` would shrink
by `1 - eta kappa_i` in every update. Levels are uniform and `x ~ N(0, (abar_t c + sigma_t^2) I)`:
noisy data whose energy `c = E|z|^2 / D` is spread over all directions alike. So `kappa` is a
property of the architecture, and all rotations of data share it.

*Unbiased.* The squared length of the mean gradient of a batch would also hold the scatter of single
gradients, which is D times as large as what is sought. The inner product of the mean gradients of
two independent batches does not: its expectation is the square of the mean. Every `x` comes with
its opposite, so that what does not change its sign with `x`, of which the mean is zero, is zero in
every batch: the bias of the output would be the largest part of the scatter. It is divided by the
energies `E[(u_i . x)^2]` of the two batches and not of the law, for their scatter is shared: with
32 inputs all rates come out 3 % too small, those of all directions alike.

*Adam* divides a gradient by its running size. Taken as one number `g` for all parameters, the root
mean square of the gradient of the first batch's loss `|f - eps|^2 / D`, this is a gradient descent
whose step is `learning_rate / g`, so that per update

    eta = 2 learning_rate / (D g).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sads.arguments import check_count, check_seed
from sads.errors import NetworkError, NonFiniteError, SadsError, describe_failure
from sads.estimates import Estimates
from sads.families import ScoreFamily
from sads.seeds import derive_seed, seeded, torch_stream

BATCH = 32  # inputs in each of the two batches, half of them opposites of the others
MAX_DIRECTIONS = 32  # whose rates are measured; between them they are interpolated
LEAST = 1e-6  # of the largest rate: a smaller one, or a negative estimate, is as good as zero


@dataclass(frozen=True, eq=False)
class LearningRates:
    """How fast a family learns along some directions."""

    kappa: Estimates  # (D,)
    gradient: float  # g: root mean square of the loss's gradient before training

    def step(self, learning_rate: float) -> float:
        """`eta` of Adam with this learning rate."""
        return 2 * learning_rate / (len(self.kappa) * self.gradient)

    def left(self, learning_rate: float, iterations: int) -> Tensor:
        """`rho_i`, what so many updates leave of the residual along each direction, (D,).

        A direction that would be passed in one update counts as learned.
        """
        shrunk = 1 - self.step(learning_rate) * self.kappa.values
        return shrunk.clamp(min=0) ** iterations


def learning_rates(
    family: ScoreFamily,
    basis: Tensor,
    energy: float,
    *,
    num_networks: int = 4,
    batch_size: int = BATCH,
    seed: int = 0,
) -> LearningRates:
    """`kappa_i` for the columns `u_i` of `basis` (D, D), means over random networks with errors.

    Of more than `MAX_DIRECTIONS` directions only so many are measured, evenly spaced by rank; the
    others lie on straight lines between the logarithms of their neighbours.
    """
    check_count("num_networks", num_networks)
    check_seed(seed)
    chosen = spread_ranks(basis.shape[1], MAX_DIRECTIONS)
    found = [
        _rates_of_one(family, basis[:, chosen], energy, batch_size, derive_seed(seed, k))
        for k in range(num_networks)
    ]
    measured = torch.stack([rates for rates, _ in found])  # (networks, chosen)
    mean = measured.mean(dim=0)
    mean = mean.clamp(min=LEAST * float(mean.max()))
    error = torch.full_like(mean, math.nan)
    if num_networks > 1:
        error = measured.std(dim=0) / num_networks**0.5
    kappa = Estimates(
        interpolate(chosen, mean.log(), basis.shape[1]).exp(),
        interpolate(chosen, error, basis.shape[1]),
    )
    squares = [gradient**2 for _, gradient in found]
    return LearningRates(kappa, math.sqrt(sum(squares) / num_networks))


def spread_ranks(dimension: int, count: int) -> Tensor:
    """Up to `count` ranks from first to last, evenly spaced."""
    return torch.linspace(0, dimension - 1, min(dimension, count)).round().long()


def interpolate(places: Tensor, values: Tensor, length: int) -> Tensor:
    """Straight lines through `values` (n,) at whole-number `places` (n,), at 0 .. length - 1."""
    if len(places) == length:
        return values
    at = torch.arange(length)
    right = torch.searchsorted(places, at).clamp(1, len(places) - 1)
    left = right - 1
    share = (at - places[left]).double() / (places[right] - places[left])
    return torch.lerp(values[left].double(), values[right].double(), share)


def _rates_of_one(
    family: ScoreFamily, directions: Tensor, energy: float, batch_size: int, seed: int
) -> tuple[Tensor, float]:
    """`kappa_i` of one network for the columns of `directions` (D, n), and `g`."""
    inputs, outputs, sizes = [], [], []
    with seeded(seed % 2**63):  # networks may draw numbers while they run
        network = family.build()
        parameters = [p for p in network.parameters() if p.requires_grad]
        for batch in range(2):
            x, noise, levels = _draw_inputs(family, energy, batch_size, seed, batch)
            output = _evaluate(family, network, x, levels)
            size = 0.0
            if parameters and output.requires_grad:
                loss = (output - noise).square().mean()
                found = torch.autograd.grad(
                    loss, parameters, retain_graph=True, materialize_grads=True
                )
                size = _product(found, found) / sum(p.numel() for p in parameters)
            if size == 0:
                raise NetworkError(
                    "no parameter of the network that can be trained changes its output, so that "
                    "it learns nothing: leave requires_grad on, or leave out the predictor kernel"
                )
            sizes.append(size)
            inputs.append(x.flatten(1))  # (B, D)
            outputs.append(output.flatten(1))
    rates = []
    for direction in directions.float().T:
        gradients, scale = [], 1.0
        for x, output in zip(inputs, outputs, strict=True):
            along = x @ direction  # (B,)
            weights = torch.outer(along, direction) / batch_size  # (B, D)
            scale *= float(along.square().mean().sqrt())
            gradients.append(
                torch.autograd.grad(
                    output, parameters, weights, retain_graph=True, materialize_grads=True
                )
            )
        rates.append(_product(*gradients) / scale)
    return torch.tensor(rates, dtype=torch.float64), math.sqrt(sum(sizes) / 2)


def _evaluate(family: ScoreFamily, network: nn.Module, x: Tensor, levels: Tensor) -> Tensor:
    """The output for noisy data (B, *shape), or one line that says what is wrong with it."""
    try:
        output = network(x, family.schedule.network_time(levels))
    except SadsError:
        raise
    except Exception as error:
        raise NetworkError(
            f"the network cannot be evaluated for {len(x)} noisy samples: {describe_failure(error)}"
        ) from error
    family.check_output(output, len(x))
    if not output.isfinite().all():
        raise NonFiniteError("the network returns NaN or infinity for noisy data")
    return output


def _product(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> float:
    """The inner product of two gradients."""
    pairs = zip(first, second, strict=True)
    return sum(float((a.double() * b.double()).sum()) for a, b in pairs)


def _draw_inputs(
    family: ScoreFamily, energy: float, batch_size: int, seed: int, batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy data `x ~ N(0, (abar_t c + sigma_t^2) I)`, their noise, (B, *shape), levels (B,).

    The second half of them are the opposites of the first.
    """
    generator = torch_stream("kernel", seed, batch)
    schedule = family.schedule
    levels = torch.randint(schedule.num_levels, (batch_size // 2,), generator=generator)
    clean, noise = torch.randn(2, len(levels), *family.shape, generator=generator)
    column = (-1, *[1] * len(family.shape))
    signal = (schedule.abar[levels] * energy).sqrt().float().reshape(column)
    x = signal * clean + schedule.sigma[levels].float().reshape(column) * noise
    return torch.cat([x, -x]), torch.cat([noise, -noise]), levels.repeat(2)
