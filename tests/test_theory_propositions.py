"""Propositions 1 to 3 on networks through estimates that impose no form, and where they fail."""

import math
from dataclasses import replace

import pytest
import torch

import sads
from sads import environment
from sads.errors import InvalidArgumentError, NotEnoughMemoryError, UndefinedGeometryError
from sads.geometry.lift import Lift
from sads.geometry.result import Geometry, Provenance
from sads.networks import DiT
from sads.theory import examples, transformer_factor
from sads.theory.propositions import token_lift

EXAMPLES = {example.name: example for example in examples()}


pytestmark = pytest.mark.usefixtures("one_thread")


def outer_product(family: sads.ScoreFamily, num_networks: int, seed: int = 0) -> Geometry:
    return sads.estimate_geometry(
        family, num_networks, seed=seed, estimator="outer-product", probe=sads.probe("gaussian")
    )


def sampled(samples: torch.Tensor, shape: tuple[int, ...], batches: int = 16) -> Geometry:
    """A geometry from vectors (N, D), in batches, as the estimator would make it."""
    parts = samples.double().chunk(batches)
    factors = torch.stack([p.T @ p / len(p) for p in parts])
    counts = torch.tensor([len(p) for p in parts])
    provenance = Provenance({"name": "made", "options": {}}, "outer-product")
    return Geometry.dense(factors, counts, Lift.trivial(samples.shape[1]), shape, provenance)


@pytest.mark.parametrize("name", EXAMPLES)
def test_networks_obey_or_break_their_proposition(name):
    example = EXAMPLES[name]
    result = sads.structure(outer_product(example.family, 2048), patch_size=example.patch_size)
    assert result[example.form].status == ("accepted" if example.holds else "rejected")
    if example.holds:
        assert result.form is result[example.form]  # and no form that says more
    else:
        assert result[example.form].residual_errors > 3


@pytest.mark.parametrize(
    ("family", "form"),
    [
        (sads.family("mlp", (1, 4, 4), width=32), "mlp"),
        (sads.family("cnn", (2, 4, 4), channels=16), "cnn"),
        (sads.family("dit", (1, 8, 8), patch_size=4, depth=1), "transformer"),
    ],
    ids=["mlp", "cnn", "dit"],
)
def test_families_of_this_package_have_their_form(family, form):
    result = sads.structure(outer_product(family, 2048, seed=1))
    assert result.form is not None
    assert result.form.name == form


def test_unet_is_no_mlp_and_no_transformer():
    geometry = outer_product(sads.family("iddpm", (1, 8, 8), channel_mults=(1,)), 512)
    result = sads.structure(geometry, patch_size=2)
    assert result["mlp"].status == result["transformer"].status == "rejected"
    assert result["cnn"].status == "vacuous"  # one channel: every matrix has this form
    assert result.form is None


def test_integrated_estimates_are_said_to_impose_the_form():
    geometry = sads.estimate_geometry(sads.family("cnn", (2, 4, 4), channels=16), 64)
    result = sads.structure(geometry)
    assert result["cnn"].status == "imposed"
    assert result["mlp"].status == "rejected"


def test_exact_geometries_are_compared_to_rounding():
    result = sads.structure(sads.estimate_geometry(sads.family("dit", (1, 8, 8))))
    assert result["transformer"].status == "accepted"
    assert result["mlp"].status == "rejected"
    assert result["transformer"].factor_errors["A"].max() == 0


def test_factors_rebuild_the_geometry():
    a = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    b = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    a, b = a @ a.T, b @ b.T
    ones = torch.ones(3, 3).double()
    truth = torch.kron(torch.eye(3).double(), a) + torch.kron(ones, b)
    provenance = Provenance({"name": "made", "options": {}}, "exact")
    counts = torch.zeros(1, dtype=torch.int64)
    geometry = Geometry.dense(truth[None], counts, Lift.trivial(12), (3, 2, 2), provenance)
    form = sads.structure(geometry)["cnn"]
    torch.testing.assert_close(form.factors["A"], a)
    torch.testing.assert_close(form.factors["B"], b)


def test_mlp_factors_of_rectified_normals():
    """z = max(0, n) has E[z^2] = 1/2 and E[z] = 1 / sqrt(2 pi): a + b = 1/2, b = 1 / (2 pi)."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40_000, 6, generator=generator).relu()
    form = sads.structure(sampled(z, (1, 6)))["mlp"]
    b = 1 / (2 * math.pi)
    assert abs(float(form.factors["b"]) - b) < 3 * float(form.factor_errors["b"])
    assert abs(float(form.factors["a"]) - (0.5 - b)) < 3 * float(form.factor_errors["a"])
    assert float(form.factor_errors["a"]) < 0.01


def test_a_form_that_holds_is_rejected_as_often_as_the_level_says():
    generator = torch.Generator().manual_seed(0)
    p_values, z = [], []
    for _ in range(400):
        normals = torch.randn(16 * 40, 8, generator=generator)
        form = sads.structure(sampled(normals, (1, 8)))["mlp"]
        p_values.append(form.p_value)
        z.append(form.residual_errors)
    shares = [sum(p <= level for p in p_values) / 400 for level in (0.5, 0.1)]
    assert shares[0] == pytest.approx(0.5, abs=3 * math.sqrt(0.25 / 400))
    assert shares[1] == pytest.approx(0.1, abs=3 * math.sqrt(0.09 / 400))
    assert abs(sum(z) / 400) < 3 / math.sqrt(400)
    assert torch.tensor(z).std() == pytest.approx(1.0, abs=0.15)


def test_token_lift_is_the_unpatchifying_of_dit():
    network = DiT((2, 4, 8), patch_size=2, hidden_size=16, num_heads=2)
    tokens = torch.arange(64.0).reshape(1, 8, 8)  # (1, T, L): token * 8 + value
    image = network.unpatchify(tokens).flatten()
    split = token_lift((2, 4, 8), 2).split(image)  # (L, T) in some order of the values
    for row in split:
        assert len((row % 8).unique()) == 1  # one value of the patch ...
        torch.testing.assert_close(row // 8, torch.arange(8.0))  # ... in every token, in order


@pytest.mark.parametrize("shared", [True, False])
def test_shared_bias_adds_ones_and_a_bias_per_token_the_identity(shared):
    """At x = 0 a DiT's features are fixed, so Equation 28 (or 29) has nothing random left."""
    name = "DiT, shared bias" if shared else "DiT, bias per token"
    family = EXAMPLES[name].family
    geometry = sads.estimate_geometry(family, 8192, estimator="outer-product")
    form = sads.structure(geometry, patch_size=4)["transformer"]
    assert form.status == "accepted"
    network = family.build()
    dit = network if shared else network.network
    assert isinstance(dit, DiT)
    h = dit.norm(dit.positions.double())  # (T, width)
    gram = (h @ h.T).reshape(4, 4)
    limit = math.sqrt(6 / sum(dit.output.weight.shape))  # Xavier-uniform
    weight = float((1 / family.schedule.sigma**2).mean())
    expected = weight * transformer_factor(gram, limit**2 / 3, 1.0, shared_bias=shared)
    deviation = (form.factors["A"] - expected).abs() / form.factor_errors["A"]
    assert deviation.max() < 4  # ten entries
    other = weight * transformer_factor(gram, limit**2 / 3, 1.0, shared_bias=not shared)
    assert ((form.factors["A"] - other).abs() / form.factor_errors["A"]).max() > 10


def test_bias_per_token_changes_no_direction_and_a_shared_one_does():
    h = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)).double()
    h = h @ h.T
    bare, own, shared = (
        torch.linalg.eigh(transformer_factor(h, 1.0, b, shared_bias=s))
        for b, s in ((0.0, True), (2.0, False), (2.0, True))
    )
    torch.testing.assert_close(own.eigenvalues, bare.eigenvalues + 2)
    overlap = (own.eigenvectors * bare.eigenvectors).sum(dim=0).abs()
    torch.testing.assert_close(overlap, torch.ones(5).double())
    assert (shared.eigenvectors * bare.eigenvectors).sum(dim=0).abs().min() < 0.9
    assert shared.eigenvalues.sum() == pytest.approx(float(bare.eigenvalues.sum() + 10))


def test_transformer_geometry_has_at_most_as_many_eigenvalues_as_tokens():
    geometry = sads.estimate_geometry(sads.family("dit", (1, 8, 8), patch_size=4))
    values = torch.linalg.eigvalsh(geometry.matrix())
    assert len(torch.unique((values / values.max()).round(decimals=9))) <= 4


def test_refusals():
    few = sads.estimate_geometry(sads.family("mlp", (1, 4)), 8, estimator="outer-product")
    with pytest.raises(InvalidArgumentError, match="16 networks or more"):
        sads.structure(few)
    zero = sampled(torch.zeros(32, 4), (1, 4))
    with pytest.raises(UndefinedGeometryError):
        sads.structure(zero)
    some = sampled(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), (1, 2, 2))
    with pytest.raises(InvalidArgumentError, match="patch_size must divide"):
        sads.structure(some, patch_size=3)
    with pytest.raises(InvalidArgumentError, match="give patch_size"):
        sads.structure(some)["transformer"]


@pytest.mark.parametrize("patch_size", [3, [2, 2], 0])
def test_an_option_that_cuts_nothing_up_is_no_patch_size(patch_size):
    """Somebody's network may call anything so; that form is not tried then."""
    geometry = sampled(torch.randn(32, 16, generator=torch.Generator().manual_seed(0)), (1, 4, 4))
    provenance = replace(geometry.provenance, family={"options": {"patch_size": patch_size}})
    forms = sads.structure(replace(geometry, provenance=provenance)).forms
    assert {form.name for form in forms} == {"mlp", "cnn"}


def test_factors_of_transformers_are_of_square_matrices():
    for gram, variance in (
        (torch.ones(2, 3), 1.0),
        (torch.full((2, 2), math.nan), 1.0),
        (torch.eye(2), -1.0),
    ):
        with pytest.raises(InvalidArgumentError):
            transformer_factor(gram, variance, 1.0)


def test_matrices_that_cannot_be_held_are_refused(monkeypatch):
    """A geometry keeps a factor of the positions, a test compares all coordinates."""
    family = sads.family("cnn", (96, 4, 4), channels=4, depth=1)
    geometry = sads.estimate_geometry(family, 16)
    monkeypatch.setattr(environment, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(environment, "used_memory", lambda: 0)
    with pytest.raises(NotEnoughMemoryError, match="1,536 x 1,536"):
        sads.structure(geometry)
