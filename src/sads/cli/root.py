"""The root of all commands, and how errors are shown."""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import sads
import sads.cli
from sads.cli import folders
from sads.cli.failures import explain
from sads.cli.given_options import remember_given
from sads.cli.interrupts import Interrupted, command_line
from sads.cli.printing import console, print_error
from sads.errors import InvalidArgumentError, SadsError

INTERRUPTED = 130  # what typer makes of an interrupt in its own lines, between two of ours


class _EndedError(Exception):
    """Carries what typer would make something else of."""


class _Root(TyperGroup):
    """Typer takes interrupts and closed pipes for its own; here they come out as they are."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _carried():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _carried():
            return super().invoke(ctx)


class _Command(TyperCommand):
    """A command that takes each option once: of several, Typer takes the last in silence.

    Options that are made to be repeated, such as `-o`, may be.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            once = option.param_type_name == "option" and not option.multiple
            if once and sum(o is option for o in given) > 1 and not ctx.resilient_parsing:
                names = "/".join([*option.opts, *option.secondary_opts])
                raise InvalidArgumentError(f"{names} is given twice; leave one of them out")
        remember_given(option.name for option in given)
        return super().parse_args(ctx, args)


@contextmanager
def _carried() -> Iterator[None]:
    try:
        yield
    except SadsError:  # that of a busy folder is an OSError, too
        raise
    except (KeyboardInterrupt, OSError) as error:
        raise _EndedError from error


app = typer.Typer(
    name="sads",
    cls=_Root,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Score Anisotropy Directions: which directions an untrained diffusion model prefers.",
    epilog="Start with `sads geometry iddpm --shape 1x16x16`.",
)
for found in pkgutil.iter_modules(sads.cli.__path__):  # a module with an `app` is a command
    if found.name not in ("main", "__main__", "root"):
        module = importlib.import_module(f"sads.cli.{found.name}")
        if hasattr(module, "app"):
            for registered in module.app.registered_commands:
                registered.cls = _Command
            app.add_typer(module.app, rich_help_panel=module.app.rich_help_panel)
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


def command() -> Any:
    """All commands, as Typer makes them of `app`: again only if some were added meanwhile."""
    return _made(tuple(_registered(app)))


@lru_cache(maxsize=1)
def _made(_: tuple[Any, ...]) -> Any:
    return typer.main.get_command(app)


def _registered(group: typer.Typer) -> Iterator[Any]:
    yield from group.registered_commands
    for added in group.registered_groups:
        yield added
        if added.typer_instance is not None:
            yield from _registered(added.typer_instance)


def run() -> int:
    """Run the command of `sys.argv`; its exit status.

    What a user can mend is one line and status 2. An interrupt comes out as `Interrupted`, with
    the command that continues.
    """
    try:
        _refuse_empty(sys.argv[1:])
        with warnings.catch_warnings():  # of PyTorch; what is wrong with the size is said later
            warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
            status = command()(standalone_mode=False)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except SadsError as error:
        print_error(str(error))
        return 2
    except ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0  # the help has been printed
        text = error.format_message()  # type: ignore[attr-defined]
        text = text.replace("\n", " ").rstrip(".")
        print_error(f"{text}; try --help")
        return 2
    except (KeyboardInterrupt, _EndedError) as ended:
        cause = ended.__cause__ if isinstance(ended, _EndedError) else ended
        assert cause is not None
        if isinstance(cause, KeyboardInterrupt) and not isinstance(cause, Interrupted):
            kept = (
                "what was done is kept; continue"
                if folders.holds()
                else "nothing was kept; run it again"
            )
            cause = Interrupted(f"{kept} with: {command_line()}")
        raise cause from None
    except Exception as error:
        known = explain(error)
        if known is None:
            raise  # a mistake of ours: the traceback helps to mend it
        print_error(known)
        return 2
    finally:
        folders.let_go()


def _refuse_empty(arguments: list[str]) -> None:
    """An empty argument is a shell's variable that was not set; as a path it would mean here."""
    for position, argument in enumerate(arguments, start=1):
        if not argument.strip() or (argument.startswith("--") and argument.endswith("=")):
            raise InvalidArgumentError(
                f"argument {position} ({argument!r}) is empty; is a variable of your shell not set?"
            )
