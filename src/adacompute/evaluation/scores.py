"""Scores: every policy by one protocol, on questions that it was not fitted to.

Questions are split into folds by their text. Everything is tuned on the training folds, and the
held-out questions are replayed in random orders of their samples. Each policy is compared at equal
realised cost with the best mixture of uniform levels. Headroom is the difference as a share of what
the cross-fitted oracle gains over the mixture; it is None where that gain may be zero. Intervals
come from a bootstrap over questions, with copies of a text kept together.

It reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.costs import check_budgets
from adacompute.evaluation.curves import Curve, CurvePoint, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import (
    POLICY_FACTORIES,
    ROUTERS,
    Experiment,
    PolicyFactory,
    find_factory,
)
from adacompute.evaluation.imitation import score_imitation
from adacompute.evaluation.intervals import N_RESAMPLES, bootstrap_weights, percentile_interval
from adacompute.evaluation.oracles import OracleScores, cross_fitted_oracle, in_sample_oracle
from adacompute.evaluation.pool import N_FOLDS, Pool, assign_folds
from adacompute.policies.episode import UNLIMITED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray

ORACLES = ("oracle", "oracle-in-sample")
ROUNDING = 1e-9
"""Differences up to this size come from the order of a sum and are not gains."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """The rows of the table, and the data that they were computed from."""

    rows: list[dict[str, Any]]
    n_questions: int
    n_excluded: int
    n_samples: int
    levels: tuple[int, ...]
    levels_excluded: tuple[int, ...]


def evaluate(
    pool: Pool,
    *,
    budgets: Sequence[float],
    levels: Sequence[int],
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None = None,
    drop_unparsed: bool = False,
    max_rounds: int | None = None,
    n_folds: int = N_FOLDS,
    n_permutations: int = 40,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> HeldOutScores:
    """Score policies at mean budgets by the protocol above.

    Levels above half of the recorded samples are excluded for every policy, because the oracle
    chooses on one half of the samples and is scored on the other. A mapping of policies gives the
    names of the rows, and can hold other factories than the registered ones.
    """
    chosen = _check_policies(policies)
    equal = pool.equalise(drop_unparsed=drop_unparsed)
    kept = _keep_levels(equal, levels)
    wanted = _check_budgets(equal, budgets, kept[0])
    rounds = UNLIMITED_ROUNDS if max_rounds is None else max_rounds
    experiment = Experiment(equal, kept, wanted, n_permutations, seed, max_rounds=rounds)
    splits = split_folds(assign_folds(equal.group, n_folds, seed=seed))
    progress("oracle")
    oracle = cross_fitted_oracle(equal, kept, wanted, seed=seed)
    progress("mixture")
    mixture = cross_validate(experiment, find_factory("mixture"), splits)
    weights = bootstrap_weights(equal.group, N_RESAMPLES, seed=seed)
    table = ScoreTable(mixture, _oracle_points(oracle, mixture, weights), weights)
    rows: list[dict[str, Any]] = []
    for name, policy in chosen.items():
        progress(name)
        if policy in ORACLES:
            found = oracle if policy == "oracle" else in_sample_oracle(equal, wanted)
            rows += [table.row(name, b, _oracle_point(*found[b], weights)) for b in wanted]
            continue
        is_router = policy in ROUTERS
        curve = mixture
        if policy != "mixture":
            trace = wanted if is_router else ()
            curve = cross_validate(experiment, find_factory(policy), splits, trace=trace)
        for budget in wanted:
            row = table.row(name, budget, read_curve(curve, budget, weights))
            rows.append(row | score_imitation(experiment, curve, budget) if is_router else row)
    excluded = tuple(sorted(set(levels) - set(kept)))
    n_samples = int(equal.answers.n_samples[0])
    return HeldOutScores(rows, len(equal), equal.n_excluded, n_samples, kept, excluded)


def _check_policies(
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None,
) -> dict[str, str | PolicyFactory]:
    """Return registered policies, oracles and factories by the names of their rows."""
    known = [*POLICY_FACTORIES, *ORACLES]
    if not isinstance(policies, Mapping):
        policies = {name: name for name in (known if policies is None else policies)}
    for policy in policies.values():
        if isinstance(policy, str) and policy not in known:
            raise ConfigError(f"there is no policy {policy!r}; there are {', '.join(known)}")
    return dict(policies)


def _keep_levels(pool: Pool, levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels up to half of the samples, and refuse fewer than two."""
    n_samples, lowest = int(pool.answers.n_samples[0]), min(levels, default=1)
    half, known = n_samples // 2, sorted(set(levels))
    kept = tuple(n for n in known if n <= half)
    if not kept:
        raise DataError(
            f"levels go up to half of the samples per question, {half} of {n_samples}, and the "
            f"lowest level is {lowest}: collect at least {2 * lowest} samples per question"
        )
    if len(kept) == 1 and pool.resort is None:
        raise DataError(
            f"levels go up to half of the samples per question, {half} of {n_samples}, which "
            f"leaves one of the levels {', '.join(map(str, known))}, and a policy needs two: "
            "collect more samples per question, or give more levels"
        )
    return kept


def _check_budgets(pool: Pool, budgets: Sequence[float], n_samples: int) -> tuple[float, ...]:
    """Return rising budgets, and refuse those that do not pay for so many samples."""
    wanted = check_budgets(budgets)
    pool.check_budget(wanted[0], n_samples)
    return wanted


def _oracle_points(
    oracle: OracleScores, mixture: Curve, weights: FloatArray
) -> dict[float, CurvePoint | None]:
    """Return the oracle at each budget, None where it may gain nothing over the mixture."""
    points = {budget: _oracle_point(*scores, weights) for budget, scores in oracle.items()}
    return {
        budget: point if _is_above(point, read_curve(mixture, point.cost, weights)) else None
        for budget, point in points.items()
    }


def _oracle_point(cost: float, utility: FloatArray, weights: FloatArray) -> CurvePoint:
    """Return an allocation as a point of a curve; it needs one round."""
    means = weights @ utility / weights.sum(axis=1)
    return CurvePoint(cost, float(means[0]), 1.0, means[1:])


def _is_above(point: CurvePoint, mixture: CurvePoint) -> bool:
    """Return whether the interval of the difference lies above zero."""
    return percentile_interval(point.resampled - mixture.resampled)[0] > ROUNDING


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """What every row is compared with: the mixture, and the oracle where it gains."""

    mixture: Curve
    oracle: dict[float, CurvePoint | None]
    weights: FloatArray

    def row(self, name: str, budget: float, point: CurvePoint) -> dict[str, Any]:
        """Return one policy at one budget, and its difference to the mixture at the same cost."""
        mixture = read_curve(self.mixture, point.cost, self.weights)
        accuracy_low, accuracy_high = percentile_interval(point.resampled)
        difference = point.accuracy - mixture.accuracy
        difference_low, difference_high = percentile_interval(point.resampled - mixture.resampled)
        oracle = self.oracle[budget]
        possible = None
        if oracle and _is_above(oracle, mixture):
            possible = oracle.accuracy - mixture.accuracy
        return {
            "policy": name,
            "budget": budget,
            "cost": point.cost,
            "rounds": point.n_rounds,
            "accuracy": point.accuracy,
            "accuracy_low": accuracy_low,
            "accuracy_high": accuracy_high,
            "difference": difference,
            "difference_low": difference_low,
            "difference_high": difference_high,
            "headroom": None if possible is None else difference / possible,
            "relative_gain": difference / mixture.accuracy if mixture.accuracy > 0 else None,
        }
