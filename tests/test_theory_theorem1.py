"""Lemmas 1 and 2 and Theorem 1 against simulation, symbolic algebra and plain iteration."""

import itertools
import math

import numpy as np
import pytest
import sympy
import torch

from sads import environment
from sads.errors import InvalidArgumentError, NotEnoughMemoryError
from sads.theory import LinearDSM, conditioning, expected_quadratic, optimal_score, rates

SPECTRUM = [1.0, 0.5, 0.25, 0.125, 0.0625]


pytestmark = pytest.mark.usefixtures("one_thread")


def problem(index: int, sigma: float = 1.0, spectrum: list[float] = SPECTRUM) -> LinearDSM:
    phi = conditioning(spectrum, seed=1)
    return LinearDSM(phi, phi[:, index], sigma)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 7.0])
def test_lemma1_is_minus_the_inverse_covariance(sigma):
    v = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = v / v.norm()
    covariance = torch.outer(unit, unit) + sigma**2 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(optimal_score(v, sigma), -torch.linalg.inv(covariance))


def test_lemma1_is_the_gradient_of_the_log_density():
    v, x = torch.tensor([0.6, 0.8], dtype=torch.float64), torch.tensor([0.3, -2.0]).double()
    law = torch.distributions.MultivariateNormal(
        torch.zeros(2).double(), torch.outer(v, v) + 0.25 * torch.eye(2).double()
    )
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(law.log_prob(x), x)
    torch.testing.assert_close(optimal_score(v, 0.5) @ x.detach(), gradient)


def test_lemma2_equals_the_mean_over_all_sign_matrices():
    x = torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros(3, 3, dtype=torch.float64)
    signs = list(itertools.product([-1.0, 1.0], repeat=6))  # iid, mean 0, variance 1: exact
    for entries in signs:
        w = torch.tensor(entries, dtype=torch.float64).reshape(2, 3)
        total += w.T @ x @ w
    torch.testing.assert_close(expected_quadratic(x, 1.0, 3), total / len(signs))


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_gradient_descent_equals_the_closed_form(index, sigma):
    p = problem(index, sigma)
    steps, eta = [0, 1, 2, 10, 100, 500], 0.05
    theta = torch.zeros(5, 5, dtype=torch.float64)
    for t in range(steps[-1] + 1):
        if t in steps:
            given = p.expected_errors([t], eta)[0]
            assert (given - (p.phi @ theta - p.optimum)).abs().max() < 1e-10
        theta = theta - eta * p.gradient(theta)


def test_closed_form_holds_for_any_direction_and_a_wide_phi():
    generator = torch.Generator().manual_seed(3)
    phi = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    p = LinearDSM(phi, torch.tensor([1.0, 2.0, -1.0]), 0.8)
    theta = torch.zeros(7, 3, dtype=torch.float64)
    for _ in range(200):
        theta = theta - 0.01 * p.gradient(theta)
    assert (p.expected_errors([200], 0.01)[0] - (phi @ theta - p.optimum)).abs().max() < 1e-10


def test_gradient_is_that_of_the_objective():
    p = problem(1, 0.7)
    theta = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta.requires_grad_()
    omega = p.phi @ theta
    noise = p.sigma * omega + torch.eye(5, dtype=torch.float64) / p.sigma
    objective = (omega @ p.v).square().sum() + noise.square().sum()  # Equation 13
    (expected,) = torch.autograd.grad(objective, theta)
    torch.testing.assert_close(p.gradient(theta.detach()), expected)


def test_rates_are_equal_but_for_the_smallest_eigenvalue():
    given = rates(torch.tensor(SPECTRUM), 1.0)
    torch.testing.assert_close(given[:4], torch.full((4,), SPECTRUM[-1]).double())
    assert given[4] == min(2 * SPECTRUM[4], SPECTRUM[3])
    assert given[4] > given[0]


def test_rates_coincide_where_the_smallest_eigenvalue_repeats():
    given = rates(torch.tensor([1.0, 0.5, 0.25, 0.25]), 0.7)
    assert (given == given[0]).all()


@pytest.mark.parametrize("index", range(5))
def test_error_decays_at_the_rate(index):
    p, eta = problem(index), 0.02
    norms = p.expected_errors([5000, 5001], eta).flatten(1).norm(dim=1)
    expected = 1 - 2 * eta * float(rates(torch.tensor(SPECTRUM), 1.0)[index])
    assert float(norms[1] / norms[0]) == pytest.approx(expected, rel=1e-6)
    assert p.rate == pytest.approx(float(rates(torch.tensor(SPECTRUM), 1.0)[index]))


STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 400, 800]


@pytest.mark.parametrize(
    ("index", "sigma", "batch_size", "init_variance"),
    [(0, 1.0, 1, 0.0), (2, 1.0, 1, 0.0), (4, 1.0, 1, 0.0), (1, 0.6, 4, 0.3), (4, 2.0, 2, 0.1)],
)
def test_simulated_second_moment_equals_the_recursion(index, sigma, batch_size, init_variance):
    p, eta = problem(index, sigma), 0.02
    runs = p.simulate(STEPS, eta, 1000, batch_size=batch_size, init_variance=init_variance, seed=5)
    exact = p.squared_errors(STEPS, eta, batch_size, init_variance)
    assert ((runs.mean - exact).abs() <= 3 * runs.mean_error).all()
    assert (runs.mean_error < 0.05 * exact).all()  # or the line above would say little


def test_recursion_holds_for_a_direction_that_is_no_eigenvector():
    p = LinearDSM(conditioning(SPECTRUM), torch.ones(5), 0.8)
    runs = p.simulate(STEPS, 0.03, 2000, batch_size=2, seed=1)
    exact = p.squared_errors(STEPS, 0.03, 2)
    assert ((runs.mean - exact).abs() <= 3 * runs.mean_error).all()


def test_second_moment_of_full_matrices_by_brute_force():
    """One step from a fixed start, every fourth moment by Gauss-Hermite quadrature (D = 2)."""
    p, eta = LinearDSM(conditioning([1.0, 0.3], seed=2), torch.tensor([1.0, 0.4]), 0.9), 0.1
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)  # exact to degree 11; we need 4
    weights = weights / weights.sum()
    total = 0.0
    for (a, wa), (b, wb), (c, wc) in itertools.product(zip(nodes, weights, strict=True), repeat=3):
        eps = torch.tensor([b, c])
        q = a * p.v + p.sigma * eps
        omega = -2 * eta * p.phi @ p.phi.T @ torch.outer(eps / p.sigma, q)  # from Theta = 0
        total += wa * wb * wc * float((omega - p.optimum).square().sum())
    assert total == pytest.approx(float(p.squared_errors([1], eta)[0]), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_plateau_is_the_limit_of_the_recursion(batch_size):
    for index in range(5):
        p = problem(index)
        limit = float(p.squared_errors([4000], 0.05, batch_size)[0])
        assert p.plateau(0.05, batch_size) == pytest.approx(limit, rel=1e-9)


def test_plateau_is_proportional_to_the_eigenvalue_for_small_steps():
    eta = 1e-5
    for index, value in enumerate(SPECTRUM):
        first_order = eta * value * 5 / 2  # eta lambda D s, s = 1/2 at sigma = 1
        assert problem(index).plateau(eta) == pytest.approx(first_order, rel=1e-3)


def test_in_theta_the_plateau_does_not_depend_on_the_eigenvalue():
    """Covariance and curvature both grow with lambda_i; the factor is Phi's, on the way out."""
    eta, spreads = 0.02, []
    for index in (0, 3):
        p = problem(index)
        errors = p.simulate([2400], eta, 1500, seed=index).errors[0]  # (runs, D, D)
        theta = torch.linalg.solve(p.phi, errors)
        spreads.append(theta.square().sum(dim=(1, 2)))
    ratio = float(spreads[0].mean() / spreads[1].mean())
    assert 1.0 < ratio < 1.4  # 1.19 by the exact plateaus; in Omega the ratio is 9.4
    exact = problem(0).plateau(eta) / SPECTRUM[0] / (problem(3).plateau(eta) / SPECTRUM[3])
    error = ratio * math.hypot(*(float(s.std() / s.mean()) / math.sqrt(len(s)) for s in spreads))
    assert abs(ratio - exact) < 3 * error


def test_too_large_a_learning_rate_has_no_plateau():
    p = problem(0)
    assert p.plateau(0.5) == math.inf
    assert p.squared_errors([2000], 0.5)[0] > 1e6


@pytest.mark.parametrize("index", range(5))
def test_gradient_covariance_by_simulation(index):
    p, n = problem(index), 200_000
    generator = torch.Generator().manual_seed(index)
    eps = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    q = torch.randn(n, 1, generator=generator, dtype=torch.float64) * p.v + p.sigma * eps
    residual = q @ p.optimum.T + eps / p.sigma
    gradient = 2 * (residual @ p.phi)[:, :, None] * q[:, None]  # (n, M, D)
    columns = gradient.mT.flatten(1)  # vec stacks columns
    assert (columns.mean(dim=0).abs() < 5 * columns.std(dim=0) / math.sqrt(n) + 1e-12).all()
    given = columns.T @ columns / n
    expected = p.gradient_covariance()
    squares = (columns**2).T @ columns**2 / n  # second moment of each product
    error = ((squares - given**2).clamp(min=0) / n).sqrt()
    assert ((given - expected).abs() <= 5 * error + 1e-12).all()  # 625 entries at once
    trace = gradient.square().sum(dim=(1, 2))
    assert abs(trace.mean() - 12 * SPECTRUM[index]) < 3 * trace.std() / math.sqrt(n)


@pytest.mark.parametrize("dimension", [2, 3])
def test_gradient_covariance_symbolically(dimension):
    """Equation 19 from polynomial moments of independent normals, for symbolic lambda, sigma.

    Both sides times `c^2`, `c = sigma^2 (sigma^2 + 1)`, are polynomials; `lambda_i = a_i^2`.
    """
    sigma = sympy.Symbol("sigma")
    roots = sympy.symbols(f"a1:{dimension + 1}")
    normals = sympy.symbols(f"g e1:{dimension + 1}")
    identity = sympy.eye(dimension)
    rotation = sympy.eye(dimension)
    rotation[:2, :2] = sympy.Matrix([[3, -4], [4, 3]]) / 5
    phi = rotation * sympy.diag(*roots) * rotation.T

    def mean(polynomial):
        total = sympy.Integer(0)
        for powers, coefficient in sympy.Poly(polynomial, *normals).terms():
            if all(k % 2 == 0 for k in powers):
                total += coefficient * sympy.prod([sympy.factorial2(k - 1) for k in powers])
        return total

    for i in range(dimension):
        u, eps = rotation[:, i], sympy.Matrix(normals[1:])
        q = normals[0] * u + sigma * eps
        optimum = u * u.T - (sigma**2 + 1) * identity  # times c
        p = phi.T * (optimum * q + sigma * (sigma**2 + 1) * eps)  # times c
        gradient = sympy.Matrix(2 * p * q.T).vec()
        scale = 4 * sigma**2 * (sigma**2 + 1)
        expected = scale * sympy.kronecker_product(
            u * u.T + sigma**2 * identity, phi.T * u * u.T * phi
        )
        for a, b in itertools.combinations_with_replacement(range(dimension**2), 2):
            assert sympy.expand(mean(gradient[a] * gradient[b]) - expected[a, b]) == 0
        trace = sympy.expand(expected.trace() / roots[i] ** 2)
        assert trace == sympy.expand(scale * (1 + dimension * sigma**2))  # whatever lambda


def test_refusals():
    with pytest.raises(InvalidArgumentError, match="length above 0"):
        LinearDSM(torch.eye(3), torch.zeros(3))
    with pytest.raises(InvalidArgumentError, match="singular"):
        LinearDSM(torch.ones(3, 3), torch.ones(3))
    with pytest.raises(InvalidArgumentError, match="3 rows"):
        LinearDSM(torch.eye(3), torch.ones(4))
    with pytest.raises(InvalidArgumentError, match="sigma"):
        optimal_score(torch.ones(3), -1.0)
    with pytest.raises(InvalidArgumentError, match="learning rate"):
        problem(0).plateau(0.0)
    with pytest.raises(InvalidArgumentError, match="increasing"):
        problem(0).squared_errors([3, 1], 0.1)


def test_little_noise_keeps_its_modes():
    """`M` has the eigenvalue `sigma^2` exactly, however much larger the other one is."""
    little = LinearDSM(conditioning([1.0, 0.5, 0.25], seed=1), torch.ones(3), 1e-9)
    scale = 0.02 * little.residual_variance * float((little.phi.T @ little.v).square().sum())
    assert little.plateau(0.02) == pytest.approx(3 * scale, rel=0.1)  # eta |Phi^T v|^2 D s
    assert little.rate == pytest.approx(0.25 * 1e-18)


def test_a_covariance_that_cannot_be_held_is_refused(monkeypatch):
    monkeypatch.setattr(environment, "available_memory", lambda: 0)
    many = LinearDSM(torch.eye(100), torch.ones(100))
    with pytest.raises(NotEnoughMemoryError, match="give fewer eigenvalues"):
        many.gradient_covariance()


@pytest.mark.parametrize(
    "call",
    [
        lambda: problem(0).gradient(torch.ones(2, 2)),
        lambda: problem(0).squared_errors([1.5], 0.1),
        lambda: problem(0).squared_errors([2, 1], 0.1),
        lambda: problem(0).squared_errors([1], 0.1, 10**30),
        lambda: problem(0).squared_errors([1], 0.1, init_variance=-1.0),
        lambda: problem(0).simulate([1], 0.1, 3, init_variance=-1.0),
        lambda: problem(0).simulate([1], 0.1, 3, seed=-1),
        lambda: rates(torch.tensor([1.0, math.inf]), 1.0),
        lambda: optimal_score(torch.ones(40_000), 1.0),
        lambda: optimal_score(torch.ones(2), 1e200),
        lambda: expected_quadratic(torch.full((2, 2), math.nan), 1.0, 2),
        lambda: conditioning(range(1, 40_000)),
    ],
)
def test_what_is_refused_in_one_line(call):
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert str(raised.value).isprintable()


def test_steps_may_be_a_tensor():
    expected = problem(0).squared_errors([1, 5], 0.1)
    assert torch.equal(problem(0).squared_errors(torch.tensor([1, 5]), 0.1), expected)
