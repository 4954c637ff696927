"""Three ways to sample a geometry, behind one interface.

`Integrated` conditions on the features and integrates the output layer out, `OuterProduct` takes
`F F^T` of networks drawn in stacks, `MonteCarlo` is the paper's plain loop. Each turns networks
into *rows*, whose Gram matrix is averaged over networks, and the averaged Gram matrix into the
factor of the geometry.
"""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sads.directions import EQUAL
from sads.errors import NetworkError, NonFiniteError, SadsError
from sads.family import ScoreFamily
from sads.geometry.initialise import Initialiser
from sads.geometry.readout import Readout, capture_input
from sads.geometry.stack import Stack
from sads.geometry.structure import Lift
from sads.geometry.symmetry import average, find_symmetries
from sads.probe import Probe, ZeroProbe

NUM_BATCHES = 16  # independent, for standard errors
GOLDEN = (math.sqrt(5) - 1) / 2

BatchGram = tuple[int, int, Tensor]  # batch, count of networks, sum of their Gram matrices


@dataclass(frozen=True)
class Sample:
    """Networks by number, with the level and the input that each is probed at."""

    numbers: list[int]
    levels: Tensor  # (n,)
    x: Tensor  # (n, *shape)
    parameters: dict[str, Tensor]  # each (n, ...); empty where networks are built one by one


class Sampling(ABC):
    """Draws networks, evaluates them, and says what their rows mean for the geometry."""

    name: str
    lift: Lift
    default_size = 1
    concurrent = False  # may several threads draw and evaluate at once?
    symmetries: dict[str, Tensor]

    def __init__(self, family: ScoreFamily, probe: Probe, seed: int, level_law: Tensor):
        self.family, self.probe, self.seed = family, probe, seed
        self._cumulative = torch.cumsum(level_law / level_law.sum(), dim=0)
        self._starts = [self._stream(1, batch).random() for batch in range(NUM_BATCHES)]
        self.symmetries = {}

    def draw(self, numbers: list[int]) -> Sample:
        """Networks `numbers`; each depends on the seed and its number only."""
        streams = [self._stream(0, n) for n in numbers]
        levels = torch.tensor([self._level(n) for n in numbers])
        x = torch.stack(
            [
                self.probe.draw(self.family.shape, int(level), self.family.schedule, stream)
                for level, stream in zip(levels, streams, strict=True)
            ]
        )
        return Sample(numbers, levels, x, self._parameters(streams))

    def grams(self, sample: Sample) -> list[BatchGram]:
        """Per batch in the sample: its number, its count of networks, the sum of their Grams."""
        rows = self.rows(sample)  # (n, R, P)
        batches = torch.tensor(sample.numbers) % NUM_BATCHES
        grams = []
        for batch in batches.unique().tolist():
            flat = rows[batches == batch].flatten(0, 1)
            grams.append((batch, int((batches == batch).sum()), flat.T @ flat))
        if not all(gram.isfinite().all() for _, _, gram in grams):
            self._explain_not_finite(sample, rows)
        return grams

    def _explain_not_finite(self, sample: Sample, rows: Tensor) -> None:
        finite = rows.flatten(1).double().square().sum(dim=1).isfinite()
        first = int((~finite).to(torch.uint8).argmax())
        raise NonFiniteError(
            f"network {sample.numbers[first]} of seed {self.seed} gives NaN or infinity at level "
            f"{int(sample.levels[first])}; check its initialisation and its range of input"
        )

    @abstractmethod
    def rows(self, sample: Sample) -> Tensor:
        """(n, R, P) such that the factor is a function of the mean Gram matrix."""

    @abstractmethod
    def factor(self, gram: Tensor) -> Tensor:
        """The factor of the geometry from the mean Gram matrix, both float64."""

    def exact_gram(self) -> Tensor | None:
        """The Gram matrix if it is the same for every network and level, else None."""
        return None

    def notes(self) -> list[str]:
        """What a reader of the result should know about how it was made."""
        return []

    def _parameters(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        return {}

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.SFC64(np.random.SeedSequence(self.seed, spawn_key=key))
        )

    def _level(self, number: int) -> int:
        """Evenly spread over the law within a batch, from a start that is random for each."""
        turn, batch = divmod(number, NUM_BATCHES)
        u = (self._starts[batch] + turn * GOLDEN) % 1.0
        index = int(torch.searchsorted(self._cumulative, u, right=True))
        return min(index, len(self._cumulative) - 1)


class _Stacked(Sampling):
    """Networks drawn and evaluated in stacks."""

    def __init__(
        self,
        family: ScoreFamily,
        probe: Probe,
        seed: int,
        level_law: Tensor,
        initialiser: Initialiser,
        stack: Stack,
    ):
        super().__init__(family, probe, seed, level_law)
        self.initialiser, self.stack = initialiser, stack
        self.default_size = stack.default_size
        self.concurrent = initialiser.reason is None and stack.device.type == "cpu"

    def notes(self) -> list[str]:
        reasons = {
            "networks are built by their constructor, one at a time": self.initialiser.reason,
            "networks are evaluated one after the other": self.stack.reason,
        }
        return [f"{what}: {why}" for what, why in reasons.items() if why]

    def _parameters(self, streams: list[np.random.Generator]) -> dict[str, Tensor]:
        return self.initialiser.draw(streams)

    def _evaluate(self, sample: Sample) -> Tensor:
        time = self.family.schedule.network_time(sample.levels)
        return self.stack.evaluate(sample.parameters, sample.x, time)


class Integrated(_Stacked):
    """Features of networks; the output layer is integrated out.

    Levels are drawn in proportion to `b_t^2`, so that all have the weight `E[b_t^2]`.
    """

    name = "integrated"

    def __init__(
        self,
        family: ScoreFamily,
        probe: Probe,
        seed: int,
        initialiser: Initialiser,
        readout: Readout,
        device: torch.device,
    ):
        a, b = family.schedule.score_coefficients(family.prediction)
        stack = Stack(initialiser.module, readout.path, device)
        super().__init__(family, probe, seed, b**2, initialiser, stack)
        self.readout = readout
        self.weight = float((b**2).mean())
        moment = probe.second_moment(family.schedule, a**2 / len(a)) if a.any() else None
        self._offset = torch.as_tensor(0.0 if moment is None else moment, dtype=torch.float64)
        self.lift = Lift.trivial(family.dimension) if self._offset.ndim else readout.lift
        in_order = torch.equal(readout.lift.order, torch.arange(family.dimension))
        if probe.isotropic and in_order and readout.kind == "convolution":
            self.symmetries = find_symmetries(family, initialiser)

    def rows(self, sample: Sample) -> Tensor:
        return self.readout.rows(self._evaluate(sample))

    def factor(self, gram: Tensor) -> Tensor:
        factor = average(self.weight * self.readout.factor(gram), self.symmetries)
        if self._offset.ndim:
            return self.readout.lift.dense(factor) + self._offset
        return factor + self._offset * torch.eye(len(factor), dtype=factor.dtype)

    def exact_gram(self) -> Tensor | None:
        """Features that agree among 16 networks, at the first and the last level too, are fixed.

        That must hold in double precision too, between two networks at the two ends.
        """
        sample = self.draw(list(range(NUM_BATCHES)))
        sample.levels[0], sample.levels[-1] = 0, self.family.schedule.num_levels - 1
        rows = self.rows(sample)
        if float((rows - rows[0]).abs().max()) > 1e-5 * float(rows.abs().max()):
            return None
        grams = []
        for i, network in ((0, self.initialiser.module), (-1, self.initialiser.other)):
            double = copy.deepcopy(network).cpu().double()
            layer = double.get_submodule(self.readout.path)
            time = self.family.schedule.network_time(sample.levels[[i]]).double()
            try:
                with torch.no_grad():
                    h = capture_input(double, layer, sample.x[[i]].double(), time)
            except RuntimeError:  # a network that casts to single precision inside
                return None
            features = self.readout.rows(h[None])[0]
            grams.append(features.T @ features)
        agree = float((grams[0] - grams[1]).abs().max()) <= EQUAL * float(grams[0].abs().max())
        return grams[0] if agree else None


class OuterProduct(_Stacked):
    """`F F^T` of whole networks, where the output layer cannot be integrated out.

    Levels are drawn from a law `q` under which no level's weight `1 / (T q_t)` times `a^2 + b^2`
    stands out.
    """

    name = "outer-product"

    def __init__(
        self,
        family: ScoreFamily,
        probe: Probe,
        seed: int,
        initialiser: Initialiser,
        device: torch.device,
    ):
        a, b = family.schedule.score_coefficients(family.prediction)
        law = b**2 if isinstance(probe, ZeroProbe) else a**2 + b**2
        super().__init__(
            family, probe, seed, law, initialiser, Stack(initialiser.module, None, device)
        )
        weights = (law.mean() / law).sqrt()
        self._a, self._b = (a * weights).float(), (b * weights).float()
        self.lift = Lift.trivial(family.dimension)

    def rows(self, sample: Sample) -> Tensor:
        output = self._evaluate(sample).flatten(1)  # (n, D)
        a, b = self._a[sample.levels][:, None], self._b[sample.levels][:, None]
        return (a * sample.x.flatten(1) + b * output)[:, None]

    def factor(self, gram: Tensor) -> Tensor:
        return gram


class MonteCarlo(Sampling):
    """The paper's loop: a fresh network and one uniform level a draw."""

    name = "monte-carlo"

    def __init__(self, family: ScoreFamily, probe: Probe, seed: int, device: torch.device):
        super().__init__(family, probe, seed, torch.ones(family.schedule.num_levels).double())
        self.device = device
        self.lift = Lift.trivial(family.dimension)

    def _level(self, number: int) -> int:
        return int(self._stream(1, number).integers(self.family.schedule.num_levels))

    def rows(self, sample: Sample) -> Tensor:
        scores = []
        for number, level, x in zip(sample.numbers, sample.levels, sample.x, strict=True):
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(int(self._stream(2, number).integers(2**63)))
                network = self.family.build().to(self.device)
                x = x[None].to(self.device)
                scores.append(self.family.score(network, x, level[None]).cpu().flatten(1))
        return torch.stack(scores)  # (n, 1, D)

    def factor(self, gram: Tensor) -> Tensor:
        return gram


def check_network(family: ScoreFamily, network: torch.nn.Module) -> None:
    """One evaluation, to meet a network that cannot be used before any work is done."""
    x = torch.zeros(1, *family.shape)
    for level in (0, family.schedule.num_levels - 1):
        time = family.schedule.network_time(torch.tensor([level]))
        try:
            with torch.no_grad():
                output = network(x, time)
        except SadsError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise NetworkError(
                f"the network cannot be evaluated as net(x, t) with x of shape {tuple(x.shape)} "
                f"and t = {time.tolist()}: {type(error).__name__} {reason}"
            ) from error
        family.check_output(output, 1)
        if not output.isfinite().all():
            raise NonFiniteError(
                f"the network returns NaN or infinity for x = 0 at level {level}; "
                "check its initialisation"
            )
