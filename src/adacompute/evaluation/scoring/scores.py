"""Scores: every policy by one protocol, on questions that it was not fitted to.

Questions are split into folds; copies of a question share one. Everything is tuned on the training
folds, and the held-out questions are replayed in random orders of their samples. Each policy is
read at the setting whose held-out mean cost is the budget and compared with the baseline at the
same cost. Headroom is the difference as a share of what the cross-fitted oracle gains over the
baseline; it is None where that gain may be zero. The oracle chooses on one half of the samples, so
for headroom alone, policy, baseline and oracle use levels up to half of the samples.

It reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.costs import check_budgets
from adacompute.evaluation.experiment import Experiment, PolicyFactory
from adacompute.evaluation.factories import ROUTER, is_single_arm
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.registry import ORACLES, check_policies, find_obstacle, list_policies
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.scoring.baseline import BASELINE, EQUAL_VOTES, score_baseline
from adacompute.evaluation.scoring.frontier import CalibrationSettings, spread_points
from adacompute.evaluation.scoring.held_out import (
    CurvePoint,
    HeldOutCurve,
    measure_difference,
)
from adacompute.evaluation.scoring.imitation import score_imitation
from adacompute.evaluation.scoring.oracles import OracleScores, in_sample_oracle, score_oracle
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.evaluation.scoring.savings import compare_policy
from adacompute.evaluation.scoring.today import Today, TodayScore
from adacompute.evaluation.scoring.verdict import judge
from adacompute.policies.episode import UNLIMITED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray

MAX_NAMED_LEVELS = 8
"""Levels that an error message lists."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """The rows of the table, and the data that they were computed from.

    ``levels_excluded`` are the levels above half of the samples, which headroom leaves out.
    Accuracies are means over ``n_assignments`` random assignments of questions to folds.
    ``today`` says for each policy what it saves, if it is known what is run today.
    """

    rows: list[dict[str, Any]]
    n_questions: int
    n_independent: int
    n_excluded: int
    n_samples: int
    n_assignments: int
    levels: tuple[int, ...]
    levels_excluded: tuple[int, ...]
    today: list[dict[str, Any]]


def make_experiment(
    pool: Pool,
    budgets: Sequence[float],
    levels: Sequence[int],
    *,
    drop_unparsed: bool = False,
    max_rounds: int | None = None,
    **options: Any,  # noqa: ANN401 - those of an experiment
) -> Experiment:
    """Return the experiment that scores policies at these budgets, with the levels that fit."""
    equal = pool.equalise(drop_unparsed=drop_unparsed)
    kept = keep_levels(equal, levels)
    wanted = check_budgets(budgets)
    equal.check_budget(wanted[0], kept[0])
    rounds = UNLIMITED_ROUNDS if max_rounds is None else max_rounds
    return Experiment(equal, kept, wanted, max_rounds=rounds, **options)


def evaluate(
    experiment: Experiment,
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None = None,
    *,
    today: Today | None = None,
    settings: CalibrationSettings | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> HeldOutScores:
    """Score policies at mean budgets by the protocol above.

    A mapping of policies gives the names of the rows, and can hold other factories than the
    registered ones. ``today`` is what is run now, which each policy is then compared with.
    """
    pool, kept = experiment.pool, experiment.levels
    _check_names(policies, pool)
    chosen = _choose_policies(policies, experiment)
    progress("mixture")
    score_baseline(experiment)
    progress("oracle")
    headroom = measure_headroom(experiment)
    rows = _score_all(experiment, headroom, chosen, progress)
    excluded = tuple(n for n in kept if n > max(headroom.experiment.levels))
    savings = [] if today is None else _compare_all(experiment, chosen, today, settings)
    return HeldOutScores(
        rows=rows,
        n_questions=len(pool),
        n_independent=pool.n_groups,
        n_excluded=pool.n_excluded,
        n_samples=pool.n_samples,
        n_assignments=experiment.n_assignments,
        levels=kept,
        levels_excluded=excluded,
        today=savings,
    )


def _compare_all(
    experiment: Experiment,
    policies: Mapping[str, str | PolicyFactory],
    today: Today,
    settings: CalibrationSettings | None,
) -> list[dict[str, Any]]:
    """Return what each policy saves, compared with what is run today; oracles are no policies."""
    now, settings = TodayScore(experiment, today), settings or CalibrationSettings()
    rows = []
    for name, policy in policies.items():
        if policy not in ORACLES:
            score = score_policy(experiment, policy)
            points = spread_points(score.curve)
            rows.append({"policy": name} | compare_policy(score, points, now, settings)[1])
    return rows


def _score_all(
    experiment: Experiment,
    headroom: Headroom,
    policies: Mapping[str, str | PolicyFactory],
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return the rows of all policies."""
    rows = []
    for name, policy in policies.items():
        progress(name)
        rows += _score_rows(experiment, headroom, name, policy)
    return rows


def _score_rows(
    experiment: Experiment, headroom: Headroom, name: str, policy: str | PolicyFactory
) -> list[dict[str, Any]]:
    """Return the rows of a policy, one per budget that pays for it."""
    budgets = experiment.budgets
    if policy == "oracle":
        found = headroom.scores
        return [_oracle_row(name, b, found[b], headroom.experiment) for b in budgets]
    if policy == "oracle-in-sample":
        found = in_sample_oracle(experiment.pool, budgets)
        return [_oracle_row(name, b, found[b], experiment) for b in budgets]
    score, rows = score_policy(experiment, policy), []
    capped = headroom.score(policy, score)
    for budget in budgets:
        if is_single_arm(policy) and score.curve.cost[0] > budget * (1 + 1e-9):
            continue  # one sample of this arm costs more
        point = score.curve.read(budget)
        row = {"policy": name, "budget": budget, **describe_point(score, point)}
        row["headroom"] = headroom.share(capped, budget)
        if policy == ROUTER:
            row |= score_imitation(experiment, score.curve, budget)
        rows.append(row)
    return rows


def describe_point(score: PolicyScore, point: CurvePoint) -> dict[str, Any]:
    """Return the cost, the accuracy and the gain of a policy at a point, with intervals."""
    accuracy, gain = score.accuracy(point), score.gain(point)
    base = accuracy.value - gain.value
    return {
        "cost": point.cost,
        "rounds": float(point.result.n_rounds.mean()),
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "difference": gain.value,
        "difference_low": gain.low,
        "difference_high": gain.high,
        "verdict": judge(gain, score.n_groups)[0],
        "relative_gain": gain.value / base if base > 0 else None,
    }


def _oracle_row(
    name: str,
    budget: float,
    scores: tuple[float, FloatArray],
    experiment: Experiment,
) -> dict[str, Any]:
    """Return the row of an oracle, which needs one round; its headroom is 1 by definition."""
    score = score_policy(experiment, BASELINE)
    row = {"policy": name, "budget": budget, **describe_point(score, oracle_point(scores))}
    has_gain = row["difference_low"] > 0
    return row | {"headroom": 1.0 if name == "oracle" and has_gain else None}


def oracle_point(scores: tuple[float, FloatArray]) -> CurvePoint:
    """Return an allocation as a point of a curve: every question costs the mean."""
    cost, utility = scores
    none = np.zeros(len(utility))
    costs = np.full(len(utility), cost)
    return CurvePoint(cost, ReplayResult(costs, utility, costs, none + 1, none, none))


@dataclass(frozen=True, eq=False)
class Headroom:
    """What the oracle gains over the baseline, with levels up to half of the samples."""

    experiment: Experiment
    scores: OracleScores
    is_capped: bool

    def score(self, policy: str | PolicyFactory, whole: PolicyScore) -> HeldOutCurve:
        """Return the curve of a policy with these levels; the given one if none was left out."""
        if not self.is_capped:
            return whole.curve
        return score_policy(self.experiment, policy).curve

    def share(self, curve: HeldOutCurve, budget: float) -> float | None:
        """Return the gain of a policy as a share of that of the oracle at the same cost."""
        if budget not in self.scores:
            return None
        oracle = oracle_point(self.scores[budget])
        baseline = score_policy(self.experiment, BASELINE)
        possible = baseline.gain(oracle)
        if not possible.low > 0:
            return None
        return measure_difference(baseline.curve, curve.read(budget))[0] / possible.value


def measure_headroom(experiment: Experiment) -> Headroom:
    """Score the cross-fitted oracle with levels up to half of the samples."""
    half = experiment.pool.n_samples // 2
    kept = tuple(n for n in experiment.levels if n <= half)
    is_capped = kept != experiment.levels
    if is_capped:
        kept = kept or experiment.levels[:1]
        experiment = replace(experiment, levels=kept)
    budgets = experiment.budgets if max(kept) <= half else ()
    return Headroom(experiment, score_oracle(experiment, budgets), is_capped)


def _check_names(
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None, pool: Pool
) -> None:
    """Refuse names that are not registered."""
    known = list_policies(pool.arms)
    for policy in policies.values() if isinstance(policies, Mapping) else policies or ():
        if isinstance(policy, str) and policy not in known:
            raise ConfigError(f"there is no policy {policy!r}; there are {', '.join(known)}")


def _choose_policies(
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None, experiment: Experiment
) -> dict[str, str | PolicyFactory]:
    """Return policies, oracles and factories by the names of their rows.

    By default these are all that can be scored with what was recorded. Where votes are not
    weighted, the mixture with equal votes is the mixture, and left out.
    """
    data = RecordedData.of(experiment)
    if policies is None:
        every = list_policies(experiment.pool.arms)
        policies = [name for name in every if find_obstacle(name, data) is None]
    if not isinstance(policies, Mapping):
        policies = {name: name for name in policies}
    check_policies((policy for policy in policies.values() if isinstance(policy, str)), data)
    left_out = () if experiment.weighs_votes else (EQUAL_VOTES,)
    return {name: policy for name, policy in policies.items() if policy not in left_out}


def keep_levels(pool: Pool, levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels for which there are enough samples, and refuse fewer than two."""
    n_samples, known = pool.n_samples, sorted(set(levels))
    kept = tuple(n for n in known if n <= n_samples)
    if not kept or (len(kept) == 1 and not pool.has_arms):
        named = [*map(str, known[:MAX_NAMED_LEVELS]), *["…"] * (len(known) > MAX_NAMED_LEVELS)]
        raise DataError(
            f"{n_samples} samples per question allow {len(kept)} of the levels "
            f"{', '.join(named)}, and a policy needs two: collect more samples per "
            "question, or name more levels"
        )
    return kept
