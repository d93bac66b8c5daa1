"""Plan: what a collection will sample, checked before anything is paid for.

It reads the questions, the arms, the token prices and the prompt template and checks that they fit
together. It can estimate the maximum cost without a single call. It knows nothing of servers or
stores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adacompute.collection.arms import ArmSpec, read_arms
from adacompute.collection.prompts import find_form, read_few_shot
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import MAX_LEVEL
from adacompute.datasets.sources import choose_questions, read_question_source
from adacompute.graders.grader import load_grader
from adacompute.models.formats.openai_format import check_url
from adacompute.models.messages import Prompt, Settings, Timeouts
from adacompute.models.templates import Template
from adacompute.options.definition import takes
from adacompute.options.main import CollectOptions
from adacompute.spending.token_prices import NANO, TokenPrices, Usage

if TYPE_CHECKING:
    import pyarrow as pa

COPIED = (
    *("grader", "seed", "concurrency", "requests_per_minute", "tokens_per_minute"),
    *("max_cost", "scorer"),
)
"""Options that a plan has under the same names."""

MAX_SAMPLES_PER_CALL = 16
"""Maximum samples requested in one call: a call that fails loses all of them."""

MESSAGE_OVERHEAD_TOKENS = 32
"""Upper bound on the tokens that a server's chat template adds per message."""


def prompt_size(prompt: Prompt) -> int:
    """Return an upper bound on the tokens of a prompt: its bytes and an overhead per message."""
    if prompt.text is not None:
        return len(prompt.text.encode())
    return sum(
        len(str(message["content"]).encode()) + MESSAGE_OVERHEAD_TOKENS
        for message in prompt.messages or ()
    )


@dataclass(frozen=True)
class Plan:
    """What to collect: questions, arms and limits.

    A call that fails is repeated for ``patience_s``.
    """

    questions: pa.Table
    arms: tuple[ArmSpec, ...]
    grader: str
    seed: int | None
    concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_cost: float | None = None
    scorer: str | None = None
    scorer_prices: TokenPrices = field(default_factory=TokenPrices)
    timeouts: Timeouts = field(default_factory=Timeouts)
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        load_grader(self.grader)
        _check_amounts(self)
        _check_money(self)

    @property
    def is_free(self) -> bool:
        """Whether all prices are 0."""
        is_free = all(spec.token_prices.is_free for spec in self.arms)
        return is_free and self.scorer_prices.is_free

    def question_texts(self) -> list[tuple[str, str]]:
        """Return the ids and texts of the questions."""
        ids, texts = (
            self.questions["question_id"].to_pylist(),
            self.questions["question"].to_pylist(),
        )
        if None in texts:
            raise DataError(f"question {ids[texts.index(None)]!r} has no text to send")
        return list(zip(ids, texts, strict=True))


@takes(CollectOptions)
def read_plan(source: str, options: CollectOptions) -> Plan:
    """Read and choose the questions and check all options, before anything is paid for."""
    settings = Settings(
        temperature=options.temperature, max_tokens=options.max_tokens, stop=tuple(options.stop)
    )
    form = find_form(options.prompt, options.grader)
    template = Template(
        form, options.system, read_few_shot(options.few_shot), not options.completion
    )
    default = ArmSpec(
        "default",
        options.model,
        options.base_url,
        options.api_key_env,
        options.samples,
        settings,
        template=template,
    )
    prices = options.token_prices, options.price_as
    questions = read_question_source(source, options.columns)
    return Plan(
        questions=choose_questions(questions, options.max_questions, seed=options.seed),
        arms=read_arms(options.arms, default, options.grader, *prices),
        scorer_prices=TokenPrices(call=options.scorer_price),
        timeouts=Timeouts(first_byte_s=options.timeout, total_s=max(600.0, options.timeout)),
        **{name: getattr(options, name) for name in COPIED},
    )


def _check_amounts(plan: Plan) -> None:
    """Refuse numbers of samples and limits that are out of range."""
    amounts = {f"samples of the arm {spec.name!r}": spec.n_samples for spec in plan.arms}
    amounts["concurrency"] = plan.concurrency
    limits = {"requests": plan.requests_per_minute, "tokens": plan.tokens_per_minute}
    amounts |= {f"{name} per minute": limit for name, limit in limits.items() if limit is not None}
    for name, amount in amounts.items():
        if not 1 <= amount <= MAX_LEVEL:
            raise ConfigError(f"{name} must be from 1 to {MAX_LEVEL}, got {amount}")
    if plan.max_cost is not None and not 0 < plan.max_cost < float("inf"):
        raise ConfigError(f"max-cost must be a finite number above 0, got {plan.max_cost}")


def _check_money(plan: Plan) -> None:
    """Refuse a price of scores without a scorer, and a maximum cost without prices."""
    scores = plan.scorer_prices
    if plan.scorer is not None:
        check_url(plan.scorer)
    elif not scores.is_free:
        raise ConfigError("scorer-price needs a scorer: give its URL, scorer=URL")
    if plan.is_free and plan.max_cost is not None:
        raise ConfigError("--max-cost needs prices: give a file of them with --token-prices")


def estimate_cost(plan: Plan) -> dict[str, Any]:
    """Return what a collection needs at most, without a single call."""
    asked = plan.question_texts()
    rows = []
    for spec in plan.arms:
        prompt = sum(prompt_size(spec.template.render(text)) for _, text in asked)
        n_samples = len(asked) * spec.n_samples
        tokens = n_samples * (spec.settings.max_tokens or 0)
        # Four bytes per token are usual; a prompt is paid for again with every call.
        once = prompt // 4
        scores = n_samples * plan.scorer_prices.cost(Usage(0, 0))
        cost, cost_with_native_n = (
            (_cost_of_calls(spec.token_prices, len(asked), calls, once, tokens) + scores) / NANO
            for calls in (spec.n_samples, -(-spec.n_samples // MAX_SAMPLES_PER_CALL))
        )
        rows.append(
            {
                "arm": spec.name,
                "model": spec.model,
                "samples": n_samples,
                "max_calls": n_samples,
                "scores": n_samples if plan.scorer else 0,
                "prompt_tokens": once * spec.n_samples,
                "max_completion_tokens": tokens,
                "max_cost": cost,
                "max_cost_with_native_n": cost_with_native_n,
            }
        )
    return {"questions": len(asked), "arms": rows}


def _cost_of_calls(
    token_prices: TokenPrices, questions: int, calls: int, prompt: int, tokens: int
) -> int:
    """Return the cost of so many calls per question, each with its prompt."""
    fee = TokenPrices(call=token_prices.call).cost(Usage(0, 0))
    once = replace(token_prices, call=0.0).cost(Usage(prompt * calls, tokens))
    return once + fee * questions * calls
