"""Figure 9: the geometry along the forward process from an image adapts to the image.

The images are scikit-learn's digits. How many there are is ours; the million networks behind a
geometry at the paper's scale are those of Appendix A. Claims are judged from the spread over
images.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sads.data.bases import basis
from sads.errors import counted
from sads.estimates import MIN_BATCHES, Estimate, Estimates, format_error
from sads.experiments.figures.figure import Context, Figure, Outcome
from sads.experiments.run import read_source
from sads.experiments.spec import FamilySpec, GeometrySpec
from sads.experiments.verdict import (
    Claim,
    judge,
    paired_difference,
    rank_correlation,
    row_correlations,
    sign_flip_test,
)
from sads.families import ScoreFamily
from sads.geometry.dense import Dense
from sads.geometry.directions import Directions
from sads.geometry.estimate import estimate_geometry
from sads.geometry.result import Geometry
from sads.probes import probe
from sads.table1 import IDDPM, NUM_NETWORKS
from sads.tables import Row, titled
from sads.theory.lemmas import unit

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure as Picture

SHAPE = IDDPM.shape
SIZES = {"smoke": (64, 2), "laptop": (1024, 10), "paper": (NUM_NETWORKS, 10)}  # networks, images
NUM_FIRST = 12  # eigenvectors that the figure shows
COLUMNS = 6


@dataclass(frozen=True)
class Adapted(Row):
    """One image, and how much of it the first eigenvectors of geometries hold."""

    image: str
    networks: int
    first_eigenvalue: Estimate = titled("lambda_1")
    trace: float = titled("trace")
    energy_along_image: Estimate = titled("v^T G v along the image")
    own_share: Estimate = titled(f"share of it in the first {NUM_FIRST}")
    first_frequency: float = titled("frequency of u_1")
    last_frequency: float = titled(f"frequency of u_{NUM_FIRST}")
    default_share: Estimate | None = titled("in the default's", default=None)
    others_share: float | None = titled("in other images'", default=None)


@dataclass(frozen=True, eq=False)
class Adaptation:
    """The geometry along the forward process from one image."""

    image: Tensor  # (*shape)
    name: str
    geometry: Geometry

    @property
    def directions(self) -> Directions:
        return self.geometry.directions()

    @property
    def num_first(self) -> int:
        return min(NUM_FIRST, self.geometry.dimension)

    @cached_property
    def frequencies(self) -> Tensor:
        """Mean frequencies of the first eigenvectors, (num_first,)."""
        return mean_frequencies(self.directions.avoided(self.num_first))

    def row(self, default: Estimate | None = None, others: float | None = None) -> Adapted:
        """The table's row, with the shares of the image in other geometries if they are known."""
        return Adapted(
            image=self.name,
            networks=self.geometry.num_networks,
            first_eigenvalue=self.directions.eigenvalue(0),
            trace=float(self.directions.values.sum()),
            energy_along_image=self.geometry.energy(unit(self.image)),
            own_share=shares_in_first(self.geometry, self.image[None])[0],
            first_frequency=float(self.frequencies[0]),
            last_frequency=float(self.frequencies[-1]),
            default_share=default,
            others_share=others,
        )

    def table(self) -> list[Adapted]:
        return [self.row()]

    def summary(self) -> dict[str, Any]:
        """What goes into a JSON file."""
        return {
            "image": self.name,
            "networks": self.geometry.num_networks,
            "eigenvalues": [self.directions.eigenvalue(i) for i in range(self.num_first)],
            "directions": self.table(),
        }

    def plot(self) -> "Picture":
        """The image, and the first eigenvectors of the geometry along its forward process."""
        from matplotlib.figure import Figure as Picture

        from sads.plots.style import show_image, show_vector, styled, title_of

        with styled():
            figure = Picture(figsize=(1.35 * COLUMNS + 3, 3.7), layout="constrained")
            halves: Any = figure.subfigures(1, 2, width_ratios=(2.1, COLUMNS))
            left, right = halves
            axes = left.subplots()
            show_image(axes, self.image)
            axes.set_title("input $x$", fontsize=10)
            cells = right.subplots(2, COLUMNS, squeeze=False).flat
            vectors = self.directions.avoided(self.num_first)
            for i, cell in enumerate(cells):
                if i >= len(vectors):
                    cell.set_axis_off()
                    continue
                show_vector(cell, vectors[i])
                value = self.directions.eigenvalue(i)
                title = f"$\\lambda_{{{i + 1}}}$ = {value:.3g} ± {format_error(value.error, '.1g')}"
                cell.set_title(title, fontsize=8)
            title = f"{title_of(self.geometry)}: eigenvectors along its forward process"
            right.suptitle(title, fontsize=9)
        return figure


@dataclass(frozen=True, eq=False)
class Adaptations:
    """Several images with a geometry each, and the geometry of the default probe."""

    each: Sequence[Adaptation]
    default: Geometry

    @cached_property
    def images(self) -> Tensor:
        return torch.stack([one.image for one in self.each])

    @cached_property
    def shares(self) -> Tensor:
        """Every image's share in the first eigenvectors of every geometry, (images, geometries)."""
        columns = [_shares(one.geometry, self.images) for one in self.each]
        return torch.stack(columns, dim=1)

    @property
    def others(self) -> Tensor:
        """The mean share of every image in the geometries of the other images, (images,)."""
        return (self.shares.sum(dim=1) - self.shares.diagonal()) / (len(self.each) - 1)

    @cached_property
    def default_shares(self) -> Estimates:
        return shares_in_first(self.default, self.images)

    def table(self) -> list[Adapted]:
        return [
            one.row(self.default_shares[i], float(self.others[i]))
            for i, one in enumerate(self.each)
        ]

    def claims(self) -> list[Claim]:
        own = self.shares.diagonal()
        return [
            judge_adaptation(own, self.default_shares.values, "the default probe"),
            judge_adaptation(own, self.others, "other images"),
            judge_harmonics(torch.stack([one.frequencies for one in self.each])),
        ]


def compute_adaptation(
    family: ScoreFamily,
    image: Tensor,
    name: str,
    num_networks: int = 2048,
    *,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> Adaptation:
    """Estimate the geometry with inputs from the forward process of an image (*shape)."""
    unit(image)  # refuses an image of no direction before any work is done
    geometry = estimate_geometry(
        family,
        num_networks,
        seed=seed,
        progress=progress,
        probe=probe("forward", images=image[None]),
        matrix_free=False,  # all directions are shown
    )
    return Adaptation(image=image, name=name, geometry=geometry)


def shares_in_first(geometry: Geometry, images: Tensor) -> Estimates:
    """Share of each image's energy in the first eigenvectors, (N,), with jackknife errors.

    Eigenvectors are found again with every batch of networks left out.
    """
    values = _shares(geometry, images)
    if geometry.exact:
        return Estimates(values, torch.zeros_like(values))
    used = geometry.counts.nonzero().flatten().tolist()
    if len(used) < MIN_BATCHES:
        return Estimates(values, torch.full_like(values, math.inf))
    parts = []
    for left_out in used:
        kept = [k for k in used if k != left_out]
        batches = Dense(geometry.factors[kept], geometry.counts[kept], geometry.lift)
        part = replace(geometry, moments=batches)
        parts.append(_shares(part, images))
    errors = torch.stack(parts).var(dim=0, correction=0).mul(len(used) - 1).sqrt()
    return Estimates(values, errors)


def _shares(geometry: Geometry, images: Tensor) -> Tensor:
    """Share of each image's energy in the first eigenvectors, (N,)."""
    first = torch.linalg.eigh(geometry.matrix()).eigenvectors[:, -NUM_FIRST:]  # (D, 12)
    rows = normalize(images.double().flatten(1))
    return (rows @ first).square().sum(dim=1)


def mean_frequencies(vectors: Tensor) -> Tensor:
    """Length of the DCT frequency, averaged over the energy of unit vectors (n, *shape), (n,)."""
    dct = basis("dct", tuple(vectors.shape[1:]))
    lengths = torch.tensor([element.position for element in dct.index]).double().norm(dim=1)
    return (vectors.flatten(1) @ dct.vectors.flatten(1).T).square() @ lengths


def judge_adaptation(own: Tensor, reference: Tensor, name: str) -> Claim:
    """The claim, from shares of each image in its own first eigenvectors and in others'."""
    difference = paired_difference(own, reference)
    return judge(
        f"eigenvectors adapt to the image: they hold more of it than those of {name}",
        f"share of its energy in the first {NUM_FIRST}, mean {float(own.mean()):.3g} against "
        f"{float(reference.mean()):.3g}; difference {difference} images",
        sign_flip_test(own - reference, "images"),
        difference.interval,
    )


def judge_harmonics(frequencies: Tensor) -> Claim:
    """The claim, from mean frequencies of the first eigenvectors for each image, (images, n)."""
    count = frequencies.shape[1]
    correlation = rank_correlation(range(count), frequencies)
    return judge(
        "frequency increases as the eigenvalue decreases",
        f"rank correlation of an eigenvector's number and its mean frequency, first {count}, "
        f"over {counted(len(frequencies), 'image')}: {correlation}",
        sign_flip_test(row_correlations(range(count), frequencies), "images"),
        correlation,
    )


def draw(context: Context) -> Outcome:
    num_networks, num_images = SIZES[context.scale]
    spec = FamilySpec("iddpm", SHAPE)
    family = spec.build()
    images = read_source("digits", SHAPE, context.sources)[0][:num_images]
    adaptations = Adaptations(
        each=[
            compute_adaptation(family, image, f"digit {i + 1}", num_networks, seed=1 + i)
            for i, image in enumerate(images)
        ],
        default=context.geometry(GeometrySpec(spec, num_networks)),
    )
    notes = ["the images are scikit-learn's digits, not the paper's; the first is shown"]
    picture = adaptations.each[0].plot()
    return Outcome({"fig9": picture}, adaptations.table(), adaptations.claims(), notes)


FIGURE = Figure("fig9", "Geometry along an image's forward process", draw)
