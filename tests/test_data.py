"""Synthetic samples against their laws; readers on files made here, whole and damaged."""

import copy
import gzip
import io
import math
import os
import pickle
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import beta, kstest

import sads
from sads.cli.reading import read_probe
from sads.data import images as images_module
from sads.data import readers
from sads.data.spec import sphere_directions
from sads.errors import DataError, InvalidArgumentError

SHARED = Path(__file__).parents[2] / "shared" / "data"
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 5, 7), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (4, 3, 6, 8), dtype=np.uint8)


def scaled(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64) / 255 * 2 - 1).float()


def save_picture(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


# Synthetic samples


def test_rank_one_has_the_covariance_of_the_paper():
    v = torch.tensor([[[3.0, 0], [0, 4.0]]])  # (1, 2, 2), of length 5
    x = sads.rank_one(v, num_samples=50_000, seed=1)
    assert x.shape == (50_000, 1, 2, 2)
    assert x.dtype == torch.float32
    unit = (v / 5).flatten()
    coordinate = x.flatten(1) @ unit
    assert torch.allclose(x.flatten(1), coordinate[:, None] * unit, atol=1e-5)  # on a line
    assert kstest((coordinate / 2).numpy(), "norm").pvalue > 0.01  # N(0, D), D = 4


def test_sphere_is_uniform_in_the_span():
    vectors = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    x = sads.sphere(vectors, num_samples=20_000, seed=1).flatten(1).double()  # (N, 32)
    assert torch.allclose(x.norm(dim=1), torch.full((20_000,), math.sqrt(32)).double(), atol=1e-5)
    basis = torch.linalg.svd(vectors.flatten(1).double(), full_matrices=False).Vh  # (3, 32)
    assert torch.allclose(x @ basis.T @ basis, x, atol=1e-5)
    for axis in basis:  # a coordinate of a uniform point on the sphere in R^3 is uniform
        assert (
            kstest((x @ axis / math.sqrt(32)).numpy(), beta(1, 1, loc=-1, scale=2).cdf).pvalue
            > 0.01
        )


def test_sphere_depends_on_the_span_and_the_seed_only_through_the_law():
    vectors = torch.eye(9)[:2].reshape(2, 1, 3, 3)
    assert torch.equal(sads.sphere(vectors, 5, seed=3), sads.sphere(2 * vectors, 5, seed=3))
    assert not torch.equal(sads.sphere(vectors, 5, seed=3), sads.sphere(vectors, 5, seed=4))
    assert not torch.equal(sads.rank_one(vectors[0], 5, 3), sads.rank_one(vectors[0], 5, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sads.rank_one(torch.zeros(1, 2, 2), 5), "not zero, got one of length 0"),
        (lambda: sads.rank_one(torch.tensor([1.0, math.nan]), 5), "finite.*length nan"),
        (lambda: sads.rank_one(torch.tensor([1.0, math.inf]), 5), "finite.*length inf"),
        (
            lambda: sads.rank_one(torch.ones(2), 0),
            "num_samples must be a whole number of at least 1",
        ),
        (lambda: sads.sphere(torch.ones(2, 3), 5), "linearly independent"),
        (lambda: sads.sphere(torch.ones(3), 5), r"\(number, \*shape\)"),
        (lambda: sads.sphere(torch.ones(0, 3), 5), r"\(number, \*shape\)"),
    ],
)
def test_directions_that_are_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


# Arrays


@pytest.mark.parametrize("array", [GREY, GREY[:, None], COLOUR], ids=["nhw", "n1hw", "nchw"])
def test_arrays_become_channels_first_in_minus_one_to_one(tmp_path, array):
    expected = scaled(array.reshape(len(array), -1, *array.shape[-2:]))
    np.savez(tmp_path / "a.npz", images=array, labels=np.arange(3))
    np.savez(tmp_path / "only.npz", anything=array)
    np.save(tmp_path / "a.npy", array)
    for name in ("a.npz", "only.npz", "a.npy"):
        images = sads.load_images(tmp_path / name)
        assert images.dtype == torch.float32
        assert images.is_contiguous()
        assert torch.allclose(images, expected, atol=1e-6)


def test_an_npy_file_by_the_name_of_npz_is_read(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, GREY)
    assert torch.allclose(sads.load_images(tmp_path / "a.npz")[:, 0], scaled(GREY), atol=1e-6)


def test_arrays_longer_than_a_block(tmp_path, monkeypatch):
    path = npy(tmp_path / "a.npy", GREY)
    whole = sads.load_images(path)
    monkeypatch.setattr(images_module, "BLOCK", 4)
    assert torch.equal(sads.load_images(path), whole)
    assert torch.equal(sads.load_images(path, limit=5), whole[:5])


def test_extremes_of_eight_bits_are_exact(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[[0, 255]]], dtype=np.uint8))
    assert sads.load_images(tmp_path / "a.npy").tolist() == [[[[-1, 1]]]]


def test_channels_last_is_seen(tmp_path):
    np.save(tmp_path / "a.npy", np.moveaxis(COLOUR, 1, -1))
    assert torch.allclose(sads.load_images(tmp_path / "a.npy"), scaled(COLOUR), atol=1e-6)


@pytest.mark.parametrize(
    ("array", "value_range", "expected"),
    [
        (np.array([0.0, 0.5, 1.0]), None, [-1, 0, 1]),
        (np.array([-1.0, 0.5, 1.0]), None, [-1, 0.5, 1]),
        (np.array([0, 65535, 65535], dtype=np.uint16), None, [-1, 1, 1]),
        (np.array([False, True, True]), None, [-1, 1, 1]),
        (np.array([0, 8, 16]), (0, 16), [-1, 0, 1]),
        (np.array([-1.5, 0, 2.0]), (-1, 1), [-1.5, 0, 2]),  # a model's samples, as they are
    ],
)
def test_value_ranges(tmp_path, array, value_range, expected):
    np.save(tmp_path / "a.npy", array.reshape(1, 1, 3))
    images = sads.load_images(tmp_path / "a.npy", value_range=value_range, layout="NHW")
    assert images.flatten().tolist() == pytest.approx(expected)


def bad_npz(path: Path) -> Path:
    np.savez(path, images=np.array([{"a": 1}, None], dtype=object))
    return path


def cut(path: Path, array: np.ndarray) -> Path:
    np.savez_compressed(path, images=array)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: bad_npz(d / "a.npz"), "pickled objects.*refused"),
        (lambda d: write(d / "a.npy", pickle.dumps([1, 2])), "pickled objects.*refused"),
        (lambda d: npy(d / "a.npy", np.array(["text"])), "type <U4, expected numbers"),
        (lambda d: cut(d / "a.npz", COLOUR), "cannot read .*a.npz"),
        (lambda d: write(d / "a.npz", b""), "cannot read .*a.npz"),
        (lambda d: npz(d / "a.npz", x=GREY, y=GREY), "arrays x, y, expected one named 'images'"),
        (lambda d: npy(d / "a.npy", GREY[0]), r"shape \(5, 7\)"),
        (lambda d: npy(d / "a.npy", GREY[:0]), "no images in .*it is empty"),
        (lambda d: npy(d / "a.npy", GREY.astype(np.int64)), "give it as value_range"),
        (lambda d: npy(d / "a.npy", GREY.astype(np.float32)), "floats from .*value_range"),
        (lambda d: npy(d / "a.npy", np.full((1, 2, 2), np.nan)), r"a.npy\[0:1\] has NaN"),
        (lambda d: d / "missing.npz", "cannot read .*missing.npz: No such file"),
        (lambda d: write(d / "a.txt", b"hello"), "cannot tell what"),
        (lambda d: write(d / "a.pkl", pickle.dumps(GREY)), "cannot tell what"),
    ],
)
def test_files_that_are_refused_with_one_line(tmp_path, make, message):
    with pytest.raises(DataError, match=message) as caught:
        sads.load_images(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_loading_never_unpickles(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    write(tmp_path / "b.npy", pickle.dumps(Trap()))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(DataError, match="pickled"):
            sads.load_images(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


# IDX


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    header = struct.pack(">HBB", 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def test_idx_files_plain_and_gzipped(tmp_path):
    write(tmp_path / "train-images-idx3-ubyte", idx(GREY))
    write(tmp_path / "train-images-idx3-ubyte.gz", gzip.compress(idx(GREY)))
    for name in ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
        assert torch.allclose(sads.load_images(tmp_path / name)[:, 0], scaled(GREY), atol=1e-6)


def test_idx_of_floats_is_big_endian(tmp_path):
    values = np.linspace(0, 1, 12).reshape(2, 2, 3)
    path = write(tmp_path / "a.idx", idx(values.astype(">f4"), 0x0D))
    expected = torch.from_numpy(2 * values - 1).float()
    assert torch.allclose(sads.load_images(path)[:, 0], expected)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"0", lambda b: b[:6]])
def test_damaged_idx(tmp_path, damage):
    with pytest.raises(DataError, match=r"is damaged: its header|cannot tell"):
        sads.load_images(write(tmp_path / "a.idx", damage(idx(GREY))))
    with pytest.raises(DataError, match="cannot read"):
        sads.load_images(write(tmp_path / "a.gz", gzip.compress(idx(GREY))[:-9]))


# Folders of pictures


def test_folder_is_searched_through_in_order(tmp_path):
    for name, array in zip(("b.png", "a/z.png", "c/d/e.bmp"), GREY, strict=False):
        save_picture(tmp_path / name, array)
    (tmp_path / ".hidden").write_text("x")
    for hidden in (".thumbnails/x/y.png", "a/.ipynb_checkpoints/z.png", "__MACOSX/b.png"):
        save_picture(tmp_path / hidden, GREY[3])
    images = sads.load_images(tmp_path)
    assert not sads.read_images(tmp_path).skipped
    assert torch.allclose(images[:, 0], scaled(GREY[[1, 0, 2]]), atol=1e-6)
    assert torch.equal(sads.load_images(str(tmp_path), limit=2), images[:2])
    assert torch.equal(sads.load_images(tmp_path / "b.png"), images[1:2])


def test_colour_pictures_keep_their_channels_even_when_tiny(tmp_path):
    array = RNG.integers(0, 256, (3, 3, 3), dtype=np.uint8)
    save_picture(tmp_path / "a.png", array)
    expected = scaled(np.moveaxis(array, -1, 0))
    assert torch.allclose(sads.load_images(tmp_path)[0], expected, atol=1e-6)


def test_sixteen_bit_pictures(tmp_path):
    save_picture(tmp_path / "a.png", np.array([[0, 13107, 65535]], dtype=np.uint16))
    assert sads.load_images(tmp_path).flatten().tolist() == pytest.approx([-1, -0.6, 1])


def test_damaged_pictures_are_skipped_counted_and_named(tmp_path):
    for number in range(3):
        save_picture(tmp_path / f"good{number}.png", GREY[number])
    content = (tmp_path / "good0.png").read_bytes()
    write(tmp_path / "cut.png", content[: len(content) // 2])
    write(tmp_path / "zz_text.jpg", b"not a picture at all")
    (tmp_path / "labels.csv").write_text("1,2")
    result = sads.read_images(tmp_path)
    assert result.num_read == 3
    assert [name for name, _ in result.skipped] == ["cut.png", "labels.csv", "zz_text.jpg"]
    reasons = dict(result.skipped)
    assert "truncated" in reasons["cut.png"]
    assert reasons["labels.csv"] == "not a picture"
    assert reasons["zz_text.jpg"] == "cannot identify image"
    statement = "read 3 images of 1x5x7 from .*; skipped 3: cut.png .*truncated"
    with pytest.warns(UserWarning, match=statement):
        images = sads.load_images(tmp_path)
    assert torch.equal(images, result.images)


def test_folders_that_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no images in .*it is empty"):
        sads.load_images(tmp_path / "empty")
    (tmp_path / "bad").mkdir()
    for number in range(5):
        write(tmp_path / "bad" / f"{number}.png", b"damaged")
    with pytest.raises(DataError, match=r"skipped 5: 0.png \(cannot identify image\).* and 2 more"):
        sads.load_images(tmp_path / "bad")


def test_unreadable_folder(tmp_path, monkeypatch):
    def refuse(path):  # root may read everything, so a mode of 0 proves nothing
        raise PermissionError(13, "Permission denied", str(path))

    save_picture(tmp_path / "a.png", GREY[0])
    monkeypatch.setattr(readers.os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot read the folder .*Permission denied"):
        sads.load_images(tmp_path)


def test_mixed_sizes_and_colours_need_to_be_told(tmp_path):
    save_picture(tmp_path / "a.png", GREY[0])
    save_picture(tmp_path / "b.png", GREY[0].T.copy())
    with pytest.raises(DataError, match=r"a.png is 1x5x7, b.png is 1x7x5; resize"):
        sads.load_images(tmp_path)
    save_picture(tmp_path / "c.png", np.moveaxis(COLOUR[0], 0, -1))
    with pytest.raises(DataError, match=r"c.png is 3x4x4"):
        sads.load_images(tmp_path, size=4)
    assert sads.load_images(tmp_path, size=4, channels=1).shape == (3, 1, 4, 4)
    assert sads.load_images(tmp_path, size=(4, 6), channels=3).shape == (3, 3, 4, 6)


def test_a_wrong_shape_is_refused_or_mended(tmp_path):
    path = npy(tmp_path / "a.npy", GREY)
    with pytest.raises(DataError, match="are 1x5x7, expected 1x4x4: resize"):
        sads.load_images(path, shape=(1, 4, 4))
    assert sads.load_images(path, shape=(1, 4, 4), size=4).shape == (6, 1, 4, 4)


# Resizing and colours


def test_resize_covers_and_crops_the_centre(tmp_path):
    ramp = np.tile(20 * np.arange(12, dtype=np.uint8), (4, 1))  # (4, 12)
    path = npy(tmp_path / "a.npy", ramp[None])
    images = sads.load_images(path, size=4)  # no scaling, columns 4 .. 7
    assert torch.allclose(images[0, 0], scaled(ramp[:, 4:8]), atol=1e-6)


def test_sizes_and_ranges_may_be_arrays():
    expected = sads.load_images("digits", size=(4, 5), value_range=(0, 1), limit=3)
    size, limits = np.array([4, 5]), torch.tensor([0.0, 1.0])
    found = sads.load_images("digits", size=size, value_range=limits, limit=3)
    assert torch.equal(found, expected)
    same = sads.load_images("digits", shape=np.array([1, 8, 8]), limit=3)
    assert torch.equal(same, sads.load_images("digits", limit=3))


@pytest.mark.parametrize("size", [(3, 4), (7, 5), (20, 30)])
def test_resize_agrees_with_pillow(tmp_path, size):
    picture = RNG.random((15, 20)).astype(np.float32)
    path = npy(tmp_path / "a.npy", picture[None])
    height, width = size
    scale = max(height / 15, width / 20)
    covering = round(20 * scale), round(15 * scale)  # Pillow counts width first
    resized = np.asarray(Image.fromarray(picture).resize(covering, Image.Resampling.BILINEAR))
    top, left = (resized.shape[0] - height) // 2, (resized.shape[1] - width) // 2
    expected = 2 * resized[top : top + height, left : left + width] - 1
    ours = sads.load_images(path, size=size, value_range=(0, 1))
    np.testing.assert_allclose(ours[0, 0], expected, atol=1e-5)


def test_grey_agrees_with_pillow_and_colour_repeats(tmp_path):
    path = npy(tmp_path / "a.npy", COLOUR)
    pictures = [Image.fromarray(np.moveaxis(c, 0, -1)) for c in COLOUR]
    expected = scaled(np.stack([np.asarray(p.convert("L")) for p in pictures]))
    ours = sads.load_images(path, channels=1)[:, 0]
    assert torch.allclose(ours, expected, atol=1.01 / 127.5)  # Pillow rounds
    grey = npy(tmp_path / "g.npy", GREY)
    assert torch.equal(
        sads.load_images(grey, channels=3), sads.load_images(grey).expand(-1, 3, -1, -1)
    )


def test_opacity_is_dropped(tmp_path):
    rgba = np.concatenate([COLOUR, COLOUR[:, :1]], axis=1)
    path = npy(tmp_path / "a.npy", rgba)
    assert torch.allclose(sads.load_images(path, channels=3), scaled(COLOUR), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is"),
        ({"size": (1, 2, 3)}, "size is"),
        ({"channels": 2}, "channels is 1"),
        ({"limit": 0}, "limit must be"),
        ({"value_range": (1, 1)}, "low < high"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sads.load_images("digits", **options)


# Named data sets


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    expected = load_digits()
    images = sads.load_images("digits")
    assert images.shape == (1797, 1, 8, 8)
    np.testing.assert_allclose(images[:, 0], expected.images / 8 - 1, atol=1e-6)
    assert sads.load_labels("digits").tolist() == expected.target.tolist()
    assert torch.equal(sads.load_images("digits", limit=7), images[:7])


def encoded(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [True, False])
def test_parquet_as_the_hub_writes_it(tmp_path, nested):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    contents = [encoded(GREY[0]), b"damaged", None, encoded(GREY[1])]
    cells = [{"bytes": c, "path": None} for c in contents] if nested else contents
    table = pyarrow.table({"label": [0, 1, 2, 3], "image": cells})
    parquet.write_table(table, tmp_path / "a.parquet")
    result = sads.read_images(tmp_path / "a.parquet")
    assert torch.allclose(result.images[:, 0], scaled(GREY[:2]), atol=1e-6)
    assert result.skipped == (
        ("a.parquet[1]", "cannot identify image"),
        ("a.parquet[2]", "empty"),
    )
    parquet.write_table(table.select(["label"]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="no column of encoded images, only label"):
        sads.load_images(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="cannot read"):
        sads.load_images(write(tmp_path / "c.parquet", b"PAR1 damaged"))


class FakeRows(list):
    """What `datasets.load_dataset` returns, as far as the reader goes."""

    def __init__(self, features, rows):
        super().__init__(rows)
        self.features = features

    def select_columns(self, column):
        return FakeRows(self.features, [{column: row[column]} for row in self])

    def cast_column(self, column, feature):
        assert not feature.decode
        return self


def fake_hub(monkeypatch, features=None, error=None):
    class Picture:
        def __init__(self, decode=True):
            self.decode = decode

    def load_dataset(name, split, streaming):
        if error:
            raise error
        rows = [{"label": 0, "image": {"bytes": encoded(g), "path": None}} for g in GREY]
        return FakeRows(features or {"label": int, "image": Picture()}, rows[split == "test" :])

    module = types.SimpleNamespace(load_dataset=load_dataset, Image=Picture)
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_hub_by_name_and_split(monkeypatch):
    fake_hub(monkeypatch)
    images = sads.load_images("hub:someone/digits")
    assert torch.allclose(images[:, 0], scaled(GREY), atol=1e-6)
    assert torch.equal(sads.load_images("hub:someone/digits:test"), images[1:])


def test_hub_failures_are_one_line(monkeypatch):
    fake_hub(monkeypatch, features={"label": int})
    with pytest.raises(DataError, match="no column of images, only label"):
        sads.load_images("hub:someone/labels")
    fake_hub(monkeypatch, error=ConnectionError("no network\ndetails"))
    with pytest.raises(DataError, match="from the hub: no network; check the name"):
        sads.load_images("hub:someone/digits")


@pytest.mark.parametrize(("module", "source"), [("datasets", "hub:x"), ("pyarrow", "x.parquet")])
def test_missing_extra_is_named(monkeypatch, module, source):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'sads\[datasets\]'"):
        sads.load_images(source)


# Through the command line


def test_probe_takes_any_source_and_an_index(tmp_path):
    path = npy(tmp_path / "a.npy", GREY)

    def images(source, shape=(1, 5, 7)):
        return read_probe(f"forward:{source}", shape).images

    assert images(path).shape == (6, 1, 5, 7)
    assert torch.equal(images(f"{path}:4"), sads.load_images(path)[4:5])
    assert images("digits:3", (1, 8, 8)).shape == (1, 1, 8, 8)
    with pytest.raises(DataError, match=r"has images 0 to 5 .*, not '6'"):
        images(f"{path}:6")
    with pytest.raises(DataError, match=r"cannot read missing.npz"):
        images("missing.npz")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mnist_10k", (10_000, 1, 28, 28)),
        ("cifar10_10k", (10_000, 3, 32, 32)),
        ("orl_faces_56", (400, 1, 56, 56)),
    ],
)
def test_shared_data(name, shape):
    path = SHARED / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    images = sads.load_images(path, shape=shape[1:])
    assert images.shape == shape
    assert -1 <= float(images.min()) < -0.9
    assert 0.9 < float(images.max()) <= 1


class TestSphereDirections:
    """Three directions of one end; a choice where they are some of a cluster."""

    @pytest.fixture(scope="class")
    def directions(self):
        """A DiT has clusters only: four equal eigenvalues each, and a large null space."""
        return sads.estimate_geometry(sads.family("dit", (1, 16, 16))).directions()

    @pytest.mark.parametrize("end", ["preferred", "avoided"])
    def test_they_are_orthonormal_and_of_the_end(self, directions, end):
        vectors = sphere_directions(directions, end, seed=3).flatten(1)
        assert torch.allclose(vectors @ vectors.T, torch.eye(3, dtype=torch.float64), atol=1e-12)
        cluster = directions.cluster_of(-1 if end == "preferred" else 0)
        span = directions.vectors[cluster.start : cluster.stop].flatten(1)
        assert torch.allclose((vectors @ span.T).norm(dim=1), torch.ones(3, dtype=torch.float64))
        other = sphere_directions(directions, end, seed=4).flatten(1)
        assert torch.linalg.svdvals(vectors @ other.T)[-1] < 0.99

    def test_they_do_not_depend_on_the_basis_of_the_cluster(self, directions):
        """Another LAPACK has other eigenvectors in a null space."""
        cluster = directions.cluster_of(-1)
        vectors = directions.vectors.clone()
        members = vectors[cluster.start :].flatten(1)
        turn = torch.linalg.qr(torch.randn(len(members), len(members)).double()).Q
        vectors[cluster.start :] = (turn @ members).reshape(-1, 1, 16, 16)
        turned = copy.copy(directions)
        vars(turned)["vectors"] = vectors
        given, expected = (sphere_directions(d, "preferred", 7) for d in (turned, directions))
        assert torch.allclose(given, expected, atol=1e-10)

    def test_individual_directions_are_taken_as_they_are(self):
        family = sads.family("cnn", (1, 2, 3), channels=4, depth=1)  # of a square two are equal
        directions = sads.estimate_geometry(family, 512).directions()
        resolved = directions.resolved[:3].all()
        assert resolved
        assert torch.equal(sphere_directions(directions, "avoided"), directions.avoided(3))
