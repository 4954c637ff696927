"""Images that could be misread and sources that mean harm: understood, or refused in one line."""

import gzip
import io
import os
import resource
import socket
import struct
import subprocess
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sads
from mutations import cases, mutated
from sads.cli.evaluate import read_samples
from sads.cli.reading import read_dataset, read_probe
from sads.data import readers
from sads.data.arrays import load_array
from sads.data.layouts import arrange, parse_layout
from sads.data.readers import Found, Skipped, register_reader
from sads.data.spec import read_data
from sads.errors import DataError, InvalidArgumentError, SadsError, printable

RNG = np.random.default_rng(1)
EIGHT_BITS = RNG.integers(0, 256, (5, 3, 6, 7), dtype=np.uint8)
EIGHT_BITS.flat[:2] = 0, 255
TERABYTE = 10**12


def npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def picture(path: Path, array: np.ndarray, **options: object) -> Path:
    Image.fromarray(array).save(path, **options)
    return path


def scaled(array: np.ndarray, low: float, high: float) -> torch.Tensor:
    return torch.from_numpy(2 * (array.astype(np.float64) - low) / (high - low) - 1).float()


def close(images: torch.Tensor, expected: torch.Tensor) -> bool:
    return images.shape == expected.shape and torch.allclose(images, expected, atol=1e-6)


def refused(source: object, match: str, **options: object) -> str:
    with pytest.raises(DataError, match=match) as caught:
        sads.load_images(source, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.isprintable()  # one line, no control characters
    return text


# The range of values


FLOATS = RNG.random((4, 1, 5, 6))
FLOATS.flat[:2] = 0, 1


@pytest.mark.parametrize(
    ("array", "low", "high"),
    [
        (FLOATS, 0, 1),
        (FLOATS - 1e-7, 0, 1),  # a rounding error below 0
        (FLOATS * 1.00005, 0, 1),
        (2 * FLOATS - 1, -1, 1),
        (2.0001 * FLOATS - 1.00005, -1, 1),
        (FLOATS.astype(np.float16), 0, 1),
        (FLOATS.astype(">f4"), 0, 1),
        (np.asfortranarray(FLOATS), 0, 1),
        (EIGHT_BITS.astype(">u2") * 257, 0, 65535),
        (np.asfortranarray(EIGHT_BITS), 0, 255),
        (EIGHT_BITS > 100, 0, 1),
        (np.zeros((2, 1, 5, 5), np.uint8), 0, 255),
    ],
)
def test_ranges_that_are_understood(tmp_path, array, low, high):
    result = sads.read_images(npy(tmp_path / "a.npy", array))
    assert close(result.images, scaled(array, low, high))
    assert f"values {low} to {high}" in result.statement()


def with_one(value: float) -> np.ndarray:
    array = np.tile(FLOATS, (100, 1, 1, 1))
    array.flat[17] = value
    return array


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (EIGHT_BITS // 255, r"from 0 to 1 in uint8.*value_range=\(0, 1\).*--value-range 0,1"),
        (EIGHT_BITS.astype(np.uint16), r"from 0 to 255 in uint16.*\(0, 255\)"),
        (EIGHT_BITS // 16, r"from 0 to 15 in uint8.*is 15 white"),
        (EIGHT_BITS.astype(np.uint16) * 50, r"is 16383 white"),
        (EIGHT_BITS.astype(np.uint16) * 16, r"in uint16.*is 4095 white.*\(0, 4095\)"),
        (EIGHT_BITS.astype(np.int16), "type int16, whose range is not known"),
        (EIGHT_BITS.astype(np.uint32), "type uint32, whose range is not known"),
        (EIGHT_BITS.astype(np.float32), r"floats from 0 to 255.*--value-range 0,255"),
        (1.2 * FLOATS - 0.1, "floats from -0.1 to 1.1.*value_range"),
        (FLOATS - 0.05, "is black 0 or -1"),  # overshot by a resize, or -1 to 1?
        (with_one(-0.7), "1 of 12,000 below 0: is black 0 or -1"),
        (with_one(1.5), "floats from 0 to 1.5"),
        (FLOATS / 255, "nearly black if white is 1"),
        (with_one(np.nan), "has NaN"),
        (with_one(-np.inf), "has NaN or infinity"),
        (1e300 * FLOATS, "has NaN or infinity"),  # not in float32
    ],
)
def test_ranges_that_are_refused(tmp_path, array, words):
    refused(npy(tmp_path / "a.npy", array), words)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.float32, np.float64])
def test_a_range_that_is_given_is_taken(tmp_path, dtype):
    array = EIGHT_BITS.astype(dtype)
    result = sads.read_images(npy(tmp_path / "a.npy", array), value_range=(0, 510))
    assert close(result.images, scaled(array, 0, 510))
    assert "values 0 to 510 as given" in result.statement()


def test_large_whole_numbers_keep_their_differences(tmp_path):
    array = np.array([2**40, 2**40 + 1, 2**40 + 2]).reshape(1, 1, 3)
    path = npy(tmp_path / "a.npy", array)
    images = sads.load_images(path, value_range=(2**40, 2**40 + 2), layout="NHW")
    assert images.flatten().tolist() == [-1, 0, 1]


def test_a_range_is_decided_over_all_images(tmp_path, monkeypatch):
    """Neither block by block nor by the last picture."""
    both = 2 * FLOATS - 1
    array = np.concatenate([FLOATS[:2], both, both])  # the first block alone would be 0 to 1
    monkeypatch.setattr("sads.data.images.BLOCK", 2)
    assert close(sads.load_images(npy(tmp_path / "a.npy", array)), scaled(array, -1, 1))


def test_images_of_two_ranges_are_no_set(tmp_path):
    for number, array in enumerate([*FLOATS[:, 0], *(2 * FLOATS[:, 0] - 1)]):
        picture(tmp_path / f"{number}.tif", array.astype(np.float32))
    refused(tmp_path, "4 of 8 images have none below 0")


def test_pictures_of_several_kinds_in_one_folder_keep_their_ranges(tmp_path):
    grey = EIGHT_BITS[0, 0]
    picture(tmp_path / "a.tif", (grey / 255).astype(np.float32))
    picture(tmp_path / "b.png", grey)
    picture(tmp_path / "c.png", grey.astype(np.uint16) * 257)
    result = sads.read_images(tmp_path)
    assert close(result.images[:, 0], scaled(np.stack([grey] * 3), 0, 255))
    assert "values 0 to 1 and 0 to 255 and 0 to 65535" in result.statement()


def test_what_was_found_is_said_where_it_is_small_or_beyond(tmp_path):
    dark = npy(tmp_path / "a.npy", EIGHT_BITS // 4)
    assert "values 0 to 255, found 0 to 63" in sads.read_images(dark).statement()
    beyond = npy(tmp_path / "b.npy", 3 * FLOATS)
    statement = sads.read_images(beyond, value_range=(0, 1)).statement()
    assert "values 0 to 1 as given, found 0 to 3" in statement


# The layout


@pytest.mark.parametrize(
    ("shape", "layout", "asked"),
    [
        ((9, 5, 7), "NHW", None),
        ((1, 5, 7), "NHW", None),
        ((9, 3, 5, 7), "NCHW", None),
        ((9, 5, 7, 3), "NHWC", None),
        ((9, 5, 7, 2), "NHWC", None),
        ((9, 2, 5, 7), "NCHW", None),
        ((9, 6, 5, 7), "NCHW", None),
        ((9, 8, 8, 8), "NCHW", None),
        ((9, 1, 1, 1), "NCHW", None),
        ((9, 1, 4, 4), "NCHW", None),  # not 4 channels of 1x4
        ((9, 4, 4, 1), "NHWC", None),
        # The shape asked for decides.
        ((32, 32, 3), "HWC", (3, 32, 32)),
        ((32, 32, 3), "NHW", (1, 32, 3)),
        ((3, 8, 8), "CHW", (3, 8, 8)),
        ((3, 8, 8), "NHW", (1, 8, 8)),
        ((9, 3, 5, 4), "NCHW", (3, 5, 4)),
        ((9, 3, 5, 4), "NHWC", (4, 3, 5)),
        ((9, 5, 7, 6), "NHWC", (6, 5, 7)),
        ((5, 7), "HW", (1, 5, 7)),
        # Lines.
        ((9, 64), "NL", (1, 64)),
        ((1, 64), "NL", (1, 64)),
        ((64,), "L", (1, 64)),
        ((2, 8), "CL", (2, 8)),
        ((9, 2, 8), "NCL", (2, 8)),
        ((9, 8, 2), "NLC", (2, 8)),
        ((9, 8, 8), "NCL", (8, 8)),
        # No place at all, and volumes.
        ((9, 6), "NC", (6,)),
        ((9, 1, 4, 5, 6), "NCDHW", (1, 4, 5, 6)),
    ],
)
def test_layouts_that_are_understood(tmp_path, shape, layout, asked):
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    result = sads.read_images(npy(tmp_path / "a.npy", array), shape=asked)
    axes = "nc" + "".join(a for a in "dhwl" if a.upper() in layout)
    sizes = dict.fromkeys(axes, 1) | dict(zip(layout.lower(), shape, strict=True))
    named = np.einsum(f"{layout.lower()}->{''.join(a for a in axes if a.upper() in layout)}", array)
    assert close(result.images, scaled(named.reshape([sizes[a] for a in axes]), 0, 255))
    assert " x ".join(layout) in result.statement()


@pytest.mark.parametrize(
    ("shape", "words", "asked"),
    [
        ((32, 32, 3), r"32 images of 1x32x3 \(NHW\) or 1 image of 3x32x32 \(HWC\)", None),
        ((9, 5, 1), r"9 images of 1x5x1 \(NHW\) or 1 image of 1x9x5 \(HWC\)", None),
        ((3, 8, 8), r"3 images of 1x8x8 \(NHW\) or 1 image of 3x8x8 \(CHW\)", None),
        ((9, 3, 5, 4), r"3x5x4 \(NCHW\) or 9 images of 4x3x5 \(NHWC\)", None),
        ((9, 1, 5, 1), r"1x5x1 \(NCHW\) or 9 images of 1x1x5 \(NHWC\)", None),
        ((9, 3, 3, 3), r"\(NCHW\) or .*\(NHWC\)", (3, 3, 3)),
        ((3, 3, 3), r"\(CHW\) or .*\(HWC\)", (3, 3, 3)),
        ((5, 7), r"shape \(5, 7\), expected .*layout=", None),
        ((5,), r"shape \(5,\), expected", None),
        ((2,) * 6, "expected", None),
        ((2,) * 12, "expected", None),
        ((), r"shape \(\)", None),
        ((9, 32), "1x32, expected 1x64", (1, 64)),
    ],
)
def test_layouts_that_are_refused(tmp_path, shape, words, asked):
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    refused(npy(tmp_path / "a.npy", np.asarray(array)), words, shape=asked)


@pytest.mark.parametrize(
    "layout", ["NHWC", "NCHW", "CHWN", "WHCN", "chw", "HWC", "NHW", "WH", "HW"]
)
def test_a_layout_that_is_given_is_taken(tmp_path, layout):
    sizes = {"N": 2, "C": 3, "H": 4, "W": 3}
    array = RNG.integers(0, 256, [sizes[a] for a in layout.upper()], dtype=np.uint8)
    images = sads.load_images(npy(tmp_path / "a.npy", array), layout=layout)
    assert images.shape == tuple(sizes[a] if a in layout.upper() else 1 for a in "NCHW")
    back = images[:, 0] if "C" not in layout.upper() else images
    kept = "".join(a for a in ("NCHW" if "C" in layout.upper() else "NHW"))
    named = arrange(array, parse_layout(layout))
    assert close(images, scaled(named, 0, 255))
    first = {a: sizes[a] - 1 for a in layout.upper()}  # one value, found by the names of its axes
    value = array[tuple(first[a] for a in layout.upper())]
    assert float(back[tuple(first.get(a, 0) for a in kept)]) == pytest.approx(
        2 * float(value) / 255 - 1, abs=1e-6
    )


@pytest.mark.parametrize("layout", ["", "N", "NN", "NHWX", "NHHW", "H", "LHW", "NCHWD!"])
def test_what_is_no_layout(layout):
    with pytest.raises(InvalidArgumentError, match="is not a layout"):
        sads.load_images("digits", layout=layout)
    with pytest.raises(InvalidArgumentError, match="layout must be a text"):
        sads.load_images("digits", layout=3)


def test_a_layout_must_fit_the_array_and_pictures_have_their_own(tmp_path):
    refused(npy(tmp_path / "a.npy", EIGHT_BITS), "must name 4 axes", layout="HWC")
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        sads.load_images("digits", layout="NCHW")


def test_lines_are_not_resized_and_thin_images_are_not_blown_up(tmp_path):
    lines = npy(tmp_path / "a.npy", EIGHT_BITS[:, 0])
    refused(lines, "cannot be resized", layout="NCL", size=4)
    thin = npy(tmp_path / "b.npy", np.arange(100_000, dtype=np.uint8)[None, None])
    refused(thin, "hardly anything is left", size=32)
    refused(lines, "of memory", size=10**7)


@pytest.mark.parametrize("shape", [(0, 3, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0), (5, 0, 4, 4), (0,)])
def test_sizes_of_zero(tmp_path, shape):
    refused(npy(tmp_path / "a.npy", np.zeros(shape, np.uint8)), "empty|no pixels|expected")


def test_lines_from_files_and_from_samples_of_a_model(tmp_path):
    lines = RNG.uniform(-1, 1, (50, 64)).astype(np.float32)
    data = read_data(str(npy(tmp_path / "a.npy", lines)), (1, 64))
    assert torch.equal(data.samples, torch.from_numpy(lines)[:, None])
    assert "read 50 samples of 1x64" in data.statement
    np.savez(tmp_path / "samples.npz", images=3 * lines.reshape(50, 8, 8))
    (tmp_path / "samples.json").write_text('{"shape": [8, 8]}')
    assert read_samples(tmp_path / "samples.npz").shape == (50, 8, 8)
    (tmp_path / "samples.json").write_text('{"shape": [1, 8, 8]}')
    assert read_samples(tmp_path / "samples.npz").shape == (50, 1, 8, 8)
    for damaged in ("null", "[]", '{"shape": null}', '{"shape": "1x8"}', "{", '{"shape": [0]}'):
        (tmp_path / "samples.json").write_text(damaged)
        if damaged == "[]":
            continue
        with pytest.raises(DataError, match="does not say the shape"):
            read_samples(tmp_path / "samples.npz")


# Pictures


def test_floats_in_tiff_are_not_black(tmp_path):
    values = FLOATS[0, 0].astype(np.float32)
    path = picture(tmp_path / "a.tif", values)
    assert close(sads.load_images(path)[0, 0], scaled(values, 0, 1))


def test_sixteen_and_thirty_two_bits(tmp_path):
    sixteen = np.array([[0, 13107, 65535]], dtype=np.uint16)
    for name in ("a.png", "a.tif", "a.pgm"):
        if name == "a.pgm":
            header = b"P5 3 1 65535\n"
            (tmp_path / name).write_bytes(header + sixteen.astype(">u2").tobytes())
        else:
            picture(tmp_path / name, sixteen)
        assert sads.load_images(tmp_path / name).flatten().tolist() == pytest.approx([-1, -0.6, 1])
    wide = picture(tmp_path / "b.tif", np.array([[0, 10**6, 2 * 10**6]], dtype=np.int32))
    refused(wide, "whose range is not known")
    images = sads.load_images(wide, value_range=(0, 2 * 10**6))
    assert images.flatten().tolist() == pytest.approx([-1, 0, 1])


def test_masks_in_pictures(tmp_path):
    mask = (EIGHT_BITS[0, 0] > 100).astype(np.uint8)
    refused(picture(tmp_path / "a.png", mask), "from 0 to 1 in uint8")
    assert close(sads.load_images(tmp_path / "a.png", value_range=(0, 1))[0, 0], scaled(mask, 0, 1))
    picture(tmp_path / "b.png", mask.astype(bool))  # of one bit
    assert close(sads.load_images(tmp_path / "b.png")[0, 0], scaled(mask, 0, 1))


@pytest.mark.parametrize("mode", ["P", "CMYK", "YCbCr", "RGBA", "LA", "1", "L", "RGB"])
def test_spaces_of_colour_are_those_of_pillow(tmp_path, mode):
    original = Image.fromarray(np.moveaxis(EIGHT_BITS[0], 0, -1)).convert(mode)
    path = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    original.save(path)
    grey = mode in ("1", "L", "LA")
    with Image.open(path) as again:
        expected = np.atleast_3d(np.asarray(again.convert("L" if grey else "RGB")))
    result = sads.read_images(path)
    assert close(result.images[0], scaled(np.moveaxis(expected, -1, 0), 0, 255))
    assert ("are converted from" in result.statement()) == (mode in ("CMYK", "YCbCr"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
def test_opacity_is_ignored_with_a_word(tmp_path, mode):
    original = Image.fromarray(np.moveaxis(EIGHT_BITS[0], 0, -1))
    if mode in ("RGBA", "LA"):
        seen = original.convert(mode)
        seen.putalpha(128)
        seen.save(tmp_path / "a.png")
    else:
        seen = original.convert(mode)
        seen.save(tmp_path / "a.png", transparency=int(np.asarray(seen).flat[0]))
    assert "1 have their opacity ignored" in sads.read_images(tmp_path).statement()
    original.convert("RGBA").save(tmp_path / "a.png")  # opaque
    assert not sads.read_images(tmp_path).notes


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("name", ["a.gif", "a.tif", "a.webp", "a.png"])
def test_every_frame_is_an_image(tmp_path, name, colour):
    arrays = EIGHT_BITS.transpose(0, 2, 3, 1) if colour else EIGHT_BITS[:, 0]
    frames = [Image.fromarray(a) for a in arrays]
    options = {"lossless": True} if name == "a.webp" else {}
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
    result = sads.read_images(tmp_path)
    assert result.num_read == 5
    assert "5 are frames of animated pictures" in result.statement()
    with Image.open(tmp_path / name) as first:  # palettes and WebP have colours, grey as they are
        channels = 1 if first.mode == "L" else 3
    expected = EIGHT_BITS if colour else EIGHT_BITS[:, :1].repeat(channels, axis=1)
    assert close(result.images, scaled(expected, 0, 255))
    assert torch.equal(sads.load_images(tmp_path, limit=2), result.images[:2])


def test_small_copies_in_a_tiff_file_are_no_images(tmp_path):
    """And neither is the preview in a file of a camera (MPO)."""
    first, second = Image.fromarray(EIGHT_BITS[0, 0]), Image.fromarray(EIGHT_BITS[0, 0][:3, :3])
    second.encoderinfo = {"tiffinfo": {254: 1}}
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    assert sads.read_images(tmp_path / "a.tif").images.shape == (1, 1, 6, 7)
    first.save(tmp_path / "b.jpg", format="MPO", save_all=True, append_images=[second])
    assert sads.read_images(tmp_path / "b.jpg").images.shape == (1, 1, 6, 7)


def test_a_damaged_frame_does_not_take_the_others_with_it(tmp_path):
    frames = [Image.fromarray(a) for a in EIGHT_BITS[:, 0]]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    content = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(content[: len(content) * 7 // 10])
    result = sads.read_images(tmp_path)
    assert 0 < result.num_read < 5
    assert "skipped 1: a.tif[" in result.statement()


def test_postscript_is_not_run(tmp_path):
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    refused(tmp_path, "cannot identify image")


# Sources that are no files, or not what they say


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_name_does_not_read_the_current_folder(tmp_path, monkeypatch, empty):
    picture(tmp_path / "a.png", EIGHT_BITS[0, 0])
    monkeypatch.chdir(tmp_path)
    words = "have no name|got an empty text"
    with pytest.raises(SadsError, match=words):
        sads.load_images(empty)
    with pytest.raises(SadsError, match=words):
        read_probe(f"forward:{empty}", (1, 6, 7))
    with pytest.raises(SadsError, match=words):
        read_data(empty, (1, 6, 7))
    assert len(sads.load_images(".")) == 1


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null", "/dev/full"])
def test_devices(device):
    refused(device, "it is a device, not a file")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".png", ".gz", ".parquet", ""])
@pytest.mark.parametrize("kind", ["pipe", "socket", "loop", "link to /dev/zero"])
def test_pipes_sockets_and_loops(tmp_path, monkeypatch, suffix, kind):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path(f"a{suffix}")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    words = {
        "pipe": "a pipe",
        "socket": "a socket",
        "loop": "Too many|symbolic",
        "link to /dev/zero": "device",
    }
    refused(path, words[kind])
    if suffix == ".npz":
        with pytest.raises(DataError, match=words[kind]):
            sads.load_labels(path)
    if suffix == ".png":  # inside a folder it is skipped
        picture(Path("b.png"), EIGHT_BITS[0, 0])
        result = sads.read_images(".")
        assert [name for name, _ in result.skipped] == ["a.png"]
        assert result.num_read == 1


def test_a_pipe_on_standard_input(tmp_path):
    reading, writing = os.pipe()
    try:
        refused(f"/dev/fd/{reading}", "a pipe")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_folder_by_the_name_of_an_archive(tmp_path):
    folder = tmp_path / "a.npz"
    folder.mkdir()
    refused(folder, "no images in .*it is empty")
    picture(folder / "b.png", EIGHT_BITS[0, 0])
    assert read_data(str(folder), (1, 6, 7)).samples.shape == (1, 1, 6, 7)
    assert sads.load_labels(folder) is None


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b.npy", "a\0b", "nowhere/" * 2000, "~", "\udcff"])
def test_names_that_no_file_can_have(name):
    refused(name, "cannot read|no such|No such")
    with pytest.raises(SadsError):
        read_data(name, (1, 6, 7))
    with pytest.raises(SadsError):
        read_data(f"{name}:3", (1, 6, 7))


def test_names_cannot_write_to_the_terminal(tmp_path):
    odd = "a\x1b[31m\nb\r\u202e"
    folder = tmp_path / odd
    folder.mkdir()
    picture(folder / "a.png", EIGHT_BITS[0, 0])
    (folder / f"{odd}.png").write_bytes(b"damaged")
    (folder / f"{odd}.txt").write_bytes(b"damaged")
    result = sads.read_images(folder)
    assert result.statement().isprintable()
    assert r"a\x1b[31m\nb\r\u202e.png (cannot identify image)" in result.statement()
    refused(tmp_path / f"{odd}.npy", "No such file")
    np.savez(tmp_path / "b.npz", **{odd: EIGHT_BITS, "y": EIGHT_BITS})
    refused(tmp_path / "b.npz", r"\\x1b.*expected one named 'images'")
    assert printable("né 好 a b") == "né 好 a b"


def test_many_arrays_are_not_all_named(tmp_path):
    np.savez(tmp_path / "a.npz", **{f"array{k}": np.zeros(1) for k in range(300)})
    assert len(refused(tmp_path / "a.npz", "and 295 more")) < 400


@pytest.fixture
def deep_folder() -> Iterator[Path]:
    """Not below pytest's own folders, which pytest could not remove."""
    top = tempfile.mkdtemp(prefix="sads-deep-")
    yield Path(top)
    subprocess.run(["rm", "-rf", top], check=True)


def deepen(folder: Path, depth: int) -> None:
    """Make folders d/d/d/... , each relative to the one above: the path may get too long."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


def test_folders_deeper_than_the_stack_of_python(deep_folder):
    deepen(deep_folder, 1500)
    picture(deep_folder / ("d/" * 1500) / "a.png", EIGHT_BITS[0, 0])
    assert len(sads.load_images(deep_folder)) == 1


def test_folders_deeper_than_paths_are_long(deep_folder):
    deepen(deep_folder, 2200)
    refused(deep_folder, "cannot read the folder .*File name too long")


def test_links_to_folders_are_skipped_with_a_word(tmp_path):
    picture(tmp_path / "a.png", EIGHT_BITS[0, 0])
    (tmp_path / "up").symlink_to(tmp_path)
    result = sads.read_images(tmp_path)
    assert result.num_read == 1
    assert result.skipped == (("up", "a link to a folder, not followed"),)


def test_files_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(path, *_: object, **__: object):  # root may read everything
        raise PermissionError(13, "Permission denied", str(path))

    npy(tmp_path / "a.npy", EIGHT_BITS)
    picture(tmp_path / "b.png", EIGHT_BITS[0, 0])
    monkeypatch.setattr("sads.untrusted.os.open", refuse)
    refused(tmp_path / "a.npy", "cannot read .*a.npy: Permission denied")
    refused(tmp_path, r"b.png \(Permission denied\)")


# Headers that lie, and bombs


def header(shape: str, descr: str = "'|u1'", more: bytes = b"") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + more


HEADERS = {
    "terabyte": header(f"({TERABYTE}, 1, 1)"),
    "beyond 64 bits": header(f"({TERABYTE}, {TERABYTE}, {TERABYTE})"),
    "negative": header("(-1, 5, 5)", more=bytes(25)),
    "zero of a terabyte": header(f"(0, {TERABYTE}, {TERABYTE})"),
    "no tuple": header("5"),
    "of floats": header("(1.5, 2)"),
    "of nothing": header("None"),
    "object": header("(2, 2, 2)", "'|O'", bytes(64)),
    "structured": header("(2, 2, 2)", "[('a', '<f4'), ('b', '<f4')]", bytes(64)),
    "structured text": header("(2, 2, 2)", "'f4,f4'", bytes(64)),
    "subarray": header("(2,)", "'(1000000,1000000)f4'"),
    "complex": header("(2, 2, 2)", "'<c8'", bytes(64)),
    "dates": header("(2, 2, 2)", "'<M8[s]'", bytes(64)),
    "void": header("(2, 2, 2)", f"'|V{2**30}'", bytes(64)),
    "no type": header("(2, 2, 2)", "'nonsense'", bytes(8)),
    "a call": header("(2, 2, 2)", "__import__('os')", bytes(8)),
    "nested": header("(" * 3000 + ")" * 3000),
    "not closed": header("(2, 2"),
    "too short": header("(2, 5, 5)", more=bytes(49)),
    "too long": header("(2, 5, 5)", more=bytes(51)),
    "a long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31),
    "of the future": b"\x93NUMPY\x09\x00" + bytes(100),
    "magic": b"\x93NUMPY",
    "nothing": b"",
    "text": b"hello",
}


def refused_at_once(source: Path, match: str) -> None:
    """In seconds, and in little memory."""
    tracemalloc.start()
    try:
        started = time.perf_counter()
        refused(source, match)
        assert time.perf_counter() - started < 3
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_lie(tmp_path, name):
    content = HEADERS[name]
    (tmp_path / "a.npy").write_bytes(content)
    refused_at_once(tmp_path / "a.npy", "a.npy")
    (tmp_path / "b.npz").write_bytes(content)
    refused_at_once(tmp_path / "b.npz", "b.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", content)
    refused_at_once(tmp_path / "c.npz", "c.npz")
    with pytest.raises(DataError):
        sads.load_labels(tmp_path / "c.npz")


def zeros(path: Path, size: int, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive with an honest array of `size` zeros."""
    with (
        zipfile.ZipFile(path, "w", compression, compresslevel=9) as archive,
        archive.open("images.npy", "w", force_zip64=True) as file,
    ):
        file.write(header(f"({size >> 20}, 1024, 1024)"))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return path


def test_archives_that_unpack_to_more_than_images_do(tmp_path):
    path = zeros(tmp_path / "a.npz", 256 << 20)
    assert path.stat().st_size < 1 << 20
    refused_at_once(path, "unpacks from .* kB to 268.4 MB.*without compression")
    with pytest.raises(DataError, match="unpacks"):
        load_array(path, lambda names: names[0])
    small = zeros(tmp_path / "b.npz", 1 << 20)  # as compressed, but of no harm
    assert sads.load_images(small).shape == (1, 1, 1024, 1024)
    refused(zeros(tmp_path / "c.npz", 1 << 20, zipfile.ZIP_LZMA), "compressed in a way")
    refused(zeros(tmp_path / "d.npz", 1 << 20, zipfile.ZIP_BZIP2), "compressed in a way")


def test_archives_whose_directory_lies(tmp_path):
    """The size that is declared is not the one that is unpacked, in both directions."""
    np.savez_compressed(tmp_path / "a.npz", images=EIGHT_BITS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    true = struct.unpack_from("<I", content, entry + 24)[0]
    for wrong in (0, true - 1, true + 1, 2**31, 2**32 - 2):
        struct.pack_into("<I", content, entry + 24, wrong)
        (tmp_path / "b.npz").write_bytes(content)
        refused(tmp_path / "b.npz", "b.npz")
    struct.pack_into("<I", content, entry + 24, true)
    content[entry + 8] |= 1  # encrypted
    content[6] |= 1
    (tmp_path / "b.npz").write_bytes(content)
    refused(tmp_path / "b.npz", "encrypted")


def test_what_does_not_fit_into_memory_is_refused_before(tmp_path, monkeypatch):
    path = npy(tmp_path / "a.npy", RNG.integers(0, 256, (300, 1, 200, 200), dtype=np.uint8))
    monkeypatch.setattr("sads.environment.available_memory", lambda: 50_000_000)
    refused(path, r"needs 96.0 MB of memory, 50.0 MB are available.*limit=")
    assert len(sads.load_images(path, limit=50)) == 50
    monkeypatch.setattr("sads.environment.available_memory", lambda: 5_000_000)
    refused(path, "needs 96.0 MB of memory, 5.0 MB are available")
    assert len(sads.load_images(path, limit=5)) == 5  # the others are not read


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4, 5, 9])
def test_rows_that_are_read_some_at_a_time_are_those_of_the_array(
    tmp_path, monkeypatch, order, layout, limit
):
    array = np.asarray(EIGHT_BITS.transpose(["NCHW".index(axis) for axis in layout]), order=order)
    monkeypatch.setattr("sads.data.images.BLOCK", 2)
    expected = scaled(EIGHT_BITS, 0, 255)[:limit]
    np.savez_compressed(tmp_path / "a.npz", images=array)
    for path in (npy(tmp_path / "a.npy", array), tmp_path / "a.npz"):
        assert close(sads.load_images(path, layout=layout, limit=limit), expected)


def test_damage_behind_the_rows_that_were_asked_for_is_not_met(tmp_path):
    path = npy(tmp_path / "a.npy", EIGHT_BITS)
    np.savez_compressed(tmp_path / "a.npz", images=np.concatenate([EIGHT_BITS] * 2000))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:-5000] + bytes(100) + content[-4900:])
    assert len(sads.load_images(path, limit=2)) == 2
    assert len(sads.load_images(tmp_path / "a.npz", limit=2)) == 2
    refused(tmp_path / "a.npz", "cannot read")


def test_a_file_full_of_holes(tmp_path):
    """It has a terabyte by its header and by its size, and takes no room on the disk."""
    start = header(f"({TERABYTE // 64}, 8, 8)")
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(start)
        try:
            file.truncate(len(start) + TERABYTE)
        except OSError:
            pytest.skip("no file of this size here")
    refused(tmp_path / "a.npy", "needs 8,000.0 GB of memory")
    assert sads.load_images(tmp_path / "a.npy", limit=3).shape == (3, 1, 8, 8)


def idx(shape: tuple[int, ...], content: bytes, code: int = 8) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape) + content


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        idx((2**32 - 1,) * 3, b""),
        idx((2**32 - 1,) * 200, bytes(50)),
        idx((2**32 - 1, 16, 16), bytes(500)),
        idx((2**20, 2**10, 2), bytes(500)),
        idx((2, 5, 5), bytes(49)),
        idx((2, 5, 5), bytes(51)),
        idx((2, 5, 5), bytes(50), code=7),
        idx((0, 5, 5), b""),
        idx((5, 0, 5), b""),
        idx((), b"1"),
        idx((), b""),
        b"\0\0",
        b"",
    ],
)
def test_idx_files_that_lie(tmp_path, content, packed):
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(content) if packed else content)
    refused_at_once(path, "a")


def test_idx_files_that_unpack_without_end(tmp_path):
    bomb = gzip.compress(idx((64, 1024, 1024), bytes(64 << 20)), compresslevel=9)
    (tmp_path / "a.gz").write_bytes(bomb)
    refused_at_once(tmp_path / "a.gz", "unpacks")
    # A modest header before a flood: no more than its end is read.
    (tmp_path / "b.gz").write_bytes(gzip.compress(idx((2, 5, 5), bytes(64 << 20))))
    refused_at_once(tmp_path / "b.gz", "the file has more")


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_pictures_that_unpack_to_more_than_images_do(tmp_path, mode):
    Image.new(mode, (9000, 9000)).save(tmp_path / "a.png")
    Image.new("L", (8, 8), 77).save(tmp_path / "b.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sads.read_images(tmp_path)
    assert result.num_read == 1
    (name, reason), *_ = result.skipped
    assert name == "a.png"
    assert "unpacks" in reason


def test_pictures_of_absurd_sizes(tmp_path):
    Image.new("L", (8, 8), 77).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    struct.pack_into(">II", content, 16, 2**31 - 1, 2**31 - 1)
    import zlib

    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (tmp_path / "a.png").write_bytes(content)
    refused(tmp_path, "exceeds limit|unpacks")


def test_animations_without_end(tmp_path, monkeypatch):
    frames = [Image.fromarray(a) for a in EIGHT_BITS[:, 0]]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    monkeypatch.setattr("sads.data.picture_files.MAX_FRAMES", 3)
    result = sads.read_images(tmp_path)
    assert result.num_read == 3
    assert result.skipped == (("a.gif[3]", "it has more than 3 frames"),)
    monkeypatch.setattr("sads.data.sources.SMALL", 100)
    monkeypatch.setattr("sads.data.sources.RATIO", 0.01)
    assert "unpacks" in sads.read_images(tmp_path).skipped[0][1]


# Labels


def test_labels_that_are_refused(tmp_path):
    def labels(**arrays: np.ndarray) -> torch.Tensor | None:
        np.savez(tmp_path / "a.npz", images=EIGHT_BITS, **arrays)
        return sads.load_labels(tmp_path / "a.npz")

    assert labels() is None
    found = labels(labels=np.array([1, 2, 3, 4, 5], ">i2"))
    assert found is not None
    assert found.tolist() == [1, 2, 3, 4, 5]
    for array, words in (
        (np.array([{}], dtype=object), "pickled objects"),
        (np.array(["a"]), "type <U1, expected one whole number for each image"),
        (np.zeros((2, 2), int), "one whole number"),
        (np.zeros(5), "one whole number"),
        (np.array([2**64 - 1], np.uint64), "expected classes"),
    ):
        with pytest.raises(DataError, match=words):
            labels(labels=array)
    labels(labels=np.arange(3))
    with pytest.raises(DataError, match="3 labels for 5 images"):
        read_data(str(tmp_path / "a.npz"), (3, 6, 7))
    labels(labels=np.arange(9))
    for source, limit in (("a.npz", None), ("a.npz", 7), ("a.npz:2", 3)):
        with pytest.raises(DataError, match="9 labels for 5 images"):
            read_data(str(tmp_path / source), (3, 6, 7), limit)
    with pytest.raises(InvalidArgumentError, match="limit"):
        sads.load_labels("digits", limit=-3)


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {"value_range": (1, 0)},
        {"value_range": (0, float("nan"))},
        {"value_range": (0, float("inf"))},
        {"value_range": (-1e308, 1e308)},
        {"value_range": (0, 1, 2)},
        {"value_range": 255},
        {"value_range": ("a", "b")},
        {"size": "16"},
        {"size": (1.5, 2)},
        {"size": -3},
        {"limit": 1.5},
        {"limit": "3"},
        {"limit": True},
        {"shape": 16},
        {"shape": ()},
        {"shape": (1, 0, 8)},
        {"shape": "1x8x8"},
        {"channels": "RGB"},
    ],
)
def test_arguments_that_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        sads.load_images("digits", **options)


@pytest.mark.parametrize("number", ["²", "--5", "9" * 5000, "٣"])
def test_numbers_of_images_that_are_none(number):
    with pytest.raises(SadsError):
        read_data(f"digits:{number}", (1, 8, 8))
    with pytest.raises(SadsError):
        read_data(f"rank-one:dct:{number}", (1, 8, 8))


def test_ranges_and_layouts_on_the_command_line(tmp_path, capsys):
    path = npy(tmp_path / "a.npy", EIGHT_BITS.transpose(0, 2, 3, 1).astype(np.int32))
    data = read_dataset(str(path), (3, 6, 7), None, value_range="0,255", layout="NHWC")
    assert close(data.samples, scaled(EIGHT_BITS, 0, 255))
    probe = read_probe(f"forward:{path}", (3, 6, 7), value_range="0,255", layout="NHWC")
    assert torch.equal(probe.images, data.samples)
    err = capsys.readouterr().err
    assert err.startswith("note: read 5 images of 3x6x7")
    assert "N x H x W x C, values 0 to 255 as given" in err
    for wrong in ("255", "0,", "1,0", "0,inf", "nan,1", "0,1,2", ""):
        with pytest.raises(InvalidArgumentError, match="is not a range of values"):
            read_dataset(str(path), (3, 6, 7), None, value_range=wrong)
    with pytest.raises(InvalidArgumentError, match="leave them out"):
        read_dataset("rank-one:dct:3", (1, 6, 7), 9, layout="NHWC")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["align", "m.npy", "--family", "mlp", "--shape", "1x8x8"], "from 0 to 1 in uint8"),
        (["train", "mlp", "m.npy", "--shape", "1x8x8", "--out", "r"], "--value-range 0,1"),
        (["geometry", "mlp", "--shape", "1x8x8", "--probe", "forward:m.npy"], "in uint8"),
        (["evaluate", "m.npz", "m.npy"], "--value-range 0,1"),
        (["train", "mlp", "/dev/zero", "--shape", "1x8x8", "--out", "r"], "it is a device"),
        (["train", "mlp", "", "--shape", "1x8x8", "--out", "r"], "is empty"),
        (["train", "mlp", "m.npy", "--shape", "1x8x8", "--out", "r", "--layout", "Q"], "a layout"),
        (["train", "mlp", "m.npy", "--shape", "1x8", "--out", "r"], "shape (40, 8, 8)|1x8"),
    ],
)
def test_commands_refuse_in_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    from sads.cli.main import main

    monkeypatch.chdir(tmp_path)
    npy(tmp_path / "m.npy", RNG.integers(0, 2, (40, 8, 8), dtype=np.uint8))
    np.savez(tmp_path / "m.npz", images=RNG.standard_normal((40, 1, 8, 8)))
    monkeypatch.setattr("sys.argv", ["sads", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    err = capsys.readouterr().err
    assert exit_.value.code == 2
    assert err.count("\n") == 1
    assert any(word in err for word in words.split("|"))


@pytest.mark.parametrize("command", ["align", "train", "geometry", "evaluate"])
def test_every_command_that_reads_images_has_the_options(monkeypatch, capsys, command):
    from sads.cli.main import main

    monkeypatch.setattr("sys.argv", ["sads", command, "--help"])
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "--value-range" in out
    assert "--layout" in out


# Readers of others


@pytest.fixture
def no_new_readers(monkeypatch):
    monkeypatch.setattr(readers, "BY_SUFFIX", dict(readers.BY_SUFFIX))
    monkeypatch.setattr(readers, "BY_PREFIX", dict(readers.BY_PREFIX))


@pytest.mark.usefixtures("no_new_readers")
def test_a_reader_can_be_added_from_outside(tmp_path):
    def read_raw(path: Path) -> Iterator[tuple[str, object]]:
        yield path.name, np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 3, 6, 7)
        yield "other", Skipped("of no use")

    def read_constant(text: str) -> Iterator[tuple[str, object]]:
        yield text, Found(np.full((2, 4, 4, 1), int(text)), laid_out=False, value_range=(0, 10))

    register_reader(".raw", read_raw)
    register_reader("constant:", read_constant)
    (tmp_path / "A.RAW").write_bytes(EIGHT_BITS.tobytes())
    data = read_data(str(tmp_path / "A.RAW"), (3, 6, 7), resize=False)
    assert close(data.samples, scaled(EIGHT_BITS, 0, 255))
    assert data.skipped == (("other", "of no use"),)
    result = sads.read_images("constant:5", layout="NHWC")
    assert torch.equal(result.images, torch.zeros(2, 1, 4, 4))
    assert "(N x H x W x C, values 0 to 10)" in result.statement()
    assert read_data("constant:5:1", (1, 4, 4), None).samples.shape == (1, 1, 4, 4)


@pytest.mark.usefixtures("no_new_readers")
def test_readers_that_are_refused(tmp_path):
    for name in ("", ".", ":", "h5", "rank-one:", "sphere:"):
        with pytest.raises(InvalidArgumentError, match="suffix such as"):
            register_reader(name, readers.read_numpy)
    for wrong in ([1, 2], np.array(["a"]), np.array(3), np.zeros(3), None):
        register_reader("wrong:", lambda _, item=wrong: iter([("a", item)]))
        refused("wrong:", "expected")
    for read, words in (
        (lambda _: None, "failed: .*not iterable"),
        (lambda _: iter([FLOATS]), "yields ndarray, expected pairs"),
        (lambda _: ({}[name] for name in "a"), "failed: .*KeyError: 'a'"),
    ):
        register_reader("wrong:", read)
        refused("wrong:", f"the reader of wrong: {words}")
    register_reader("tensor:", lambda _: iter([("a", torch.from_numpy(FLOATS))]))
    assert close(sads.load_images("tensor:"), 2 * torch.from_numpy(FLOATS).float() - 1)


# Thousands of damaged files


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


SMALL_IMAGES = EIGHT_BITS[:3, 0, :5, :5]
FRAMES = [Image.fromarray(a) for a in SMALL_IMAGES]
FLOAT = Image.fromarray(SMALL_IMAGES[0].astype(np.float32) / 255)


def frames(form: str) -> bytes:
    return saved(lambda b: FRAMES[0].save(b, form, save_all=True, append_images=FRAMES[1:]))


VALID = {
    "a.npy": saved(lambda b: np.save(b, SMALL_IMAGES[:, None].astype(np.float32) / 255)),
    "a.npz": saved(lambda b: np.savez(b, images=SMALL_IMAGES[:, None], labels=np.arange(3))),
    "b.npz": saved(lambda b: np.savez_compressed(b, images=SMALL_IMAGES[:, None])),
    "a": idx((3, 5, 5), SMALL_IMAGES.tobytes()),
    "a.gz": gzip.compress(idx((3, 5, 5), SMALL_IMAGES.tobytes())),
    "a.png": saved(lambda b: FRAMES[0].save(b, "PNG")),
    "b.png": frames("PNG"),
    "a.gif": frames("GIF"),
    "a.tif": frames("TIFF"),
    "b.tif": saved(lambda b: FLOAT.save(b, "TIFF", compression="tiff_lzw")),
    "a.webp": frames("WEBP"),
    "a.jpg": saved(lambda b: FRAMES[0].save(b, "JPEG")),
    "a.bmp": saved(lambda b: FRAMES[0].save(b, "BMP")),
    "a.ppm": saved(lambda b: FRAMES[0].convert("RGB").save(b, "PPM")),
}


@pytest.mark.parametrize("name", VALID)
def test_damaged_files_end_in_images_or_in_one_line(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("damaged")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
    slowest = 0.0

    def read(content: bytes) -> None:
        nonlocal slowest
        (folder / name).write_bytes(content)
        started = time.thread_time()  # others may keep this machine busy
        for call in (sads.read_images, sads.load_labels):
            try:
                result = call(folder / name)
            except SadsError as error:
                text = str(error)
            else:
                text = result.statement() if isinstance(result, sads.ImageSet) else ""
                if isinstance(result, sads.ImageSet):
                    assert result.images.isfinite().all()
                    assert result.images.numel() > 0
            assert text.isprintable()
        slowest = max(slowest, time.thread_time() - started)

    read(VALID[name])
    assert sads.read_images(folder / name).num_read in (1, 3)
    for content in cases(250, mutated(VALID[name], head=160)):
        read(content)
    assert slowest < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
