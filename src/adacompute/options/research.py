"""Research: the options of each step that ``fit`` takes by itself, and of tools for research."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adacompute.options.definition import option
from adacompute.options.shared import (
    DEFAULT_LEVELS,
    GRADERS,
    ColumnOptions,
    ConfidenceOptions,
    CostOptions,
    EvidenceOptions,
    FeatureOptions,
    GoldOptions,
    LevelOptions,
    NameOptions,
    RoundOptions,
    SavingOptions,
    SeedOptions,
)


@dataclass(frozen=True, kw_only=True)
class ImportOptions(NameOptions, GoldOptions, ColumnOptions):
    """Import recorded samples into a run: a file, logs or 'example'.

    adacompute research import samples.csv --run run
    """

    OPTIONS: ClassVar = ("arms", "columns", "gold", "grader")

    arms: Mapping[str, str | Path] | None = option(
        "Samples of one arm, instead of SOURCE; may be repeated.",
        None,
        name="arm",
        metavar="NAME=FILE",
        example="low=low.parquet",
    )
    pool_answers: bool = option("Whether equal answers of different arms are one answer.", True)
    allow_inconsistent_grades: bool = option("Accept equal answers with different grades.", False)


@dataclass(frozen=True, kw_only=True)
class GradeOptions:
    """Grade the samples of a run.

    adacompute research grade run --grader numeric
    """

    grader: str = option(GRADERS)


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(CostOptions):
    """Estimate the accuracy of every level on every question.

    adacompute research estimate run
    """

    OPTIONS: ClassVar = ("levels", "method", "unit", "token_prices")

    levels: Sequence[int] = option("Numbers of samples to estimate.", DEFAULT_LEVELS)
    method: str = option(
        "All subsets, or the paper's windows.",
        "exact",
        choices=("exact", "windows"),
    )
    vote: str = option(
        "How samples become one answer.",
        "majority",
        choices=("majority", "best-of", "any"),
    )


@dataclass(frozen=True, kw_only=True)
class SolveOptions(CostOptions):
    """Compute the best allocation of a budget, with an upper bound.

    adacompute research solve run --budget 2
    """

    OPTIONS: ClassVar = ("budget", "unit", "token_prices")

    budget: float = option("Mean cost per question.")


@dataclass(frozen=True, kw_only=True)
class ArmsOptions(LevelOptions, CostOptions):
    """Compare arms: which models and efforts are efficient.

    adacompute research arms run --unit tokens
    """

    OPTIONS: ClassVar = ("unit", "token_prices")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(
    LevelOptions,
    CostOptions,
    RoundOptions,
    EvidenceOptions,
    FeatureOptions,
    NameOptions,
    SeedOptions,
):
    """Fit a policy to a run and write its bundle.

    adacompute research train run --policy sequential --out policy
    """

    OPTIONS: ClassVar = ("policy", "out", "levels", "unit", "token_prices")

    policy: str = option("Kind of policy, such as sequential.")
    out: Path = option("Directory of the bundle.")
    budgets: Sequence[float] | None = option(
        "Budgets of the paper's router (default: the cost of 1.5,2,3,4,6 samples).", None
    )
    cost_sensitive: bool = option("Weight questions by the loss of an error.", False)
    draft: bool | None = option(
        "Let the router decide after one sample, by its uncertainty (default: where "
        "log-probabilities are recorded).",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(SavingOptions, ConfidenceOptions):
    """Set a bundle's price on held-out questions and give a verdict.

    adacompute research calibrate run --bundle policy --budget 2
    """

    OPTIONS: ClassVar = ("bundle", "budget", "today", "min_precision")

    bundle: Path = option("Bundle to calibrate.")
    budget: float | None = option("Mean cost per question (or give --today).", None)
    cost_confidence: float | None = option(
        "Hold the budget with this confidence (default: spend it on average).", None
    )
    max_rounds: int | None = option("Maximum rounds of samples per question.", None)
