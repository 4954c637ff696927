"""The atlas: published sizes, profiles against bases, and a command that goes on where it was."""

import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import sads
from commands import Sads
from pictures import draw_in_haste
from sads.adapters import presets
from sads.adapters.diffusers import model_class
from sads.adapters.presets import PRESETS, TRANSFORMER, UNET, Preset
from sads.atlas import compute, entry, page
from sads.estimates import batch_mean
from sads.geometry.profile import border_profile, energies_of, frequency_profile

pytest.importorskip("diffusers")

MILLIONS = {  # parameters as published, of diffusers' module for DiT
    "sd15": 859.5,
    "sdxl": 2567.5,
    "ddpm-cifar10-32": 35.7,
    "ddpm-256": 113.7,
    "adm-64": 295.9,
    "edm-64": 295.9,
    "dit-xl-2": 749.8,
    "pixart": 610.9,
    "sd3": 2028.3,
    "flux": 11901.4,
}
TINY = Preset(
    name="tiny",
    title="A tiny U-Net",
    kind=UNET,
    shape=(3, 8, 8),
    model="UNet2DModel",
    config={
        "block_out_channels": [8, 16],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "UpBlock2D"],
        "add_attention": False,
    },
    scheduler=presets.DDPM,
    source="nobody",
    networks=16,
)
DIT = Preset(
    name="tokens",
    title="A tiny transformer",
    kind=TRANSFORMER,
    shape=(4, 8, 8),
    model="DiTTransformer2DModel",
    config={**presets.DIT, "sample_size": 8, "num_layers": 1, "num_attention_heads": 2},
    scheduler=presets.DDPM,
    source="nobody",
    networks=16,
    options={"drop_variance": True},
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(PRESETS):
        monkeypatch.delitem(PRESETS, name)
    for one in (TINY, DIT):
        monkeypatch.setitem(PRESETS, one.name, one)


@pytest.mark.parametrize("name", PRESETS)
def test_networks_are_as_large_as_published(name: str) -> None:
    preset = PRESETS[name]
    with torch.device("meta"):
        model: Any = model_class(preset.model, name)(**preset.config)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(
        MILLIONS[name], abs=0.06
    )


def test_a_preset_is_a_family(tiny: None) -> None:
    family = sads.family("atlas:tiny")
    assert (family.name, family.shape, family.prediction) == ("tiny", (3, 8, 8), "epsilon")
    with pytest.raises(sads.SadsError, match="predicts tokens, not scores"):
        sads.family("atlas:u-vit")


@pytest.mark.parametrize("name", ["tiny", "tokens"])
def test_profiles_are_means_of_energies_along_bases(tiny: None, name: str) -> None:
    geometry = sads.estimate_geometry(sads.family(f"atlas:{name}"), 16)
    for basis in ("dct", "canonical"):
        expected = geometry.quadratic(sads.basis(basis, geometry.shape).vectors).values
        expected = expected.reshape(geometry.shape[0], -1).mean(dim=0)
        given = batch_mean(energies_of(geometry, basis), geometry.counts)
        assert torch.allclose(given, expected, rtol=1e-9)
    mean = geometry.trace / geometry.dimension
    smooth = geometry.quadratic(torch.ones(1, 1, 8, 8).expand(1, geometry.shape[0], 8, 8))
    profile = frequency_profile(geometry)
    assert float(profile.energies.values[0]) == pytest.approx(
        float(smooth.values[0]) / geometry.dimension / mean, rel=0.02
    )
    for curve in (profile, border_profile(geometry)):
        weights = curve.counts / curve.counts.sum()
        assert float((weights * curve.energies.values).sum()) == pytest.approx(1)
        assert (curve.places.diff() > 0).all()


@pytest.mark.pictures
def test_the_command_computes_skips_and_adds_networks(
    tiny: None, command: Sads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # the last command makes all pictures once more
        patch.setattr(Figure, "savefig", draw_in_haste)
        made = json.loads(command.succeed("atlas", "tiny", "--out", "a", "--json"))
        assert [one["networks"] for one in made] == [16]
        first = (tmp_path / "a" / "tiny.json").read_bytes()
        command.succeed("atlas", "tiny", "--out", "a", "--json")
        assert (tmp_path / "a" / "tiny.json").read_bytes() == first
    command.succeed("atlas", "--networks", 32, "--out", "a", "--json")
    found = entry.load(tmp_path / "a", "tiny")
    assert found is not None
    whole = sads.estimate_geometry(sads.family("atlas:tiny"), 32).directions()
    assert found[0].networks == 32
    assert found[0].largest == pytest.approx(float(whole.values[0]), rel=1e-6)
    assert {"atlas.png", "README.md", "tiny.npz", "tokens.png"} <= {
        path.name for path in (tmp_path / "a").iterdir()
    }
    text = (tmp_path / "a" / "README.md").read_text()
    assert "1 of 1 U-Nets" in text or "0 of 1 U-Nets" in text
    assert max(p.stat().st_size for p in (tmp_path / "a").glob("*.[jn]*")) < 1 << 20


def test_an_entry_without_a_matrix_has_the_same_curves(tiny: None, tmp_path: Path) -> None:
    """As that of ddpm-256, whose factor would have 65,536 rows."""
    family = sads.family("atlas:tiny")
    whole, free = (sads.estimate_geometry(family, 32, matrix_free=m) for m in (False, True))
    dense, _ = entry.describe(TINY, whole, 1, "")
    made, directions = entry.describe(TINY, free, 1, "")
    assert made.effective_rank is None
    for curve in ("frequency", "border"):
        ours, theirs = getattr(made, curve), getattr(dense, curve)
        assert ours.places == theirs.places
        assert ours.values == pytest.approx(theirs.values, rel=1e-3)
    assert directions.avoided.shape[1:] == (8, 8)
    assert made.largest == pytest.approx(float(dense.largest), rel=0.2)
    entry.save(made, directions, tmp_path)
    assert entry.load(tmp_path, "tiny") is not None
    page.write_page(tmp_path, [made], "")


@pytest.mark.parametrize("matrix_free", [False, True])
def test_networks_that_cannot_be_added_are_not_drawn(
    tiny: None, tmp_path: Path, matrix_free: bool
) -> None:
    family = sads.family("atlas:tiny")
    other = dataclasses.replace(family, options={"class": "UNet2DModel"})
    kept = tmp_path / "work" / "tiny.safetensors"
    kept.parent.mkdir()
    family = family if matrix_free else other
    sads.estimate_geometry(family, 16, matrix_free=matrix_free).save(kept)
    before = kept.read_bytes()
    reason = "would lose its ends" if matrix_free else "of other networks"
    with pytest.raises(sads.SadsError, match=f"16 networks is .*{reason}"):
        compute.compute(TINY, 32, tmp_path, estimate=lambda *_: pytest.fail("it draws"))
    assert kept.read_bytes() == before


DAMAGE: dict[str, dict[str, Any]] = {
    "of another network": {"name": "other"},
    "or of none": {"kind": "teapot"},
    "words cannot be printed": {"notes": ["\x1b[31m"]},
    "its shape is not one": {"shape": [0, 8, 8]},
    "numbers of networks": {"networks": 10**400},
    "has lost numbers": {"border": {"places": [0.5], "values": [], "errors": [0.5]}},
    "not those of a geometry": {"trace": 0.0},
    "not between 0 and 1": {"avoided": {"frequency": 2.0, "border": 0.5}},
}


def test_damaged_entries_are_refused_in_one_line(tiny: None, tmp_path: Path) -> None:
    geometry = sads.estimate_geometry(sads.family("atlas:tiny"), 16)
    entry.save(*entry.describe(TINY, geometry, 1, ""), tmp_path)
    path = tmp_path / "tiny.json"
    good, arrays = json.loads(path.read_text()), path.with_suffix(".npz").read_bytes()
    for message, damage in DAMAGE.items():
        path.write_text(json.dumps({**good, **damage}))
        with pytest.raises(sads.SadsError, match=f"not an entry .*{message}.*remove it") as refusal:
            entry.load(tmp_path, "tiny")
        assert "\n" not in str(refusal.value)
    path.write_text(json.dumps(good))
    np.savez(
        path.with_suffix(".npz"), avoided=np.full((1, 8, 8), np.nan), preferred=np.ones((1, 8, 8))
    )
    with pytest.raises(sads.SadsError, match="its directions are none"):
        entry.load(tmp_path, "tiny")
    path.with_suffix(".npz").write_bytes(arrays)
    assert entry.load(tmp_path, "tiny") is not None


def test_what_the_page_says_follows_from_the_numbers(tiny: None, tmp_path: Path) -> None:
    one, _ = compute.compute(TINY, 16, tmp_path)
    flat = dataclasses.replace(
        one, frequency=entry.Curve((0.0, 0.5, 1.0), (0.5, 1.0, 2.0), (0.1, 0.1, 0.1))
    )
    said = page.findings([flat])
    assert said[0].endswith("0 of 1 U-Nets.")
    assert said[1].endswith("0 of 1 U-Nets.")


def test_bad_input_is_one_line(tiny: None, command: Sads, tmp_path: Path) -> None:
    assert "has no network 'sd16'" in command.fail("atlas", "sd16")
    assert "nothing of the atlas" in command.fail("atlas", "--page", "--out", "nowhere")
    assert "compute nothing" in command.fail("atlas", "--page", "--networks", 2)
    assert "compute nothing" in command.fail("atlas", "--list", "--networks", 2)
    assert "draws all that is there" in command.fail("atlas", "tiny", "--page")
    assert "ask for less" in command.fail("atlas", "tiny", "--networks", 10**13)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tiny.json").write_text('{"name": 3}')
    assert "not an entry of the atlas" in command.fail("atlas", "--page", "--out", "b")
    assert "source" in command.succeed("atlas", "--list")


def test_a_folder_in_use_is_one_line(tiny: None, command: Sads, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = os.open(tmp_path / "a", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    said = command.fail("atlas", "tiny", "--out", "a")
    os.close(other)
    assert said.startswith("error: another command is writing to a")
