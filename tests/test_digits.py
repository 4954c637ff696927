"""Which samples hold no digit, and which digits the others are."""

import math

import numpy as np
import pytest
import torch

import sads
from sads.errors import DataError, InvalidArgumentError
from sads.estimates import share_estimate


@pytest.fixture(scope="module", params=[8, 28])
def digits(request):
    return sads.load_images("digits", size=request.param), sads.load_labels("digits")


def noise(x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def test_held_out_images_are_lost_at_the_nominal_rate(digits):
    """Over ten splits, 10 x 359 images: 1 % within 4 errors of that many."""
    x, _ = digits
    shares = [sads.classify(x[:10], x, seed=s).held_out_without_digit for s in range(10)]
    assert sum(shares) / 10 == pytest.approx(0.01, abs=4 * math.sqrt(0.01 * 0.99 / 3590))


def scrambled(x: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(1))
    return x.flatten(1)[:, order].reshape(x.shape)


BLANKS = {
    "black": lambda x: torch.full_like(x, -1),
    "white": lambda x: torch.ones_like(x),
    "grey": lambda x: torch.zeros_like(x),
    "dark noise": lambda x: -1 + 0.1 * noise(x),
    "noise": noise,
    "faint digits": lambda x: 0.2 * (x + 1) - 1,
    "scrambled digits": scrambled,
    "broken": lambda x: torch.full_like(x, math.nan),
}


@pytest.mark.parametrize("name", BLANKS)
def test_images_without_a_digit_are_found(digits, name):
    x, labels = digits
    result = sads.classify(BLANKS[name](x[:300]), x, labels)
    assert result.without_digit > 0.98
    assert 0 < result.without_digit.error < 0.01
    if result.without_digit == 1:
        assert math.isnan(result.entropy)


def test_classes_and_mode_collapse(digits):
    x, labels = digits
    result = sads.classify(x + 0.05 * noise(x), x, labels)
    assert result.classes == tuple(range(10))
    assert result.without_digit < 0.02
    assert result.accuracy > 0.95
    assert result.entropy == pytest.approx(math.log(10), abs=0.02)
    assert float(result.shares.values.sum()) == pytest.approx(1)
    # of known classes: half ones, half fours, and blanks that have none
    chosen = torch.cat([x[labels == 1][:100], x[labels == 4][:100], torch.full_like(x[:50], -1)])
    result = sads.classify(chosen, x, labels)
    assert result.without_digit == pytest.approx(0.2, abs=0.02)
    assert float(result.shares[1]) == pytest.approx(0.5, abs=0.03)
    assert float(result.shares[4]) == pytest.approx(0.5, abs=0.03)
    assert result.entropy == pytest.approx(math.log(2), abs=0.1)
    assert result.entropy < math.log(10) - 10 * result.entropy.error


def test_without_labels_only_the_share_without_a_digit():
    x = sads.load_images("digits")
    result = sads.classify(x[:100], x)
    assert (result.classes, len(result.shares)) == ((), 0)
    assert math.isnan(result.accuracy)
    assert math.isnan(result.entropy)
    assert result.without_digit < 0.05


def test_copies_among_the_real_images_change_nothing():
    """A copy is no neighbour: with it every image would be explained, and no sample."""
    images = sads.load_images("digits", limit=900)
    once = sads.classify(images[:200], images[200:])
    twice = sads.classify(images[:200], images[200:].repeat(2, 1, 1, 1))
    assert abs(once.without_digit - twice.without_digit) < 0.02
    with pytest.raises(InvalidArgumentError, match="only 1 of the real images"):
        sads.classify(images[:5], images[:1].expand(100, -1, -1, -1))


def test_entropy_error_is_the_spread_over_samples():
    x, labels = sads.load_images("digits"), sads.load_labels("digits")
    weights = (labels + 1).double()  # uneven classes
    generator = torch.Generator().manual_seed(0)
    results = [
        sads.classify(x[torch.multinomial(weights, 200, True, generator=generator)], x, labels)
        for _ in range(30)
    ]
    spread = torch.tensor([r.entropy for r in results]).std()
    claimed = torch.tensor([r.entropy.error for r in results]).mean()
    # a standard deviation of 30 is known to 1 / sqrt(58)
    assert float(spread / claimed) == pytest.approx(1, abs=4 / math.sqrt(58))


def test_errors_of_shares():
    assert share_estimate(5000, 10_000).error == pytest.approx(0.005, rel=1e-3)
    assert share_estimate(0, 100).error > 0
    assert math.isnan(share_estimate(0, 0))


def test_labels_from_files(tmp_path):
    images = np.zeros((3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([3, 1, 2], dtype=np.uint8))
    np.savez(tmp_path / "b.npz", images=images)
    np.savez(tmp_path / "c.npz", images=images, y=np.array([0.5, 1, 2]))
    assert sads.load_labels(tmp_path / "a.npz", limit=2).tolist() == [3, 1]
    assert sads.load_labels(tmp_path / "b.npz") is None
    assert sads.load_labels(tmp_path) is None
    with pytest.raises(DataError, match="one whole number for each image"):
        sads.load_labels(tmp_path / "c.npz")
    with pytest.raises(DataError, match="cannot read"):
        sads.load_labels(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    ("samples", "count", "labels", "words"),
    [
        (torch.ones(5, 1, 4, 4), 200, None, "of one shape"),
        (torch.ones(0, 1, 8, 8), 200, None, "of one shape"),
        (torch.ones(5, 1, 8, 8), 20, None, "too few"),
        (torch.ones(5, 1, 8, 8), 200, torch.zeros(3, dtype=torch.int64), "one whole number"),
        (torch.ones(5, 1, 8, 8), 200, torch.zeros(200), "one whole number"),
        (torch.ones(5, 1, 8, 8), 200, torch.zeros(200, dtype=torch.int64), "labels are equal"),
    ],
)
def test_refusals(samples, count, labels, words):
    real = sads.load_images("digits", limit=count)
    with pytest.raises(InvalidArgumentError, match=words):
        sads.classify(samples, real, labels)


def test_samples_of_a_model_that_diverged_hold_no_digit():
    """Their squares overflow, and what is no number is not below a threshold either."""
    generator = torch.Generator().manual_seed(0)
    kinds, noise = (torch.randn(n, 1, 4, 4, generator=generator) for n in (4, 120))
    real = kinds.repeat(30, 1, 1, 1) + 0.01 * noise
    for scale in (1e18, 1e25, 1e38):
        assert sads.classify(scale * real[:20], real).without_digit.value == 1
    plain = sads.classify(real[:50], real).without_digit
    for scale in (2.0**-100, 2.0**100):
        assert sads.classify(scale * real[:50], scale * real).without_digit == plain
