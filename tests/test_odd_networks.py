"""Networks of users that are unlike ours: each is estimated rightly, or refused in one line."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sads
from cases import FEW_LEVELS
from sads.errors import MergeError, NetworkError
from test_estimate import _assert_agree


class Net(nn.Module):
    """Two convolutions with something odd in between or around."""

    def __init__(self, change: Callable[["Net"], None] | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 1, 3, padding=1)
        if change:
            change(self)

    def features(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.tanh(self.first(x) + 0.5 + t[:, None, None, None] / 1000)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(self.features(x, t))


class Copied(Net):
    """Two layers that start as copies, as in `nn.TransformerEncoder`."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Conv2d(6, 6, 1)
        self.twin = copy.deepcopy(self.middle)

    def features(self, x: Tensor, t: Tensor) -> Tensor:
        h = super().features(x, t)
        return self.twin(torch.tanh(3 * self.middle(h)))


class PartlyFilled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(6, 4, 4))
        nn.init.normal_(self.place[0])

    def features(self, x: Tensor, t: Tensor) -> Tensor:
        return super().features(x, t) + self.place


class HiddenState(Net):
    """Random numbers in a plain attribute, which is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3 * torch.rand(1)

    def features(self, x: Tensor, t: Tensor) -> Tensor:
        return self.scale * super().features(x, t)


class AlwaysDropping(Net):
    def features(self, x: Tensor, t: Tensor) -> Tensor:
        return F.dropout(super().features(x, t), 0.5)


class Shuffled(nn.Module):
    """Pixel shuffle after the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 2, stride=2)
        self.last = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.pixel_shuffle(self.last(torch.tanh(self.first(x) + 1)), 2)


def _truncated(net: Net) -> None:
    nn.init.trunc_normal_(net.last.weight, std=0.3)
    net.last.bias.data = torch.randn(1) * 0.1  # type: ignore[union-attr]


def _frozen(net: Net) -> None:
    net.requires_grad_(False)


class ByName(Net):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.last(input=self.features(x, t))


def _family(factory: Callable[[], nn.Module]) -> sads.ScoreFamily:
    return sads.family(factory, (1, 4, 4), schedule=FEW_LEVELS)


@pytest.mark.parametrize(
    ("factory", "estimator", "note"),
    [
        (Copied, "integrated", "has random numbers of"),
        (PartlyFilled, "integrated", ""),
        (HiddenState, "monte-carlo", "random beyond their parameters"),
        (AlwaysDropping, "monte-carlo", "random beyond their parameters"),
        (Shuffled, "integrated", ""),
        (lambda: Net(_truncated), "integrated", ""),
        (lambda: Net(_frozen), "integrated", ""),
        (ByName, "integrated", ""),
    ],
)
def test_odd_networks_agree_with_monte_carlo(
    factory: Callable[[], nn.Module], estimator: str, note: str
) -> None:
    family = _family(factory)
    count = 640 if factory is HiddenState else 320  # as many as the resolution asks for
    fast = sads.estimate_geometry(family, count if estimator == "monte-carlo" else 800, seed=1)
    assert fast.estimator == estimator
    assert note in " ".join(fast.provenance.notes)
    assert bool(note) == bool(fast.provenance.notes)
    plain = sads.estimate_geometry(family, count, seed=2, estimator="monte-carlo")
    _assert_agree(fast, plain, resolution=0.1)


def test_networks_random_in_forward_are_reproducible() -> None:
    family = _family(AlwaysDropping)
    a, b = (sads.estimate_geometry(family, 32, seed=3).matrix() for _ in range(2))
    assert torch.equal(a, b)


def test_one_network_is_not_a_family() -> None:
    network = Net()
    with pytest.raises(NetworkError, match="same network at every call"):
        sads.estimate_geometry(_family(lambda: network), 16)


def test_lazy_layers_are_refused() -> None:
    with pytest.raises(NetworkError, match="lazy layers"):
        sads.estimate_geometry(_family(lambda: nn.Sequential(nn.LazyConv2d(1, 3))), 16)


def test_a_network_that_asserts_is_refused() -> None:
    class Picky(Net):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            assert x.shape[-1] % 8 == 0
            return super().forward(x, t)

    with pytest.raises(NetworkError, match="AssertionError"):
        sads.estimate_geometry(_family(Picky), 16)


def test_different_networks_of_one_name_do_not_merge() -> None:
    def make(scale: float) -> sads.ScoreFamily:
        class Scaled(Net):
            def features(self, x: Tensor, t: Tensor) -> Tensor:
                return scale * super().features(x, t)

        return _family(lambda: Scaled())

    a, b = (sads.estimate_geometry(make(scale), 16, seed=int(scale)) for scale in (1, 4))
    with pytest.raises(MergeError, match="different numbers"):
        a.merge(b)


def test_directions_that_no_network_reached_are_not_certified() -> None:
    geometry = sads.estimate_geometry(_family(Net), 15, estimator="monte-carlo")
    directions = geometry.directions()
    assert not directions.resolved.any()
    assert torch.isinf(directions.value_errors[-1])
    assert geometry.whitened_error() == float("inf")


def test_a_forward_probe_keeps_the_structure_of_the_output_layer() -> None:
    family = sads.family("cnn", (3, 4, 4), channels=4)
    images = torch.rand(2, 3, 4, 4)
    geometry = sads.estimate_geometry(family, 16, probe=sads.probe("forward", images=images))
    assert geometry.lift.groups == 3
