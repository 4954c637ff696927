"""The anatomy of a failure: where, and at which noise levels, a model is wrong.

A model predicts the noise in `x_t = sqrt(abar_t) z + sigma_t eps` of held-out data `z`, as the
network sees them. Its error `e = eps_hat - eps` is taken apart by direction,

    E|e|^2 = sum_i E(q_i^T e)^2,

once along the principal components `q_i` of the data and once along the Score Anisotropy
Directions `u_i` of the architecture. *Along* the data are the components that hold nearly all of
their variance (the vector of rank-one data, the three of a sphere), *off* them is the rest, where a
right prediction says that all of `x_t` is noise.

The best linear prediction, which knows mean and covariance only, has the error `abar l / (abar l +
sigma^2)` along a component of variance `l`; that is what a model has to beat.

**What the sampler makes of it.** The prediction of `x_0` has the error `sigma_t / sqrt(abar_t) e`,
up to 157 times that of the noise. How much of it survives the way down depends on what the network
says next, so it is measured: the energy of the states of a sampler, along and off the data, beside
`abar_t E|z|^2 + sigma_t^2`, which it would be if all were right.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.arguments import check_count, check_seed, check_type
from sads.checked import checked
from sads.diffusion.clipping import Frame, clipping_of, frame_of
from sads.diffusion.execution import fast_inference
from sads.diffusion.model import ScoreModel, noise_from_output
from sads.diffusion.sample import SamplingOptions, check_steps, spread_levels, states_of
from sads.diffusion.skip import fit_gaussian
from sads.errors import DataError, counted
from sads.estimates import Estimate, mean_estimate
from sads.networks.gaussian import GaussianPart
from sads.rotations.rotation import Rotation
from sads.samples import as_samples, check_values
from sads.seeds import torch_stream
from sads.threads import pinned_threads

HELD = 0.95  # share of the variance that the components "along the data" hold
NUM_LEVELS = 25  # at which errors are measured, evenly spread
NUM_SAMPLES = 200  # held-out samples, each of them at every level
BATCH = 200


@dataclass(frozen=True)
class DenoisingError:
    """How wrong a model's noise is on held-out data, in numbers: one of each kind.

    Errors are those over held-out samples. Levels count alike.
    """

    loss: Estimate  # E|e|^2 / D
    along: Estimate  # its part along the data; `loss = along + off`
    off: Estimate
    linear: float  # E|e|^2 / D of the best linear prediction
    num_along: int  # components along the data
    levels: tuple[int, ...]
    level_losses: tuple[float, ...]  # E|e|^2 / D at each of them

    def __str__(self) -> str:
        return f"{self.loss}: along the data {self.along}, off them {self.off}"


@dataclass(frozen=True)
class EnergyParts:
    """The energy of samples, a coordinate, along the data and off them, beside that of the data.

    Along and off are those of `DenoisingError`: directions in which centred data vary, or do not.
    """

    along: Estimate
    off: Estimate
    data_along: float
    data_off: float


@dataclass(frozen=True, eq=False)
class Walk:
    """The energy of a sampler's states, a coordinate, along and off the data."""

    levels: tuple[int, ...]  # that the states are at; -1 is the sample itself
    along: Tensor  # (S,)
    off: Tensor
    right_along: Tensor  # what it is for data that are noised to that level
    right_off: Tensor
    described: str  # the sampler


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The energy of samples and data along the data's components, the largest variance first."""

    data: Tensor  # (r,)
    samples: Tensor
    samples_off: float  # of the samples in all other directions, a coordinate


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A model's errors by direction and noise level."""

    summary: DenoisingError
    components: Tensor  # (L, r): E(q_i^T e)^2, the largest variance first
    linear: Tensor  # (L, r): that of the best linear prediction
    linear_losses: Tensor  # (L,): its E|e|^2 / D
    variances: Tensor  # (r,) of the data
    directions: Tensor | None  # (L, D): E(u_i^T e)^2, the largest eigenvalue first
    along: Tensor  # (L,): E|P e|^2 a coordinate of the data's span
    off: Tensor  # (L,): the same of the rest; NaN if there is none
    amplification: Tensor  # (L,): sigma_t / sqrt(abar_t)


@checked
def measure_anatomy(
    model: ScoreModel,
    test: Tensor,
    train: Tensor | None = None,
    *,
    rotation: Rotation | None = None,
    directions: Tensor | None = None,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
) -> Anatomy:
    """A model's errors on data `test` (N, *shape) that it has not seen.

    Args:
        train: data whose principal components say what is along and what is off them; the test
            data if not given.
        rotation: the one that the model's data were rotated by.
        directions: (D, *shape), the Score Anisotropy Directions of the architecture, as
            `geometry.directions().vectors` has them.
        num_samples: of the test data, the first so many, each at all levels.
        seed: of the noise.
    """
    check_type(model, ScoreModel, "the model", "pass what sads.train or sads.load_model returns")
    check_count("num_samples", num_samples, 2)
    check_seed(seed)
    frame = frame_of(model, rotation)
    tested = _seen(model, frame, test)
    held_out, known = tested[:num_samples], tested if train is None else _seen(model, frame, train)
    gaussian = fit_gaussian(known)
    basis = gaussian.vectors  # (D, r)
    num_along = _num_along(gaussian)
    schedule = model.family.schedule
    spread = (torch.arange(NUM_LEVELS) + 0.5) * schedule.num_levels / NUM_LEVELS
    levels = [int(level) for level in spread]
    turned = None if directions is None else _columns(directions, model.family.shape)
    by_component, by_direction, whole, inside = [], [], [], []
    for error in _errors(model, held_out, levels, seed):  # (N, D)
        parts = (error @ basis).square()  # (N, r)
        by_component.append(parts.double().mean(dim=0))
        whole.append(error.double().square().sum(dim=1))
        inside.append(parts[:, :num_along].double().sum(dim=1))
        if turned is not None:
            by_direction.append((error @ turned).double().square().mean(dim=0))
    total, near = torch.stack(whole), torch.stack(inside)  # (L, N)
    dimension = model.family.dimension
    rest = dimension - num_along
    abar, sigma = schedule.abar[levels], schedule.sigma[levels]
    linear = _linear_error(abar, gaussian.values)
    others = (dimension - gaussian.rank) * _linear_error(abar, torch.tensor([gaussian.rest]))
    linear_losses = (linear.sum(dim=1) + others[:, 0]) / dimension
    summary = DenoisingError(
        loss=mean_estimate(total.mean(dim=0) / dimension),
        along=mean_estimate(near.mean(dim=0) / dimension),
        off=mean_estimate((total - near).mean(dim=0) / dimension),
        linear=float(linear_losses.mean()),
        num_along=num_along,
        levels=tuple(levels),
        level_losses=tuple((total.mean(dim=1) / dimension).tolist()),
    )
    return Anatomy(
        summary=summary,
        components=torch.stack(by_component),
        linear=linear,
        linear_losses=linear_losses,
        variances=gaussian.values,
        directions=torch.stack(by_direction) if by_direction else None,
        along=near.mean(dim=1) / num_along,
        off=(total - near).mean(dim=1) / rest if rest else torch.full((len(levels),), math.nan),
        amplification=sigma / abar.sqrt(),
    )


@checked
def follow_sampler(
    model: ScoreModel,
    x: Tensor,
    options: SamplingOptions | None = None,
    *,
    num_samples: int = 100,
    seed: int = 0,
) -> Walk:
    """The energy of a sampler's states beside that of data `x` (N, *shape), noised to each level.

    A state after a step is compared with the level that the step ends at. Of the options count
    sampler, steps, clipping and rotation.
    """
    options = options or SamplingOptions()
    check_count("num_samples", num_samples)
    check_steps(options.steps, model.family.schedule)
    frame = frame_of(model, options.rotation)
    clipping = clipping_of(model, options.clip, frame)
    z = _seen(model, frame, x)
    gaussian = fit_gaussian(z)
    count = _num_along(gaussian)
    basis = gaussian.vectors[:, :count]
    schedule = model.family.schedule
    stream = torch_stream("follow a sampler", seed)
    shape = (num_samples, *model.family.shape)

    def noise() -> Tensor:
        return torch.randn(shape, generator=stream)

    def energy(states: Tensor) -> tuple[float, float]:
        flat = states.flatten(1).double()
        inside = float((flat @ basis.double()).square().sum(dim=1).mean())
        outside = float(flat.square().sum(dim=1).mean()) - inside
        return inside / count, outside / max(1, model.family.dimension - count)

    levels = spread_levels(schedule.num_levels, options.steps)
    data = energy(z.reshape(-1, *model.family.shape))
    with pinned_threads(1), torch.no_grad():
        forward = fast_inference(
            model.network.eval(), model.family, num_samples * options.steps, BATCH
        )

        def denoise(state: Tensor, level: int) -> Tensor:
            time = schedule.network_time(torch.tensor([level])).expand(len(state))
            eps = noise_from_output(model.family, forward(state, time), state, level)
            if clipping is None:
                return eps
            return clipping.noise(eps, state, float(schedule.abar[level]))

        states = states_of(options.sampler, schedule, levels, noise(), denoise, noise)
        found = torch.tensor([energy(state) for state in states], dtype=torch.float64)  # (S, 2)
    # A step of Langevin dynamics stays at its level, steps of all others go to the next.
    after = [*(levels[:-1] if options.sampler == "langevin" else levels[1:]), -1]
    abar = torch.tensor([1.0 if level < 0 else float(schedule.abar[level]) for level in after])
    clipped = "" if clipping is None else ", clipped"
    return Walk(
        described=f"{options.sampler}, {counted(options.steps, 'step')}{clipped}",
        levels=tuple(after),
        along=found[:, 0],
        off=found[:, 1],
        right_along=abar * data[0] + 1 - abar,
        right_off=abar * data[1] + 1 - abar,
    )


@checked
def energy_parts(y: Tensor, test: Tensor, train: Tensor | None = None) -> EnergyParts:
    """The energy of samples `y` (N, *shape) beside that of data `test` (M, *shape).

    Args:
        train: data whose principal components say what is along and what is off them; the test
            data if not given.
    """
    y = as_samples(y, "the samples", tuple(test.shape[1:]))
    gaussian = fit_gaussian((test if train is None else train).flatten(1))
    count = _num_along(gaussian)
    basis = gaussian.vectors[:, :count].double()

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(1).double()
        inside = (flat @ basis).square().sum(dim=1)  # (N,)
        outside = flat.square().sum(dim=1) - inside
        return inside / count, outside / max(1, gaussian.dimension - count)

    along, off = parts(y)
    data_along, data_off = (float(part.mean()) for part in parts(test))
    return EnergyParts(mean_estimate(along), mean_estimate(off), data_along, data_off)


@checked
def energy_spectrum(y: Tensor, test: Tensor) -> Spectrum:
    """The energy of samples `y` (N, *shape) along each component of data `test` (M, *shape)."""
    y = as_samples(y, "the samples", tuple(test.shape[1:]))
    gaussian = fit_gaussian(test.flatten(1))
    basis = gaussian.vectors.double()

    def along(x: Tensor) -> Tensor:
        return (x.flatten(1).double() @ basis).square().mean(dim=0)

    total = float(y.flatten(1).double().square().sum(dim=1).mean())
    samples = along(y)
    others = gaussian.dimension - gaussian.rank
    off = (total - float(samples.sum())) / others if others else 0.0
    return Spectrum(data=along(test), samples=samples, samples_off=off)


def _seen(model: ScoreModel, frame: Frame, x: Tensor) -> Tensor:
    """Data (N, *shape) as the network sees them, (N, D)."""
    x = as_samples(x, "the data", model.family.shape)
    check_values(x, "the data")
    if len(x) < 2:
        raise DataError("the data are a single sample: give at least two")
    return frame.to_network(x.float()).flatten(1)


def _columns(directions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Directions (k, *shape) or (k, D) as columns, (D, k)."""
    directions = as_samples(directions, "the directions", shape, flat=True)
    check_values(directions, "the directions")
    return directions.flatten(1).T.float()


def _num_along(gaussian: GaussianPart) -> int:
    """How many components hold nearly all of the variance."""
    others = (gaussian.dimension - gaussian.rank) * gaussian.rest
    held = gaussian.values.cumsum(dim=0) / (gaussian.values.sum() + others)
    return min(gaussian.rank, int((held < HELD).sum()) + 1)


def _linear_error(abar: Tensor, variances: Tensor) -> Tensor:
    """The error of the best linear prediction, (L, r)."""
    signal = abar[:, None] * variances
    return signal / (signal + 1 - abar[:, None])


def _errors(model: ScoreModel, z: Tensor, levels: list[int], seed: int) -> Iterator[Tensor]:
    """`eps_hat - eps` (N, D) of every sample at each of the levels."""
    schedule = model.family.schedule
    stream = torch_stream("anatomy", seed)
    with pinned_threads(1), torch.no_grad():
        evaluations = len(z) * len(levels)
        forward = fast_inference(model.network.eval(), model.family, evaluations, BATCH)
        for level in levels:
            signal, sigma = math.sqrt(float(schedule.abar[level])), float(schedule.sigma[level])
            eps = torch.randn(z.shape, generator=stream)
            x = (signal * z + sigma * eps).reshape(-1, *model.family.shape)
            time = schedule.network_time(torch.tensor([level]))
            parts = (
                noise_from_output(model.family, forward(p, time.expand(len(p))), p, level)
                for p in x.split(BATCH)
            )
            yield torch.cat([part.flatten(1) for part in parts]) - eps
