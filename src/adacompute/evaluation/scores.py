"""Scores: every policy by one protocol, on questions it has not seen.

Folds by question text, everything tuned on training folds, held-out questions replayed in random
orders of their samples, read at equal realised cost, beside the best mixture of uniform levels and
the cross-fitted oracle. Headroom is the share of what that oracle gains over the mixture, and null
where that gain may be none; intervals are by bootstrap over questions, copies of a text together.
It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.curves import Curve, Reading, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import (
    POLICY_FACTORIES,
    ROUTERS,
    Experiment,
    PolicyFactory,
    find_factory,
)
from adacompute.evaluation.imitation import imitate
from adacompute.evaluation.oracles import cross_fitted_oracle, in_sample
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.policies.episode import UNLIMITED_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, KeyArray

ORACLES = ("oracle", "oracle-in-sample")
RESAMPLINGS = 1000
LEVEL = 0.95
ROUNDING = 1e-9
"""What sums in another order may differ by: no gain."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Rows of the table, and what it was made of."""

    rows: list[dict[str, Any]]
    questions: int
    excluded: int
    samples: int
    levels: tuple[int, ...]
    levels_excluded: tuple[int, ...]


def evaluate(
    pool: Pool,
    *,
    budgets: Sequence[float],
    levels: Sequence[int],
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None = None,
    drop_unparsed: bool = False,
    rounds: int | None = None,
    folds: int = 5,
    orders: int = 40,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> HeldOutScores:
    """Score policies at mean budgets by the protocol above.

    Levels above half of the recorded samples are left out for every policy: the oracle chooses on
    one half of them and is scored on the other. A mapping gives the names of the rows, and may hold
    factories of other policies than the registered ones.
    """
    chosen = _policies(policies)
    equal = pool.equalise(drop_unparsed=drop_unparsed)
    samples = _levels(equal, levels)
    wanted = _budgets(equal, budgets, samples)
    experiment = Experiment(
        equal, samples, wanted, orders, seed, rounds=UNLIMITED_ROUNDS if rounds is None else rounds
    )
    splits = split_folds(assign_folds(equal.group, folds, seed=seed))
    weights = resample(equal.group, RESAMPLINGS, seed=seed)
    progress("oracle")
    best = cross_fitted_oracle(equal, samples, wanted, seed=seed)
    progress("mixture")
    base = cross_validate(experiment, find_factory("mixture"), splits)
    top = _tops(best, base, weights)
    rows: list[dict[str, Any]] = []
    for name, policy in chosen.items():
        progress(name)
        if policy in ORACLES:
            found = best if policy == "oracle" else in_sample(equal, tuple(best))
            rows += _oracle_rows(name, found, base, top, weights)
            continue
        trace = wanted if policy in ROUTERS else ()
        curve = base
        if policy != "mixture":
            curve = cross_validate(experiment, find_factory(policy), splits, trace=trace)
        for budget in wanted:
            read = read_curve(curve, budget, weights)
            row = _row(name, budget, read, base, top[budget], weights)
            rows.append(row | imitate(experiment, curve, budget) if policy in ROUTERS else row)
    dropped, n_samples = tuple(sorted(set(levels) - set(samples))), equal.answers.n_samples[0]
    return HeldOutScores(rows, len(equal), equal.excluded, int(n_samples), samples, dropped)


def _policies(
    policies: Sequence[str] | Mapping[str, str | PolicyFactory] | None,
) -> dict[str, str | PolicyFactory]:
    """Return what to score by the names of the rows: registered policies, oracles, factories."""
    known = [*POLICY_FACTORIES, *ORACLES]
    if not isinstance(policies, Mapping):
        policies = {name: name for name in (known if policies is None else policies)}
    for policy in policies.values():
        if isinstance(policy, str) and policy not in known:
            raise ConfigError(f"there is no policy {policy!r}; there are {', '.join(known)}")
    return dict(policies)


def _levels(pool: Pool, levels: Sequence[int]) -> tuple[int, ...]:
    recorded, least = int(pool.answers.n_samples[0]), min(levels, default=1)
    half = recorded // 2
    kept = tuple(n for n in sorted(set(levels)) if n <= half)
    if not kept:
        raise DataError(
            f"levels go up to half of the samples a question, {half} of {recorded}, and the "
            f"lowest level is {least}: collect at least {2 * least} samples a question"
        )
    if len(kept) == 1 and pool.resort is None:
        raise DataError(
            f"levels go up to half of the samples a question, {half} of {recorded}, which leaves "
            f"one of the levels {', '.join(map(str, sorted(set(levels))))}, and a policy "
            "needs two to decide between: collect more samples a question, or name more levels by "
            "--levels"
        )
    return kept


def _budgets(pool: Pool, budgets: Sequence[float], samples: tuple[int, ...]) -> tuple[float, ...]:
    least = float(pool.mean_sample_cost().mean()) * samples[0] + float(pool.round_costs.mean())
    for budget in budgets:
        if not np.isfinite(budget) or budget < least * (1 - 1e-9):
            raise ConfigError(
                f"a budget of {budget:g} is below {least:.6g}, what the cheapest level costs"
            )
    return tuple(sorted({float(budget) for budget in budgets}))


def resample(group: KeyArray, times: int, *, seed: int) -> FloatArray:
    """How often each question counts: once in row 0, then by bootstrap over groups."""
    rng = np.random.default_rng(seed)
    unique, inverse = np.unique(group, return_inverse=True)
    size = len(unique)
    counts = rng.multinomial(size, np.full(size, 1 / size), size=times)
    return np.concatenate([np.ones((1, len(group))), counts[:, inverse].astype(np.float64)])


def _interval(values: FloatArray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _tops(
    best: dict[float, tuple[float, FloatArray]], base: Curve, weights: FloatArray
) -> dict[float, Reading | None]:
    """Read the oracle at each budget; None where it may gain nothing over the mixture."""
    reads = {budget: _read(*found, weights) for budget, found in best.items()}
    return {
        budget: read if _gains(read, read_curve(base, read.cost, weights)) else None
        for budget, read in reads.items()
    }


def _read(cost: float, value: FloatArray, weights: FloatArray) -> Reading:
    """Read an allocation's value by question as a curve is read; it knows, so it asks once."""
    means = weights @ value / weights.sum(axis=1)
    return Reading(cost, float(means[0]), 1.0, means[1:])


def _gains(read: Reading, mixture: Reading) -> bool:
    """Whether the interval of a difference lies above zero."""
    return _interval(read.resampled - mixture.resampled)[0] > ROUNDING


def _row(
    name: str, budget: float, read: Reading, base: Curve, top: Reading | None, weights: FloatArray
) -> dict[str, Any]:
    """Score one policy at one budget, and its difference to the mixture at the same cost."""
    mixture = read_curve(base, read.cost, weights)
    low, high = _interval(read.resampled)
    difference = read.accuracy - mixture.accuracy
    difference_low, difference_high = _interval(read.resampled - mixture.resampled)
    room = top.accuracy - mixture.accuracy if top and _gains(top, mixture) else None
    return {
        "policy": name,
        "budget": budget,
        "cost": read.cost,
        "rounds": read.rounds,
        "accuracy": read.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "difference": difference,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "headroom": None if room is None else difference / room,
        "relative_gain": difference / mixture.accuracy if mixture.accuracy > 0 else None,
    }


def _oracle_rows(
    name: str,
    found: dict[float, tuple[float, FloatArray]],
    base: Curve,
    top: dict[float, Reading | None],
    weights: FloatArray,
) -> list[dict[str, Any]]:
    """Score the oracles: allocations that know each question's curve."""
    return [
        _row(name, budget, _read(*known, weights), base, top[budget], weights)
        for budget, known in found.items()
    ]
