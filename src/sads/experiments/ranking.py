"""Architectures, rotations and the Gaussian skip for somebody's data, as far as the league knows.

The predictor that the league chose for an outcome orders the candidates, if it was right on data
that it was not chosen on; how often it was is said beside it. If it was not, there is no order, and
what the predictors say are facts about the networks and the data, nothing more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from sads.arguments import as_tensor
from sads.checked import checked
from sads.errors import InvalidArgumentError, counted
from sads.experiments.standings import (
    COMMON,
    NAMES,
    PAPER,
    PRACTICES,
    SKIP,
    League,
    Standing,
    read_league,
)
from sads.families import ScoreFamily, as_family
from sads.geometry.estimate import estimate_geometry
from sads.predictors.prospect import Plan, Prospect, Untrained
from sads.predictors.registry import OUTCOMES, Prediction, find_predictors
from sads.rotations.alignment import pair
from sads.rotations.kinds import Kind
from sads.shapes import format_shape
from sads.tables import distinct

WAYS = {"common": (SKIP, COMMON), "paper": (PAPER,)}  # by the word of `sads rank --practice`
ROTATIONS = ("identity", "min", "max", "random:0")

Progress = Callable[[int, int, float], None]  # candidates so far, in all, share


@dataclass(frozen=True)
class Candidate:
    """A network, a rotation of the data and a practice, with what the predictors say of them."""

    family: str
    rotation: str
    practice: str
    facts: Mapping[str, Prediction]
    place: int | None = None  # 1 is expected to be best; None where nobody knows

    @property
    def skip(self) -> bool:
        """Whether the Gaussian part of the score is beside the network."""
        return self.practice == SKIP


@dataclass(frozen=True)
class Ranking:
    """Candidates, the best expected first as far as that is known, and how far it is."""

    outcome: str
    candidates: tuple[Candidate, ...]
    statements: tuple[str, ...]  # whom to believe, and how far
    ranked_by: Mapping[str, str] = field(default_factory=dict)  # predictor, by practice
    between_families: bool = False  # whether places compare architectures with each other

    @property
    def is_ranked(self) -> bool:
        return bool(self.ranked_by)


@checked
def rank(
    x: Tensor,
    families: Sequence[ScoreFamily | str],
    *,
    rotations: Sequence[str] = ROTATIONS,
    outcome: str = "distance",
    practice: str = "common",
    predictors: Iterable[str] | None = None,
    iterations: int = 300,
    learning_rate: float = 1e-3,
    steps: int = 20,
    num_networks: int = 1024,
    seed: int = 0,
    league: League | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Rank families, rotations and the Gaussian skip for data `x` (N, *shape), before training.

    Args:
        families: networks for data of this shape.
        rotations: of the data, by name (see `sads.rotation`).
        outcome: what is to be small: `"distance"` of samples, or held-out denoising `"loss"`.
        practice: `"common"` (v-prediction, clipping, with and without the Gaussian skip) or
            `"paper"` (noise prediction, no clipping).
        predictors: whose numbers to show; all if not given. The league's winners always are.
        iterations: updates of the training that is planned.
        learning_rate: of that training.
        steps: of the sampler that is planned.
        num_networks: for a geometry.
        league: the record of the league; ours if not given.
        progress: called with candidates so far, in all, and the share of them.
    """
    for what, word, words in (("outcome", outcome, OUTCOMES), ("practice", practice, WAYS)):
        if word not in words:
            raise InvalidArgumentError(f"unknown {what} {word!r}; choose from {', '.join(words)}")
    # Predictors are about noise predictions, as in the league; what is trained, the practice says.
    networks = [replace(as_family(family), prediction="epsilon") for family in families]
    if not networks or not rotations:
        raise InvalidArgumentError("give at least one family and one rotation to rank")
    for name in rotations:
        Kind.parse(name)
        if list(rotations).count(name) > 1:
            raise InvalidArgumentError(f"the rotation {name!r} is given twice; leave one out")
    x = as_tensor(x, "the data")
    for family in networks:
        family.check_trainable()  # before anything is estimated
        if tuple(x.shape[1:]) != family.shape:
            raise InvalidArgumentError(
                f"the data have the shape {format_shape(x.shape[1:])}, {family.name} takes "
                f"{format_shape(family.shape)}; give families for data of this shape"
            )
    known = read_league() if league is None else league
    practices = WAYS[practice]
    winners = {name: winner for name in practices if (winner := known.winner(name, outcome))}
    asked = [p.name for p in find_predictors(predictors)]
    shown = list(dict.fromkeys([*asked, *(w.predictor for w in winners.values())]))
    plans = {
        way: Plan(
            prediction="epsilon" if way == PAPER else "v",
            skip=way == SKIP,
            iterations=iterations,
            learning_rate=learning_rate,
            steps=steps,
        )
        for way in practices
    }
    found: list[Candidate] = []
    total = len(networks) * len(rotations)
    names = distinct(map(_name, networks))
    for family, name in zip(networks, names, strict=True):
        geometry = estimate_geometry(family, num_networks, seed=seed)
        network = Untrained(family, geometry, seed=seed)
        both = pair(geometry, x)
        for kind in rotations:
            turned = both.rotation(kind).apply(x)
            facts = _facts(network, turned, plans, shown)
            found += [Candidate(name, kind, way, facts[way]) for way in practices]
            if progress is not None:
                done = len(found) // len(practices)
                progress(done, total, done / total)
    return order(found, known, outcome, practices)


def _facts(
    network: Untrained, data: Tensor, plans: Mapping[str, Plan], predictors: Sequence[str]
) -> dict[str, dict[str, Prediction]]:
    """What predictors say, by practice; those that do not know it are asked once."""
    facts: dict[str, dict[str, Prediction]] = {way: {} for way in plans}
    first = next(iter(facts.values()))
    for way, plan in plans.items():
        prospect = Prospect(network, data, plan)
        for predictor in find_predictors(predictors):
            asked = predictor.per_practice or predictor.name not in first
            facts[way][predictor.name] = (
                predictor.predict(prospect) if asked else first[predictor.name]
            )
    return facts


def order(
    candidates: Sequence[Candidate], league: League, outcome: str, practices: Sequence[str]
) -> Ranking:
    """Candidates in the order of the league's winners, with a statement for each practice."""
    statements, ranked_by, parts = [], {}, []
    between = True
    for way in sorted(practices, key=lambda way: (way == SKIP) != _skip_helps(league, outcome)):
        group = [c for c in candidates if c.practice == way]
        winner = league.winner(way, outcome)
        if winner is None or not league.is_right(way, outcome):
            statements.append(_no_winner(league, winner, way, outcome))
            parts.append(group)
            continue
        statements.append(describe_winner(winner))
        ranked_by[way] = winner.predictor
        sign = -1 if winner.sign == "better" else 1
        between = between and _right_between(winner)

        def value(c: Candidate, by: Standing = winner, sign: int = sign) -> float:
            return sign * c.facts[by.predictor].of(outcome)

        parts.append(sorted(group, key=value))
    if len(practices) > 1:
        statements.append(_skip_statement(league, outcome))
    placed = _place(parts, ranked_by, between)
    return Ranking(
        outcome=outcome,
        candidates=tuple(placed),
        statements=tuple(statements),
        ranked_by=ranked_by,
        between_families=bool(ranked_by) and between,
    )


def _place(
    parts: Sequence[Sequence[Candidate]], ranked_by: Mapping[str, str], between: bool
) -> list[Candidate]:
    """Number the candidates of each practice, or of each of its families if they do not compare."""
    placed = []
    for group in parts:
        counts: dict[str, int] = {}
        for candidate in group:
            key = "" if between else candidate.family
            counts[key] = counts.get(key, 0) + 1
            ranked = candidate.practice in ranked_by
            placed.append(
                Candidate(
                    candidate.family,
                    candidate.rotation,
                    candidate.practice,
                    candidate.facts,
                    counts[key] if ranked else None,
                )
            )
    return placed


def _skip_helps(league: League, outcome: str) -> bool:
    """Whether models with the Gaussian skip were better more often than not."""
    record = league.skip_record(outcome)
    return record is not None and 2 * record.right > record.pairs


def _right_between(winner: Standing) -> bool:
    """Whether it was right of more than half of the pairs of families."""
    return bool(winner.pairs_between) and 2 * (winner.right_between or 0) > (
        winner.pairs_between or 0
    )


def describe_winner(winner: Standing) -> str:
    text = (
        f"{PRACTICES[winner.practice]}: ordered by {winner.predictor} (larger is {winner.sign}), "
        f"which was right in {winner.right} of {counted(winner.pairs, 'pair')} of rotations of "
        "held-out data"
    )
    if winner.held_out is not None and winner.low is not None and winner.high is not None:
        text += f" (rank correlation {winner.held_out:.2f} [{winner.low:.2f}, {winner.high:.2f}])"
    if winner.pairs_between:
        pairs = counted(winner.pairs_between, "pair")
        text += f", and in {winner.right_between} of {pairs} of architectures"
    return text


def _no_winner(league: League, winner: Standing | None, practice: str, outcome: str) -> str:
    words = f"{PRACTICES[practice]}: no order, facts only."
    if winner is None:
        return f"{words} The league has no predictor of the {NAMES[outcome]}"
    claim = league.verdict(practice, outcome)
    word = "not judged" if claim is None else claim.verdict
    return (
        f"{words} No predictor of the {NAMES[outcome]} was shown to be right: the best on digits "
        f"and MNIST, {winner.predictor}, was right in {winner.right} of "
        f"{counted(winner.pairs, 'pair')} of rotations of held-out data ({word})"
    )


def _skip_statement(league: League, outcome: str) -> str:
    record = league.skip_record(outcome)
    if record is None or not record.pairs:
        return "with and without the Gaussian skip: not compared in the league"
    return (
        f"the Gaussian skip made the {NAMES[outcome]} smaller in {record.right} of {record.pairs} "
        "held-out pairs of models that differ in nothing else"
    )


def _name(family: ScoreFamily) -> str:
    """A transformer is named with its patches."""
    size = family.options.get("patch_size")
    return family.name if size is None else f"{family.name}/{size}"
