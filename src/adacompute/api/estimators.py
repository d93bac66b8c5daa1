"""Estimators: one for each kind of policy.

Each is fitted by the factory of its name in `adacompute.evaluation.factories`, on all questions by
`fit` and on training folds by `calibrate` and `evaluate`. Here are their parameters only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from adacompute.api.estimator import Estimator
from adacompute.api.samples import Samples, check_samples
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import MAX_LEVEL
from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory
from adacompute.evaluation.factories import find_factory, sees_evidence
from adacompute.features.text import feature_names
from adacompute.options.shared import ALL_EVIDENCE, DEFAULT_LEVELS
from adacompute.stages.inputs import (
    check_evidence,
    check_levels,
    check_seed,
    resolve_budgets,
)
from adacompute.stages.train import check_choice

if TYPE_CHECKING:
    from adacompute.core.types import IntArray

MAX_SAMPLES = 16


class RegisteredEstimator(Estimator):
    """An estimator that a registered factory fits."""

    kind: ClassVar[str]
    seed: int = 0
    budgets: Sequence[float] | None = None
    classifier: str = "gbm"
    evidence: str = ALL_EVIDENCE

    @property
    def row_name(self) -> str:
        """Name in tables and bundles: the kind of the policy."""
        return self.kind

    def fit(self, samples: Samples) -> Self:
        """Fit the policy to all questions."""
        experiment = self.make_experiment(check_samples(samples), budget=0.0)
        fitted = find_factory(self.kind)(experiment, np.arange(len(experiment.pool)))
        self.learn(samples, experiment, check_choice(fitted, experiment.pool, experiment.levels))
        vars(self).pop("frontier_", None)
        return self

    def check_fitted_to(self, samples: Samples) -> None:
        """Refuse samples or costs other than those that the policy was fitted to."""
        super().check_fitted_to(samples)
        bundle = self.to_bundle()
        if bundle.data_hash != samples.data_hash:
            raise DataError(f"{self!r} was fitted to other samples: fit it to these first")
        if bundle.unit != samples.unit or bundle.notes.get("costs") != samples.costs.to_dict():
            raise DataError(
                f"{self!r} was fitted with other costs, in {bundle.unit}, than these samples have: "
                "fit it to these first"
            )

    def levels_within(self, limit: int) -> tuple[int, ...]:
        """Return the numbers of samples that it chooses from, up to this many."""
        raise NotImplementedError

    def levels_of(self, experiment: Experiment) -> tuple[int, ...]:
        """Return the numbers of samples that it chooses from in an experiment."""
        return self.levels_within(max(experiment.levels))

    def make_experiment(self, samples: Samples, budget: float) -> Experiment:  # noqa: ARG002
        """Return the samples as the policy is fitted to them; no budget is needed for that."""
        pool = samples.pool(features=self.features).equalise()
        return Experiment(
            pool,
            self.levels_within(pool.n_samples),
            resolve_budgets(samples.encoded, samples.costs, self.budgets),
            seed=check_seed(self.seed),
            classifier=self.classifier,
            use_confidence=self.uses_all_evidence,
        )

    @property
    def uses_all_evidence(self) -> bool:
        """Whether ``evidence`` is all that was recorded."""
        return check_evidence(self.evidence) == ALL_EVIDENCE

    @property
    def uses_confidence(self) -> bool:
        """Whether the policy uses the confidence of samples where it is recorded."""
        return self.uses_all_evidence and sees_evidence(self.kind)

    def make_factory(self, samples: Samples) -> PolicyFactory:
        """Return the registered factory, with the parameters of this estimator."""
        if type(self).fit is not RegisteredEstimator.fit:  # a subclass learns in its own way
            return super().make_factory(samples)
        factory = find_factory(self.kind)

        @lru_cache(maxsize=1)  # every fold of an experiment shares its replay
        def adapt(experiment: Experiment) -> Experiment:
            return self._adapt(experiment, samples)

        def refit(experiment: Experiment, train: IntArray) -> FittedPolicy:
            return factory(adapt(experiment), train)

        refit.sees_evidence = self.uses_confidence  # type: ignore[attr-defined]
        return refit

    def _adapt(self, experiment: Experiment, samples: Samples) -> Experiment:
        """Return an experiment on the same questions with the parameters of this estimator."""
        own = {"seed", "classifier"} & set(self.parameter_names())
        wanted: dict[str, Any] = {name: getattr(self, name) for name in own}
        wanted["levels"] = self.levels_of(experiment)
        wanted["use_confidence"] = experiment.use_confidence and self.uses_confidence
        if self.budgets is not None:
            wanted["budgets"] = resolve_budgets(samples.encoded, samples.costs, self.budgets)
        changed = {
            name: value for name, value in wanted.items() if getattr(experiment, name) != value
        }
        if experiment.pool.features.shape[1] != len(feature_names(self.features)):
            rows = samples.positions(experiment.pool.key)
            features = samples.features(self.features)[rows]
            changed["pool"] = replace(experiment.pool, features=features)
        return replace(experiment, **changed) if changed else experiment

    def _notes(self, samples: Samples, experiment: Experiment) -> dict[str, Any]:
        names = ("levels", "budgets", "seed", "use_confidence")
        settings = {name: getattr(experiment, name) for name in names}
        return {
            **super()._notes(samples, experiment),
            "experiment": settings,
            "parameters": self.get_params(),
        }


class CappedEstimator(RegisteredEstimator):
    """An estimator that chooses any number of samples up to a maximum."""

    max_samples: int = MAX_SAMPLES

    def levels_within(self, limit: int) -> tuple[int, ...]:
        """Return the default levels up to the maximum, and the maximum."""
        cap = min(self._check_max_samples(), limit)
        return (*(n for n in DEFAULT_LEVELS if n < cap), cap)

    def learn(self, samples: Samples, experiment: Experiment, fitted: FittedPolicy) -> None:
        """Keep a fitted policy; warn if fewer samples are recorded than it was to take."""
        super().learn(samples, experiment, fitted)
        recorded = experiment.pool.n_samples
        if self.max_samples > recorded and self.max_samples != type(self).max_samples:
            warnings.warn(
                f"max_samples is {self.max_samples}, and {recorded} samples per question are "
                f"recorded: the policy takes at most {recorded}",
                stacklevel=3,
            )

    def _check_max_samples(self) -> int:
        value: Any = self.max_samples
        is_whole = isinstance(value, Integral)
        if not is_whole or not 1 <= value <= MAX_LEVEL:
            raise ConfigError(
                f"max_samples must be a whole number from 1 to {MAX_LEVEL}, got {value!r}"
            )
        return int(value)

    def levels_of(self, experiment: Experiment) -> tuple[int, ...]:
        """Return the levels of the experiment where the maximum does not cut them."""
        highest = max(experiment.levels)
        return experiment.levels if self.max_samples >= highest else self.levels_within(highest)


@dataclass(eq=False, repr=False, kw_only=True)
class Mixture(CappedEstimator):
    """The best mixture of uniform numbers of samples: the baseline of every difference.

    Samples vote with weights learned from their confidence; with ``evidence="votes"`` each counts
    once.
    """

    kind: ClassVar[str] = "mixture"
    max_samples: int = MAX_SAMPLES
    evidence: str = ALL_EVIDENCE


@dataclass(eq=False, repr=False, kw_only=True)
class AdaptiveConsistency(CappedEstimator):
    """Stop when the leading answer is likely to stay ahead (Adaptive-Consistency)."""

    kind: ClassVar[str] = "adaptive-consistency"
    max_samples: int = MAX_SAMPLES


@dataclass(eq=False, repr=False, kw_only=True)
class DecidedVotes(CappedEstimator):
    """Stop when the remaining samples cannot change the vote."""

    kind: ClassVar[str] = "decided-votes"
    max_samples: int = MAX_SAMPLES


@dataclass(eq=False, repr=False, kw_only=True)
class Router(RegisteredEstimator):
    """The paper's router: classifiers of the oracle's levels from text features.

    One classifier is fitted for each of ``budgets``; None means the budgets that are evaluated.
    """

    kind: ClassVar[str] = "router"
    levels: Sequence[int] = DEFAULT_LEVELS
    features: str = "paper"
    classifier: str = "gbm"
    budgets: Sequence[float] | None = None
    seed: int = 0

    def levels_within(self, limit: int) -> tuple[int, ...]:
        """Return the levels up to a number of samples."""
        levels = check_levels(self.levels)
        kept = tuple(n for n in levels if n <= limit)
        if not kept:
            raise ConfigError(
                f"the lowest level of {self!r} is above {limit}, the samples per question that can "
                "be used: give it lower levels"
            )
        return kept


@dataclass(eq=False, repr=False, kw_only=True)
class Sequential(CappedEstimator):
    """Samples while another sample is worth its price, by the text and the samples so far.

    Where log-probabilities are recorded, it uses the confidence of each sample; with
    ``evidence="votes"`` it uses the votes alone.
    """

    kind: ClassVar[str] = "sequential"
    max_samples: int = MAX_SAMPLES
    evidence: str = ALL_EVIDENCE
    seed: int = 0


ESTIMATORS: dict[str, type[RegisteredEstimator]] = {
    estimator.kind: estimator
    for estimator in (
        Mixture,
        Router,
        AdaptiveConsistency,
        DecidedVotes,
        Sequential,
    )
}
"""Estimators by the kind of their policy."""
