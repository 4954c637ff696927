"""Estimate the average geometry of a family of networks.

    G = E_t E_theta[ F F^T ],   F = a_t x + b_t net(x, t),   t uniform

`plan` says which way fits a family; then come a loop over networks (`loop`) or, where a matrix
would be too large, passes over them (`matrixfree`). Three things make this fast, each free of bias:

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
from dataclasses import replace
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
    usable_device,
    usable_dtype,
)
from sads.errors import InterruptedEstimate, InvalidArgumentError, NotEnoughMemoryError
from sads.estimates import MIN_BATCHES
from sads.families import ScoreFamily, as_family
from sads.geometry.cost import Started
from sads.geometry.job import Job, Progress
from sads.geometry.loop import estimate_with_matrices
from sads.geometry.matrixfree.run import estimate_without_matrix
from sads.geometry.memory import BASE, Forecast, PassesForecast
from sads.geometry.plan import Request, Stage, make_plan
from sads.geometry.result import Geometry
from sads.probes import probe as as_probe
from sads.samples import as_samples, check_values

DEFAULT_NETWORKS = 1024
DENSE_POSITIONS = 5_000  # of a factor at most for which matrices are made
SMALL_POSITIONS = 512  # of a factor whose matrices are no question of memory
LAST_NETWORK = 1 << 53  # every number up to it has a random stream of its own
BESIDE_A_SKIP = "of the networks alone: the Gaussian part beside them is not random"
ESTIMATORS = ("auto", "outer-product", "monte-carlo")


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
    request = Request(
        seed=seed,
        estimator=estimator,
        readout=readout,
        zero_readout=zero_readout,
        device=usable_device(device),
        dtype=usable_dtype(dtype),
        streaming=streaming,
        memory=None if memory is None else parse_memory(memory),
    )
    started = Started()
    stage = stage or (lambda _: None)
    notes = family.notes if family.skip is None else (*family.notes, BESIDE_A_SKIP)
    family = replace(family, skip=None)
    with _interruptible(), sdpa_kernel(SDPBackend.MATH):  # attention that vmap can batch
        plan = make_plan(family, as_probe("zero" if probe is None else probe), request, stage)
        provenance = replace(
            plan.provenance, tolerance=tolerance, notes=(*plan.provenance.notes, *notes)
        )
        job = Job(
            plan=replace(plan, provenance=provenance),
            seed=seed,
            first_network=first_network,
            num_networks=max_networks if tolerance else num_networks or DEFAULT_NETWORKS,
            tolerance=tolerance,
            batch_size=batch_size,
            memory=request.memory,
            measure=measure,
            checkpoint=checkpoint,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
            stage=stage,
            forecast=forecast or (lambda _: None),
            started=started,
        )
        if _keeps_matrices(job, matrix_free):
            return estimate_with_matrices(job)
        return estimate_without_matrix(job)


def _keeps_matrices(job: Job, matrix_free: bool | None) -> bool:
    """Is the geometry kept as matrices? What was asked for is done, or refused."""
    too_large = not matrix_free and _too_large(job)
    if too_large and matrix_free is False and job.memory is not None:
        raise NotEnoughMemoryError(
            f"{gigabytes(job.memory)} of memory cannot hold the matrices of "
            f"{job.estimator.lift.size:,} positions that were asked for: allow more (--memory), or "
            "keep none (--matrix-free)"
        )
    return not too_large if matrix_free is None else not matrix_free


def _too_large(job: Job) -> bool:
    """Is a factor too large for matrices of it? Half as many batches may do."""
    estimator = job.estimator
    if estimator.lift.size <= SMALL_POSITIONS and job.memory is None:
        return False  # if it does not fit, a smaller batch may
    if estimator.lift.size > DENSE_POSITIONS:
        return True
    here = available_memory() if job.memory is None else job.memory

    def fits() -> bool:
        expected = estimator.forecast(job.num_networks, job.batch_size)
        return here is None or expected.total - BASE <= here

    if not fits():
        estimator.num_batches = MIN_BATCHES
    return not fits()


def _checked_measure(measure: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Data or directions as rows, (n, D)."""
    measure = as_samples(measure, "measured samples", shape, flat=True)
    check_values(measure, "measured samples")
    return measure.flatten(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """An interrupt is one of the estimate, with or without a geometry."""
    try:
        yield
    except InterruptedEstimate:
        raise
    except KeyboardInterrupt:
        raise InterruptedEstimate from None


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
