"""The paper's theorems, lemmas and propositions as functions.

`lemmas`, `theorem1` and `theorem2` are Lemmas 1 and 2 and Theorems 1 and 2 (of data, with errors:
`sads.alignment`); `descent` says which rotation a linear network learns fastest behind;
`propositions` tests Propositions 1 to 3 on a geometry, with `proposition_examples` that keep and
break their assumptions; `markov` is Equation 4 and `landscape` has the networks of Figure 5;
`impulse` is behind Figure 3; and `predictions` says before training which vectors of Figure 2's
bases are hard. Figures 3, 4, 5 and 9 themselves are in `sads.experiments.figures`.
"""

from sads.theory.descent import GaussianDescent
from sads.theory.impulse import (
    ImpulseResponse,
    asymmetry,
    impulse_response,
    symmetric_family,
    symmetrise,
)
from sads.theory.landscape import Landscape, landscape_family
from sads.theory.lemmas import expected_quadratic, optimal_score
from sads.theory.markov import MarkovBound, markov_bound
from sads.theory.predictions import Prediction, predict
from sads.theory.proposition_examples import Example, examples
from sads.theory.propositions import Form, Structure, structure, transformer_factor
from sads.theory.theorem1 import LinearDSM, Simulation, conditioning, rates
from sads.theory.theorem2 import RandomRotations, extremes, try_rotations

__all__ = [
    "Example",
    "Form",
    "GaussianDescent",
    "ImpulseResponse",
    "Landscape",
    "LinearDSM",
    "MarkovBound",
    "Prediction",
    "RandomRotations",
    "Simulation",
    "Structure",
    "asymmetry",
    "conditioning",
    "examples",
    "expected_quadratic",
    "extremes",
    "impulse_response",
    "landscape_family",
    "markov_bound",
    "optimal_score",
    "predict",
    "rates",
    "structure",
    "symmetric_family",
    "symmetrise",
    "transformer_factor",
    "try_rotations",
]
