"""Geometries as objects: files, merging, energies, directions and their certificate."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import Tensor, nn

import sads
from cases import one_set_up, small_family
from sads.errors import GeometryFileError, InvalidArgumentError, MergeError, OutputError
from sads.geometry.dense import Dense
from sads.geometry.directions import find_directions
from sads.geometry.eigenbasis import Spread
from sads.geometry.lift import Lift
from sads.geometry.summary import command_of
from sads.networks import MLP


@pytest.fixture(scope="module")
def geometry() -> sads.Geometry:
    return sads.estimate_geometry(small_family("cnn"), 64, seed=1)


def test_files_give_back_the_same_geometry(geometry: sads.Geometry, tmp_path: Path) -> None:
    loaded = sads.load_geometry(geometry.save(tmp_path / "new folder" / "g.safetensors"))
    assert torch.equal(loaded.factors, geometry.factors)
    assert torch.equal(loaded.matrix(), geometry.matrix())
    assert loaded.provenance == geometry.provenance
    assert loaded.shape == geometry.shape
    assert loaded.num_networks == 64


def test_options_that_json_does_not_have_are_kept_by_their_names(tmp_path: Path) -> None:
    class Activation:
        pass

    given = {
        "kind": nn.ReLU,
        "of": {"f": torch.tanh, "sizes": {3, 1, 2}, "type": torch.float32},
        "object": Activation(),
        "z": 1j,
        "half": "\ud800",
    }
    family = sads.family(lambda **_: nn.Linear(1, 1), (1,), **given)
    assert family.describe()["options"]["of"]["type"] == "torch.float32"
    assert family.describe()["options"]["object"].endswith("Activation")
    family = sads.family(lambda **_: MLP((2,), width=2, depth=1), (2,), **given)
    first, second = (sads.estimate_geometry(family, 16, seed=seed) for seed in (1, 2))
    loaded = sads.load_geometry(first.save(tmp_path / "g.safetensors"))
    assert loaded.provenance == first.provenance
    assert loaded.merge(second).num_networks == 32


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    family = sads.family(lambda: MLP((2,), width=2, depth=1), (2,))
    one = sads.estimate_geometry(family, 16)
    large = replace(one, moments=replace(one.moments, factors=1e61 * one.factors))
    with pytest.raises(InvalidArgumentError, match="a file holds those up to 1e\\+60; scale"):
        large.save(tmp_path / "g.safetensors")
    with pytest.raises(InvalidArgumentError, match="a shape is 1 to 8 positive whole numbers"):
        sads.family("mlp", (1,) * 9)


def test_damaged_and_foreign_files_are_refused(geometry: sads.Geometry, tmp_path: Path) -> None:
    path = geometry.save(tmp_path / "g.safetensors")
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\x03\x04 something else", content[8:]):
        path.write_bytes(damaged)
        with pytest.raises(GeometryFileError, match="damaged or another"):
            sads.load_geometry(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(GeometryFileError, match="not a geometry written by sads"):
        sads.load_geometry(path)
    with pytest.raises(GeometryFileError, match="there is no file"):
        sads.load_geometry(tmp_path / "missing")


def test_a_failed_write_leaves_the_old_file(geometry: sads.Geometry, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        geometry.save(tmp_path / "file" / "g.safetensors")
    target = geometry.save(tmp_path / "g.safetensors")
    before = target.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.replace", _full_disk)
        with pytest.raises(OutputError, match="No space"):
            geometry.save(target)
    assert target.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "g.safetensors"]


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_only_estimates_of_one_family_merge(geometry: sads.Geometry) -> None:
    with pytest.raises(MergeError, match="different family"):
        geometry.merge(sads.estimate_geometry(small_family("cnn-1d"), 16))
    with pytest.raises(MergeError, match="different probe"):
        geometry.merge(
            sads.estimate_geometry(small_family("cnn"), 16, seed=2, probe=sads.probe("gaussian"))
        )
    with pytest.raises(MergeError, match="networks 10 to 19 of seed 1"):
        geometry.merge(sads.estimate_geometry(small_family("cnn"), 10, seed=1, first_network=10))


def test_estimates_of_sixteen_and_of_eight_batches_add_up() -> None:
    """Where memory was short there are eight: network n is in batch n modulo their number."""
    family = small_family("cnn")
    parts = [sads.estimate_geometry(family, 16, seed=3, first_network=n) for n in (0, 16)]
    first = parts[0]
    halves = first.factors.reshape(2, 8, *first.factors.shape[1:]).mean(dim=0)
    eight = replace(first, moments=Dense(halves, first.counts.reshape(2, 8).sum(dim=0), first.lift))
    whole = sads.estimate_geometry(family, 32, seed=3)
    for merged in (eight.merge(parts[1]), parts[1].merge(eight)):
        assert merged.counts.tolist() == [4] * 8
        torch.testing.assert_close(merged.factor(), whole.factor(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(
            merged.factors, whole.factors.reshape(2, 8, *halves.shape[1:]).mean(dim=0)
        )
        assert merged.errors_unknown is None


def test_estimates_of_other_forms_do_not_add_up() -> None:
    family = small_family("cnn")
    first = sads.estimate_geometry(family, 16, seed=3)
    other = sads.estimate_geometry(family, 16, seed=4)
    half = replace(other.provenance, dtype="bfloat16")
    with pytest.raises(MergeError, match="in float32 and in bfloat16 do not add up"):
        first.merge(replace(other, provenance=half))
    assert first.provenance.dtype is None  # as older files: float32
    single = replace(other.provenance, dtype="float32", notes=("slowly",))
    merged = first.merge(replace(other, provenance=single))
    assert merged.num_networks == 32
    assert "slowly" in merged.provenance.notes
    moved = replace(other.lift, order=other.lift.order.flip(0))
    with pytest.raises(MergeError, match="factors of other forms"):
        first.merge(replace(other, moments=replace(other.moments, lift=moved)))
    ten = Dense(other.factors[:10], other.counts[:10], other.lift)
    with pytest.raises(MergeError, match="16 and 10 batches"):
        first.merge(replace(other, moments=ten))


def test_energy_is_the_quadratic_form(geometry: sads.Geometry) -> None:
    v = torch.randn(geometry.dimension, dtype=torch.float64)
    estimate = geometry.energy(v)
    assert estimate.value == pytest.approx(float(v @ geometry.matrix() @ v))
    batches = torch.stack([v @ geometry.lift.dense(f) @ v for f in geometry.factors])
    relative = float(batches.std() / batches.mean()) / math.sqrt(16)
    relative *= 1 + 0.2 * float(stats.skew(batches.numpy(), bias=False)) ** 2
    upwards = estimate.value * (math.exp(relative) - 1)  # the law of a positive mean is skewed
    assert estimate.error == pytest.approx(upwards)
    for wrong in (torch.ones(3), torch.ones(4, 4, 2), torch.ones(2, 2, 4, 4)):
        with pytest.raises(InvalidArgumentError, match=r"expected \(N, 2, 4, 4\) or \(N, 32\)"):
            geometry.energy(wrong)


@pytest.mark.parametrize("chunk", [1, 96, 1 << 22])  # numbers at a time: a row, three, all
def test_quadratic_forms_are_those_of_the_dense_matrix(
    geometry: sads.Geometry, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sads.geometry.result.CHUNK", chunk)
    rows = torch.randn(7, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    flat = rows.flatten(1).double()
    forms = geometry.quadratic(rows)
    expected = torch.einsum("ni,ij,nj->n", flat, geometry.matrix(), flat)
    assert torch.allclose(forms.values, expected, rtol=1e-12)
    for form, v in zip(forms, rows, strict=True):
        energy = geometry.energy(v)
        assert (form.value, form.error) == pytest.approx((energy.value, energy.error))
    assert torch.equal(geometry.quadratic(flat).values, geometry.quadratic(flat.numpy()).values)
    assert len(geometry.quadratic(torch.empty(0, 32))) == 0
    for wrong in (torch.ones(32), torch.ones(2, 3), torch.ones(5, 4, 4, 2)):
        with pytest.raises(InvalidArgumentError, match=r"expected \(N, 2, 4, 4\) or \(N, 32\)"):
            geometry.quadratic(wrong)
    with pytest.raises(InvalidArgumentError, match="directions have finite entries"):
        geometry.quadratic(torch.full((1, 32), math.nan))


def test_numbers_that_describe_the_spectrum() -> None:
    """Against NumPy's eigenvalues of the dense matrix, with and without a null space."""
    for family, singular in ((small_family("cnn"), False), (small_family("dit"), True)):
        geometry = sads.estimate_geometry(family, 64)
        matrix = geometry.matrix().numpy()
        values = np.linalg.eigvalsh(matrix)
        kept = values[values > 1e-12 * values[-1]]
        shares = kept / kept.sum()
        assert geometry.rank == len(kept) == np.linalg.matrix_rank(matrix)
        assert (geometry.rank < geometry.dimension) == singular
        assert geometry.trace == pytest.approx(np.trace(matrix))
        assert geometry.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
        condition = math.inf if singular else pytest.approx(values[-1] / values[0])
        assert geometry.condition_number == condition


@pytest.fixture(scope="module")
def enough() -> sads.Geometry:
    """Eight batches."""
    return sads.estimate_geometry(small_family("unet"), 8, seed=3)


@pytest.mark.parametrize("num_batches", range(1, 8))
def test_few_batches_say_nothing_about_errors(num_batches: int, enough: sads.Geometry) -> None:
    """Every error is infinite alike; with eight batches every one is finite."""
    few = sads.estimate_geometry(small_family("unet"), num_batches, seed=3)
    rows = torch.eye(16)[:2]
    for geometry, infinite in ((few, True), (enough, False)):
        errors = [geometry.energy(rows[0]).error, *geometry.quadratic(rows).errors.tolist()]
        errors += [*geometry.directions().value_errors.tolist(), geometry.whitened_error()]
        errors += sads.theory.markov_bound(geometry, rows).energies.errors.tolist()
        assert {math.isinf(error) for error in errors} == {infinite}
    assert set(few.directions().rank_low.tolist()) == {0}
    assert set(few.directions().rank_high.tolist()) == {15}


def test_geometries_are_printed_in_one_line(geometry: sads.Geometry) -> None:
    assert repr(geometry) == "Geometry(cnn 2x4x4, 64 networks, integrated)"
    assert repr(geometry.lift) == "Lift(2 groups of 16)"
    shown = repr(geometry.directions())
    assert shown.startswith("Directions(2x4x4, 0 of 32 resolved to 0.1 rad, ")
    many = sads.estimate_geometry(small_family("mlp"), 1024, estimator="outer-product")
    assert str(many) == "Geometry(mlp 1x3x3, 1,024 networks, outer-product)"
    assert str(sads.estimate_geometry(small_family("dit"))) == "Geometry(dit 1x4x4, exact)"


def test_directions_are_computed_once_for_a_tolerance(geometry: sads.Geometry) -> None:
    assert geometry.directions() is geometry.directions()
    assert geometry.directions() is geometry.directions(0.1)
    assert geometry.directions(0.2) is not geometry.directions()
    assert geometry.directions(0.2).tolerance == 0.2
    more = sads.estimate_geometry(small_family("cnn"), 16, seed=2)
    assert geometry.merge(more).directions() is not geometry.directions()


def test_files_of_other_versions_are_read(geometry: sads.Geometry, tmp_path: Path) -> None:
    """They say the same as JSON with the same names; names of newer ones are left out."""
    path = geometry.save(tmp_path / "g.safetensors")
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    said = json.loads(metadata["provenance"])
    older = "family fingerprint probe estimator readout response zero_readout symmetries notes "
    older += "versions tolerance interrupted draws seconds"  # those of version 0.1.0
    assert set(said) == {*older.split(), "dtype", "processor_seconds", "memory"}
    assert said["draws"] == [[1, 0, 64]]
    assert said["symmetries"] == list(geometry.provenance.symmetries)
    metadata["provenance"] = json.dumps({**said, "phase of the moon": "full"})
    save_file(tensors, path, metadata)
    assert sads.load_geometry(path).provenance == geometry.provenance
    metadata["provenance"] = json.dumps({name: said[name] for name in older.split()})
    save_file(tensors, path, metadata)
    read = sads.load_geometry(path).provenance
    assert read == replace(geometry.provenance, processor_seconds=None, memory=0)


def test_signs_of_odd_directions_do_not_depend_on_rounding() -> None:
    """Both of their largest entries have the same size; which one is larger is rounding."""
    odd = torch.tensor([1.0, -3.0, 3.0, -1.0], dtype=torch.float64) / math.sqrt(20)
    rest = torch.linalg.qr(torch.cat([odd[:, None], torch.eye(4).double()], dim=1)).Q[:, 1:]
    values = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    for place, sign in ((1, 1), (2, 1), (1, -1), (2, -1)):
        u = odd.clone()
        u[place] *= 1 + 1e-13
        basis = torch.cat([sign * u[:, None], rest], dim=1)
        factor = (basis * values) @ basis.T
        found = Spread.of(factor.expand(16, 4, 4), torch.ones(16)).basis[:, 0]
        torch.testing.assert_close(found, -odd)


class Half(nn.Module):
    """A network that returns zeros in half of its coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        z = self.last(torch.ones(len(x), 8)) * torch.tensor([2.0, 1.0])
        return torch.cat([z, torch.zeros_like(z)], dim=1)


def test_directions_that_no_network_moves_in_are_equal() -> None:
    """More networks would not separate them: an estimate to a tolerance need not wait for that."""
    family = sads.family(Half, (4,))
    geometry = sads.estimate_geometry(family, tolerance=0.2, max_networks=1 << 14)
    assert geometry.num_networks < 1 << 12
    directions = geometry.directions()
    assert [(c.start, c.stop, c.reason) for c in directions.clusters] == [(2, 4, "equal")]
    assert directions.resolved.tolist() == [True, True, False, False]
    few = sads.estimate_geometry(family, 3).directions()  # nothing is known of zeros
    assert {c.reason for c in few.clusters} == {"unresolved"}


def test_what_is_not_determined_is_resolved_to_no_tolerance(geometry: sads.Geometry) -> None:
    """Angles that nothing is known of are a quarter turn."""
    few = sads.estimate_geometry(small_family("cnn"), 2)
    for tolerance in (math.pi / 2, 3.0, math.inf, math.nan, 0.0, -1.0):
        with pytest.raises(InvalidArgumentError, match="tolerance, an angle between 0 and pi/2"):
            few.directions(tolerance)
    assert not few.directions(1.57).resolved.any()
    old = replace(geometry, provenance=replace(geometry.provenance, tolerance=1e308))
    assert old.directions().tolerance == geometry.directions().tolerance


def test_directions_are_eigenvectors(geometry: sads.Geometry) -> None:
    directions = geometry.directions()
    vectors = directions.vectors.flatten(1)
    identity = torch.eye(geometry.dimension, dtype=torch.float64)
    assert torch.allclose(vectors @ vectors.T, identity, atol=1e-10)
    images = vectors @ geometry.matrix()
    assert torch.allclose(images, directions.values[:, None] * vectors, atol=1e-8)
    assert torch.equal(directions.preferred(2), directions.vectors[[-1, -2]])
    assert torch.equal(directions.avoided(2), directions.vectors[:2])
    for index in (0, 7, -1):
        energy, value = geometry.energy(vectors[index]), directions.eigenvalue(index)
        assert value == pytest.approx(energy)
        assert value.error >= (1 - 1e-9) * energy.error  # the bias of sample eigenvalues is in it
    with pytest.raises(InvalidArgumentError, match="from 1 to D"):
        directions.preferred(33)


def test_copies_of_a_channel_form_clusters(geometry: sads.Geometry) -> None:
    directions = geometry.directions(tolerance=1.0)
    assert not directions.resolved.any()
    covered = [i for c in directions.clusters for i in range(c.start, c.stop)]
    assert covered == list(range(32))
    assert all(len(c) % 2 == 0 for c in directions.clusters)
    cluster = directions.cluster_of(-1)
    assert cluster is not None
    assert cluster.stop == 32


@given(groups=st.integers(1, 4), size=st.integers(1, 5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_lift_is_a_permuted_kronecker_product(groups: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(groups * size, generator=generator)
    lift = Lift(groups, size, order)
    factor = torch.randn(size, size, generator=generator)
    dense = lift.dense(factor)
    expected = torch.kron(torch.eye(groups), factor)
    assert torch.equal(dense[order][:, order], expected)
    x = torch.randn(3, groups * size, generator=generator)
    assert torch.equal(lift.join(lift.split(x)), x)
    assert torch.allclose(lift.quadratic(factor, x), ((x @ dense) * x).sum(dim=1), atol=1e-4)


def _wishart_batches(truth: Tensor, degrees: int, seed: int) -> Tensor:
    """16 independent unbiased estimates of a matrix."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.linalg.cholesky(truth)
    noise = torch.randn(16, degrees, len(truth), generator=generator, dtype=torch.float64)
    rows = noise @ root.T
    return rows.transpose(1, 2) @ rows / degrees


def _find(factors: Tensor, tolerance: float) -> sads.Directions:
    size = factors.shape[1]
    counts = torch.ones(16, dtype=torch.int64)
    found = Spread.of(factors, counts)
    return find_directions(found, counts, Lift.trivial(size), (size,), tolerance)


def test_certificate_of_a_known_spectrum() -> None:
    """Two equal eigenvalues, the others far apart: one cluster of two, certified as a plane."""
    truth = torch.diag(torch.tensor([100.0, 30.0, 10.0, 10.0, 3.0, 1.0], dtype=torch.float64))
    directions = _find(_wishart_batches(truth, 4000, seed=0), tolerance=0.05)
    assert directions.resolved.tolist() == [True, True, False, False, True, True]
    (cluster,) = directions.clusters
    assert (cluster.start, cluster.stop, cluster.reason) == (2, 4, "equal")
    assert cluster.angle_error < 0.05
    assert abs(cluster.value - 10) < 3 * cluster.value_error
    plane = directions.vectors[2:4]
    outside = plane[:, [0, 1, 4, 5]].norm(dim=1)
    assert float(outside.max()) < 3 * cluster.angle_error


def test_first_order_angles_match_what_happens() -> None:
    """Over 400 repetitions the root mean square angle is the reported one, within 10 %."""
    truth = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64))
    squares, reported = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    repetitions = 400
    for seed in range(repetitions):
        directions = _find(_wishart_batches(truth, 60, seed), tolerance=0.2)
        overlap = directions.vectors.diagonal().abs().clamp(max=1)
        squares += torch.arccos(overlap) ** 2 / repetitions
        reported += directions.angle_errors**2 / repetitions
    assert torch.allclose(squares.sqrt(), reported.sqrt(), rtol=0.1)


def _crossing_batches(degrees: int, seed: int) -> Tensor:
    """Two blocks that do not mix, as two symmetries: eigenvalues 8, 4, 2 and 4.1, 2.05, 0.5."""
    blocks = torch.tensor([[8.0, 4.0, 2.0], [4.1, 2.05, 0.5]], dtype=torch.float64)
    parts = [
        _wishart_batches(torch.diag(values), degrees, 2 * seed + i)
        for i, values in enumerate(blocks)
    ]
    return torch.stack([torch.block_diag(*batch) for batch in zip(*parts, strict=True)])


def test_the_order_of_directions_is_certified_on_its_own() -> None:
    """Directions that are sure, of which neighbours change places in a quarter of 300 estimates.

    The true rank lies among those stated; one of two close neighbours is beyond two standard
    errors on the wrong side in at most 3.2 % (Student's t, 15 degrees of freedom), and the bound
    allows three binomial standard deviations more.
    """
    truth = torch.tensor([0, 2, 4, 1, 3, 5])  # rank of every coordinate
    covered, swapped, widths = torch.zeros(3, 6)
    repetitions = 300
    for seed in range(repetitions):
        directions = _find(_crossing_batches(200, seed), tolerance=0.2)
        assert directions.resolved.all()
        rank = truth[directions.vectors.abs().argmax(dim=1)]
        covered += (directions.rank_low <= rank) & (rank <= directions.rank_high)
        swapped += rank != torch.arange(6)
        widths += directions.rank_high - directions.rank_low + 1
    assert float((covered / repetitions).min()) > 0.968 - 0.031
    assert swapped[[0, 5]].tolist() == [0, 0]
    assert float((swapped / repetitions)[1:5].min()) > 0.15
    assert (widths / repetitions)[[0, 5]].tolist() == [1, 1]
    assert float((widths / repetitions)[1:5].min()) > 1.5
    assert float((widths / repetitions).max()) <= 2


def test_more_networks_fix_the_order() -> None:
    directions = _find(_crossing_batches(50_000, 0), tolerance=0.2)
    assert directions.rank_low.tolist() == directions.rank_high.tolist() == list(range(6))


def test_what_eigenvalues_have_in_common_does_not_blur_their_order() -> None:
    """A common factor makes both uncertain by 5 %, and their ratio of 1.01 certain."""
    scale = 1 + 0.2 * torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
    factors = scale[:, None, None] * torch.diag(torch.tensor([1.01, 1.0], dtype=torch.float64))
    directions = _find(factors, tolerance=0.2)
    assert float(directions.value_errors.min()) > 0.03
    assert directions.rank_low.tolist() == directions.rank_high.tolist() == [0, 1]


def test_ranks_of_equal_eigenvalues_and_of_copies() -> None:
    """Exact: eigenvalues 3, 2, 2, 1, each once for two groups."""
    factor = torch.diag(torch.tensor([3.0, 2.0, 2.0, 1.0], dtype=torch.float64))
    lift = Lift(2, 4, torch.arange(8))
    counts = torch.zeros(1, dtype=torch.int64)
    directions = find_directions(Spread.of(factor[None], counts), counts, lift, (8,), 0.1)
    assert directions.rank_low.tolist() == [0, 0, 2, 2, 2, 2, 6, 6]
    assert directions.rank_high.tolist() == [1, 1, 5, 5, 5, 5, 7, 7]


@pytest.mark.slow
def test_standard_errors_cover_the_truth_as_often_as_they_claim() -> None:
    """100 seeds of a small network; 16 batches make Student's t with 15 degrees of freedom.

    It covers one standard error with probability 0.667 and two with 0.936. The bounds allow
    3.3 binomial standard deviations (0.155 and 0.081) for each quantity.
    """
    family, probe = small_family("cnn-1d"), sads.probe("gaussian")
    with one_set_up():
        truth = sads.estimate_geometry(family, 30_000, probe=probe, seed=1000)
        found = [sads.estimate_geometry(family, 400, probe=probe, seed=seed) for seed in range(100)]
    exact = truth.directions()
    vectors = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    energies = truth.quadratic(vectors)
    once: dict[str, list[bool]] = {}
    twice: dict[str, list[bool]] = {}
    overlaps: list[bool] = []
    previous: sads.Directions | None = None
    for geometry in found:
        directions = geometry.directions(tolerance=0.15)
        here = geometry.quadratic(vectors)
        deviations = (here.values - energies.values) / here.errors
        scores = {f"energy {i}": float(score) for i, score in enumerate(deviations)}
        for rank in (0, 1, 4, 8):
            deviation = directions.values[rank] - exact.values[rank]
            scores[f"eigenvalue {rank}"] = float(deviation / directions.value_errors[rank])
        for name, score in scores.items():
            once.setdefault(name, []).append(abs(score) < 1)
            twice.setdefault(name, []).append(abs(score) < 2)
        if previous is not None:
            both = directions.resolved & previous.resolved
            product = (directions.vectors * previous.vectors).flatten(1).sum(dim=1)
            overlap = product.abs().clamp(max=1)
            angle = torch.arccos(overlap)
            certified = torch.hypot(directions.angle_errors, previous.angle_errors)
            overlaps += (angle[both] < 2 * certified[both]).tolist()
        previous = directions
    for name in once:
        assert 0.667 - 0.155 < sum(once[name]) / 100 < 0.667 + 0.155, name
        assert sum(twice[name]) / 100 > 0.936 - 0.081, name
    assert len(overlaps) > 200
    assert sum(overlaps) / len(overlaps) > 0.9


def test_one_batch_says_nothing_about_errors() -> None:
    geometry = sads.estimate_geometry(small_family("mlp"), 1)
    directions = geometry.directions()
    assert math.isinf(geometry.energy(torch.ones(9)).error)
    assert torch.isinf(directions.value_errors).all()
    assert not directions.resolved.any()


def test_a_command_makes_the_same_geometry_or_is_none() -> None:
    def command(options: dict[str, Any], *merged: int, **given: Any) -> str | None:
        family = sads.family("mlp", shape=(1, 2, 2), width=4, depth=1, **options)
        parts = [sads.estimate_geometry(family, 16, **given)]
        parts += [sads.estimate_geometry(family, 16, first_network=n) for n in merged]
        return command_of(parts[0].merge(*parts[1:]))

    usual = "sads geometry mlp --shape 1x2x2 -o width=4 -o depth=1 --networks"
    assert command({}) == f"{usual} 16 --seed 0"
    assert command({}, 16, 32) == f"{usual} 48 --seed 0"
    assert command({}, matrix_free=True) == f"{usual} 16 --seed 0 --matrix-free"
    assert command({"schedule": "cosine"}, seed=3) == f"{usual} 16 --seed 3 --schedule cosine"
    assert command({}, first_network=16) is None
    assert command({}, 32) is None
    for schedule in (sads.Schedule("flow", shift=3.0), sads.Schedule("cosine", 50)):
        assert command({"schedule": schedule}) is None
    assert command({}, matrix_free=True, measure=torch.ones(1, 1, 2, 2)) is None


def test_what_is_zero_has_no_rank(tmp_path: Path) -> None:
    nothing = Dense(
        torch.zeros(1, 4, 4).double(), torch.zeros(1, dtype=torch.int64), Lift.trivial(4)
    )
    made = sads.estimate_geometry(sads.family(Half, (4,)), 16)
    zero = replace(made, moments=nothing)
    assert (zero.rank, zero.effective_rank, zero.condition_number) == (0, 0, math.inf)
    assert made.effective_rank > 1
