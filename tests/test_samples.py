"""Samples of another shape or scale are refused wherever data are taken."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import sads
from sads.data.bases import Basis
from sads.data.spec import DataSpec
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import SamplingOptions
from sads.errors import SadsError
from sads.probes import ForwardProbe, SamplerProbe

SHAPE = (3, 4, 5)
X = torch.randn(40, *SHAPE, generator=torch.Generator().manual_seed(0))
IMAGES = (40 * X + 128).clamp(0, 255).to(torch.uint8)
IMAGES[0, 0, 0, 0] = 0


@cache
def family() -> sads.ScoreFamily:
    return sads.family("mlp", SHAPE, width=8)


@cache
def geometry() -> sads.Geometry:
    return sads.estimate_geometry(family(), 16)


@cache
def model() -> sads.ScoreModel:
    return sads.train(family(), X, iterations=1, batch_size=10)


TAKERS: dict[str, Callable[[Tensor], object]] = {
    "train": lambda x: sads.train(family(), x, iterations=1, batch_size=10),
    "alignment": lambda x: sads.alignment(geometry(), x),
    "rotation": lambda x: sads.rotation(geometry(), x, "max"),
    "skip": lambda x: sads.gaussian_skip(family(), x),
    "anatomy": lambda x: sads.measure_anatomy(model(), x, num_samples=2),
    "measure": lambda x: sads.estimate_geometry(family(), 16, measure=x),
    "probe": lambda x: sads.estimate_geometry(family(), 16, probe=sads.probe("forward", images=x)),
}
DIRECTIONS: dict[str, Callable[[Tensor], object]] = {
    "apply": lambda x: sads.rotation(geometry(), X, "max").apply(x),
    "undo": lambda x: sads.rotation(geometry(), X, "max").undo(x),
    "quadratic": lambda x: geometry().quadratic(x),
    "energy": lambda x: geometry().energy(x[0]),
    "markov": lambda x: sads.theory.markov_bound(geometry(), x),
    "distance": lambda x: sads.sliced_wasserstein(X, x, num_projections=3),
    "projections": lambda x: sads.sliced_wasserstein(X, X, projections=x),
    "vector": lambda x: sads.sliced_wasserstein_to_gaussian(X, vector=x[0], num_projections=3),
    "directions": lambda x: sads.measure_anatomy(model(), X, directions=x, num_samples=2),
}


@pytest.mark.parametrize("taker", [*TAKERS, *DIRECTIONS])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 1, 3, 2)], ids=["NHWC", "NCWH"])
def test_axes_in_another_order_are_refused(taker: str, order: tuple[int, ...]) -> None:
    take = {**TAKERS, **DIRECTIONS}[taker]
    take(X)
    with pytest.raises(SadsError, match="shape"):
        take(X.permute(order).contiguous())


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (IMAGES, "whole numbers"),
        (IMAGES.float(), "whole numbers from 0 to 255: scale"),
        (IMAGES.double() * 257, "whole numbers from 0 to 65535"),
        (X * 1e17, "values up to"),
        (X.double() * 1e200, "values up to"),
        (X / 0, "NaN or infinity"),
        (X[:0], "."),
        (X.to(torch.float8_e5m2), "float8_e5m2, which PyTorch does not compute with"),
    ],
    ids=["uint8", "float", "16 bits", "large", "huge", "infinite", "empty", "8 bits"],
)
def test_other_scales_are_refused(taker: str, x: Tensor, words: str) -> None:
    with pytest.raises(SadsError, match=words) as error:
        TAKERS[taker](x)
    assert "\n" not in str(error.value)


def test_advice_gives_the_right_order() -> None:
    with pytest.raises(SadsError, match=r"x.permute\(0, 3, 1, 2\)"):
        sads.alignment(geometry(), X.permute(0, 2, 3, 1))
    assert sads.rotation(geometry(), X, "max").apply(X[:0]).shape == (0, *SHAPE)
    with pytest.raises(SadsError, match=r"a single sample is x\[None\]"):
        sads.alignment(geometry(), X[0])


def test_flat_samples_and_those_of_other_types_are_the_same() -> None:
    alpha = sads.alignment(geometry(), X).alpha
    for same in (X.flatten(1), X[:, None], X.numpy(), X.clone().requires_grad_(), X.double()):
        assert sads.alignment(geometry(), same).alpha == pytest.approx(alpha, rel=1e-6)
    for half in (X.half(), X.bfloat16(), np.asfortranarray(X.numpy())):
        assert sads.alignment(geometry(), half).alpha == pytest.approx(alpha, rel=1e-2)


def test_whole_numbers_are_compared_with_their_like_only() -> None:
    images = IMAGES / 127.5 - 1
    same = sads.sliced_wasserstein(IMAGES[:20], IMAGES[20:], num_projections=9).sw2
    scaled = sads.sliced_wasserstein(images[:20], images[20:], num_projections=9).sw2
    assert same == pytest.approx(127.5 * scaled, rel=1e-5)
    with pytest.raises(SadsError, match="cannot be compared"):
        sads.sliced_wasserstein(IMAGES, images)
    assert sads.sliced_wasserstein(X > 0, X > 0, num_projections=9).sw2 == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataSpec("foo", "dct"),  # type: ignore[arg-type]
        lambda: DataSpec("rank-one", "dct", "first"),
        lambda: DataSpec("sphere", "g.safetensors", "up"),
        lambda: DataSpec("images", ""),
        lambda: DataSpec("images", "a.npz", "x"),
        lambda: Basis("dct", [1, 4, 4]),  # type: ignore[arg-type]
        lambda: Basis("dct", (1, 4.0, 4)),  # type: ignore[arg-type]
        lambda: ForwardProbe([1.0]),  # type: ignore[arg-type]
        lambda: SamplerProbe(3),  # type: ignore[arg-type]
        lambda: ScoreModel(family(), print),  # type: ignore[arg-type]
        lambda: ScoreModel(family(), family().build().to("meta")),
        lambda: ScoreModel(family(), family().build(), mean=torch.zeros(3)),
        lambda: SamplingOptions(rotation="min"),  # type: ignore[arg-type]
        lambda: SamplingOptions(compile="yes"),  # type: ignore[arg-type]
        lambda: SamplingOptions(checkpoint_seconds=-1.0),
    ],
)
def test_what_is_frozen_is_checked_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(SadsError):
        make()


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", [*MODES, "float64"])
def test_results_do_not_hang_on_the_modes_of_pytorch(mode: str) -> None:
    def results() -> list[float]:
        trained = sads.train(family(), X, iterations=1, batch_size=10)
        estimated = sads.estimate_geometry(family(), 16)
        return [
            float(trained.losses[0]),
            float(sads.sample(trained, 3, steps=2).sum()),
            estimated.trace,
            sads.rotation(estimated, X, "min").alpha,
            sads.sliced_wasserstein(X, 2 * X, num_projections=9).sw2,
        ]

    expected = results()
    if mode != "float64":
        with MODES[mode]():
            assert results() == expected
        return
    torch.set_default_dtype(torch.float64)
    try:
        assert results() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
