"""Sliced Wasserstein distances against POT, closed forms and exact identities."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

import sads
from sads.errors import InvalidArgumentError
from sads.metrics import sliced_wasserstein as metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ot


def gaussian(num_samples: int, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_samples, *shape, generator=generator, dtype=torch.float64)


def unit_vectors(number: int, dimension: int) -> torch.Tensor:
    return torch.nn.functional.normalize(gaussian(number, dimension, seed=99), dim=1)


@pytest.mark.parametrize(("num_x", "num_y"), [(200, 200), (200, 150), (64, 128), (7, 1)])
def test_agrees_with_pot_on_shared_projections(num_x, num_y):
    x, y = gaussian(num_x, 2, 3, 2), 0.3 + 1.5 * gaussian(num_y, 2, 3, 2, seed=1)
    theta = unit_vectors(50, 12)
    ours = sads.sliced_wasserstein(x, y, projections=theta)
    arrays = x.flatten(1).numpy(), y.flatten(1).numpy()
    pot = {"p": 2, "projections": theta.T.numpy()}
    assert ours.sw2 == pytest.approx(ot.sliced_wasserstein_distance(*arrays, **pot), rel=1e-9)
    assert ours.msw2 == pytest.approx(ot.max_sliced_wasserstein_distance(*arrays, **pot), rel=1e-9)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_one_dimension_equals_the_one_dimensional_solver(num_x, num_y, seed):
    x, y = gaussian(num_x, 1, seed=seed), 2 * gaussian(num_y, 1, seed=seed + 1) - 1
    ours = sads.sliced_wasserstein(x, y, num_projections=2)
    expected = ot.wasserstein_1d(x.numpy()[:, 0], y.numpy()[:, 0], p=2)
    assert ours.sw2**2 == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
    assert ours.msw2 == pytest.approx(ours.sw2, rel=1e-9)


def test_float32_agrees_with_float64():
    x, y = gaussian(500, 20), 1.2 * gaussian(400, 20, seed=1)
    exact = sads.sliced_wasserstein(x, y)
    single = sads.sliced_wasserstein(x.float(), y.float())
    assert single.sw2 == pytest.approx(exact.sw2, rel=1e-5)
    assert torch.allclose(single.per_projection, exact.per_projection, rtol=1e-4)


def test_equal_samples_in_any_order_are_at_distance_zero():
    x = gaussian(300, 1, 4, 4).float()
    result = sads.sliced_wasserstein(x, x.clone())
    assert (result.sw2, result.msw2, result.sw2.error) == (0, 0, 0)
    shuffled = sads.sliced_wasserstein(x, x[torch.randperm(300)])
    assert shuffled.msw2 < 1e-6


def test_repeated_samples_are_the_same_law():
    x = gaussian(30, 5)
    result = sads.sliced_wasserstein(x, x.repeat(3, 1))
    assert result.msw2 == pytest.approx(0, abs=1e-12)


def test_shift_is_measured_by_its_component_along_each_direction():
    x, shift = gaussian(100, 6), torch.tensor([3.0, 0, 0, 0, 0, 4.0])
    theta = unit_vectors(20, 6)
    result = sads.sliced_wasserstein(x, x + shift, projections=theta)
    assert torch.allclose(result.per_projection, (theta @ shift.double()).abs())
    assert result.msw2 == float(result.per_projection.max())
    assert torch.allclose(result.direction, theta[result.per_projection.argmax()])


def test_closed_form_between_gaussians():
    """`N(0, A)` and `N(m, B)`: `W2^2 = (theta^T m)^2 + (sqrt(theta^T A theta) - ...)^2`."""
    num, scale = 40_000, torch.tensor([1.0, 2.0, 0.5, 1.5]).double()
    x, y = gaussian(num, 4), 0.5 + scale * gaussian(num, 4, seed=1)
    theta = unit_vectors(40, 4)
    spread = (theta * scale).norm(dim=1)
    expected = ((0.5 * theta.sum(dim=1)) ** 2 + (spread - 1) ** 2).sqrt()
    result = sads.sliced_wasserstein(x, y, projections=theta)
    # Means and standard deviations of N samples are off by about (1 + spread) / sqrt(N).
    bound = 4 * float(1 + spread.max()) / math.sqrt(num)
    assert float((result.per_projection - expected).abs().max()) < bound
    assert result.sw2 == pytest.approx(float(expected.square().mean().sqrt()), abs=bound)


def test_standard_error_covers_the_spread_between_seeds():
    x, y = gaussian(50, 8), gaussian(50, 8, seed=1) * torch.linspace(0.2, 3, 8)
    runs = [sads.sliced_wasserstein(x, y, num_projections=100, seed=s) for s in range(200)]
    spread = np.std([r.sw2 for r in runs], ddof=1)
    reported = np.mean([r.sw2.error for r in runs])
    assert reported == pytest.approx(spread, rel=4 / math.sqrt(2 * 200))
    assert math.isnan(sads.sliced_wasserstein(x, y, num_projections=1).sw2.error)


def test_results_do_not_depend_on_how_projections_are_chunked(monkeypatch):
    x, y = gaussian(30, 8), gaussian(20, 8, seed=1)
    whole = sads.sliced_wasserstein(x, y, num_projections=500, seed=5)
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 30 * 8 * 7)
    chunked = sads.sliced_wasserstein(x, y, num_projections=500, seed=5)
    assert torch.allclose(whole.per_projection, chunked.per_projection, rtol=1e-12)
    assert torch.equal(whole.direction, chunked.direction)
    other = sads.sliced_wasserstein(x, y, num_projections=500, seed=6)
    assert not torch.allclose(whole.per_projection, other.per_projection)


def test_draws_64_directions_a_dimension_that_are_uniform_and_unit():
    x = gaussian(3, 1, 2, 3)
    assert sads.sliced_wasserstein(x, x + 1).num_projections == 64 * 6
    theta = torch.cat(list(metrics._draw(20_000, 3, seed=0, num_rows=999)))
    assert torch.allclose(theta.norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    moment = theta.T @ theta / len(theta)
    assert torch.allclose(moment, torch.eye(3).double() / 3, atol=4 * 0.3 / math.sqrt(20_000))


def test_projections_may_have_the_shape_of_directions_and_any_length():
    x, y = gaussian(20, 1, 2, 2), gaussian(20, 1, 2, 2, seed=1)
    theta = unit_vectors(5, 4)
    flat = sads.sliced_wasserstein(x, y, projections=theta)
    shaped = sads.sliced_wasserstein(x, y, projections=7 * theta.reshape(5, 1, 2, 2))
    assert torch.allclose(flat.per_projection, shaped.per_projection)
    assert shaped.direction.shape == (1, 2, 2)


@pytest.mark.parametrize("num_samples", [1, 2, 9])
def test_gaussian_target_against_numerical_integration(num_samples):
    y = 1 + 2 * gaussian(num_samples, 1)
    ordered = sorted(y[:, 0].tolist())
    spread = 1.7

    def squared(q: float, sample: float) -> float:
        return (sample - spread * norm.ppf(q)) ** 2

    cells = [(k / num_samples, (k + 1) / num_samples) for k in range(num_samples)]
    expected = sum(
        quad(squared, *cell, args=(sample,), epsabs=1e-10)[0]
        for cell, sample in zip(cells, ordered, strict=True)
    )
    result = metrics.sliced_wasserstein_to_gaussian(
        y, covariance=torch.tensor([[spread**2]]), projections=torch.ones(1, 1)
    )
    assert result.sw2**2 == pytest.approx(expected, rel=1e-6)


def test_gaussian_target_is_the_limit_of_many_samples():
    root = gaussian(6, 6, seed=3)
    y, theta = gaussian(50, 6), unit_vectors(30, 6)
    num = 100_000
    many = gaussian(num, 6, seed=4) @ root.T
    sampled = sads.sliced_wasserstein(many, y, projections=theta)
    exact = sads.sliced_wasserstein_to_gaussian(y, covariance=root @ root.T, projections=theta)
    # W2 between the target and `num` of its samples is about spread * sqrt(log log / num).
    bound = 4 * float((theta @ root).norm(dim=1).max()) * math.sqrt(math.log(math.log(num)) / num)
    assert float((sampled.per_projection - exact.per_projection).abs().max()) < bound


def test_rank_one_target_by_vector_or_covariance():
    v = gaussian(1, 1, 4, 4)[0]
    y = sads.rank_one(v, 2000, seed=1)
    flat = (v / v.norm()).reshape(-1, 1)
    by_vector = sads.sliced_wasserstein_to_gaussian(y, vector=3 * v)
    by_matrix = sads.sliced_wasserstein_to_gaussian(y, covariance=16 * flat @ flat.T)
    assert torch.allclose(by_vector.per_projection, by_matrix.per_projection, atol=1e-4)
    drawn = sads.sliced_wasserstein(sads.rank_one(v, 2000, seed=2), y)
    assert by_vector.sw2 < drawn.sw2  # test samples add noise of their own


def test_ascent_finds_the_direction_in_which_two_gaussians_differ():
    dimension = 64
    v = unit_vectors(1, dimension)[0]
    x = gaussian(2000, dimension)
    y = gaussian(2000, dimension, seed=1)
    y = y + 2 * (y @ v)[:, None] * v  # standard deviation 3 along v, else 1
    found = sads.max_sliced_wasserstein(x, y, num_projections=500)
    assert abs(float(found.direction @ v)) > 0.98
    along = sads.sliced_wasserstein(x, y, projections=v[None]).msw2
    assert found.msw2 >= along  # the supremum is over v too
    assert found.msw2 == pytest.approx(2, abs=0.2)
    assert found.random_msw2 < 1  # random directions miss it


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_y", [40, 30])
def test_ascent_never_ends_below_the_best_random_direction(seed, num_y):
    x, y = gaussian(40, 5, seed=seed).float(), 2 * gaussian(num_y, 5, seed=seed + 50).float()
    random = sads.sliced_wasserstein(x, y, num_projections=100, seed=seed)
    options = {"num_projections": 100, "num_starts": 3, "seed": seed}
    still = sads.max_sliced_wasserstein(x, y, num_steps=0, **options)
    found = sads.max_sliced_wasserstein(x, y, num_steps=30, **options)
    assert still.msw2 == still.random_msw2 == pytest.approx(random.msw2)
    assert found.msw2 > random.msw2
    again = sads.sliced_wasserstein(x, y, projections=found.direction[None])
    assert again.msw2 == pytest.approx(found.msw2, rel=1e-5)


def test_ascent_works_where_gradients_are_off():
    with torch.inference_mode():
        x, y = gaussian(20, 3), gaussian(20, 3, seed=1)
        inside = sads.max_sliced_wasserstein(x, y, num_projections=10)
    with torch.no_grad():
        assert sads.max_sliced_wasserstein(x, y, num_projections=10).msw2 == inside.msw2
    assert inside.msw2 > inside.random_msw2


def test_threads_of_the_caller_are_left_as_they_were(monkeypatch):
    x, y = gaussian(30, 8), gaussian(30, 8, seed=1)
    alone = sads.sliced_wasserstein(x, y)
    before = torch.get_num_threads()
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 30 * 8 * 7)
    torch.set_num_threads(3)
    try:
        together = sads.sliced_wasserstein(x, y)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(alone.per_projection, together.per_projection, rtol=1e-12)


@pytest.mark.parametrize("num_y", [12, 9])
def test_gradient_of_the_ascent_against_finite_differences(num_y):
    distances = metrics._ToSamples(gaussian(12, 3), gaussian(num_y, 3, seed=1))
    theta, step = unit_vectors(4, 3), 1e-6
    _, gradient = distances.with_gradient(theta)
    for axis in torch.eye(3, dtype=torch.float64):
        difference = distances(theta + step * axis) - distances(theta - step * axis)
        assert torch.allclose(difference / (2 * step), gradient @ axis, atol=1e-6)


X = gaussian(10, 1, 2, 2)
NAN = X.clone()
NAN[3, 0, 0, 0] = math.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sads.sliced_wasserstein(X, NAN), "y has 1 of 10 samples with NaN"),
        (lambda: sads.sliced_wasserstein(X, X[:, :, :1]), r"\(1, 2, 2\) and \(1, 1, 2\)"),
        (lambda: sads.sliced_wasserstein(X, X.double() * 1e200), r"y has values up to .*e\+200"),
        (lambda: sads.sliced_wasserstein(X[:0], X), "x has shape .* at least one sample"),
        (lambda: sads.sliced_wasserstein(X[:, 0, 0, 0], X), "x has shape"),
        (lambda: sads.sliced_wasserstein(X, X, num_projections=0), "num_projections must be"),
        (lambda: sads.sliced_wasserstein(X, X, projections=torch.ones(2, 3)), r"\(2, 3\)"),
        (lambda: sads.sliced_wasserstein(X, X, projections=torch.zeros(2, 4)), "not zero"),
        (lambda: sads.sliced_wasserstein(X, X, projections=torch.ones(0, 4)), "at least one, .L"),
        (
            lambda: sads.sliced_wasserstein(X, X, projections=torch.ones(1, 4), num_projections=1),
            "not both",
        ),
        (lambda: sads.sliced_wasserstein_to_gaussian(X), "one of the two"),
        (lambda: sads.sliced_wasserstein_to_gaussian(X, vector=torch.zeros(4)), "all zero"),
        (lambda: sads.sliced_wasserstein_to_gaussian(X, vector=torch.ones(3)), r"\(3,\)"),
        (lambda: sads.sliced_wasserstein_to_gaussian(X, covariance=torch.eye(3)), r"\(4, 4\)"),
        (
            lambda: sads.sliced_wasserstein_to_gaussian(X, covariance=-torch.eye(4)),
            "positive semi-definite",
        ),
        (lambda: sads.max_sliced_wasserstein(X, X, num_starts=0), "num_starts"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [40, 25])
def test_samples_of_a_model_that_diverged_do_not_overflow(count: int) -> None:
    """Distances scale with the samples, also where squares in single precision are infinite."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 1, 3, 3, generator=generator) for n in (40, count))
    expected = sads.sliced_wasserstein(x, y, seed=1).sw2.value
    scale = 2.0**100  # of which nothing is lost in rounding
    assert sads.sliced_wasserstein(scale * x, scale * y, seed=1).sw2.value == pytest.approx(
        scale * expected, rel=1e-5
    )
