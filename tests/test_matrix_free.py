"""Geometries without a matrix: their energies and both ends agree with those of matrices."""

import math
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sads
from killing import SECONDS, start
from sads import environment
from sads.errors import (
    CheckpointError,
    GeometryFileError,
    InterruptedEstimate,
    InvalidArgumentError,
    MergeError,
    NotEnoughMemoryError,
    NotKeptError,
)
from sads.geometry.matrixfree.energies import _order
from sads.geometry.matrixfree.search import Search, orthonormal
from sads.geometry.matrixfree.windows import LocalInverse, Windows
from sads.geometry.summary import describe


class Noisy(nn.Module):
    """A network whose output layer cannot be integrated out."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x, t):
        return torch.tanh(self.last(torch.relu(self.first(x) + t.reshape(-1, 1, 1, 1) / 1000)))


FAMILIES = {  # convolution and token readouts, odd sizes, three channels, lines, symmetric ones
    "iddpm": lambda: sads.family("iddpm", shape=(1, 8, 8)),
    "three channels": lambda: sads.family("cnn", shape=(3, 8, 4), channels=8),
    "odd": lambda: sads.family("cnn", shape=(1, 7, 5), channels=8),
    "tokens": lambda: sads.family("dit", shape=(2, 8, 8), patch_size=2),
    "v": lambda: sads.family("cnn", shape=(1, 8, 8), prediction="v", channels=8),
    "outer products": lambda: sads.family(Noisy, shape=(1, 8, 8)),
    "dense layer": lambda: sads.family("mlp", shape=(1, 4, 4)),
}


@pytest.fixture(scope="module")
def both():
    """Each family's geometry with matrices and without, from the same networks."""
    made = {}

    def get(name):
        if name not in made:
            family = FAMILIES[name]()
            probe = sads.probe("gaussian") if name in ("tokens", "v") else "zero"
            options = {"num_networks": 48, "seed": 1, "probe": probe}
            dense = sads.estimate_geometry(family, **options)
            made[name] = dense, sads.estimate_geometry(family, matrix_free=True, **options)
        return made[name]

    return get


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("basis", ["canonical", "dct", "haar"])
def test_energies_and_their_errors_are_those_of_matrices(both, name, basis):
    dense, free = both(name)
    if basis == "haar" and name == "odd":
        with pytest.raises(InvalidArgumentError, match="no energies of 'haar'"):
            free.basis_energies(basis)
        return
    vectors = sads.basis(basis, dense.shape).vectors
    expected = dense.quadratic(vectors)  # an independent way: D vectors and matrices
    for geometry in (dense, free):
        given = geometry.basis_energies(basis)
        torch.testing.assert_close(given.values, expected.values, rtol=2e-5, atol=1e-9)
        rounding = 1e-6 * float(expected.values.max())
        torch.testing.assert_close(given.errors, expected.errors, rtol=1e-3, atol=rounding)
    some = [0, 3, len(vectors) - 1]
    torch.testing.assert_close(
        free.quadratic(3 * vectors[some]).values, 9 * expected.values[some], rtol=2e-5, atol=1e-9
    )
    assert math.isclose(free.trace, dense.trace, rel_tol=1e-5)
    assert free.num_networks == dense.num_networks == 48


def finders_and_judges(dense):
    """The mean factors of the batches that find and of those that judge, by matrices."""
    means = []
    for part in (slice(0, 4), slice(4, 16)):
        counts = dense.counts[part].double()
        means.append((counts[:, None, None] * dense.factors[part]).sum(dim=0) / counts.sum())
    return means


@pytest.mark.parametrize("name", ["iddpm", "three channels", "odd", "tokens", "v"])
def test_both_ends_are_those_of_matrices_and_their_certificates_hold(both, name):
    dense, free = both(name)
    found_by, judged_by = finders_and_judges(dense)
    truth = torch.linalg.eigvalsh(found_by)
    top = float(truth[-1])
    for side, ordered in (("avoided", truth.flip(0)), ("preferred", truth)):
        end = free.end(side)
        assert len(end) == min(8, (len(truth) + (side == "avoided")) // 2)
        flat = dense.lift.split(end.vectors.flatten(1))[:, 0]  # (k, P)
        gram = flat @ flat.T
        torch.testing.assert_close(gram, torch.eye(len(end)).double(), atol=1e-8, rtol=0)
        # Ritz values are those of the finders' matrix, and lie inside its spectrum.
        ritz = ((flat @ found_by) * flat).sum(dim=1)
        torch.testing.assert_close(end.found, ritz, rtol=1e-4, atol=1e-7 * top)
        inside = 1e-6 * top
        if side == "preferred":
            assert (end.found >= ordered[: len(end)] - inside).all()
        else:
            assert (end.found <= ordered[: len(end)] + inside).all()
        # Residuals are true, and every Ritz value has an eigenvalue as near as they say.
        residuals = (flat @ found_by - end.found[:, None] * flat).norm(dim=1)
        torch.testing.assert_close(end.residuals, residuals, rtol=1e-2, atol=1e-6 * top)
        distances = (end.found[:, None] - truth).abs().min(dim=1).values
        assert (distances <= end.residuals + inside).all()
        # The outermost is found: this end agrees with the matrix.
        assert abs(float(end.found[0] - ordered[0])) <= 0.02 * float(ordered[0]) + inside
        # Judges measure what their own matrix says.
        energies = ((flat @ judged_by) * flat).sum(dim=1)
        torch.testing.assert_close(end.energies.values, energies, rtol=1e-4, atol=1e-7 * top)


def test_a_basis_vector_bounds_what_has_no_known_error(both):
    """The vector of every basis is chosen by finders and judged by the others."""
    dense, free = both("iddpm")
    finders, judges = finders_and_judges(dense)
    for side, pick, best in (("avoided", torch.argmax, max), ("preferred", torch.argmin, min)):
        bounds = []
        for name in ("canonical", "dct", "haar"):
            vectors = sads.basis(name, dense.shape).vectors.flatten(1)
            found, judged = (((vectors @ m) * vectors).sum(dim=1) for m in (finders, judges))
            bounds.append(float(judged[pick(found)]))
        bound = free.moments.basis_bound(side)
        assert math.isclose(bound, best(bounds), rel_tol=1e-4)
        assert math.isfinite(bound.error)
        truth = dense.end(side).energies[0]
        inside = bound - truth if side == "preferred" else truth - bound
        assert inside >= -3 * bound.error


def test_bounds_hold_for_the_truth_and_errors_cover():
    """Against a geometry of many more networks: inequalities for its eigenvalues, in every seed."""
    family = sads.family("cnn", shape=(1, 8, 8), channels=8)
    truth = sads.estimate_geometry(family, 4096, seed=99, probe=sads.probe("gaussian"))
    values = torch.linalg.eigvalsh(truth.factor())
    covered = []
    for seed in range(6):
        free = sads.estimate_geometry(
            family, 64, seed=seed, probe=sads.probe("gaussian"), matrix_free=True
        )
        energies, known = free.basis_energies("dct"), truth.basis_energies("dct")
        covered.append((energies.values - known.values).abs() <= 2.5 * energies.errors)
        for side, ordered in (("avoided", values.flip(0)), ("preferred", values)):
            bounds = free.end(side).bounds
            away = bounds.values - ordered[: len(bounds)]
            away = away if side == "preferred" else -away
            assert (away >= -3 * bounds.errors).all(), (seed, side)
            assert float(away[0].abs()) <= 0.25 * float(ordered[0])  # and they are no idle ones
    assert float(torch.stack(covered).double().mean()) > 0.9


def test_an_exact_geometry_needs_no_networks():
    family = sads.family("dit", shape=(1, 16, 16), patch_size=2)
    dense = sads.estimate_geometry(family)
    free = sads.estimate_geometry(family, matrix_free=True)
    assert free.exact
    assert free.estimator == "exact"
    expected = dense.basis_energies("dct").values
    torch.testing.assert_close(free.basis_energies("dct").values, expected, rtol=1e-9, atol=1e-9)
    end = free.end("avoided")
    assert float(end.energies.errors.abs().max()) == 0
    assert math.isclose(end.bounds[0], dense.end("avoided").energies[0], rel_tol=1e-6)


@pytest.mark.parametrize("name", ["canonical", "dct", "haar"])
@pytest.mark.parametrize("move", [lambda x: x.flip(0), lambda x: x.flip(1), lambda x: x.T])
def test_symmetries_permute_the_vectors_of_every_basis(name, move):
    g = move(torch.arange(64).reshape(8, 8)).flatten()
    vectors = sads.basis(name, (1, 8, 8)).vectors.flatten(1)
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).double()
    order = _order(name, (8, 8), g)
    torch.testing.assert_close((vectors @ x[g]).abs(), (vectors @ x).abs()[order])


def test_the_search_finds_both_ends_of_a_matrix_it_never_sees():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 144, generator=generator).double()
    matrix = rows.T @ rows / 400
    matrix += 50 * torch.ones(144, 144) / 144
    windows = Windows.on((12, 12))
    assert windows.index.unique().numel() == 144  # every position is in a window
    torch.testing.assert_close(
        windows.gram(rows)[3] / 400,
        (rows.T @ rows / 400)[windows.index[3][:, None], windows.index[3]],
    )
    inverse = LocalInverse.of(windows, 144, windows.gram(rows) / 400)
    block = orthonormal(torch.randn(144, 8, generator=generator).double())
    search = Search(block, matrix @ block)
    while (following := search.next_block(inverse, 2)) is not None:
        search = search.joined(following, matrix @ following)
    ends, truth = search.ends(2), torch.linalg.eigvalsh(matrix)
    assert ((ends.values - truth[[-1, -2, 0, 1]]).abs() <= ends.residuals).all()
    assert (ends.residuals <= 0.05 * ends.values).all()


def test_what_is_not_kept_is_refused_in_one_line(both):
    dense, free = both("iddpm")
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    questions = [
        free.directions,
        free.factor,
        free.matrix,
        free.whitened_error,
        lambda: free.rank,
        lambda: free.factors,
        lambda: free.quadratic(x),
        lambda: sads.alignment(free, x),
        lambda: sads.rotation(free, x, "min"),
        lambda: free.basis_energies("dst"),
    ]
    for question in questions:
        with pytest.raises(NotKeptError, match="is kept without a matrix") as refusal:
            question()
        assert "\n" not in str(refusal.value)
    with pytest.raises(InvalidArgumentError, match="no tolerance can be reached"):
        sads.estimate_geometry(FAMILIES["odd"](), tolerance=0.1, matrix_free=True)
    with pytest.raises(InvalidArgumentError, match="unknown end"):
        free.end("top")
    with pytest.raises(MergeError, match="without a matrix"):
        dense.merge(sads.estimate_geometry(FAMILIES["iddpm"](), 16, seed=7, matrix_free=True))


def test_files_give_back_the_same_geometry(both, tmp_path):
    _, free = both("three channels")
    again = sads.load_geometry(free.save(tmp_path / "g.safetensors"))
    assert repr(again) == repr(free)
    assert again.provenance == free.provenance
    for name in ("canonical", "dct", "haar"):
        assert torch.equal(again.basis_energies(name).values, free.basis_energies(name).values)
    for side in ("avoided", "preferred"):
        a, b = again.end(side, 3), free.end(side, 3)
        assert torch.equal(a.vectors, b.vectors)
        assert torch.equal(a.bounds.errors, b.bounds.errors)


def test_damaged_files_are_refused(both, tmp_path):
    from safetensors.torch import load_file, save_file

    _, free = both("odd")
    path = free.save(tmp_path / "g.safetensors")
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)

    def refuse(match, changed=None, said=None, without=None):
        content = {**tensors, **(changed or {})}
        content.pop(without, None)
        bad = tmp_path / "bad.safetensors"
        save_file(content, bad, {**metadata, **(said or {})})
        with pytest.raises(GeometryFileError, match=match) as refusal:
            sads.load_geometry(bad)
        assert "\n" not in str(refusal.value)

    refuse("not orthonormal", {"vectors": 2 * tensors["vectors"]})
    refuse("not orthonormal", {"vectors": tensors["vectors"] * math.nan})
    refuse("energies are not", {"energies dct": -tensors["energies dct"]})
    refuse("energies are not", {"energies dct": tensors["energies dct"] * math.nan})
    refuse("expected float64", {"energies dct": tensors["energies dct"].float()})
    refuse("expected float64", {"energies dct": tensors["energies dct"][:, :, :-1].contiguous()})
    refuse("no tensor 'energies canonical'", without="energies canonical")
    refuse("expected float64", {"forms": tensors["forms"][:, :-1].contiguous()})
    refuse("not symmetric", {"forms": tensors["forms"].triu()})
    refuse("judges", {"judges": tensors["judges"] * 0})
    refuse("which directions are the avoided", said={"avoided": "99"})
    refuse("which directions are the avoided", said={"avoided": "[]"})
    refuse("in a way that this version", said={"representation": "other"})
    refuse("newer sads", said={"format_version": "9"})


def test_parts_add_up_to_the_whole_but_their_ends_do_not(both):
    family = FAMILIES["odd"]()
    whole = sads.estimate_geometry(family, 48, seed=3, matrix_free=True)
    first = sads.estimate_geometry(family, 32, seed=3, matrix_free=True)
    second = sads.estimate_geometry(family, 16, seed=3, first_network=32, matrix_free=True)
    merged = first.merge(second)
    for field in ("values", "errors"):
        given, expected = (getattr(g.basis_energies("dct"), field) for g in (merged, whole))
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-9)
    with pytest.raises(NotKeptError, match="its ends"):
        merged.end("avoided")
    assert any("each had found its own" in note for note in merged.provenance.notes)
    few = sads.estimate_geometry(family, 4, matrix_free=True)
    assert any("at least 16 networks" in note for note in few.provenance.notes)
    assert few.basis_energies("dct").errors.isinf().all()


@pytest.mark.parametrize("shape", [(3,), (2, 1, 2)])
def test_a_factor_of_one_position_has_the_same_direction_at_both_ends(shape, tmp_path):
    """As the dense output layer of an MLP gives it; data need not have pixels."""
    family = sads.family("mlp", shape, width=4, depth=1)
    whole, free = (sads.estimate_geometry(family, 32, matrix_free=m) for m in (False, True))
    free = sads.load_geometry(free.save(tmp_path / "g.safetensors"))
    for basis in ("canonical", "dct"):
        given, expected = (g.basis_energies(basis) for g in (free, whole))
        torch.testing.assert_close(given.values, expected.values, rtol=1e-5, atol=0)
        torch.testing.assert_close(given.errors, expected.errors, rtol=1e-5, atol=0)
    for side in ("avoided", "preferred"):
        end = free.end(side)
        assert (len(end), end.copies) == (1, math.prod(shape))
        assert end.energies[0] == pytest.approx(whole.end(side).energies[0], rel=0.2)
    assert free.energy(torch.zeros(shape)) == whole.energy(torch.zeros(shape)) == 0
    assert "smallest eigenvalue" in describe(free)


def test_large_factors_choose_it_by_themselves(monkeypatch):
    from sads.geometry import estimate

    family = sads.family("cnn", shape=(1, 24, 24), channels=4)
    assert not sads.estimate_geometry(family, 16).matrix_free
    assert sads.estimate_geometry(family, 16, memory="1MB").matrix_free
    assert not sads.estimate_geometry(family, 16, memory="8GB").matrix_free
    monkeypatch.setattr(estimate, "DENSE_POSITIONS", 500)
    assert sads.estimate_geometry(family, 16).matrix_free
    for bad in ("2 apples", "-1GB", "0", ""):
        with pytest.raises(InvalidArgumentError, match="not an amount of memory"):
            sads.estimate_geometry(family, 16, memory=bad)


def test_what_does_not_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(environment, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(environment, "used_memory", lambda: 0)
    with pytest.raises(NotEnoughMemoryError, match="without a matrix of 35 x 35"):
        sads.estimate_geometry(FAMILIES["odd"](), 16, matrix_free=True)


def same(a, b):
    assert a.moments.tensors().keys() == b.moments.tensors().keys()
    return all(torch.equal(x, b.moments.tensors()[n]) for n, x in a.moments.tensors().items())


def test_it_does_not_matter_what_is_kept_in_memory_or_how_networks_are_stacked():
    family = FAMILIES["odd"]()
    kept = sads.estimate_geometry(family, 32, matrix_free=True)
    again = sads.estimate_geometry(family, 32, matrix_free=True, memory=1)
    assert same(kept, again)
    stacked = sads.estimate_geometry(family, 32, matrix_free=True, batch_size=1)
    torch.testing.assert_close(
        stacked.end("preferred").found, kept.end("preferred").found, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("share", [0.03, 0.25, 0.5, 0.95])  # of the steps of an undisturbed one
def test_interrupted_anywhere_it_goes_on_to_the_same_numbers(share, tmp_path):
    family = FAMILIES["odd"]()
    options = {"num_networks": 32, "seed": 5, "matrix_free": True, "batch_size": 1}
    seen = []
    whole = sads.estimate_geometry(family, progress=lambda *step: seen.append(step), **options)
    steps = iter(range(10**6))

    def stop(*_):
        if next(steps) == int(share * len(seen)):
            raise KeyboardInterrupt

    path = tmp_path / "partial.safetensors"
    options["checkpoint"] = path
    with pytest.raises(InterruptedEstimate) as interrupted:
        sads.estimate_geometry(family, progress=stop, **options)
    part = interrupted.value.geometry
    assert part.provenance.interrupted
    assert 0 < part.num_networks <= 32
    assert part.basis_energies("dct").values.isfinite().all()
    assert same(sads.estimate_geometry(family, **options), whole)
    for change in ({"seed": 6}, {"dtype": "bfloat16"}):
        with pytest.raises(CheckpointError, match="part of another piece of work"):
            sads.estimate_geometry(family, **{**options, **change})


def be_killed(path, last, options):
    steps = iter(range(10**6))

    def progress(*_):
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    sads.estimate_geometry(
        FAMILIES["odd"](), checkpoint=path, checkpoint_seconds=0, progress=progress, **options
    )


def test_killed_it_goes_on_to_the_same_numbers(tmp_path, processes):
    path = tmp_path / "partial.safetensors"
    options = {"num_networks": 32, "seed": 5, "matrix_free": True, "batch_size": 1}
    process = start(processes, be_killed, path, 25, options)
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert path.exists()
    family = FAMILIES["odd"]()
    drawn = []
    continued = sads.estimate_geometry(
        family, checkpoint=path, progress=lambda *numbers: drawn.append(numbers), **options
    )
    steps = []
    whole = sads.estimate_geometry(
        family, progress=lambda *numbers: steps.append(numbers), **options
    )
    assert same(continued, whole)
    assert len(drawn) < len(steps)


def test_damaged_checkpoints_are_refused(tmp_path):
    family = FAMILIES["odd"]()
    path = tmp_path / "partial.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError):
        sads.estimate_geometry(family, 16, matrix_free=True, checkpoint=path)


def test_a_network_that_is_not_finite_is_named():
    class Broken(Noisy):
        def forward(self, x, t):
            return super().forward(x, t) + torch.where(self.first.bias[0] > 0.1, math.nan, 0.0)

    with pytest.raises(sads.SadsError, match=r"NaN or infinity|network \d+"):
        sads.estimate_geometry(sads.family(Broken, shape=(1, 8, 8)), 32, matrix_free=True)


def test_numpy_data_are_measured(both):
    _, free = both("odd")
    assert replace(free.moments, ends=None).trace == free.trace
    x = np.random.default_rng(0).normal(size=(4, 1, 7, 5)).astype(np.float32)
    family = FAMILIES["odd"]()
    with pytest.raises(InvalidArgumentError, match="measured samples have shape"):
        sads.estimate_geometry(family, 16, matrix_free=True, measure=x[:, :, :3])
    dense = sads.estimate_geometry(family, 32)
    measured = sads.estimate_geometry(family, 32, matrix_free=True, measure=x)
    data = torch.from_numpy(x)
    expected = dense.quadratic(data)
    torch.testing.assert_close(
        measured.quadratic(data).values, expected.values, rtol=1e-5, atol=1e-9
    )
    given, known = sads.alignment(measured, data), sads.alignment(dense, data)
    for name in ("alpha", "random"):
        assert math.isclose(getattr(given, name), getattr(known, name), rel_tol=1e-5)
        assert math.isclose(getattr(given, name).error, getattr(known, name).error, rel_tol=1e-3)
    for name in ("data_error", "geometry_error"):
        assert math.isclose(getattr(given, name), getattr(known, name), rel_tol=1e-3)
    assert math.isnan(given.minimum)
    assert "not known" in given.describe()["minimum, maximum"]
    rotation = sads.rotation(measured, data, "identity")
    assert math.isclose(rotation.alpha, known.alpha, rel_tol=1e-5)
    assert torch.equal(rotation.apply(data), data)
    with pytest.raises(NotKeptError):
        sads.rotation(measured, data, "max")


@pytest.mark.parametrize("name", ["three channels", "tokens"])
def test_predictions_are_those_of_matrices(both, name):
    from sads.theory.predictions import claims, predict

    dense, free = both(name)
    given = predict(free)
    assert set(given) == {"canonical", "dct", "haar"}
    for basis, expected in predict(dense, ("canonical", "dct", "haar")).items():
        torch.testing.assert_close(given[basis].relative, expected.relative, rtol=2e-5, atol=1e-9)
    assert len(claims(given)) == 3


def test_commands_say_what_is_known(tmp_path, monkeypatch, capsys):
    import json

    from sads.cli.main import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sads", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        return status, capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    small = ["--shape", "1x8x8", "--networks", "16"]
    status, said = run(
        *("geometry", "iddpm", *small, "--matrix-free", "--measure", "digits", "--out", "g")
    )
    assert status == 0
    assert "largest eigenvalue" in said.out
    assert "at least" in said.out
    summary = json.loads((tmp_path / "g/geometry.json").read_text())
    assert summary["matrix_free"]
    assert len(summary["preferred"]["bounds"]) == 8
    assert {path.name for path in (tmp_path / "g").glob("*.png")} == {
        "spectrum.png",
        "directions.png",
    }
    status, said = run("align", "digits", "--geometry", "g/geometry.safetensors", "--out", "a")
    assert status == 0
    assert "not known: the geometry is kept without a matrix" in said.out
    found = json.loads((tmp_path / "a/alignment.json").read_text())["alignment"]
    dense = sads.estimate_geometry(sads.family("iddpm", shape=(1, 8, 8)), 16)
    x = sads.load_geometry(tmp_path / "g/geometry.safetensors")
    assert math.isclose(x.trace, dense.trace, rel_tol=1e-5)
    assert found["alpha"]["value"] > 0
    status, said = run("theory", "predict", "g/geometry.safetensors")
    assert status == 0
    for refused in (
        ["align", "rank-one:dst:3", "--geometry", "g/geometry.safetensors", "--out", "b"],
        ["align", "digits", "--geometry", "g/geometry.safetensors", "--rotation", "max"],
        ["geometry", "iddpm", *small, "--matrix-free", "--memory", "much", "--out", "c"],
        ["geometry", "iddpm", "--matrix-free", "--tolerance", "0.1", "--out", "d"],
    ):
        status, said = run(*refused)
        assert status == 2, refused
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
