"""Main: the options of the commands that most people need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adacompute.core.errors import ConfigError
from adacompute.options.definition import option
from adacompute.options.shared import (
    GRADERS,
    ArmOptions,
    ColumnOptions,
    ConfidenceOptions,
    CostOptions,
    EvidenceOptions,
    GoldOptions,
    KeyOptions,
    LevelOptions,
    NameOptions,
    PriceOptions,
    RoundOptions,
    SamplingOptions,
    SavingOptions,
    ScoringOptions,
    SeedOptions,
    ServerOptions,
    TodayOptions,
)


@dataclass(frozen=True, kw_only=True)
class FitOptions(
    LevelOptions,
    CostOptions,
    EvidenceOptions,
    NameOptions,
    GoldOptions,
    ColumnOptions,
    ConfidenceOptions,
    SeedOptions,
):
    """Go from samples to a calibrated bundle, a report and a verdict.

    adacompute fit samples.csv --today 5 --out policy
    """

    OPTIONS: ClassVar = (
        "today",
        "budget",
        "out",
        "grader",
        "gold",
        "min_precision",
        "columns",
        "unit",
        "token_prices",
        "arms",
        "model",
    )

    budget: float | None = option("Mean cost per question (or give --today).", None)
    today: TodayOptions | None = None
    same_answer: float | None = option(
        "Share of answers that must be those of today's samples (default without grades: 0.98).",
        None,
    )
    out: Path = option("Directory of the bundle.")
    run: Path | None = option("Run directory (default: OUT/run).", None)
    policy: str | None = option("Kind of policy (default: sequential).", None)
    arms: Mapping[str, str] | None = option(
        "Samples of one arm, instead of SOURCE; may be repeated.",
        None,
        name="arm",
        metavar="NAME=FILE",
        example="low=low.parquet",
    )
    max_rounds: int | None = option("Maximum rounds of samples per question.", None)

    def __post_init__(self) -> None:
        if self.same_answer is not None and self.today is None:
            raise ConfigError("same-answer needs --today, what you run now, such as 5")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    LevelOptions, ScoringOptions, RoundOptions, EvidenceOptions, SavingOptions, SeedOptions
):
    """Score policies on questions they were not fitted to.

    adacompute evaluate policy --today 5
    """

    OPTIONS: ClassVar = ("today", "budgets", "policies", "levels", "unit", "token_prices")

    max_rounds: int | None = option("Maximum rounds of samples per question.", None)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(PriceOptions, SavingOptions):
    """Write a page that shows what a budget buys, and why.

    adacompute report policy --out report.html
    """

    OPTIONS: ClassVar = ("out", "today", "budget", "policy", "unit", "token_prices")

    out: Path = option("File of the page, such as report.html.")
    budget: float | None = option(
        "Mean cost per question (default: as fitted, or two samples).", None
    )
    policy: str | None = option(
        "Policy that the page is about (default: as fitted, or sequential).", None
    )
    policies: Sequence[str] | None = option(
        "Policies to compare with (default: a fast selection).", None
    )
    levels: Sequence[int] | None = option(
        "Levels (default: as fitted or evaluated, or 1,2,4,8,16).", None
    )
    unit: str | None = option("Unit of costs and budgets (default: as fitted, or samples).", None)


@dataclass(frozen=True, kw_only=True)
class SolveOptions(LevelOptions, CostOptions, ColumnOptions):
    """Compute the best allocation of a budget, with an upper bound.

    adacompute solve samples.csv --budget 2
    """

    OPTIONS: ClassVar = (
        *("budget", "out", "frontier", "levels", "unit", "token_prices", "grader", "columns"),
    )

    budget: float = option("Mean cost per question.")
    out: Path | None = option("File for the level of every question (.parquet or .csv).", None)
    frontier: Path | None = option(
        "File for what other budgets buy: budget, price, cost and utility.", None
    )
    grader: str | None = option(GRADERS, None)


@dataclass(frozen=True, kw_only=True)
class CollectOptions(
    ArmOptions, SamplingOptions, ServerOptions, PriceOptions, ColumnOptions, SeedOptions
):
    r"""Sample what a run lacks from any OpenAI-compatible server.

    adacompute collect questions.jsonl --grader numeric --run run \
      --base-url URL --model NAME
    """

    OPTIONS: ClassVar = (
        "model",
        "base_url",
        "grader",
        "columns",
        "samples",
        "arms",
        "max_cost",
        "token_prices",
    )

    model: str = option("Model to sample.")
    grader: str = option(GRADERS)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Run an OpenAI-compatible gateway that holds a mean budget.

    adacompute serve --bundle policy --base-url URL --budget 2

    Without --base-url, the variable OPENAI_BASE_URL is read; the key of the server is in
    OPENAI_API_KEY. Every setting is in the configuration reference.
    """

    bundle: Path | None = option("Bundle of the policy; 'example' ships with the package.", None)
    base_url: str | None = option("URL of the upstream, ending in /v1.", None)
    budget: float | None = option("Mean cost per request, in the bundle's unit.", None)
    model: str | None = option("Model to serve, if the bundle names none.", None)
    grader: str | None = option("Grader instead of the bundle's; needed for cmd:COMMAND.", None)
    host: str | None = option("Address to listen on (default: 127.0.0.1).", None)
    port: int | None = option("Port to listen on (default: 8000).", None)
    workers: int | None = option("Number of processes (default: 1).", None)
    unsure: str | None = option(
        "What unsure answers get: a header, or 422 (default: flag).",
        None,
        choices=("flag", "refuse"),
    )
    accept_verdict: bool = option("Serve a policy whose verdict is not 'gain'.", False)
    check: bool = option("Check the configuration and exit.", False)
    config: Sequence[str] = option(
        "TOML file with a table [serve], or one of its settings; may be repeated.",
        (),
        metavar="FILE|NAME=VALUE",
        is_repeated=True,
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions(PriceOptions, ColumnOptions, KeyOptions):
    r"""Answer files of questions under a hard total.

    adacompute batch questions.jsonl --bundle policy --total 500 --out answers \
      --base-url URL
    """

    OPTIONS: ClassVar = (
        *("bundle", "out", "base_url", "total", "budget", "model", "grader"),
        *("columns", "plan_only", "token_prices"),
    )

    bundle: Path = option("Bundle of the policy.")
    out: Path = option("Directory of the batch; it is resumable.")
    base_url: str | None = option("URL of the server, ending in /v1.", None)
    total: float | None = option("What the batch may cost, in the bundle's unit.", None)
    budget: float | None = option("Mean cost per question, instead of --total.", None)
    model: str | None = option("Model to sample, if the bundle names none.", None)
    grader: str | None = option("Grader instead of the bundle's; needed for cmd:COMMAND.", None)
    max_output_tokens: int | None = option("Limit of tokens per sample.", None)
    concurrency: int = option("Maximum concurrent calls.", 64)
    plan_only: bool = option("Plan and write first decisions; call nothing.", False)
    engine: str = option(
        "Run on this machine (local), on Ray (ray), or on a Ray cluster (its address).", "local"
    )
    accept_verdict: bool = option("Use a policy whose verdict is not 'gain'.", False)


@dataclass(frozen=True, kw_only=True)
class SpendOptions:
    """Sum what a gateway's calls cost (spend [DIR]), or list its caps."""


@dataclass(frozen=True, kw_only=True)
class CapsOptions:
    """List what was spent under the caps of a gateway.

    adacompute spend caps gateway.toml
    """

    all_periods: bool = option("Also list days and months that have ended.", False)
    set_spent: Mapping[str, float] | None = option(
        "Say that at least this was spent, for example after all data were lost.",
        None,
        metavar="NAME=AMOUNT",
    )
