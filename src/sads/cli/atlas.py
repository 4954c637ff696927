"""`sads atlas`: the geometries of networks that people use, in one picture and one table."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sads.cli.given_options import refuse_given
from sads.cli.interrupts import command_line
from sads.cli.options import AsJson, Seed, WithReport
from sads.cli.printing import print_line, print_message, print_table, print_written, progress_bar
from sads.cli.reading import read_cluster
from sads.cli.report import REPORT, add_report
from sads.errors import InvalidArgumentError, counted
from sads.shapes import format_shape
from sads.tables import Row

if TYPE_CHECKING:
    from sads.adapters.presets import Preset
    from sads.atlas.compute import Estimate
    from sads.atlas.entry import Directions, Entry
    from sads.experiments.sweep import RayCluster

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads atlas --list`

- `sads atlas sd15` (Stable Diffusion 1.5, 64 networks: half an hour on two cores)

- `sads atlas sd15 --networks 128` (adds 64)

- `sads atlas --page` (draws the picture and the page of what is there)

- `sads atlas sdxl --ray 10.0.0.1:6379 --cpus 4`
"""


@dataclass(frozen=True)
class Listed(Row):
    """A network that the atlas knows."""

    name: str
    network: str
    kind: str
    data: str
    networks: int
    source: str


@app.command(epilog=EXAMPLES, rich_help_panel="Before training")
def atlas(
    names: Annotated[
        list[str] | None, typer.Argument(help="Networks, as --list has them; all if none is given.")
    ] = None,
    networks: Annotated[
        int | None, typer.Option(help="Random networks of each; else as --list has them.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the atlas.")] = Path("out/atlas"),
    page: Annotated[bool, typer.Option("--page", help="Compute nothing, draw what is there.")] = (
        False
    ),
    listed: Annotated[bool, typer.Option("--list", help="List the networks.")] = False,
    keep: Annotated[
        bool, typer.Option(help="Keep geometries in work/, so that networks can be added.")
    ] = True,
    ray: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a Ray cluster, or auto for this machine's: networks are drawn there "
            "in shards, each with a whole matrix in memory, and start anew if interrupted."
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="CPUs of a shard on Ray; 1 if not given.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(help="GPUs of a shard on Ray; none if not given.")
    ] = None,
    seed: Seed = 0,
    report: WithReport = False,
    as_json: AsJson = False,
) -> None:
    """Geometries of published networks: Stable Diffusion, SDXL, DiT, PixArt, SD 3, FLUX, DDPM, ADM.

    One at a time; what is finished is not computed again, what was interrupted goes on. Writes for
    each a small `NAME.json` and `NAME.npz`, and `atlas.png` and `README.md` of all of them.
    """
    from sads.adapters.presets import PRESETS, preset
    from sads.arguments import check_count
    from sads.atlas.compute import compute, finished, under_way
    from sads.atlas.entry import load
    from sads.atlas.page import check_place, made
    from sads.cli.folders import claim_folder
    from sads.files import to_json
    from sads.report.page import check_ours

    chosen = [preset(name) for name in names or PRESETS]
    cluster = read_cluster(ray, cpus, gpus)
    if cluster is not None and not (page or listed):
        _check_matrices(chosen)
    if page or listed:
        refuse_given("--page and --list compute nothing", "networks", "ray", "seed", "keep")
    if listed:
        refuse_given("--list writes nothing", "out", "report")
    if page and (names or listed):
        raise InvalidArgumentError("--page draws all that is there; leave names and --list out")
    if networks is not None:
        check_count("--networks", networks)
    if listed:
        _list(chosen, as_json)
        return
    check_place(out, list(PRESETS))
    if report:
        check_ours(out / REPORT)
    claim_folder(out, (str(under_way(Path(), one)) for one in chosen))
    if not page:
        for one in chosen:
            count = one.networks if networks is None else networks
            if finished(out, one, count) is not None:
                continue
            if not as_json:
                print_message(f"{one.title}: {counted(count, 'network')}")
            with progress_bar("networks", "error {:.1%}", quiet=as_json) as progress:
                entry, _ = compute(
                    one,
                    count,
                    out,
                    seed=seed,
                    command=command_line(),
                    keep=keep,
                    estimate=None if cluster is None else _on_ray(one, seed, cluster),
                    progress=progress,
                    stage=progress.stage if progress else None,
                )
            if not as_json:
                print_table([made(entry)])
    found = [pair for name in PRESETS if (pair := load(out, name)) is not None]
    if not found:
        raise InvalidArgumentError(
            f"there is nothing of the atlas in {out}; compute something: sads atlas sd15"
        )
    _write(found, out)
    written = [out / "atlas.png", out / "README.md"]
    if report:
        written.append(add_report(out, quiet=as_json))
    if as_json:
        print(to_json([entry for entry, _ in found]))
    else:
        print_table([made(entry) for entry, _ in found])
        print_written(*written)


def _check_matrices(presets: list["Preset"]) -> None:
    """Shards of a cluster add up as matrices: refuse networks too large for one."""
    from sads.geometry.estimate import DENSE_POSITIONS

    for one in presets:
        positions = math.prod(one.shape[1:])
        if positions > DENSE_POSITIONS:
            raise InvalidArgumentError(
                f"{one.name} has {positions:,} positions, too many for the matrices that shards on "
                f"a cluster add up to (at most {DENSE_POSITIONS:,}): leave --ray out, or name "
                "other networks"
            )


def _list(presets: list["Preset"], as_json: bool) -> None:
    from sads.files import to_json

    if as_json:
        print(to_json(presets))
        return
    rows = [
        Listed(p.name, p.title, p.kind, format_shape(p.shape), p.networks, p.source)
        for p in presets
    ]
    print_table(rows)
    print_line("\nEach is a family, too: sads geometry atlas:sd15 --networks 16")


def _write(found: list[tuple["Entry", "Directions"]], out: Path) -> None:
    from sads.atlas.page import PICTURE, write_page
    from sads.plots.atlas import plot_atlas, plot_portrait
    from sads.plots.style import save

    save(plot_atlas(found), out / PICTURE)
    for entry, directions in found:
        save(plot_portrait(entry, directions), out / f"{entry.name}.png")
    write_page(out, [entry for entry, _ in found], f"sads atlas --out {out}")


def _on_ray(one: "Preset", seed: int, cluster: "RayCluster") -> "Estimate":
    """Draws networks on a cluster, in shards."""
    from sads.experiments.spec import FamilySpec, GeometrySpec
    from sads.experiments.sweep import geometry_on_ray

    family = FamilySpec(f"atlas:{one.name}", one.shape)
    return lambda _, first, count: geometry_on_ray(
        GeometrySpec(family, count, seed), cluster, first_network=first
    )
