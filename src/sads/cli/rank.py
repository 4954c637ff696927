"""`sads rank`: architectures, rotations and the Gaussian skip for data, before training."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sads
from sads.cli.folders import finish, new_folder
from sads.cli.interrupts import command_line
from sads.cli.options import (
    AsJson,
    DataArgument,
    Layout,
    Networks,
    NewFolder,
    Resize,
    Seed,
    Shape,
    ValueRange,
)
from sads.cli.printing import (
    print_line,
    print_rows,
    print_summary,
    print_table,
    print_written,
    progress_bar,
)
from sads.cli.reading import announce, read_dataset, read_family, read_value_range
from sads.errors import InvalidArgumentError
from sads.shapes import format_shape, parse_shape
from sads.tables import Row, titled

if TYPE_CHECKING:
    from sads.experiments.ranking import Candidate, Ranking
    from sads.families import ScoreFamily

app = typer.Typer(rich_markup_mode="markdown")

EXAMPLES = """
**Examples**

- `sads rank digits --families iddpm,dit/2`

- `sads rank faces/ --families iddpm,my_model.py:build --shape 1x16x16 --resize --json`

- `sads rank digits --families cnn --rotations identity,min,share:0.5 --outcome loss`

- `sads rank digits --families cnn --practice paper --predictors alpha,kernel`
"""
FILES = ("ranking.json", "ranking.png")


@app.command(epilog=EXAMPLES, rich_help_panel="Before training")
def rank(
    data: DataArgument,
    families: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Names from `sads families`, a transformer with its patches as dit/2, or "
            "FILE.py:FUNCTION; with commas.",
        ),
    ] = "iddpm,dit",
    rotations: Annotated[
        str,
        typer.Option(
            help="Of the data: identity, min, max, random:SEED, share:S, partial:F; with commas."
        ),
    ] = "identity,min,max,random:0",
    outcome: Annotated[
        str, typer.Option(help="What is to be small: distance (of samples) or loss (held-out).")
    ] = "distance",
    practice: Annotated[
        str,
        typer.Option(
            help="common (v-prediction, clipping, with and without the Gaussian skip) or paper "
            "(noise prediction, no clipping)."
        ),
    ] = "common",
    predictors: Annotated[
        str | None, typer.Option(help="Whose numbers to show, with commas; all if not given.")
    ] = None,
    shape: Shape = None,
    networks: Networks = 1024,
    updates: Annotated[int, typer.Option(help="Of the training that is planned.", min=1)] = 300,
    learning_rate: Annotated[
        float, typer.Option(help="Of Adam, in the training that is planned.")
    ] = 1e-3,
    steps: Annotated[int, typer.Option(help="Of the sampler that is planned.", min=1)] = 20,
    samples: Annotated[
        int, typer.Option(help="Images to read at most, or samples to draw.", min=2)
    ] = 2_000,
    league: Annotated[
        Path | None,
        typer.Option(help="A league.json of `sads reproduce league`, instead of the one we ship."),
    ] = None,
    seed: Seed = 0,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """List architectures, rotations and the Gaussian skip for your data, before any training.

    In the order of the predictor that our league of predictors chose, with how often it was right
    on data that it was not chosen on. Where none was, there is no order: you see the facts only.
    Writes `ranking.json` and `ranking.png`.
    """
    from sads.experiments.standings import read_league
    from sads.files import write_json
    from sads.plots.ranking import plot_ranking
    from sads.plots.style import save
    from sads.predictors.registry import find_predictors

    asked = None if predictors is None else split(predictors, "--predictors")
    find_predictors(asked)  # before any work is done
    known = read_league(league)
    name = Path(data).stem or "data"
    sizes = parse_shape(shape) if shape else own_shape(data, value_range, layout)
    chosen = [read_candidate(text, sizes) for text in split(families, "--families")]
    folder = new_folder(out, f"rank-{name}", FILES)
    dataset = read_dataset(data, sizes, samples, seed, resize, value_range, layout, announced=True)
    with progress_bar("candidates", "{:.0%}", quiet=as_json) as progress:
        result = sads.rank(
            dataset.samples,
            chosen,
            rotations=split(rotations, "--rotations"),
            outcome=outcome,
            practice=practice,
            predictors=asked,
            iterations=updates,
            learning_rate=learning_rate,
            steps=steps,
            num_networks=networks,
            seed=seed,
            league=known,
            progress=progress,
        )
    picture = plot_ranking(
        [label(candidate) for candidate in result.candidates],
        fact_columns(result),
        list(result.ranked_by.values()),
        f"{name}: {'the best expected first' if result.is_ranked else 'facts, in no order'}",
    )
    summary = RankingSummary(
        command=command_line(),
        data={"source": data, "statement": dataset.statement},
        ranking=result,
        files={
            "picture": save(picture, folder / "ranking.png"),
            "json": folder / "ranking.json",
        },
    )
    write_json(summary.files["json"], summary)
    finish(folder)
    if as_json:
        announce(dataset)
    print_summary(summary, print_ranking, as_json)


@dataclass(frozen=True)
class RankingSummary:
    """A ranking in numbers: what `ranking.json` holds."""

    command: str
    data: dict[str, Any]
    ranking: "Ranking"
    files: dict[str, Path]


@dataclass(frozen=True)
class Listed(Row):
    """A candidate with its facts; what was not asked for is empty."""

    place: int | None
    network: str
    rotation: str
    skip: str = titled("Gaussian skip")
    alpha: float | None = None
    centred_alpha: float | None = None
    squared_alpha: float | None = None
    constant_energy: float | None = None
    forward_alpha: float | None = None
    kernel: float | None = None


def split(text: str, option: str) -> list[str]:
    """Words between commas, each of them once."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidArgumentError(f"{option} takes names with commas between them, got {text!r}")
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"{option} has {twice!r} twice: leave one of them out")
    return words


def read_candidate(text: str, shape: tuple[int, ...]) -> "ScoreFamily":
    """A family by name, a transformer with its patches (`dit/2`), or `FILE.py:FUNCTION`."""
    name, slash, patches = text.rpartition("/")
    if slash and patches.isdigit():
        return read_family(name, format_shape(shape), [f"patch_size={patches}"])
    return read_family(text, format_shape(shape), None)


def own_shape(data: str, value_range: str | None, layout: str | None) -> tuple[int, ...]:
    """The shape that images have themselves; other data take one."""
    from sads.data.spec import DataSpec

    spec = DataSpec.parse(data)
    if spec.kind != "images":
        raise InvalidArgumentError(f"give the --shape of {data!r}, such as 1x16x16")
    images = sads.load_images(
        spec.source, limit=1, value_range=read_value_range(value_range), layout=layout
    )
    return tuple(images.shape[1:])


def label(candidate: "Candidate") -> str:
    skip = ", Gaussian skip" if candidate.skip else ""
    return f"{candidate.family}, {candidate.rotation}{skip}"


def fact_columns(ranking: "Ranking") -> dict[str, list[float]]:
    """The numbers of each predictor, candidate by candidate."""
    names = list(ranking.candidates[0].facts)
    return {name: [c.facts[name].of(ranking.outcome) for c in ranking.candidates] for name in names}


def print_ranking(summary: RankingSummary) -> None:
    ranking = summary.ranking
    print_rows({"data": summary.data["statement"]})
    print_table(
        [
            Listed(
                place=c.place,
                network=c.family,
                rotation=c.rotation,
                skip="yes" if c.skip else "no",
                **{
                    field: c.facts[name].of(ranking.outcome)
                    for name in c.facts
                    if (field := name.replace("-", "_")) in Listed.__dataclass_fields__
                },
            )
            for c in ranking.candidates
        ]
    )
    for statement in ranking.statements:
        print_line(statement)
    if ranking.is_ranked and not ranking.between_families:
        print_line(
            "places are those among one architecture: between architectures nothing was right"
        )
    print_line(
        "the league's models are small (8x8, 200 to 300 updates); what they say of large ones is "
        "not tested"
    )
    print_written(*summary.files.values())
