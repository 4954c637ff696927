"""Theorem 2: against dense matrices, random rotations, and resampling."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sads
from cases import one_set_up
from sads.errors import InvalidArgumentError, RotationFileError, UndefinedGeometryError
from sads.files import to_json
from sads.from_json import decode, infinite_again
from sads.geometry.lift import Lift
from sads.geometry.result import Geometry, Provenance
from sads.rotations.alignment import Alignment
from sads.rotations.alignment_file import Portrait, load_portrait
from sads.rotations.kinds import Kind

PROVENANCE = Provenance({"name": "made", "options": {}}, "exact")
SPECTRA = {
    "distinct": [5.0, 3.0, 2.0, 1.0, 0.5, 0.1],
    "repeated": [4.0, 4.0, 4.0, 1.0, 1.0, 0.2],
    "flat": [1.0] * 6,
    "rank two": [3.0, 1.0, 0.0, 0.0, 0.0, 0.0],
}


pytestmark = pytest.mark.usefixtures("one_thread")


def orthogonal(count: int, size: int, seed: int) -> torch.Tensor:
    """Haar-distributed, (count, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(count, size, size, generator=generator).double())
    return q * r.diagonal(dim1=1, dim2=2).sign()[:, None]


def made(values: list[float], groups: int = 1, seed: int = 0) -> Geometry:
    """An exact geometry with a factor of these eigenvalues and a scrambled lift."""
    size = len(values)
    u = orthogonal(1, size, seed)[0]
    factor = u @ torch.tensor(values, dtype=torch.float64).diag() @ u.T
    order = torch.randperm(groups * size, generator=torch.Generator().manual_seed(seed))
    lift = Lift(groups, size, order)
    shape = (groups, size)
    return Geometry.dense(factor[None], torch.zeros(1, dtype=torch.int64), lift, shape, PROVENANCE)


def samples(values: list[float], count: int = 50, seed: int = 1) -> torch.Tensor:
    """Data whose sample second moment has exactly these eigenvalues, (count, D)."""
    size = len(values)
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(count, size, generator=generator).double())
    v = orthogonal(1, size, seed)[0]
    return math.sqrt(count) * q @ torch.tensor(values, dtype=torch.float64).sqrt().diag() @ v.T


def dense_alpha(geometry: Geometry, x: torch.Tensor) -> float:
    rows = x.double().flatten(1)
    return float(((rows @ geometry.matrix()) * rows).sum(dim=1).mean())


@pytest.mark.parametrize("of_geometry", SPECTRA)
@pytest.mark.parametrize("of_data", SPECTRA)
def test_no_random_rotation_beats_the_extremes(of_geometry, of_data):
    geometry, x = made(SPECTRA[of_geometry]), samples(SPECTRA[of_data])
    result = sads.alignment(geometry, x)
    moment = x.T @ x / len(x)
    w = orthogonal(10_000, 6, seed=2)
    alphas = torch.einsum("nij,ji->n", w.mT @ geometry.matrix() @ w, moment)
    slack = 1e-12 * result.maximum
    assert float(alphas.min()) >= result.minimum - slack
    assert float(alphas.max()) <= result.maximum + slack


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 9.0]), min_size=8, max_size=8),
    st.integers(0, 1000),
)
def test_extremes_are_sorted_sums_and_are_reached(of_factor, of_data, seed):
    if not any(of_factor):
        of_factor = [1.0, *of_factor[1:]]
    geometry, x = made(of_factor, groups=2, seed=seed), samples(of_data, seed=seed)
    values = sorted(of_factor * 2, reverse=True)
    moments = sorted(of_data, reverse=True)
    result = sads.alignment(geometry, x)
    scale = max(values) * max(max(moments), 1.0)
    maximum = sum(a * b for a, b in zip(values, moments, strict=True))
    minimum = sum(a * b for a, b in zip(values, reversed(moments), strict=True))
    assert result.maximum == pytest.approx(maximum, abs=1e-8 * scale)
    assert result.minimum == pytest.approx(minimum, abs=1e-8 * scale)
    for kind, reached in (("min", minimum), ("max", maximum)):
        rotation = sads.rotation(geometry, x, kind)
        assert rotation.alpha == pytest.approx(reached, abs=1e-8 * scale)
        assert dense_alpha(geometry, rotation.apply(x)) == pytest.approx(reached, abs=1e-8 * scale)


KINDS = [
    "min",
    "max",
    "identity",
    "random:0",
    "random:7",
    "share:0",
    "share:0.3",
    "share:1",
    "partial:0",
    "partial:0.5",
    "partial:1",
]


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_is_an_orthogonal_matrix_and_undo_inverts_it(kind):
    geometry, x = made([3.0, 2.0, 1.0], groups=2), samples([4.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    rotation = sads.rotation(geometry, x, kind)
    w = rotation.matrix()
    torch.testing.assert_close(w @ w.T, torch.eye(6).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(rotation.apply(x), x @ w.T)
    torch.testing.assert_close(rotation.undo(rotation.apply(x)), x)
    images = x.float().reshape(-1, 2, 3)
    assert rotation.apply(images).dtype == torch.float32
    assert rotation.apply(images).shape == images.shape


@pytest.mark.parametrize("dimension", [(1, 6), (3, 2), (1, 7), (3, 3)])  # groups and size
@pytest.mark.parametrize("kind", KINDS)
def test_reported_alpha_is_that_of_the_rotated_data(kind, dimension):
    groups, size = dimension
    values = [float(2.0**-i) for i in range(size)]
    geometry, x = made(values, groups), samples([1.5**-i for i in range(groups * size)])
    rotation = sads.rotation(geometry, x, kind)
    z = rotation.apply(x)
    measured = sads.alignment(geometry, z)
    assert dense_alpha(geometry, z) == pytest.approx(rotation.alpha, rel=1e-10)
    assert measured.alpha == pytest.approx(rotation.alpha, rel=1e-10)
    assert measured.alpha.error == pytest.approx(rotation.alpha.error, rel=1e-8)


@pytest.mark.parametrize("dimension", [6, 7])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_share_stands_where_it_says(share, dimension):
    geometry = made([float(2.0**-i) for i in range(dimension)])
    x = samples([1.5**-i for i in range(dimension)])
    both = sads.pair(geometry, x)
    before, after = both.alignment(), both.rotation(f"share:{share}")
    between = before.minimum + share * (before.maximum - before.minimum)
    assert after.alpha == pytest.approx(between, rel=1e-12)
    assert sads.alignment(geometry, after.apply(x)).share == pytest.approx(share, abs=1e-10)


def test_partial_exchanges_the_outermost_pairs():
    """Against the sum over a permutation written out, and monotone on the way."""
    of_geometry, of_data = [6.0, 5.0, 3.0, 2.5, 2.0, 1.0, 0.5], [9.0, 4.0, 3.5, 1.0, 0.6, 0.3, 0.1]
    both = sads.pair(made(of_geometry), samples(of_data))
    orders = {
        0.0: [0, 1, 2, 3, 4, 5, 6],
        0.34: [6, 1, 2, 3, 4, 5, 0],
        0.67: [6, 5, 2, 3, 4, 1, 0],
        1.0: [6, 5, 4, 3, 2, 1, 0],
    }
    alphas = []
    for fraction, order in orders.items():
        expected = sum(a * of_data[j] for a, j in zip(of_geometry, order, strict=True))
        alphas.append(both.rotation(f"partial:{fraction}").alpha)
        assert alphas[-1] == pytest.approx(expected, rel=1e-10)
    assert alphas == sorted(alphas, reverse=True)


def test_geometry_error_of_a_rotation_is_that_of_the_rotated_data():
    """A share rotation correlates coordinates, which the batches of a geometry see."""
    geometry = sads.estimate_geometry(sads.family("cnn", (3, 3, 3)), 64, estimator="outer-product")
    x = torch.randn(200, 27, generator=torch.Generator().manual_seed(0)).double()
    for kind in ("share:0.4", "random:3", "min"):
        rotation = sads.rotation(geometry, x, kind)
        again = sads.alignment(geometry, rotation.apply(x))
        assert rotation.alpha.error == pytest.approx(again.alpha.error, rel=1e-8)


@pytest.mark.parametrize("count", [50, 4], ids=["many samples", "fewer than coordinates"])
@pytest.mark.parametrize("kind", ["min", "max", "share:0.3"])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_a_rotation_does_not_depend_on_what_lapack_chooses(spectrum, kind, count, monkeypatch):
    """Signs, and bases of equal eigenvalues: one machine's rotation is undone on another."""
    geometry, x = made(SPECTRA[spectrum]), samples(SPECTRA["repeated"], count=50)[:count]
    expected = sads.rotation(geometry, x, kind).matrix()
    eigh, seeds = torch.linalg.eigh, iter(range(100))

    def another(matrix):
        values, vectors = eigh(matrix)
        ends = torch.nonzero(values.diff() > 1e-9).flatten() + 1
        spans = vectors.tensor_split(ends, dim=1)
        turned = [s @ orthogonal(1, s.shape[1], next(seeds))[0] for s in spans]
        return values, torch.cat(turned, dim=1)

    monkeypatch.setattr(torch.linalg, "eigh", another)
    found = sads.rotation(geometry, x, kind).matrix()
    assert next(seeds) > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_random_rotations_are_uniform():
    """Haar: entries have mean 0 and mean square 1/D, and det is of either sign."""
    geometry, x = made([2.0, 1.0, 1.0, 0.5]), samples([4.0, 3.0, 2.0, 1.0])
    both = sads.pair(geometry, x)
    rotations = [both.rotation(f"random:{seed}") for seed in range(400)]
    w = torch.stack([r.matrix() for r in rotations])
    # 16 entries, 4 standard errors of a mean and of a mean square
    assert w.mean(dim=0).abs().max() < 4 / math.sqrt(4 * 400)
    assert (w.square().mean(dim=0) - 0.25).abs().max() < 4 * math.sqrt(0.0625 / 400)
    assert 0.4 < (torch.linalg.det(w) > 0).double().mean() < 0.6
    # E[alpha] = tr(G) tr(C) / D
    alphas = torch.tensor([r.alpha for r in rotations])
    error = float(alphas.std()) / math.sqrt(400)
    assert float(alphas.mean()) == pytest.approx(4.5 * 10 / 4, abs=4 * error)


def test_rotation_in_place_and_of_other_types():
    geometry, x = made([3.0, 2.0, 1.0], groups=2), samples([4.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    rotation = sads.rotation(geometry, x, "min")
    expected = rotation.apply(x)
    y = x.clone()
    assert rotation.apply(y, out=y) is y
    assert torch.equal(y, expected)
    torch.testing.assert_close(rotation.undo(y, out=y), x)
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        rotation.apply(x, out=torch.empty(6, 50).T)
    half = rotation.apply(x.to(torch.bfloat16).reshape(-1, 2, 3))
    assert (half.dtype, half.shape) == (torch.bfloat16, (50, 2, 3))


def test_a_pairing_finds_eigenvectors_once(monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: calls.append(len(m)) or eigh(m))
    both = sads.pair(made([3.0, 2.0, 1.0], groups=2), samples([4.0, 3.0, 2.0, 1.0, 0.5, 0.2]))
    both.alignment()
    for kind in KINDS:
        both.rotation(kind)
    assert sorted(calls) == [3, 6, 6, 6]  # of the geometry, of the data and of their halves


def test_spectrum_adds_up_to_the_energy_and_to_alpha():
    geometry = made([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], groups=2)
    x = torch.randn(300, 12, generator=torch.Generator().manual_seed(0)).double()
    both = sads.pair(geometry, x)
    spectrum = both.spectrum()
    assert float(spectrum.energies.sum()) == pytest.approx(float(x.square().sum() / 300))
    assert float(spectrum.energies @ spectrum.values) == pytest.approx(both.alignment().alpha)
    assert float(spectrum.shares.values.sum()) == pytest.approx(1.0)
    # white noise: every direction has its share, within the errors (10 of them)
    expected = torch.bincount(torch.arange(12) * 10 // 12, minlength=10) / 12
    assert ((spectrum.shares.values - expected).abs() <= 4 * spectrum.shares.errors).all()


@pytest.mark.parametrize(
    "kind",
    [
        "random",
        "random:-1",
        "random:x",
        f"random:{2**64}",
        "share:1.1",
        "share:",
        "min:1",
        "partial:nan",
        "Min",
        "",
    ],
)
def test_unknown_rotations_are_refused_in_one_line(kind):
    with pytest.raises(InvalidArgumentError, match=r"unknown rotation .* choose min, max") as error:
        sads.rotation(made([2.0, 1.0]), torch.eye(2), kind)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("Min", 0),
        ("min", 0.5),
        ("share", 1.5),
        ("share", math.nan),
        ("random", 0.5),
        ("random", -1),
    ],
)
def test_kinds_are_checked_when_they_are_made(name, number):
    with pytest.raises(InvalidArgumentError):
        Kind(name, number)


def test_every_bit_of_a_seed_counts():
    """PyTorch's generators look at 32 of them."""
    geometry, x = made([2.0, 1.0]), samples([4.0, 3.0])
    seeds = (5, 5 + 2**32, 5 + 2**63)
    matrices = [sads.rotation(geometry, x, f"random:{seed}").matrix() for seed in seeds]
    assert not torch.equal(matrices[0], matrices[1])
    assert not torch.equal(matrices[1], matrices[2])
    assert sads.rotation(geometry, x, f"random:{seeds[2]}").kind == f"random:{seeds[2]}"


def test_theorem_2_with_dense_eigenvectors():
    """W_min = U R V^T and W_max = U V^T by the letter, on an estimated, lifted geometry."""
    geometry = sads.estimate_geometry(sads.family("cnn", (3, 4, 4)), 64)
    x = torch.randn(200, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    u = torch.linalg.eigh(geometry.matrix()).eigenvectors.flip(1)
    rows = x.double().flatten(1)
    v = torch.linalg.eigh(rows.T @ rows / len(rows)).eigenvectors.flip(1)
    reverse = torch.eye(48).double().flip(0)
    result = sads.alignment(geometry, x)
    for w, expected in ((u @ reverse @ v.T, result.minimum), (u @ v.T, result.maximum)):
        assert dense_alpha(geometry, rows @ w.T) == pytest.approx(expected, rel=1e-8)


def test_fewer_samples_than_coordinates():
    geometry, x = made([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]), samples(SPECTRA["distinct"], 50)[:3]
    result = sads.alignment(geometry, x)
    moments = torch.linalg.eigvalsh(x.T @ x / 3).flip(0).clamp(min=0)
    values = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]).double()
    assert result.maximum == pytest.approx(float(values @ moments), rel=1e-10)
    assert result.minimum == pytest.approx(float(values.flip(0) @ moments), rel=1e-10)
    rotation = sads.rotation(geometry, x, "min")
    assert dense_alpha(geometry, rotation.apply(x)) == pytest.approx(result.minimum, rel=1e-8)
    torch.testing.assert_close(
        rotation.matrix() @ rotation.matrix().T, torch.eye(6).double(), atol=1e-12, rtol=0
    )


def test_single_sample_duplicates_and_constant_pixels():
    geometry = made([4.0, 3.0, 2.0, 1.0])
    one = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    single = sads.alignment(geometry, one)
    assert (single.minimum, single.maximum) == (pytest.approx(6.0), pytest.approx(24.0))
    assert single.alpha.error == math.inf
    copies = sads.alignment(geometry, one.repeat(7, 1))
    assert copies.alpha == pytest.approx(single.alpha)
    assert copies.minimum == pytest.approx(6.0)
    assert copies.data_error == pytest.approx(0.0, abs=1e-12)
    constant = torch.ones(20, 4)
    constant[:, 0] = torch.randn(20, generator=torch.Generator().manual_seed(0))
    result = sads.alignment(geometry, constant)
    assert result.alpha == pytest.approx(dense_alpha(geometry, constant))
    assert result.minimum <= result.alpha <= result.maximum


def test_share_is_undefined_where_no_rotation_matters():
    result = sads.alignment(made([2.0, 2.0, 2.0]), samples([3.0, 2.0, 1.0]))
    assert math.isnan(result.share)
    assert result.minimum == pytest.approx(result.maximum)
    assert math.isnan(sads.alignment(made([2.0, 1.0]), torch.zeros(5, 2)).share)


def test_share_is_zero_and_one_at_the_extremes():
    geometry, x = made(SPECTRA["distinct"]), samples(SPECTRA["distinct"])
    for kind, share in (("min", 0.0), ("max", 1.0)):
        rotated = sads.rotation(geometry, x, kind).apply(x)
        assert sads.alignment(geometry, rotated).share == pytest.approx(share, abs=1e-10)


def test_data_errors_match_the_spread_over_fresh_samples():
    geometry = made([4.0, 2.0, 1.0])
    spread = torch.tensor([2.0, 1.0, 0.5])
    generator = torch.Generator().manual_seed(0)
    results = [
        sads.alignment(geometry, torch.randn(500, 3, generator=generator) * spread)
        for _ in range(400)
    ]
    for name in ("alpha", "minimum", "maximum", "share"):
        values = torch.tensor([getattr(r, name) for r in results])
        claimed = torch.tensor([getattr(r, name).error for r in results]).mean()
        # the spread of a standard deviation from 400 repeats is 1 / sqrt(800), and kurtosis
        assert float(values.std() / claimed) == pytest.approx(1.0, abs=4 / math.sqrt(800))


def test_geometry_errors_match_the_spread_over_fresh_networks():
    x = torch.randn(300, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    family = sads.family("cnn", (3, 3, 3), channels=8, depth=1)
    with one_set_up():
        geometries = [
            sads.estimate_geometry(family, 256, seed=s, estimator="outer-product")
            for s in range(60)
        ]
    results = [sads.alignment(geometry, x) for geometry in geometries]
    values = torch.tensor([r.alpha for r in results])
    claimed = torch.tensor([r.geometry_error for r in results]).square().mean().sqrt()
    assert float(values.std() / claimed) == pytest.approx(1.0, abs=4 / math.sqrt(120))


def test_save_and_load(tmp_path):
    geometry, x = made([3.0, 2.0, 1.0], groups=2), samples([4.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    for kind in KINDS:
        rotation = sads.rotation(geometry, x, kind)
        loaded = sads.load_rotation(rotation.save(tmp_path / "w.safetensors"))
        assert torch.equal(loaded.apply(x), rotation.apply(x))
        assert (loaded.kind, loaded.shape, loaded.alpha) == (kind, (2, 3), rotation.alpha)
        assert loaded.provenance.data.num_samples == 50
        assert loaded.provenance.geometry["family"]["name"] == "made"


def test_damaged_rotation_files_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(RotationFileError, match="no file"):
        sads.load_rotation(path)
    path.write_bytes(b"nothing")
    with pytest.raises(RotationFileError, match="cannot be read"):
        sads.load_rotation(path)
    geometry = made([1.0, 2.0])
    geometry.save(path)
    with pytest.raises(RotationFileError, match="not a rotation"):
        sads.load_rotation(path)


def test_refusals():
    geometry = made([2.0, 1.0])
    with pytest.raises(InvalidArgumentError, match=r"expected \(N, 1, 2\) or \(N, 2\)"):
        sads.alignment(geometry, torch.ones(5, 3))
    with pytest.raises(InvalidArgumentError, match="NaN"):
        sads.alignment(geometry, torch.tensor([[1.0, math.nan]]))
    with pytest.raises(InvalidArgumentError, match="floating point"):
        sads.alignment(geometry, torch.ones(5, 2, dtype=torch.uint8))
    with pytest.raises(InvalidArgumentError, match="choose min"):
        sads.rotation(geometry, torch.ones(5, 2), "best")
    with pytest.raises(UndefinedGeometryError, match="geometry is 0"):
        sads.alignment(made([0.0, 0.0]), torch.ones(5, 2))


def test_large_data_are_read_in_chunks_without_a_dense_geometry(monkeypatch):
    monkeypatch.setattr(
        sys.modules["sads.rotations.rotation"], "CHUNK_BYTES", 8 * 48 * 7
    )  # 7 samples at a time
    monkeypatch.setattr(Lift, "dense", None)  # any use of it fails
    geometry = made([4.0, 3.0, 2.0, 1.0] * 4, groups=3)
    x = torch.randn(101, 48, generator=torch.Generator().manual_seed(0))
    rotation = sads.rotation(geometry, x, "min")
    again = sads.alignment(geometry, rotation.apply(x.double()))
    assert again.alpha == pytest.approx(rotation.alpha, rel=1e-8)
    assert again.share == pytest.approx(0.0, abs=1e-10)


def few(num_samples: int, spectrum: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_samples, len(spectrum), generator=generator).double() * spectrum.sqrt()


DIMENSION = 24
RANKS = torch.arange(1.0, DIMENSION + 1).double()
LAWS = {"steep": RANKS**-1.5, "white": torch.ones(DIMENSION).double(), "exp": (-RANKS / 3).exp()}


@pytest.mark.parametrize("ratio", [0.5, 1, 3, 10])
@pytest.mark.parametrize("law", LAWS)
def test_errors_of_the_extremes_cover_the_truth_however_few_the_samples(law, ratio):
    """Known covariances, N = ratio D: within 2 errors in 95 % of samples at least.

    Of 100, as errors are cautious: an exact 95 % would fall below every second time.
    """
    values, spectrum = RANKS**-1, LAWS[law]
    geometry = made(values.tolist())
    minimum, maximum = float(values @ spectrum.flip(0)), float(values @ spectrum)
    alpha = float(geometry.matrix().diagonal() @ spectrum)
    truth = {"minimum": minimum, "maximum": maximum}
    if law != "white":
        truth["share"] = (alpha - minimum) / (maximum - minimum)
    results = [
        sads.alignment(geometry, few(round(ratio * DIMENSION), spectrum, seed))
        for seed in range(100)
    ]
    for name, expected in truth.items():
        estimates = [getattr(r, name) for r in results]
        covered = sum(abs(e - expected) <= 2 * e.error for e in estimates)
        assert covered >= 95, (name, covered)
    lean = torch.tensor([r.minimum.value - minimum for r in results])
    held_out = torch.tensor([r.held_out_minimum.value - minimum for r in results])
    assert lean.mean() < 2 * lean.std() / 10  # the truth is between the two, on average
    assert held_out.mean() > -2 * held_out.std() / 10
    assert all(r.few_samples == (ratio < 10) for r in results)


def test_held_out_minimum_is_alpha_of_the_rotation_on_new_samples():
    """A rotation found on n samples, on fresh ones: what halves of 2 n samples say of it."""
    geometry, spectrum = made((RANKS**-1).tolist()), LAWS["steep"]
    said, reached = [], []
    for seed in range(60):
        said.append(sads.alignment(geometry, few(60, spectrum, seed)).held_out_minimum)
        rotation = sads.rotation(geometry, few(30, spectrum, 1000 + seed), "min")
        fresh = few(2000, spectrum, 5000 + seed)
        reached.append(dense_alpha(geometry, rotation.apply(fresh)))
        assert reached[-1] > rotation.alpha
    said, reached = torch.tensor(said), torch.tensor(reached)
    error = math.hypot(float(said.std()), float(reached.std())) / math.sqrt(60)
    assert abs(float(said.mean() - reached.mean())) < 3 * error


@pytest.mark.parametrize("chosen", [slice(0, 200), slice(0, 400, 2)], ids=["sorted", "in turns"])
def test_halves_are_random_so_that_the_order_of_classes_does_not_matter(chosen):
    geometry, spectrum = made((RANKS**-1).tolist()), LAWS["steep"]
    x = few(400, spectrum, 0)
    x[chosen, 0] += 10  # two classes
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    ordered, shuffled = sads.alignment(geometry, x), sads.alignment(geometry, x[order])
    assert ordered.held_out_maximum == pytest.approx(shuffled.held_out_maximum, rel=0.01)
    assert ordered.held_out_minimum == pytest.approx(shuffled.held_out_minimum, rel=0.1)


def test_digest_is_the_one_that_training_records():
    x = torch.randn(300, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    both = sads.pair(made([1.0, 0.5, 0.25, 0.1], groups=4), x)
    model = sads.train(
        sads.family("mlp", (1, 4, 4), width=4), x.float(), iterations=1, batch_size=8, seed=0
    )
    provenance = model.provenance
    data = provenance["data"] if isinstance(provenance, dict) else provenance.data
    assert both.digest == data


def test_files_of_rotations_written_before_estimates_are_read(tmp_path):
    """Their metadata held alpha and its error as two numbers, as it does now."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    geometry, x = made([3.0, 2.0, 1.0], groups=2), samples([4.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    path = sads.rotation(geometry, x, "min").save(tmp_path / "w.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    metadata["alpha"] = "[1.5, 0.25]"
    save_file(tensors, tmp_path / "old.safetensors", metadata)
    old = sads.load_rotation(tmp_path / "old.safetensors")
    assert (old.alpha.value, old.alpha.error) == (1.5, 0.25)


def test_no_share_is_nan_percent():
    everywhere = sads.estimate_geometry(sads.family("mlp", shape=(1, 4)), 16)
    assert "alike" in sads.alignment(everywhere, torch.randn(20, 1, 4)).describe()["share"]


def test_errors_that_nobody_knows_are_shown_alike_before_and_after_they_were_kept(
    tmp_path: Path,
) -> None:
    """Of four networks, whose spread says too little: `± ?` everywhere, and nowhere a number."""
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 4, 4)), 4)
    x = torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    both = sads.pair(geometry, x)
    found = both.alignment()
    shown = found.describe()
    assert shown["alpha"].endswith(" ± ?")
    assert shown["  from the geometry"] == "± ?"
    assert shown["share"].endswith("% ± ?")
    single = sads.alignment(geometry, x[:1]).describe()
    assert single["  on held-out samples"] == "not known"
    assert "nan" not in str(single)
    read = infinite_again(decode(Alignment, json.loads(to_json(found))))
    assert read.describe() == shown
    portrait = Portrait.of(both, "noise", "min")
    kept = load_portrait(portrait.save(tmp_path / "p.safetensors"))
    assert list(map(str, kept.alphas.values())) == list(map(str, portrait.alphas.values()))
    assert kept.alignment.describe() == shown
