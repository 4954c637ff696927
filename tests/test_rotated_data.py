"""Rotated data in somebody else's `DataLoader`."""

import pickle
import re
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import sads
from killing import finish
from sads.errors import InvalidArgumentError


class Images(Dataset):
    """Twelve images of 1x3x3 in the form that is asked for."""

    def __init__(self, form: str):
        self.form = form
        self.images = torch.randn(12, 1, 3, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 12

    def __getitem__(self, i):
        image = self.images[i]
        return {
            "tensor": image,
            "tuple": (image, i),
            "list": [image, i],
            "second": (i, image),
            "dict": {"images": image, "label": i},
        }[self.form]


class Named(NamedTuple):
    image: torch.Tensor
    label: int


def test_named_tuples_and_arrays_stay_what_they_are(rotation):
    image = torch.randn(1, 3, 3)
    expected = rotation.apply(image[None])[0]
    item = sads.RotatedDataset([Named(image, 5)], rotation)[0]
    assert isinstance(item, Named)
    assert torch.equal(item.image, expected)
    assert torch.equal(sads.RotatedDataset([image.numpy()], rotation)[0], expected)


@pytest.mark.parametrize("key", [1, 2, -3, "image"])
def test_entries_that_are_no_images_are_refused(rotation, key):
    with pytest.raises(InvalidArgumentError, match="items are a tuple of Tensor, int, expected"):
        sads.RotatedDataset([(torch.zeros(1, 3, 3), 5)], rotation, key)[0]


def test_out_holds_what_is_written_to_it(rotation):
    x = torch.randn(2, 1, 3, 3)
    with pytest.raises(InvalidArgumentError, match="expected a contiguous floating-point tensor"):
        rotation.apply(x, out=torch.zeros(2, 1, 3, 3, dtype=torch.int64))
    with torch.inference_mode():
        z = x.clone()
        assert torch.equal(rotation.apply(z, out=z), rotation.apply(x))
    out = torch.zeros(2, 1, 3, 3, requires_grad=True)
    assert torch.equal(rotation.apply(x, out=out), rotation.apply(x))


KEYS = {"tensor": None, "tuple": None, "list": None, "second": 1, "dict": "images"}


@pytest.fixture(scope="module")
def rotation():
    geometry = sads.estimate_geometry(sads.family("cnn", (1, 3, 3)), 64)
    return sads.rotation(geometry, Images("tensor").images, "min")


def images_of(batch, key):
    return batch if isinstance(batch, torch.Tensor) else batch[0 if key is None else key]


@pytest.mark.parametrize("form", KEYS)
def test_data_set_and_collate_rotate_the_images_and_nothing_else(form, rotation):
    data, key = Images(form), KEYS[form]
    expected = rotation.apply(data.images)
    plain = DataLoader(data, batch_size=5)
    wrapped = DataLoader(sads.RotatedDataset(data, rotation, key), batch_size=5)
    collated = DataLoader(data, batch_size=5, collate_fn=sads.rotate_collate(rotation, key=key))
    for loader in (wrapped, collated):
        found = torch.cat([images_of(batch, key) for batch in loader])
        torch.testing.assert_close(found, expected)
        for before, after in zip(plain, loader, strict=True):
            assert type(before) is type(after)
            if form == "dict":
                assert torch.equal(before["label"], after["label"])
            elif form != "tensor":
                other = 0 if form == "second" else 1
                assert torch.equal(before[other], after[other])
    assert len(sads.RotatedDataset(data, rotation)) == 12


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_give_the_same_batches(start, rotation):
    data = Images("tuple")
    loader = DataLoader(
        sads.RotatedDataset(data, rotation),
        batch_size=6,
        collate_fn=sads.rotate_collate(rotation),  # once more: both go to the workers
        num_workers=2 if start == "fork" else 1,  # each of the others imports PyTorch
        multiprocessing_context=start,
    )
    found = torch.cat([images for images, _ in loader])
    torch.testing.assert_close(found, rotation.apply(rotation.apply(data.images)))


def test_collate_is_pickled_and_takes_another(rotation):
    collate = pickle.loads(pickle.dumps(sads.rotate_collate(rotation, _double)))
    items = [torch.ones(1, 3, 3), torch.zeros(1, 3, 3)]
    torch.testing.assert_close(collate(items), rotation.apply(2 * torch.stack(items)))


def _double(items):
    return 2 * torch.stack(items)


def test_items_without_an_image_are_refused_in_one_line(rotation):
    with pytest.raises(InvalidArgumentError, match="say which entry is the image"):
        sads.RotatedDataset(Images("dict"), rotation)[0]
    with pytest.raises(InvalidArgumentError, match="say which entry is the image"):
        sads.RotatedDataset(["text"], rotation)[0]
    with pytest.raises(InvalidArgumentError, match=r"expected \(N, 1, 3, 3\)"):
        sads.RotatedDataset([torch.ones(1, 4, 4)], rotation)[0]


@pytest.mark.slow
def test_the_example_with_diffusers_runs(tmp_path, processes):
    pytest.importorskip("diffusers")
    finish(processes, run_example, tmp_path / "printed")
    printed = (tmp_path / "printed").read_text()
    assert re.search(r"epoch 1: loss 0\.\d+", printed)
    assert re.search(r"without a digit: \d+\.\d% ±", printed)


def run_example(printed):
    """With the first 500 digits: an epoch of seven batches."""
    example = Path(__file__).parents[1] / "examples" / "diffusers_rotation.py"
    torch.set_num_threads(1)
    images, labels = sads.load_images("digits")[:500], sads.load_labels("digits")[:500]
    sads.load_images, sads.load_labels = lambda _: images, lambda _: labels
    sys.argv = [str(example), "1"]
    with printed.open("w") as sys.stdout:
        runpy.run_path(str(example), run_name="__main__")
