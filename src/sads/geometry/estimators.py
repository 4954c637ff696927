"""Three ways to sample a geometry, behind one interface.

`Integrated` conditions on the features and integrates the output layer out, `OuterProduct` takes
`F F^T` of networks drawn in stacks, `MonteCarlo` is the paper's plain loop. Each turns networks
into *rows*, whose Gram matrix is averaged over networks, and the averaged Gram matrix into the
factor of the geometry.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sads.errors import InvalidArgumentError, NonFiniteError, evaluating_networks
from sads.families import ScoreFamily
from sads.geometry.drawing import Initialiser
from sads.geometry.eigenbasis import EQUAL
from sads.geometry.invariance import average, generate_group
from sads.geometry.lift import Lift
from sads.geometry.memory import BATCHES, Forecast, forecast
from sads.geometry.readout import Readout, capture_input, score_coefficients
from sads.geometry.stacks import PARAMETER_BYTES, Stack
from sads.geometry.streaming.networks import Streamed, StreamedNetwork, StreamedStack
from sads.geometry.streaming.streams import NetworkStream
from sads.probes import Probe, draw_inputs
from sads.scales import scale_of
from sads.seeds import generators_kept, numpy_stream, seed_generators

NUM_BATCHES = BATCHES
GRAM_BYTES = 16 << 20  # of one Gram matrix in float32; larger ones are many bytes when there are 16
ACTIVATION_BYTES = 512 << 20  # of all networks of a stack
COMPARED = 2  # networks that are evaluated in float32 too, if others are not
GOLDEN = (math.sqrt(5) - 1) / 2

Networks = Initialiser | Streamed  # that are drawn in stacks, or layer by layer
Drawn = dict[str, Tensor] | list[NetworkStream]  # parameters, each (n, ...), or where they are
BatchGram = tuple[int, int, Tensor]  # batch, count of networks, sum of their Gram matrices


@dataclass(frozen=True)
class Draws:
    """Networks by number, with the level and the input that each is probed at."""

    numbers: list[int]
    levels: Tensor  # (n,)
    x: Tensor  # (n, *shape)
    parameters: "Drawn"  # empty where networks are built one by one


class Estimator(ABC):
    """Draws networks, evaluates them, and says what their rows mean for the geometry."""

    name: str
    lift: Lift
    default_size = 1
    concurrent = False  # may several threads draw and evaluate at once?
    network_bytes = 0  # the parameters of one network
    activation_bytes = 0  # what its evaluation holds at the same time
    gram_size = 0  # of the matrices that are summed up
    gram_type = torch.float32  # in which those of single networks are computed
    row_bytes = 0  # what one network adds to them
    num_batches = NUM_BATCHES  # that are kept apart

    def __init__(self, family: ScoreFamily, probe: Probe, seed: int, level_law: Tensor):
        self.family, self.probe = family, probe
        self._cumulative = torch.cumsum(level_law / level_law.sum(), dim=0)
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Draw networks of this seed from now on."""
        self.seed = seed
        self._starts = [numpy_stream(seed, 1, batch).random() for batch in range(NUM_BATCHES)]

    def stack_size(self, asked: int | None = None) -> int:
        """Networks to evaluate together: so many that the machine is busy, and no more.

        Large Gram matrices are handed over one batch at a time: of the first block, with four
        networks a batch, a stack of 64 would hold sixteen.
        """
        if asked is not None:
            return asked
        size = self.default_size
        if 4 * self.gram_size**2 > GRAM_BYTES:
            size = min(size, 4)
        if self.activation_bytes:
            size = min(size, max(1, ACTIVATION_BYTES // self.activation_bytes))
        return size

    def forecast(
        self,
        num_networks: int,
        asked: int | None,
        *,
        exact: bool = False,
        again: bool = False,
    ) -> Forecast:
        """The memory of an estimate with stacks of the size that was asked for, if any was."""
        most = NUM_BATCHES if exact else max(4 * NUM_BATCHES, num_networks // 2)
        return forecast(
            num_factors=1 if exact else self.num_batches,
            gram_size=self.gram_size,
            size=self.lift.size,
            network_bytes=self.network_bytes,
            activation_bytes=self.activation_bytes,
            row_bytes=self.row_bytes,
            stack_size=min(most, self.stack_size(asked)),
            num_workers=torch.get_num_threads() if self.concurrent and not exact else 1,
            again=again,
        )

    def draw(self, numbers: list[int]) -> Draws:
        """Networks `numbers`; each depends on the seed and its number only."""
        streams = [numpy_stream(self.seed, 0, n) for n in numbers]
        levels = self._levels(numbers)
        x = draw_inputs(self.probe, self.family.shape, levels, self.family.schedule, streams)
        return Draws(numbers, levels, x, self._parameters(streams))

    def grams(self, draws: Draws) -> list[BatchGram]:
        """What each batch among the draws adds: its number, how many networks, the sum of Grams."""
        rows = self.rows(draws)  # (n, R, P)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(draws.numbers):
            places.setdefault(number % NUM_BATCHES, []).append(place)
        # Squares of very small or large numbers need the range of double precision.
        gram_type = self.gram_type if scale_of(rows) == 1.0 else torch.float64
        grams = []
        for batch, chosen in sorted(places.items()):
            flat = rows[chosen].flatten(0, 1).to(gram_type)
            grams.append((batch, len(chosen), flat.T @ flat))
        if not all(gram.isfinite().all() for _, _, gram in grams):
            self.explain_not_finite(draws, rows)
        return grams

    def explain_not_finite(self, draws: Draws, rows: Tensor) -> None:
        """Say which network returned what is not finite."""
        finite = rows.flatten(1).double().square().sum(dim=1).isfinite()
        first = int((~finite).to(torch.uint8).argmax())
        raise NonFiniteError(
            f"network {draws.numbers[first]} of seed {self.seed} gives NaN or infinity at level "
            f"{int(draws.levels[first])}; check its initialisation and its range of input"
        )

    @abstractmethod
    def rows(self, draws: Draws) -> Tensor:
        """(n, R, P) such that the factor is a function of the mean Gram matrix."""

    @abstractmethod
    def factor(self, gram: Tensor) -> Tensor:
        """The factor of the geometry from the mean Gram matrix, both float64."""

    def factor_rows(self, rows: Tensor) -> Iterator[Tensor]:
        """Rows (r, P) of the factor of one network, from its own (R, P).

        The factor is the mean over networks, and over the `group` of symmetries, of the Gram
        matrices of these rows, and `offset` times the identity.
        """
        yield rows

    group: Sequence[Tensor] = ()  # of permutations of the positions
    offset = 0.0

    def exact_gram(self, stage: Callable[[str], None]) -> Tensor | None:
        """The Gram matrix if it is the same for every network and level, else None."""
        rows = self.exact_rows(stage)
        return None if rows is None else rows.T @ rows

    def exact_rows(self, stage: Callable[[str], None]) -> Tensor | None:
        """The rows (R, P) if they are the same for every network and level, else None."""
        return None

    def notes(self) -> list[str]:
        """What a reader of the result should know about how it was made."""
        return []

    def _parameters(self, streams: list[np.random.Generator]) -> Drawn:
        return {}

    def _levels(self, numbers: list[int]) -> Tensor:
        """Evenly spread over the law within a batch, from a start that is random for each."""
        turns = (divmod(number, NUM_BATCHES) for number in numbers)
        u = [(self._starts[batch] + turn * GOLDEN) % 1.0 for turn, batch in turns]
        index = torch.searchsorted(
            self._cumulative, torch.tensor(u, dtype=torch.float64), right=True
        )
        return index.clamp(max=len(self._cumulative) - 1)


def _stack_of(
    networks: Networks, layer_path: str | None, device: torch.device, dtype: torch.dtype
) -> Stack | StreamedStack:
    if isinstance(networks, Streamed):
        return StreamedStack(networks, layer_path, device, dtype)
    return Stack(networks.module, layer_path, device, dtype)


class Stacked(Estimator):
    """Networks drawn and evaluated in stacks, or one after the other and layer by layer."""

    def __init__(
        self,
        family: ScoreFamily,
        probe: Probe,
        seed: int,
        level_law: Tensor,
        initialiser: Networks,
        stack: Stack | StreamedStack,
    ):
        super().__init__(family, probe, seed, level_law)
        self.initialiser, self.stack = initialiser, stack
        self.default_size = stack.default_size
        self.network_bytes = stack.network_bytes
        # A large network fills the machine by itself, and its memory twice would be too much.
        small = isinstance(stack, Stack) and stack.network_bytes <= PARAMETER_BYTES
        if isinstance(stack, StreamedStack):
            # Spectra of large networks span ten decades. Rows that are right to seven digits give
            # eigenvalues that are right to fourteen digits of the largest, if their products are.
            self.gram_type = torch.float64
        self.concurrent = initialiser.reason is None and stack.device.type == "cpu" and small

    def notes(self) -> list[str]:
        reasons = {
            "networks are built by their constructor, one at a time": self.initialiser.reason,
            "networks are evaluated one after the other": self.stack.reason,
        }
        return [f"{what}: {why}" for what, why in reasons.items() if why]

    def compare_precisions(self) -> str:
        """By how much the first networks differ from float32, in words."""
        stack = self.stack
        given, expected = [], []
        for number in range(COMPARED):
            given += self.grams(self.draw([number]))
            self.stack = _stack_of(self.initialiser, stack.layer_path, stack.device, torch.float32)
            expected += self.grams(self.draw([number]))
            self.stack = stack
        errors = [
            float((a.double() - b).norm() / b.double().norm())
            for (_, _, a), (_, _, b) in zip(given, expected, strict=True)
        ]
        return (
            f"networks are evaluated in {str(stack.dtype).removeprefix('torch.')}: the Gram "
            f"matrices of the first {COMPARED} differ from those in float32 by "
            f"{', '.join(f'{error:.2%}' for error in errors)}"
        )

    def _parameters(self, streams: list[np.random.Generator]) -> Drawn:
        return self.initialiser.draw(streams)

    def _evaluate(self, draws: Draws) -> Tensor:
        schedule = self.family.schedule
        x = schedule.network_input(draws.x, draws.levels, self.family.prediction)
        evaluate: Callable[[Any, Tensor, Tensor], Tensor] = self.stack.evaluate
        return evaluate(draws.parameters, x, schedule.network_time(draws.levels))


class Integrated(Stacked):
    """Features of networks; the output layer is integrated out.

    Levels are drawn in proportion to `b_t^2`, so that all have the weight `E[b_t^2]`.
    """

    name = "integrated"
    varies = False  # are features known to differ between networks?

    def __init__(
        self,
        family: ScoreFamily,
        probe: Probe,
        seed: int,
        initialiser: Networks,
        readout: Readout,
        symmetries: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        a, b = score_coefficients(family, readout)
        stack = _stack_of(initialiser, readout.path, device, dtype)
        super().__init__(family, probe, seed, b**2, initialiser, stack)
        self.readout = readout
        self.weight = float((b**2).mean())
        self.gram_size = readout.lift.size
        self.row_bytes = 4 * getattr(readout, "num_features", 1) * self.gram_size
        moment = probe.second_moment(family.schedule, a**2 / len(a)) if a.any() else None
        self._offset = torch.as_tensor(0.0 if moment is None else moment, dtype=torch.float64)
        if self._offset.ndim and len(self._offset) != family.dimension:
            raise InvalidArgumentError(
                f"the second moment of the probe is of {len(self._offset):,} coordinates, the data "
                f"have {family.dimension:,}"
            )
        self.lift = Lift.trivial(family.dimension) if self._offset.ndim else readout.lift
        self.group = generate_group(list(symmetries.values()))
        self.offset = 0.0 if self._offset.ndim else float(self._offset)

    def rows(self, draws: Draws) -> Tensor:
        return self.readout.rows(self._evaluate(draws))

    def factor(self, gram: Tensor) -> Tensor:
        factor = average(self.weight * self.readout.factor(gram), self.group)
        if self._offset.ndim:
            return self.readout.lift.dense(factor) + self._offset
        return factor + self._offset * torch.eye(len(factor), dtype=factor.dtype)

    def factor_rows(self, rows: Tensor) -> Iterator[Tensor]:
        if self._offset.ndim:
            raise InvalidArgumentError(
                f"the probe adds a {len(self._offset):,} x {len(self._offset):,} matrix to the "
                f"geometry of networks that predict {self.family.prediction}, which is too large; "
                "probe at zero or with Gaussian noise, or choose a smaller shape"
            )
        for part in self.readout.factor_rows(rows):
            yield math.sqrt(self.weight) * part

    def exact_rows(self, stage: Callable[[str], None]) -> Tensor | None:
        """Features that agree among 16 networks, at the first and the last level too, are fixed.

        Of large networks four are enough: each has millions of random numbers of its own. That
        must hold in double precision too, between two networks at the two ends. Networks are held
        in memory as many at a time as in the estimate, and the first that differs from number 0
        ends the search.
        """
        ends = None if self.varies else self._common_inputs(stage)
        if ends is None:
            self.varies = True
            return None
        if isinstance(self.initialiser, Initialiser):
            self.initialiser.release_memory()  # double precision needs it
        found = [self._features_in_double(seed, x, level) for seed, (x, level) in enumerate(ends)]
        first, last = found
        if first is None or last is None:
            return None
        agree = float((first - last).abs().max()) <= EQUAL * float(first.abs().max())
        return first if agree else None

    def _common_inputs(self, stage: Callable[[str], None]) -> list[tuple[Tensor, Tensor]] | None:
        """Input and level of the first and the last of 16 networks, if their features agree."""
        reference: Tensor | None = None
        ends = []
        size = self.stack_size()
        count = 4 if isinstance(self.initialiser, Streamed) else NUM_BATCHES
        for start in range(0, count, size):
            numbers = list(range(count))[start : start + size]
            stage(f"checking whether anything is random: {start + len(numbers)} of {count}")
            draws = self.draw(numbers)
            if draws.numbers[0] == 0:
                draws.levels[0] = 0
                ends.append((draws.x[:1], draws.levels[:1]))
            if draws.numbers[-1] == count - 1:
                draws.levels[-1] = self.family.schedule.num_levels - 1
                ends.append((draws.x[-1:], draws.levels[-1:]))
            rows = self.rows(draws)
            reference = rows[:1].clone() if reference is None else reference
            if float((rows - reference).abs().max()) > 1e-5 * float(rows.abs().max()):
                return None
        return ends

    def _features_in_double(self, seed: int, x: Tensor, level: Tensor) -> Tensor | None:
        """What enters the output layer of one network; None if it cannot be had in double."""
        time = self.family.schedule.network_time(level).double()
        x = self.family.schedule.network_input(x.double(), level, self.family.prediction)
        try:
            if isinstance(self.initialiser, Streamed):
                streamed = StreamedNetwork(self.initialiser, torch.device("cpu"), torch.float64)
                (stream,) = self.initialiser.draw([numpy_stream(self.seed, 3, seed)])
                return self.readout.rows(streamed(stream, x, time, self.readout.path)[None])[0]
            network = self.initialiser.build(seed).double()
            layer = network.get_submodule(self.readout.path)
            with torch.no_grad():
                h = capture_input(network, layer, x, time)
        except RuntimeError:  # a network that casts to single precision inside
            return None
        return self.readout.rows(h[None])[0]


class OuterProduct(Stacked):
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
        initialiser: Networks,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        a, b = family.schedule.score_coefficients(family.prediction)
        moment = probe.second_moment(family.schedule, torch.ones_like(a))
        nothing = isinstance(moment, float) and moment == 0.0  # x is always 0
        law = b**2 if nothing else a**2 + b**2
        stack = _stack_of(initialiser, None, device, dtype)
        super().__init__(family, probe, seed, law, initialiser, stack)
        weights = (law.mean() / law).sqrt()
        self._a, self._b = (a * weights).float(), (b * weights).float()
        self.lift = Lift.trivial(family.dimension)
        self.gram_size, self.row_bytes = family.dimension, 4 * family.dimension

    def rows(self, draws: Draws) -> Tensor:
        output = self._evaluate(draws).flatten(1)  # (n, D)
        a, b = self._a[draws.levels][:, None], self._b[draws.levels][:, None]
        return (a * draws.x.flatten(1) + b * output)[:, None]

    def factor(self, gram: Tensor) -> Tensor:
        return gram


class MonteCarlo(Estimator):
    """The paper's loop: a fresh network and one uniform level a draw."""

    name = "monte-carlo"

    def __init__(self, family: ScoreFamily, probe: Probe, seed: int, device: torch.device):
        super().__init__(family, probe, seed, torch.ones(family.schedule.num_levels).double())
        self.device = device
        # Without an accelerator all networks are on the CPU. To move one there, layer by layer,
        # takes a tenth as long as to build it.
        self.moves = device.type != "cpu" or torch.accelerator.is_available()
        self.lift = Lift.trivial(family.dimension)
        self.gram_size, self.row_bytes = family.dimension, 4 * family.dimension

    def _levels(self, numbers: list[int]) -> Tensor:
        count = self.family.schedule.num_levels
        return torch.tensor([numpy_stream(self.seed, 1, n).integers(count) for n in numbers])

    def rows(self, draws: Draws) -> Tensor:
        scores = []
        with generators_kept(), evaluating_networks(), torch.no_grad():
            for number, level, x in zip(draws.numbers, draws.levels, draws.x, strict=True):
                seed_generators(int(numpy_stream(self.seed, 2, number).integers(2**63)))
                network = self.family.build()
                if self.moves:
                    network.to(self.device)
                x = x[None].to(self.device)
                scores.append(self.family.score(network, x, level[None]).cpu().flatten(1))
        return torch.stack(scores)  # (n, 1, D)

    def factor(self, gram: Tensor) -> Tensor:
        return gram
