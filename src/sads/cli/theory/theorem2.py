"""`sads theory theorem2`: alignment and the rotations that are extreme."""

from typing import Annotated

import typer

from sads.cli.folders import new_folder
from sads.cli.options import (
    AsJson,
    Layout,
    NetworkOptions,
    Networks,
    NewFolder,
    Resize,
    Seed,
    Shape,
    ValueRange,
)
from sads.cli.printing import print_note, print_rows
from sads.cli.reading import read_geometry
from sads.cli.theory.output import (
    Images,
    Source,
    check_images,
    files_of,
    pair_with_images,
    show_result,
)

EXAMPLES = (
    "**Examples**\n\n- `sads theory theorem2 iddpm --shape 1x16x16` (scikit-learn's digits)"
    "\n\n- `sads theory theorem2 iddpm --images mnist_10k.npz --shape 1x28x28`"
    "\n\n- `sads theory theorem2 out/iddpm/geometry.safetensors --save`"
)


def run(
    geometry: Source = "iddpm",
    images: Images = None,
    resize: Resize = False,
    value_range: ValueRange = None,
    layout: Layout = None,
    shape: Shape = None,
    networks: Networks = 1024,
    option: NetworkOptions = None,
    seed: Seed = 0,
    save: Annotated[bool, typer.Option(help="Also write both rotations.")] = False,
    rotations: Annotated[
        int, typer.Option(help="Random ones that try to leave the extremes.")
    ] = 100,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Theorem 2: alignment of data with a geometry, and the rotations that are extreme."""
    from sads.plots.theorem2 import plot_theorem2
    from sads.theory.theorem2 import try_rotations

    check_images(images)
    rotation_files = {kind: f"rotation-{kind}.safetensors" for kind in ("min", "max") if save}
    written = [*files_of("theorem2"), *rotation_files.values()]
    folder = new_folder(out, "theorem2", written)
    result = read_geometry(geometry, shape, option, networks, seed, as_json)
    both, x, name = pair_with_images(result, images, seed, resize, value_range, layout)
    report = both.alignment()
    tried = try_rotations(both.spectrum().values, both.data_values, rotations, seed)
    extreme = {kind: both.rotation(kind) for kind in ("min", "identity", "max")}
    saved = {
        f"rotation {kind}": extreme[kind].save(folder / file)
        for kind, file in rotation_files.items()
    }
    step = max(1, len(x) // 10)
    shown = {kind: r.apply(x[::step][:10]) for kind, r in extreme.items()}
    picture = plot_theorem2(result, report, tried.alphas, shown, name)
    summary = {**vars(report), "note": report.note, "data": name, "geometry": result.provenance}
    summary |= {"random_alphas": tried.alphas.tolist(), "num_outside": tried.num_outside}
    if not as_json:
        low, high = (f"{float(alpha):.4g}" for alpha in tried.alphas.aminmax())
        found = f"{low} to {high}, {tried.num_outside} of {rotations:,} outside the extremes"
        print_rows({**report.describe(), "random rotations": found})
    if report.note is not None:
        print_note(report.note)
    show_result(folder, "theorem2", picture, summary, [], as_json, saved)
