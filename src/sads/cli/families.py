"""`sads families`: the architectures and presets that sads knows."""

from dataclasses import dataclass

import typer

import sads
from sads.cli.options import AsJson
from sads.cli.printing import print_line, print_table
from sads.shapes import format_shape
from sads.tables import Row

app = typer.Typer(rich_markup_mode="markdown")


@dataclass(frozen=True)
class Preset(Row):
    """A column of Table 1, or our default, as it is listed."""

    family: str
    shape: str
    parameters: int
    options: str
    training: str
    source: str


@app.command(epilog="**Example**: `sads families --json`", rich_help_panel="Before training")
def families(as_json: AsJson = False) -> None:
    """List the families of networks that sads knows, with the presets of the paper's Table 1."""
    from sads.families import columns
    from sads.files import plain, to_json

    networks = [sads.family(c.family, c.shape, **dict(c.options)).build() for c in columns()]
    sizes = [sum(p.numel() for p in network.parameters()) for network in networks]
    if as_json:
        rows = [
            {
                "family": column.family,
                "shape": format_shape(column.shape),
                "parameters": size,
                "options": plain(dict(column.options)),
                "training": plain(column.training),
                "source": column.source,
            }
            for column, size in zip(columns(), sizes, strict=True)
        ]
        print(to_json(rows))
        return
    print_table(
        [
            Preset(
                family=column.family,
                shape=format_shape(column.shape),
                parameters=size,
                options=", ".join(f"{k}={_plain(v)}" for k, v in column.options),
                training=f"{column.training.iterations:,} x {column.training.batch_size:,} at "
                f"{column.training.learning_rate:g}",
                source=column.source,
            )
            for column, size in zip(columns(), sizes, strict=True)
        ]
    )
    print_line(
        "\nAny shape and option may be given: sads geometry iddpm --shape 1x32x32 -o depth=2\n"
        "Your own network: sads geometry my_model.py:build --shape 3x64x64"
    )


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
