"""Errors cover as they claim, or the output says that they are not known.

`benchmarks/coverage.py` makes the whole table; here are matrices whose truth is exact, and two
cases of that table with fewer seeds. Claimed is Student's t with 15 degrees of freedom: the truth
is farther than 2.13 errors away in 5 % of the estimates.
"""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import sads
from sads.estimates import Estimate, batch_error, batch_skewness, skew_factor
from sads.geometry.directions import find_directions
from sads.geometry.eigenbasis import Spread
from sads.geometry.lift import Lift
from sads.geometry.repulsion import pushed

STUDENT = float(stats.t(15).ppf(0.975))
FIRST_SEED = 1000  # the constants of the rules were chosen on seeds below this
SPECTRA = {
    "equal": torch.ones(16, dtype=torch.float64),
    "pairs": torch.logspace(0, -4, 8, dtype=torch.float64).repeat_interleave(2),
    "even": torch.logspace(0, -4, 16, dtype=torch.float64),
    "crowded": torch.linspace(1, 0.5, 24, dtype=torch.float64),
}


def _bound(repetitions: int, share: float = 0.05) -> int:
    """Misses, if a share of them is claimed, that are exceeded with probability 0.0005."""
    return int(stats.binom(repetitions, share).isf(0.0005))


def _outer_products(values: Tensor, networks: int, tail: float, seed: int) -> Tensor:
    """16 batches of `s^2 x x^T` with `x ~ N(0, diag(values))`, `s` lognormal with `E[s^2] = 1`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, networks // 16, len(values), generator=generator, dtype=torch.float64)
    log_s = tail * torch.randn(16, networks // 16, 1, generator=generator, dtype=torch.float64)
    x = torch.exp(log_s - tail**2) * values.sqrt() * x
    return x.transpose(1, 2) @ x / (networks // 16)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("networks", "tail"), [(2048, 0.5), (512, 0.3)])
def test_eigenvalues_of_averages_of_outer_products(
    spectrum: str, networks: int, tail: float
) -> None:
    """Every rank, over 100 seeds; the claimed error is that of what happens, not a multiple.

    The lower of two equal eigenvalues is missed in up to 9 % (1,500 other seeds: 5.5 to 8.7 %),
    as the documentation says; all ranks together in no more than 6 %.
    """
    truth, repetitions = SPECTRA[spectrum], 100
    deviations, errors = torch.empty(2, repetitions, len(truth), dtype=torch.float64)
    counts = torch.full((16,), networks // 16)
    for seed in range(repetitions):
        factors = _outer_products(truth, networks, tail, FIRST_SEED + seed)
        lift = Lift.trivial(len(truth))
        directions = find_directions(Spread.of(factors, counts), counts, lift, (len(truth),), 0.1)
        deviations[seed], errors[seed] = directions.values - truth, directions.value_errors
    assert errors.isfinite().double().mean() > 0.9
    missed = ((deviations.abs() > STUDENT * errors) & errors.isfinite()).sum(dim=0)
    assert int(missed.max()) <= _bound(repetitions, 0.09 if spectrum == "pairs" else 0.07)
    assert float(missed.sum()) <= 0.06 * float(errors.isfinite().sum()) + 3 * math.sqrt(
        0.05 * 0.95 * repetitions * len(truth)
    )
    known = torch.where(errors.isfinite(), errors, 0.0)
    happened = torch.where(errors.isfinite(), deviations, 0.0)
    ratio = (known.square().mean() / happened.square().mean()).sqrt()
    assert 0.9 < float(ratio) < (1.5 if spectrum != "crowded" else 2.5)


LAWS = {  # of mean 0 and variance 1, by their skewness
    "gamma": lambda g, rng, size: (rng.gamma(4 / g**2, 1, size) - 4 / g**2) * g / 2,
    "lognormal": lambda g, rng, size: _lognormal(g, rng, size),
    "compound Poisson": lambda g, rng, size: _jumps(4.5 / g**2, rng, size),
}


def _lognormal(skewness: float, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    law = optimize.brentq(lambda s: stats.lognorm(s).stats("s") - skewness, 0.01, 1)
    return (rng.lognormal(0, law, size) - stats.lognorm(law).mean()) / stats.lognorm(law).std()


def _jumps(number: float, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A Poisson number of exponential jumps: few rare networks decide the mean of a batch."""
    counts = rng.poisson(number, size)
    jumps = np.where(counts > 0, rng.gamma(np.maximum(counts, 1), 1), 0.0)
    return (jumps - number) / math.sqrt(2 * number)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("skewness", [0.5, 1.0, 1.5, 2.0])
def test_means_of_skewed_laws_are_missed_as_often_as_claimed(law: str, skewness: float) -> None:
    """Without the factor 9 % are missed at a skewness of 2."""
    rng = np.random.default_rng(0)
    batches = torch.from_numpy(LAWS[law](skewness, rng, (16, 40_000)))
    counts = torch.full((16,), 8)
    error = batch_error(batches, counts)
    wider = error * skew_factor(batch_skewness(batches, counts))
    deviation = batches.mean(dim=0).abs()
    assert 0.037 < float((deviation > STUDENT * wider).double().mean()) < 0.06
    if skewness == 2.0:
        assert float((deviation > STUDENT * error).double().mean()) > 0.07


def test_skewness_is_that_of_scipy_and_none_where_batches_agree() -> None:
    batches = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).double().exp()
    counts = torch.full((16,), 4)
    expected = stats.skew(batches.numpy(), axis=0, bias=False)
    assert torch.allclose(batch_skewness(batches, counts), torch.from_numpy(expected))
    same = torch.full((16, 2), 1 / 3, dtype=torch.float64) * (1 + 1e-16)
    assert batch_skewness(same, counts).tolist() == [0.0, 0.0]


def test_noise_pushes_two_eigenvalues_apart() -> None:
    """Far apart it is the perturbation of second order; two that are equal come from one."""
    variance = torch.tensor([[0.0, 1e-4], [1e-4, 0.0]], dtype=torch.float64)
    far = torch.tensor([4.0, 1.0], dtype=torch.float64)
    assert torch.allclose(pushed(far, variance), torch.tensor([1.0, -1.0]).double() * 1e-4 / 3)
    close = torch.tensor([1.01, 0.99], dtype=torch.float64)  # nearer than sqrt(8) standard errors
    assert torch.allclose(close - pushed(close, variance), torch.ones(2).double(), atol=1e-3)


def test_noise_spreads_equal_eigenvalues_as_marchenko_and_pastur_say() -> None:
    """64 eigenvalues of 1 from 2,048 outer products lie between the squares of 1 +- sqrt(c)."""
    size, networks = 64, 2048
    x = torch.randn(networks, size, generator=torch.Generator().manual_seed(0)).double()
    values = torch.linalg.eigvalsh(x.T @ x / networks).flip(0)
    variance = values[:, None] * values / networks
    moved = pushed(values, variance.fill_diagonal_(0))
    c = math.sqrt(size / networks)
    assert float(values[0]) == pytest.approx((1 + c) ** 2, rel=0.03)
    assert float(moved[0]) == pytest.approx((1 + c) ** 2 - 1, rel=0.25)
    assert float(moved[-1]) == pytest.approx((1 - c) ** 2 - 1, rel=0.25)


@pytest.mark.parametrize(
    ("spectrum", "networks", "tail"),
    [("pairs", 2048, 0.5), ("close", 512, 0.3), ("even", 512, 0.3)],
)
def test_few_directions_look_sure_by_chance(spectrum: str, networks: int, tail: float) -> None:
    """Of equal eigenvalues some come to stand apart, and their directions are anything.

    As they came out, a third of the equal pairs looked sure to 0.3 rad, and nearly half of those
    were farther than two angle errors from the truth. No rule sees that it was chance; few may
    claim to be sure, so that of all directions fewer are claimed and missed than the 6.4 % of two
    errors. Where nothing is equal, errors are not wider for it: most are claimed as before.
    """
    close = torch.logspace(0, -3, 8, dtype=torch.float64)
    truth = torch.stack([close, 0.9 * close], 1).flatten() if spectrum == "close" else None
    truth = SPECTRA[spectrum] if truth is None else truth
    counts = torch.full((16,), networks // 16)
    claimed, missed = torch.zeros(2, 2)
    for seed in range(FIRST_SEED, FIRST_SEED + 40):
        factors = _outer_products(truth, networks, tail, seed)
        for rule in (0, 1):
            found = Spread.of(factors, counts)
            directions = find_directions(
                found, counts, Lift.trivial(16), (16,), 0.3, first_order=bool(rule)
            )
            angle = torch.arccos(directions.vectors.abs().amax(dim=1).clamp(max=1))
            sure = directions.angle_errors < 0.3
            claimed[rule] += sure.sum()
            missed[rule] += (sure & (angle > 2 * directions.angle_errors)).sum()
    total = 40 * 16
    assert missed[0] <= 0.064 * total
    if spectrum == "even":
        assert claimed[0] > 0.9 * claimed[1] > 0.8 * total
    else:
        assert missed[1] > 0.064 * total
        assert claimed[0] < claimed[1] / 2


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, in which two rows find the truth that they share."""
    return tmp_path_factory.mktemp("drawn")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "probe", "estimator", "networks", "known"),
    [
        ("1x4x4", "forward", "outer-product", 512, 36),
        ("1x8x8", "custom", "integrated", 64, 32),  # four a batch do not always know an error
        ("1x8x8", "custom", "integrated", 256, 36),
    ],
)
def test_networks(
    benchmark_module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    drawn: Path,
    network: str,
    probe: str,
    estimator: str,
    networks: int,
    known: int,
) -> None:
    """Rows of the table, 40 seeds; errors are known in so many of them at least.

    The truth's own errors, a fifth of the others or less, are added in quadrature.
    """
    monkeypatch.setattr(benchmark_module, "TRUE_NETWORKS", 25 * 256)
    threads = torch.get_num_threads()
    try:
        case = benchmark_module.Case(network, probe, estimator, networks)
        seeds = range(benchmark_module.FIRST_SEED, benchmark_module.FIRST_SEED + 40)
        benchmark_module.draw(case, seeds, drawn)
        found = benchmark_module.measure(case, seeds, drawn)
    finally:
        torch.set_num_threads(threads)
    for name in ("first", "middle", "last", "energies"):
        missed, claims = found[name].misses()
        assert int(claims.min()) >= known, name
        assert int(missed.max()) <= _bound(40), name
    missed, claims = found["clusters"].misses()
    assert int(missed) <= 0.12 * int(claims)
    missed, claims = found["angles"].misses(2.0)
    assert int(missed) <= 0.064 * int(claims)


def test_the_plain_loop_says_that_its_errors_are_not_known() -> None:
    """With even levels 0.74 % of the networks count: no batch can know what it has not met."""
    family = sads.family("cnn", (1, 4, 4), channels=4)
    geometry = sads.estimate_geometry(family, 128, estimator="monte-carlo")
    weights = family.schedule.sigma**-2
    share = float(weights.sum() ** 2 / weights.square().sum()) / len(weights)
    assert geometry.effective_networks == pytest.approx(128 * share)
    assert share == pytest.approx(0.0074, abs=5e-5)
    assert "count as 0.9 of equal weight" in str(geometry.errors_unknown)
    directions = geometry.directions()
    assert directions.value_errors.isinf().all()
    assert (directions.angle_errors == math.pi / 2).all()
    assert not directions.resolved.any()
    assert directions.rank_low.tolist() == [0] * 16
    assert directions.rank_high.tolist() == [15] * 16
    assert [c.reason for c in directions.clusters] == ["unresolved"]
    assert geometry.whitened_error() == math.inf
    assert str(geometry.energy(torch.ones(16))).endswith("± ?")
    data = torch.randn(50, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert math.isinf(sads.alignment(geometry, data).alpha.error)
    many = replace(geometry, moments=replace(geometry.moments, counts=geometry.counts * 1000))
    assert many.errors_unknown is None
    assert many.directions().value_errors[0] < math.inf or many.whitened_error() < math.inf


def test_the_plain_loop_knows_its_errors_where_levels_weigh_the_same() -> None:
    family = sads.family("cnn", (1, 4, 4), channels=4, prediction="score")
    geometry = sads.estimate_geometry(family, 128, estimator="monte-carlo")
    assert geometry.effective_networks == 128
    assert geometry.errors_unknown is None
    assert geometry.directions().value_errors[0] < math.inf


def test_unknown_errors_are_written_as_such() -> None:
    assert str(Estimate(1.5, math.inf)) == "1.5 ± ?"
    assert str(Estimate(1.5, math.nan)) == "1.5"  # of one repetition: there is no error


def test_an_error_of_more_than_a_quarter_is_not_known() -> None:
    """One network in a batch decides everything: no spread of 16 numbers says how rare it is."""
    factors = torch.eye(2, dtype=torch.float64).repeat(16, 1, 1)
    factors[3] *= 200.0
    counts = torch.ones(16).long()
    directions = find_directions(Spread.of(factors, counts), counts, Lift.trivial(2), (2,), 0.1)
    assert directions.value_errors.isinf().all()
