"""Bases against the definitions of their transforms, written out."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

import sads
from sads.data.bases import BASES
from sads.errors import InvalidArgumentError
from sads.plots.bases import show_basis_values
from sads.plots.style import save, subplots

SHAPES = [(1, 16, 16), (3, 8, 4), (2, 8), (1, 2, 2)]
ODD_SHAPES = [(1, 5, 7), (2, 9)]
CASES = [(n, s) for n in BASES for s in SHAPES] + [
    (n, s) for n in ("canonical", "dct", "dst") for s in ODD_SHAPES
]


def cosine(n: int, k: int) -> np.ndarray:
    row = np.array([math.cos(math.pi * k * (2 * m + 1) / (2 * n)) for m in range(n)])
    return row * math.sqrt((1 if k == 0 else 2) / n)


def sine(n: int, k: int) -> np.ndarray:
    row = np.array([math.sin(math.pi * k * (2 * m + 1) / (2 * n)) for m in range(n)])
    return row * math.sqrt((1 if k == n else 2) / n)


def walsh(n: int, changes: int) -> np.ndarray:
    (row,) = (r for r in hadamard(n) if np.count_nonzero(r[1:] != r[:-1]) == changes)
    return row / math.sqrt(n)


LINES = {
    "canonical": lambda n, k: np.eye(n)[k],
    "dct": cosine,
    "dst": sine,
    "hadamard": walsh,
}


def haar_vector(element: sads.data.bases.Element, spatial: tuple[int, ...]) -> np.ndarray:
    """A block of its scale, signed by halves along the axes of its band."""
    lines = []
    for n, place, letter in zip(spatial, element.position, element.band, strict=True):
        line = np.zeros(n)
        block = np.ones(element.scale)
        if letter == "d":
            block[element.scale // 2 :] = -1
        line[place * element.scale : (place + 1) * element.scale] = block
        lines.append(line / math.sqrt(element.scale))
    return outer(lines)


def haar_line(values: np.ndarray) -> np.ndarray:
    """Haar's transform of a line, by the recursion on sums and differences of pairs."""
    if len(values) == 1:
        return values
    sums, differences = values[0::2] + values[1::2], values[0::2] - values[1::2]
    return np.concatenate([haar_line(sums / math.sqrt(2)), differences / math.sqrt(2)])


def outer(lines: list[np.ndarray]) -> np.ndarray:
    return lines[0] if len(lines) == 1 else np.outer(*lines)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_orthonormal(name, shape):
    basis = sads.basis(name, shape)
    assert basis.vectors.shape == (basis.dimension, *shape)
    assert basis.vectors.dtype == torch.float64
    flat = basis.vectors.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(len(flat), dtype=flat.dtype), atol=1e-12)


@pytest.mark.parametrize(("name", "shape"), [case for case in CASES if case[0] in LINES])
def test_products_of_the_definition_on_a_line(name, shape):
    basis = sads.basis(name, shape)
    for vector, element in zip(basis.vectors.numpy(), basis.index, strict=True):
        lines = [LINES[name](n, k) for n, k in zip(basis.spatial, element.position, strict=True)]
        expected = np.zeros(shape)
        expected[element.channel] = outer(lines)
        np.testing.assert_allclose(vector, expected, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_haar_vectors_are_the_signed_blocks_that_the_index_names(shape):
    basis = sads.basis("haar", shape)
    assert len(set(basis.index)) == basis.dimension
    for vector, element in zip(basis.vectors.numpy(), basis.index, strict=True):
        expected = np.zeros(shape)
        expected[element.channel] = haar_vector(element, basis.spatial)
        np.testing.assert_allclose(vector, expected, atol=1e-12)


def test_haar_coefficients_on_a_line_follow_the_recursion():
    line = np.random.default_rng(0).standard_normal(16)
    basis = sads.basis("haar", (1, 16))
    np.testing.assert_allclose(basis.vectors.flatten(1).numpy() @ line, haar_line(line))


def test_order_is_channel_then_row_then_column():
    index = sads.basis("dct", (2, 3, 4)).index
    expected = list(itertools.product(range(2), range(3), range(4)))
    assert [(e.channel, *e.position) for e in index] == expected


@pytest.mark.parametrize("name", ["dct", "hadamard"])
def test_layout_puts_zero_in_the_centre_and_mirrors_it(name):
    basis = sads.basis(name, (1, 4, 8))
    picture = basis.layout([10 * u + v for u, v in (e.position for e in basis.index)])
    expected = [[10 * abs(u) + abs(v) for v in range(-7, 8)] for u in range(-3, 4)]
    np.testing.assert_array_equal(picture, expected)


def test_layout_of_sines_leaves_out_the_frequency_that_they_lack():
    basis = sads.basis("dst", (1, 2, 3))
    picture = basis.layout([10 * u + v for u, v in (e.position for e in basis.index)])
    columns = [-3, -2, -1, 1, 2, 3]
    expected = [[10 * abs(u) + abs(v) for v in columns] for u in (-2, -1, 1, 2)]
    np.testing.assert_array_equal(picture, expected)


def test_mirrored_vectors_agree_up_to_sign_with_those_of_negative_frequency():
    n = 8
    for k in range(1, n):
        np.testing.assert_allclose(cosine(n, -k), cosine(n, k))
        np.testing.assert_allclose(sine(n, -k), -sine(n, k))


def test_layout_of_haar_is_nested_by_scale():
    basis = sads.basis("haar", (1, 8, 8))
    picture = basis.layout([e.scale for e in basis.index])
    distance = np.maximum(*np.indices((8, 8)))
    np.testing.assert_array_equal(picture, np.select([distance < 2, distance < 4], [8, 4], 2))


def test_layout_sets_channels_side_by_side_and_lines_in_rows():
    picture = sads.basis("canonical", (2, 2, 2)).layout(range(8))
    np.testing.assert_array_equal(picture, [[0, 1, 4, 5], [2, 3, 6, 7]])
    np.testing.assert_array_equal(
        sads.basis("dct", (2, 2)).layout(range(4)), [[1, 0, 1], [3, 2, 3]]
    )


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("fourier", (1, 8, 8), "unknown basis"),
        ("hadamard", (1, 12, 16), "powers of two"),
        ("haar", (1, 28, 28), "powers of two"),
        ("dct", (16,), "needs a shape"),
        ("dct", (1, 0, 4), "needs a shape"),
    ],
)
def test_what_is_refused(name, shape, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sads.basis(name, shape)


def test_layout_refuses_another_number_of_values():
    with pytest.raises(InvalidArgumentError, match=r"each of the 16 vectors.*\(15,\)"):
        sads.basis("dct", (1, 4, 4)).layout(np.zeros(15))


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 4), (2, 8)])
def test_plot_shows_the_layout(name, shape, tmp_path):
    basis = sads.basis(name, shape)
    values = torch.arange(basis.dimension) + 0.5
    figure, axes = subplots(figsize=(3.6, 3.1))
    image = show_basis_values(axes, basis, values)
    np.testing.assert_array_equal(image.get_array(), basis.layout(values))
    left, right, bottom, top = image.get_extent()
    if name in ("dct", "dst", "hadamard"):
        assert left + right == pytest.approx(0)
        assert bottom + top == pytest.approx(0)
    assert save(figure, tmp_path / "values.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["dct", "dst", "hadamard"])
def test_low_and_high_frequencies_are_a_quarter_each(name):
    """Of 16 x 16; a sine's frequencies start at 1."""
    basis = sads.basis(name, (1, 16, 16))
    low, high = basis.groups()["low"], basis.groups()["high"]
    assert (int(low.sum()), int(high.sum())) == (64, 64)
    first = 1 if name == "dst" else 0
    expected = [all(k < 8 + first for k in element.position) for element in basis.index]
    assert low.tolist() == expected
    assert not (low & high).any()


def test_border_and_inside_of_pixels():
    basis = sads.basis("canonical", (2, 4, 5))
    image = np.zeros((2, 4, 5), dtype=bool)
    image[:, 1:-1, 1:-1] = True
    assert np.array_equal(basis.groups()["inside"], image.ravel())
    assert np.array_equal(basis.groups()["border"], ~image.ravel())
    assert sads.basis("haar", (1, 4, 4)).groups() == {}
