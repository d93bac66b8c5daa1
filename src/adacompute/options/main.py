"""Main: the options of the commands that most people need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adacompute.core.errors import ConfigError
from adacompute.options.definition import group, option
from adacompute.options.shared import (
    GRADERS,
    ConfidenceOptions,
    CostOptions,
    EvidenceOptions,
    GoldOptions,
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
class DemoOptions:
    """Run the pipeline on the example samples, or on your own file."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(
    LevelOptions,
    CostOptions,
    EvidenceOptions,
    NameOptions,
    GoldOptions,
    ConfidenceOptions,
    SeedOptions,
):
    """Go from samples to a calibrated bundle, a report and a verdict."""

    budget: float | None = option("Mean cost per question (or give --today).", None)
    today: TodayOptions | None = None
    same_answer: float | None = option(
        "Share of answers that must be those of today's samples (default without grades: 0.98).",
        None,
    )
    out: Path = option("Directory of the bundle.")
    run: Path | None = option("Run directory (default: OUT.run).", None)
    policy: str | None = option(
        "Kind of policy (default: sequential, if the extra train is installed).", None
    )
    base_url: str | None = option(
        "Collect first: SOURCE is questions for this server (…/v1).", None
    )
    sampling: SamplingOptions | None = group("base-url", "to collect samples first")

    def __post_init__(self) -> None:
        if self.same_answer is not None and self.today is None:
            raise ConfigError("--same-answer needs --today, what you run now, such as 5")
        if self.sampling is not None and self.base_url is None:
            raise ConfigError("options of a collection need --base-url, to collect samples first")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    LevelOptions, ScoringOptions, RoundOptions, EvidenceOptions, SavingOptions, SeedOptions
):
    """Score policies on questions they were not fitted to."""

    rounds: int | None = option("Maximum rounds of samples per question.", None)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(PriceOptions, SavingOptions):
    """Write a page that shows what a budget buys, and why."""

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
    all_policies: bool = option("Draw all policies in the main chart.", False)
    unit: str | None = option("Unit of costs and budgets (default: as fitted, or samples).", None)
    seed: int | None = option("Seed of all random choices (default: as fitted, or 0).", None)


@dataclass(frozen=True, kw_only=True)
class CollectOptions(SamplingOptions, ServerOptions, PriceOptions, SeedOptions):
    """Sample what a run lacks from any OpenAI-compatible server."""

    model: str = option("Model to sample.")
    grader: str = option(GRADERS)
    budget: float | None = option("Mean samples per question for --adaptive (default: 2).", None)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(ServerOptions):
    """Find out what a server does with n, seed, logprobs and usage."""

    model: str = option("Model to probe.")
