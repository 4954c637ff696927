"""Real images, rotated before training: the cells that Figures 7 and 8 share (Section 3.3)."""

from collections.abc import Mapping
from dataclasses import dataclass

from sads.experiments.figure import Context
from sads.experiments.run import digest_images, read_source
from sads.experiments.spec import Budget, Cell, FamilySpec, GeometrySpec
from sads.experiments.store import Record

PANELS = ("digits", "mnist", "cifar10", "faces")
EXTREMES = ("min", "identity", "max")
CURVE = (*EXTREMES, "random:0", "random:1", "share:0.25", "share:0.5", "partial:0.5")
SHOWN = 64  # samples kept for the grids of Figure 7


@dataclass(frozen=True)
class Settings:
    family: FamilySpec
    num_networks: int
    seeds: int
    rotations: tuple[str, ...]
    budget: Budget
    evaluate_at: tuple[int, ...]


def _family(shape: tuple[int, ...], channel_mults: tuple[int, ...], depth: int) -> FamilySpec:
    return FamilySpec("iddpm", shape, (("channel_mults", channel_mults), ("depth", depth)))


TWO_LEVELS = (1,)
SMOKE = Budget(500, 20, 32, 1e-3, 50, 5, "ddpm", 4)
SETTINGS: dict[str, dict[str, Settings]] = {
    "smoke": {
        name: Settings(_family(shape, TWO_LEVELS, 1), 128, 1, EXTREMES, SMOKE, (10, 20))
        for name, shape in {
            "digits": (1, 8, 8),
            "mnist": (1, 14, 14),
            "cifar10": (3, 8, 8),
            "faces": (1, 14, 14),
        }.items()
    },
    "laptop": {
        "digits": Settings(
            _family((1, 8, 8), TWO_LEVELS, 1), 4096, 5, CURVE,
            Budget(10_000, 400, 64, 1e-3, 400, 20, "ddpm"), (100, 200, 300, 400),
        ),
        "mnist": Settings(
            _family((1, 14, 14), TWO_LEVELS, 1), 4096, 5, (*EXTREMES, "random:0"),
            Budget(9_000, 800, 64, 1e-3, 300, 20, "ddpm"), (200, 400, 600, 800),
        ),
        "cifar10": Settings(
            _family((3, 16, 16), (1, 1), 1), 4096, 2, (*EXTREMES, "random:0"),
            Budget(9_000, 150, 64, 1e-3, 200, 20, "ddpm", 16), (75, 150),
        ),
        "faces": Settings(
            _family((1, 28, 28), (1, 1), 1), 4096, 2, EXTREMES,
            Budget(400, 200, 32, 1e-3, 133, 20, "ddpm", 16), (100, 200),
        ),
    },
    "paper": {
        "digits": Settings(
            _family((1, 8, 8), TWO_LEVELS, 1), 1_000_000, 5, CURVE,
            Budget(10_000, 4_000, 128, 1e-3, 599, 1000, "ddpm"), (250, 500, 1000, 2000, 4000),
        ),
        "mnist": Settings(
            _family((1, 28, 28), (1, 1), 2), 1_000_000, 5, EXTREMES,
            Budget(10_000, 100_000, 500, 1e-3, 10_000, 1000, "ddpm"), (100_000,),
        ),
        "cifar10": Settings(
            _family((3, 32, 32), (1, 1, 1), 2), 1_000_000, 5, EXTREMES,
            Budget(10_000, 200_000, 500, 1e-3, 10_000, 1000, "ddpm"), (200_000,),
        ),
        "faces": Settings(
            _family((1, 56, 56), (1, 1, 1), 2), 1_000_000, 5, EXTREMES,
            Budget(10_000, 100_000, 500, 1e-3, 10_000, 1000, "ddpm"), (100_000,),
        ),
    },
}  # fmt: skip


def available(context: Context, panels: tuple[str, ...] = PANELS) -> tuple[list[str], list[str]]:
    """Panels whose images are known, and a note for each of the others."""
    asked = context.panels(panels)
    there = [name for name in asked if name == "digits" or name in context.sources]
    notes = [
        f"{name}: not run, its images are not known; give --images {name}=SOURCE"
        for name in asked
        if name not in there
    ]
    return there, notes


def panel_cells(
    context: Context, panel: str, rotations: tuple[str, ...] | None = None
) -> dict[tuple[int, str], Cell]:
    """By seed and rotation, seed by seed."""
    settings = SETTINGS[context.scale][panel]
    images, _ = read_source(panel, settings.family.shape, context.sources)
    digest = digest_images(images)
    spec = GeometrySpec(settings.family, settings.num_networks)
    return {
        (seed, kind): Cell(
            spec, f"images:{panel}", settings.budget, seed, kind, settings.evaluate_at,
            SHOWN if kind in EXTREMES else 0, digest,
        )
        for seed in context.seeds(settings.seeds)
        for kind in settings.rotations
        if rotations is None or kind in rotations
    }  # fmt: skip


def finished(
    context: Context, panel: str, rotations: tuple[str, ...] | None = None
) -> tuple[dict[tuple[int, str], Record], int]:
    """Records by seed and rotation, and how many cells there are in all."""
    chosen = panel_cells(context, panel, rotations)
    records = context.records(chosen.values())
    return {key: records[cell] for key, cell in chosen.items() if cell in records}, len(chosen)


def whole_seeds(done: Mapping[tuple[int, str], Record], rotations: tuple[str, ...]) -> list[int]:
    """Seeds for which all of these rotations are finished."""
    seeds = sorted({seed for seed, _ in done})
    return [s for s in seeds if all((s, kind) in done for kind in rotations)]
