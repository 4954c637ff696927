"""Networks whose random numbers go where a closed form does not expect them.

What comes before or after the output layer, and the scale of its weights, may hang on random
numbers that it shares, on numbers of NumPy or Python, or on the level. Each of these was once
integrated out as if it were not so, and gave a wrong geometry without a word.
"""

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sads
from cases import FEW_LEVELS
from sads.errors import InvalidArgumentError, NetworkError
from sads.estimates import Estimate, batch_error, batch_mean
from sads.seeds import other_generators


class Net(nn.Module):
    """Two convolutions; what is odd about them is in `change`, `features` and `after`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 1, 3, padding=1)
        with torch.no_grad():
            self.change()

    def change(self) -> None: ...

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x) + 0.5)

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return z

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.after(self.last(self.features(x)), t)


class ScaledByPython(Net):
    def change(self) -> None:
        nn.init.normal_(self.last.weight, std=random.random())


class ChosenByPython(Net):
    def change(self) -> None:
        self.last.weight.mul_(random.choice([1, 5]))


class ScaledByNumPy(Net):
    def change(self) -> None:
        nn.init.normal_(self.last.weight, std=np.random.rand())  # noqa: NPY002


class ScaledByItem(Net):
    def change(self) -> None:
        nn.init.normal_(self.last.weight, std=torch.rand(()).item())


class BothScaled(Net):
    def change(self) -> None:
        scale = torch.rand(1)
        self.last.weight.mul_(scale)
        self.first.bias.mul_(scale)


class MadeOfTheOutputLayer(Net):
    def change(self) -> None:
        self.first.bias.copy_(self.last.weight.sum((0, 2, 3)))


class MadeThroughNumPy(Net):
    def change(self) -> None:
        self.first.bias.copy_(torch.from_numpy(self.last.weight.detach().numpy().sum((0, 2, 3))))


class ChosenByTheOutputLayer(Net):
    def change(self) -> None:
        nn.init.constant_(self.first.bias, 3.0 if self.last.weight.sum() > 0 else -1.0)


class TwoDraws(Net):
    """A random choice that the two networks of set-up happen to share."""

    def change(self) -> None:
        self.register_buffer("scale", 1.0 + 4 * (torch.rand(1) > 0.95))

    def features(self, x: Tensor) -> Tensor:
        return self.scale * super().features(x)  # type: ignore[operator]


class HiddenChoice(Net):
    """The same in a plain attribute, which is no parameter and no buffer."""

    def change(self) -> None:
        self.scale = 1.0 + 4 * (torch.rand(1) > 0.7)

    def features(self, x: Tensor) -> Tensor:
        return self.scale * super().features(x)


class TinyAndHidden(Net):
    def change(self) -> None:
        self.scale = torch.rand(6, 1, 1)

    def features(self, x: Tensor) -> Tensor:
        return self.scale * super().features(x)

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return 1e-9 * z


class RandomScaleAfter(Net):
    def change(self) -> None:
        self.scale = nn.Parameter(torch.rand(1))

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return self.scale * z


class RandomOrderAfter(Net):
    def change(self) -> None:
        self.register_buffer("order", torch.randperm(16))

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return z.flatten(1)[:, self.order].view_as(z)  # type: ignore[index]


class OwnWeightsBefore(Net):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x) + self.last.weight.detach().sum((0, 2, 3))[:, None, None]


class RandomDepth(Net):
    def change(self) -> None:
        count = int(torch.randint(1, 4, ()))
        self.more = nn.Sequential(*(nn.Conv2d(6, 6, 1) for _ in range(count)))

    def features(self, x: Tensor) -> Tensor:
        return self.more(super().features(x))


class RandomWidth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = int(torch.randint(2, 9, ()))
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class HalfInside(Net):
    def change(self) -> None:
        self.first = self.first.bfloat16()

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x.bfloat16()).float())


class Asserting(Net):
    """Whoever looks at numbers on the way changes nothing."""

    def features(self, x: Tensor) -> Tensor:
        h = super().features(x)
        if not h.isfinite().all():
            raise KeyError
        return h


@pytest.mark.parametrize(
    ("network", "estimator", "words"),
    [
        (Net, "integrated", ""),
        (Asserting, "integrated", "evaluated one after the other"),
        (HalfInside, "integrated", "by their constructor"),
        (TwoDraws, "integrated", "scale is initialised could not be recorded"),
        (ScaledByPython, "outer-product", "from NumPy or Python"),
        (ChosenByPython, "outer-product", "from NumPy or Python"),
        (ScaledByNumPy, "outer-product", "from NumPy or Python"),
        (ScaledByItem, "outer-product", "last.weight is initialised could not be recorded"),
        (BothScaled, "outer-product", "has random numbers of"),
        (MadeOfTheOutputLayer, "outer-product", "has random numbers of"),
        (MadeThroughNumPy, "outer-product", "has random numbers of"),
        (ChosenByTheOutputLayer, "outer-product", "has random numbers of"),
        (RandomScaleAfter, "outer-product", "scale is not the same in every network, and comes"),
        (RandomOrderAfter, "outer-product", "order is not the same in every network, and comes"),
        (OwnWeightsBefore, "outer-product", "what enters last depends on its weights"),
        (HiddenChoice, "monte-carlo", "random beyond their parameters"),
        (TinyAndHidden, "monte-carlo", "random beyond their parameters"),
        (RandomDepth, "monte-carlo", "is missing in one network and 6x6x1x1 in another"),
        (RandomWidth, "monte-carlo", "x1x3x3 in one network and "),
    ],
)
def test_nothing_entangled_is_integrated_out(network: type, estimator: str, words: str) -> None:
    before = other_generators(), torch.get_rng_state().tolist()
    family = sads.family(network, shape=(1, 4, 4), schedule=FEW_LEVELS)
    geometry = sads.estimate_geometry(family, 16)
    assert geometry.estimator == estimator
    assert words in " ".join(geometry.provenance.notes)
    assert sads.estimate_geometry(family, 16, batch_size=3).matrix().allclose(geometry.matrix())
    assert before == (other_generators(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("network", [ChosenByPython, ChosenByTheOutputLayer, RandomScaleAfter])
def test_they_agree_with_the_plain_loop(network: type) -> None:
    family = sads.family(network, shape=(1, 4, 4), schedule=FEW_LEVELS)
    given = _energy(sads.estimate_geometry(family, 512))
    expected = _energy(sads.estimate_geometry(family, 512, seed=1, estimator="monte-carlo"))
    error = math.hypot(given.error, expected.error)
    assert abs(given.value - expected.value) < 4 * error < 2 * expected.value


def _energy(geometry: sads.Geometry) -> Estimate:
    """The trace of the geometry, whose error covers what all directions share."""
    traces = geometry.factors.diagonal(dim1=1, dim2=2).sum(dim=1) * geometry.lift.groups
    counts = geometry.counts
    return Estimate(float(batch_mean(traces, counts)), float(batch_error(traces, counts)))


class Window(Net):
    """The score counts three times where the level is in a window that set-up does not try."""

    low, high = 30, 300

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        inside = (t > self.low) & (t < self.high)
        return torch.where(inside[:, None, None, None], 3 * z, z)


class WindowByIf(Window):
    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return 3 * z if self.low < float(t[0]) < self.high else z


@pytest.mark.parametrize("network", [Window, WindowByIf])
def test_a_scale_in_a_window_of_levels_is_seen(network: type) -> None:
    """The features hang on no level, so the ratio of two geometries is that of mean weights."""
    schedule = sads.Schedule("cosine", 40)
    plain = sads.estimate_geometry(sads.family(Net, shape=(1, 4, 4), schedule=schedule), 16)
    family = sads.family(network, shape=(1, 4, 4), schedule=schedule)
    geometry = sads.estimate_geometry(family, 16)
    assert geometry.estimator == "integrated"
    _, b = schedule.score_coefficients("epsilon")
    time = schedule.network_time(torch.arange(40))
    scale = torch.where((time > network.low) & (time < network.high), 3.0, 1.0).double()
    ratio = float((b**2 * scale**2).sum() / (b**2).sum())
    assert ratio > 1.2
    assert torch.allclose(geometry.matrix(), ratio * plain.matrix())


class Counting(Net):
    """Counts its evaluations in a buffer."""

    def change(self) -> None:
        self.register_buffer("count", torch.zeros(()))

    def features(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.count * super().features(x)


def test_networks_that_write_to_their_buffers_are_built_one_by_one() -> None:
    family = sads.family(Counting, shape=(1, 4, 4), schedule=FEW_LEVELS)
    for streaming in (None, True):
        geometry = sads.estimate_geometry(family, 4, streaming=streaming)
        assert geometry.estimator == "monte-carlo"


def test_networks_that_look_at_their_numbers_are_not_drawn_layer_by_layer() -> None:
    family = sads.family(Asserting, shape=(1, 4, 4), schedule=FEW_LEVELS)
    geometry = sads.estimate_geometry(family, 4, streaming=True)
    assert geometry.estimator == "integrated"
    assert "cannot be followed without numbers" in geometry.provenance.notes[0]


class Wide(Net):
    def change(self) -> None:
        self.first = nn.Conv2d(1, 6, (1, 3), padding="same")


def test_kernels_that_transposition_would_reshape_forbid_it() -> None:
    geometry = sads.estimate_geometry(sads.family(Wide, shape=(1, 4, 4), schedule=FEW_LEVELS), 16)
    assert geometry.provenance.symmetries == ("flip of axis 0", "flip of axis 1")


class Scaled(Net):
    scale = 1e-30

    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return self.scale * z


@pytest.mark.parametrize("estimator", ["auto", "outer-product"])
def test_scores_may_be_tiny(estimator: str) -> None:
    """Their squares are no numbers of single precision."""
    families = [sads.family(net, shape=(1, 4, 4), schedule=FEW_LEVELS) for net in (Scaled, Net)]
    tiny, plain = (sads.estimate_geometry(f, 16, estimator=estimator) for f in families)
    assert tiny.estimator == plain.estimator
    assert torch.allclose(tiny.matrix() / Scaled.scale**2, plain.matrix(), rtol=1e-4)


class WholeNumbers(Net):
    def after(self, z: Tensor, t: Tensor) -> Tensor:
        return z.long()


class FailsLater(Net):
    def change(self) -> None:
        self.register_buffer("scale", torch.rand(1))

    def features(self, x: Tensor) -> Tensor:
        if self.scale > 0.9:  # type: ignore[operator]
            raise KeyError("no such scale")
        return super().features(x)


@pytest.mark.parametrize(
    ("network", "words"),
    [(WholeNumbers, "returned numbers of type int64"), (FailsLater, "KeyError: 'no such scale'")],
)
@pytest.mark.parametrize("estimator", ["auto", "monte-carlo"])
def test_failures_are_one_line(network: type, words: str, estimator: str) -> None:
    family = sads.family(network, shape=(1, 4, 4), schedule=FEW_LEVELS)
    with pytest.raises(NetworkError, match=words) as failure:
        sads.estimate_geometry(family, 64, estimator=estimator)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("asked", [{"dtype": "bfloat16"}, {"streaming": True}, {"readout": "last"}])
def test_the_plain_loop_refuses_what_it_cannot_do(asked: dict[str, object]) -> None:
    family = sads.family(Net, shape=(1, 4, 4), schedule=FEW_LEVELS)
    with pytest.raises(InvalidArgumentError, match="plain loop"):
        sads.estimate_geometry(family, 16, estimator="monte-carlo", **asked)  # type: ignore[arg-type]
