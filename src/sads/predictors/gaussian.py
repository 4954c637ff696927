"""What rates of learning make of loss and samples, for Gaussian data and linear networks.

Take data `z` for `N(0, C)` and a network for linear in `x`. At a level with signal `a = abar_t` and
noise `sigma`, with `W = a C + sigma^2 I`, the best linear predictions are (see
`sads.networks.gaussian`)

    epsilon  sigma W^-1          score  -W^-1
    x0       sqrt(a) C W^-1      v      sqrt(a) sigma (I - C) W^-1

*Training.* In the directions `u_i` of the geometry, the tangent kernel lets the residual shrink by
`1 - eta kappa_i` in every update (`sads.predictors.kernel`), so after T updates by

    rho_i = (1 - eta kappa_i)^T,

with `eta` as it is for Adam. With `R = U diag(rho) U^T` the network then predicts `(I - R) P x +
R xi`, where `P` is the best prediction and `xi` what the network returned before training, a
constant of second moment `G / E_t[1 / sigma_t^2]`. Beside the Gaussian part of the score it is
`P x + R xi`: the linear part need not be learned.

*Loss.* As predictions of the noise, `eps_hat = Gamma_hat x + O xi`, best with `Gamma = sigma W^-1`:

    loss = E_t[ tr(a C W^-1) + |(Gamma_hat - Gamma) W^1/2|^2 + tr(O Xi O^T) ] / D.

*Samples.* A step of a sampler is linear, `x' = A x + B xi + sqrt(v) noise`. With `Sigma` the
covariance of the state and `L xi` its mean, started at `I` and 0,

    Sigma  <-  A Sigma A^T + v I,      L  <-  A L + B.

For DDPM, with `b` the signal at the level below, `beta = 1 - a / b` and `x0 = (x - sigma eps_hat) /
sqrt(a)`,

    A = c_0 (I - sigma Gamma_hat) / sqrt(a) + c_1 I,      B = -c_0 sigma O / sqrt(a),
    c_0 = sqrt(b) beta / (1 - a),      c_1 = sqrt(1 - beta) (1 - b) / (1 - a),
    v = beta (1 - b) / (1 - a);

the last step returns `x0`. For DDIM `x' = sqrt(b) x0 + sqrt(1 - b) eps_hat`, and `v = 0`. Where the
network has not learned to remove the noise (`rho_i` near 1), `A` has the factor `1 / sqrt(a)` to
spare at every step: this is how samples diverge.

*Distance.* Along a unit vector both laws are Gaussian, so that over random unit vectors

    SW2^2 = E_theta[ (sqrt(theta^T Sigma theta) - sqrt(theta^T C theta))^2 ] + tr(L Xi L^T) / D.

Clipping is not linear, and not in here.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sads.diffusion.sample import spread_levels
from sads.predictors.prospect import Plan, Prospect
from sads.schedule import Schedule
from sads.seeds import torch_stream

LOSS_LEVELS = 25  # over which the loss is averaged, as that of trained models
PROJECTIONS_PER_DIMENSION = 16


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A linear network after T updates, for data of second moment `C`."""

    schedule: Schedule
    plan: Plan
    moment: Tensor  # C, (D, D)
    left: Tensor  # R, (D, D): what the training has left of the residual
    initial: Tensor  # Xi, (D, D): second moment of what the network returned before

    @classmethod
    def of(cls, prospect: Prospect) -> "LinearModel":
        network, plan = prospect.network, prospect.plan
        schedule = network.family.schedule
        rates = network.rates(prospect.energy)
        shrunk = rates.left(plan.learning_rate, plan.iterations)  # rho_i
        weight = float((1 / schedule.sigma**2).mean())
        return cls(
            schedule=schedule,
            plan=plan,
            moment=prospect.moment,
            left=(network.basis * shrunk) @ network.basis.T,
            initial=network.matrix / weight,
        )

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.moment)
        return values.clamp(min=0), vectors

    def best(self, level: int, prediction: str) -> Tensor:
        """The best linear prediction of Gaussian data at a level, (D, D)."""
        values, vectors = self._eigen
        a = float(self.schedule.abar[level])
        sigma, noisy = math.sqrt(1 - a), a * values + 1 - a
        gain = {
            "epsilon": lambda: sigma / noisy,
            "score": lambda: -1 / noisy,
            "x0": lambda: math.sqrt(a) * values / noisy,
            "v": lambda: math.sqrt(a) * sigma * (1 - values) / noisy,
        }[prediction]()
        return (vectors * gain) @ vectors.T

    def noise_prediction(self, level: int) -> tuple[Tensor, Tensor]:
        """`Gamma_hat` and `O` with `eps_hat = Gamma_hat x + O xi` at a level, (D, D) each."""
        a = float(self.schedule.abar[level])
        sigma = math.sqrt(1 - a)
        best = self.best(level, self.plan.prediction)
        learned = best if self.plan.skip else best - self.left @ best
        slope, offset = {
            "epsilon": (1.0, 0.0),
            "score": (-sigma, 0.0),
            "x0": (-math.sqrt(a) / sigma, 1 / sigma),
            "v": (math.sqrt(a), sigma),
        }[self.plan.prediction]  # eps = slope net(x) + offset x
        gain = slope * learned
        gain.diagonal().add_(offset)
        return gain, slope * self.left

    def loss(self) -> float:
        """The held-out mean squared error of the noise, a coordinate, levels alike."""
        values, _ = self._eigen
        levels = spread_levels(self.schedule.num_levels, LOSS_LEVELS)
        total = 0.0
        for level in levels:
            a = float(self.schedule.abar[level])
            gain, offset = self.noise_prediction(level)
            wrong = gain - self.best(level, "epsilon")
            spread = (a * (wrong @ self.moment) + (1 - a) * wrong) * wrong  # of W = a C + ...
            total += float((a * values / (a * values + 1 - a)).sum())
            total += float(spread.sum())
            total += float(((offset @ self.initial) * offset).sum())
        return total / len(levels) / len(values)

    def sampled(self) -> tuple[Tensor, Tensor]:
        """The covariance `Sigma` of samples, and the second moment `L Xi L^T` of their mean."""
        one = torch.eye(len(self.moment), dtype=torch.float64)
        covariance, mean = one, torch.zeros_like(one)
        levels = spread_levels(self.schedule.num_levels, self.plan.steps)
        for level, below in zip(levels, [*levels[1:], -1], strict=True):
            a = float(self.schedule.abar[level])
            b = 1.0 if below < 0 else float(self.schedule.abar[below])
            gain, offset = self.noise_prediction(level)
            clean = (one - math.sqrt(1 - a) * gain) / math.sqrt(a)  # x0 = clean x + ...
            clean_offset = -math.sqrt((1 - a) / a) * offset
            if self.plan.sampler == "ddim":
                step = math.sqrt(b) * clean + math.sqrt(1 - b) * gain
                shift = math.sqrt(b) * clean_offset + math.sqrt(1 - b) * offset
                variance = 0.0
            else:
                beta = 1 - a / b
                first = math.sqrt(b) * beta / (1 - a)
                second = math.sqrt(1 - beta) * (1 - b) / (1 - a)
                step, shift = first * clean + second * one, first * clean_offset
                variance = beta * (1 - b) / (1 - a)
            covariance = step @ covariance @ step.T + variance * one
            mean = step @ mean + shift
        return covariance, mean @ self.initial @ mean.T

    def distance(self) -> float:
        """The SW2 of samples from the data."""
        covariance, mean = self.sampled()
        size = len(covariance)
        generator = torch_stream("directions of a prediction", size)
        drawn = torch.randn(
            PROJECTIONS_PER_DIMENSION * size, size, generator=generator, dtype=torch.float64
        )
        theta = drawn / drawn.norm(dim=1, keepdim=True)
        spreads = [
            ((theta @ matrix) * theta).sum(dim=1).clamp(min=0).sqrt()
            for matrix in (covariance, self.moment)
        ]
        squared = (spreads[0] - spreads[1]).square().mean() + mean.diagonal().mean()
        return float(squared.sqrt())
