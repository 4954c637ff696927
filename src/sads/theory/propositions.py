"""Propositions 1 to 3 as tests: which closed form does a geometry obey?

    1  mlp          a I + b 11^T                                 Equation 7
    2  cnn          I_C (x) A + (11^T)_C (x) B                   Equation 8
    3  transformer  Q ( A (x) I_L ) Q^T, Q the unpatchifying     Equation 9

Each form is a linear space of matrices that is the fixed space of a group of permutations (and
signs), so its least-squares fit is an average over entries, and the residual `R = G - fit` is
linear in `G`. Let `R_k` be the residual of batch k, weighted by its share of the networks. If the
form holds, the `R_k` are independent with mean 0, so that

    z = sum_{k != l} <R_k, R_l> / sqrt( 2 sum_{k != l} <R_k, R_l>^2 )

has mean 0 and variance 1: the size of the residual in standard errors, with the noise's own
energy (k = l) left out. (It cannot exceed sqrt(K (K - 1) / 2), 10.95 for 16 batches.) As z need
not be normal, the decision rests on all sign changes of the batches, under which
`|sum_k s_k R_k|^2` keeps its law if the batches' errors are symmetric.

The test means something only for estimates that do not impose the form. `"outer-product"`
estimates impose nothing; where the output layer was integrated out, its form was put in.

*The bias of a transformer.* In the proof of Proposition 3, Equation 28 adds `sigma_b^2` to every
block `(i, j)` and Equation 29 to the diagonal ones only. Equation 28 is right for a layer whose
bias vector is shared by all tokens, as in every transformer we know: then
`A = s2_w E[h h^T] + s2_b 11^T`. Equation 29 is right for one bias per token: `+ s2_b I`. Both are
of the form (9) with at most T distinct eigenvalues. But `I` moves all eigenvalues alike and changes
no direction, while `11^T` adds `T s2_b` to the patches that all tokens share, and so makes
those more avoided: the SADs change.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sads.arguments import check_count, check_number, check_type
from sads.checked import checked
from sads.environment import check_memory, gigabytes, used_memory
from sads.errors import InvalidArgumentError
from sads.estimates import batch_mean
from sads.geometry.lift import Lift
from sads.geometry.result import Geometry
from sads.rotations.alignment import check_defined
from sads.shapes import format_shape
from sads.theory.lemmas import check_variance

LEVEL = 1e-3  # a form that holds is rejected this often
ROUNDING = 1e-9  # relative residual of an exact geometry that counts as 0
MIN_BATCHES = 12  # so that 2^(K - 1) sign patterns reach below the level

Fit = Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]  # (D, D) to the fit and its factors


@dataclass(frozen=True, eq=False)
class Form:
    """A closed form, fitted to a geometry and tested.

    `status`: `"accepted"` or `"rejected"` by the test; `"imposed"` if the estimator put the form
    in; `"vacuous"` if every symmetric matrix has it (one channel, or one value a token).
    """

    name: str  # "mlp", "cnn" or "transformer"
    proposition: int
    formula: str
    num_parameters: int
    status: str
    residual: float  # size of what the form leaves out, relative to the geometry, noise removed
    residual_errors: float  # the same in standard errors: z above
    p_value: float
    factors: dict[str, Tensor]
    factor_errors: dict[str, Tensor]

    @property
    def holds(self) -> bool:
        return self.status != "rejected"


@dataclass(frozen=True, eq=False)
class Structure:
    """The forms that were tried on a geometry, from the most to the least specific."""

    forms: tuple[Form, ...]

    @property
    def form(self) -> Form | None:
        """The form with the fewest parameters that holds and says something, if any."""
        holding = [f for f in self.forms if f.holds and f.status != "vacuous"]
        return min(holding, key=lambda f: f.num_parameters, default=None)

    def __getitem__(self, name: str) -> Form:
        for form in self.forms:
            if form.name == name:
                return form
        names = ", ".join(f.name for f in self.forms)
        raise InvalidArgumentError(
            f"no form {name!r} was tried, only {names}; for 'transformer' give patch_size=..."
        )


@checked
def structure(
    geometry: Geometry, *, patch_size: int | None = None, level: float = LEVEL
) -> Structure:
    """Which of the closed forms of Propositions 1 to 3 a geometry obeys, and its factors.

    Args:
        patch_size: side of the patches that are tokens, for the transformer's form; that of the
            family if it has one; without it that form is not tried.
        level: how often a form that holds may be rejected.
    """
    check_type(geometry, Geometry, "the geometry", "see sads.estimate_geometry")
    check_number("level", level, 0, 1)
    if patch_size is not None:
        check_count("patch_size", patch_size)
    check_defined(geometry)
    if not geometry.exact and int((geometry.counts > 0).sum()) < MIN_BATCHES:
        raise InvalidArgumentError(
            f"a test needs {MIN_BATCHES} independent batches of networks, this geometry has "
            f"{int((geometry.counts > 0).sum())}: estimate it from 16 networks or more"
        )
    if patch_size is None:
        patch_size = _own_patch_size(geometry)
    dimension, channels = geometry.dimension, geometry.shape[0]
    size = dimension // channels
    needed = 8 * dimension**2 * (len(geometry.factors) + 5)
    if needed > 1 << 28:
        what = f"a test of every batch, {dimension:,} x {dimension:,}, needs {gigabytes(needed)}"
        check_memory(used_memory() + needed, what, "choose a smaller shape")
    forms = [
        _test(geometry, level, "mlp", 1, "a I + b 11^T", min(2, dimension), _fit_mlp),
        _test(
            geometry,
            level,
            "cnn",
            2,
            "I (x) A + 11^T (x) B",
            size * (size + 1) if channels > 1 else size * (size + 1) // 2,
            lambda g: _fit_cnn(g, channels),
        ),
    ]
    if patch_size is not None:
        tokens = token_lift(geometry.shape, patch_size)
        forms.append(
            _test(
                geometry,
                level,
                "transformer",
                3,
                "Q (A (x) I) Q^T",
                tokens.size * (tokens.size + 1) // 2,
                lambda g: _fit_transformer(g, tokens),
            )
        )
    return Structure(tuple(sorted(forms, key=lambda f: f.num_parameters)))


@checked
def transformer_factor(
    gram: Tensor, weight_variance: float, bias_variance: float, *, shared_bias: bool = True
) -> Tensor:
    """The factor `A` of Proposition 3 from `E[h h^T]` over tokens, (T, T).

    `shared_bias`: one bias vector for all tokens (what transformers have) gives
    `s2_w E[h h^T] + s2_b 11^T`; one bias vector per token gives `+ s2_b I`.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not gram.isfinite().all():
        raise InvalidArgumentError(
            f"E[h h^T] is a finite matrix (T, T), got a tensor of shape {tuple(gram.shape)}"
        )
    check_variance(weight_variance)
    check_variance(bias_variance)
    offset = torch.ones_like(gram) if shared_bias else torch.eye(len(gram), dtype=gram.dtype)
    return weight_variance * gram + bias_variance * offset


def _own_patch_size(geometry: Geometry) -> int | None:
    """The side of a family's patches, if it has an option of that name that cuts its images up."""
    size = geometry.provenance.family.get("options", {}).get("patch_size")
    fits = type(size) is int and size > 0 and not any(n % size for n in geometry.shape[1:])
    return size if fits else None


def token_lift(shape: tuple[int, ...], patch_size: int) -> Lift:
    """The coordinates of images cut into square patches: a group per value in a patch."""
    channels, *sizes = shape
    if not isinstance(patch_size, int) or patch_size < 1 or any(n % patch_size for n in sizes):
        raise InvalidArgumentError(
            f"patch_size must divide every size, got patch_size={patch_size} "
            f"for {format_shape(sizes)}: change one of them"
        )
    grid = itertools.chain.from_iterable((n // patch_size, patch_size) for n in sizes)
    numbers = torch.arange(math.prod(shape)).reshape(channels, *grid)
    axes = range(1, 2 * len(sizes) + 1)
    order = numbers.permute(0, *axes[1::2], *axes[0::2]).flatten()  # values first, then tokens
    num_tokens = math.prod(n // patch_size for n in sizes)
    return Lift(len(order) // num_tokens, num_tokens, order)


def _fit_mlp(g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    size = len(g)
    diagonal = g.diagonal().mean()
    b = (g.sum() - g.trace()) / max(1, size * (size - 1))
    fit = torch.full_like(g, float(b)).fill_diagonal_(float(diagonal))
    return fit, {"a": diagonal - b, "b": b}


def _fit_cnn(g: Tensor, channels: int) -> tuple[Tensor, dict[str, Tensor]]:
    size = len(g) // channels
    blocks = g.reshape(channels, size, channels, size).transpose(1, 2)  # (C, C, S, S)
    same = torch.eye(channels, dtype=torch.bool)
    inside = blocks[same].mean(dim=0)
    if channels == 1:
        return g, {"A": g, "B": torch.zeros_like(g)}
    across = blocks[~same].mean(dim=0)  # symmetric: block (m, n) is the transpose of (n, m)
    fit = across.expand(channels, channels, size, size).clone()
    fit[same] = inside
    return fit.transpose(1, 2).reshape(g.shape), {"A": inside - across, "B": across}


def _fit_transformer(g: Tensor, tokens: Lift) -> tuple[Tensor, dict[str, Tensor]]:
    blocks = [g[c[:, None], c] for c in tokens.order.reshape(tokens.groups, tokens.size)]
    factor = torch.stack(blocks).mean(dim=0)
    return tokens.dense(factor), {"A": factor}


def _test(
    geometry: Geometry,
    level: float,
    name: str,
    proposition: int,
    formula: str,
    num_parameters: int,
    fit: Fit,
) -> Form:
    """Fit a form to every batch and compare the residuals with each other."""
    shares = torch.ones(1) if geometry.exact else geometry.counts / geometry.num_networks
    residuals = torch.empty(len(shares), geometry.dimension**2, dtype=torch.float64)
    factors = []
    for row, factor, share in zip(residuals, geometry.factors, shares.double(), strict=True):
        matrix = geometry.lift.dense(factor)
        fitted, parts = fit(matrix)
        row.copy_(share * (matrix - fitted).flatten())
        factors.append(parts)
    gram = residuals @ residuals.T  # (K, K)
    scale = float(geometry.factor().norm()) * math.sqrt(geometry.lift.groups)
    nothing = float(gram.diagonal().sum().sqrt()) <= ROUNDING * scale  # not even noise is left
    if geometry.exact:
        residual = float(gram.sum().clamp(min=0).sqrt()) / scale
        z, p = (0.0, 1.0) if nothing else (math.inf, 0.0)
    else:
        off = gram - gram.diagonal().diag()
        residual = math.sqrt(max(0.0, float(off.sum()))) / scale
        z = 0.0 if nothing else float(off.sum() / (math.sqrt(2) * off.norm()))
        p = 1.0 if nothing else _sign_test(gram)
    vacuous = 2 * num_parameters >= geometry.dimension * (geometry.dimension + 1)
    status = (
        "vacuous"
        if vacuous
        else "imposed"
        if nothing and not geometry.exact
        else "accepted"
        if p >= level
        else "rejected"
    )
    stacks = {key: torch.stack([parts[key] for parts in factors]) for key in factors[0]}
    return Form(
        name=name,
        proposition=proposition,
        formula=formula,
        num_parameters=num_parameters,
        status=status,
        residual=residual,
        residual_errors=z,
        p_value=p,
        factors={key: batch_mean(stack, geometry.counts) for key, stack in stacks.items()},
        factor_errors={key: geometry.batch_errors(stack) for key, stack in stacks.items()},
    )


def _sign_test(gram: Tensor) -> float:
    """Share of all sign patterns `s` (up to a common sign) with `s^T M s` at least `1^T M 1`."""
    signs = _sign_patterns(len(gram))
    sizes = ((signs @ gram) * signs).sum(dim=1)
    return float((sizes >= sizes[0] * (1 - 1e-12)).double().mean())


@functools.lru_cache(maxsize=1)  # every form of every geometry is tested with the same
def _sign_patterns(count: int) -> Tensor:
    """All patterns of `count` signs up to a common one, or many at random; the first has no -1."""
    patterns = torch.arange(2 ** min(count - 1, 15))
    if count - 1 <= 15:
        return 1 - 2 * ((patterns[:, None] >> torch.arange(count)) & 1).double()
    generator = torch.Generator().manual_seed(0)  # too many to list
    signs = 1 - 2 * torch.randint(2, (len(patterns), count), generator=generator).double()
    signs[0] = 1
    return signs
