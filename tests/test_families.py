"""Families by name: ours from Table 1, and others that register from outside."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sads
from sads import families, table1
from sads.errors import InvalidArgumentError


class Tiny(nn.Module):
    """A network of somebody else's, with an option of its own."""

    def __init__(self, shape: tuple[int, ...], width: int = 4):
        super().__init__()
        self.first = nn.Conv1d(shape[0], width, 3, padding=1)
        self.last = nn.Conv1d(width, shape[0], 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + t[:, None, None] / 1000))


@pytest.fixture(autouse=True)
def _known_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone after it."""
    monkeypatch.setattr(families, "ARCHITECTURES", dict(families.ARCHITECTURES))
    monkeypatch.setattr(families, "_COLUMNS", dict(families._COLUMNS))


def test_a_family_from_outside_is_used_like_ours() -> None:
    sads.register_family("tiny", Tiny)
    family = sads.family("tiny", shape=(2, 6), width=5)
    assert family.describe()["options"] == {"width": 5}
    assert sads.estimate_geometry(family, 16).estimator == "integrated"
    with pytest.raises(InvalidArgumentError, match="no option depth; it has width"):
        sads.family("tiny", shape=(2, 6), depth=5)


def test_a_family_without_a_preset_asks_for_a_shape() -> None:
    sads.register_family("tiny", Tiny)
    assert families.columns("tiny") == ()
    with pytest.raises(InvalidArgumentError, match=r"give it: sads.family\('tiny', shape=...\)"):
        sads.family("tiny")
    with pytest.raises(InvalidArgumentError, match="no preset"):
        sads.estimate_geometry("tiny")
    family = sads.family("tiny", shape=(1, 8))
    assert families.training_column(family, "any") == table1.IDDPM


def test_a_preset_gives_shape_options_and_training() -> None:
    column = table1.Column("mine", "", (1, 9), (("width", 7),), table1.Training(3, 4, 1e-2))
    sads.register_family("tiny", Tiny, columns=[column])
    family = sads.family("tiny")
    assert family.shape == (1, 9)
    assert family.options == {"width": 7}
    assert families.training_column(family, "any").training.iterations == 3
    assert families.columns("tiny")[0].family == "tiny"


def test_a_name_is_not_taken_twice() -> None:
    with pytest.raises(InvalidArgumentError, match="already"):
        sads.register_family("iddpm", Tiny)
    sads.register_family("iddpm", Tiny, again=True)
    assert isinstance(sads.family("iddpm", shape=(1, 4)).build(), Tiny)


def test_presets_are_the_columns_of_table_1() -> None:
    all_columns = [c for c in vars(table1).values() if isinstance(c, table1.Column)]
    assert sorted(families.columns(), key=str) == sorted(all_columns, key=str)
    for column in all_columns:
        family = sads.family(column.family, column.shape, **dict(column.options))
        assert family.shape == column.shape


@pytest.mark.parametrize("shape", [16, "1x16x16", (), (1, 0), (1, 2.5), None, (1, "4")])
def test_what_is_no_shape_is_refused(shape: object) -> None:
    with pytest.raises(InvalidArgumentError, match="shape"):
        sads.family(lambda: nn.Identity(), shape=shape)  # type: ignore[arg-type]
    if shape is not None:
        with pytest.raises(InvalidArgumentError, match=r"such as \(1, 16, 16\)"):
            sads.family("mlp", shape=shape)  # type: ignore[arg-type]


def test_shapes_may_hold_whole_numbers_of_any_kind() -> None:
    for shape in (np.array([1, 4, 4]), [np.int64(1), 4, np.uint8(4)], torch.Size((1, 4, 4))):
        family = sads.family("mlp", shape=shape)
        assert family.shape == (1, 4, 4)
        assert all(type(n) is int for n in family.shape)
        assert family.describe()["shape"] == [1, 4, 4]


def test_a_name_stands_for_a_family() -> None:
    geometry = sads.estimate_geometry("dit")
    expected = sads.estimate_geometry(sads.family("dit", shape=(1, 16, 16)))
    assert torch.equal(geometry.factors, expected.factors)
    with pytest.raises(InvalidArgumentError, match="unknown family 'iddpn'; choose one of iddpm"):
        sads.estimate_geometry("iddpn")
    with pytest.raises(InvalidArgumentError, match=r"got Identity; write sads\.family"):
        sads.estimate_geometry(nn.Identity())  # type: ignore[arg-type]
