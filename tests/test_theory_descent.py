"""Gradient descent of linear networks: the closed form, and that no rotation beats the extremes."""

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import sympy
import torch
from torch import Tensor

import sads
from commands import Sads
from sads.errors import InvalidArgumentError
from sads.experiments.archive import Archive
from sads.experiments.records import losses_by_rotation, trained_families
from sads.theory.descent import GaussianDescent, overlaps, random_overlaps

pytestmark = pytest.mark.usefixtures("one_thread")
RESULTS = Path(__file__).parents[1] / "results" / "laptop"
STEPS = [0, 1, 2, 3, 10, 100, 1000]


def descend(
    phi: Tensor, moment: Tensor, sigma: float, learning_rate: float, steps: Sequence[int]
) -> Tensor:
    """`L_t - L*` by gradient descent on `Theta` from zero, step by step, (len(steps),).

    Uses nothing of the closed form: the loss, its gradient, and matrices `Phi` (D, M) and `C`.
    """
    phi, moment = phi.double(), moment.double()
    identity = torch.eye(len(phi), dtype=torch.float64)
    noisy = moment + sigma**2 * identity

    def loss(omega: Tensor) -> Tensor:
        return (omega @ noisy @ omega.T).trace() + 2 * omega.trace() + len(phi) / sigma**2

    least = loss(-torch.linalg.inv(noisy))
    theta = torch.zeros(phi.shape[1], len(phi), dtype=torch.float64)
    found, done = [], 0
    for step in steps:
        for _ in range(step - done):
            theta = theta - learning_rate * 2 * phi.T @ (phi @ theta @ noisy + identity)
        done = step
        found.append(loss(phi @ theta) - least)
    return torch.stack(found)


def _orthogonal(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q


def _problem(speed: float, sigma: float, dimension: int = 6) -> GaussianDescent:
    """`speed` is the largest `2 eta lambda m`: descent is stable below 2."""
    values = torch.tensor([3.0, 2.2, 1.0, 0.5, 0.1, 0.0])[:dimension]
    energies = torch.tensor([2.0, 1.1, 0.7, 0.2, 0.05, 0.0])[:dimension]
    rate = speed / (2 * float(values[0]) * (float(energies[0]) + sigma**2))
    return GaussianDescent(values, energies, sigma, rate)


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("speed", [0.5, 1.9])
@pytest.mark.parametrize("width", [6, 9])
def test_closed_form_is_gradient_descent(sigma: float, speed: float, width: int) -> None:
    """On matrices, step by step; with more hidden features than outputs, and a singular `K`."""
    problem = _problem(speed, sigma)
    u, v = _orthogonal(6, 0), _orthogonal(6, 1)
    phi = torch.zeros(6, width, dtype=torch.float64)
    phi[:, :6] = u @ problem.eigenvalues.sqrt().diag()
    phi = phi @ _orthogonal(width, 2)
    moment = v @ problem.energies.diag() @ v.T
    steps = STEPS[:-1]
    found = descend(phi, moment, sigma, problem.learning_rate, steps)
    assert torch.allclose(problem.excess(overlaps(u, v), steps), found, rtol=1e-8, atol=1e-9)


def test_gradient_is_that_of_samples() -> None:
    """The loss that is differentiated is the mean over noisy data, whatever their law."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 3, generator=generator).double().abs() * torch.tensor([1.0, 0.5, 2.0])
    eps = torch.randn(x.shape, generator=generator).double()
    sigma, omega = 0.7, _orthogonal(3, 4) - 1
    per_sample = ((x + sigma * eps) @ omega.T + eps / sigma).square().sum(dim=1)
    moment = x.T @ x / len(x) + sigma**2 * torch.eye(3)
    expected = (omega @ moment @ omega.T).trace() + 2 * omega.trace() + 3 / sigma**2
    error = float(per_sample.std()) / len(x) ** 0.5
    assert abs(float(per_sample.mean() - expected)) < 4 * error
    assert error < 0.02 * float(expected)


def test_the_mixed_derivative_is_never_negative() -> None:
    """By computer algebra, for the first steps: a square times what is positive."""
    eta, value, m = sympy.symbols("eta lambda m", positive=True)
    for t in range(1, 6):
        summand = (1 - 2 * eta * value * m) ** (2 * t) / m
        mixed = sympy.diff(summand, value, m)
        square = 8 * t * (2 * t - 1) * eta**2 * value * (1 - 2 * eta * value * m) ** (2 * t - 2)
        assert sympy.simplify(mixed - square) == 0


@pytest.mark.parametrize("speed", [0.1, 0.9, 1.5, 1.99, 2.5])  # the last is not stable
@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_no_rotation_of_ten_thousand_beats_the_extremes(speed: float, sigma: float) -> None:
    problem = _problem(speed, sigma)
    steps = STEPS[:-1] if speed > 2 else STEPS
    found = problem.random(steps, 10_000, seed=5)  # (10000, S)
    least, largest = problem.minimum(steps), problem.maximum(steps)
    rounding = 1e-12 * largest
    assert (found >= least - rounding).all()
    assert (found <= largest + rounding).all()
    spread = found.std(dim=0)
    assert spread[0] < 1e-12 * float(largest[0])  # nothing is learnt yet: all are equal
    assert (spread[2:4] > 1e-6 * largest[2:4]).all()  # and then they differ
    mean_error = spread / 100
    assert ((found.mean(dim=0) - problem.average(steps)).abs() < 5 * mean_error + rounding).all()


@pytest.mark.parametrize("speed", [0.9, 1.9, 2.5])
def test_no_permutation_beats_the_extremes(speed: float) -> None:
    """All 720, exactly: sums over permutations are what Birkhoff's theorem leaves to check."""
    problem = _problem(speed, 0.5)
    for step in (1, 2, 7, 40):
        terms = problem.terms(step)
        sums = [
            float(terms[torch.arange(6), list(p)].sum()) for p in itertools.permutations(range(6))
        ]
        assert min(sums) == pytest.approx(float(problem.minimum([step])), rel=1e-12)
        assert max(sums) == pytest.approx(float(problem.maximum([step])), rel=1e-12)


def test_random_starts_add_the_same_to_all_rotations() -> None:
    """`E[(u^T Phi Theta v)^2] = s^2 lambda` for every pair: no overlaps in it."""
    problem = _problem(0.9, 0.5)
    added = []
    for seed in (1, 2):
        u, v = torch.eye(6).double(), _orthogonal(6, seed)
        phi, m = problem.eigenvalues.sqrt().diag(), problem.noisy
        decay = (1 - 2 * problem.learning_rate * torch.outer(problem.eigenvalues, m)) ** 5
        start = torch.randn(20_000, 6, 6, generator=torch.Generator().manual_seed(3)).double()
        entries = (u.T @ phi @ start @ v) * decay
        added.append((entries.square() * m).sum(dim=(1, 2)))
    errors = [float(a.std()) / len(a) ** 0.5 for a in added]
    assert abs(float(added[0].mean() - added[1].mean())) < 4 * (errors[0] + errors[1])
    assert max(errors) < 0.02 * float(added[0].mean())


def test_the_extremes_are_those_of_theorem_2() -> None:
    """The rotations of `sads.rotation` reach them, for a geometry and data of any law."""
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 3, 3), channels=4, depth=1), 64)
    x = torch.rand(50, 1, 3, 3, generator=torch.Generator().manual_seed(0)).double()
    matrix = geometry.matrix()
    values, vectors = torch.linalg.eigh(matrix)
    phi = vectors @ values.clamp(min=0).sqrt().diag()
    rate = 0.3 / float(values[-1] * 9)
    for kind in ("min", "max"):
        z = sads.rotation(geometry, x, kind).apply(x).flatten(1)
        moment = z.T @ z / len(z)
        problem = GaussianDescent(values, torch.linalg.eigvalsh(moment).clamp(min=0), 0.5, rate)
        expected = (problem.minimum if kind == "min" else problem.maximum)([1, 50])
        found = descend(phi, moment, 0.5, rate, [1, 50])
        assert torch.allclose(found, expected, rtol=1e-6)


def test_haar_rotations_are_doubly_stochastic() -> None:
    found = random_overlaps(5, 2000)
    ones = torch.ones(2000, 5).double()
    assert torch.allclose(found.sum(dim=1), ones)
    assert torch.allclose(found.sum(dim=2), ones)
    # E[u_i^4] = 3 / (D (D + 2)) of a uniform unit vector
    error = float(found.square().std()) / 2000**0.5
    assert abs(float(found.square().mean()) - 3 / 35) < 4 * error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], [1.0, 2.0]), "do not fit"),
        (([1.0, -1.0], [1.0, 2.0]), "at least 0"),
        (([1.0], [float("nan")]), "finite"),
    ],
)
def test_what_is_no_spectrum_is_refused(
    arguments: tuple[list[float], list[float]], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        GaussianDescent(*map(torch.tensor, arguments))


def test_what_does_not_fit_is_refused() -> None:
    problem = GaussianDescent(torch.ones(2), torch.ones(2))
    for call in (
        lambda: problem.random([1], 0),
        lambda: problem.random([1], 2, seed=-1),
        lambda: problem.minimum([0.5]),  # type: ignore[list-item]
        lambda: problem.minimum([10**400]),
        lambda: problem.terms(-1),
        lambda: problem.excess(torch.ones(3, 3), [1]),
        lambda: overlaps(torch.ones(2, 3), torch.ones(3, 3)),
    ):
        with pytest.raises(InvalidArgumentError):
            call()


def test_command(command: Sads) -> None:
    options = ["mlp", "--shape", "1x4x4", "--networks", "32", "--steps", "1000"]
    out = command.succeed("theory", "descent", *options, "--rotations", 20, "--json")
    summary = json.loads(out)
    for found in summary["curves"].values():
        for low, band, middle, high in zip(
            found["minimum"],
            found["random"]["mean"],
            found["identity"],
            found["maximum"],
            strict=True,
        ):
            assert low <= min(band, middle) + 1e-12
            assert max(band, middle) <= high + 1e-12
    assert summary["trained"] == {}
    assert "no noise levels" in command.fail("theory", "descent", "--sigmas", "0,1")
    for speed in ("0", "nan", "2"):
        assert "--speed is above 0" in command.fail("theory", "descent", *options, "--speed", speed)


def test_command_beside_networks_that_were_trained(command: Sads) -> None:
    """Their losses are those of the committed records, and not in the order of the theorem."""
    options = ["--networks", "32", "--steps", "1000", "--rotations", "5", "--records", RESULTS]
    options = ["iddpm", "-o", "channel_mults=[1]", "-o", "depth=1", *options]
    out = command.succeed("theory", "descent", *options, "--shape", "1x8x8", "--json")
    trained = json.loads(out)["trained"]
    losses: dict[str, dict[int, float]] = {kind: {} for kind in ("identity", "min", "max")}
    for line in (RESULTS / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        cell = record["cell"]
        as_in_the_paper = set(cell.get("practice", {})) <= {"clip", "ema_decay"}
        as_most = cell["data"] == "digits" and cell["training"]["iterations"] == 400
        if as_most and as_in_the_paper and cell["rotation"] in losses:
            losses[cell["rotation"]][cell["seed"]] = record["losses"][-1]
    for kind, known in losses.items():
        assert trained[kind]["last"]["value"] == pytest.approx(statistics.mean(known.values()))
        assert trained[kind]["num_models"] == len(known)
    last = {kind: found["last"]["value"] for kind, found in trained.items()}
    assert last["identity"] < last["min"] < last["random"]
    err = command.fail("theory", "descent", "mlp", "--shape", "1x8x8", "--records", RESULTS)
    assert "it has those of: iddpm --shape 1x8x8 -o 'channel_mults=[1]' -o depth=1" in err
    assert "no networks that were trained" in command.fail(
        "theory", "descent", *options, "--shape", "1x4x4"
    )
    assert "there is no records.jsonl" in command.fail(
        "theory", "descent", *options[:-1], "nowhere", "--shape", "1x4x4"
    )


def test_of_trainings_as_frequent_the_shortest_count() -> None:
    """MNIST was trained for 400 and for 800 updates, as often: their order does not matter."""
    records = Archive.read(RESULTS).records.values()
    (of_mnist,) = trained_families(records, "mnist", (1, 14, 14)).values()
    for order in (of_mnist, of_mnist[::-1]):
        found = losses_by_rotation(order)
        assert {losses.num_updates for losses in found.values()} == {400}
        assert round(found["identity"].last.value, 4) == 0.0536


def test_networks_of_several_families_and_rotations_are_not_mixed() -> None:
    """The league has a model of each family behind each rotation, but for two random ones."""
    records = Archive.read(RESULTS.parent / "league").records.values()
    families = trained_families(records, "digits", (1, 8, 8))
    assert {family.name for family in families} == {"cnn", "dit", "iddpm"}
    for of_family in families.values():
        found = losses_by_rotation(of_family)
        counts = {kind: losses.num_models for kind, losses in found.items()}
        assert counts.pop("random") == 2
        assert set(counts.values()) == {1}
        assert {losses.num_updates for losses in found.values()} == {
            record.cell.training.iterations for record in of_family
        }
