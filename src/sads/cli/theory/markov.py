"""`sads theory markov`: Figure 5 and Equation 4."""

from typing import Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import AsJson, Networks, NewFolder, Seed
from sads.cli.theory.output import files_of, show_result

EXAMPLES = "**Examples**\n\n- `sads theory markov`\n\n- `sads theory markov --angle 60 --ratio 0.5`"


def run(
    angle: Annotated[float, typer.Option(help="Of the preferred direction, degrees.")] = 30.0,
    ratio: Annotated[float, typer.Option(help="Of the singular values of Phi.")] = 0.25,
    networks: Networks = 4096,
    threshold: Annotated[
        float | None, typer.Option(help="eta of Equation 4; else 1.5 times the RMS score.")
    ] = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Figure 5 and Equation 4: log-densities of untrained networks on the plane.

    Directions come from the estimated geometry; other networks than those it was estimated from
    show how often the log-density changes steeply along each.
    """
    from sads.experiments.figures.fig5 import compute_landscapes

    folder = new_folder(out, "markov", files_of("markov"))
    found = compute_landscapes(networks, angle=angle, ratio=ratio, threshold=threshold, seed=seed)
    show_result(folder, "markov", found.plot(), found.summary(), found.table(), as_json)
