from __future__ import annotations

import sys

import numpy as np
import pytest
import xgboost

from adacompute.core.errors import ConfigError, DataError, MissingExtra
from adacompute.core.types import Float32Array, IntArray
from adacompute.policies.learners import CLASSIFIERS, fit_classifier
from adacompute.policies.trees import UNSEEN_LEVEL_SCORE


def halves(questions: int = 160) -> tuple[Float32Array, IntArray]:
    """Return labels of two levels out of five, separated by a line in two features."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(questions, 3)).astype(np.float32)
    return features, np.where(features[:, 0] + features[:, 1] > 0, 3, 1)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers_learn_and_never_choose_unseen_levels(kind: str) -> None:
    features, label = halves()
    scores = fit_classifier(features, label, n_levels=5, classifier=kind).predict(features)
    assert scores.shape == (160, 5)
    choice = scores.argmax(axis=1)
    assert set(choice.tolist()) == {1, 3}
    assert (choice == label).mean() > 0.8
    assert (scores[:, [0, 2, 4]] <= UNSEEN_LEVEL_SCORE * 0.99).all()


def test_trees_have_the_papers_hyper_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    boosters: list[tuple[dict[str, object], xgboost.Booster]] = []

    def record(params: dict[str, object], data: list[xgboost.DMatrix]) -> xgboost.Booster:
        boosters.append((params, xgboost.core.Booster(params, data)))
        return boosters[-1][1]

    monkeypatch.setattr(xgboost, "Booster", record)
    fit_classifier(*halves(), n_levels=5)
    ((params, booster),) = boosters
    assert booster.num_boosted_rounds() == 100
    assert (params["max_depth"], params["eta"]) == (5, 0.1)
    assert params["objective"] == "multi:softprob"


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_single_label_gives_a_constant_classifier(kind: str) -> None:
    features, _ = halves(20)
    fitted = fit_classifier(features, np.full(20, 2), n_levels=4, classifier=kind)
    assert (fitted.predict(features).argmax(axis=1) == 2).all()


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_same_seed_fits_the_same_classifier(kind: str) -> None:
    features, label = halves(80)
    first = fit_classifier(features, label, n_levels=5, classifier=kind, seed=3).predict(features)
    again = fit_classifier(features, label, n_levels=5, classifier=kind, seed=3).predict(features)
    assert (first == again).all()


def test_network_learns_from_all_questions() -> None:
    # With early stopping, a tenth of the questions is set aside: of one such label, often all.
    features, _ = halves(30)
    label = np.zeros(30, dtype=np.int64)
    label[0], features[0] = 1, 5.0
    fitted = fit_classifier(features, label, n_levels=2, classifier="mlp")
    assert (fitted.predict(features).argmax(axis=1) == label).all()


def test_a_classifier_that_cannot_be_fitted_raises_data_error() -> None:
    features, label = halves(30)
    features[0, 0] = np.nan
    with pytest.raises(DataError, match=r"'mlp'"):
        fit_classifier(features, label, n_levels=2, classifier="mlp")


def test_an_unknown_classifier_is_rejected() -> None:
    features, label = halves(20)
    with pytest.raises(ConfigError, match=r"one of \('gbm', .*\), got 'oracle'"):
        fit_classifier(features, label, n_levels=5, classifier="oracle")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingExtra, match=r"needs xgboost, .*'adacompute\[router\]'"):
        fit_classifier(*halves(20), n_levels=5)
