"""Estimator: a policy that is fitted to samples, in scikit-learn's conventions.

Parameters are stored as they are given, `fit` returns the estimator, and what it learns ends in an
underscore. scikit-learn itself is not imported. A policy of your own takes part by an estimator
whose `fit` sets ``policy_``. It knows nothing of how policies are scored.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from adacompute.api.samples import Samples, check_samples
from adacompute.api.tables import GOOD, OPEN, write_card, write_table
from adacompute.core.errors import ConfigError, DataError, NotFittedError
from adacompute.evaluation.experiment import Experiment, FittedPolicy, PolicyFactory, price_grid
from adacompute.evaluation.scoring.precision import Precision
from adacompute.policies.bundles.bundle import Bundle, save_bundle
from adacompute.policies.policy import Policy
from adacompute.sampling.session import Session
from adacompute.stages.calibrate import keep_calibrations
from adacompute.stages.train import make_bundle

if TYPE_CHECKING:
    from os import PathLike

    from adacompute.core.types import IntArray
    from adacompute.graders.grader import Grader
    from adacompute.policies.bundles.bundle import FrontierPoint
    from adacompute.policies.correctness import Correctness

E = TypeVar("E", bound="Estimator")


class Estimator:
    """A policy that can be fitted, calibrated, evaluated and run.

    Derive from it for a policy of your own: store the parameters in ``__init__`` and set
    ``policy_`` in ``fit``. ``features`` names the text features that the policy reads, and
    ``prices_``, if ``fit`` sets it, the prices at which the policy is evaluated.
    """

    features: str = "paper"

    policy_: Policy
    prices_: tuple[float, ...]
    frontier_: tuple[FrontierPoint, ...]
    precision_: Precision | None
    grader_: Grader | None
    _bundle: Bundle

    @property
    def row_name(self) -> str:
        """Name in tables and bundles."""
        return type(self).__name__

    @property
    def uses_all_evidence(self) -> bool:
        """Whether the confidence of samples is used where it is recorded, by the baseline too."""
        return True

    def fit(self, samples: Samples) -> Self:
        """Learn ``policy_`` from samples."""
        raise NotImplementedError(f"{type(self).__name__} has no fit")

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return the names of the parameters."""
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        known = inspect.signature(cls).parameters.values()
        return [parameter.name for parameter in known if parameter.kind not in variable]

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002
        """Return the parameters by name. ``deep`` is accepted for scikit-learn and ignored."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401 - parameters of any type
        """Set parameters by name."""
        known = self.parameter_names()
        for name, value in params.items():
            if name not in known:
                raise ConfigError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({params})"

    def _repr_html_(self) -> str:
        facts, state = [("parameters", repr(self))], "not fitted: call fit(samples)"
        if hasattr(self, "policy_"):
            bundle, state = self.to_bundle(), "fitted, not calibrated"
            known = {"questions": bundle.notes.get("questions"), "model": bundle.model}
            facts += [(name, str(value)) for name, value in known.items() if value is not None]
            facts.append(("levels", f"up to {max(one.n_samples for one in self.policy_.levels)}"))
            if bundle.frontier:
                ends = (f"{bundle.frontier[i].budget:.3g}" for i in (0, -1))
                state = f"fitted and calibrated for {' to '.join(ends)} {bundle.unit} per question"
        colour = GOOD if hasattr(self, "policy_") else OPEN
        return write_card(f"{type(self).__name__}, {state}", write_table(facts), colour=colour)

    def price_for(self, budget: float) -> float:
        """Return the lowest price at which the mean cost stays within a budget."""
        bundle = self.to_bundle()
        if not bundle.frontier:
            raise NotFittedError(
                f"this {type(self).__name__} is not calibrated, so the price of a budget is not "
                "known: call ada.calibrate(policy, samples, budget=...) first"
            )
        return bundle.price_for(budget)

    def start(
        self,
        question: str,
        *,
        budget: float | None = None,
        price: float | None = None,
        max_rounds: int | None = None,
    ) -> Session:
        """Start a session on one question, at a calibrated budget or at a price."""
        if budget is not None:
            self.price_for(budget)  # its message says how to calibrate
        bundle = self.to_bundle()
        known: dict[str, Any] = {"budget": budget, "price": price, "max_rounds": max_rounds}
        return Session(bundle, question, grader=getattr(self, "grader_", None), **known)

    def to_bundle(self) -> Bundle:
        """Return the policy with everything that running it needs."""
        check_fitted(self)
        if "_bundle" not in vars(self) or self._bundle.policy is not self.policy_:
            # A fit of the user's own set another policy: what was known of the last one is void.
            self._bundle = Bundle(self.policy_, features=self.features)
            vars(self).pop("frontier_", None)
        return self._bundle

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to a directory that `load_policy`, `serve` and `calibrate` read.

        Policies of your own cannot be saved: a bundle holds no code.
        """
        save_bundle(self.to_bundle(), Path(path))

    def make_experiment(self, samples: Samples, budget: float) -> Experiment:
        """Return the samples as calibration replays them, at the levels of the fitted policy."""
        pool = samples.pool().equalise()
        levels = self._check_levels(pool.n_samples)
        return Experiment(pool, levels, (budget,))

    def make_factory(self, samples: Samples) -> PolicyFactory:
        """Return how folds refit the policy: a clone is fitted to the training questions."""

        def refit(experiment: Experiment, train: IntArray) -> FittedPolicy:
            known = experiment.pool.key
            questions = samples.positions(known[train])
            fitted = clone(self)
            fitted.fit(samples.take(questions))
            check_fitted(fitted)
            return fitted.as_fitted(samples, experiment, train)

        return refit

    def as_fitted(self, samples: Samples, experiment: Experiment, train: IntArray) -> FittedPolicy:
        """Return the fitted policy with its prices and the features that it reads."""
        self._check_levels(max(experiment.levels))
        prices = getattr(self, "prices_", None) or price_grid(1.0 / experiment.sample_cost(train))
        rows = samples.positions(experiment.pool.key)
        features = samples.features(self.to_bundle().features)[rows]
        return FittedPolicy(self.policy_, tuple(prices), features)

    def _check_levels(self, limit: int) -> tuple[int, ...]:
        """Return the levels of the fitted policy, or refuse those that cannot be replayed."""
        levels = tuple(level.n_samples for level in self.policy_.levels)
        if max(levels) > limit:
            raise ConfigError(
                f"{self!r} takes up to {max(levels)} samples and only {limit} can be replayed: use "
                "smaller levels, pass larger levels=, or record more samples per question"
            )
        return levels

    def adopt(self, bundle: Bundle, grader: Grader | None) -> None:
        """Take over a policy that was fitted before, with what its bundle records."""
        self.policy_, self._bundle, self.grader_ = bundle.policy, bundle, grader
        if bundle.frontier:
            self.frontier_ = bundle.frontier

    def check_fitted_to(self, samples: Samples) -> None:
        """Refuse samples that the policy was not fitted to, as far as that is known."""
        check_samples(samples)
        check_fitted(self)

    def learn(self, samples: Samples, experiment: Experiment, fitted: FittedPolicy) -> None:
        """Keep a fitted policy, with what running it needs to know of its samples."""
        self.policy_, self.prices_, self.grader_ = fitted.policy, fitted.prices, samples.grader
        self._bundle = make_bundle(
            experiment,
            fitted,
            self._notes(samples, experiment),
            unit=samples.unit,
            data_hash=samples.data_hash,
            model=samples.model,
            grader=None if samples.grader is None else samples.grader.name,
            template=samples.template,
            settings=samples.settings,
        )

    def keep_calibration(
        self,
        frontier: tuple[FrontierPoint, ...],
        pooled_frontier: tuple[FrontierPoint, ...],
        correctness: Correctness | None,
        result: dict[str, Any],
    ) -> None:
        """Keep the price of every budget, how likely answers are right, and the verdict."""
        earlier = keep_calibrations(self._bundle.notes, result)
        notes = {
            **self._bundle.notes,
            "calibration": dict(result),
            "earlier_calibrations": earlier,
        }
        rounds = result["max_rounds"]
        self._bundle = replace(
            self._bundle,
            frontier=frontier,
            pooled_frontier=pooled_frontier,
            correctness=correctness,
            max_rounds=rounds,
            notes=notes,
        )
        self.frontier_ = frontier
        self.precision_ = result["precision"] and Precision(**result["precision"])

    def _notes(self, samples: Samples, experiment: Experiment) -> dict[str, Any]:
        """Return what a bundle records of how the policy was fitted."""
        return {
            "policy": self.row_name,
            "questions": len(experiment.pool),
            "features": self.features,
            "costs": samples.costs.to_dict(),
        }


def clone(estimator: E) -> E:
    """Return an unfitted estimator with copies of the same parameters, as scikit-learn does."""
    return type(estimator)(**copy.deepcopy(estimator.get_params(deep=False)))


def check_fitted(estimator: Estimator) -> None:
    """Raise `NotFittedError` when the estimator has no policy yet."""
    if not hasattr(estimator, "policy_"):
        raise NotFittedError(
            f"this {type(estimator).__name__} is not fitted: call fit(samples) first"
        )


class Pretrained(Estimator):
    """A policy as it is: `fit` does not change it.

    ``trained_on`` is what the policy was trained on: `Samples`, or ``"nothing"`` for a rule that
    learns nothing. The policy is never scored on questions that it was trained on, and not at all
    while that is ``"unknown"``.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        trained_on: Samples | Literal["nothing", "unknown"] = "unknown",
        features: str = "paper",
    ) -> None:
        self.policy = policy
        self.trained_on = trained_on
        self.features = features
        self.policy_ = policy

    @property
    def row_name(self) -> str:
        """Name in tables and bundles: that of the policy."""
        return self.policy.name or type(self.policy).__name__

    def fit(self, samples: Samples) -> Self:  # noqa: ARG002 - there is nothing to learn
        """Return the policy unchanged."""
        return self

    def make_factory(self, samples: Samples) -> PolicyFactory:
        """Return the same policy for every fold, after a check that no question is known to it."""
        self._check_unseen(samples)
        return lambda experiment, train: self.as_fitted(samples, experiment, train)

    def _check_unseen(self, samples: Samples) -> None:
        if self.trained_on == "nothing":
            return
        if not isinstance(self.trained_on, Samples):
            raise DataError(
                f"{self.row_name} cannot be refitted and does not say what it was trained on: it "
                "cannot be scored: pass an estimator, or ada.Pretrained(policy, trained_on=...)"
            )
        seen = samples.encoded.find_seen(self.trained_on.encoded)
        if seen.any():
            raise DataError(
                f"{self.row_name} cannot be refitted and was trained on {int(seen.sum())} of "
                f"{len(samples)} questions: score it on other questions"
            )


def as_estimator(value: object) -> Estimator:
    """Return an estimator, or a policy as one that cannot be refitted."""
    if isinstance(value, Estimator):
        return value
    if isinstance(value, type):
        raise ConfigError(f"expected a policy, got the class {value.__name__}: call it first")
    if isinstance(value, Policy):
        return Pretrained(value)
    if hasattr(value, "fit") and hasattr(value, "get_params"):
        return _Adapter(value)
    raise ConfigError(f"expected a policy such as ada.Sequential(), got {type(value).__name__}")


class _Adapter(Estimator):
    """An estimator of another base class, such as scikit-learn's."""

    def __init__(self, estimator: Any) -> None:  # noqa: ANN401 - anything with fit
        self.estimator = estimator
        self.features = getattr(estimator, "features", "paper")
        if hasattr(estimator, "policy_"):
            self.policy_ = estimator.policy_

    @property
    def row_name(self) -> str:
        """Name in tables: that of the class."""
        return str(getattr(self.estimator, "name", type(self.estimator).__name__))

    def fit(self, samples: Samples) -> Self:
        """Fit a new estimator with the same parameters."""
        inner = clone(self.estimator).fit(check_samples(samples))
        if not hasattr(inner, "policy_"):
            raise ConfigError(f"{type(inner).__name__}.fit must set policy_ and return self")
        self.policy_ = inner.policy_
        if hasattr(inner, "prices_"):
            self.prices_ = inner.prices_
        return self
