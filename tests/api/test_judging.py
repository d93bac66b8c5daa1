"""`calibrate` and `evaluate` refit inside folds: no policy is scored on what it was fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacompute as ada
from adacompute.api.estimators import ESTIMATORS
from adacompute.stages.calibrate import calibrate_run
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run

LEVELS = (1, 2, 4, 8)


class KnownLevels(ada.Policy):
    """A policy that looks up the levels of questions it knows, and takes one sample of others."""

    def __init__(self, known: dict[int, int], levels: tuple[int, ...] = LEVELS) -> None:
        self.levels = ada.make_levels(levels)
        self.known = known

    def prepare_features(self, features: Any) -> Any:
        return features[:, :0]

    def decide(self, state: ada.State, price: float) -> Any:
        assert price > 0
        wanted = np.array([self.known.get(int(key), 0) for key in state.key])
        return np.where(state.level < 0, wanted, state.level)


def memorise(samples: ada.Samples) -> dict[int, int]:
    """Return the best level of each question, by its own answers."""
    best = samples.utility_table(LEVELS).utility.argmax(axis=1)
    return dict(zip(samples.keys.tolist(), best.tolist(), strict=True))


class Memoriser(ada.Estimator):
    """Knows the answers of the questions that it was fitted to."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def fit(self, samples: ada.Samples) -> Memoriser:
        self.policy_ = KnownLevels(memorise(samples))
        self.seen_ = len(samples)
        return self


class Duck:
    """The same without our base class, as one that derives from scikit-learn's would be."""

    def get_params(self, *, deep: bool = True) -> dict[str, Any]:
        assert deep in (True, False)
        return {}

    def fit(self, samples: ada.Samples) -> Duck:
        self.policy_ = KnownLevels(memorise(samples))
        return self


@pytest.mark.nightly
def test_a_memorising_policy_gains_nothing(example: ada.Samples) -> None:
    memoriser = Memoriser().fit(example)
    unfair = ada.Pretrained(memoriser.policy_, trained_on="nothing")  # a lie
    scores = ada.evaluate(
        {"honest": memoriser, "duck": Duck(), "unfair": unfair}, example, budgets=[2.0]
    )
    gain = {row["policy"]: row["difference"] for row in scores.rows}
    accuracy = {row["policy"]: row["accuracy"] for row in scores.rows}
    assert accuracy["unfair"] > accuracy["honest"] + 0.04  # it knows the questions
    assert gain["honest"] == pytest.approx(0.0, abs=1e-9)
    assert gain["duck"] == pytest.approx(0.0, abs=1e-9)


def test_a_memorising_policy_is_judged_as_no_gain(example: ada.Samples) -> None:
    memoriser = Memoriser().fit(example)
    result = ada.calibrate(memoriser, example, budget=1.0)
    assert result.verdict != "gain"
    assert result.gain == pytest.approx(0.0, abs=1e-9)
    assert memoriser.seen_ == 300  # the policy itself was not refitted
    duck = Duck().fit(example)
    assert ada.calibrate(duck, example, budget=1.0).gain == pytest.approx(0.0, abs=1e-9)  # type: ignore[arg-type]
    assert duck.frontier_  # type: ignore[attr-defined]


def test_folds_are_fitted_to_training_questions_only(hundred: ada.Samples) -> None:
    seen: list[set[str]] = []

    class Watcher(Memoriser):
        def fit(self, samples: ada.Samples) -> Watcher:
            seen.append(set(samples.question_ids))
            super().fit(samples)
            return self

    ada.evaluate(Watcher(), hundred, budgets=[2.0])
    everything = set(hundred.question_ids)
    thirds = [fold for fold in seen if len(fold) < len(everything) / 2]
    held_out = [everything - fold for fold in seen if fold not in thirds]
    assert (len(held_out), len(thirds)) == (5, 9)  # the folds, and three splits into thirds
    assert set.union(*held_out) == everything
    assert sum(map(len, held_out)) == len(everything)
    seen.clear()
    ada.evaluate({"a": Watcher()}, hundred, budgets=[2.0], drop_unparsed=True)
    assert all(fold < everything for fold in seen)


def test_bare_policies_and_loaded_ones_without_a_recipe_are_refused(
    hundred: ada.Samples, tmp_path: Path
) -> None:
    policy = ada.Mixture().fit(hundred).policy_
    with pytest.raises(ada.DataError, match="Pretrained"):
        ada.evaluate([policy], hundred, budgets=[2.0])
    with pytest.raises(ada.DataError, match="Pretrained"):
        ada.calibrate(policy, hundred, budget=2.0)
    ada.Pretrained(policy).save(tmp_path / "policy")
    loaded = ada.load_policy(tmp_path / "policy")
    assert isinstance(loaded, ada.Pretrained)
    with pytest.raises(ada.DataError, match="trained_on"):
        ada.evaluate([loaded], hundred, budgets=[2.0])


def test_pretrained_policies_are_scored_on_other_questions_only(example: ada.Samples) -> None:
    first, second = example.take(range(150)), example.take(range(150, 300))
    policy = ada.AdaptiveConsistency().fit(first).policy_
    pretrained = ada.Pretrained(policy, trained_on=first)
    assert ada.evaluate([pretrained], second, budgets=[3.0]).rows
    for seen in (first, example, example.take(range(149, 300))):
        with pytest.raises(ada.DataError, match="trained on"):
            ada.evaluate([pretrained], seen, budgets=[3.0])


def test_loaded_policies_are_refitted(hundred: ada.Samples, tmp_path: Path) -> None:
    ada.Router(levels=LEVELS).fit(hundred).save(tmp_path / "policy")
    loaded = ada.load_policy(tmp_path / "policy")
    fresh = ada.Router(levels=LEVELS)
    scores = ada.evaluate({"loaded": loaded, "fresh": fresh}, hundred, budgets=[2.0])
    left, right = scores.rows
    assert {**left, "policy": ""} == {**right, "policy": ""}
    assert ada.calibrate(loaded, hundred, budget=2.0).price > 0


@pytest.mark.slow
def test_evaluate_is_what_the_command_line_prints(source: Path, tmp_path: Path) -> None:
    names = ["mixture", "router", "adaptive-consistency", "sequential"]
    import_samples(source, tmp_path / "run", grader="numeric")
    printed = evaluate_run(tmp_path / "run", budgets=(1.5, 2.0), policies=[*names, "oracle"])
    estimators = [ESTIMATORS[name]() for name in names]
    samples = ada.read_samples(source, grader="numeric")
    scores = ada.evaluate([*estimators, "oracle"], samples, budgets=[1.5, 2])
    common = set(scores.rows[0])
    rows = [{name: row[name] for name in common} for row in printed["rows"]]
    assert [{name: row[name] for name in common} for row in scores.rows] == rows
    assert scores.n_questions == printed["questions"] == 24
    strings = ada.evaluate([*names, "oracle"], samples, budgets=[1.5, 2])
    assert strings.rows == printed["rows"]


@pytest.mark.slow
def test_calibrate_is_what_the_command_line_does(tmp_path: Path, example: ada.Samples) -> None:
    import_samples(Path("example"), tmp_path / "run", grader="numeric")
    train_run(tmp_path / "run", policy="adaptive-consistency", out=tmp_path / "bundle")
    printed = calibrate_run(tmp_path / "run", bundle=tmp_path / "bundle", budget=3.0)
    policy = ada.AdaptiveConsistency().fit(example)
    result = ada.calibrate(policy, example, budget=3.0)
    own = {"bundle", "bundle_digest", "questions", "independent_questions", "fold_assignments"}
    assert not {name for name in printed if name not in vars(result)} - own
    for name in set(printed) & set(vars(result)):
        assert getattr(result, name) == printed[name], name
    loaded = ada.load_policy(tmp_path / "bundle")
    assert loaded.frontier_ == policy.frontier_ == result.frontier
    policy.save(tmp_path / "saved")
    assert ada.load_policy(tmp_path / "saved").frontier_ == result.frontier
    again = calibrate_run(tmp_path / "run", bundle=tmp_path / "saved", budget=3.0)
    assert {name: again[name] for name in again if name not in own - {"questions"}} == {
        name: printed[name] for name in printed if name not in own - {"questions"}
    }


def test_calibration_sets_the_price_of_budgets(hundred: ada.Samples) -> None:
    policy = ada.AdaptiveConsistency().fit(hundred)
    result = ada.calibrate(policy, hundred, budget=3.0, confidence=0.9)
    assert (result.budget, result.confidence, result.margin) == (3.0, 0.9, 0.005)
    assert policy.price_for(2.5) >= policy.price_for(3.0) >= policy.price_for(5.0) > 0
    assert policy.price_for(3.0) == result.price
    assert result.cost == pytest.approx(3.0, abs=1e-9)
    assert result.cost_low < 3.0 < result.cost_high
    assert result.gain_low <= result.gain <= result.gain_high
    with pytest.raises(ada.InfeasibleBudget, match=r"0\.5"):
        policy.price_for(0.5)
    policy.fit(hundred)
    with pytest.raises(ada.NotFittedError, match="calibrate"):
        policy.price_for(3.0)


def test_infeasible_budgets_are_refused(hundred: ada.Samples) -> None:
    policy = ada.Mixture().fit(hundred)
    with pytest.raises(ada.InfeasibleBudget, match=r"0\.5"):
        ada.calibrate(policy, hundred, budget=0.5)
    with pytest.raises(ada.InfeasibleBudget, match=r"0\.5"):
        ada.evaluate(policy, hundred, budgets=[0.5, 2.0])
    ada.calibrate(policy, hundred, budget=2.0)
    with pytest.raises(ada.InfeasibleBudget, match=r"0\.5"):
        policy.start("What is 1 + 1?", budget=0.5)

    async def model(prompt: str, n: int) -> list[str]:
        return [prompt] * n

    with pytest.raises(ada.InfeasibleBudget, match=r"0\.5"):
        ada.Sampler(policy, model=model, grader="numeric", budget=0.5)


def test_budgets_and_samples_that_cannot_be_used_give_one_warning(hundred: ada.Samples) -> None:
    recorded = hundred.n_samples // len(hundred)
    with pytest.warns(UserWarning, match=f"max_samples is {recorded + 1}") as caught:
        policy = ada.DecidedVotes(max_samples=recorded + 1).fit(hundred)
    assert [Path(one.filename) for one in caught] == [Path(__file__)]
    with pytest.warns(UserWarning, match="budget of 500") as caught:
        result = ada.calibrate(policy, hundred, budget=500)
    assert [Path(one.filename) for one in caught] == [Path(__file__)]
    assert result.max_budget == max(point.budget for point in result.frontier) < 500
    for wrong in (0, -1, 2.5, "many"):
        with pytest.raises(ada.ConfigError, match="max_samples"):
            ada.DecidedVotes(max_samples=wrong).fit(hundred)  # type: ignore[arg-type]


def test_progress_is_reported(hundred: ada.Samples, capsys: pytest.CaptureFixture[str]) -> None:
    policy, steps = ada.Mixture(max_samples=4).fit(hundred), list[str]()
    ada.calibrate(policy, hundred, budget=2.0, progress=steps.append)
    assert steps == ["mixture", "folds"]
    steps.clear()
    ada.evaluate([policy, "fixed"], hundred, budgets=[2.0], progress=steps.append)
    assert steps[-1] == "fixed"
    assert "mixture" in steps
    ada.evaluate("fixed", hundred, budgets=[2.0], progress=False)
    assert capsys.readouterr() == ("", "")
    ada.evaluate("fixed", hundred, budgets=[2.0], progress=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[-1]) == ("", "adacompute: fixed")
    with pytest.raises(ada.ConfigError, match="progress"):
        ada.evaluate("fixed", hundred, progress="yes")  # type: ignore[arg-type]


def test_results_are_tables(hundred: ada.Samples) -> None:
    policy = ada.Mixture().fit(hundred)
    result = ada.calibrate(policy, hundred, budget=2.0)
    assert result.to_arrow().num_rows == len(result.frontier) > 2
    assert {"price", "cost", "accuracy"} <= set(result.to_arrow().column_names)
    assert result.verdict in repr(result)
    assert result.verdict in result._repr_html_()
    scores = ada.evaluate(["mixture", "fixed", "oracle"], hundred, budgets=[1.5, 2, 4])
    table = scores.to_arrow()
    assert table.num_rows == 9
    assert table["policy"].to_pylist() == ["mixture"] * 3 + ["fixed"] * 3 + ["oracle"] * 3
    assert len(repr(scores).splitlines()) == 11
    assert scores._repr_html_().count("<tr>") == 1 + 3  # a row per policy
    pytest.importorskip("pandas")
    assert len(scores.to_pandas()) == 9
    assert len(result.to_pandas()) == len(result.frontier)


def test_rows_are_named_by_kind_or_by_parameters(hundred: ada.Samples) -> None:
    policies: list[Any] = [
        ada.Mixture(max_samples=2),
        ada.Mixture(max_samples=4),
        "fixed",
        "mixture",
    ]
    names = [row["policy"] for row in ada.evaluate(policies, hundred, budgets=[1.5]).rows]
    assert names[2:] == ["fixed", "mixture"]
    assert "max_samples=2" in names[0]
    assert "max_samples=4" in names[1]
    with pytest.raises(ada.ConfigError, match="twice"):
        ada.evaluate([ada.Mixture(), ada.Mixture()], hundred, budgets=[1.5])


def test_every_policy_keeps_to_its_own_levels(hundred: ada.Samples) -> None:
    scores = ada.evaluate(
        {"two": ada.Mixture(max_samples=2), "sixteen": ada.Mixture()}, hundred, budgets=[2, 8]
    )
    cost = {(row["policy"], row["budget"]): row["cost"] for row in scores.rows}
    assert cost["two", 8.0] == pytest.approx(2.0)
    assert cost["sixteen", 8.0] == pytest.approx(8.0)
    assert scores.levels == (1, 2, 4, 8, 16)


def test_router_parameters_reach_the_folds(hundred: ada.Samples) -> None:
    routers = {
        "plain": ada.Router(levels=LEVELS),
        "words": ada.Router(levels=LEVELS, features="words"),
        "seeded": ada.Router(levels=LEVELS, seed=7),
    }
    rows = ada.evaluate(routers, hundred, budgets=[2.0]).rows
    assert len({row["accuracy"] for row in rows}) > 1
    assert {row["policy"] for row in rows} == set(routers)


@pytest.mark.parametrize(
    ("policies", "arguments", "named"),
    [
        ([], {}, "at least one"),
        (["nonsense"], {}, "nonsense"),
        ([3], {}, "int"),
        (["mixture"], {"budgets": [0.1]}, r"0\.1"),
        (["mixture"], {"budgets": []}, "budget"),
        (["mixture"], {"levels": [4, 2]}, "levels"),
        (["mixture"], {"seed": -1}, "seed"),
        ([ada.Pretrained(KnownLevels({}, (1, 40)), trained_on="nothing")], {}, "40"),
    ],
)
def test_wrong_arguments_of_evaluate_are_refused(
    policies: Any, arguments: dict[str, Any], named: str, hundred: ada.Samples
) -> None:
    with pytest.raises(ada.AdaComputeError, match=named):
        ada.evaluate(policies, hundred, **arguments)


def test_wrong_arguments_of_calibrate_are_refused(hundred: ada.Samples, small: ada.Samples) -> None:
    policy = ada.Mixture().fit(hundred)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"budget": -1.0}, "-1"),
        ({"budget": 0.5}, "0.5"),
        ({"budget": 2.0, "confidence": 1.5}, "1.5"),
    ]
    for arguments, named in wrong:
        with pytest.raises(ada.AdaComputeError, match=named):
            ada.calibrate(policy, hundred, **arguments)
    with pytest.raises(ada.DataError, match="other samples"):
        ada.calibrate(policy, small, budget=2.0)
    tokens = ada.read_samples(hundred, unit="tokens")
    with pytest.raises(ada.DataError, match="costs"):
        ada.calibrate(policy, tokens, budget=20.0)


@pytest.mark.nightly
def test_tokens_are_a_unit_of_the_budget(hundred: ada.Samples) -> None:
    tokens = ada.read_samples(hundred, unit="tokens", grader="numeric")
    policy = ada.Sequential().fit(tokens)
    result = ada.calibrate(policy, tokens, budget=20.0)
    assert result.unit == "tokens"
    assert result.cost == pytest.approx(20)
    scores = ada.evaluate([policy, "mixture"], tokens)
    assert scores.unit == "tokens"
    assert min(row["budget"] for row in scores.rows) > 6


def test_an_estimator_that_sets_no_policy_is_refused(hundred: ada.Samples) -> None:
    class Nothing(ada.Estimator):
        def fit(self, samples: ada.Samples) -> Nothing:
            assert len(samples)
            return self

    with pytest.raises(ada.NotFittedError, match="Nothing"):
        ada.evaluate(Nothing(), hundred, budgets=[2.0])


def test_a_policy_that_reads_words_is_calibrated_with_them(hundred: ada.Samples) -> None:
    policy = ada.Sequential().fit(hundred)
    experiment = policy.make_experiment(hundred, budget=2.0)
    fitted = policy.as_fitted(hundred, experiment, np.arange(len(experiment.pool)))
    words = experiment.pool.sequential_features
    assert words is not None
    assert np.array_equal(fitted.features, words)
