"""`sads theory theorem1`: Figure 4."""

from typing import Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import AsJson, NewFolder, Seed
from sads.cli.theory.output import files_of, read_numbers, show_result

EXAMPLES = (
    "**Examples**\n\n- `sads theory theorem1`\n\n"
    "- `sads theory theorem1 --eigenvalues 4,2,1,1 --sigma 0.5 --batch-size 8`"
)


def run(
    eigenvalues: Annotated[
        str, typer.Option(help="Of Phi Phi^T, descending.")
    ] = "1,0.5,0.25,0.125,0.0625",
    sigma: Annotated[float, typer.Option(help="Noise level.")] = 1.0,  # Figure 4
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.02,
    steps: Annotated[int, typer.Option(help="Steps of SGD.")] = 4000,
    runs: Annotated[int, typer.Option(help="Runs of SGD for each direction.")] = 400,
    batch_size: Annotated[int, typer.Option(help="Samples a step.")] = 1,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Figure 4: linear score matching behind an anisotropic layer, for data along each `u_i`.

    The error of SGD is simulated and, from its exact recursion, predicted.
    """
    from sads.experiments.figures.fig4 import compute_descent

    folder = new_folder(out, "theorem1", files_of("theorem1"))
    descent = compute_descent(
        read_numbers(eigenvalues, "is not a list of numbers", "1,0.5,0.25 or the like"),
        sigma=sigma,
        learning_rate=learning_rate,
        steps=steps,
        num_runs=runs,
        batch_size=batch_size,
        seed=seed,
    )
    show_result(folder, "theorem1", descent.plot(), descent.summary(), descent.table(), as_json)
