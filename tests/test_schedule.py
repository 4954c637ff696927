"""Noise levels against diffusers and against the definition of each prediction."""

from typing import Any

import pytest
import torch

import sads
from sads.errors import InvalidArgumentError
from sads.schedule import PREDICTIONS, SCHEDULES


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


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_prediction_means_the_same_score(prediction: str, name: str) -> None:
    """What a perfect network returns, by the definition of each, gives the score of `x`."""
    schedule = sads.Schedule(name, 50)
    if prediction == "edm" and name not in ("edm", "ve"):
        with pytest.raises(InvalidArgumentError, match="edm and ve"):
            schedule.score_coefficients(prediction)
        return
    x0, eps = torch.randn(2, 50, 3, dtype=torch.float64)
    signal, sigma = schedule.signal[:, None], schedule.sigma[:, None]
    x = signal * x0 + sigma * eps
    # Karras et al. (2022), Table 1, solved for the raw network F.
    c_skip = 0.25 / (sigma**2 + 0.25)
    c_out = sigma * 0.5 / (sigma**2 + 0.25).sqrt()
    outputs = {
        "epsilon": eps,
        "score": -eps / sigma,
        "x0": x0,
        "v": signal * eps - sigma * x0,
        "flow": eps - x0,
        "edm": (x0 - c_skip * x) / c_out,
    }
    a, b = schedule.score_coefficients(prediction)
    score = a[:, None] * x + b[:, None] * outputs[prediction]
    assert torch.allclose(score, -eps / sigma, rtol=1e-8, atol=1e-10)


def test_scaled_linear_and_flow_agree_with_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDPMScheduler(
        1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
    )
    ours = sads.Schedule("scaled-linear")
    assert torch.allclose(ours.abar.float(), theirs.alphas_cumprod, atol=1e-6)
    flow = diffusers.FlowMatchEulerDiscreteScheduler(1000, shift=3.0)
    assert torch.allclose(
        sads.Schedule("flow", shift=3.0).sigma.float(), flow.sigmas.flip(0), atol=1e-6
    )


def test_edm_levels_and_preconditioning_agree_with_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.EDMEulerScheduler()
    theirs.set_timesteps(40)
    ours = sads.Schedule("edm", 40)
    assert torch.allclose(ours.sigma.float().flip(0), theirs.sigmas[:-1], rtol=1e-5)
    assert torch.allclose(
        ours.network_time(torch.arange(40)).flip(0), theirs.precondition_noise(theirs.sigmas[:-1])
    )
    x, output = torch.randn(2, 40, 3, dtype=torch.float64)  # the smallest sigma cancels digits
    a, b = ours.score_coefficients("edm")
    for level, sigma in enumerate(ours.sigma):
        seen = ours.network_input(x[level : level + 1], torch.tensor([level]), "edm")
        assert torch.allclose(seen[0], theirs.precondition_inputs(x[level], sigma))
        clean = theirs.precondition_outputs(x[level], output[level], sigma)
        score = a[level] * x[level] + b[level] * output[level]
        assert torch.allclose(score, (clean - x[level]) / sigma**2, rtol=1e-6)


def test_noise_of_ve_grows_by_a_constant_factor() -> None:
    sigma = sads.Schedule("ve", 5, first=0.01, last=100.0).sigma
    assert sigma.tolist() == pytest.approx([0.01, 0.1, 1, 10, 100])


def test_descriptions_say_what_is_not_as_usual() -> None:
    assert sads.Schedule().describe() == {"name": "linear", "num_levels": 1000}
    flow = sads.Schedule("flow", shift=3.0)
    assert sads.Schedule(**flow.describe()) == flow


def test_networks_see_time_on_the_scale_of_1000() -> None:
    assert sads.Schedule("linear", 50).network_time(torch.tensor([0, 49])).tolist() == [0, 980]


@pytest.mark.parametrize("name", ["edm", "ve", "flow"])
def test_what_does_not_preserve_variance_is_not_trained(name: str) -> None:
    family = sads.family("mlp", shape=(1, 4, 4), schedule=name)
    with pytest.raises(InvalidArgumentError, match="does not train"):
        sads.train(family, torch.randn(32, 1, 4, 4), iterations=1, batch_size=8)
    geometry = sads.estimate_geometry(family, 16, probe="gaussian")
    assert geometry.provenance.family["schedule"]["name"] == name


@pytest.mark.parametrize(("name", "levels"), [("quadratic", 10), ("linear", 0), ("linear", 20)])
def test_impossible_schedules_are_refused(name: str, levels: int) -> None:
    with pytest.raises(InvalidArgumentError):
        sads.Schedule(name, levels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "linear", "num_levels": 1}, "give 21 to 1,000,000, or fewer with a first and"),
        ({"name": "edm", "num_levels": 1}, "give 2 to 1,000,000$"),
        ({"name": "cosine", "num_levels": 0}, "give 1 to 1,000,000$"),
        ({"name": "linear", "first": 1e-17, "last": 1e-17}, "from 0 to 0 in double precision"),
        ({"name": "ve", "first": 1e-300, "last": 1e300}, "to inf in double precision"),
        ({"name": "flow", "shift": 1e-300}, "or another shift"),
    ],
)
def test_levels_without_noise_or_of_infinite_noise_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        sads.Schedule(**options)


def test_one_level_is_enough() -> None:
    one = sads.Schedule("linear", 1, first=0.5, last=0.5)
    assert one.sigma.tolist() == pytest.approx([0.5**0.5])
    family = sads.family("mlp", (1, 2, 2), width=4, depth=1, schedule=one)
    assert sads.estimate_geometry(family, 16).trace > 0


@pytest.mark.parametrize(
    ("prediction", "schedule", "message"),
    [
        ("x0", sads.Schedule("flow", 1), "add to a score is nothing but 0"),
        ("v", sads.Schedule("flow", 1), "add to a score is nothing but 0"),
        ("epsilon", sads.Schedule("ve", first=1e-200), "add to a score is infinite"),
        ("edm", sads.Schedule("edm", sigma_data=1e-300), "nothing but 0"),
    ],
)
def test_predictions_that_say_nothing_of_a_score_are_refused(
    prediction: str, schedule: sads.Schedule, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        sads.family("mlp", (1, 2, 2), prediction=prediction, schedule=schedule)


def test_levels_that_are_not_there_have_no_score() -> None:
    family = sads.family("mlp", (1, 2, 2), width=4, depth=1, schedule=sads.Schedule("cosine", 4))
    network = family.build()
    for level in (-1, 4, 1.5, True):
        with pytest.raises(InvalidArgumentError, match="whole numbers from 0 to 3, got"):
            family.score(network, torch.zeros(1, 1, 2, 2), torch.tensor([level]))


def test_what_cannot_be_trained_is_refused_before_anything_is_estimated() -> None:
    near_one = sads.Schedule("linear", first=0.9, last=0.9999)
    x = torch.randn(32, 1, 2, 2)
    for schedule, message in (("flow", "under the schedule flow"), (near_one, "at noise alone")):
        family = sads.family("mlp", (1, 2, 2), schedule=schedule)
        with pytest.raises(InvalidArgumentError, match=message):
            sads.rank(x, [sads.family("mlp", (1, 2, 2)), family], num_networks=10**9)
        with pytest.raises(InvalidArgumentError, match=message):
            sads.train(family, x)
    with pytest.raises(InvalidArgumentError, match="have the shape 1x2x2, mlp takes"):
        sads.rank(x, ["mlp"], num_networks=10**9)
