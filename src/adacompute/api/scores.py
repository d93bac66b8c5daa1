"""Scores: policies compared at equal cost on questions that they were not fitted to.

`evaluate` takes estimators, which are refitted inside folds, and names of registered policies and
oracles. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from adacompute.api.estimator import Estimator, as_estimator
from adacompute.api.estimators import RegisteredEstimator
from adacompute.api.progress import Progress, read_progress
from adacompute.api.samples import Samples, check_samples
from adacompute.api.tables import Tabular, write_card, write_table
from adacompute.core.errors import ConfigError
from adacompute.core.types import MAX_LEVEL
from adacompute.evaluation.pool import describe_assignments, describe_copies
from adacompute.evaluation.scoring import scores as held_out
from adacompute.evaluation.scoring.today import read_today
from adacompute.options.shared import DEFAULT_LEVELS
from adacompute.policies.policy import Policy
from adacompute.report.result_plots import plot_savings, plot_scores
from adacompute.stages.inputs import (
    check_levels,
    check_seed,
    resolve_budgets,
)

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes

PolicySource: TypeAlias = Estimator | Policy | str


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Tabular):
    """Cost and accuracy of policies at mean budgets, with their differences to the mixture.

    ``rows`` holds one dictionary per policy and budget; all shares are fractions. ``headroom`` is
    the share of the static oracle's gain over the mixture that the policy recovers. ``n_excluded``
    counts the questions with too few samples, which are left out. Accuracies are means over
    ``n_assignments`` random assignments of questions to folds. ``today`` says for each policy
    what it saves, compared with what is run now.
    """

    rows: list[dict[str, Any]]
    unit: str
    n_questions: int
    n_independent: int
    n_excluded: int
    n_assignments: int
    samples_per_question: int
    levels: tuple[int, ...]
    levels_excluded: tuple[int, ...]
    today: list[dict[str, Any]]

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the rows as a pyarrow Table, one row per policy and budget."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return pa.table({name: [row.get(name) for row in self.rows] for name in names})

    def plot(
        self, ax: Axes | None = None, *, kind: Literal["accuracy", "savings"] = "accuracy"
    ) -> Axes:
        """Draw accuracy against cost, or the cost at the accuracy of today; return the axes.

        It needs the extra ``report`` and does not change the style of other figures.
        """
        if kind == "accuracy":
            return plot_scores(self.rows, self.unit, ax)
        if kind != "savings":
            raise ConfigError(f"kind must be 'accuracy' or 'savings', got {kind!r}")
        if not self.today:
            raise ConfigError("what is run today is not known: call evaluate with today=")
        return plot_savings(self.rows, self.today, self.unit, ax)

    def _title(self) -> str:
        copies = describe_copies(self.n_questions, self.n_independent)
        mean = describe_assignments(self.n_assignments)
        excluded = f", {self.n_excluded} left out" if self.n_excluded else ""
        capped = f"; headroom with at most {self._largest_kept()}" if self.levels_excluded else ""
        return (
            f"Scores on {self.n_questions}{copies} held-out questions, {self.samples_per_question} "
            f"samples each{excluded}{mean}; budgets in {self.unit} per question{capped}"
        )

    def _repr_html_(self) -> str:
        budgets = list(dict.fromkeys(row["budget"] for row in self.rows))
        cells: dict[str, dict[float, str]] = {}
        for row in self.rows:
            points = f"{100 * row['difference']:+.1f}"
            text = f"{100 * row['accuracy']:.1f} % ({points})"
            cells.setdefault(row["policy"], {})[row["budget"]] = text
        rows = [
            [name, *(own.get(budget, "–") for budget in budgets)] for name, own in cells.items()
        ]
        table = write_table(rows, ["policy", *(f"{budget:g}" for budget in budgets)])
        lead = "Accuracy by budget, and points above the best mixture at the same cost."
        return write_card(self._title(), table, lead=lead)

    def _largest_kept(self) -> int:
        """Return the largest level that the oracle can choose, half of the samples."""
        return max(set(self.levels) - set(self.levels_excluded), default=0)

    def _columns(self) -> tuple[str, ...]:
        names = ("difference", "difference_low", "difference_high", "headroom")
        return ("policy", "budget", "cost", "accuracy", *names)


def evaluate(
    policies: PolicySource | Iterable[PolicySource] | Mapping[str, PolicySource],
    samples: Samples,
    *,
    budgets: Sequence[float] | None = None,
    levels: Sequence[int] | None = None,
    drop_unparsed: bool = False,
    max_rounds: int | None = None,
    today: str | int | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Scores:
    """Score policies at mean budgets per question, on questions that they were not fitted to.

    Estimators are cloned and refitted inside folds; they need not be fitted before. Names are those
    of the command line, ``"oracle"`` included. A mapping gives names of your own. ``levels`` are
    those of the oracle and the largest number of samples of every policy; by default the levels of
    all policies together. Headroom uses levels up to half of the recorded samples. ``today`` is
    what you run now, such as 5 samples per question; `Scores.today` then says what each policy
    saves. The mixture weighs votes unless all policies are given ``evidence="votes"``.
    ``progress`` is called with the name of each policy as it is scored; True prints them to
    standard error.
    """
    check_samples(samples)
    named = _name(policies)
    estimators = [value for value in named.values() if isinstance(value, Estimator)]
    training = samples.drop_unparsed() if drop_unparsed else samples
    experiment = held_out.make_experiment(
        samples.pool(),
        budgets=resolve_budgets(samples.encoded, samples.costs, budgets),
        levels=_join_levels(named.values()) if levels is None else check_levels(levels),
        drop_unparsed=drop_unparsed,
        max_rounds=max_rounds,
        use_confidence=not estimators or any(one.uses_all_evidence for one in estimators),
        seed=check_seed(seed),
    )
    found = held_out.evaluate(
        experiment,
        {
            name: value.make_factory(training) if isinstance(value, Estimator) else value
            for name, value in named.items()
        },
        today=None if today is None else read_today(today),
        progress=read_progress(progress),
    )
    about = {one.name: getattr(found, one.name) for one in fields(found) if one.name != "n_samples"}
    return Scores(**about, unit=samples.unit, samples_per_question=found.n_samples)


def _name(
    policies: PolicySource | Iterable[PolicySource] | Mapping[str, PolicySource],
) -> dict[str, Estimator | str]:
    """Return policies by their names; two of one kind are named by their parameters."""
    if isinstance(policies, Mapping):
        return {name: _read(value) for name, value in policies.items()}
    single = isinstance(policies, str) or not isinstance(policies, Iterable)
    every: Iterable[object] = [policies] if single else policies  # type: ignore[assignment]
    values = [_read(value) for value in every]
    if not values:
        raise ConfigError("no policy is given: pass at least one")
    names = [value if isinstance(value, str) else value.row_name for value in values]
    named: dict[str, Estimator | str] = {}
    for name, value in zip(names, values, strict=True):
        unique = name if names.count(name) == 1 or isinstance(value, str) else repr(value)
        if unique in named and not isinstance(value, str):
            raise ConfigError(f"{unique} is given twice: pass a mapping from names to policies")
        named[unique] = value
    return named


def _read(value: object) -> Estimator | str:
    return value if isinstance(value, str) else as_estimator(value)


def _join_levels(policies: Iterable[Estimator | str]) -> tuple[int, ...]:
    """Return the levels of all policies together."""
    levels: set[int] = set()
    for policy in policies:
        if isinstance(policy, RegisteredEstimator):
            levels.update(policy.levels_within(MAX_LEVEL))
        elif isinstance(policy, Estimator) and hasattr(policy, "policy_"):
            levels.update(level.n_samples for level in policy.policy_.levels)
        else:
            levels.update(DEFAULT_LEVELS)
    return tuple(sorted(levels))
