from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.states import measure_states, states
from adacompute.core.types import make_levels
from adacompute.core.utility import estimate
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import Replay
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import EarlyStoppingRule
from adacompute.policies.uniform import FixedRule, RetryRule

EVERY = make_levels(tuple(range(1, 9)))


def alone(rule: Rule) -> RulePolicy:
    return RulePolicy("rule", EVERY, (rule,), PriceSchedule((1.0,)))


def numbered(pool: Pool) -> Pool:
    """Make every sample a different answer, so that the matrix shows which samples were used."""
    own = replace(pool.answers, answer=np.arange(len(pool.answers.answer)))
    return replace(pool, answers=own)


def test_orders_contain_distinct_samples_of_their_question(small: Pool) -> None:
    for orders in (5, 30):  # fewer and more than there are samples
        drawn = Replay(numbered(small), orders, 8).samples.answer.reshape(len(small), orders, 8)
        assert (small.answers.question[drawn] == np.arange(len(small))[:, None, None]).all()
        assert (np.diff(np.sort(drawn, axis=2), axis=2) > 0).all()
        assert len(np.unique(drawn[0], axis=0)) == orders


def test_same_seed_gives_the_same_orders(small: Pool) -> None:
    first, again, other = (Replay(small, 5, 8, seed).samples.answer for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_replay_of_fixed_agrees_with_the_exact_estimator(small: Pool, samples: int) -> None:
    orders = 60
    result = Replay(small, orders, 8).run(alone(FixedRule(samples)), 1.0)
    exact = estimate(small.answers, (samples,), standard_errors=False).utility[:, 0]
    assert (result.cost == samples).all()
    assert (result.n_samples == samples).all()
    # Independent orders have at most this error; the Latin design of the orders has less.
    error = np.sqrt(0.25 / orders)
    assert np.abs(result.accuracy - exact).max() < 4.5 * error
    assert abs((result.accuracy - exact).mean()) < 3 * error / np.sqrt(len(small))


def test_every_sample_is_equally_likely_at_every_position(small: Pool) -> None:
    twelve = Replay(numbered(small), 12, 8).samples.answer.reshape(len(small), 12, 8)
    for place in range(8):
        assert (np.sort(twelve[:, :, place], axis=1) == np.arange(1440).reshape(120, 12)).all()


def test_cost_is_the_sum_of_the_sample_costs(small: Pool) -> None:
    rng = np.random.default_rng(0)
    pool = replace(small, sample_cost=np.rint(100 * rng.random(len(small.sample_cost))))
    for rule in (FixedRule(3), RetryRule(2, 8), EarlyStoppingRule(2, 6)):
        drawn = Replay(numbered(pool), 7, 8).samples.answer
        result = Replay(pool, 7, 8).run(alone(rule), 1.0, sample_cost=50.0)
        sizes = [rows(rule, pool.answers.answer[row].tolist()) for row in drawn]
        cost = [pool.sample_cost[row[:n]].sum() for row, n in zip(drawn, sizes, strict=True)]
        assert result.n_samples == pytest.approx(np.reshape(sizes, (-1, 7)).mean(axis=1))
        assert result.cost == pytest.approx(np.reshape(cost, (-1, 7)).mean(axis=1))


def rows(rule: FixedRule | RetryRule | EarlyStoppingRule, answers: list[int]) -> int:
    """Return where a rule stops, by its definition."""
    if isinstance(rule, FixedRule):
        return rule.n_samples
    for drawn in range(1, rule.max_samples):
        if isinstance(rule, RetryRule) and sum(a >= 0 for a in answers[:drawn]) >= rule.min_parsed:
            return drawn
        if isinstance(rule, EarlyStoppingRule) and drawn % rule.window == 0:
            window = set(answers[drawn - rule.window : drawn])
            if len(window) == 1 and window != {-1}:
                return drawn
    return rule.max_samples


def test_policy_decides_by_the_given_sample_cost(small: Pool) -> None:
    seen = []

    class Curious(RulePolicy):
        def decide(self, state, price):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            seen.append(state.cost[0].tolist())
            return super().decide(state, price)

    Replay(small, 2, 8).run(
        Curious("rule", EVERY, (FixedRule(2),), PriceSchedule((1.0,))), 1.0, sample_cost=2.5
    )
    assert seen[0] == [2.5 * n for n in range(1, 9)]
    assert seen[1] == [0.0, 0.0, *(2.5 * n for n in range(1, 7))]


def test_ties_broken_by_log_probability_agree_between_replay_and_states(small: Pool) -> None:
    right = small.answers.correct
    telling = replace(small, logprob=np.where(right, -0.1, -0.9))
    plain, better = (Replay(p, 12, 6).run(alone(FixedRule(2)), 1.0) for p in (small, telling))
    assert better.accuracy.mean() > plain.accuracy.mean() + 0.02
    assert (better.accuracy >= plain.accuracy - 1e-9).all()
    gains = Replay(telling, 12, 6).tie_gains(6)
    known = measure_states(small.answers, 6)
    tied = [len(v) > 1 and v[0] == v[1] for v in states().votes[: len(gains)]]
    assert (gains[~np.array(tied)] == 0).all()
    two = states().layer(2)
    assert (known.correct_mass[two] + gains[two]).sum() == pytest.approx(
        better.accuracy.sum(), rel=0.02
    )
    some = telling.take(np.array([1, 7])).keep(np.arange(24) % 2 == 0)
    assert some.logprob is not None
    assert len(some.logprob) == len(some.answers.answer) == 12
