"""Estimators follow scikit-learn's conventions, checked with scikit-learn itself."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacompute as ada
from adacompute.api.estimator import clone
from adacompute.api.estimators import ESTIMATORS
from adacompute.evaluation.factories import TRAINABLE

EVERY = list(ESTIMATORS.values())
LEARNED = {"router", "sequential"}
CHANGES: dict[str, Any] = {
    "levels": (1, 2, 4),
    "max_samples": 4,
    "features": "words",
    "classifier": "logistic",
    "budgets": (2.0, 3.0),
    "evidence": "votes",
    "seed": 3,
}


def changed(kind: Any) -> Any:
    """Return an estimator whose every parameter differs from its default."""
    return kind(**{name: CHANGES[name] for name in inspect.signature(kind).parameters})


def test_every_kind_of_policy_has_an_estimator() -> None:
    assert set(ESTIMATORS) == set(TRAINABLE)
    assert all(getattr(ada, kind.__name__) is kind for kind in EVERY)


@pytest.mark.parametrize("kind", EVERY)
def test_parameters_are_stored_as_given_and_shown(kind: Any) -> None:
    default, other = kind(), changed(kind)
    for estimator in (default, other):
        assert vars(estimator) == estimator.get_params() == estimator.get_params(deep=True)
        again = eval(repr(estimator), vars(ada))  # noqa: S307
        assert again.get_params() == estimator.get_params()
    for name, value in CHANGES.items():
        if name in other.get_params():
            assert getattr(other, name) is value
    assert set(default.get_params().items()) & set(other.get_params().items()) == set()


@pytest.mark.parametrize("kind", EVERY)
def test_scikit_learn_clones_them(kind: Any) -> None:
    base = pytest.importorskip("sklearn.base")
    copied = base.clone(changed(kind))
    assert type(copied) is kind
    assert copied.get_params() == changed(kind).get_params()


@pytest.mark.parametrize("kind", EVERY)
def test_parameters_are_set_by_name(kind: Any) -> None:
    estimator = kind()
    params = changed(kind).get_params()
    assert estimator.set_params(**params) is estimator
    assert estimator.get_params() == params
    with pytest.raises(ValueError, match="nonsense"):
        estimator.set_params(nonsense=1)


@pytest.mark.parametrize("kind", EVERY)
def test_unfitted_estimators_raise_one_error(kind: Any, small: ada.Samples, tmp_path: Path) -> None:
    for use in (
        lambda: kind().save(tmp_path / "policy"),
        lambda: kind().price_for(2.0),
        lambda: kind().start("What is 1 + 1?", price=0.1),
        lambda: ada.calibrate(kind(), small, budget=2.0),
    ):
        with pytest.raises(ada.NotFittedError, match=kind.__name__) as caught:
            use()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize("kind", EVERY)
def test_fit_returns_the_estimator_with_learned_attributes(kind: Any, hundred: ada.Samples) -> None:
    estimator = kind()
    params = estimator.get_params()
    assert estimator.fit(hundred) is estimator
    assert estimator.get_params() == params
    learned = {name for name in vars(estimator) if not name.startswith("_")} - set(params)
    assert learned >= {"policy_", "prices_", "grader_"}
    assert all(name.endswith("_") for name in learned)
    assert len(estimator.policy_.levels) > 1
    assert list(estimator.prices_) == sorted(estimator.prices_, reverse=True)
    assert repr(estimator) == repr(kind())


@pytest.mark.parametrize("name", ["sequential", "router", "adaptive-consistency"])
def test_fit_is_what_the_command_line_trains(name: str, source: Path, tmp_path: Path) -> None:
    from adacompute.policies.bundles.bundle import load_bundle
    from adacompute.stages.import_samples import import_samples
    from adacompute.stages.train import train_run

    import_samples(source, tmp_path / "run", grader="numeric")
    train_run(tmp_path / "run", policy=name, out=tmp_path / "trained")
    trained = load_bundle(tmp_path / "trained")
    ESTIMATORS[name]().fit(ada.read_samples(source, grader="numeric")).save(tmp_path / "fitted")
    fitted = load_bundle(tmp_path / "fitted")
    assert fitted.data_hash == trained.data_hash
    assert fitted.sample_cost == trained.sample_cost
    assert fitted.baseline == trained.baseline
    assert (fitted.grader, fitted.features, fitted.unit) == ("numeric", trained.features, "samples")
    shared = set(trained.notes)
    assert {key: fitted.notes[key] for key in shared} == trained.notes
    for file in (tmp_path / "trained").iterdir():
        if file.name != "bundle.json":
            assert (tmp_path / "fitted" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("kind", EVERY)
def test_saved_policies_load_with_their_parameters(
    kind: Any, hundred: ada.Samples, tmp_path: Path
) -> None:
    fitted = kind().set_params(**{"max_samples": 8} if "max_samples" in vars(kind()) else {})
    fitted.fit(hundred).save(tmp_path / "policy")
    loaded = ada.load_policy(tmp_path / "policy")
    assert type(loaded) is kind
    assert loaded.get_params() == fitted.get_params()
    assert loaded.policy_.levels == fitted.policy_.levels
    assert loaded.grader_ is not None
    assert not hasattr(loaded, "frontier_")


def test_the_policy_that_ships_loads_calibrated() -> None:
    policy = ada.load_policy("example")
    assert isinstance(policy, ada.Sequential)
    assert policy.frontier_
    assert policy.price_for(2.0) > policy.price_for(4.0) > 0


@pytest.mark.parametrize(
    ("estimator", "named"),
    [
        (ada.Router(levels=(4, 2)), "4, 2"),
        (ada.Router(levels=()), "levels"),
        (ada.Sequential(max_samples=0), "0"),
        (ada.Sequential(seed=-1), "seed"),
        (ada.Router(features="nonsense"), "nonsense"),
        (ada.Router(levels=(64, 128)), "64"),
    ],
)
def test_wrong_parameters_are_refused_by_fit(
    estimator: ada.Estimator, named: str, small: ada.Samples
) -> None:
    with pytest.raises(ada.AdaComputeError, match=named):
        estimator.fit(small)


def test_fit_refuses_what_are_no_samples() -> None:
    with pytest.raises(ada.DataError, match="read_samples"):
        ada.Mixture().fit("samples.parquet")  # type: ignore[arg-type]


def test_more_samples_than_recorded_are_capped(small: ada.Samples) -> None:
    fitted = ada.Mixture(max_samples=16, evidence="votes").fit(small)
    assert fitted.policy_.levels[-1].n_samples == 8
    assert fitted.max_samples == 16


def test_fitted_estimators_are_pickled_and_cloned(hundred: ada.Samples) -> None:
    fitted = ada.AdaptiveConsistency(max_samples=8).fit(hundred)
    assert pickle.loads(pickle.dumps(fitted)).policy_ == fitted.policy_  # noqa: S301
    assert not hasattr(clone(fitted), "policy_")


def test_an_uncalibrated_policy_has_no_price_for_a_budget(hundred: ada.Samples) -> None:
    with pytest.raises(ada.NotFittedError, match="calibrate"):
        ada.Mixture().fit(hundred).price_for(2.0)


def test_own_policies_cannot_be_saved(tmp_path: Path) -> None:
    class One(ada.Policy):
        levels = ada.make_levels((1, 2))

        def prepare_features(self, features: Any) -> Any:
            return features

        def decide(self, state: ada.State, price: float) -> Any:
            assert price > 0
            return np.maximum(state.level, 0)

    with pytest.raises(ada.BundleError, match="One"):
        ada.Pretrained(One(), trained_on="nothing").save(tmp_path / "own")


def test_an_own_estimator_may_have_any_parameters() -> None:
    class Own(ada.Estimator):
        def __init__(self, name: str = "mine", *rest: int, **more: int) -> None:
            self.name = name
            assert not rest
            assert not more

    assert Own("other").get_params() == {"name": "other"}
    assert repr(Own()) == "Own(name='mine')"
    assert clone(Own("other")).name == "other"
