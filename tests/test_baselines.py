"""What doing nothing scores, and whether a model is better than that."""

import math

import pytest
import torch

import sads
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate
from sads.metrics.baselines import (
    Baselines,
    Distance,
    gaussian_like,
    judge_state,
    measure_baselines,
)
from sads.pipeline import Reference
from sads.plots.training import grid_of, mark_range

SHAPE = (1, 4, 4)


def images(num: int, seed: int) -> torch.Tensor:
    """Correlated data with a mean, in [-1, 1]."""
    stream = torch.Generator().manual_seed(seed)
    mixing = torch.randn(16, 16, generator=torch.Generator().manual_seed(99)) / 4
    return (torch.randn(num, 16, generator=stream) @ mixing - 0.3).tanh().reshape(num, *SHAPE)


def test_a_gaussian_has_the_moments_of_the_data():
    x = images(500, 0)
    y = gaussian_like(x, 200_000, seed=1).flatten(1).double()
    rows = x.flatten(1).double()
    assert torch.allclose(y.mean(dim=0), rows.mean(dim=0), atol=0.01)
    covariance = torch.cov(rows.T, correction=0)
    assert torch.allclose(torch.cov(y.T), covariance, atol=0.01)
    kurtosis = ((y - y.mean(dim=0)) / y.std(dim=0)).pow(4).mean(dim=0)
    assert torch.allclose(kurtosis, torch.full_like(kurtosis, 3.0), atol=0.15)
    assert torch.equal(gaussian_like(x, 5, seed=1), gaussian_like(x, 5, seed=1))
    with pytest.raises(InvalidArgumentError, match="one of each or more"):
        gaussian_like(x, 0)


def test_each_is_a_distance_on_the_same_projections():
    test, train = images(80, 0), images(300, 1)
    found = measure_baselines(test, train, num_samples=60, num_projections=100, seed=3)

    def sw2(y: torch.Tensor) -> float:
        return sads.sliced_wasserstein(test, y, num_projections=100, seed=3).sw2.value

    # A constant is one sample: as far as many copies of it.
    mean = train.mean(dim=0, keepdim=True).expand(80, *SHAPE)
    assert found.zeros.sw2.value == pytest.approx(sw2(torch.zeros(80, *SHAPE)), rel=1e-5)
    assert found.mean.sw2.value == pytest.approx(sw2(mean), rel=1e-5)
    assert found.real is not None
    assert found.real.sw2.value == pytest.approx(sw2(train[:60]), rel=1e-6)
    assert found.real.sw2 < found.gaussian.sw2 < found.mean.sw2 < found.zeros.sw2
    assert found.best_constant is found.mean
    assert found.moments_of == "training data"
    alone = measure_baselines(test, num_projections=100, seed=3)
    assert alone.moments_of == "test data"
    assert alone.real is not None  # its halves
    assert measure_baselines(test[:1], num_projections=10).real is None


def test_along_the_vector_of_rank_one_data():
    """W2 of zeros along v is the root mean square of the coordinate; off v nothing differs."""
    vector = sads.basis("dct", SHAPE).vectors[3]
    test, train = (sads.rank_one(vector, 400, seed) for seed in (0, 1))
    found = measure_baselines(test, train, num_projections=50, vector=vector)
    along = test.flatten(1).double() @ vector.flatten()
    assert found.along is not None
    assert found.along.zeros == pytest.approx(float(along.square().mean().sqrt()), rel=1e-5)
    assert found.along.real is not None
    assert found.along.real < found.along.gaussian + 1
    assert found.zeros.msw2 <= found.along.zeros  # no direction is worse than v


def distance(sw2: float, error: float = 0.01) -> Distance:
    return Distance(Estimate(sw2, error), sw2, 64)


BASELINES = Baselines(distance(1.0), distance(0.5), distance(0.1), distance(0.05), "training data")


@pytest.mark.parametrize(
    ("sw2", "energy", "state"),
    [
        (0.3, 1.0, "trained"),
        (0.3, 9.0, "trained"),  # an energy alone is no failure
        (0.48, 1.0, "not trained"),  # better, but not by two standard errors
        (0.7, 1.0, "not trained"),
        (0.7, 2.5, "diverged"),
        (0.7, None, "not trained"),
        (0.8, None, "diverged"),  # 1.5 times the mean's
        (0.2, None, "trained"),
    ],
)
def test_states(sw2, energy, state):
    assert judge_state(distance(sw2), BASELINES, energy=energy, data_energy=1.0) == state


def test_what_is_not_finite_has_diverged():
    assert judge_state(None, BASELINES, finite_share=0.0) == "diverged"
    assert judge_state(distance(0.1), BASELINES, finite_share=0.99) == "diverged"
    assert judge_state(distance(0.1, math.nan), BASELINES) == "trained"


def test_an_evaluation_has_all_of_it():
    test, train = images(80, 0), images(300, 1)
    reference = Reference(test, train=train, num_projections=64, seed=1, bounded=True)
    good = reference.evaluate(images(80, 2))
    assert (good.state, good.out_of_range) == ("trained", 0.0)
    assert good.energy == pytest.approx(good.data_energy, rel=0.2)
    assert good.data_energy == pytest.approx(float(test.square().sum()) / 80 / 16, rel=1e-6)
    far = reference.evaluate(10 * images(80, 2))
    assert far.state == "diverged"
    assert far.energy == pytest.approx(100 * good.energy, rel=1e-5)
    low, high = float(torch.cat([test, train]).min()), float(torch.cat([test, train]).max())
    slack = (high - low) / 510
    y = 10 * images(80, 2)
    outside = ((y < low - slack) | (y > high + slack)).double().mean()
    assert far.out_of_range == pytest.approx(float(outside))
    assert far.baselines == good.baselines
    nothing = reference.evaluate(torch.zeros(80, *SHAPE))
    assert nothing.state == "not trained"
    broken = reference.evaluate(torch.full((80, *SHAPE), math.nan))
    assert (broken.state, broken.energy) == ("diverged", None)
    assert Reference(test, num_projections=64).evaluate(images(80, 2)).out_of_range is None


def test_values_out_of_range_are_coloured():
    image = torch.tensor([[-1.0, 0.0, 1.0], [-3.0, 3.0, 1.5]])[None, None]
    shown = mark_range(image, -1.0, 1.0)[0].permute(1, 2, 0)  # (2, 3, 3)
    grey = torch.tensor([0.0, 0.5, 1.0])
    assert torch.allclose(shown[0], grey[:, None].expand(3, 3))
    below, above, little = shown[1]
    assert below[2] > below[0] + 0.3  # blue
    assert above[0] > above[2] + 0.3  # red
    assert above[2] < little[2] < 1  # half-way from white to red
    assert grid_of(image.expand(3, -1, -1, -1), 2).shape == (5, 7, 3)
