"""Estimate a geometry without a matrix, in passes over networks that their numbers make again.

    A = mean over networks of Phi^T Phi,   Phi (r, P): the rows that one network gives

A quarter of the batches of networks are *finders*, the others are *judges*:

1. *Look.* Finders give the energies of basis vectors (`energies`) and the matrices of small windows
   (`windows`).
2. *Search.* In every further pass the finders' factor is applied to a block of vectors, and both
   ends of its spectrum come closer (`search`).
3. *Judge.* The judges, who had no part in this, give the energies of basis vectors too, and the
   forms `u_i^T A u_j` of the directions that were found. So these are free of bias for the true
   geometry, however the directions were chosen.

Rows of the finders are kept in memory as far as the budget goes; others are made again. Either way
they are the same numbers. Memory is `O(P)` times the directions searched, and time `O(P log P)`
times the rows of a network.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sads.estimates import batch_error, batch_mean
from sads.files import tensor_digest
from sads.geometry.cost import NOTHING, Spent
from sads.geometry.estimators import NUM_BATCHES, Estimator
from sads.geometry.matrixfree.energies import BasisEnergies
from sads.geometry.matrixfree.geometry import JudgedEnds, MatrixFree
from sads.geometry.matrixfree.search import SURE, Ends, Search, orthonormal
from sads.geometry.matrixfree.windows import LocalInverse, Windows
from sads.geometry.memory import PassesForecast
from sads.geometry.response import same_response
from sads.seeds import torch_stream
from sads.threads import map_on_cores
from sads.transforms import SYNTHESIS

FINDERS = NUM_BATCHES // 4  # batches: to find takes few networks, to know an error takes many
NUM_ENDS = 8  # directions at each end
NUM_COSINES = 32  # that the search for them begins with
MAX_PASSES = 12  # of the search
DETERMINED = 4  # rows of finders for every position that let the preferred end be refined
EXACT = 1e-3  # in place of SURE where there are no networks, whose errors would be larger
COLUMNS = 256  # of data that are measured at a time
PHASES = ("look", "search", "judge", "done")

Progress = Callable[[int, int, float], None]
Stage = Callable[[str], None]
Chunk = tuple[int, tuple[int, ...]]  # batch, numbers of networks


@dataclass(frozen=True, eq=False)
class State:
    """How far the work is. It changes in one assignment, so that an interrupt finds it whole."""

    phase: str
    turn: int  # of the search
    done: int  # chunks of this phase
    tensors: Mapping[str, Tensor]

    @property
    def counts(self) -> Tensor:
        return self.tensors["counts"]

    def adding(self, chunk: Chunk, added: Mapping[str, Tensor], counted: bool) -> "State":
        """After one more chunk; what is kept for every batch goes to that of the chunk."""
        batch, numbers = chunk
        tensors = dict(self.tensors)
        for name, value in added.items():
            if name in ("windows", "applied", "num_rows"):
                tensors[name] = tensors[name] + value
            else:
                tensors[name] = tensors[name].clone()
                tensors[name][batch] += value
        if counted:
            tensors["counts"] = tensors["counts"].clone()
            tensors["counts"][batch] += len(numbers)
        return replace(self, done=self.done + 1, tensors=tensors)


class Passes:
    """The work of one estimate.

    Args:
        measure: data or directions (n, D) whose energies are wanted too.
        exact_rows: the rows of all networks, (R, P), if they are always the same.
        memory: bytes for the rows of finders.
    """

    def __init__(
        self,
        estimator: Estimator,
        shape: tuple[int, ...],
        first_network: int,
        num_networks: int,
        *,
        size: int = 1,
        measure: Tensor | None = None,
        exact_rows: Tensor | None = None,
        memory: int = 0,
    ):
        self.estimator, self.shape, self.size = estimator, shape, size
        self.lift = estimator.lift
        self.group = list(estimator.group) or [torch.arange(self.lift.size)]
        self._inverses = [g.argsort() for g in self.group]
        self.basis = BasisEnergies(self.lift, shape, estimator.group)
        self.windows = Windows.on(self.lift.grid(shape))
        self.measure = measure
        self._exact = exact_rows
        self.num_batches = NUM_BATCHES if exact_rows is None else 1
        chunks = list(_chunks(first_network, num_networks, size))
        self.finders = [chunk for chunk in chunks if chunk[0] < FINDERS]
        self.judges = [chunk for chunk in chunks if chunk[0] >= FINDERS]
        if exact_rows is not None:
            self.finders = self.judges = [(0, (0,))]
        self._rows: dict[Chunk, Tensor] = {}
        self._room = memory
        self.state = self._start()

    @property
    def has_judges(self) -> bool:
        """Are there networks of both kinds? If not, the ends are not searched."""
        return bool(self.finders and self.judges)

    def _start(self) -> State:
        kinds, pixels = max(self.basis.channels) + 1, math.prod(self.shape[1:])
        batches = self.num_batches
        zeros: dict[str, tuple[int, ...]] = {
            f"energies {name}": (batches, kinds, pixels) for name in self.basis.names
        }
        count, area = self.windows.index.shape
        zeros["windows"] = (count, area, area)
        zeros["num_rows"] = ()
        zeros["measured"] = (batches, 0 if self.measure is None else len(self.measure))
        tensors = {name: torch.zeros(sizes).double() for name, sizes in zeros.items()}
        tensors["counts"] = torch.zeros(self.num_batches, dtype=torch.int64)
        return State("look", 0, 0, tensors)

    def forecast(self) -> PassesForecast:
        """The memory that this takes."""
        estimator, size = self.estimator, self.lift.size
        start = sum(tensor.nbytes for tensor in self.state.tensors.values())
        first = 4 * NUM_ENDS + NUM_COSINES  # vectors, of which two copies and an orbit are held
        columns = 2 * first + 4 * NUM_ENDS * MAX_PASSES + 2 * first * len(self.group)
        workers = torch.get_num_threads() if estimator.concurrent else 1
        rows = self.size * estimator.row_bytes
        one = 2 * estimator.network_bytes + estimator.activation_bytes + 4 * estimator.row_bytes
        return PassesForecast(
            size=size,
            space=2 * start + 8 * size * columns,
            features=min(self._room, len(self.finders) * rows),
            networks=workers * (self.size * one + self.state.tensors["windows"].nbytes),
        )

    def run(
        self, keep: Callable[[], None], due: Callable[[], bool], progress: Progress, stage: Stage
    ) -> None:
        """All phases from where the work is; `keep` is called when it is `due`."""
        while self.state.phase != "done":
            chunks = self._phase_chunks()
            stage(self._describe())
            work = {"look": self._look, "search": self._apply, "judge": self._judge}
            left = iter(chunks[self.state.done :])
            workers = None if self.estimator.concurrent else 1
            for chunk, added in map_on_cores(work[self.state.phase], left, workers):
                counted = self.state.phase != "search" and self._exact is None
                self.state = self.state.adding(chunk, added, counted)
                if due():
                    keep()
                seen = sum(len(numbers) for _, numbers in chunks[: self.state.done])
                progress(seen, sum(len(c[1]) for c in chunks), self.relative_error())
            self.state = self._next_phase()

    def _phase_chunks(self) -> list[Chunk]:
        if self.state.phase == "look" and not self.has_judges:
            return [*self.finders, *self.judges]
        return self.judges if self.state.phase == "judge" else self.finders

    def _describe(self) -> str:
        if self.state.phase == "search":
            return f"searching both ends: pass {self.state.turn + 1} of at most {MAX_PASSES}"
        return "drawing networks" if self.state.phase == "look" else "judging what was found"

    def _next_phase(self) -> State:
        """After the last chunk of a phase: what comes next, and its block or directions."""
        state, tensors = self.state, dict(self.state.tensors)
        if state.phase == "judge" or not self.has_judges:
            return State("done", state.turn, 0, tensors)
        inverse = LocalInverse.of(self.windows, self.lift.size, tensors["windows"])
        if state.phase == "look":
            block = self._first_block(inverse)
            turn = 0
            space = Search(block[:, :0], block[:, :0])
        else:
            count = max(1, sum(len(numbers) for _, numbers in self.finders))
            images = tensors["applied"] / count + self.estimator.offset * tensors["block"]
            space = Search(tensors["basis"], tensors["images"]).joined(tensors["block"], images)
            turn = state.turn + 1
            last = turn == MAX_PASSES
            sure = SURE if self._exact is None else EXACT
            following = (
                None if last else space.next_block(inverse, NUM_ENDS, self._determined, sure)
            )
            if following is None:
                return self._to_be_judged(space.ends(NUM_ENDS), turn, tensors)
            block = following
        tensors |= {
            "basis": space.basis,
            "images": space.images,
            "block": block,
            "applied": torch.zeros_like(block),
        }
        return State("search", turn, 0, tensors)

    @property
    def _determined(self) -> bool:
        """Do the finders see all directions, several times over? If not, some that nobody measured
        look as if they were preferred, and what windows say is all that can be learnt of that end.
        """
        num_rows = float(self.state.tensors["num_rows"]) * len(self.group)
        return self._exact is not None or num_rows >= DETERMINED * self.lift.size

    def _first_block(self, inverse: LocalInverse) -> Tensor:
        """Random vectors, a sketch of the avoided end, and cosines of high energy, near which it
        mostly is; local vectors, where the preferred end is.
        """
        size = self.lift.size
        sketch = torch.randn(size, 2 * NUM_ENDS, generator=torch_stream("sketch of a geometry"))
        parts = [sketch.double(), self._strongest_cosines(), inverse.preferred(2 * NUM_ENDS)]
        start = orthonormal(torch.cat(parts, dim=1))
        assert start is not None  # random vectors are not zero
        return start

    def _strongest_cosines(self) -> Tensor:
        """What the factor has of those vectors of the DCT that the finders give most energy,
        (P, NUM_COSINES).
        """
        kinds = self.state.tensors["energies dct"].sum(dim=0)  # (kinds, pixels)
        number = kinds.amax(dim=0).topk(min(NUM_COSINES, kinds.shape[1])).indices
        coefficients = torch.zeros(len(number), kinds.shape[1], dtype=torch.float64)
        coefficients[torch.arange(len(number)), number] = 1.0
        images = SYNTHESIS["dct"](coefficients.reshape(-1, *self.shape[1:]).numpy())
        x = torch.zeros(len(number), *self.shape, dtype=torch.float64)
        channel = self.basis.channels.index(int(kinds.sum(dim=1).argmax()))
        x[:, channel] = torch.from_numpy(images)
        groups = self.lift.split(x.flatten(1))  # (n, groups, P)
        strongest = groups.norm(dim=2).argmax(dim=1)
        return groups[torch.arange(len(number)), strongest].T

    def _to_be_judged(self, ends: Ends, turn: int, tensors: dict[str, Tensor]) -> State:
        for name in ("basis", "images", "block", "applied", "windows"):
            del tensors[name]
        tensors |= {
            "vectors": ends.vectors,
            "found": ends.values.clamp(min=0),
            "residuals": ends.residuals,
            "num_avoided": torch.tensor(ends.num_avoided),
            "forms": torch.zeros(self.num_batches, *[len(ends.values)] * 2, dtype=torch.float64),
        }
        return State("judge", turn, 0, tensors)

    # What one chunk of networks adds, in every phase.

    def _look(self, chunk: Chunk) -> dict[str, Tensor]:
        finder = chunk[0] < FINDERS
        added = {name: torch.zeros_like(total[0]) for name, total in self._of_batches().items()}
        grams = torch.zeros_like(self.state.tensors["windows"])
        num_rows = torch.zeros((), dtype=torch.float64)
        for rows in self._factor_rows(chunk):
            self._add_energies(added, rows)
            num_rows += len(rows)
            if finder and self.has_judges:
                grams += self.windows.gram(rows)
        return {**added, "windows": grams, "num_rows": num_rows}

    def _apply(self, chunk: Chunk) -> dict[str, Tensor]:
        block = self._orbit(self.state.tensors["block"]).T.contiguous()  # as rows lie in memory
        applied = torch.zeros_like(block)
        for rows in self._factor_rows(chunk):
            rows = rows.double()
            applied.addmm_(block @ rows.T, rows)
        parts = applied.T.chunk(len(self.group), dim=1)
        moved = [part[g] for part, g in zip(parts, self.group, strict=True)]
        return {"applied": torch.stack(moved).mean(dim=0)}

    def _judge(self, chunk: Chunk) -> dict[str, Tensor]:
        added = {name: torch.zeros_like(total[0]) for name, total in self._of_batches().items()}
        vectors = self._orbit(self.state.tensors["vectors"])
        form = torch.zeros_like(self.state.tensors["forms"][0])
        for rows in self._factor_rows(chunk):
            if self._exact is None:  # else the finders gave them
                self._add_energies(added, rows)
            for moved in (rows.double() @ vectors).chunk(len(self.group), dim=1):
                form.addmm_(moved.T, moved, alpha=1 / len(self.group))
        return {**added, "forms": form}

    def _of_batches(self) -> dict[str, Tensor]:
        tensors = self.state.tensors
        return {n: t for n, t in tensors.items() if n.startswith("energies ") or n == "measured"}

    def _add_energies(self, added: dict[str, Tensor], rows: Tensor) -> None:
        for name, values in self.basis.of_rows(rows).items():
            added[f"energies {name}"] += values
        if self.measure is None:
            return
        for part in torch.arange(len(self.measure)).split(COLUMNS):
            z = self.lift.split(self.measure[part].to("cpu", rows.dtype))  # (n, groups, P)
            columns = self._orbit(z.flatten(0, 1).T)
            squares = (rows @ columns).double().square().sum(dim=0)
            shared = squares.reshape(len(self.group), len(part), -1).sum(dim=2).mean(dim=0)
            added["measured"][part] += shared

    def _orbit(self, x: Tensor) -> Tensor:
        """(P, b) moved by every symmetry, (P, b |group|)."""
        return torch.cat([x[inverse] for inverse in self._inverses], dim=1)

    def _factor_rows(self, chunk: Chunk) -> Iterator[Tensor]:
        for rows in self._network_rows(chunk):
            yield from self.estimator.factor_rows(rows)

    def _network_rows(self, chunk: Chunk) -> Tensor:
        """The rows of the networks of a chunk, (n, R, P), from memory or made again."""
        if self._exact is not None:
            return self._exact[None]
        if chunk in self._rows:
            return self._rows[chunk]
        draws = self.estimator.draw(list(chunk[1]))
        rows = self.estimator.rows(draws)
        if not rows.isfinite().all():
            self.estimator.explain_not_finite(draws, rows)
        if chunk[0] < FINDERS and rows.nbytes <= self._room:
            self._room -= rows.nbytes
            self._rows[chunk] = rows.clone()
        return rows

    # What is known so far.

    def relative_error(self) -> float:
        """Standard error of the energies of pixels in units of them, on average."""
        values, counts = self._means("energies canonical"), self.state.counts
        used = counts > 0
        if not used.any():
            return math.inf
        mean = batch_mean(values[used], counts[used]).clamp(min=1e-300)
        return float((batch_error(values[used], counts[used]) / mean).mean())

    def result(self) -> MatrixFree:
        """The geometry of the networks so far; its ends are known when all is done."""
        tensors = self.state.tensors
        offset = self.estimator.offset
        energies = {name: self._means(f"energies {name}") + offset for name in self.basis.names}
        measured = {}
        if self.measure is not None:
            lengths = self.measure.double().square().sum(dim=1)
            measured[tensor_digest(self.measure)] = self._means("measured") + offset * lengths
        ends = None
        if self.state.phase == "done" and "forms" in tensors:
            judges = self.state.counts[FINDERS if self._exact is None else 0 :].clone()
            forms = self._means("forms")[-len(judges) :]
            identity = torch.eye(forms.shape[-1], dtype=torch.float64)
            ends = JudgedEnds(
                vectors=tensors["vectors"],
                num_avoided=int(tensors["num_avoided"]),
                found=tensors["found"],
                residuals=tensors["residuals"],
                forms=forms + offset * identity,
                counts=judges,
            )
        return MatrixFree(
            counts=self.state.counts,
            lift=self.lift,
            shape=self.shape,
            channels=self.basis.channels,
            energies=self.basis.averaged(energies),
            ends=ends,
            measured=measured,
        )

    def _means(self, name: str) -> Tensor:
        """Sums over the networks of every batch, divided by their number."""
        sums = self.state.tensors[name]
        counts = self.state.counts.clamp(min=1).double()
        return sums / counts.reshape(-1, *[1] * (sums.ndim - 1))

    # Work under way, on disk.

    def tensors(self, response: tuple[float, ...], spent: Spent) -> dict[str, Tensor]:
        """What `load` reads."""
        state = self.state
        position = [PHASES.index(state.phase), state.turn, state.done, self.size]
        return {
            **state.tensors,
            "position": torch.tensor(position),
            "response": torch.tensor(response, dtype=torch.float64),
            **spent.tensors(),
        }

    def load(self, tensors: dict[str, Tensor], response: tuple[float, ...]) -> Spent:
        """Go on from what `tensors` wrote; what was spent on it so far."""
        spent = Spent.read(tensors)
        tensors = {n: t for n, t in tensors.items() if n not in NOTHING.tensors()}
        if not same_response(tensors.pop("response").tolist(), response):
            raise ValueError("the networks or the probe were others")
        phase, turn, done, size = (int(n) for n in tensors.pop("position"))
        if not (0 <= phase < len(PHASES) and 0 <= turn <= MAX_PASSES and size == self.size):
            raise ValueError("its parts do not fit together")
        begun = self._start().tensors
        for name, tensor in tensors.items():
            same = name not in begun or tensor.shape == begun[name].shape
            if not same or (tensor.is_floating_point() and not tensor.isfinite().all()):
                raise ValueError("its numbers are of another size, or not finite")
        self.state = State(PHASES[phase], turn, done, tensors)
        self._check_names()
        return spent

    def _check_names(self) -> None:
        state, size = self.state, self.lift.size
        wanted = {"search": ("basis", "images", "block", "applied"), "judge": ("vectors",)}
        for name in wanted.get(state.phase, ()):
            if name not in state.tensors or len(state.tensors[name]) != size:
                raise ValueError("its numbers are of another size")
        if state.phase != "done" and not 0 <= state.done <= len(self._phase_chunks()):
            raise ValueError("it ends elsewhere")


def _chunks(first: int, count: int, size: int) -> Iterator[Chunk]:
    """The networks to be evaluated together: those of one batch, `size` at a time."""
    for batch in range(NUM_BATCHES):
        numbers = (n for n in range(first, first + count) if n % NUM_BATCHES == batch)
        while chunk := tuple(itertools.islice(numbers, size)):
            yield batch, chunk
