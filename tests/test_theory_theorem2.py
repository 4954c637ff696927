"""Theorem 2 on its own: every permutation, random rotations, and the rotations of data."""

import itertools
import math

import pytest
import torch

import sads
from sads.errors import InvalidArgumentError
from sads.theory.theorem2 import extremes, try_rotations


def test_no_permutation_is_beyond_the_extremes():
    generator = torch.Generator().manual_seed(0)
    values, moments = torch.rand(2, 6, generator=generator, dtype=torch.float64)
    orders = torch.tensor(list(itertools.permutations(range(6))))
    alphas = (values * moments[orders]).sum(dim=1)  # (720,)
    least, largest = extremes(values, moments)
    assert float(alphas.min()) == pytest.approx(least, rel=1e-14)
    assert float(alphas.max()) == pytest.approx(largest, rel=1e-14)


def test_random_rotations_are_those_of_the_data():
    """Alpha of data that were really rotated has the same law, and the same extremes."""
    geometry = sads.estimate_geometry(sads.family("cnn", shape=(1, 4, 4)), num_networks=64)
    x = torch.randn(300, 1, 4, 4, generator=torch.Generator().manual_seed(1)).cumsum(-1)
    both = sads.pair(geometry, x)
    tried = try_rotations(both.spectrum().values, both.data_values, 400, seed=2)
    assert tried.num_outside == 0
    report = both.alignment()
    assert tried.minimum == pytest.approx(report.minimum.value, rel=1e-6)
    assert tried.maximum == pytest.approx(report.maximum.value, rel=1e-6)
    real = torch.tensor([both.rotation(f"random:{seed}").alpha.value for seed in range(400)])
    spread = float(torch.hypot(real.std(), tried.alphas.std().float())) / 20  # of a mean of 400
    assert abs(float(real.mean() - tried.alphas.mean())) < 3 * spread
    assert float(tried.alphas.mean()) == pytest.approx(report.random.value, abs=3 * spread)


def test_what_is_outside_is_counted():
    tried = try_rotations(torch.tensor([2.0, 1.0]), torch.tensor([3.0, 1.0]), 10)
    wrong = type(tried)(tried.maximum, tried.maximum, tried.alphas)
    assert tried.num_outside == 0
    assert wrong.num_outside == 10
    with pytest.raises(sads.SadsError, match="num_rotations"):
        try_rotations(torch.ones(2), torch.ones(2), 0)


def test_spectra_of_any_type():
    """Products of half precision overflow, and whole numbers have no dot product with others."""
    whole, half = torch.tensor([3, 1]), torch.tensor([300.0, 2.0], dtype=torch.float16)
    assert extremes(whole, half) == (306.0, 902.0)
    assert extremes(half, half) == (1200.0, 90004.0)
    assert try_rotations(whole, half, 5).num_outside == 0
    assert try_rotations(-whole, torch.zeros(2), 5).num_outside == 0
    with pytest.raises(InvalidArgumentError, match="finite"):
        extremes(torch.tensor([math.nan, 1.0]), half)
