"""Predictors against dense formulas, a linear network trained for real, and the sampler itself."""

import math

import pytest
import torch
from torch import Tensor, nn

import sads
from sads.diffusion.sample import SAMPLERS, spread_levels
from sads.errors import InvalidArgumentError, SadsError
from sads.predictors import moments
from sads.predictors.gaussian import LOSS_LEVELS, LinearModel
from sads.predictors.kernel import interpolate, learning_rates, spread_ranks
from sads.predictors.prospect import Plan, Prospect, Untrained
from sads.predictors.registry import PREDICTORS, Prediction, find_predictors, register_predictor
from sads.schedule import Schedule

SHAPE = (1, 3, 4)


def make_prospect(plan: Plan | None = None) -> Prospect:
    family = sads.family("cnn", SHAPE, channels=4)
    geometry = sads.estimate_geometry(family, 64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, *SHAPE, generator=generator) + 0.5
    return Prospect(Untrained(family, geometry), x, plan or Plan())


def test_moments_are_means_over_samples() -> None:
    prospect = make_prospect()
    rows = prospect.data.flatten(1).double()
    matrix = prospect.network.geometry.matrix()
    centred = rows - rows.mean(dim=0)
    expected = {
        moments.alpha: torch.einsum("ni,ij,nj->n", rows, matrix, rows),
        moments.centred_alpha: torch.einsum("ni,ij,nj->n", centred, matrix, centred),
        moments.squared_alpha: (rows @ matrix).square().sum(dim=1),
        moments.constant_energy: rows.sum(dim=1).square() / rows.shape[1],
    }
    for predictor, values in expected.items():
        assert predictor(prospect) == pytest.approx(float(values.mean()), rel=1e-10)


def test_alpha_is_that_of_sads_alignment() -> None:
    prospect = make_prospect()
    known = sads.alignment(prospect.network.geometry, prospect.data)
    assert moments.alpha(prospect) == pytest.approx(float(known.alpha), rel=1e-9)


def test_forward_alpha_is_the_mean_of_plain_networks_at_noisy_data() -> None:
    """Networks one by one, each at one noisy sample, and their scores' products with samples."""
    prospect = make_prospect()
    network, rows = prospect.network, prospect.data.flatten(1).double()
    found = moments.forward_alpha(prospect)
    schedule = network.family.schedule
    generator = torch.Generator().manual_seed(1)
    weights = 1 / schedule.sigma**2
    values = []
    for level in torch.multinomial(weights, 1500, replacement=True, generator=generator).tolist():
        z = prospect.data[int(torch.randint(len(rows), (), generator=generator))]
        noise = torch.randn(SHAPE, generator=generator)
        x = schedule.abar[level].sqrt() * z + schedule.sigma[level] * noise
        with torch.no_grad():
            output = network.family.build()(x[None].float(), torch.tensor([float(level)]))
        values.append(((rows @ output.flatten().double()) ** 2).mean() * weights.mean())
    plain = torch.stack(values)
    error = float(plain.std()) / math.sqrt(len(plain))
    assert abs(found - float(plain.mean())) < 4 * math.hypot(error, 0.05 * found)


class Linear(nn.Module):
    """`f(x) = Phi Theta x` with `Phi` fixed and `Theta` trained."""

    def __init__(self, phi: Tensor):
        super().__init__()
        self.register_buffer("phi", phi)
        self.theta = nn.Parameter(torch.zeros(phi.shape[1], phi.shape[0]))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        flat = x.flatten(1)
        return (flat @ self.theta.T @ self.phi.T).reshape(x.shape)


def test_rates_of_a_linear_network_are_known() -> None:
    """Its kernel is `Phi Phi^T (x . x')`: `kappa_i = (u_i^T Phi Phi^T u_i) E[(u_i . x)^2]`."""
    generator = torch.Generator().manual_seed(3)
    phi = torch.randn(12, 12, generator=generator) / 4
    family = sads.family(lambda: Linear(phi), shape=SHAPE)
    values, basis = torch.linalg.eigh((phi @ phi.T).double())
    energy = 0.7
    found = learning_rates(family, basis, energy, num_networks=40, batch_size=400)
    rates = found.kappa
    schedule = family.schedule
    spread = schedule.abar * energy + schedule.sigma**2  # E[(u . x)^2] at each level
    expected = values * spread.mean()
    assert ((rates.values - expected).abs() < 5 * rates.errors + 1e-6 * expected.max()).all()
    assert (rates.errors[4:] < 0.1 * expected[4:]).all()
    # From Theta = 0 the gradient of the loss is -2 / D Phi^T E[eps x^T] = -2 / D E[sigma] Phi^T,
    # and the scatter of a batch is on top of it.
    mean_square = (2 / 12 * float(schedule.sigma.mean())) ** 2 * float(phi.square().mean())
    assert 1 < found.gradient**2 / mean_square < 1.15
    assert found.left(1e-3, 0).eq(1).all()
    assert found.left(1e3, 1)[-1] == 0


def test_rates_between_measured_directions_lie_on_lines() -> None:
    places = spread_ranks(9, 3)
    assert places.tolist() == [0, 4, 8]
    line = interpolate(places, torch.tensor([0.0, 4.0, 0.0]), 9)
    assert line.tolist() == [0, 1, 2, 3, 4, 3, 2, 1, 0]


def linear_model(plan: Plan, seed: int = 0, left: float = 1.0) -> LinearModel:
    generator = torch.Generator().manual_seed(seed)
    size = 5
    a = torch.randn(size, size, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    rho = left * torch.rand(size, generator=generator, dtype=torch.float64)
    return LinearModel(
        schedule=Schedule(),
        plan=plan,
        moment=a @ a.T / size,
        left=(basis * rho) @ basis.T,
        initial=0.1 * torch.eye(size, dtype=torch.float64),
    )


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x0", "score"])
@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_the_recursion_is_what_the_sampler_does(prediction: str, sampler: str) -> None:
    """The sampler is run on its inputs one by one: it is affine in start, noises and `xi`."""
    plan = Plan(prediction=prediction, steps=4, sampler=sampler)
    model = linear_model(plan, left=0.3)
    size = len(model.moment)
    levels = spread_levels(model.schedule.num_levels, plan.steps)
    predictions = {level: model.noise_prediction(level) for level in levels}

    def run(start: Tensor, noises: list[Tensor], xi: Tensor) -> Tensor:
        def denoise(x: Tensor, level: int) -> Tensor:
            gain, offset = predictions[level]
            return x @ gain.T + xi @ offset.T

        left = iter(noises)
        *_, last = SAMPLERS[sampler](model.schedule, levels, start, denoise, lambda: next(left))
        return last

    one, zero = torch.eye(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    response = run(one, [zero] * plan.steps, zero)  # rows: what becomes of each unit vector
    covariance = response.T @ response
    for step in range(plan.steps):
        noises = [one if k == step else zero for k in range(plan.steps)]
        response = run(zero, noises, zero)
        covariance += response.T @ response
    shift = run(zero, [zero] * plan.steps, one).T
    found_covariance, found_mean = model.sampled()
    torch.testing.assert_close(found_covariance, covariance)
    torch.testing.assert_close(found_mean, shift @ model.initial @ shift.T)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x0", "score"])
def test_the_loss_is_that_of_drawn_data(prediction: str) -> None:
    model = linear_model(Plan(prediction=prediction), left=0.5)
    generator = torch.Generator().manual_seed(5)
    root = torch.linalg.cholesky(model.moment)
    levels = spread_levels(model.schedule.num_levels, LOSS_LEVELS)
    per_level = []
    for level in levels:
        gain, offset = model.noise_prediction(level)
        z, eps, xi = (
            torch.randn(8000, 5, generator=generator, dtype=torch.float64) for _ in range(3)
        )
        a = float(model.schedule.abar[level])
        x = math.sqrt(a) * z @ root.T + math.sqrt(1 - a) * eps
        wrong = x @ gain.T + math.sqrt(0.1) * xi @ offset.T - eps
        per_level.append(wrong.square().mean(dim=1))
    errors = torch.stack(per_level)  # (levels, samples)
    mean = errors.mean()
    error = float((errors.var(dim=1) / errors.shape[1]).sum().sqrt()) / len(levels)
    assert abs(model.loss() - float(mean)) < 4 * error


def test_a_model_that_has_learned_everything_samples_the_data() -> None:
    """Nothing left: the loss is the least possible, and many small steps return the data's law."""
    plan = Plan(steps=1000, sampler="ddpm")
    model = linear_model(plan, left=0.0)
    covariance, mean = model.sampled()
    torch.testing.assert_close(covariance, model.moment, rtol=0.05, atol=0.05)
    assert float(mean.abs().max()) == 0
    assert model.distance() < 0.02


def test_what_is_left_of_the_noise_is_multiplied() -> None:
    """A network that predicts nothing: `x_0` is the noise over `sqrt(abar)`, 157 times as large."""
    plan = Plan(steps=1, sampler="ddim")
    model = linear_model(plan)
    untrained = LinearModel(
        schedule=model.schedule,
        plan=plan,
        moment=model.moment,
        left=torch.eye(5, dtype=torch.float64),
        initial=torch.zeros(5, 5, dtype=torch.float64),
    )
    covariance, _ = untrained.sampled()
    expected = 1 / float(model.schedule.abar[-1])
    torch.testing.assert_close(covariance, expected * torch.eye(5, dtype=torch.float64))
    assert math.sqrt(expected) == pytest.approx(157, abs=1)


def test_the_skip_leaves_nothing_linear_to_learn() -> None:
    plain, beside = (
        LinearModel.of(make_prospect(Plan(prediction="v", skip=skip, iterations=20)))
        for skip in (False, True)
    )
    assert beside.loss() < plain.loss()
    assert beside.distance() < plain.distance()


def test_longer_training_is_better() -> None:
    losses = [PREDICTORS["kernel"].predict(make_prospect(Plan(iterations=n))).loss for n in (1, 30)]
    assert losses[1] < losses[0]


def test_predictors_by_name() -> None:
    assert [p.name for p in find_predictors(["kernel", "alpha", "kernel"])] == ["kernel", "alpha"]
    assert len(find_predictors()) >= 6
    with pytest.raises(InvalidArgumentError, match="unknown predictor 'tarot'; choose from alpha"):
        find_predictors(["tarot"])
    with pytest.raises(InvalidArgumentError, match="already"):
        register_predictor("alpha", lambda prospect: Prediction.same(0.0))
    with pytest.raises(InvalidArgumentError, match="a name"):
        register_predictor("", lambda prospect: Prediction.same(0.0))


def test_misuse_is_one_clear_line() -> None:
    prospect = make_prospect()
    with pytest.raises(InvalidArgumentError, match=r"the data have shape \(3, 1, 2, 2\), expected"):
        Prospect(prospect.network, torch.zeros(3, 1, 2, 2))
    with pytest.raises(InvalidArgumentError, match="unknown prediction"):
        Plan(prediction="tea")
    with pytest.raises(InvalidArgumentError, match="choose from epsilon, score, x0, v and"):
        Plan(prediction="flow")  # which networks are probed, but not trained for
    other = sads.estimate_geometry(sads.family("cnn", (1, 2, 2), channels=4), 16)
    with pytest.raises(InvalidArgumentError, match="give the family's own"):
        Untrained(prospect.network.family, other)


def test_a_plan_with_more_steps_than_levels_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"1 to 1000 steps, .* got 1001"):
        make_prospect(Plan(steps=1001))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(), nn.Conv2d(4, 1, 1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class Detached(Dropped):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x, t).detach()


class Fixed(Dropped):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Unused(Dropped):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x + 0 * super().forward(x, t)


class Roots(Dropped):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x, t).sqrt()


class Particular(Dropped):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if x.any():
            raise ValueError("zeros only")
        return super().forward(x, t)


def test_rates_of_networks_that_draw_numbers_are_those_of_the_seed() -> None:
    family, basis = sads.family(Dropped, (1, 4, 4)), torch.eye(16, dtype=torch.float64)
    first, second = (learning_rates(family, basis, 1.0, num_networks=1).kappa for _ in range(2))
    assert torch.equal(first.values, second.values)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Detached, "learns nothing"),
        (Fixed, "learns nothing"),
        (Unused, "learns nothing"),
        (Roots, "NaN or infinity for noisy data"),
        (Particular, "cannot be evaluated for 32 noisy samples.*zeros only"),
    ],
)
def test_networks_that_have_no_rates_say_why(network: type[nn.Module], words: str) -> None:
    with pytest.raises(SadsError, match=words):
        learning_rates(sads.family(network, (1, 4, 4)), torch.eye(16, dtype=torch.float64), 1.0)
