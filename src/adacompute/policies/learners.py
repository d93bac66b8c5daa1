"""Learners: models fitted to features, the only door to xgboost and scikit-learn.

The paper's classifier is gradient-boosted trees (100 trees, depth 5, rate 0.1); the four others of
its ablation are refitted for comparison and never bundled. The regressor predicts the utility of
every level at once. They know features and targets, not questions, prices or policies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from adacompute.core.errors import ConfigError, DataError, require
from adacompute.core.types import BoolArray, Float32Array, FloatArray, IntArray
from adacompute.policies.inference import UNSEEN_LEVEL_SCORE, OnnxModel, Predictor, trees_to_onnx

CLASSIFIERS = ("gbm", "logistic", "svm", "forest", "mlp")
TREES = 100
GBM = {"max_depth": 5, "eta": 0.1}  # the paper's
SOFTMAX_STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)
SOFTMAX_FOLDS = 5
SOFTMAX_SURE = 1.64
"""Standard errors by which a gain must differ from none."""

UNSEEN = 1e-3
"""Chance given to a label that the other folds do not have."""

VALUE_GBM = {"max_depth": 3, "eta": 0.05, "min_child_weight": 10, "subsample": 0.8}


@dataclass(frozen=True, eq=False)
class _Refitted:
    """A scikit-learn classifier with a score for every level, those it never saw included."""

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
    weight: FloatArray | None = None,
    classifier: str = "gbm",
    seed: int = 0,
) -> Predictor:
    """Fit a classifier of levels; the one of largest score is its choice."""
    if classifier not in CLASSIFIERS:
        raise ConfigError(f"classifier must be one of {CLASSIFIERS}, not {classifier!r}")
    present, index = np.unique(label, return_inverse=True)
    if classifier == "gbm" or len(present) == 1:
        return _fit_trees(features, index, present, n_levels=n_levels, weight=weight, seed=seed)
    model = _scikit(classifier, seed)
    step = model.steps[-1][0]
    weights = {} if weight is None or classifier == "mlp" else {f"{step}__sample_weight": weight}
    try:
        return _Refitted(model.fit(features, label, **weights), n_levels)
    except ValueError as error:
        raise DataError(
            f"classifier {classifier!r} cannot be fitted to these questions ({error}): use 'gbm'"
        ) from None


def _fit_trees(
    features: Float32Array,
    index: IntArray,
    present: IntArray,
    *,
    n_levels: int,
    weight: FloatArray | None,
    seed: int,
) -> OnnxModel:
    settings = {"objective": "multi:softprob", "num_class": len(present), **GBM}
    if len(present) == 1:  # nothing to learn: any constant will do
        settings = {"objective": "reg:squarederror"}
    raw = _boost(features, index, settings, weight=weight, seed=seed)
    return OnnxModel(
        trees_to_onnx(raw, features=features.shape[1], outputs=n_levels, output_of=present)
    )


def fit_values(features: Float32Array, utility: FloatArray, *, seed: int = 0) -> OnnxModel:
    """Fit a regressor of the utility of every level, (N, F) → (N, K)."""
    settings = {"objective": "reg:squarederror", **VALUE_GBM}
    raw = _boost(features, utility, settings, weight=None, seed=seed)
    levels = utility.shape[1]
    return OnnxModel(
        trees_to_onnx(raw, features=features.shape[1], outputs=levels, output_of=np.arange(levels))
    )


def _boost(
    features: Float32Array,
    target: IntArray | FloatArray,
    settings: dict[str, Any],
    *,
    weight: FloatArray | None,
    seed: int,
) -> bytes:
    xgboost = require("xgboost", extra="train")
    data = xgboost.DMatrix(features, target, weight=weight, nthread=1)
    booster = xgboost.train({**settings, "seed": seed, "nthread": 1, "verbosity": 0}, data, TREES)
    return bytes(booster.save_raw("json"))


def single_threaded() -> AbstractContextManager[Any]:
    """Keep small problems on one thread: handing them round takes ten times what they do."""
    require("sklearn", extra="train")  # it brings threadpoolctl, and is what to name if missing
    limits = require("threadpoolctl", extra="train").threadpool_limits
    return cast("AbstractContextManager[Any]", limits(1))


def fit_clusters(points: FloatArray, count: int, *, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """Cluster of each point, and the centres: fewer than asked for when points coincide."""
    count = min(count, len(np.unique(points, axis=0)))
    cluster = require("sklearn.cluster", extra="train")
    model = cluster.KMeans(count, n_init=3, random_state=seed).fit(points)
    return model.labels_.astype(np.int64), model.cluster_centers_


class Softmax(NamedTuple):
    """How likely each label is at given points, and how far the points were let tell."""

    strength: float
    probabilities: Callable[[FloatArray], FloatArray]


def assign_folds(group: IntArray, folds: int, *, seed: int = 0) -> IntArray:
    """Fold of each question for choosing settings: questions of one group share it.

    Groups are numbered by their first question, as ``number_groups`` does.
    """
    return (np.random.default_rng(seed).permutation(int(group.max()) + 1) % folds)[group]


def fit_softmax(
    points: FloatArray,
    label: IntArray,
    group: IntArray,
    *,
    strength: float | None = None,
    seed: int = 0,
) -> Softmax | None:
    """Fit how likely each label is at a point; None where the points tell nothing for sure.

    Labels are 0, 1, … and each is there; copies of a question are one group. How far the points
    may tell is chosen by the likelihood of labels that were left out, and it must beat that of the
    labels' shares by more than chance; unless a ``strength`` is given, which was chosen so before.
    """
    linear = require("sklearn.linear_model", extra="train")
    fold = assign_folds(group, SOFTMAX_FOLDS, seed=seed)

    def fit(strength: float, rows: BoolArray) -> Any:  # noqa: ANN401 - scikit-learn has no types
        model = linear.LogisticRegression(C=strength, max_iter=300, random_state=seed)
        return model.fit(points[rows], label[rows])

    def gain(strength: float) -> FloatArray:
        """Log-likelihood of each label that was left out, over that of its share."""
        found = np.zeros(len(points))
        for held in (fold == f for f in range(SOFTMAX_FOLDS)):
            share = np.bincount(label[~held], minlength=int(label.max()) + 1) / (~held).sum()
            model = fit(strength, ~held)
            chance = np.zeros((int(held.sum()), len(share)))
            chance[:, model.classes_] = model.predict_proba(points[held])
            told = chance[np.arange(len(chance)), label[held]]
            found[held] = np.log(np.maximum(told, UNSEEN) / np.maximum(share[label[held]], UNSEEN))
        return found

    if strength is None:
        if any(len(np.unique(label[fold != f])) == 1 for f in range(SOFTMAX_FOLDS)):
            return None
        gains = {tried: gain(tried) for tried in SOFTMAX_STRENGTHS}
        strength = max(gains, key=lambda tried: float(gains[tried].mean()))
        away = np.bincount(group, gains[strength] - gains[strength].mean())  # copies count as one
        error = float(np.sqrt(len(away) * away.var(ddof=1))) / len(points)
        if gains[strength].mean() < SOFTMAX_SURE * error:
            return None
    model = fit(strength, np.ones(len(points), dtype=np.bool_))
    return Softmax(strength, lambda points: np.asarray(model.predict_proba(points), np.float64))


def _scikit(classifier: str, seed: int) -> Any:  # noqa: ANN401 - scikit-learn has no types
    """Return the paper's other classifiers, on standardised features."""
    pipeline = require("sklearn.pipeline", extra="train")
    scale = require("sklearn.preprocessing", extra="train").StandardScaler()
    if classifier == "logistic":
        model = require("sklearn.linear_model", extra="train").LogisticRegression(max_iter=2000)
    elif classifier == "svm":
        model = require("sklearn.svm", extra="train").SVC(kernel="rbf", random_state=seed)
    elif classifier == "forest":
        ensemble = require("sklearn.ensemble", extra="train")
        model = ensemble.RandomForestClassifier(n_estimators=TREES, random_state=seed)
    else:
        network = require("sklearn.neural_network", extra="train")
        model = network.MLPClassifier((64,), early_stopping=True, random_state=seed)
    return pipeline.make_pipeline(scale, model)
