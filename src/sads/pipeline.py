"""Rotate, train, sample, undo, measure: what commands and experiments share.

Training is `sads.train` on rotated data; the rest is here, so that a command and a cell of an
experiment measure the same thing in the same way.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sads.data.spec import DataSet, DataSpec, fresh_seed, read_data
from sads.diffusion.clipping import Clip
from sads.diffusion.model import ScoreModel
from sads.diffusion.sample import Samples, draw
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
    max_sliced_wasserstein,
    sliced_wasserstein,
    sliced_wasserstein_to_gaussian,
)
from sads.rotations.rotation import Rotation

Progress = Callable[[int, int, float], None]


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


def draw_samples(
    model: ScoreModel,
    num_samples: int,
    rotation: Rotation | None = None,
    *,
    steps: int,
    sampler: str,
    seed: int,
    clip: Clip | None = None,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Samples:
    """Samples of a model in the space of the data: what its rotation did is undone."""
    return draw(
        model,
        num_samples,
        steps=steps,
        sampler=sampler,
        seed=seed,
        clip=clip,
        rotation=rotation,
        batch_size=batch_size,
        device=device,
        checkpoint=checkpoint,
        progress=progress,
    )


def evaluate(
    y: Tensor,
    test: Tensor,
    *,
    num_projections: int | None = None,
    seed: int = 0,
    vector: Tensor | None = None,
    fresh: Tensor | None = None,
    train: Tensor | None = None,
    baselines: Baselines | None = None,
    bounded: bool = False,
    ascend: bool = False,
    real_digits: Tensor | None = None,
    labels: Tensor | None = None,
) -> Evaluation:
    """Measure samples `y` (N, *shape) against data `test` (M, *shape) that no model has seen.

    Args:
        num_projections: directions of the distances; 64 D if not given.
        seed: of the directions, which all distances share.
        vector: of the law `N(0, D v v^T)` of the data, if that is their law.
        fresh: more data of the same law, which stand for a perfect model.
        train: data that the model was trained on, whose moments the baselines have; without them
            `fresh` stands in, or the test data itself.
        baselines: of `reference`, if they are known already.
        bounded: whether the data have a range, as images do; then values beyond it are counted.
        ascend: also seek the largest distance.
        real_digits: images of digits (and their labels) by which samples are judged.
    """
    known = fresh if train is None else train
    if baselines is None:
        baselines = reference(
            test,
            known,
            num_samples=len(y),
            num_projections=num_projections,
            seed=seed,
            vector=vector,
            real_digits=real_digits,
        )
    whole = y.flatten(1).isfinite().all(dim=1)
    finite_share = float(whole.double().mean())
    data_energy = energy_of(test)
    if not whole.any():
        return Evaluation(finite_share, None, baselines=baselines, data_energy=data_energy)
    kept = y[whole]

    def to_test(samples: Tensor) -> Distance:
        measured = sliced_wasserstein(test, samples, num_projections=num_projections, seed=seed)
        return Distance.of(measured)

    closed_form = ascent = None
    if vector is not None:
        closed_form = Distance.of(
            sliced_wasserstein_to_gaussian(
                kept, vector=vector, num_projections=num_projections, seed=seed
            )
        )
    if ascend:
        found = max_sliced_wasserstein(test, kept, num_projections=num_projections, seed=seed)
        ascent = found.msw2
    return Evaluation(
        finite_share=finite_share,
        distance=to_test(kept),
        fresh_data=None if fresh is None else to_test(fresh),
        closed_form=closed_form,
        ascent_msw2=ascent,
        digits=None if real_digits is None else judge_digits(y, real_digits, labels),
        baselines=baselines,
        energy=energy_of(kept),
        data_energy=data_energy,
        out_of_range=share_out_of_range(kept, test, known) if bounded else None,
        along=None if vector is None else along_vector(test, kept, vector),
    )


def reference(
    test: Tensor,
    train: Tensor | None,
    *,
    num_samples: int,
    num_projections: int | None = None,
    seed: int = 0,
    vector: Tensor | None = None,
    real_digits: Tensor | None = None,
) -> Baselines:
    """What every model of the same data is compared with: it does not depend on any model."""
    found = measure_baselines(
        test,
        train,
        num_samples=num_samples,
        num_projections=num_projections,
        seed=seed,
        vector=vector,
    )
    if real_digits is None:
        return found
    drawn = gaussian_like(real_digits, num_samples, seed)
    return replace(found, without_digit=classify(drawn, real_digits).without_digit)


def share_out_of_range(y: Tensor, *data: Tensor | None) -> float:
    """The share of values that lie beyond those of the data, by more than half a grey level."""
    known = [x for x in data if x is not None]
    low, high = min(float(x.min()) for x in known), max(float(x.max()) for x in known)
    slack = (high - low) / 255 / 2
    return float(((y < low - slack) | (y > high + slack)).double().mean())


def draw_fresh(data: DataSpec | str, shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Data of the law of a synthetic data set that neither training nor test has seen."""
    return read_data(data, shape, count, fresh_seed(fresh_seed(seed))).samples


def judge_digits(y: Tensor, real: Tensor, labels: Tensor | None) -> DigitShares:
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
