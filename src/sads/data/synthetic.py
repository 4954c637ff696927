"""Samples with a known law: Gaussians along one direction, spheres in the span of a few."""

import math

import numpy as np
import torch
from torch import Tensor

from sads.arguments import as_tensor, check_count, check_seed
from sads.checked import checked
from sads.environment import check_samples
from sads.errors import InvalidArgumentError
from sads.scales import moderate_rows


@checked
def rank_one(vector: Tensor, num_samples: int, seed: int = 0) -> Tensor:
    """Draw from `N(0, D v v^T)`: `x = sqrt(D) g v` with `g ~ N(0, 1)`, as in Section 3.

    The factor `D` gives every direction the energy of white noise, `E|x|^2 = D`.

    Args:
        vector: the direction, of any shape and length; it is normalised.
        num_samples: how many to draw.
        seed: of the draw.

    Returns:
        (num_samples, *vector.shape) float32.

    >>> rank_one(torch.ones(1, 4, 4), num_samples=3, seed=1).shape
    torch.Size([3, 1, 4, 4])
    """
    vector = as_tensor(vector, "the vector", floating=True)
    _check_directions(vector[None], num_samples, seed)
    direction = moderate_rows(vector.double().reshape(1, -1)).reshape(vector.shape)
    direction = direction / direction.norm()
    size = np.random.default_rng(seed).standard_normal(num_samples)
    coordinate = math.sqrt(vector.numel()) * torch.from_numpy(size)
    return torch.tensordot(coordinate, direction.cpu(), dims=0).float()


@checked
def sphere(vectors: Tensor, num_samples: int, seed: int = 0) -> Tensor:
    """Draw uniformly from the sphere of radius `sqrt(D)` in the span of the given directions.

    `x = sqrt(D) Q g / |g|` with `g ~ N(0, I_k)` and orthonormal `Q`: the law of `g` does not
    change under rotations of the span, so neither does that of `x`, which is then uniform. The
    sphere depends on the span only, which two sets of directions may share. Used in Figure 1.

    Args:
        vectors: (k, *shape), linearly independent; they are orthonormalised.
        num_samples: how many to draw.
        seed: of the draw.

    Returns:
        (num_samples, *shape) float32.

    >>> sphere(torch.eye(16)[:3].reshape(3, 1, 4, 4), num_samples=1).square().sum().item()
    16.0
    """
    vectors = as_tensor(vectors, "vectors", floating=True)
    _check_directions(vectors, num_samples, seed)
    flat = moderate_rows(vectors.double().flatten(1).cpu())
    rows = flat / flat.norm(dim=1, keepdim=True)
    if int(torch.linalg.matrix_rank(rows, rtol=1e-8)) < len(rows):
        raise InvalidArgumentError(
            f"the {len(rows)} directions of a sphere must be linearly independent: "
            "drop those that the others span"
        )
    orthonormal = torch.linalg.qr(rows.T).Q  # (D, k)
    gaussian = np.random.default_rng(seed).standard_normal((num_samples, len(rows)))
    points = torch.from_numpy(gaussian / np.linalg.norm(gaussian, axis=1, keepdims=True))
    samples = math.sqrt(flat.shape[1]) * points @ orthonormal.T  # (N, D)
    return samples.reshape(num_samples, *vectors.shape[1:]).float()


def _check_directions(vectors: Tensor, num_samples: int, seed: int) -> None:
    check_count("num_samples", num_samples)
    check_seed(seed)
    if vectors.ndim < 2 or vectors.numel() == 0:
        raise InvalidArgumentError(
            f"expected directions of shape (number, *shape), got {tuple(vectors.shape)}"
        )
    lengths = moderate_rows(vectors.double().flatten(1)).norm(dim=1)
    if not bool(lengths.isfinite().all() and (lengths > 0).all()):
        raise InvalidArgumentError(
            "a direction must be finite and not zero, got one of length "
            f"{next(float(n) for n in lengths if not (n.isfinite() and n > 0)):g}"
        )
    check_samples(num_samples, vectors[0].numel())
