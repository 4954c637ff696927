"""Numbers of any scale: what is homogeneous stays so where squares vanish or overflow."""

import pytest
import torch

import sads
from sads.metrics.baselines import gaussian_like, measure_baselines
from sads.scales import scale_of
from sads.theory import markov_bound, optimal_score

POWERS = [2.0**-900, 2.0**-100, 2.0**100, 2.0**900]


def normal(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("power", [2.0**-900, 2.0**-100, 2.0**100, 2.0**400])
def test_distances_have_the_scale_of_the_samples(power):
    x, y, covariance = normal(30, 4), normal(20, 4, seed=1), torch.diag(normal(4) ** 2)
    plain = sads.sliced_wasserstein(x, y, num_projections=20)
    scaled = sads.sliced_wasserstein(power * x, power * y, num_projections=20)
    assert scaled.sw2.value == pytest.approx(power * plain.sw2.value, rel=1e-12)
    assert scaled.sw2.error == pytest.approx(power * plain.sw2.error, rel=1e-12)
    assert torch.allclose(scaled.per_projection / power, plain.per_projection, rtol=1e-12)
    highest = sads.max_sliced_wasserstein(x, y, num_projections=20).msw2
    assert sads.max_sliced_wasserstein(
        power * x, power * y, num_projections=20
    ).msw2 == pytest.approx(power * highest, rel=1e-9)
    if 1e-100 < power < 1e100:  # whose square a covariance can hold
        plain, scaled = (
            sads.sliced_wasserstein_to_gaussian(p * x, covariance=p**2 * covariance, seed=2).sw2
            for p in (1.0, power)
        )
        assert scaled.value == pytest.approx(power * plain.value, rel=1e-9)


def test_small_samples_in_single_precision_are_apart():
    x, y = normal(30, 4).float(), normal(20, 4, seed=1).float()
    plain, small = (sads.sliced_wasserstein(s * x, s * y).sw2.value for s in (1, 1e-30))
    assert small == pytest.approx(1e-30 * plain, rel=1e-5)


@pytest.mark.parametrize("power", POWERS)
def test_directions_may_have_any_length(power):
    v, w = normal(16), normal(16, seed=1)
    assert torch.equal(optimal_score(power * v, 1.0), optimal_score(v, 1.0))
    assert torch.equal(sads.rank_one(power * v, 3), sads.rank_one(v, 3))
    plane = torch.stack([v, w])
    assert torch.equal(sads.sphere(power * plane, 3), sads.sphere(plane, 3))
    x = normal(5, 16, seed=2)
    assert torch.equal(
        sads.sliced_wasserstein(x, -x, projections=power * plane).per_projection,
        sads.sliced_wasserstein(x, -x, projections=plane).per_projection,
    )
    family = sads.family("cnn", shape=(1, 4, 4), channels=4, depth=1)
    geometry = sads.estimate_geometry(family, 16)
    plain, scaled = (markov_bound(geometry, s * plane) for s in (1.0, power))
    assert torch.equal(plain.bounds, scaled.bounds)
    assert plain.joint == scaled.joint


def test_baselines_of_whole_numbers_and_of_any_scale():
    whole = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])
    assert measure_baselines(whole).mean.sw2 == measure_baselines(whole.float()).mean.sw2
    x = normal(20, 3)
    plain, large = (gaussian_like(s * x, 50) for s in (1.0, 2.0**400))
    assert torch.equal(large, 2.0**400 * plain)


def test_alignments_have_the_square_of_the_scale():
    """With its errors, whose squares single precision does not hold."""
    family = sads.family("cnn", shape=(1, 4, 4), channels=4, depth=1)
    geometry, x = sads.estimate_geometry(family, 64), normal(50, 16).float()
    plain, small = (sads.alignment(geometry, s * x) for s in (1.0, 2.0**-100))
    for name in ("alpha", "minimum", "maximum", "held_out_minimum", "random"):
        expected, found = getattr(plain, name), getattr(small, name)
        assert found.value == pytest.approx(2.0**-200 * expected.value, rel=1e-4)
        assert found.error == pytest.approx(2.0**-200 * expected.error, rel=1e-4)
    assert small.share.error == pytest.approx(plain.share.error, rel=1e-4)


def test_whole_numbers_have_no_scale():
    whole = torch.tensor([-(2**62)])
    assert scale_of(whole) == scale_of(whole > 0) == scale_of(torch.empty(0)) == 1
    assert scale_of(whole, torch.tensor([-(2.0**100), 1.0])) == 2.0**100
