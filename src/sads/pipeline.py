"""Rotate, train, sample, undo, measure: what commands and experiments share.

Data are rotated here, models trained by `sads.train` and sampled by `sads.sample`, which undoes
the rotation. Samples are measured here, so that a command and a cell of an experiment measure the
same thing in the same way.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sads.checked import checked
from sads.data.spec import DataSet, DataSpec, fresh_seed, read_data
from sads.diffusion.anatomy import DenoisingError, EnergyParts
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate
from sads.metrics.baselines import (
    Baselines,
    Distance,
    State,
    along_vector,
    energy_of,
    gaussian_like,
    judge_state,
    measure_baselines,
)
from sads.metrics.digits import classify
from sads.metrics.sliced_wasserstein import (
    LARGEST_DOUBLE,
    max_sliced_wasserstein,
    sliced_wasserstein,
    sliced_wasserstein_to_gaussian,
)
from sads.rotations.rotation import Rotation


@dataclass(frozen=True)
class DigitShares:
    """What samples of digits show: see `sads.metrics.digits`."""

    without_digit: Estimate
    without_digit_of_real: Estimate  # the same of real images that were held out
    classes: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()  # of each class, among samples with a digit
    entropy: Estimate | None = None
    accuracy: Estimate | None = None  # of the classifier, on held-out real images

    def __post_init__(self) -> None:
        if len(self.classes) != len(self.shares):
            raise InvalidArgumentError(
                f"{len(self.classes)} classes have {len(self.shares)} shares, expected one each"
            )

    def share_of(self, label: int) -> float:
        """The share of one class; NaN if it is not among them."""
        shares = dict(zip(self.classes, self.shares, strict=True))
        return shares.get(label, math.nan)


@dataclass(frozen=True)
class Evaluation:
    """How good samples are. Samples that are not finite are counted and left out."""

    finite_share: float
    distance: Distance | None  # None if no sample is finite
    fresh_data: Distance | None = None  # what a perfect model would get
    closed_form: Distance | None = None  # to the law itself, where it is known
    ascent_msw2: float | None = None  # the largest W2 that ascent found
    digits: DigitShares | None = None
    baselines: Baselines | None = None  # None in records that are older than they
    energy: float | None = None  # E|y|^2 / D of the finite samples
    data_energy: float | None = None
    out_of_range: float | None = None  # share of values beyond the data's; None if synthetic
    along: float | None = None  # W2 along the vector of rank-one data
    denoising: DenoisingError | None = None  # of the model, on held-out data
    energies: EnergyParts | None = None  # of the finite samples, along and off the data

    @property
    def state(self) -> State | None:
        """Whether the model is better than a constant; None if no baselines say so."""
        if self.baselines is None:
            return None
        return judge_state(
            self.distance,
            self.baselines,
            finite_share=self.finite_share,
            energy=self.energy,
            data_energy=self.data_energy,
        )

    @property
    def sw2(self) -> float:
        return math.nan if self.distance is None else self.distance.sw2.value

    @property
    def msw2(self) -> float:
        return math.nan if self.distance is None else self.distance.msw2


def rotate(data: DataSet, rotation: Rotation | None) -> DataSet:
    """The data as a network is to see them, rotated in place."""
    if rotation is None:
        return data
    x = data.samples.contiguous()
    statement = f"{data.statement}; rotated ({rotation.kind}), alpha {rotation.alpha.value:.4g}"
    return replace(data, samples=rotation.apply(x, out=x), statement=statement)


@checked
@dataclass(frozen=True, eq=False)
class Reference:
    """What samples are measured against, and how: it does not depend on any model.

    Args:
        test: data (M, *shape) that no model has seen.
        train: data that the model was trained on, whose moments the baselines have; without them
            `fresh` stands in, or the test data itself.
        fresh: more data of the same law, which stand for a perfect model.
        num_projections: directions of the distances; 64 D if not given.
        seed: of the directions, which all distances share.
        vector: of the law `N(0, D v v^T)` of the data, if that is their law.
        bounded: whether the data have a range, as images do; then values beyond it are counted.
        real_digits: images of digits (and their labels) by which samples are judged.
    """

    test: Tensor
    train: Tensor | None = None
    fresh: Tensor | None = None
    num_projections: int | None = None
    seed: int = 0
    vector: Tensor | None = None
    bounded: bool = False
    real_digits: Tensor | None = None
    labels: Tensor | None = None

    @property
    def known(self) -> Tensor | None:
        """Data of the same law that are not in `test`."""
        return self.fresh if self.train is None else self.train

    def distance(self, samples: Tensor) -> Distance:
        """How far samples (N, *shape) are from the test data."""
        return Distance.of(sliced_wasserstein(self.test, samples, **self._directions))

    def baselines(self, num_samples: int) -> Baselines:
        """What every model of these data is compared with, if so many samples of it are drawn."""
        found = measure_baselines(
            self.test, self.known, num_samples=num_samples, vector=self.vector, **self._directions
        )
        if self.real_digits is None:
            return found
        drawn = gaussian_like(self.real_digits, num_samples, self.seed)
        judged = classify(drawn, self.real_digits)
        return replace(found, without_digit=judged.without_digit)

    def evaluate(
        self, y: Tensor, baselines: Baselines | None = None, *, ascend: bool = False
    ) -> Evaluation:
        """Measure samples `y` (N, *shape).

        Args:
            baselines: for as many samples, if they are known already.
            ascend: also seek the largest distance.
        """
        whole = (y.abs() < LARGEST_DOUBLE).flatten(1).all(dim=1)  # not if it is NaN
        found = Evaluation(
            finite_share=float(whole.double().mean()),
            distance=None,
            baselines=self.baselines(len(y)) if baselines is None else baselines,
            data_energy=energy_of(self.test),
        )
        if not whole.any():
            return found
        kept = y[whole]
        if self.vector is not None:
            law = sliced_wasserstein_to_gaussian(kept, vector=self.vector, **self._directions)
            found = replace(
                found,
                closed_form=Distance.of(law),
                along=along_vector(self.test, kept, self.vector),
            )
        if ascend:
            largest = max_sliced_wasserstein(self.test, kept, **self._directions)
            found = replace(found, ascent_msw2=largest.msw2)
        if self.real_digits is not None:
            found = replace(found, digits=share_digits(y, self.real_digits, self.labels))
        if self.bounded:
            found = replace(found, out_of_range=share_out_of_range(kept, self.test, self.known))
        return replace(
            found,
            distance=self.distance(kept),
            fresh_data=None if self.fresh is None else self.distance(self.fresh),
            energy=energy_of(kept),
        )

    @property
    def _directions(self) -> dict[str, Any]:
        return {"num_projections": self.num_projections, "seed": self.seed}


def share_out_of_range(y: Tensor, *data: Tensor | None) -> float:
    """The share of values that lie beyond those of the data, by more than half a grey level."""
    known = [x for x in data if x is not None]
    low, high = min(float(x.min()) for x in known), max(float(x.max()) for x in known)
    slack = (high - low) / 255 / 2
    return float(((y < low - slack) | (y > high + slack)).double().mean())


def draw_fresh(data: DataSpec | str, shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Data of the law of a synthetic data set that neither training nor test has seen."""
    return read_data(data, shape, count, fresh_seed(fresh_seed(seed))).samples


def share_digits(y: Tensor, real: Tensor, labels: Tensor | None) -> DigitShares:
    """How many samples hold no digit, and which digits the others are."""
    judged = classify(y, real, labels)
    return DigitShares(
        without_digit=judged.without_digit,
        without_digit_of_real=judged.held_out_without_digit,
        classes=judged.classes,
        shares=tuple(judged.shares.values.tolist()),
        entropy=judged.entropy if judged.classes else None,
        accuracy=judged.accuracy if judged.classes else None,
    )
