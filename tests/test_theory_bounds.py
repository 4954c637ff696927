"""The Markov bound, the landscapes of Figure 5, symmetric networks, and predictions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import sads
from sads.errors import InvalidArgumentError, NetworkError
from sads.geometry.dense import Dense
from sads.theory import (
    asymmetry,
    impulse_response,
    landscape_family,
    markov_bound,
    predict,
    symmetric_family,
    symmetrise,
)
from sads.theory.impulse import centred_impulse, symmetry_group
from sads.theory.landscape import Landscape, draw_landscapes

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def plane():
    return sads.estimate_geometry(landscape_family(), 2048, estimator="outer-product")


@pytest.fixture(scope="module")
def colored():
    return sads.estimate_geometry(sads.family("cnn", (3, 4, 4)), 64)


def test_bound_holds_for_fresh_networks_in_every_direction(plane):
    turn = torch.linspace(0, math.pi, 37).double()
    around = torch.stack([turn.cos(), turn.sin()], dim=1)
    networks = draw_landscapes(landscape_family(), 1000, seed=7)
    scores = torch.cat([n(torch.zeros(1, 2), torch.zeros(1)) for n in networks]).detach().double()
    for threshold in (0.5, 1.0, 2.0):
        bound = markov_bound(plane, around, threshold)
        observed = ((scores @ around.T).abs() >= threshold).double().mean(dim=0)
        slack = 3 * (bound.energies.errors / threshold**2 + 0.5 / math.sqrt(1000))
        assert (observed <= bound.bounds + slack).all()
        assert float(bound.energies.values.max() / bound.energies.values.min()) > 10


def test_bound_is_attained_by_a_two_point_law():
    """F = +-eta v with probability p, else 0: Markov's inequality is an equality."""
    eta, p = 2.0, 0.25

    class TwoPoint(nn.Module):
        def __init__(self):
            super().__init__()
            self.on = nn.Parameter(torch.rand(1))

        def forward(self, x, t):
            value = (self.on < p).to(x.dtype) * eta
            return torch.cat([value.reshape(1, 1), torch.zeros(1, 1)], 1).expand_as(x)

    family = sads.family(TwoPoint, shape=(2,), prediction="score")
    geometry = sads.estimate_geometry(family, 4096, estimator="outer-product")
    bound = markov_bound(geometry, torch.tensor([3.0, 0.0]), eta)
    assert abs(float(bound.bounds[0]) - p) < 3 * math.sqrt(p * (1 - p) / 4096)


def test_energies_equal_the_geometry_s_and_directions_are_normalised(colored):
    v = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    bound = markov_bound(colored, 7 * v, threshold=1.0)
    for i in range(5):
        expected = colored.energy(v[i] / v[i].norm())
        assert bound.energies[i].value == pytest.approx(expected.value, rel=1e-6)
        assert bound.energies[i].error == pytest.approx(expected.error, rel=1e-5)


def test_a_basis_and_a_redundant_set_bound_the_whole_space(colored):
    basis = torch.eye(48)
    twice = torch.cat([basis, basis])
    trace = float(colored.matrix().trace())
    for directions in (basis, twice):
        bound = markov_bound(colored, directions, threshold=1e3)
        assert bound.span_energy.value == pytest.approx(trace, rel=1e-9)
        assert bound.joint == pytest.approx(trace / 1e6, rel=1e-9)
    assert markov_bound(colored, basis, threshold=1e-3).joint == 1.0


def test_bound_prefers_the_preferred_direction(colored):
    sad = colored.directions()
    bound = markov_bound(colored, torch.cat([sad.preferred(1), sad.avoided(1)]))
    torch.testing.assert_close(bound.energies.values, sad.values[[-1, 0]], rtol=1e-9, atol=0)
    mean = float(sad.values.mean())
    assert bound.threshold == pytest.approx(3 * math.sqrt(mean))


def test_directions_that_cannot_be_used(colored):
    with pytest.raises(InvalidArgumentError, match="direction 1 has length 0"):
        markov_bound(colored, torch.stack([torch.ones(48), torch.zeros(48)]))
    with pytest.raises(InvalidArgumentError, match=r"or \(N, 48\)"):
        markov_bound(colored, torch.ones(2, 5))
    with pytest.raises(InvalidArgumentError, match="NaN"):
        markov_bound(colored, torch.full((48,), math.nan))
    with pytest.raises(InvalidArgumentError, match="above 0"):
        markov_bound(colored, torch.ones(48), threshold=0.0)


def test_landscape_s_score_is_the_gradient_of_its_log_density():
    (network,) = draw_landscapes(landscape_family(), 1, seed=0)
    network = network.double()
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(network.log_density(x).sum(), x)
    torch.testing.assert_close(network(x, torch.zeros(9)), expected)


def test_landscape_is_normalisable():
    (network,) = draw_landscapes(landscape_family(), 1, seed=0)
    x = torch.tensor([[100.0, 0.0], [0.0, -100.0], [70.0, 70.0]])
    bound = Landscape.amplitude * network.readout.detach().abs().sum()
    assert (network.log_density(x) <= bound - 9800 / (2 * Landscape.window**2)).all()


def test_geometry_of_landscapes_is_phi_phi_t(plane):
    """At x = 0, E[F F^T] = amplitude^2 / 2 Phi Phi^T: cos^2 of a uniform phase has mean 1/2."""
    phi = Landscape().phi.double()
    expected = Landscape.amplitude**2 / 2 * phi @ phi.T
    for v in (phi[:, 0], phi[:, 1] / phi[:, 1].norm(), torch.tensor([1.0, 0.0]).double()):
        energy = plane.energy(v)
        assert abs(energy.value - float(v @ expected @ v)) < 3 * energy.error
        assert energy.error < 0.1 * energy.value


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 1, 3, 3), (1, 1, 3, 5), (1, 2, 3, 3, 3)])
def test_symmetrised_kernels_are_symmetric_to_the_bit(shape):
    axes = len(shape) - 2
    kernel = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    given = symmetrise(kernel, axes)
    flat = given.flatten(2)
    for permutation in symmetry_group(shape[2:]):
        assert torch.equal(flat[..., permutation], flat)
    assert not torch.equal(given, kernel)


def test_symmetrising_keeps_the_variance_of_entries():
    kernels = torch.randn(20_000, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    variance = symmetrise(kernels, 2).var(dim=0)
    assert ((variance - 1).abs() < 4 * math.sqrt(2 / 20_000)).all()


def test_dihedral_group_of_the_square_has_eight_elements():
    """Against the four turns of the square and of its mirror image."""
    numbers = torch.arange(9).reshape(3, 3)
    turned = [torch.rot90(x, k) for x in (numbers, numbers.T) for k in range(4)]
    given = {tuple(permutation.tolist()) for permutation in symmetry_group((3, 3))}
    assert given == {tuple(x.flatten().tolist()) for x in turned}
    assert len(symmetry_group((3, 3, 3))) == 48  # of the cube
    assert len(symmetry_group((3, 5))) == 4


def test_nearest_resampling_is_lopsided_and_area_is_not():
    """Figure 3. The transposition is a symmetry of both."""
    nearest, area = (
        impulse_response(sads.family("iddpm", resample=r), 8, seed=0).asymmetry
        for r in ("nearest", "area")
    )
    for flip in ("flip of axis 0", "flip of axis 1"):
        assert float(nearest[flip].mean()) > 0.1
        assert float(area[flip].max()) < 1e-12
    assert float(nearest["transposition"].max()) < 1e-12
    assert float(area["transposition"].max()) < 1e-12


def test_without_symmetric_kernels_nothing_is_symmetric():
    given = impulse_response(sads.family("iddpm", resample="area"), 4, symmetric=False).asymmetry
    assert all(float(values.mean()) > 0.05 for values in given.values())


def test_symmetric_family_changes_convolutions_only():
    family = sads.family("iddpm")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = family.build().state_dict()
        torch.manual_seed(0)
        after = symmetric_family(family).build().state_dict()
    for name in before:
        same = torch.equal(before[name], after[name])
        kernel = before[name].ndim > 2 and max(before[name].shape[2:]) > 1
        assert same != kernel


def test_asymmetry_of_odd_and_even_parts():
    even = torch.tensor([[[1.0, 2.0, 1.0]]])
    odd = torch.tensor([[[1.0, 0.0, -1.0]]])
    assert float(asymmetry(even)["flip of axis 0"]) == 0
    assert float(asymmetry(odd)["flip of axis 0"]) == 1
    assert float(asymmetry(even + odd)["flip of axis 0"]) == pytest.approx(2 / 8)


def test_impulse_is_symmetric():
    for shape in ((1, 16, 16), (2, 7, 8), (1, 9)):
        impulse = centred_impulse(shape)
        for axis in range(1, len(shape)):
            assert torch.equal(impulse.flip(axis), impulse)
    assert float(centred_impulse((1, 16, 16)).sum()) == 4
    with pytest.raises(InvalidArgumentError, match="level from 0 to 999"):
        impulse_response(sads.family("iddpm"), 1, level=1000)


def test_predictions_share_out_the_trace_and_show_hard_low_frequencies():
    from sads.theory.predictions import claims

    geometry = sads.estimate_geometry(sads.family("iddpm"), 256)
    predictions = predict(geometry)
    matrix = geometry.matrix()
    for prediction in predictions.values():
        vectors = prediction.basis.vectors.double().flatten(1)
        expected = (vectors @ matrix @ vectors.T).diagonal()
        torch.testing.assert_close(prediction.energies.values, expected)
        assert float(prediction.relative.mean()) == pytest.approx(1.0)
    rows = {row.basis: row for row in claims(predictions)}
    for name in ("dct", "dst", "hadamard"):
        assert rows[name].low > 5 * rows[name].high
        assert rows[name].border is None
    assert rows["canonical"].border < 0.6 * rows["canonical"].inside
    vectors = predictions["dst"].basis  # frequencies are counted from 1 to 16
    low = [max(element.position) <= 8 for element in vectors.index]
    expected = float(predictions["dst"].relative[torch.tensor(low)].mean())
    assert rows["dst"].low == pytest.approx(expected)


def test_too_few_batches_have_an_unknown_error_everywhere():
    """With 2 to 7 batches; see `sads.estimates`."""
    family = sads.family("cnn", (1, 4, 4))
    whole = sads.estimate_geometry(family, 64)
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    for num in (2, 7, 8):
        geometry = replace(
            whole, moments=Dense(whole.factors[:num], whole.counts[:num], whole.lift)
        )
        both = sads.pair(geometry, x)
        bound = markov_bound(geometry, torch.eye(16))
        errors = [
            *bound.energies.errors,
            bound.span_energy.error,
            *(e for p in predict(geometry).values() for e in p.energies.errors),
            both.alignment().alpha.error,
            both.alignment().minimum.error,
            both.alignment().geometry_error,
            both.rotation("min").alpha.error,
            geometry.energy(x[0]).error,
        ]
        assert {math.isfinite(error) for error in errors} == {num >= 8}


def test_asymmetry_of_nothing_and_of_any_type():
    assert float(asymmetry(torch.zeros(1, 1, 4))["flip of axis 0"]) == 0
    responses = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for name, expected in asymmetry(responses).items():
        for scale in (1e-30, 1e30):
            assert torch.allclose(asymmetry(scale * responses)[name], expected)
        half = asymmetry((300 * responses).half())[name]
        assert torch.allclose(half.float(), expected, atol=1e-2)


def test_bounds_are_never_negative():
    """A single network leaves directions of which rounding makes something below 0."""
    geometry = sads.estimate_geometry(sads.family("mlp", (1, 4)), 1, estimator="outer-product")
    null = torch.linalg.eigh(geometry.matrix()).eigenvectors[:, :3].T
    assert (markov_bound(geometry, null).bounds >= 0).all()


def test_predictions_leave_out_bases_that_do_not_exist():
    geometry = sads.estimate_geometry(sads.family("mlp", (1, 6, 6)), 16)
    assert set(predict(geometry)) == {"canonical", "dct", "dst"}


def test_networks_that_cannot_be_evaluated_have_no_response():
    with pytest.raises(NetworkError, match=r"cannot be evaluated as net\(x, t\)"):
        impulse_response(sads.family(lambda: nn.Linear(3, 3), (1, 4, 4)), 1)


@pytest.mark.parametrize("normalise", [weight_norm, lambda _: nn.LazyConv2d(1, 3, padding=1)])
def test_kernels_that_are_made_of_others_are_not_said_to_be_symmetric(normalise):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = normalise(nn.Conv2d(1, 1, 3, padding=1))

        def forward(self, x, t):
            return self.conv(x)

    with pytest.raises(NetworkError, match="cannot be made symmetric"):
        impulse_response(sads.family(Normalised, (1, 4, 4)), 1)
