"""Comparisons of geometries: closed forms, a null that holds, one line for what does not fit."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

import sads
from cases import small_family
from commands import Sads
from sads.estimates import holm
from sads.geometry.lift import Lift
from sads.geometry.result import Geometry, Provenance
from sads.report.build import make_sections
from sads.report.comparison import Compared, _pair
from sads.report.sources import GeometrySource


def exact(matrix: torch.Tensor, name: str = "exact") -> Geometry:
    size = len(matrix)
    return Geometry.dense(
        matrix[None].double(),
        torch.zeros(1, dtype=torch.int64),
        Lift.trivial(size),
        (1, 4, size // 4),
        Provenance(family={"name": name, "prediction": "epsilon"}, estimator="exact"),
    )


def test_angles_of_a_turned_geometry_are_the_angle_of_the_turn() -> None:
    values = torch.arange(16.0, 0, -1).double()
    turn = torch.eye(16).double()
    angle = 0.3
    turn[0, 0] = turn[8, 8] = math.cos(angle)
    turn[0, 8], turn[8, 0] = -math.sin(angle), math.sin(angle)
    first, second = exact(torch.diag(values)), exact(turn @ torch.diag(values) @ turn.T)
    pair = sads.compare(first, second, names=["a", "b"], directions=4).pairs[0]
    assert pair.avoided.angles == pytest.approx([0, 0, 0, angle], abs=1e-6)
    assert pair.preferred.angles == pytest.approx([0, 0, 0, 0], abs=1e-6)
    assert pair.avoided.overlap == pytest.approx(1 - math.sin(angle) ** 2 / 4)
    assert pair.avoided.significant
    assert not pair.preferred.significant
    assert not any(d.significant for d in pair.differences if d.what == "spectrum")
    assert any(d.significant for d in pair.differences if d.what == "frequency")


def test_a_geometry_is_no_different_from_itself_or_a_multiple_of_it() -> None:
    matrix = torch.diag(torch.arange(16.0, 0, -1))
    result = sads.compare(exact(matrix), exact(3 * matrix))
    assert result.significant == 0
    assert result.pairs[0].avoided.overlap == pytest.approx(1)


def test_seeds_of_one_family_do_not_differ_and_families_do() -> None:
    """The null: ten pairs of fresh seeds; at 5 % for each pair three are one in a hundred."""
    wrong = 0
    for seed in range(10):
        pair = [
            sads.estimate_geometry(small_family("cnn"), 64, seed=100 + 2 * seed + i) for i in (0, 1)
        ]
        wrong += sads.compare(*pair).significant > 0
    assert wrong <= 2
    shape = small_family("cnn").shape
    other = sads.estimate_geometry(sads.family("mlp", shape=shape), 64)
    assert sads.compare(sads.estimate_geometry(small_family("cnn"), 64), other).significant > 5


@pytest.mark.parametrize(("networks", "freedom"), [((8, 64), 7), ((12, 9), 8), ((64, 32), 15)])
def test_fewer_batches_have_fewer_degrees_of_freedom(
    networks: tuple[int, int], freedom: int
) -> None:
    """Eight batches judged as sixteen called 7 of 40 pairs of fresh seeds different."""
    pair = [sads.estimate_geometry(small_family("cnn"), n, seed=n) for n in networks]
    for one in sads.compare(*pair).pairs[0].differences:
        error = math.hypot(*(number.error / number for number in (one.first, one.second)))
        if math.isfinite(error):
            distance = abs(math.log(one.first / one.second)) / error
            assert one.p == pytest.approx(2 * stats.t.sf(distance, freedom))


def test_few_networks_claim_nothing() -> None:
    two = [sads.estimate_geometry(small_family("cnn"), 4, seed=s) for s in (1, 2)]
    assert sads.compare(*two).significant == 0


def test_holm_is_what_it_is_in_the_books() -> None:
    assert holm([0.01, 0.02, 0.9]) == pytest.approx([0.03, 0.04, 0.9])
    assert holm([]) == []


def test_what_does_not_compare_is_refused() -> None:
    small, large = (sads.estimate_geometry("mlp", 16) for _ in range(2))
    other = sads.estimate_geometry(sads.family("mlp", shape=(1, 4, 4)), 16)
    with pytest.raises(sads.SadsError, match="different shapes do not compare"):
        sads.compare(small, other)
    with pytest.raises(sads.SadsError, match="at least two"):
        sads.compare(small)
    with pytest.raises(sads.SadsError, match="1 names for 2"):
        sads.compare(small, large, names=["a"])


def test_files_of_one_name_can_be_told_apart(command: Sads) -> None:
    found = sads.compare(*[exact(torch.eye(16))] * 3)
    assert found.names == ("exact", "exact (2)", "exact (3)")
    few = sads.estimate_geometry(sads.family("mlp", (1, 4, 4)), 4)
    for folder, geometry in (("a", exact(torch.eye(16), name="mlp")), ("b", few)):
        Path(folder).mkdir()
        geometry.save(f"{folder}/x.safetensors")
    printed = command.succeed("compare", "a/x.safetensors", "b/x.safetensors", "--out", "c")
    assert "errors of x (2) are not known (± ?; of these nothing is claimed): 4 net" in printed
    Path("a/x.safetensors").rename("a/geometry.safetensors")
    assert "a is a folder with a geometry in it: give a/geometry.s" in command.fail(
        "compare", "a", "b"
    )
    said = json.loads(Path("c/comparison.json").read_text())["comparison"]
    assert said["names"] == ["x", "x (2)"]
    assert [said["pairs"][0][side] for side in ("first", "second")] == said["names"]


def test_sections_of_one_title_can_be_told_apart() -> None:
    sections = make_sections([GeometrySource(exact(torch.eye(16)))] * 2)
    titles = [section.title for section in sections]
    assert titles == ["Comparison", "exact 1x4x4, exact", "exact 1x4x4, exact (2)"]
    assert [curve["name"] for curve in sections[0].data["geometries"]] == titles[1:]
    assert sections[0].html.count('<th scope="col">exact 1x4x4, exact') == 2


@pytest.mark.pictures
def test_the_command(command: Sads, tmp_path: Path) -> None:
    options = ("--shape", "1x8x8", "--networks", 32)
    printed = command.succeed("compare", "cnn", "mlp", *options, "--out", "c", "--json")
    said = json.loads(printed)["comparison"]
    assert said["names"] == ["cnn", "mlp"]
    assert (tmp_path / "c" / "comparison.png").stat().st_size > 10_000
    sads.estimate_geometry(sads.family("mlp", shape=(1, 4, 4)), 16).save("m.safetensors")
    assert "different shapes" in command.fail("compare", "cnn", "m.safetensors", *options)
    assert "two or more" in command.fail("compare", "cnn")
    free = sads.estimate_geometry(sads.family("mlp", shape=(1, 8, 8)), 16, matrix_free=True)
    free.save("free.safetensors")
    many = ("--shape", "1x8x8", "--networks", 10**9)  # that nobody waits for
    assert "without a matrix" in command.fail("compare", "mlp", "free.safetensors", *many)


@pytest.mark.parametrize(
    ("values", "avoided", "preferred"),
    [
        ([1.0] * 16, None, None),
        ([1.0] + [0.0] * 15, None, None),
        ([9.0, 8, 7, 6, 5, 4, 3, 2] + [0.0] * 8, 4, 8),
        ([9.0, 8, 7, 6, 6, 6, 5, 4, 3, 2, 1, 0.9, 0.9, 0.7, 0.6, 0.5], 6, 5),
    ],
    ids=["all equal", "rank one", "half of them zero", "equal at the cut"],
)
def test_ends_are_not_cut_between_equal_eigenvalues(
    values: list[float], avoided: int | None, preferred: int | None
) -> None:
    """Whatever basis of equal directions LAPACK takes: turned by an orthogonal matrix and back."""
    diagonal = torch.tensor(values).double()
    turn = torch.eye(16).double()
    for value in set(values):
        same = (diagonal == value).nonzero()[:, 0]
        drawn = torch.randn(len(same), len(same), generator=torch.Generator().manual_seed(1))
        mixed = torch.linalg.qr(drawn.double()).Q
        turn[same[:, None], same] = mixed
    turned = turn @ diagonal.diag() @ turn.T
    pair = sads.compare(exact(diagonal.diag()), exact((turned + turned.T) / 2), directions=4).pairs[
        0
    ]
    for end, size in ((pair.avoided, avoided), (pair.preferred, preferred)):
        assert (end.overlap, end.angles) == (None, ()) if size is None else end.unknown is None
        assert len(end.angles) == (size or 0)
        assert max(end.angles, default=0.0) < 1e-6
        assert not end.significant
        assert end.p == 1
    if avoided is None:
        assert "to 9 of exact, counted from the avoided end, are equal" in str(pair.avoided.unknown)


def test_data_without_pixels_compare_in_all_but_frequencies() -> None:
    def geometry(values: list[float]) -> Geometry:
        said = Provenance(family={"name": "vectors"}, estimator="exact")
        factor = torch.tensor(values).double().diag()
        nobody = torch.zeros(1, dtype=torch.int64)
        return Geometry.dense(factor[None], nobody, Lift.trivial(len(values)), (len(values),), said)

    pair = sads.compare(geometry([4, 3, 2, 1]), geometry([4, 3, 1, 2]), directions=1).pairs[0]
    assert {d.what for d in pair.differences} == {"spectrum"}
    assert pair.avoided.overlap == pytest.approx(1)
    assert pair.preferred.overlap == pytest.approx(0)
    assert pair.preferred.significant


def test_a_geometry_that_is_zero_does_not_compare() -> None:
    one = exact(torch.eye(16))
    with pytest.raises(sads.SadsError, match="the geometry of nil is zero"):
        sads.compare(one, exact(torch.zeros(16, 16)), names=["one", "nil"])


def test_reports_compare_ends_where_both_have_them() -> None:
    values = torch.arange(16.0, 0, -1)
    pairs = values.clone()
    pairs[1::2] = pairs[::2]  # of equal ones
    pairs[8:] = 0
    parts = [
        Compared(exact(one.diag()), "a section", "a name")
        for one in (values, pairs, torch.ones(16))
    ]
    found = _pair(parts[0], parts[1])
    assert found["sizes"] == [2, 4, 6, 8]  # 1, 2, 3 and 5, or the next that there are; half of 16
    assert [one["shared"] for one in found["ends"]["avoided"]] == pytest.approx([1] * 4)
    assert [one["shared"] for one in found["ends"]["preferred"]] == [None, None, None, 1]
    assert "equal" in _pair(parts[0], parts[2])["why_not"]
