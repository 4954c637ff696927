"""Predictors that are one formula in moments: of the data, `C = E[z z^T]`, and of the geometry."""

import torch
from torch import Tensor

from sads.geometry.estimate import estimate_geometry
from sads.predictors.prospect import Prospect
from sads.probes import probe

FORWARD_NETWORKS = 64  # of the geometry at noisy data


def aligned_energy(matrix: Tensor, moment: Tensor) -> float:
    """`tr(A C)` of symmetric matrices (D, D)."""
    return float((matrix * moment).sum())


def alpha(prospect: Prospect) -> float:
    """`tr(G C) = E[z^T G z]`: the paper's alignment (Equation 6)."""
    return aligned_energy(prospect.network.matrix, prospect.moment)


def centred_alpha(prospect: Prospect) -> float:
    """`tr(G (C - m m^T))` with `m = E[z]`: the alignment of data without their mean."""
    centred = prospect.moment - torch.outer(prospect.mean, prospect.mean)
    return aligned_energy(prospect.network.matrix, centred)


def squared_alpha(prospect: Prospect) -> float:
    """`tr(G^2 C) = E|G z|^2`: as alpha, with large eigenvalues counting for more."""
    matrix = prospect.network.matrix
    return aligned_energy(matrix @ matrix, prospect.moment)


def constant_energy(prospect: Prospect) -> float:
    """`1^T C 1 / D = E[(1^T z)^2] / D`: the energy of the data in the constant image.

    It knows nothing of the network.
    """
    return float(prospect.moment.sum()) / prospect.dimension


def forward_alpha(prospect: Prospect) -> float:
    """`tr(G_p C)` with `G_p = E_t E_{x ~ p_t} E_theta[F(x, t) F(x, t)^T]`.

    The alignment with the geometry where the network will be used, at noisy data
    `x = sqrt(abar_t) z + sigma_t eps`, instead of at 0.
    """
    network = prospect.network
    geometry = estimate_geometry(
        network.family,
        FORWARD_NETWORKS,
        probe=probe("forward", images=prospect.data),
        seed=network.seed,
    )
    return aligned_energy(geometry.matrix(), prospect.moment)
