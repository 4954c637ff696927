"""Estimate the average geometry of a family of networks.

    G = E_t E_theta[ F F^T ],   F = a_t x + b_t net(x, t),   t uniform

Three things make this fast, each free of bias:

1. *Levels by weight.* `t` is drawn with probability proportional to `b_t^2` and every draw gets
   the same weight `E[b_t^2]`; within a batch the draws are spread evenly over that law by a
   golden-ratio sequence with a random start.
2. *The output layer integrated out* (`readout`), so that a network gives a full-rank sample.
   Its weights have mean zero, so the cross terms of `a_t x` and `b_t net` vanish and
   `G = E[a_t^2 x x^T] + E[b_t^2 net net^T]`; the first term is known in closed form.
3. *Stacks of networks*, drawn (`initialise`) and evaluated (`stack`) together.

Network number `n` of a seed has its own random stream and belongs to batch `n mod 16`. The
result therefore does not depend on how networks are stacked or spread over workers.
"""

import itertools
import math
import platform
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sads.errors import InvalidArgumentError, ZeroReadoutError
from sads.family import ScoreFamily
from sads.geometry.geometry import Geometry
from sads.geometry.initialise import Initialiser
from sads.geometry.readout import NoReadout, Readout, find_readout, with_default_readout
from sads.geometry.sampling import (
    NUM_BATCHES,
    BatchGram,
    Integrated,
    MonteCarlo,
    OuterProduct,
    Sampling,
    check_network,
)
from sads.probe import Probe, ZeroProbe

DEFAULT_NETWORKS = 1024
ESTIMATORS = ("auto", "outer-product", "monte-carlo")

Progress = Callable[[int, int, float], None]  # networks so far, networks in all, relative error


def estimate_geometry(
    family: ScoreFamily,
    num_networks: int | None = None,
    tolerance: float | None = None,
    *,
    probe: Probe | None = None,
    seed: int = 0,
    estimator: str = "auto",
    readout: str | None = None,
    zero_readout: str = "error",
    max_networks: int = 16_384,
    batch_size: int | None = None,
    first_network: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Geometry:
    """The average geometry `E[F F^T]` of untrained score networks.

    Ctrl-C returns the estimate from the networks so far, with a warning.

    Args:
        num_networks: how many random networks to draw; 1024 if neither this nor `tolerance`.
        tolerance: draw networks until every direction is sure to this angle in radians, or
            cannot be told from neighbours of equal eigenvalue, or `max_networks` are drawn.
        probe: where to evaluate the networks; `x = 0` if not given.
        seed: the same seed gives the same networks.
        estimator: `"auto"` integrates the output layer out where it can and otherwise takes
            outer products of scores; `"outer-product"` always does the latter;
            `"monte-carlo"` is the paper's plain loop, kept as a reference.
        readout: name of the output layer to integrate out; found automatically if not given.
        zero_readout: `"default"` draws an output layer that starts at zero by its type's
            default initialisation; `"error"` refuses it.
        batch_size: networks evaluated at once; chosen by their size if not given.
        first_network: number of the first network, for estimating shards to be merged.
        progress: called with networks so far, networks in all, and the relative error.
    """
    _check_arguments(
        num_networks, tolerance, max_networks, batch_size, seed, first_network, estimator,
        zero_readout,
    )  # fmt: skip
    started = time.perf_counter()
    probe = probe or ZeroProbe()
    device = usable_device(device)
    budget = max_networks if tolerance else num_networks or DEFAULT_NETWORKS
    with sdpa_kernel(SDPBackend.MATH):  # the kind of attention that vmap can batch
        sampling, facts = _choose_sampling(
            family, probe, seed, estimator, readout, zero_readout, device
        )
        facts |= {"tolerance": tolerance, "interrupted": False}
        stacks = _stacks(first_network, budget, batch_size or sampling.default_size)

        def result(factors: Tensor, counts: Tensor, stop: int = 0) -> Geometry:
            if not factors.any():
                raise ZeroReadoutError(
                    "every network returns zero, so the geometry is 0 and its directions are "
                    "undefined; check how the networks are initialised"
                )
            provenance = {
                **facts,
                "notes": [*facts["notes"], *sampling.notes()],
                "draws": [[seed, first_network, stop]] if counts.any() else [],
                "seconds": time.perf_counter() - started,
            }
            return Geometry(factors, counts, sampling.lift, family.shape, provenance)

        exact = sampling.exact_gram()
        if exact is not None:
            facts["estimator"] = "exact"
            return result(sampling.factor(exact)[None], torch.zeros(1, dtype=torch.int64))

        moments, stop = _Moments(), first_network
        try:
            for stop, grams in _grams(sampling, stacks):
                moments.add(grams)
                if progress:
                    progress(moments.num_networks, budget, moments.relative_error())
                whole_block = moments.num_networks == stop - first_network
                if tolerance and whole_block and _settled(result(*moments.factors(sampling))):
                    break
        except KeyboardInterrupt:
            if moments.num_networks == 0:
                raise
            facts["interrupted"] = True
            warnings.warn(
                f"interrupted: the geometry holds {moments.num_networks} of {budget} networks",
                stacklevel=2,
            )
        return result(*moments.factors(sampling), stop)


def _choose_sampling(
    family: ScoreFamily,
    probe: Probe,
    seed: int,
    estimator: str,
    readout_path: str | None,
    zero_readout: str,
    device: torch.device,
) -> tuple[Sampling, dict[str, Any]]:
    """The fastest way to sample this family, and the facts about it for the provenance."""
    initialiser = Initialiser(family.build)
    check_network(family, initialiser.module)
    try:
        found = find_readout(family, initialiser, readout_path)
    except ZeroReadoutError as error:
        if zero_readout != "default" or error.layer_path is None:
            raise
        family = with_default_readout(family, error.layer_path)
        initialiser = Initialiser(family.build)
        found = find_readout(family, initialiser, error.layer_path)

    sampling: Sampling
    notes: list[str] = []
    x = torch.randn(1, *family.shape, generator=torch.Generator().manual_seed(0))
    t = family.schedule.network_time(torch.tensor([family.schedule.num_levels // 2]))
    if not initialiser.holds_all_randomness(x, t):
        estimator = "monte-carlo"
        notes.append("networks are built one by one: they are random beyond their parameters")
    if initialiser.is_constant:
        notes.append("the factory gives every network the same weights")
    if isinstance(found, Readout):
        a, _ = family.schedule.score_coefficients(family.prediction)
        if a.any() and probe.second_moment(family.schedule, a**2) is None:
            found = NoReadout(
                f"E[x x^T] of the probe is not known, and {family.prediction} needs it"
            )
    if estimator == "monte-carlo":
        sampling = MonteCarlo(family, probe, seed, device)
    elif isinstance(found, Readout) and estimator == "auto":
        sampling = Integrated(family, probe, seed, initialiser, found, device)
    else:
        sampling = OuterProduct(family, probe, seed, initialiser, device)
        if isinstance(found, NoReadout):
            if readout_path is not None:
                raise InvalidArgumentError(
                    f"{readout_path} cannot be integrated out: {found.reason}; "
                    "leave the readout to be found, or choose another"
                )
            notes.append(f"the output layer is not integrated out: {found.reason}")
    facts = {
        "family": family.describe(),
        "fingerprint": initialiser.fingerprint(),
        "probe": probe.describe(),
        "estimator": sampling.name,
        "readout": found.path if isinstance(sampling, Integrated) else None,  # type: ignore[union-attr]
        "response": _response(initialiser, family, probe, x, t),
        "zero_readout": zero_readout,
        "symmetries": sorted(sampling.symmetries),
        "notes": notes,
        "versions": {
            "sads": version("sads"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    return sampling, facts


def _response(
    initialiser: Initialiser, family: ScoreFamily, probe: Probe, x: Tensor, t: Tensor
) -> list[float]:
    """A few numbers by which geometries of different networks or probes are told apart."""
    rng = np.random.Generator(np.random.SFC64(0))
    probed = probe.draw(family.shape, 0, family.schedule, rng)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        output = initialiser.module.cpu()(x, t)
    return [float(v) for z in (output, probed) for v in (z.norm(), z.mean(), z.flatten()[0])]


def _stacks(first: int, count: int, size: int) -> Iterator[tuple[int, list[int]]]:
    """Numbers of networks to evaluate together, with the end of the block that they are from.

    Blocks double from 64 networks, so that a tolerance is checked often at first; inside a block
    networks are arranged so that a stack has few batches.
    """
    start, length = first, 4 * NUM_BATCHES
    while start < first + count:
        stop = min(start + length, first + count)
        numbers = sorted(range(start, stop), key=lambda n: (n % NUM_BATCHES, n))
        for i in range(0, len(numbers), size):
            yield stop, numbers[i : i + size]
        length = min(stop - first, NUM_BATCHES * max(size, 4))
        start = stop


def _grams(
    sampling: Sampling, stacks: Iterator[tuple[int, list[int]]]
) -> Iterator[tuple[int, list[BatchGram]]]:
    """Gram matrices of stacks of networks, in order, each with the end of its block.

    One stack per core at a time, each on one thread: small operations do not fill a machine.
    """

    def work(stop: int, numbers: list[int]) -> tuple[int, list[BatchGram]]:
        return stop, sampling.grams(sampling.draw(numbers))

    num_threads = torch.get_num_threads()
    if not sampling.concurrent or num_threads == 1:
        yield from itertools.starmap(work, stacks)
        return
    pool = ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        waiting: deque[Future[tuple[int, list[BatchGram]]]] = deque()
        for stop, numbers in stacks:
            waiting.append(pool.submit(work, stop, numbers))
            if len(waiting) > num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(num_threads)


class _Moments:
    """Sums of Gram matrices in float64, one per independent batch."""

    def __init__(self) -> None:
        self.counts = torch.zeros(NUM_BATCHES, dtype=torch.int64)
        self.sums: Tensor | None = None

    def add(self, grams: list[BatchGram]) -> None:
        for batch, count, gram in grams:
            if self.sums is None:
                self.sums = torch.zeros(NUM_BATCHES, *gram.shape, dtype=torch.float64)
            self.sums[batch] += gram
            self.counts[batch] += count

    @property
    def num_networks(self) -> int:
        return int(self.counts.sum())

    def factors(self, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """The factor of every batch, (K, P, P), zero where it has no networks; and the counts."""
        assert self.sums is not None
        factors = torch.stack(
            [
                sampling.factor(total / max(1, int(count)))
                for total, count in zip(self.sums, self.counts, strict=True)
            ]
        )
        factors[self.counts == 0] = 0
        return factors, self.counts.clone()

    def relative_error(self) -> float:
        """Standard error of the mean Gram matrix in units of it, by its diagonal."""
        used = self.counts > 1
        if self.sums is None or int(used.sum()) < 2:
            return math.inf
        diagonals = self.sums.diagonal(dim1=1, dim2=2)[used] / self.counts[used][:, None]
        error = diagonals.std(dim=0) / math.sqrt(len(diagonals))
        return float((error / diagonals.mean(dim=0).clamp(min=1e-300)).mean())


def _settled(geometry: Geometry) -> bool:
    clusters = geometry.directions().clusters
    return all(cluster.reason != "unresolved" for cluster in clusters)


def usable_device(name: str | torch.device) -> torch.device:
    try:
        tried = torch.zeros(1, device=name)
        tried.cpu()
        return tried.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidArgumentError(
            f"cannot use device {str(name)!r} here ({str(error).splitlines()[0]}); try 'cpu'"
        ) from error


def _check_arguments(
    num_networks: int | None,
    tolerance: float | None,
    max_networks: int,
    batch_size: int | None,
    seed: int,
    first_network: int,
    estimator: str,
    zero_readout: str,
) -> None:
    if num_networks is not None and tolerance is not None:
        raise InvalidArgumentError(
            f"got both {num_networks} networks and a tolerance of {tolerance}; give one of them"
        )
    counts = {"num_networks": num_networks, "max_networks": max_networks, "batch_size": batch_size}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
    if tolerance is not None and not 0 < tolerance < math.pi / 2:
        raise InvalidArgumentError(
            f"the tolerance is an angle between 0 and pi/2 radians, got {tolerance}"
        )
    if seed < 0 or first_network < 0:
        raise InvalidArgumentError(
            f"seed and first_network cannot be negative, got {seed} and {first_network}"
        )
    if estimator not in ESTIMATORS:
        raise InvalidArgumentError(
            f"unknown estimator {estimator!r}; choose one of {', '.join(ESTIMATORS)}"
        )
    if zero_readout not in ("error", "default"):
        raise InvalidArgumentError(f"zero_readout is {zero_readout!r}; choose 'error' or 'default'")
