"""`sads theory propositions`: which closed form does a geometry obey?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import sads
from sads.cli.folders import new_folder
from sads.cli.given_options import refuse_given
from sads.cli.options import AsJson, NetworkOptions, Networks, NewFolder, Seed, Shape
from sads.cli.reading import read_geometry
from sads.cli.theory.output import files_of, show_result
from sads.tables import Row, titled

if TYPE_CHECKING:
    from sads.geometry.result import Geometry
    from sads.theory import Example, Form

    Result = tuple[Example, Geometry, Form]

EXAMPLES = (
    "**Examples**\n\n- `sads theory propositions`\n\n"
    "- `sads theory propositions cnn --shape 3x8x8 --networks 8192`\n\n"
    "- `sads theory propositions dit -o patch_size=4`"
)


@dataclass(frozen=True)
class Tested(Row):
    """A form that was tried on the geometry of a network."""

    network: str
    proposition: int
    formula: str
    status: str
    residual: float
    residual_errors: float = titled("in errors")
    p_value: float = titled("p")
    why: str = titled("because")


def run(
    geometry: Annotated[
        str | None,
        typer.Argument(help="As elsewhere; else networks that keep and break the assumptions."),
    ] = None,
    shape: Shape = None,
    networks: Networks = 4096,
    option: NetworkOptions = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Propositions 1 to 3: which closed form does a geometry obey?

    Estimates here are plain outer products, which impose no form.
    """
    from sads.plots.propositions import plot_propositions
    from sads.theory import examples

    folder = new_folder(out, "propositions", files_of("propositions"))
    if geometry is None:
        refuse_given("for a family, and none is given", "shape", "option")
        results = [_test_example(example, networks, seed) for example in examples()]
    else:
        estimate = read_geometry(geometry, shape, option, networks, seed, as_json, "outer-product")
        results = [
            (_label(geometry, estimate, form), estimate, form)
            for form in sads.structure(estimate).forms
        ]
    table = [
        Tested(
            network=example.name,
            proposition=form.proposition,
            formula=form.formula,
            status=form.status,
            residual=form.residual,
            residual_errors=form.residual_errors,
            p_value=form.p_value,
            why=example.why,
        )
        for example, _, form in results
    ]
    summary = {"networks": networks, "seed": seed, "directions": table}
    show_result(folder, "propositions", plot_propositions(results), summary, table, as_json)


def _test_example(example: "Example", networks: int, seed: int) -> "Result":
    estimate = sads.estimate_geometry(
        example.family,
        networks,
        seed=seed,
        estimator="outer-product",
        probe=sads.probe("gaussian"),
    )
    return example, estimate, sads.structure(estimate, patch_size=example.patch_size)[example.form]


def _label(source: str, geometry: "Geometry", form: "Form") -> "Example":
    """The user's network under the name of its file or family."""
    import torch

    from sads.theory import Example

    family = sads.family(torch.nn.Identity, shape=geometry.shape)  # a label only
    name = Path(source.rpartition(":")[0] or source).stem
    return Example(name, family, form.proposition, form.holds, "")
