"""Learners: models fitted to features. Only this module imports xgboost and scikit-learn.

The paper's classifier is gradient-boosted trees (100 trees, depth 5, learning rate 0.1). The four
others of its ablation are refitted for comparison and cannot be saved in a bundle. Learners know
features and targets, but not questions, prices or policies.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from adacompute.core.errors import ConfigError, DataError, needs_extra
from adacompute.core.types import Float32Array, FloatArray, IntArray
from adacompute.policies.trees import UNSEEN_LEVEL_SCORE, Predictor, from_booster

CLASSIFIERS = ("gbm", "logistic", "svm", "forest", "mlp")
N_TREES = 100
GBM = {"max_depth": 5, "eta": 0.1}  # the paper's

SOFTMAX_INVERSE_PENALTIES = (0.003, 0.02, 0.1, 0.3)
"""Inverse penalties of the softmax regression that are tried."""

SOFTMAX_FOLDS = 3
SOFTMAX_MIN_Z = 1.64
"""Standard errors by which a gain in likelihood must exceed 0."""

MIN_PROBABILITY = 1e-3
"""Probability of a label that does not occur in the training folds."""


@dataclass(frozen=True, eq=False)
class _ScikitClassifier:
    """A scikit-learn classifier with a score for every level, also for those it never saw."""

    model: Any
    n_levels: int

    def predict(self, features: Float32Array) -> FloatArray:
        scores = np.full((len(features), self.n_levels), UNSEEN_LEVEL_SCORE)
        scores[np.arange(len(features)), self.model.predict(features)] = 1.0
        return scores


def fit_classifier(
    features: Float32Array,
    label: IntArray,
    *,
    n_levels: int,
    classifier: str = "gbm",
    seed: int = 0,
) -> Predictor:
    """Fit a classifier of levels; it chooses the level with the largest score."""
    if classifier not in CLASSIFIERS:
        raise ConfigError(f"classifier must be one of {CLASSIFIERS}, got {classifier!r}")
    present, index = np.unique(label, return_inverse=True)
    if classifier == "gbm" or len(present) == 1:
        booster = boost(features, index, tree_settings(len(present)), seed=seed)
        return from_booster(booster.save_raw("json"), level=present, n_levels=n_levels)
    model = _scikit_classifier(classifier, seed)
    from sklearn.exceptions import ConvergenceWarning

    try:
        with warnings.catch_warnings():
            # The paper's network trains for a fixed number of epochs, converged or not.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return _ScikitClassifier(model.fit(features, label), n_levels)
    except ValueError as error:
        raise DataError(
            f"classifier {classifier!r} cannot be fitted to these questions ({error}): use 'gbm'"
        ) from None


def tree_settings(n_labels: int) -> dict[str, Any]:
    """Return the settings of the paper's trees, for this many different labels."""
    if n_labels == 1:  # nothing to learn: any constant score will do
        return {"objective": "reg:squarederror"}
    return {"objective": "multi:softprob", "num_class": n_labels, **GBM}


def boost(
    features: Float32Array,
    target: IntArray | FloatArray,
    settings: dict[str, Any],
    *,
    seed: int,
) -> Any:  # noqa: ANN401 - a booster of xgboost
    """Fit trees with these settings, always on one thread."""
    with needs_extra("router"):
        import xgboost

    data = xgboost.DMatrix(features, target, nthread=1)
    # What xgboost.train does, without its callbacks and its copy of the result.
    options = {**settings, "seed": seed, "nthread": 1, "verbosity": 0}
    booster = xgboost.Booster(options, [data])
    for step in range(N_TREES):
        booster.update(data, step)
    return booster


def single_threaded() -> AbstractContextManager[Any]:
    """Limit numerical libraries to one thread: for small problems that is ten times faster."""
    return cast("AbstractContextManager[Any]", _thread_pools().limit(limits=1))


@cache
def _thread_pools() -> Any:  # noqa: ANN401 - threadpoolctl has no types
    """Find the thread pools of the libraries that fits use, which are loaded by then."""
    import sklearn.cluster
    import sklearn.linear_model  # noqa: F401 - it depends on threadpoolctl, and loads the pools
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def fit_clusters(
    points: FloatArray, n_clusters: int, *, n_starts: int = 3, seed: int = 0
) -> tuple[IntArray, FloatArray]:
    """Return the cluster of each point, and the centres; fewer clusters if points coincide.

    Of ``n_starts`` random starts the best is kept.
    """
    n_clusters = min(n_clusters, len(np.unique(points, axis=0)))
    from sklearn.cluster import KMeans

    model = KMeans(n_clusters, n_init=n_starts, random_state=seed).fit(points)
    return model.labels_.astype(np.int64), model.cluster_centers_


def assign_folds(group: IntArray, n_folds: int, *, seed: int = 0) -> IntArray:
    """Return a fold for each question; questions of one group share a fold.

    Groups are numbered from 0 by their first question, as ``number_by_appearance`` does.
    """
    return (np.random.default_rng(seed).permutation(int(group.max()) + 1) % n_folds)[group]


def fit_softmax(
    points: FloatArray,
    label: IntArray,
    group: IntArray,
    *,
    inverse_penalty: float | None = None,
    seed: int = 0,
) -> tuple[float, Any] | None:
    """Fit the probability of each label at a point; None if points do not predict labels reliably.

    Returns the inverse penalty, and a model of scikit-learn. Labels are 0, 1, … and all occur.
    Copies of a question are one group. The inverse penalty is chosen by cross-validated likelihood,
    which must be better than that of constant label shares by more than chance. If an
    ``inverse_penalty`` is given, neither is done.
    """
    if inverse_penalty is None:
        fold = assign_folds(group, SOFTMAX_FOLDS, seed=seed)
        if any(len(np.unique(label[fold != f])) == 1 for f in range(SOFTMAX_FOLDS)):
            return None
        gains = {
            tried: _held_out_gain(points, label, fold, tried, seed)
            for tried in SOFTMAX_INVERSE_PENALTIES
        }
        inverse_penalty = max(gains, key=lambda tried: float(gains[tried].mean()))
        best = gains[inverse_penalty]
        deviation = np.bincount(group, best - best.mean())  # copies count as one
        error = float(np.sqrt(len(deviation) * deviation.var(ddof=1))) / len(points)
        if best.mean() < SOFTMAX_MIN_Z * error:
            return None
    return inverse_penalty, _logistic_regression(points, label, inverse_penalty, seed)


def _held_out_gain(
    points: FloatArray, label: IntArray, fold: IntArray, inverse_penalty: float, seed: int
) -> FloatArray:
    """Return the held-out log-likelihood of each label minus that of its share."""
    gain = np.zeros(len(points))
    for held_out in (fold == f for f in range(SOFTMAX_FOLDS)):
        train = ~held_out
        share = np.bincount(label[train], minlength=int(label.max()) + 1) / train.sum()
        model = _logistic_regression(points[train], label[train], inverse_penalty, seed)
        predicted = np.zeros((int(held_out.sum()), len(share)))
        predicted[:, model.classes_] = model.predict_proba(points[held_out])
        of_label = predicted[np.arange(len(predicted)), label[held_out]]
        of_share = share[label[held_out]]
        gain[held_out] = np.log(
            np.maximum(of_label, MIN_PROBABILITY) / np.maximum(of_share, MIN_PROBABILITY)
        )
    return gain


def _logistic_regression(
    points: FloatArray, label: IntArray, inverse_penalty: float, seed: int
) -> Any:  # noqa: ANN401 - scikit-learn has no types
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=inverse_penalty, max_iter=300, random_state=seed)
    return model.fit(points, label)


def _scikit_classifier(name: str, seed: int) -> Any:  # noqa: ANN401 - scikit-learn has no types
    """Return one of the paper's other classifiers, on standardised features."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    if name == "logistic":
        model = LogisticRegression(max_iter=2000)
    elif name == "svm":
        model = SVC(kernel="rbf", random_state=seed)
    elif name == "forest":
        model = RandomForestClassifier(n_estimators=N_TREES, random_state=seed)
    else:
        model = MLPClassifier((64,), random_state=seed)
    return make_pipeline(StandardScaler(), model)
