"""Probes of users: names, functions, and objects with no more than `draw`."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sads
from cases import FEW_LEVELS, small_family
from sads.errors import InvalidArgumentError
from sads.schedule import Schedule

Rng = np.random.Generator


class Half:
    """`N(0, I / 4)`, and nothing said about it."""

    def draw(self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: Rng) -> Tensor:
        return 0.5 * torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


class KnownHalf(Half, sads.Probe):
    """The same law, and what is known about it."""

    isotropic = True

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        return 0.25 * float(weights.sum())


class Stranger(Half):
    """No child of ours, yet it says all."""

    isotropic = True

    def second_moment(self, schedule: Schedule, weights: Tensor) -> float:
        return 0.25 * float(weights.sum())

    def describe(self) -> dict[str, str]:
        return {"name": "stranger", "of": "test"}


def _estimate(probe: object, prediction: str = "epsilon") -> sads.Geometry:
    family = sads.family("cnn", (1, 4, 4), channels=6, prediction=prediction, schedule=FEW_LEVELS)
    return sads.estimate_geometry(family, 32, seed=1, probe=probe)


def test_an_object_that_can_draw_is_a_probe() -> None:
    """The draws are those of our own Gaussian probe, so all numbers are, but for symmetries."""

    def estimate(probe: object) -> sads.Geometry:
        return sads.estimate_geometry(small_family("unet"), 32, seed=1, probe=probe)

    ours = estimate(sads.probe("gaussian", width=0.5))
    assert ours.provenance.symmetries == ("transposition",)
    for known in (KnownHalf(), Stranger()):
        given = estimate(known)
        assert torch.equal(given.factors, ours.factors)
        assert given.provenance.symmetries == ours.provenance.symmetries
    plain = estimate(Half())
    assert plain.estimator == "integrated"
    assert plain.provenance.symmetries == ()
    symmetric = plain.factor().reshape(4, 4, 4, 4).permute(1, 0, 3, 2).reshape(16, 16)
    assert torch.allclose((plain.factor() + symmetric) / 2, ours.factor())


def test_what_is_known_about_a_probe_is_used() -> None:
    ours = _estimate(sads.probe("gaussian", width=0.5), "v")
    for known in (KnownHalf(), Stranger()):
        assert torch.equal(_estimate(known, "v").factors, ours.factors)
    unknown = _estimate(Half(), "v")
    assert unknown.estimator == "outer-product"
    assert "E[x x^T] of the probe is not known" in unknown.provenance.notes[0]


def test_probes_say_who_they_are() -> None:
    assert _estimate(Half()).provenance.probe == {"name": "Half"}
    assert _estimate(KnownHalf()).provenance.probe == {"name": "KnownHalf"}
    assert _estimate(Stranger()).provenance.probe == {"name": "stranger", "of": "test"}
    assert sads.probe(_ones).describe() == {"name": "_ones"}


def _ones(level: int, generator: torch.Generator) -> Tensor:
    return torch.ones(1, 4, 4)


def test_names_functions_and_classes_are_probes_too() -> None:
    zero = _estimate("zero")
    assert torch.equal(zero.factors, _estimate(None).factors)
    assert torch.equal(_estimate(Half).factors, _estimate(Half()).factors)
    assert torch.equal(_estimate("gaussian").factors, _estimate(sads.probe("gaussian")).factors)
    assert torch.equal(_estimate(_ones).factors, _estimate(sads.probe(_ones)).factors)
    assert not torch.equal(_estimate(_ones).factors, zero.factors)


@pytest.mark.parametrize("estimator", ["auto", "monte-carlo"])
def test_what_a_probe_may_not_return(estimator: str) -> None:
    class Bad(Half):
        def draw(self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: Rng) -> Tensor:
            return torch.zeros(3)

    with pytest.raises(InvalidArgumentError, match=r"returned \(3,\), expected .* \(1, 4, 4\)"):
        sads.estimate_geometry(small_family("unet"), 8, probe=Bad(), estimator=estimator)
    with pytest.raises(InvalidArgumentError, match="returned ndarray"):
        sads.estimate_geometry(small_family("unet"), 8, probe=lambda level, generator: np.zeros(2))


@pytest.mark.parametrize("probe", ["unit", 3, object(), np.ones(2)])
def test_what_is_no_probe_is_refused(probe: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"unknown probe .* zero, gaussian or forward"):
        _estimate(probe)


class Ones(type(sads.probe("zero"))):  # type: ignore[misc]
    """Its class is one of ours, its inputs are not."""

    def draw(self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: Rng) -> Tensor:
        return torch.ones(shape)


class Twos(Ones):
    """It draws as its parent does, twice as much: that is a `draw` of its own, too."""

    isotropic = True

    def draw(self, shape: tuple[int, ...], level: int, schedule: Schedule, rng: Rng) -> Tensor:
        return 2 * super().draw(shape, level, schedule, rng)


def test_what_a_probe_is_lies_in_its_inputs_not_in_its_class() -> None:
    """With `a = -1` at every level the geometry holds `E[x x^T]`, of ones in every entry."""
    zero, ones = (_estimate(probe, "v") for probe in ("zero", Ones()))
    assert ones.provenance.probe == {"name": "Ones"}
    constant = torch.full((16,), 0.25, dtype=torch.float64)
    added = ones.energy(constant) - zero.energy(constant)
    assert added > 8  # 16 if the networks had nothing to do with it
    twos = sads.probe(Twos())
    assert (twos.isotropic, sads.probe(Ones()).isotropic) == (True, False)
    assert twos.second_moment(sads.Schedule(), torch.ones(3)) is None


def zero(level: int, generator: torch.Generator) -> Tensor:
    return torch.ones(1, 4, 4)


def test_a_name_of_ours_does_not_make_a_probe_ours() -> None:
    assert _estimate(zero).provenance.probe == {"name": "custom zero"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"draw": lambda *_: torch.full((1, 4, 4), torch.nan)}, "NaN or infinity at level"),
        (
            {"draw": lambda *_: torch.full((1, 4, 4), 1e39, dtype=torch.double)},
            "NaN or infinity at level",
        ),
        ({"draw": lambda *_: torch.ones(1, 4, 4) * 1j}, "complex64, expected real numbers"),
        ({"second_moment": lambda *_: math.nan}, "second moment of the probe is nan"),
        ({"second_moment": lambda *_: torch.ones(3)}, r"type Tensor and shape \(3,\), expected"),
        ({"second_moment": lambda *_: torch.eye(2)}, "of 2 coordinates, the data have 16"),
        ({"describe": lambda *_: "zero"}, "describes itself as 'zero', expected a mapping"),
        ({"describe": lambda *_: {"x": torch.ones(1)}}, "that JSON can hold"),
    ],
)
def test_what_is_wrong_with_a_probe_is_said_before_networks_are_drawn(
    said: dict[str, Any], message: str
) -> None:
    probe = type("Mine", (Half,), said)()
    with pytest.raises(InvalidArgumentError, match=message):
        _estimate(probe, "v")


class DrawsElsewhere:
    """From generators that all code shares, not from the one that it is given."""

    def draw(self, shape, level, schedule, rng):
        return torch.randn(shape) + float(np.random.randn()) + random.random()  # noqa: NPY002


@pytest.mark.parametrize("given", [DrawsElsewhere(), lambda level, generator: torch.randn(1, 4, 4)])
def test_a_probe_that_draws_elsewhere_is_seeded_and_leaves_no_trace(given):
    family = sads.family("cnn", (1, 4, 4), channels=4)
    before = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    found = [sads.estimate_geometry(family, 16, probe=sads.probe(given)) for _ in range(2)]
    assert torch.equal(found[0].matrix(), found[1].matrix())
    after = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert str(before[1:]) == str(after[1:])
