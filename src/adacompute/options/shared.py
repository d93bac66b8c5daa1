"""Shared: groups of options that several commands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adacompute.options.definition import option

DEFAULT_LEVELS = (1, 2, 4, 8, 16)
ALL_EVIDENCE = "all"
API_KEY_ENV = "OPENAI_API_KEY"
CONFIDENCE = 0.95

GRADERS = "numeric, math, choice, exact, or cmd:COMMAND for your own program."
"""Help of the option that names a grader."""


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """Prices of tokens."""

    token_prices: Path | None = option(
        "File of token prices, for the unit money: TOML, or LiteLLM's list (.json).", None
    )
    price_as: Mapping[str, str] | None = option(
        "Price a model as one that the file lists; may be repeated.",
        None,
        metavar="MODEL=LISTED",
        example="gpt-5.2-2025-12-11=gpt-5.2",
    )


@dataclass(frozen=True, kw_only=True)
class CostOptions(PriceOptions):
    """The unit of costs, and prices."""

    unit: str = option("Unit of costs and budgets: samples, tokens or money.", "samples")


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """Numbers of samples to choose from."""

    levels: Sequence[int] = option("Numbers of samples that policies choose from.", DEFAULT_LEVELS)


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions:
    """What votes and decisions use."""

    evidence: str = option(
        "What decisions and votes use: all that was recorded, or votes (ignore confidence).",
        ALL_EVIDENCE,
    )


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """What a round of samples costs."""

    native_n: bool = option("One round is one call: its prompt is paid for once.", False)


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(CostOptions):
    """What is scored, and at which budgets."""

    budgets: Sequence[float] | None = option(
        "Mean costs per question to score at (default: the cost of 1.5,2,3,4,6 samples).", None
    )
    policies: Sequence[str] | None = option("Policies to score (default: all).", None)
    drop_unparsed: bool = option("Remove samples that could not be parsed.", False)


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """How a file is read."""

    columns: Mapping[str, str] | None = option(
        "Columns with other names than ours (default: guessed).",
        None,
        metavar="OURS=THEIRS,…",
        example="question=prompt,correct=is_right",
        is_joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class GoldOptions:
    """Reference answers."""

    gold: str | None = option(
        "Question set with reference answers (default: the column gold).", None
    )


@dataclass(frozen=True, kw_only=True)
class ConfidenceOptions:
    """How sure statements are."""

    confidence: float = option("Confidence level of all intervals.", CONFIDENCE)
    min_precision: float | None = option(
        "Find the largest share whose answers are right in at least this share.", None
    )


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The key of a server."""

    api_key_env: str = option(
        "Environment variable that holds the API key, if the server needs one.", API_KEY_ENV
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions(KeyOptions):
    """A server and its key."""

    base_url: str = option(
        "URL of the server, ending in /v1 (default: OPENAI_BASE_URL).", env="OPENAI_BASE_URL"
    )


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """The seed."""

    seed: int = option("Seed of all random choices.", 0)


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """Names that a run or a bundle records."""

    model: str | None = option("Name of the model, recorded in the run or the bundle.", None)
    grader: str | None = option(GRADERS, None)


@dataclass(frozen=True)
class TodayOptions:
    """What is run today and how it is compared; see ``read_today``."""

    today: str | int = option(
        "What you run now, such as 5 samples per question: says what you save.",
        metavar="N|N:weighted|ARM:N|ARM",
    )
    tolerance: float | None = option(
        "Accuracy that need not be proven, compared with today (default: 0.005).", None
    )
    calls: str | None = option(
        "How today's samples are sent: in one call, or one call each.",
        None,
        name="today-calls",
        choices=("one", "N"),
    )


@dataclass(frozen=True, kw_only=True)
class SavingOptions:
    """What is run today, if it is known."""

    today: TodayOptions | None = None


@dataclass(frozen=True, kw_only=True)
class ArmOptions:
    """Arms to sample."""

    arms: Sequence[Mapping[str, Any]] = option(
        "An arm to sample: name=big,model=…,effort=high; may be repeated.",
        (),
        name="arm",
        metavar="name=NAME,KEY=VALUE",
    )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(KeyOptions):
    """How samples are collected, apart from the server, the model and the grader."""

    samples: int = option("Samples per question.", 48)
    temperature: float = option("Sampling temperature.", 0.7)
    max_tokens: int = option("Maximum tokens per completion.", 1024)
    stop: Sequence[str] = option(
        "Text that ends a completion; may be repeated.", (), is_repeated=True
    )
    system: str | None = option("System message.", None)
    prompt: str = option("Prompt template, or cot for a chain of thought.", "{question}")
    few_shot: Path | None = option("JSON lines of few-shot examples.", None)
    completion: bool = option("Use the completions endpoint, not chat.", False)
    max_questions: int | None = option("Choose this many questions at random.", None)
    max_cost: float | None = option("Stop before the cost exceeds this much money.", None)
    scorer: str | None = option(
        "URL of a server that scores samples, for best-of-n; its key is in SCORER_API_KEY.", None
    )
    scorer_price: float = option("Cost per score.", 0.0)
    timeout: float = option("Seconds until a reply must begin.", 120.0)
    concurrency: int = option("Maximum concurrent calls.", 64)
    requests_per_minute: int | None = option("Rate limit of your provider.", None)
    tokens_per_minute: int | None = option("Rate limit of your provider.", None)
