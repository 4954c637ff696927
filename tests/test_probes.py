"""Probes of users: names, functions, and objects with no more than `draw`."""

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


@pytest.mark.parametrize("probe", ["unit", 3, object()])
def test_what_is_no_probe_is_refused(probe: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"unknown probe .* zero, gaussian or forward"):
        _estimate(probe)
