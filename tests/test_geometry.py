"""Geometries as objects: files, merging, energies, directions and their certificate."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sads
from cases import small_family
from sads.directions import find_directions
from sads.errors import GeometryFileError, InvalidArgumentError, MergeError, OutputError
from sads.geometry.structure import Lift


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


def test_damaged_and_foreign_files_are_refused(geometry: sads.Geometry, tmp_path: Path) -> None:
    path = geometry.save(tmp_path / "g.safetensors")
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\x03\x04 something else", content[8:]):
        path.write_bytes(damaged)
        with pytest.raises(GeometryFileError, match="damaged or another"):
            sads.load_geometry(path)
    from safetensors.torch import save_file

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


def test_energy_is_the_quadratic_form(geometry: sads.Geometry) -> None:
    v = torch.randn(geometry.dimension, dtype=torch.float64)
    estimate = geometry.energy(v)
    assert estimate.value == pytest.approx(float(v @ geometry.matrix() @ v))
    batches = torch.stack([v @ geometry.lift.dense(f) @ v for f in geometry.factors])
    assert estimate.error == pytest.approx(float(batches.std() / math.sqrt(16)))
    with pytest.raises(InvalidArgumentError, match="32 finite entries"):
        geometry.energy(torch.ones(3))


def test_directions_are_eigenvectors(geometry: sads.Geometry) -> None:
    directions = geometry.directions()
    vectors = directions.vectors.flatten(1)
    identity = torch.eye(geometry.dimension, dtype=torch.float64)
    assert torch.allclose(vectors @ vectors.T, identity, atol=1e-10)
    images = vectors @ geometry.matrix()
    assert torch.allclose(images, directions.values[:, None] * vectors, atol=1e-8)
    assert torch.equal(directions.preferred(2), directions.vectors[[-1, -2]])
    assert torch.equal(directions.avoided(2), directions.vectors[:2])
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
    assert torch.allclose(lift.multiply(factor, x), x @ dense.T, atol=1e-5)


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
    return find_directions(factors, counts, Lift.trivial(size), (size,), tolerance)


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


@pytest.mark.slow
def test_standard_errors_cover_the_truth_as_often_as_they_claim() -> None:
    """100 seeds of a small network; 16 batches make Student's t with 15 degrees of freedom.

    It covers one standard error with probability 0.667 and two with 0.936. The bounds allow
    3.3 binomial standard deviations (0.155 and 0.081) for each quantity.
    """
    family = small_family("unet-1d")
    truth = sads.estimate_geometry(family, 60_000, seed=1000)
    exact = truth.directions()
    vectors = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    once: dict[str, list[bool]] = {}
    twice: dict[str, list[bool]] = {}
    overlaps: list[bool] = []
    previous: sads.Directions | None = None
    for seed in range(100):
        geometry = sads.estimate_geometry(family, 320, seed=seed)
        directions = geometry.directions(tolerance=0.1)
        scores = {
            f"energy {i}": (geometry.energy(v).value - truth.energy(v).value)
            / geometry.energy(v).error
            for i, v in enumerate(vectors)
        }
        for rank in (0, 3, 7):
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
