"""`sads theory predict`: Figure 2 before training."""

from sads.cli.folders import new_folder
from sads.cli.options import AsJson, NetworkOptions, Networks, NewFolder, Seed, Shape
from sads.cli.reading import read_geometry
from sads.cli.theory.output import Source, files_of, show_result

EXAMPLES = (
    "**Examples**\n\n- `sads theory predict iddpm --shape 1x16x16`\n\n"
    "- `sads theory predict dit -o patch_size=4`"
)


def run(
    geometry: Source = "iddpm",
    shape: Shape = None,
    networks: Networks = 2048,
    option: NetworkOptions = None,
    seed: Seed = 0,
    out: NewFolder = None,
    as_json: AsJson = False,
) -> None:
    """Figure 2 before training: `v^T G v` for every vector of the five bases.

    Hadamard's and Haar's exist for sizes that are powers of two.
    """
    from sads.plots.predictions import plot_predictions
    from sads.theory import predictions

    folder = new_folder(out, "predict", files_of("predict"))
    result = read_geometry(geometry, shape, option, networks, seed, as_json)
    found = predictions.predict(result)
    table = predictions.claims(found)
    summary = {
        "mean_energy": next(iter(found.values())).mean_energy,
        "directions": table,
        "energies": {name: list(p.energies) for name, p in found.items()},
    }
    show_result(folder, "predict", plot_predictions(result, found), summary, table, as_json)
