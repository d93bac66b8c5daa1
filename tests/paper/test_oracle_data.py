"""What the oracle does is shown as it is: against populations whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.oracle import frontier, solve
from adacompute.core.types import UtilityTable
from adacompute.core.upgrades import choose
from adacompute.evaluation.pool import Pool
from adacompute.paper.archetypes import (
    NAMES,
    compose_runs,
    find_archetypes,
    sort_archetypes,
)
from adacompute.paper.oracle_data import (
    bisect_prices,
    climb_staircase,
    cost_at,
    count_labels,
    measure_difficulties,
    scatter_choices,
    show_mechanism,
    trace_scaling,
)
from adacompute.paper.subject import (
    BUDGETS,
    MIDDLE,
    Subject,
    cut_evenly,
    falls,
    read_bands,
)
from adacompute.paper.verdicts import rise_in_middle
from adacompute.testing.populations import ARCHETYPES, Population, mix_archetypes

SAMPLES = 48
TRULY = dict(zip(NAMES, ("easy", "responsive", "diminishing", "hopeless"), strict=True))


def study(population: Population, samples: int = SAMPLES, **known: list[str]) -> Subject:
    answers = population.draw(samples, seed=1)
    key = np.arange(len(population), dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    return Subject.of("synthetic", pool, **known)  # type: ignore[arg-type]


POPULATION, KIND = mix_archetypes(400, telling=1.0)
KINDS = list(ARCHETYPES)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return study(POPULATION, difficulty=[KINDS[kind] for kind in KIND])


def test_scaling_curves_are_the_truth_within_sampling_error(subject: Subject) -> None:
    found = trace_scaling(subject)
    truth = POPULATION.true_utility(found.levels)
    assert found.names == NAMES
    for i, name in enumerate(found.names):
        question = int(found.question[i])
        if name != "diminishing":  # a few of the responsive look like it, too
            assert KINDS[KIND[question]] == TRULY[name]
        spread = np.sqrt(np.nan_to_num(found.error[i]) ** 2 + 0.03**2)
        assert (np.abs(found.exact[i] - truth[question]) < 4 * spread).all()
    assert len(found.rows) == 4 * len(found.levels)
    everywhere = subject.exact.utility - truth
    error = everywhere.std(axis=0) / np.sqrt(len(everywhere))
    assert (np.abs(everywhere.mean(axis=0)) < 4 * error).all()


def test_the_staircase_is_the_oracles_choice_and_never_rises(subject: Subject) -> None:
    stairs = climb_staircase(subject)
    for i in (0, 60, 120, 200):
        price = float(stairs.price[i])
        assert stairs.windows[i] == subject.windows.cost_of(choose(subject.windows, price)).mean()
    assert falls(stairs.windows)
    assert falls(stairs.exact)
    assert stairs.windows[-1] == stairs.exact[-1] == 1.0
    curve = frontier(subject.exact)
    assert stairs.exact[0] == pytest.approx(curve.cost[-1])
    for budget in BUDGETS:
        price = solve(subject.exact, budget).price
        below, above = cost_at(subject.exact, np.array([price * 1.000001, price * 0.999999]))
        assert below <= budget <= above


def test_votes_gain_most_on_the_responsive_and_lose_on_the_hopeless(subject: Subject) -> None:
    found = measure_difficulties(subject)
    assert found.recorded
    assert set(found.names) == set(KINDS)
    truth = POPULATION.true_utility((1, 16))
    for name, gain, error in zip(found.names, found.gain, found.error, strict=True):
        mine = KINDS.index(name) == KIND
        assert abs(gain - (truth[mine, 1] - truth[mine, 0]).mean()) < 4 * error + 0.01
    assert found.names[int(found.gain.argmax())] == "responsive"
    assert found.gain[found.names.index("hopeless")] < 0
    assert sum(int(row["questions"] or 0) for row in found.rows) == len(subject)


def test_bands_told_by_one_half_are_measured_on_the_other() -> None:
    """Questions that are all alike have no difficulty: sorted by luck, they gain alike."""
    alike = Population(np.tile([0.5, 0.3, 0.2], (300, 1)), np.zeros((300, 2), dtype=np.float32))
    found = measure_difficulties(study(alike))
    assert not found.recorded
    assert found.names == ("easy", "middle", "hard")
    assert np.ptp(found.gain) < 4 * found.error.max()
    lowest = [float(row["level 1 (subsets)"] or 0) for row in found.rows]
    assert np.ptp(lowest) < 0.06


def test_labels_sum_to_one_and_stay_within_the_budget(subject: Subject) -> None:
    found = count_labels(subject)
    assert found.windows.sum(axis=1) == pytest.approx(1)
    assert found.exact.sum(axis=1) == pytest.approx(1)
    assert (found.cost <= np.asarray(BUDGETS)[:, None]).all()
    assert found.windows[0, 0] > found.windows[-1, 0]
    expected = np.bincount(solve(subject.windows, MIDDLE).choice, minlength=5) / len(subject)
    assert found.windows[found.budgets.index(MIDDLE)].tolist() == expected.tolist()


def test_two_votes_are_worth_one_unless_some_cannot_be_read(subject: Subject) -> None:
    found = count_labels(subject)
    level = found.levels.index(2)
    assert found.windows[:, level].sum() == found.exact[:, level].sum() == 0
    patchy, _ = mix_archetypes(200, telling=1.0, null_rate=0.3)
    assert count_labels(study(patchy)).exact[:, level].sum() > 0


def test_the_middle_of_the_difficulties_gets_most_of_the_budget(subject: Subject) -> None:
    found = scatter_choices(subject)
    for spent in (found.spent, found.fair_spent):
        assert (spent.mean(axis=1) <= np.asarray(BUDGETS) + 1e-9).all()
        assert rise_in_middle(spent[-1]) > 0
    for shares in (found.shares, found.fair_shares):
        assert shares.sum(axis=2) == pytest.approx(1)
    truth = UtilityTable(POPULATION.true_utility(subject.levels), subject.windows.cost)
    given = truth.cost_of(solve(truth, BUDGETS[-1]).choice)
    middle = np.isin(KIND, [KINDS.index("responsive"), KINDS.index("diminishing")])
    assert given[middle].mean() > given[~middle].mean()
    assert (found.gain >= 0).all()
    assert len(found.rows) == len(BUDGETS) * 2 * 5


def test_there_is_no_inverted_u_where_the_hardest_respond_best() -> None:
    chance = np.where(np.arange(300)[:, None] % 2, [0.96, 0.02, 0.02], [0.46, 0.27, 0.27])
    plain = Population(chance, np.zeros((300, 2), dtype=np.float32))
    found = scatter_choices(study(plain))
    assert found.fair_spent[-1].argmax() < 3
    assert found.fair_spent[-1][0] > 2 * found.fair_spent[-1][4]


def test_the_bisection_ends_at_the_solvers_price(subject: Subject) -> None:
    found = bisect_prices(subject)
    for row, trace in zip(found.rows, found.traces, strict=True):
        budget, price = float(row["B"] or 0), float(row["exact price"] or 0)
        assert row["price by bisection"] == pytest.approx(price, rel=1e-9)
        assert row["steps"] == len(trace.middle) == 50
        assert float(row["cost"] or 0) <= float(row["exact cost"] or 0) <= budget
        assert row["with the split"] == pytest.approx(budget)
        assert row["monotone"] is True
        assert float(row["duality gap"] or 0) <= 1 / len(subject)
        assert (trace.low[1:] >= trace.low[:-1]).all()
        assert (trace.high[1:] <= trace.high[:-1]).all()
        assert (trace.cost_high <= budget).all()
        assert (trace.cost_low > budget).all()


def test_a_price_drains_every_question_and_chooses_the_largest_net_value(subject: Subject) -> None:
    found = show_mechanism(subject)
    assert found.shares.sum(axis=1) == pytest.approx(1)
    assert (np.diff(found.choice, axis=1) <= 0).all()
    assert (found.choice[:, -1] == 0).all()
    assert found.shares[0, -1] < 1.0  # ties go to the cheaper level, also when nothing costs
    for price, net in zip(found.prices, found.net, strict=True):
        chosen = int(choose(subject.windows, price)[found.question])
        assert net[chosen] == pytest.approx(net.max())


def test_k_means_finds_the_four_archetypes(subject: Subject) -> None:
    found = find_archetypes(subject)
    assert found.names == NAMES
    told = np.array([KINDS.index(TRULY[name]) for name in found.names])[found.cluster]
    assert (told == KIND).mean() > 0.8
    ends = np.isin(KIND, [KINDS.index("easy"), KINDS.index("hopeless")])
    assert (told == KIND)[ends].mean() > 0.98
    assert int(found.size.sum()) == len(subject)
    for shares in (found.composition, found.given, found.given_again):
        assert shares.sum(axis=1) == pytest.approx(1)
    truth = POPULATION.true_utility(subject.half_levels)
    easy = np.isin(KIND, [KINDS.index("easy")])
    assert found.again[0] == pytest.approx(truth[easy].mean(axis=0), abs=0.04)
    assert 0 <= found.absorbed <= 1
    assert found.given[found.names.index("hard"), 0] > 0.9
    assert found.given[found.names.index("responsive"), 0] < 0.5


def test_kinds_of_luck_do_not_last() -> None:
    """Alike questions are sorted by luck, and the other half takes the difference back."""
    alike = Population(np.tile([0.5, 0.5, 0.0], (200, 1)), np.zeros((200, 2), dtype=np.float32))
    found = find_archetypes(study(alike, 16))
    assert np.ptp(found.again_told[:, -1]) > 0.5
    assert np.ptp(found.again[:, -1]) < 0.25


def test_runs_are_clustered_together(subject: Subject) -> None:
    shares = compose_runs([subject, subject]).shares
    assert shares.sum(axis=1) == pytest.approx(1)
    assert shares[0].tolist() == shares[1].tolist()
    expected = [share for share, _ in ARCHETYPES.values()]
    assert shares[0] == pytest.approx(expected, abs=0.07)


def test_few_different_curves_have_few_kinds() -> None:
    found = sort_archetypes(np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    assert found.names == ("easy", "hard")
    assert found.cluster.tolist() == [0, 1, 0]


def test_bands_follow_what_the_source_says() -> None:
    single = np.array([0.9, 0.1, 0.8, 0.2])
    named = read_bands(["b", "a", "b", "a"], single)
    assert named is not None
    assert (named.names, named.band.tolist()) == (("b", "a"), [0, 1, 0, 1])
    numbered = read_bands(["level 2", "level 10", "level 2", "level 3"], single)
    assert numbered is not None
    assert numbered.names == ("level 2", "level 3", "level 10")
    many = read_bands([f"problem {i} of 15" for i in range(15)], np.zeros(15))
    assert many is not None
    assert many.names == ("0 to 4", "5 to 9", "10 to 14")
    barred = read_bands([f"{'ab'[i % 2]} | {i} {'x' * i}" for i in range(20)], np.zeros(20))
    assert barred is not None
    assert set(barred.names) == {"a", "b"}
    assert read_bands(["a", None], single[:2]) is None
    assert read_bands(["a", "a"], single[:2]) is None
    assert read_bands([f"name {'x' * i}" for i in range(20)], np.zeros(20)) is None


def test_equal_parts_differ_by_one_at_most() -> None:
    parts = np.bincount(cut_evenly(np.random.default_rng(0).random(103), 5))
    assert parts.max() - parts.min() <= 1
