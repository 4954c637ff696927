"""`sads theory symmetry`: Figure 3."""

from typing import Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import AsJson, NetworkOptions, Networks, NewFolder, Seed, Shape
from sads.cli.reading import read_family
from sads.cli.theory.output import files_of, show_result

EXAMPLES = (
    "**Examples**\n\n- `sads theory symmetry`\n\n"
    "- `sads theory symmetry --shape 1x32x32 -o depth=2 --networks 64`"
)


def run(
    shape: Shape = None,
    networks: Networks = 64,
    level: Annotated[int, typer.Option(help="Noise level, counted from 0.")] = 500,
    option: NetworkOptions = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Figure 3: responses of a U-Net with symmetric kernels to a centred impulse."""
    from sads.experiments.figures.fig3 import RESAMPLINGS, compute_impulses

    folder = new_folder(out, "symmetry", files_of("symmetry"))
    families = {
        name: read_family("iddpm", shape, [*(option or []), f"resample={name}"])
        for name in RESAMPLINGS
    }
    impulses = compute_impulses(families, networks, level, seed)
    show_result(folder, "symmetry", impulses.plot(), impulses.summary(), impulses.table(), as_json)
