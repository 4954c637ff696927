"""A geometry in words: what commands print, notebooks show and reports begin with."""

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from sads.families import ARCHITECTURES
from sads.geometry.matrixfree.geometry import MatrixFree
from sads.geometry.result import Geometry
from sads.shapes import format_shape
from sads.table1 import NUM_LEVELS

REASONS = ("multiplicity", "equal", "unresolved")  # of clusters


def describe(geometry: Geometry) -> dict[str, str]:
    """Names and values, of which nothing depends on the moment but the seconds."""
    if geometry.matrix_free:
        return _describe_ends(geometry)
    directions = geometry.directions()
    reasons = [cluster.reason for cluster in directions.clusters]
    counts = {reason: reasons.count(reason) for reason in REASONS}
    error = geometry.whitened_error()
    rank = geometry.rank
    return {
        "dimension": f"{geometry.dimension:,}",
        "networks": describe_networks(geometry),
        "seconds": f"{geometry.provenance.seconds:.2f}",
        "estimator": geometry.estimator,
        "largest eigenvalue": str(directions.eigenvalue(0)),
        "smallest eigenvalue": str(directions.eigenvalue(-1)),
        "condition number": f"{geometry.condition_number:,.0f}"
        if rank == geometry.dimension
        else f"infinite: rank {rank}",
        "effective rank": f"{geometry.effective_rank:.1f}",
        "whitened error": f"{error:.2%}" if math.isfinite(error) else "not known",
        "resolved directions": f"{int(directions.resolved.sum())} of {geometry.dimension} "
        f"(to {directions.tolerance:g} rad)",
        "clusters": ", ".join(f"{n} {k}" for k, n in counts.items() if n) or "none",
    }


def _describe_ends(geometry: Geometry) -> dict[str, str]:
    """A geometry without a matrix in words: what is certain about its two ends."""
    dct = geometry.basis_energies("dct")
    pixels = math.prod(geometry.shape[1:])
    rows = {
        "dimension": f"{geometry.dimension:,}, without a matrix of {geometry.lift.size:,} squared",
        "networks": describe_networks(geometry),
        "seconds": f"{geometry.provenance.seconds:.2f}",
        "estimator": geometry.estimator,
        "energy of a constant": str(dct[0]),
        "energy of the highest frequency": str(dct[pixels - 1]),
        "energy of a mean direction": f"{geometry.trace / geometry.dimension:.4g}",
    }
    if not has_ends(geometry):
        return {**rows, "both ends": "not known"}
    avoided, preferred = geometry.end("avoided"), geometry.end("preferred")
    for name, sign, end in (
        ("largest eigenvalue", "at least", avoided),
        ("smallest eigenvalue", "at most", preferred),
    ):
        rows[name] = f"{sign} {end.bounds[0]}"
        leaning = f"{float(end.found[0]):.4g}, residual {float(end.residuals[0]):.2g}"
        rows[f"  of the networks that found it{' ' * (sign == 'at most')}"] = leaning
    return rows


def has_ends(geometry: Geometry) -> bool:
    """Are both ends of its spectrum known?"""
    return not isinstance(geometry.moments, MatrixFree) or geometry.moments.ends is not None


def describe_networks(geometry: Geometry) -> str:
    if geometry.exact:
        return "none needed: exact"
    part = " (interrupted: a part)" if geometry.provenance.interrupted else ""
    return f"{geometry.num_networks:,}{part}"


def why_unknown(geometry: Geometry) -> str | None:
    """Why the errors of this geometry, or of some of its eigenvalues, are not known."""
    if geometry.errors_unknown or geometry.matrix_free:
        return geometry.errors_unknown
    unknown = int(geometry.directions().value_errors.isinf().sum())
    if not unknown:
        return geometry.errors_unknown
    return (
        f"those of {unknown:,} of {geometry.dimension:,} eigenvalues, for which "
        "there are too few networks; draw more"
    )


def command_of(geometry: Geometry) -> str | None:
    """The command that makes a geometry again.

    None if there is none: its family is not known by name, or the command has no option for its
    schedule, for the first of its networks, or for the data that were measured with them.
    """
    made, family = geometry.provenance, geometry.provenance.family
    seeds = {seed for seed, _, _ in made.draws}
    places = [0, *(n for _, *part in sorted(made.draws) for n in part)]
    in_turn = len(seeds) <= 1 and places[:-1:2] == places[1::2]  # from 0, without a gap
    usual = set(_mapping(family.get("schedule"))) <= {"name", "num_levels"}
    levels = _mapping(family.get("schedule")).get("num_levels", NUM_LEVELS)
    measured = isinstance(geometry.moments, MatrixFree) and bool(geometry.moments.measured)
    known = family.get("name") in ARCHITECTURES and made.probe.get("name") == "zero"
    if not (known and in_turn and usual and levels == NUM_LEVELS) or measured:
        return None
    if made.interrupted or family.get("skip"):
        return None
    words = ["sads", "geometry", str(family["name"]), "--shape", format_shape(geometry.shape)]
    for key, value in _mapping(family.get("options")).items():
        words += ["-o", f"{key}={value if isinstance(value, str) else _compact(value)}"]
    if seeds:
        words += ["--networks", str(geometry.num_networks), "--seed", str(min(seeds))]
    if family.get("prediction", "epsilon") != "epsilon":
        words += ["--prediction", str(family["prediction"])]
    schedule = _mapping(family.get("schedule")).get("name", "linear")
    if schedule != "linear":
        words += ["--schedule", str(schedule)]
    if made.estimator in ("outer-product", "monte-carlo"):
        words += ["--estimator", made.estimator]
    if made.zero_readout != "error":
        words += ["--zero-readout", made.zero_readout]
    if made.dtype not in (None, "float32"):
        words += ["--dtype", str(made.dtype)]
    if geometry.matrix_free:
        words.append("--matrix-free")
    return shlex.join(words)


def _mapping(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, Mapping) else {}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
