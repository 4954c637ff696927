"""Recorded initialisation against the constructors that it stands for."""

import contextlib
import copy
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import sads
from cases import FAMILIES, small_family
from sads.geometry.drawing import Initialiser
from sads.geometry.recorder import LargeNetwork
from sads.geometry.recording import record


class Exotic(nn.Module):
    """Every way of filling a parameter that we claim to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.truncated = nn.Parameter(torch.empty(50, 20))
        nn.init.trunc_normal_(self.truncated, std=0.5, a=-0.6, b=0.6)
        self.scaled = nn.Parameter(torch.randn(30, 40) * 0.02)
        self.halves = nn.Parameter(torch.empty(10, 40))
        nn.init.uniform_(self.halves[:5], 0, 1)
        nn.init.normal_(self.halves[5:], 3, 0.1)
        self.viewed = nn.Parameter(torch.empty(8, 4, 3, 3))
        nn.init.xavier_uniform_(self.viewed.view(8, -1))
        self.rewritten = nn.Linear(10, 10)
        nn.init.normal_(self.rewritten.weight)
        self.rewritten.weight.data.mul_(0.1)
        self.register_buffer("fourier", torch.randn(16))
        self.register_buffer("fixed", torch.arange(4.0))


class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, 6))
        nn.init.orthogonal_(self.weight)


def _streams(count: int) -> list[np.random.Generator]:
    return [np.random.Generator(np.random.SFC64(n)) for n in range(count)]


def _built(build: type[nn.Module], name: str, count: int) -> Tensor:
    values = []
    for seed in range(count):
        torch.manual_seed(seed)
        module = build()
        values.append(dict([*module.named_parameters(), *module.named_buffers()])[name].detach())
    return torch.stack(values)


@pytest.mark.parametrize(
    "name", ["truncated", "scaled", "viewed", "rewritten.weight", "rewritten.bias", "fourier"]
)
def test_drawn_parameters_have_the_law_of_the_constructor(name: str) -> None:
    initialiser = Initialiser(Exotic)
    assert initialiser.reason is None
    drawn = initialiser.draw(_streams(20))[name].flatten().numpy()
    built = _built(Exotic, name, 20).flatten().numpy()
    assert stats.ks_2samp(drawn, built).pvalue > 0.001
    law = initialiser.law(name)
    assert law is not None
    assert abs(drawn.mean() - law.mean) < 4 * math.sqrt(law.variance / len(drawn))
    assert drawn.var() == pytest.approx(law.variance, rel=4 * math.sqrt(2 / len(drawn)))


def test_parts_of_a_parameter_keep_their_own_laws() -> None:
    initialiser = Initialiser(Exotic)
    drawn = initialiser.draw(_streams(20))["halves"]
    assert drawn[:, :5].min() >= 0
    assert drawn[:, :5].max() <= 1
    assert float(drawn[:, 5:].mean()) == pytest.approx(3, abs=0.01)
    assert initialiser.law("halves") is None


def test_what_never_varies_is_constant() -> None:
    initialiser = Initialiser(Exotic)
    assert torch.equal(initialiser.draw(_streams(3))["fixed"], torch.arange(4.0).expand(3, 4))


def test_truncated_normal_has_its_exact_variance() -> None:
    law = Initialiser(Exotic).law("truncated")
    assert law is not None
    assert law.variance == pytest.approx(0.25 * stats.truncnorm.var(-1.2, 1.2), rel=1e-4)


def test_unknown_initialisation_falls_back_to_the_constructor() -> None:
    initialiser = Initialiser(Orthogonal)
    assert initialiser.reason is not None
    weight = initialiser.draw(_streams(4))["weight"]
    assert torch.allclose(weight @ weight.transpose(1, 2), torch.eye(6).expand(4, 6, 6), atol=1e-5)
    assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("name", FAMILIES)
def test_our_own_networks_are_all_recorded(name: str) -> None:
    assert Initialiser(small_family(name).build).reason is None


def test_a_network_depends_on_its_stream_only() -> None:
    initialiser = Initialiser(Exotic)
    together = {k: v.clone() for k, v in initialiser.draw(_streams(3)).items()}
    alone = initialiser.draw(_streams(3)[2:])
    for name, values in alone.items():
        assert torch.equal(values[0], together[name][2]), name


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn.init.trunc_normal_(torch.empty(3))
        raise ValueError("no such network")


def test_pytorch_is_left_as_it_was() -> None:
    """Recording replaces a function of `nn.init` for a while, whatever happens meanwhile."""
    before = dict(vars(nn.init))
    Initialiser(Exotic)
    with pytest.raises(ValueError, match="no such network"):
        Initialiser(Failing)
    assert dict(vars(nn.init)) == before


class Truncated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(6, 6)))


def test_recordings_do_not_meet() -> None:
    before = dict(vars(nn.init))
    with ThreadPoolExecutor(4) as pool:
        recordings = list(pool.map(lambda _: record(Truncated), range(8)))
    assert dict(vars(nn.init)) == before
    for recording in recordings:
        assert [step.op for step in recording.recipes["weight"].steps] == ["trunc_normal_"]


def test_other_threads_draw_as_ever() -> None:
    """What they draw is not taken for the constructor's; recordings are right or not used."""
    stop = threading.Event()
    lengths: set[int] = set()

    def draw_meanwhile() -> None:
        while not stop.is_set():
            lengths.add(len(nn.init.trunc_normal_(torch.empty(7))))

    meanwhile = threading.Thread(target=draw_meanwhile)
    meanwhile.start()
    try:
        recordings = [record(Truncated) for _ in range(20)]
    finally:
        stop.set()
        meanwhile.join()
    assert lengths == {7}
    for recording in recordings:
        steps = recording.recipes["weight"].steps
        assert steps or recording.reason is not None
        assert all(step.size == (6, 6) for step in steps)


def test_no_mocks_outside_of_tests() -> None:
    for path in Path(sads.__file__).parent.rglob("*.py"):
        assert "unittest" not in path.read_text(), path


class Cloned(nn.Module):
    """Copies, which no module is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)
        self.others = [copy.deepcopy(self.layer) for _ in range(3)]  # 440 bytes each


class Stubborn(nn.Module):
    """Whatever goes wrong, it goes on."""

    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(BaseException):
            self.layer = nn.Linear(100, 100)


@pytest.mark.parametrize("build", [lambda: nn.Linear(100, 100), Cloned, Stubborn])
def test_a_constructor_that_fills_too_much_is_stopped(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(LargeNetwork):
        record(build, limit=1000)
    assert record(lambda: nn.Linear(10, 10), limit=1000).reason is None
