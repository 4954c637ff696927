"""Which way of estimating fits a family under a probe, and why.

The fastest way that is right is found by looking at real networks: how their constructor draws
them, whether their output layer can be integrated out, which symmetries their law has. What is
found, and why something faster was not possible, becomes part of the provenance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sads.environment import versions
from sads.errors import (
    InvalidArgumentError,
    NetworkError,
    NonFiniteError,
    SadsError,
    ZeroReadoutError,
    describe_failure,
)
from sads.families import ScoreFamily
from sads.geometry import readouts  # noqa: F401  # the kinds of output layers that we know
from sads.geometry.drawing import Initialiser
from sads.geometry.estimators import Estimator, Integrated, MonteCarlo, OuterProduct
from sads.geometry.invariance import find_symmetries
from sads.geometry.memory import least, peak_activations
from sads.geometry.readout import NoReadout, Readout, find_readout, with_default_readout
from sads.geometry.recording import named_tensors
from sads.geometry.result import Provenance
from sads.geometry.stacks import set_up_threads
from sads.probes import Probe, draw_input
from sads.seeds import numpy_stream

Stage = Callable[[str], None]  # told what set-up is doing


@dataclass(frozen=True)
class Plan:
    """The way that was chosen, and all that is known about the result before any network."""

    estimator: Estimator
    provenance: Provenance


def make_plan(
    family: ScoreFamily,
    probe: Probe,
    *,
    seed: int,
    estimator: str,
    readout_path: str | None,
    zero_readout: str,
    device: torch.device,
    stage: Stage,
) -> Plan:
    """The fastest way to estimate the geometry of this family; see `estimate_geometry`."""
    stage("recording the constructor")
    try:
        initialiser = Initialiser(family.build)
    except NotImplementedError as error:
        raise NetworkError(
            f"the networks of {family.name} cannot be compared ({describe_failure(error)}); are "
            "they on the device 'meta', which holds no numbers? Build them on the CPU"
        ) from error
    with set_up_threads(sum(tensor.nbytes for _, tensor in named_tensors(initialiser.module))):
        return _choose(
            family,
            probe,
            initialiser,
            seed=seed,
            estimator=estimator,
            readout_path=readout_path,
            zero_readout=zero_readout,
            device=device,
            stage=stage,
        )


def _choose(
    family: ScoreFamily,
    probe: Probe,
    initialiser: Initialiser,
    *,
    seed: int,
    estimator: str,
    readout_path: str | None,
    zero_readout: str,
    device: torch.device,
    stage: Stage,
) -> Plan:
    _check_network(family, initialiser.module)
    notes = []
    stage("looking for the output layer")
    try:
        found = find_readout(family, initialiser, readout_path)
    except ZeroReadoutError as error:
        if zero_readout != "default" or error.layer_path is None:
            raise
        family = with_default_readout(family, error.layer_path)
        initialiser = Initialiser(family.build)
        found = find_readout(family, initialiser, error.layer_path)
        notes.append(
            f"the output layer {error.layer_path} starts at zero: it is drawn by the default "
            "initialisation of its type, as in the paper"
        )

    x = torch.randn(1, *family.shape, generator=torch.Generator().manual_seed(0))
    t = family.schedule.network_time(torch.tensor([family.schedule.num_levels // 2]))
    response, activations = _response(initialiser.module, family, probe, x, t)
    stage("checking that parameters hold all randomness")
    if not initialiser.holds_all_randomness(x, t):
        estimator = "monte-carlo"
        notes.append("networks are built one by one: they are random beyond their parameters")
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in initialiser.module.modules()):
        notes.append(
            "the network has batch normalisation, which does nothing before training: in eval() "
            "it divides by its running variance, 1 at birth; training normalises by the batch"
        )
    if initialiser.is_constant:
        notes.append("the factory gives every network the same weights")
    found = _usable(found, family, probe)
    symmetries: dict[str, Tensor] = {}
    readout = None
    chosen: Estimator
    integrated = estimator == "auto" and not isinstance(found, NoReadout)
    if not integrated:  # then a factor is all of the geometry
        way = "or have the output layer integrated out: "
        way += found.reason if isinstance(found, NoReadout) else "it is possible for this network"
        least(family.dimension).check(f"choose a smaller shape, {way}")
    if estimator == "monte-carlo":
        chosen = MonteCarlo(family, probe, seed, device)
    elif integrated and not isinstance(found, NoReadout):
        if probe.isotropic and found.spatial and found.lift.is_ordered:
            stage("checking symmetries")
            symmetries = find_symmetries(family, initialiser)
        chosen = Integrated(family, probe, seed, initialiser, found, symmetries, device)
        readout = found.path
    else:
        chosen = OuterProduct(family, probe, seed, initialiser, device)
        if isinstance(found, NoReadout):
            if readout_path is not None:
                raise InvalidArgumentError(
                    f"{readout_path} cannot be integrated out: {found.reason}; "
                    "leave the readout to be found, or choose another"
                )
            notes.append(f"the output layer is not integrated out: {found.reason}")
    chosen.activation_bytes = activations
    provenance = Provenance(
        family=family.describe(),
        estimator=chosen.name,
        fingerprint=initialiser.fingerprint(),
        probe=dict(probe.describe()),
        readout=readout,
        response=response,
        zero_readout=zero_readout,
        symmetries=tuple(sorted(symmetries)),
        notes=tuple(notes),
        versions=versions(),
    )
    return Plan(chosen, provenance)


def _usable(found: Readout | NoReadout, family: ScoreFamily, probe: Probe) -> Readout | NoReadout:
    """A readout only where the rest of the score, `E[a_t^2 x x^T]`, is known too."""
    a, _ = family.schedule.score_coefficients(family.prediction)
    if isinstance(found, NoReadout) or not a.any():
        return found
    if probe.second_moment(family.schedule, a**2) is None:
        return NoReadout(f"E[x x^T] of the probe is not known, and {family.prediction} needs it")
    return found


def _response(
    network: nn.Module, family: ScoreFamily, probe: Probe, x: Tensor, t: Tensor
) -> tuple[tuple[float, ...], int]:
    """A few numbers by which geometries of different networks or probes are told apart.

    With them how many bytes the evaluation of a network holds at the same time.
    """
    probed = draw_input(probe, family.shape, 0, family.schedule, numpy_stream(0))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        output, activations = peak_activations(lambda: network(x, t))
    numbers = [float(v) for z in (output, probed) for v in (z.norm(), z.mean(), z.flatten()[0])]
    return tuple(numbers), activations


def _check_network(family: ScoreFamily, network: nn.Module) -> None:
    """One evaluation, to meet a network that cannot be used before any work is done."""
    x = torch.zeros(1, *family.shape)
    for level in (0, family.schedule.num_levels - 1):
        time = family.schedule.network_time(torch.tensor([level]))
        try:
            with torch.no_grad():
                output = network(x, time)
        except SadsError:
            raise
        except (Exception, SystemExit) as error:
            raise NetworkError(
                f"the network cannot be evaluated as net(x, t) with x of shape {tuple(x.shape)} "
                f"and t = {time.tolist()}: {describe_failure(error)}"
            ) from error
        family.check_output(output, 1)
        if not output.isfinite().all():
            raise NonFiniteError(
                f"the network returns NaN or infinity for x = 0 at level {level}; "
                "check its initialisation"
            )
