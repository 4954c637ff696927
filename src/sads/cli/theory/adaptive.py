"""`sads theory adaptive`: Figure 9."""

from typing import Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import (
    AsJson,
    Layout,
    NetworkOptions,
    Networks,
    NewFolder,
    Seed,
    Shape,
    ValueRange,
)
from sads.cli.printing import progress_bar
from sads.cli.reading import read_dataset, read_family
from sads.cli.theory.output import files_of, show_result

EXAMPLES = (
    "**Examples**\n\n- `sads theory adaptive` (a digit of scikit-learn's)\n\n"
    "- `sads theory adaptive iddpm --image mnist_10k.npz:7 --shape 1x28x28`"
)


def run(
    family: Annotated[
        str, typer.Argument(help="A name from `sads families`, or FILE.py:FUNCTION.")
    ] = "iddpm",
    image: Annotated[
        str, typer.Option(help="IMAGES:INDEX, or the first of IMAGES; resized.")
    ] = "digits:0",
    value_range: ValueRange = None,
    layout: Layout = None,
    shape: Shape = None,
    networks: Networks = 2048,
    option: NetworkOptions = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Figure 9: the geometry along the forward process from one image."""
    from sads.data.spec import DataSpec
    from sads.experiments.figures.fig9 import compute_adaptation

    folder = new_folder(out, "adaptive", files_of("adaptive"))
    score_family = read_family(family, shape, option)
    images = read_dataset(
        image,
        score_family.shape,
        None,
        resize=DataSpec.parse(image).kind == "images",
        value_range=value_range,
        layout=layout,
    ).samples
    with progress_bar("networks", "error {:.1%}", quiet=as_json) as progress:
        adaptation = compute_adaptation(
            score_family, images[0], image, networks, seed=seed, progress=progress
        )
    show_result(
        folder, "adaptive", adaptation.plot(), adaptation.summary(), adaptation.table(), as_json
    )
