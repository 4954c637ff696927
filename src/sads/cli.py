"""The command line: the root of all commands, and how errors are shown."""

import sys
from typing import Annotated

import typer

import sads
from sads.commands.alignment import app as alignment_app
from sads.commands.diffusion import app as diffusion_app
from sads.commands.geometry import app as geometry_app
from sads.commands.printing import console, messages
from sads.commands.reproduce import app as reproduce_app
from sads.commands.theory import app as theory_app
from sads.errors import SadsError

app = typer.Typer(
    name="sads",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Score Anisotropy Directions: which directions an untrained diffusion model prefers.",
    epilog="Start with `sads geometry iddpm --shape 1x16x16`.",
)
app.add_typer(geometry_app)
app.add_typer(alignment_app)
app.add_typer(theory_app)
app.add_typer(diffusion_app)
app.add_typer(reproduce_app)
# The base of all usage errors; typer carries a click of its own, so it is reached from here.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def _version(show: bool) -> None:
    if show:
        console.print(f"sads {sads.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; what a user can mend is one line and status 2, never a traceback."""
    try:
        status = typer.main.get_command(app)(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except SadsError as error:
        _print_error(str(error))
        sys.exit(2)
    except ClickException as error:
        text = error.format_message()  # type: ignore[attr-defined]
        text = text.replace("\n", " ").rstrip(".")
        _print_error(f"{text}; try --help")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        messages.print("interrupted before anything was computed")
        sys.exit(130)


def _print_error(text: str) -> None:
    messages.print(f"error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
