"""`sads theory ...`: the statements of the paper as commands, one file each."""

import typer

from sads.cli.theory import (
    adaptive,
    descent,
    markov,
    predict,
    propositions,
    symmetry,
    theorem1,
    theorem2,
)

app = typer.Typer(
    name="theory",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    rich_help_panel="The paper",
    help="The paper's theorems, propositions and bounds, computed and drawn.",
)

for _module in (theorem1, theorem2, descent, propositions, markov, symmetry, adaptive, predict):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name, epilog=_module.EXAMPLES)(_module.run)
