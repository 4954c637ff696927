"""`sads theory descent`: which rotation gradient descent of a linear network prefers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import (
    AsJson,
    Layout,
    NetworkOptions,
    Networks,
    NewFolder,
    Resize,
    Seed,
    Shape,
    ValueRange,
)
from sads.cli.printing import print_table
from sads.cli.reading import read_geometry, read_geometry_or_family
from sads.cli.theory.output import (
    Images,
    Source,
    check_images,
    files_of,
    pair_with_images,
    read_numbers,
    show_result,
)
from sads.errors import InvalidArgumentError, printable
from sads.estimates import Estimate
from sads.shapes import format_shape
from sads.tables import Row, titled

if TYPE_CHECKING:
    import sads
    from sads.experiments.archive import Archive
    from sads.experiments.records import TrainedLosses
    from sads.plots.descent import DescentCurves

EXAMPLES = (
    "**Examples**\n\n- `sads theory descent iddpm --shape 1x8x8` (scikit-learn's digits)"
    "\n\n- `sads theory descent out/iddpm/geometry.safetensors --images mnist_10k.npz`"
    "\n\n- `sads theory descent iddpm --sigmas 0.05,0.5,5 --speed 0.9`"
    "\n\n- `sads theory descent iddpm --shape 1x8x8 --records results/laptop` (trained ones)"
)
SHOWN = 5  # steps of the table


@dataclass(frozen=True)
class Loss(Row):
    """The loss above its minimum, in units of its start, after some steps."""

    sigma: float
    steps: int
    minimum: float = titled("minimising rotation")
    random: float = titled("random rotations, mean")
    identity: float = titled("as they are")
    maximum: float = titled("maximising rotation")


@dataclass(frozen=True)
class TrainedLoss(Row):
    """What networks behind a rotation had come to at the end of their training."""

    rotation: str
    networks: int
    updates: int
    loss: Estimate = titled("training loss")


def run(
    geometry: Source = "iddpm",
    images: Images = None,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    shape: Shape = None,
    networks: Networks = 1024,
    option: NetworkOptions = None,
    sigmas: Annotated[str, typer.Option(help="Noise levels, a panel each.")] = "0.1,1",
    speed: Annotated[
        float, typer.Option(help="Learning rate in units of the largest that is stable.")
    ] = 0.5,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent.", min=2)] = 100_000,
    rotations: Annotated[int, typer.Option(help="Random rotations of the band.", min=1)] = 100,
    records: Annotated[
        Path | None,
        typer.Option(help="Folder of `sads reproduce`: networks that were trained, beside it."),
    ] = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """The loss of a linear network behind the geometry, for the extreme rotations of the data.

    In closed form: the minimising rotation is best and the maximising one worst at every step
    and every noise level, as `docs/theory.md` proves. Trained networks need not follow it: with
    `--records` the losses of those stand beside that a folder has of the same network and data.
    """
    from sads.plots.descent import TrainedCurve, plot_descent

    check_images(images)
    levels = _read_levels(sigmas)
    if not 0 < speed <= 1:
        raise InvalidArgumentError(
            f"--speed is above 0 and at most 1, the fastest that is stable, got {speed}"
        )
    known = None if records is None else _read_archive(records)
    folder = new_folder(out, "descent", files_of("descent"))
    trained = {}
    if known is not None:  # refused before anything is estimated
        network = read_geometry_or_family(geometry, shape, option)
        trained = _trained(known, images or "digits", network)
    result = read_geometry(geometry, shape, option, networks, seed, as_json)
    both, _, name = pair_with_images(result, images, seed, resize, value_range, layout)
    times = sorted({0, *(round(steps ** (k / 60)) for k in range(61))})
    curves = {s: _curves(both, s, speed, times, rotations, seed) for s in levels}
    family = result.provenance.family.get("name", "unnamed")
    shown = {
        kind: TrainedCurve(found.updates, found.means, found.num_models)
        for kind, found in trained.items()
    }
    picture = plot_descent(curves, times, f"{name} and {family}", shown)
    stride = max(1, len(times) // SHOWN)
    table = [
        Loss(
            sigma=sigma,
            steps=times[k],
            minimum=float(found.minimum[k]),
            random=float(found.random[:, k].mean()),
            identity=float(found.identity[k]),
            maximum=float(found.maximum[k]),
        )
        for sigma, found in curves.items()
        for k in range(stride, len(times), stride)
    ]
    summary = {
        "data": name,
        "geometry": result.provenance,
        "speed": speed,
        "rotations": rotations,
        "seed": seed,
        "steps": times,
        "curves": {str(sigma): _summary(found) for sigma, found in curves.items()},
        "table": table,
        "trained": trained,
    }
    show_result(folder, "descent", picture, summary, table, as_json)
    if trained and not as_json:
        best_first = sorted(trained.items(), key=lambda found: found[1].last)
        print_table([TrainedLoss(k, f.num_models, f.num_updates, f.last) for k, f in best_first])


def _read_archive(folder: Path) -> "Archive":
    from sads.experiments.archive import RECORDS, Archive

    if not (folder / RECORDS).is_file():
        raise InvalidArgumentError(
            f"there is no {RECORDS} in {printable(folder)}; give a folder that sads reproduce wrote"
        )
    return Archive.read(folder)


def _trained(
    archive: "Archive", images: str, network: "sads.Geometry | sads.ScoreFamily"
) -> "dict[str, TrainedLosses]":
    """The losses of such networks as were trained on data: `mnist_10k.npz` are `mnist`."""
    import sads
    from sads.experiments.records import losses_by_rotation, trained_families
    from sads.families import is_same_network

    name = Path(images.partition(":")[0]).stem.partition("_")[0]
    families = trained_families(archive.records.values(), name, network.shape)
    if not families:
        raise InvalidArgumentError(
            f"{printable(archive.folder)} has no networks that were trained on {name!r} of "
            f"{format_shape(network.shape)} as in the paper; leave --records out, or give another "
            "folder"
        )
    if isinstance(network, sads.Geometry):
        said = network.provenance.family
    else:
        said = network.describe()
    for family, records in families.items():
        if is_same_network(said, family.build().describe()):
            return losses_by_rotation(records)
    raise InvalidArgumentError(
        f"{printable(archive.folder)} has no {printable(said.get('name'))} of these options that "
        f"was trained on {name!r}; it has those of: {'; '.join(f.arguments for f in families)}"
    )


def _curves(
    both: "sads.Pairing", sigma: float, speed: float, times: list[int], rotations: int, seed: int
) -> "DescentCurves":
    """Losses in units of their start, behind a learning rate that no rotation makes unstable."""
    from sads.plots.descent import DescentCurves
    from sads.theory.descent import GaussianDescent, overlaps

    directions = both.geometry.directions()
    largest = float(directions.values[0] * (both.data_values[0] + sigma**2))
    problem = GaussianDescent(directions.values, both.data_values, sigma, speed / largest)
    start = problem.minimum([0])
    as_they_are = overlaps(directions.vectors.flatten(1).T, both.axes)
    return DescentCurves(
        minimum=problem.minimum(times) / start,
        maximum=problem.maximum(times) / start,
        identity=problem.excess(as_they_are, times) / start,
        random=problem.random(times, rotations, seed) / start,
    )


def _summary(found: "DescentCurves") -> dict[str, object]:
    band = {"least": found.random.amin(dim=0), "largest": found.random.amax(dim=0)}
    lines = {k: getattr(found, k) for k in ("minimum", "identity", "maximum")}
    return {**lines, "random": {"mean": found.random.mean(dim=0), **band}}


def _read_levels(text: str) -> list[float]:
    from sads.theory.lemmas import LARGEST, SMALLEST

    limits = f"numbers above 0 ({SMALLEST:g} to {LARGEST:g}), such as 0.1,1"
    levels = read_numbers(text, "are no noise levels", limits)
    if not all(SMALLEST < level < LARGEST for level in levels):
        raise InvalidArgumentError(f"{text!r} are no noise levels; write {limits}")
    return levels
