"""The predictors by name, ours at the end of this file and yours from anywhere.

sads.register_predictor("mine", lambda prospect: Prediction.same(...), "tr(...)")
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sads.checked import checked
from sads.errors import InvalidArgumentError
from sads.predictors import moments
from sads.predictors.gaussian import LinearModel
from sads.predictors.prospect import Prospect

OUTCOMES = ("loss", "distance")


@dataclass(frozen=True)
class Prediction:
    """What a predictor says of the two outcomes; larger means worse."""

    loss: float  # held-out denoising loss
    distance: float  # of samples from data

    @classmethod
    def same(cls, value: float) -> "Prediction":
        """The prediction of a predictor that does not tell the two outcomes apart."""
        return cls(value, value)

    def of(self, outcome: str) -> float:
        return self.loss if outcome == "loss" else self.distance


@dataclass(frozen=True)
class Predictor:
    """A formula with a name."""

    name: str
    formula: str
    predict: Callable[[Prospect], Prediction]
    per_practice: bool = False  # whether it knows how the network is trained and sampled


PREDICTORS: dict[str, Predictor] = {}


@checked
def register_predictor(
    name: str,
    predict: Callable[[Prospect], Prediction | float],
    formula: str = "",
    *,
    per_practice: bool = False,
) -> None:
    """Make a predictor of your own known by name, to `sads.rank` and to the league.

    Args:
        predict: of a `Prospect`, which has the network with its geometry, the data as the network
            will see them with their moments, and the plan. Returns a number, larger for worse, or
            a `Prediction` with one for each outcome.
        formula: in words or symbols, for those who read a table.
        per_practice: whether the number depends on the plan, and not on network and data alone.
    """
    if not isinstance(name, str) or not name or not callable(predict):
        raise InvalidArgumentError(
            "a predictor has a name such as 'mine' and a function of a prospect, got "
            f"{name!r} and {type(predict).__name__}"
        )
    if name in PREDICTORS:
        raise InvalidArgumentError(f"there is a predictor {name!r} already; choose another name")

    def both(prospect: Prospect) -> Prediction:
        told = predict(prospect)
        return told if isinstance(told, Prediction) else Prediction.same(float(told))

    PREDICTORS[name] = Predictor(name, formula, both, per_practice)


def find_predictors(names: Iterable[str] | None = None) -> list[Predictor]:
    """The predictors of these names, or all of them; one clear line if there is none of a name."""
    if names is None:
        return list(PREDICTORS.values())
    for name in (given := list(names)):
        if name not in PREDICTORS:
            raise InvalidArgumentError(
                f"unknown predictor {name!r}; choose from {', '.join(PREDICTORS)}"
            )
    return [PREDICTORS[name] for name in dict.fromkeys(given)]


def _kernel(prospect: Prospect) -> Prediction:
    model = LinearModel.of(prospect)
    return Prediction(loss=model.loss(), distance=model.distance())


register_predictor("alpha", moments.alpha, "tr(G C)")
register_predictor("centred-alpha", moments.centred_alpha, "tr(G Cov)")
register_predictor("squared-alpha", moments.squared_alpha, "tr(G² C)")
register_predictor("constant-energy", moments.constant_energy, "E[(1ᵀz)²] / D")
register_predictor("forward-alpha", moments.forward_alpha, "tr(Gₚ C), G at x ~ pₜ")
register_predictor("kernel", _kernel, "uᵢᵀ K uᵢ and the sampler's recursion", per_practice=True)
