"""Noise levels against diffusers and against the definition of each prediction."""

import pytest
import torch

import sads
from sads.errors import InvalidArgumentError
from sads.schedule import PREDICTIONS


def test_linear_schedule_agrees_with_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDPMScheduler(1000, beta_start=1e-4, beta_end=0.02)
    ours = sads.Schedule()
    assert torch.allclose(ours.abar.float(), theirs.alphas_cumprod, atol=1e-6)


def test_cosine_schedule_agrees_with_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDPMScheduler(500, beta_schedule="squaredcos_cap_v2")
    ours = sads.Schedule("cosine", 500)
    assert torch.allclose(ours.abar.float(), theirs.alphas_cumprod, atol=1e-6)


def test_weights_of_the_levels_are_as_uneven_as_the_design_says() -> None:
    weights = 1 / sads.Schedule().sigma ** 2
    assert float(weights.mean()) == pytest.approx(32.05, abs=0.005)
    assert float(weights.max()) == pytest.approx(10_000, rel=1e-6)
    effective = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert float(effective) == pytest.approx(0.0074, abs=0.00005)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_prediction_means_the_same_score(prediction: str) -> None:
    schedule = sads.Schedule("linear", 50)
    x0, eps = torch.randn(2, 50, 3, dtype=torch.float64)
    signal, sigma = schedule.abar.sqrt()[:, None], schedule.sigma[:, None]
    x = signal * x0 + sigma * eps
    outputs = {
        "epsilon": eps,
        "score": -eps / sigma,
        "x0": x0,
        "v": signal * eps - sigma * x0,
    }
    a, b = schedule.score_coefficients(prediction)
    score = a[:, None] * x + b[:, None] * outputs[prediction]
    assert torch.allclose(score, -eps / sigma)


def test_networks_see_time_on_the_scale_of_1000() -> None:
    assert sads.Schedule("linear", 50).network_time(torch.tensor([0, 49])).tolist() == [0, 980]


@pytest.mark.parametrize(("name", "levels"), [("quadratic", 10), ("linear", 0), ("linear", 20)])
def test_impossible_schedules_are_refused(name: str, levels: int) -> None:
    with pytest.raises(InvalidArgumentError):
        sads.Schedule(name, levels)
