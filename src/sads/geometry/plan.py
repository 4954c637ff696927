"""Which way of estimating fits a family under a probe, and why.

The fastest way that is right is found by looking at real networks: how their constructor draws
them, whether their output layer can be integrated out, which symmetries their law has. What is
found, and why something faster was not possible, becomes part of the provenance.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from sads.environment import check_memory, gigabytes, versions
from sads.errors import (
    InvalidArgumentError,
    NetworkError,
    NonFiniteError,
    NotEnoughMemoryError,
    SadsError,
    ZeroReadoutError,
    describe_failure,
)
from sads.families import ScoreFamily
from sads.geometry import readouts  # noqa: F401  # the kinds of output layers that we know
from sads.geometry.drawing import Initialiser
from sads.geometry.estimators import (
    Estimator,
    Integrated,
    MonteCarlo,
    Networks,
    OuterProduct,
    Stacked,
)
from sads.geometry.invariance import candidates, find_symmetries, positions_after
from sads.geometry.memory import BASE, check_evaluation, peak_activations
from sads.geometry.readout import (
    NoReadout,
    Readout,
    find_readout,
    score_coefficients,
    with_default_readout,
)
from sads.geometry.recorder import LargeNetwork, named_tensors
from sads.geometry.response import response_of
from sads.geometry.result import Provenance
from sads.geometry.stacks import set_up_threads
from sads.geometry.streaming.inspection import Inspector
from sads.geometry.streaming.networks import STREAM_BYTES, Streamed, weight_bytes
from sads.geometry.streaming.remembered import Findings, key_of, recall, remember
from sads.geometry.streaming.substitution import CannotStreamError
from sads.probes import Probe, draw_inputs
from sads.seeds import generators_kept, numpy_stream

Stage = Callable[[str], None]  # told what set-up is doing
WHOLE_COPIES = 3  # of a network that is built whole, in set-up


@dataclass(frozen=True)
class Plan:
    """The way that was chosen, and all that is known about the result before any network."""

    estimator: Estimator
    provenance: Provenance
    remember: Callable[[], None] = lambda: None  # that features were seen to vary


@dataclass(frozen=True)
class Request:
    """What was asked for: the arguments of `estimate_geometry` that choose the way."""

    seed: int = 0
    estimator: str = "auto"
    readout: str | None = None
    zero_readout: str = "error"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    streaming: bool | None = None
    memory: int | None = None  # bytes that are allowed


def make_plan(family: ScoreFamily, probe: Probe, request: Request, stage: Stage) -> Plan:
    """The fastest way to estimate the geometry of this family; see `estimate_geometry`."""
    _check_plain_loop(request)
    stage("recording the constructor")
    if request.device.type == "cpu":
        check_evaluation(family)
    notes: tuple[str, ...] = ()
    initialiser = _small(family) if request.streaming is None else None
    if initialiser is None:
        streamed, why_not = _streamed(family, request)
        if streamed is not None:
            _check_layer(streamed, request)
            try:
                return _choose(family, probe, streamed, request, stage)
            except CannotStreamError as error:
                why_not = str(error)
        if why_not is not None:
            notes = (f"networks are not drawn layer by layer: {why_not}",)
        with _watching_memory(family, why_not):
            initialiser = _initialiser(family)
    with set_up_threads(sum(tensor.nbytes for _, tensor in named_tensors(initialiser.module))):
        return _choose(family, probe, initialiser, request, stage, notes)


def _check_plain_loop(request: Request) -> None:
    """Refuse what the paper's plain loop cannot do."""
    asked = {
        f"in {str(request.dtype).removeprefix('torch.')}": request.dtype != torch.float32,
        "layer by layer": bool(request.streaming),
        "with its output layer integrated out": request.readout is not None,
    }
    for what, is_asked in asked.items():
        if is_asked and request.estimator == "monte-carlo":
            raise InvalidArgumentError(
                f"the plain loop (monte-carlo) evaluates no network {what}: leave that out, or the "
                "estimator"
            )


def _small(family: ScoreFamily) -> Initialiser | None:
    """The networks, if they are so small that nobody would draw them layer by layer."""
    try:
        found = _initialiser(family, STREAM_BYTES)
    except LargeNetwork:
        return None
    return found if found.parameter_bytes <= STREAM_BYTES else None


def _streamed(family: ScoreFamily, request: Request) -> tuple[Streamed | None, str | None]:
    """The networks without their numbers, if they are to be drawn layer by layer, or why not.

    Neither if nobody asked and they are small.
    """
    if request.streaming is False or request.estimator == "monte-carlo":
        return None, None
    try:
        streamed = Streamed(family.build)
    except (SadsError, RuntimeError, NotImplementedError) as error:
        # It will fail again when it is built with its numbers, or it needs them.
        why = f"its constructor needs numbers ({describe_failure(error)})"
        return None, why if request.streaming else None
    if not request.streaming and streamed.parameter_bytes <= STREAM_BYTES:
        return None, None
    return (streamed, None) if streamed.reason is None else (None, streamed.reason)


def _check_layer(networks: Streamed, request: Request) -> None:
    """Refuse a budget that cannot hold the weights of one layer before anything is drawn."""
    needed = weight_bytes(networks, request.dtype)
    if request.memory is not None and needed > request.memory:
        name, count = networks.largest
        raise NotEnoughMemoryError(
            f"{gigabytes(request.memory)} of memory cannot hold one layer of this network: "
            f"{name} has {count:,} weights, and with those of the next layers they take "
            f"{gigabytes(needed)}; allow more"
        )


def _initialiser(family: ScoreFamily, limit: float = math.inf) -> Initialiser:
    try:
        return Initialiser(family.build, limit)
    except NotImplementedError as error:
        raise NetworkError(
            f"the networks of {family.name} cannot be compared ({describe_failure(error)}); are "
            "they on the device 'meta', which holds no numbers? Build them on the CPU"
        ) from error


def _choose(
    family: ScoreFamily,
    probe: Probe,
    networks: Networks,
    request: Request,
    stage: Stage,
    notes: tuple[str, ...] = (),
) -> Plan:
    said = list(notes)
    stage("looking for the output layer")
    try:
        found = _find_readout(family, networks, request.readout)
    except ZeroReadoutError as error:
        if request.zero_readout != "default" or error.layer_path is None:
            raise
        family = with_default_readout(family, error.layer_path)
        networks = type(networks)(family.build)
        found = _find_readout(family, networks, error.layer_path)
        said.append(
            f"the output layer {error.layer_path} starts at zero: it is drawn by the default "
            "initialisation of its type, as in the paper"
        )

    seen = _look(family, probe, networks, request.device, stage)
    estimator = request.estimator
    if not seen.holds_all_randomness:
        why = "they are random beyond their parameters"
        if not networks.alike and networks.reason is not None:
            why = networks.reason
        if isinstance(networks, Streamed):
            raise CannotStreamError(why)
        estimator = "monte-carlo"
        said.append(f"networks are built one by one: {why}")
        if request.dtype != torch.float32:
            said.append("networks that are built one by one are evaluated in their own precision")
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in networks.module.modules()):
        said.append(
            "the network has batch normalisation, which does nothing before training: in eval() "
            "it divides by its running variance, 1 at birth; training normalises by the batch"
        )
    if networks.is_constant:
        said.append("the factory gives every network the same weights")
    found = _usable(found, family, probe)
    symmetries: dict[str, Tensor] = {}
    readout = None
    chosen: Estimator
    integrated = estimator == "auto" and not isinstance(found, NoReadout)
    device, dtype = request.device, request.dtype
    if request.readout is not None and (isinstance(found, NoReadout) or estimator == "monte-carlo"):
        alone = "networks are built one by one"
        reason = found.reason if isinstance(found, NoReadout) else alone
        raise InvalidArgumentError(
            f"{request.readout} cannot be integrated out: {reason}; leave the readout to be found, "
            "or choose another"
        )
    if estimator == "monte-carlo":
        chosen = MonteCarlo(family, probe, request.seed, device)
    elif integrated and not isinstance(found, NoReadout):
        if probe.isotropic and found.spatial and found.lift.is_ordered:
            stage("checking symmetries")
            symmetries = seen.find_symmetries()
        chosen = Integrated(family, probe, request.seed, networks, found, symmetries, device, dtype)
        readout = found.path
    else:
        chosen = OuterProduct(family, probe, request.seed, networks, device, dtype)
        if isinstance(found, NoReadout):
            said.append(f"the output layer is not integrated out: {found.reason}")
    chosen.activation_bytes = seen.activation_bytes
    in_single = dtype == torch.float32 or not isinstance(chosen, Stacked)
    if isinstance(chosen, Stacked) and not in_single:
        stage(f"comparing {str(dtype).removeprefix('torch.')} with float32")
        said.append(chosen.compare_precisions())
    provenance = Provenance(
        family=family.describe(),
        estimator=chosen.name,
        fingerprint=networks.fingerprint(),
        probe=dict(probe.describe()),
        readout=readout,
        response=seen.response,
        zero_readout=request.zero_readout,
        symmetries=tuple(sorted(symmetries)),
        notes=tuple(said),
        versions=versions(),
        dtype=None if in_single else str(dtype).removeprefix("torch."),
    )
    if not isinstance(chosen, Integrated) or request.readout is not None:
        return Plan(chosen, provenance)  # of the usual output layer it says nothing
    chosen.varies = seen.varies
    return Plan(chosen, provenance, lambda: seen.remember(provenance.symmetries))


def _find_readout(family: ScoreFamily, networks: Networks, path: str | None) -> Readout | NoReadout:
    if isinstance(networks, Initialiser):
        check_network(family, networks.module)
        return find_readout(family, networks, path)
    try:
        with networks.without_numbers() as shapes:
            check_network(family, shapes.module)
            return find_readout(family, shapes, path)
    except (RuntimeError, NotImplementedError, NetworkError) as error:
        # One that cannot be evaluated with its numbers either is met when it is built whole.
        why = str(error) if isinstance(error, NetworkError) else describe_failure(error)
        raise CannotStreamError(f"it cannot be followed without numbers ({why})") from error


@dataclass(frozen=True)
class _Seen:
    """What evaluations of some networks show."""

    response: tuple[float, ...]  # by which geometries of other networks or probes are told apart
    activation_bytes: int  # that one evaluation holds at the same time
    holds_all_randomness: bool
    find_symmetries: Callable[[], dict[str, Tensor]]
    varies: bool = False  # are features known to differ between networks?
    remember: Callable[[tuple[str, ...]], None] = lambda _: None


def _look(
    family: ScoreFamily, probe: Probe, networks: Networks, device: torch.device, stage: Stage
) -> _Seen:
    x = torch.randn(1, *family.shape, generator=torch.Generator().manual_seed(0))
    t = family.schedule.network_time(torch.tensor([family.schedule.num_levels // 2]))
    if isinstance(networks, Streamed):
        inspector = Inspector(family, networks, device)
        stage("evaluating a first network")
        first = inspector.look(x, t)
        _check_output(family, first.output, "for random x")
        response = _response(first.output, family, probe)
        key = _architecture(family, probe, networks)
        known = recall(key, response)
        if known is not None:
            moves, size = candidates(family.shape[1:]), family.shape[1:]
            symmetries = {
                name: positions_after(moves[name], size)
                for name in known.symmetries
                if name in moves
            }
            return _Seen(response, first.activation_bytes, True, lambda: symmetries, varies=True)
        stage("checking that parameters hold all randomness")
        return _Seen(
            response,
            first.activation_bytes,
            inspector.holds_all_randomness(first),
            lambda: inspector.symmetries(first),
            remember=lambda found: remember(key, Findings(response, found)),
        )
    with generators_kept(), torch.no_grad():
        output, activations = peak_activations(lambda: networks.module(x, t))
    stage("checking that parameters hold all randomness")
    return _Seen(
        _response(output, family, probe),
        activations,
        networks.holds_all_randomness(x, t),
        lambda: find_symmetries(family, networks),
    )


def _architecture(family: ScoreFamily, probe: Probe, networks: Streamed) -> str:
    """What answers about large networks are remembered by."""
    return key_of(
        {
            "networks": networks.fingerprint(),
            "modules": repr(networks.module),
            "family": family.describe(),
            "probe": dict(probe.describe()),
            "versions": versions(),
        }
    )


@contextmanager
def _watching_memory(family: ScoreFamily, why_not: str | None) -> Iterator[None]:
    """Refuse networks that this machine cannot hold as soon as their constructor has said so.

    It is told when modules get their parameters, which take memory only when they are filled.
    """
    total = 0
    building_thread = threading.get_ident()

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter) -> None:
        nonlocal total
        if threading.get_ident() != building_thread:
            return
        total += 0 if is_lazy(parameter) else parameter.nbytes
        if total > STREAM_BYTES:
            needed = BASE + WHOLE_COPIES * total
            reason = f", as they cannot be drawn layer by layer ({why_not})" if why_not else ""
            check_memory(
                needed,
                f"networks of {family.name} are held whole{reason} and need at least "
                f"{gigabytes(needed)}",
                "choose a smaller network",
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _usable(found: Readout | NoReadout, family: ScoreFamily, probe: Probe) -> Readout | NoReadout:
    """A readout only where the rest of the score, `E[a_t^2 x x^T]`, is known too."""
    if isinstance(found, NoReadout):
        return found
    a, _ = score_coefficients(family, found)
    if not a.any():
        return found
    if probe.second_moment(family.schedule, a**2) is None:
        return NoReadout(f"E[x x^T] of the probe is not known, and {family.prediction} needs it")
    return found


def _response(output: Tensor, family: ScoreFamily, probe: Probe) -> tuple[float, ...]:
    probed = draw_inputs(probe, family.shape, [0], family.schedule, [numpy_stream(0)])[0]
    return response_of(output, probed)


def check_network(family: ScoreFamily, network: nn.Module) -> None:
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
        _check_output(family, output, f"for x = 0 at level {level}")


def _check_output(family: ScoreFamily, output: Tensor, where: str) -> None:
    family.check_output(output, 1)
    if not output.is_meta and not output.isfinite().all():
        raise NonFiniteError(
            f"the network returns NaN or infinity {where}; check its initialisation"
        )
