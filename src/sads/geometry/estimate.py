"""Estimate the average geometry of a family of networks.

    G = E_t E_theta[ F F^T ],   F = a_t x + b_t net(x, t),   t uniform

`plan` says which way fits a family; here is the loop over networks. Three things make this fast,
each free of bias:

1. *Levels by weight.* `t` is drawn with probability proportional to `b_t^2` and every draw gets
   the same weight `E[b_t^2]`; within a batch the draws are spread evenly over that law by a
   golden-ratio sequence with a random start.
2. *The output layer integrated out* (`readout`), so that a network gives a full-rank sample.
   Its weights have mean zero, so the cross terms of `a_t x` and `b_t net` vanish and
   `G = E[a_t^2 x x^T] + E[b_t^2 net net^T]`; the first term is known in closed form.
3. *Stacks of networks*, drawn (`drawing`) and evaluated (`stacks`) together.

Network number `n` of a seed has its own random stream and belongs to batch `n mod 16`. The
result therefore does not depend on how networks are stacked or spread over workers.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sads.arguments import check_count, check_number, check_seed, shown
from sads.checked import checked
from sads.environment import (
    available_memory,
    gigabytes,
    parse_memory,
    return_free_memory,
    usable_device,
    usable_dtype,
)
from sads.errors import (
    InterruptedEstimate,
    InvalidArgumentError,
    NotEnoughMemoryError,
    ZeroReadoutError,
)
from sads.estimates import MIN_BATCHES
from sads.families import ScoreFamily, as_family
from sads.files import tensor_digest
from sads.geometry.cost import NOTHING, Spent, Started
from sads.geometry.estimators import Estimator, Stacked
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.matrixfree.passes import FINDERS, Passes, run_passes
from sads.geometry.memory import BASE, Forecast, PassesForecast
from sads.geometry.moments import Moments, draw_grams
from sads.geometry.plan import Request, Stage, make_plan
from sads.geometry.result import Geometry, Provenance
from sads.geometry.stacks import set_up_threads
from sads.probes import probe as as_probe
from sads.samples import as_samples, check_values
from sads.unfinished import Partial

DEFAULT_NETWORKS = 1024
DENSE_POSITIONS = 5_000  # of a factor at most for which matrices are made
SMALL_POSITIONS = 512  # of a factor whose matrices are no question of memory
FEATURE_BYTES = 2 << 30  # kept between passes
LAST_NETWORK = 1 << 53  # every number up to it has a random stream of its own
PARTIAL_FORMAT = "sads-partial-geometry"
PASSES_FORMAT = "sads-partial-passes"
PARTIAL_IDENTITY = (
    "family",
    "fingerprint",
    "probe",
    "estimator",
    "readout",
    "zero_readout",
    "symmetries",
    "tolerance",
)  # of the provenance
ZERO = (
    "every network returns zero, so the geometry is 0 and its directions are undefined; check how "
    "the networks are initialised"
)
BESIDE_A_SKIP = "of the networks alone: the Gaussian part beside them is not random"
ESTIMATORS = ("auto", "outer-product", "monte-carlo")

Progress = Callable[[int, int, float], None]  # networks so far, networks in all, relative error


@checked
def estimate_geometry(
    family: ScoreFamily | str,
    num_networks: int | None = None,
    tolerance: float | None = None,
    *,
    probe: Any = "zero",
    seed: int = 0,
    estimator: str = "auto",
    readout: str | None = None,
    zero_readout: str | None = None,
    max_networks: int = 16_384,
    batch_size: int | None = None,
    first_network: int = 0,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    streaming: bool | None = None,
    matrix_free: bool | None = None,
    memory: int | str | None = None,
    measure: Tensor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float | None = None,
    progress: Progress | None = None,
    stage: Stage | None = None,
    forecast: Callable[[Forecast | PassesForecast], None] | None = None,
) -> Geometry:
    """The average geometry `E[F F^T]` of untrained score networks.

    Ctrl-C raises `InterruptedEstimate`, a KeyboardInterrupt whose `geometry` holds the networks so
    far and says so in its provenance. Whoever can use a part catches it; all others stop.

    A Gaussian skip beside the networks is left out, as it is not random; the provenance says so.

    Args:
        family: a family of networks, or the name of one.
        num_networks: how many random networks to draw; 1024 if neither this nor `tolerance`.
        tolerance: draw networks until every direction is sure to this angle in radians, or
            cannot be told from neighbours of equal eigenvalue, or `max_networks` are drawn.
        probe: where to evaluate the networks: a name, a function, or an object that can draw
            (see `sads.probe`); `x = 0` if not given.
        seed: the same seed gives the same networks.
        estimator: `"auto"` integrates the output layer out where it can and otherwise takes
            outer products of scores; `"outer-product"` always does the latter;
            `"monte-carlo"` is the paper's plain loop, kept as a reference.
        readout: name of the output layer to integrate out; found automatically if not given.
        zero_readout: `"default"` draws an output layer that starts at zero by its type's
            default initialisation; `"error"` refuses it. What the family says if not given:
            `"default"` for models of `diffusers`, else `"error"`.
        batch_size: networks evaluated at once; chosen by their size if not given.
        first_network: number of the first network, for estimating shards to be merged.
        dtype: in which networks are evaluated, `"float32"` or `"bfloat16"`, say; their moments are
            summed up in float64. A note says by how much the first networks differ from float32.
        streaming: draw the weights of each layer just before it runs, so that no network exists
            as a whole. Large networks are if it is not given; the numbers are the same.
        matrix_free: keep the geometry without a matrix: energies along bases, and both ends of
            its spectrum. If not given, that is so where a factor has more than 5,000 positions or
            its matrices exceed the memory.
        memory: bytes, or words such as `"2GB"`, that matrices and the weights of a layer may take
            (eight batches are kept instead of sixteen if that makes them fit), or the features
            that are kept between passes of an estimate without a matrix; what this machine has,
            and 2 GB of features, if not given.
        measure: data or directions (n, *shape) whose energies `v^T G v` are wanted of a geometry
            without a matrix, for `alignment` for instance. One with a matrix knows all of them.
        checkpoint: file in which the moments so far are kept while networks are drawn. The same
            call continues from it, after `kill -9` too, to the same numbers bit for bit. It is
            left there at the end: remove it when the geometry is saved.
        checkpoint_seconds: between two writes of it; 30 if not given.
        progress: called with networks so far, networks in all, and the relative error.
        stage: called with what is being done, in words, before the first network is drawn. For
            a large network that may take minutes.
        forecast: called with the memory that the estimate takes, before the first network is
            drawn. One that does not fit raises `NotEnoughMemoryError`.
    """
    family = as_family(family)
    zero_readout = family.zero_readout if zero_readout is None else zero_readout
    _check_arguments(
        num_networks, tolerance, max_networks, batch_size, first_network, estimator, zero_readout
    )
    check_seed(seed)
    if measure is not None:
        measure = _checked_measure(measure, family.shape)
    allowed = None if memory is None else parse_memory(memory)
    started = Started()
    stage = stage or (lambda _: None)
    budget = max_networks if tolerance else num_networks or DEFAULT_NETWORKS
    notes = family.notes if family.skip is None else (*family.notes, BESIDE_A_SKIP)
    family = replace(family, skip=None)
    with _interruptible(), sdpa_kernel(SDPBackend.MATH):  # attention that vmap can batch
        plan = make_plan(
            family,
            as_probe("zero" if probe is None else probe),
            Request(
                seed=seed,
                estimator=estimator,
                readout=readout,
                zero_readout=zero_readout,
                device=usable_device(device),
                dtype=usable_dtype(dtype),
                streaming=streaming,
                memory=allowed,
            ),
            stage,
        )
        known = replace(
            plan.provenance, tolerance=tolerance, notes=(*plan.provenance.notes, *notes)
        )
        chosen = plan.estimator
        too_large = not matrix_free and _too_large(chosen, budget, batch_size, allowed)
        if too_large and matrix_free is False and allowed is not None:
            raise NotEnoughMemoryError(
                f"{gigabytes(allowed)} of memory cannot hold the matrices of {chosen.lift.size:,} "
                "positions that were asked for: allow more (--memory), or keep none (--matrix-free)"
            )
        if matrix_free or (matrix_free is None and too_large):
            return _without_matrix(
                chosen,
                known,
                seed=seed,
                first_network=first_network,
                num_networks=budget,
                batch_size=batch_size,
                memory=allowed,
                measure=measure,
                checkpoint=checkpoint,
                checkpoint_seconds=checkpoint_seconds,
                progress=progress,
                stage=stage,
                forecast=forecast,
                started=started,
            )
        chosen.forecast(budget, batch_size, exact=True).check()
        identity = {name: getattr(known, name) for name in PARTIAL_IDENTITY}
        identity |= {"seed": seed, "first_network": first_network, "networks": budget}
        if usable_dtype(dtype) != torch.float32:
            identity["dtype"] = str(dtype).removeprefix("torch.")
        partial = Partial(checkpoint, PARTIAL_FORMAT, identity, checkpoint_seconds)
        size = chosen.stack_size(batch_size)
        moments = Moments.load(partial, size, first_network, budget, known.response)
        with set_up_threads(chosen.network_bytes):
            exact = chosen.exact_gram(stage)
        if exact is None:
            plan.remember()
        expected = chosen.forecast(
            budget, batch_size, exact=exact is not None, again=tolerance is not None
        )
        if forecast:
            forecast(expected)
        if exact is not None:
            known = replace(known, estimator="exact")
            factors = chosen.factor(exact)[None]
            nobody = torch.zeros(1, dtype=torch.int64)
            return _finish(chosen, known, factors, nobody, NOTHING.since(started))

        expected.check()
        moments.keep_batches(chosen.num_batches)
        moments.check(chosen, partial.path)
        stage("drawing networks")

        def result(last: bool = True) -> Geometry:
            drawn = replace(known, draws=((seed, first_network, moments.stop),))
            if last and isinstance(chosen, Stacked):
                chosen.initialiser.release_memory()
                return_free_memory()
            factors, counts = moments.factors(chosen, last)
            return _finish(chosen, drawn, factors, counts, moments.earlier.since(started))

        def settled() -> Geometry | None:
            whole_block = 0 < moments.num_networks == moments.stop - first_network
            geometry = result(last=False) if tolerance and whole_block else None
            return geometry if geometry and is_settled(geometry) else None

        def keep() -> None:
            partial.save(moments.tensors(moments.earlier.since(started)))

        try:
            if (geometry := settled()) is not None:
                return geometry
            for stop, grams in draw_grams(chosen, moments.stacks_left(first_network, budget)):
                moments.add(grams, stop)
                if partial.due:
                    keep()
                if progress:
                    progress(moments.num_networks, budget, moments.relative_error())
                if (geometry := settled()) is not None:
                    return geometry
        except KeyboardInterrupt:
            if moments.num_networks == 0:
                raise
            keep()
            known = replace(known, interrupted=True)
            raise InterruptedEstimate(result()) from None
        geometry = result()
        return _note_limit(geometry, tolerance) if tolerance else geometry


def _too_large(
    estimator: Estimator, num_networks: int, batch_size: int | None, memory: int | None
) -> bool:
    """Is a factor too large for matrices of it? Half as many batches may do."""
    size = estimator.lift.size
    if size <= SMALL_POSITIONS and memory is None:
        return False  # if it does not fit, a smaller batch may
    if size > DENSE_POSITIONS:
        return True
    here = available_memory() if memory is None else memory

    def fits() -> bool:
        return here is None or estimator.forecast(num_networks, batch_size).total - BASE <= here

    if not fits():
        estimator.num_batches = MIN_BATCHES
    return not fits()


def _checked_measure(measure: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Data or directions as rows, (n, D)."""
    measure = as_samples(measure, "measured samples", shape, flat=True)
    check_values(measure, "measured samples")
    return measure.flatten(1)


def _without_matrix(
    estimator: Estimator,
    known: Provenance,
    *,
    seed: int,
    first_network: int,
    num_networks: int,
    batch_size: int | None,
    memory: int | None,
    measure: Tensor | None,
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_seconds: float | None,
    progress: Progress | None,
    stage: Stage,
    forecast: Callable[[Forecast | PassesForecast], None] | None,
    started: Started,
) -> Geometry:
    """A geometry without a matrix: see `passes`."""
    if known.tolerance is not None:
        raise InvalidArgumentError(
            f"a geometry of {estimator.lift.size:,} positions is kept without a matrix and does "
            "not know all its directions, so that no tolerance can be reached; give num_networks "
            "(--networks)"
        )
    exact = estimator.exact_rows(stage)
    if exact is not None:
        known = replace(known, estimator="exact")
    identity = {name: getattr(known, name) for name in PARTIAL_IDENTITY}
    identity |= {"seed": seed, "first_network": first_network, "networks": num_networks}
    identity |= {
        "finders": FINDERS,
        "measured": None if measure is None else tensor_digest(measure),
    }
    passes = Passes(
        estimator,
        estimator.family.shape,
        first_network,
        num_networks,
        size=estimator.stack_size(batch_size),
        measure=measure,
        exact_rows=exact,
        memory=FEATURE_BYTES if memory is None else memory,
    )
    expected = passes.forecast()
    if forecast:
        forecast(expected)
    expected.check()
    if not passes.has_judges:
        few = "the ends of the spectrum are not known: draw at least 16 networks to find them"
        known = replace(known, notes=(*known.notes, few))

    def finished(moments: MatrixFree, spent: Spent, interrupted: bool = False) -> Geometry:
        if not any(energies.any() for energies in moments.energies.values()):
            raise ZeroReadoutError(ZERO)
        drawn = () if exact is not None else ((seed, first_network, first_network + num_networks),)
        provenance = replace(
            known,
            notes=(*known.notes, *estimator.notes()),
            draws=drawn,
            interrupted=interrupted,
            **asdict(spent),
        )
        return Geometry(moments, estimator.family.shape, provenance)

    moments, spent = run_passes(
        passes,
        Partial(checkpoint, PASSES_FORMAT, identity, checkpoint_seconds),
        known.response,
        started,
        progress,
        stage,
        lambda part, so_far: finished(part, so_far, interrupted=True),
    )
    return finished(moments, spent)


@contextmanager
def _interruptible() -> Iterator[None]:
    """An interrupt is one of the estimate, with or without a geometry."""
    try:
        yield
    except InterruptedEstimate:
        raise
    except KeyboardInterrupt:
        raise InterruptedEstimate from None


def _finish(
    estimator: Estimator,
    known: Provenance,
    factors: Tensor,
    counts: Tensor,
    spent: Spent,
) -> Geometry:
    if not factors.any():
        raise ZeroReadoutError(ZERO)
    provenance = replace(
        known,
        notes=(*known.notes, *estimator.notes()),
        **asdict(spent),
    )
    return Geometry.dense(
        factors=factors,
        counts=counts,
        lift=estimator.lift,
        shape=estimator.family.shape,
        provenance=provenance,
    )


def is_settled(geometry: Geometry) -> bool:
    """Is every direction sure to the tolerance, or as good as equal to its neighbours?"""
    return all(cluster.reason != "unresolved" for cluster in geometry.directions().clusters)


def _note_limit(geometry: Geometry, tolerance: float) -> Geometry:
    """A geometry that ended at the limit of networks, with the note that it is not settled."""
    clusters = [c for c in geometry.directions().clusters if c.reason == "unresolved"]
    note = (
        f"the limit of {geometry.num_networks:,} networks leaves {sum(map(len, clusters)):,} of "
        f"{geometry.dimension:,} directions unresolved at {tolerance:g} rad: raise max_networks "
        "(--max-networks), or the tolerance"
    )
    notes = (*geometry.provenance.notes, note)
    return replace(geometry, provenance=replace(geometry.provenance, notes=notes))


def _check_arguments(
    num_networks: int | None,
    tolerance: float | None,
    max_networks: int,
    batch_size: int | None,
    first_network: int,
    estimator: str,
    zero_readout: str,
) -> None:
    if num_networks is not None and tolerance is not None:
        raise InvalidArgumentError(
            f"got both {num_networks} networks and a tolerance of {shown(tolerance)}; "
            "give one of them"
        )
    counts = {"num_networks": num_networks, "max_networks": max_networks, "batch_size": batch_size}
    for name, value in counts.items():
        if value is not None or name == "max_networks":
            check_count(name, value)
    if tolerance is not None:
        name = "the tolerance, an angle between 0 and pi/2 radians,"
        check_number(name, tolerance, 0, math.pi / 2)
    check_count("first_network", first_network, 0, LAST_NETWORK)
    if estimator not in ESTIMATORS:
        raise InvalidArgumentError(
            f"unknown estimator {estimator!r}; choose one of {', '.join(ESTIMATORS)}"
        )
    if zero_readout not in ("error", "default"):
        raise InvalidArgumentError(f"zero_readout is {zero_readout!r}; choose 'error' or 'default'")
