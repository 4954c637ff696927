"""What samples of digits show: how many hold no digit, and which digits the others are.

The paper says in words what goes wrong on badly aligned data: samples without a digit, and mode
collapse towards "1" (Section 3.3). Here these are two numbers.

**Without a digit.** The score of an image compares the nearest real image with the nearest plain
one (all pixels equal):

    score(x) = min_r |x - r| / |x - mean(x)|.

Real images are far better explained by their neighbours than by a plain image. Noise is explained
by neither (a score about 1). A blank image is *close* to thin digits, which is why a distance alone
would not do, but closer still to a plain one (a score far above 1). An image has no digit if its
score is above the 99 % quantile of the real images' own (each against all others), so that 1 % of
real images are lost: `held_out_without_digit` says how many it is of images that were not used. No
labels are needed. A copy of a training image counts as a digit; images that are there twice count
once.

**Which digit.** A support vector machine on 50 principal components, trained on the labelled real
images; its accuracy is measured on a fifth of them that it has not seen. Samples without a digit
have no class.

This is for images of one object on an even ground, as MNIST's. It is no judge of photographs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sads.arguments import as_tensor, check_seed
from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.estimates import Estimate, Estimates, share_estimate
from sads.samples import check_alike
from sads.scales import scale_of
from sads.seeds import user_stream

NOMINAL = 0.01  # real images that are taken to have no digit
HELD_OUT = 0.2
MIN_REAL = 100
MIN_DIFFERENT = 50  # of those that are not held out
COMPONENTS = 50
CHUNK = 1024  # images whose distances are held at a time


@dataclass(frozen=True, eq=False)
class Classification:
    """What samples show. Errors of shares are those of `share_estimate`.

    Without labels there are no classes: their tensors are empty, accuracy and entropy NaN.
    """

    num_samples: int
    without_digit: Estimate  # share of the samples
    held_out_without_digit: Estimate  # the same of held-out real images: about 1 %
    classes: tuple[int, ...]
    shares: Estimates  # (classes,) of the samples with a digit
    real_shares: Tensor  # (classes,) of the real images
    entropy: Estimate  # of the shares, in nats; log(classes) if they are equal
    accuracy: Estimate  # of the classifier, on held-out real images


@checked
def classify(
    samples: Tensor, real: Tensor, labels: Tensor | None = None, seed: int = 0
) -> Classification:
    """Samples (N, *shape) judged by real images (M, *shape) and, if known, their labels (M,).

    Args:
        labels: whole numbers; without them only the share without a digit is found.
        seed: of the split of the real images.
    """
    samples, real = as_tensor(samples, "samples"), as_tensor(real, "real")
    labels = None if labels is None else as_tensor(labels, "labels")
    check_seed(seed)
    _check(samples, real, labels)
    order = torch.randperm(len(real), generator=user_stream(seed))
    held_out, kept = order.tensor_split([round(HELD_OUT * len(real))])
    judge = DigitDetector.fit(real[kept])
    without, real_without = judge.without_digit(samples), judge.without_digit(real[held_out])
    nothing = torch.empty(0, dtype=torch.float64)
    unknown = Estimate(math.nan, math.nan)
    classes: tuple[int, ...] = ()
    shares, real_shares, entropy, accuracy = Estimates(nothing, nothing), nothing, unknown, unknown
    if labels is not None:
        classes = tuple(sorted(set(labels.tolist())))
        predict = _fit_classifier(real[kept], labels[kept])
        right = int((predict(real[held_out]) == labels[held_out]).sum())
        accuracy = share_estimate(right, len(held_out))
        counts = _count(predict(samples[~without]), classes)
        shares = _shares(counts)
        real_shares = _count(labels, classes) / len(labels)
        entropy = _entropy(shares.values, int(counts.sum()))
    return Classification(
        num_samples=len(samples),
        without_digit=share_estimate(int(without.sum()), len(samples)),
        held_out_without_digit=share_estimate(int(real_without.sum()), len(held_out)),
        classes=classes,
        shares=shares,
        real_shares=real_shares,
        entropy=entropy,
        accuracy=accuracy,
    )


@dataclass(frozen=True, eq=False)
class DigitDetector:
    """Real images, and the score that 1 % of them exceed."""

    real: Tensor  # (M, D) float32
    threshold: float
    scale: float = 1.0  # of the images, taken out of the real ones: see `scale_of`

    @classmethod
    def fit(cls, real: Tensor) -> "DigitDetector":
        scale = scale_of(real)
        rows = _rows(real, scale)
        different = rows.unique(dim=0)  # a copy would be the nearest image, at no distance
        if len(different) < len(rows):
            rows = different
        if len(rows) < MIN_DIFFERENT:
            raise InvalidArgumentError(
                f"only {len(rows)} of the real images are different, too few to judge samples by; "
                f"give at least {MIN_REAL}"
            )
        scores = _scores(rows, rows, itself=True)
        return cls(rows, float(np.quantile(scores.numpy(), 1 - NOMINAL)), scale)

    def without_digit(self, images: Tensor) -> Tensor:
        """(N,) of bool. Images with NaN or infinity, or whose squares are, have no digit."""
        rows = _rows(images, self.scale)
        scores = _scores(rows.nan_to_num(0, 0, 0), self.real)
        return ~(scores <= self.threshold) | ~rows.isfinite().all(dim=1)


def _rows(images: Tensor, scale: float) -> Tensor:
    rows = images.flatten(1)
    return (rows if scale == 1 else rows.double() / scale).float()


def _scores(rows: Tensor, real: Tensor, itself: bool = False) -> Tensor:
    """`min_r |x - r| / |x - mean(x)|` of every row, (N,).

    `itself` says that the rows are the real images: then none is compared with itself.
    """
    squares = real.square().sum(dim=1)
    parts = []
    for start in range(0, len(rows), CHUNK):
        x = rows[start : start + CHUNK]
        nearest = torch.addmm(squares, x, real.T, alpha=-2)  # |r|^2 - 2 x.r, (n, M)
        if itself:
            nearest[torch.arange(len(x)), torch.arange(start, start + len(x))] = math.inf
        distance = (nearest.amin(dim=1) + x.square().sum(dim=1)).clamp(min=0)
        plain = (x - x.mean(dim=1, keepdim=True)).square().sum(dim=1)
        parts.append((distance / plain.clamp(min=1e-12)).sqrt())
    return torch.cat(parts)


def _fit_classifier(images: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    from sklearn.decomposition import PCA  # slow to import
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    rows = images.flatten(1).numpy()
    model = make_pipeline(PCA(min(COMPONENTS, *rows.shape), random_state=0), SVC(C=10))
    model.fit(rows, labels.numpy())

    def predict(x: Tensor) -> Tensor:
        if not len(x):
            return torch.empty(0, dtype=torch.int64)
        return torch.from_numpy(model.predict(x.flatten(1).numpy()))

    return predict


def _count(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    return torch.tensor([int((labels == c).sum()) for c in classes], dtype=torch.float64)


def _shares(counts: Tensor) -> Estimates:
    """What share of all each count is."""
    total = int(counts.sum())
    pairs = [(s.value, s.error) for s in (share_estimate(int(c), total) for c in counts)]
    return Estimates(*torch.tensor(pairs, dtype=torch.float64).T)


def _entropy(shares: Tensor, total: int) -> Estimate:
    """`-sum p log p` and its first-order error."""
    if total == 0:
        return Estimate(math.nan, math.nan)
    surprise = -torch.where(shares > 0, shares, 1.0).log()
    entropy = float((shares * surprise).sum())
    variance = float((shares * surprise**2).sum()) - entropy**2
    return Estimate(entropy, math.sqrt(max(variance, 0.0) / total))


def _check(samples: Tensor, real: Tensor, labels: Tensor | None) -> None:
    if samples.ndim != 4 or not len(samples) or samples.shape[1:] != real.shape[1:]:
        raise InvalidArgumentError(
            f"samples of shape {tuple(samples.shape)} cannot be judged by real images of "
            f"{tuple(real.shape)}: give both as (N, channels, height, width) of one shape"
        )
    check_alike(samples, real)
    if len(real) < MIN_REAL:
        raise InvalidArgumentError(
            f"{len(real)} real images are too few to judge samples by; give at least {MIN_REAL}"
        )
    if not real.float().isfinite().all():
        raise InvalidArgumentError("the real images hold NaN or infinity; remove or mend those")
    if labels is None:
        return
    if labels.shape != (len(real),) or labels.is_floating_point():
        raise InvalidArgumentError(
            f"labels have shape {tuple(labels.shape)} and type {labels.dtype}, expected one whole "
            f"number for each of the {len(real)} real images"
        )
    if len(labels.unique()) < 2:
        raise InvalidArgumentError("all labels are equal; leave them out, or give several classes")
