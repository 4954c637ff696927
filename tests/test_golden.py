"""The numbers of a fixed specification change only together with `FORMAT`, or a layer's name.

A store of finished cells is read again by their hash, of which `FORMAT` and the name of the layers
are parts. If the numbers change and the hash does not, old and new cells are mixed in silence. The
tolerances are those of rounding after a few updates: another processor passes, another algorithm,
another stream of random numbers or another default does not.

    python tests/test_golden.py   # writes golden.json anew, after FORMAT was raised
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch

import sads
from cases import needs_compiler
from sads.cpu import c_code, layers_name
from sads.data.spec import DataSpec
from sads.experiments.run import digest_images, read_source, run_cell
from sads.experiments.spec import FORMAT, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Store
from sads.table1 import Sampling, Training
from sads.threads import pinned_threads

GOLDEN = Path(__file__).with_name("golden.json")
SHAPE = (1, 8, 8)
RELATIVE = {"losses": 1e-4, "samples": 1e-3, "sw2": 1e-3, "msw2": 1e-3, "eigenvalues": 1e-4}


def compute(layers: str) -> dict[str, list[float]]:
    """A training, its samples and their distance; with PyTorch's layers, which use two threads."""
    family = sads.family("iddpm", SHAPE, channel_mults=(1,), depth=1)
    x = sads.rank_one(sads.basis("dct", SHAPE).vectors[5], 64, seed=1)
    with pinned_threads(2 if layers == "torch" else 1):
        options = {"iterations": 5, "batch_size": 8, "learning_rate": 1e-3, "seed": 2}
        model = sads.train(family, x, **options)  # type: ignore[arg-type]
        assert model.provenance.layers == layers
        y = sads.sample(model, 50, steps=4, seed=3)
    distance = sads.sliced_wasserstein(x, y, num_projections=64, seed=4)
    geometry = sads.estimate_geometry(family, 32, seed=0)
    return {
        "losses": model.losses.tolist(),
        "samples": y.flatten(1)[:3, ::8].flatten().tolist(),
        "sw2": [float(distance.sw2)],
        "msw2": [float(distance.msw2)],
        "eigenvalues": geometry.directions().values[::9].tolist(),
    }


CELLS = {  # networks without convolutions: the same with all layers
    "rank-one": ("rank-one:dct:5", "identity"),
    "span": ("rank-one:geometry:2-5/3", "identity"),
    "sphere": ("sphere:geometry:preferred", "random:1"),
    "digits": ("digits", "min"),
}


def compute_cells() -> dict[str, list[float]]:
    """The numbers of one cell of each kind of data, from its specification to its record."""
    small = FamilySpec("dit", (1, 4, 4), (("depth", 1), ("hidden_size", 8), ("num_heads", 2)))
    large = FamilySpec("mlp", (1, 8, 8), (("depth", 1), ("width", 8)))
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, rotation) in CELLS.items():
            images, _ = read_source("digits", large.shape, {})
            cell = Cell(
                geometry=GeometrySpec(large if name == "digits" else small, 32),
                data=DataSpec.parse(data),
                num_data=200,
                training=Training(8, 20, 1e-3),
                sampling=Sampling(100, 4, projections_per_dimension=2),
                seed=1,
                layers=layers_name(),
                rotation=rotation,
                evaluate_at=(4, 8),
                data_sha256=digest_images(images) if name == "digits" else "",
            )
            record = run_cell(cell, Store(f"{folder}/store"))
            assert record is not None
            numbers[name] = [e.sw2 for e in record.evaluations]
            numbers[name] += [e.msw2 for e in record.evaluations]
            numbers[name] += [record.facts.alpha.value, *record.losses]
    return numbers


def test_numbers_of_cells_change_with_the_format_only() -> None:
    golden = json.loads(GOLDEN.read_text())["cells"]
    for name, numbers in compute_cells().items():
        expected = torch.tensor(golden[name])
        error = float(((torch.tensor(numbers) - expected) / expected).abs().max())
        assert error <= 2e-3, (
            f"the numbers of the {name} cell differ by {error:.1e}: raise FORMAT in "
            "experiments/spec.py, then run `python tests/test_golden.py`"
        )


@pytest.mark.parametrize(
    "layers", ["torch", pytest.param(c_code.NAME, marks=needs_compiler)], ids=["torch", "ours"]
)
def test_numbers_change_with_their_name_only(layers: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["format"] == FORMAT, "FORMAT was raised: run `python tests/test_golden.py`"
    assert layers in golden["numbers"], f"{layers} is new: run `python tests/test_golden.py`"
    for name, numbers in compute(layers).items():
        mine, expected = torch.tensor(numbers), torch.tensor(golden["numbers"][layers][name])
        error = float((mine - expected).abs().max() / expected.abs().max())
        assert error <= RELATIVE[name], (
            f"{name} of {layers} differ by {error:.1e}: raise FORMAT in experiments/spec.py, then "
            "update these numbers (if only the CPU layers changed, raise NAME in cpu/c_code.py)"
        )


def test_the_numbers_would_notice_another_seed_or_default() -> None:
    """Half a percent of the learning rate, of the last update alone, is seen."""
    golden = json.loads(GOLDEN.read_text())["numbers"]["torch"]
    family = sads.family("iddpm", SHAPE, channel_mults=(1,), depth=1)
    x = sads.rank_one(sads.basis("dct", SHAPE).vectors[5], 64, seed=1)
    options = {"iterations": 5, "batch_size": 8, "learning_rate": 1.005e-3, "seed": 2}
    losses = sads.train(family, x, **options).losses  # type: ignore[arg-type]
    expected = torch.tensor(golden["losses"])
    assert (losses - expected).abs().max() > 2 * RELATIVE["losses"] * expected.abs().max()


def test_both_layers_are_kept_under_names_of_their_own() -> None:
    numbers = json.loads(GOLDEN.read_text())["numbers"]
    assert set(numbers) == {"torch", c_code.NAME}


if __name__ == "__main__":
    content = {
        "format": FORMAT,
        "numbers": {name: compute(name) for name in ("torch", c_code.NAME)},
        "cells": compute_cells(),
    }
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
