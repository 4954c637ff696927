"""Output layers that are scaled, beside the input or combined over passes are integrated out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sads
import sads.geometry.readouts
from cases import FEW_LEVELS
from sads.geometry.drawing import Initialiser
from sads.geometry.readout import Followed, NoReadout, find_readout, score_coefficients

SHAPE = (2, 4, 4)


class Network(nn.Module):
    """A small network whose output goes through a function of it, its input and the time."""

    def __init__(self, after: Any, passes: int = 1):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 2, 3, padding=1)
        self.after, self.passes = after, passes

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shift = torch.arange(self.passes).to(x).repeat_interleave(len(x)).reshape(-1, 1, 1, 1)
        z = torch.cat([x] * self.passes) + shift  # passes differ in their "condition"
        z = self.last(
            torch.tanh(self.first(z) + t.reshape(-1, 1, 1, 1).repeat(self.passes, 1, 1, 1))
        )
        return self.after(z, x, t.reshape(-1, 1, 1, 1))


def edm(z: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """Preconditioned inside, with a noise level that is read off the time."""
    sigma = (t + 100) / 500
    return 0.25 / (sigma**2 + 0.25) * x + 0.5 * sigma / (sigma**2 + 0.25).sqrt() * z


def guided(z: Tensor, x: Tensor, t: Tensor) -> Tensor:
    given, without = z.chunk(2)
    return without + 3.0 * (given - without)


FORMS: dict[str, tuple[Any, int]] = {
    "half": (lambda z, x, t: 0.5 * z, 1),
    "turned": (lambda z, x, t: -2 * z.flip(1), 1),
    "residual": (lambda z, x, t: x - z, 1),
    "by level": (lambda z, x, t: z / (1 + t), 1),
    "preconditioned": (edm, 1),
    "guided": (guided, 2),
    "difference": (lambda z, x, t: z.chunk(2)[0] - z.chunk(2)[1], 2),
}


def family(name: str, **options: Any) -> sads.ScoreFamily:
    after, passes = FORMS[name]
    return sads.family(lambda: Network(after, passes), SHAPE, schedule=FEW_LEVELS, **options)


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_found(name: str) -> None:
    one = family(name)
    readout = find_readout(one, Initialiser(one.build))
    assert isinstance(readout, Followed)
    gain, skip = readout.tail.gain, readout.tail.skip
    times = one.schedule.network_time(torch.arange(3)).double()
    if name == "half":
        assert gain.tolist() == pytest.approx([0.5] * 3)
        assert not skip.any()
    if name == "residual":
        assert (gain.tolist(), skip.tolist()) == (pytest.approx([-1] * 3), pytest.approx([1] * 3))
    if name == "by level":
        assert gain.tolist() == pytest.approx((1 / (1 + times)).tolist(), rel=1e-4)
    if name == "guided":
        assert sorted((readout.tail.weights * gain[0]).tolist()) == pytest.approx([-2, 3])


@pytest.mark.parametrize("probe", ["zero", "gaussian"])
@pytest.mark.parametrize("name", FORMS)
def test_integrated_and_whole_networks_agree_within_errors(name: str, probe: str) -> None:
    one = family(name)
    fast = sads.estimate_geometry(one, 512, probe=probe, seed=1)
    whole = sads.estimate_geometry(one, 2048, probe=probe, seed=2, estimator="outer-product")
    assert (fast.estimator, whole.estimator) == ("integrated", "outer-product")
    rows = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.cat([rows, torch.ones(1, *SHAPE), torch.eye(32)[:2].reshape(2, *SHAPE)])
    ours, theirs = fast.quadratic(rows), whole.quadratic(rows)
    errors = torch.hypot(ours.errors, theirs.errors)
    assert float(((ours.values - theirs.values) / errors).abs().max()) < 4
    assert float((errors / ours.values).max()) < 0.2


@pytest.mark.parametrize(
    "after",
    [
        lambda z, x, t: z * torch.linspace(1, 2, 4),  # another scale for each column
        lambda z, x, t: torch.tanh(z),
        lambda z, x, t: z + z.mean(dim=(2, 3), keepdim=True),
        lambda z, x, t: z + x.abs(),
        lambda z, x, t: z * (1 + x.mean()),
    ],
)
def test_other_forms_are_not_mistaken_for_these(after: Any) -> None:
    one = sads.family(lambda: Network(after), SHAPE, schedule=FEW_LEVELS)
    assert isinstance(find_readout(one, Initialiser(one.build)), NoReadout)


def test_the_same_geometry_whether_edm_is_inside_the_network_or_said() -> None:
    levels = sads.Schedule("edm", 3, first=0.2, last=2.0)

    class Inside(Network):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            sigma = torch.exp(4 * t).reshape(-1, 1, 1, 1)
            raw = super().forward(x / (sigma**2 + 0.25).sqrt(), t)
            return 0.25 / (sigma**2 + 0.25) * x + 0.5 * sigma / (sigma**2 + 0.25).sqrt() * raw

    plain = Network
    said = sads.family(lambda: plain(lambda z, x, t: z), SHAPE, prediction="edm", schedule=levels)
    inside = sads.family(lambda: Inside(lambda z, x, t: z), SHAPE, prediction="x0", schedule=levels)
    first, second = (sads.estimate_geometry(f, 32, probe="gaussian") for f in (said, inside))
    assert first.estimator == second.estimator == "integrated"
    assert torch.allclose(first.factor(), second.factor(), rtol=1e-4)


class One(nn.Module):
    """A network of few numbers, whose last layer sees constants."""

    def __init__(self, size: int, gain: float, skip: float):
        super().__init__()
        self.last, self.gain, self.skip = nn.Linear(3, size), gain, skip

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.gain * self.last(x.new_ones(len(x), 3)) + self.skip * x


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("gain", "skip"), [(1.0, 0.0), (-0.5, 0.0), (2.0, -1.0)])
def test_scales_of_few_numbers_are_found_too(size: int, gain: float, skip: float) -> None:
    """One equation would be solved by any gain, with a skip that makes up for it."""
    few = sads.family(lambda: One(size, gain, skip), (size,), schedule=FEW_LEVELS)
    found = find_readout(few, Initialiser(few.build))
    assert not isinstance(found, NoReadout)
    a, b = score_coefficients(few, found)
    expected = 1 / few.schedule.sigma
    assert torch.allclose(a, -skip * expected)
    assert torch.allclose(b.abs(), abs(gain) * expected)
    geometry = sads.estimate_geometry(few, 16)
    variance = (3 + 1) / 9  # PyTorch's default: uniform within 1 / sqrt(3), for weights and bias
    energy = gain**2 * variance * float((expected**2).mean())
    assert geometry.matrix().diagonal().tolist() == pytest.approx([energy] * size, rel=1e-5)
