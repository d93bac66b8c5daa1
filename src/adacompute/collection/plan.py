"""Plans: what is to be collected, checked before anything is paid for.

Questions, levels, prices and the form of the prompt are read and held against each other here; a
plan can say what it needs at most without a single call. It knows nothing of servers or ledgers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.posterior import INITIAL_SAMPLES
from adacompute.core.types import MAX_LEVEL
from adacompute.datasets.sources import choose_questions, read_question_source
from adacompute.graders.grader import load_grader
from adacompute.models.messages import Prompt, Sample, Settings, Timeouts
from adacompute.models.openai_format import check_url
from adacompute.models.templates import Template
from adacompute.spending.token_prices import (
    NANO,
    TokenPrices,
    Usage,
    find_token_prices,
    parse_token_prices,
)

if TYPE_CHECKING:
    import pyarrow as pa

KEY_VARIABLE, SCORER_KEY_VARIABLE = "OPENAI_API_KEY", "SCORER_API_KEY"
BUDGET = 2.0
"""Mean samples a question that an adaptive collection is for, unless it is said."""

MOST_AT_ONCE = 16
"""Draws asked for in one call at most: a call that fails loses them all."""

WRAPPING = 32
"""Tokens that a server's own form adds to a message, as a rule fewer."""

SEEDS = 2**31
"""Seeds that every server takes."""

MOST_TOKENS = 32_768
"""Length of a completion where no limit is set, for the worst case."""

LEVEL_KEYS = (
    "name",
    "model",
    "base_url",
    "api_key_env",
    "samples",
    "effort",
    "max_tokens",
    "temperature",
)


class SeededModel(Protocol):
    """What draws: one call, as many samples as it returns."""

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
        """Draw up to ``count`` samples in one call."""


class Scorer(Protocol):
    """What says how good a text answers a question."""

    async def score(self, question: str, text: str) -> float:
        """Score a text as an answer to a question."""


@dataclass(frozen=True)
class LevelSpec:
    """One operating level as it was asked for."""

    name: str
    model: str
    base_url: str
    api_key_env: str = KEY_VARIABLE
    samples: int = 48
    settings: Settings = field(default_factory=Settings)
    token_prices: TokenPrices = field(default_factory=TokenPrices)


@dataclass(frozen=True, eq=False)
class CollectionLevel:
    """One operating level: a model, how it is asked, how often, and what it costs."""

    level: str
    model_name: str
    model: SeededModel
    template: Template
    settings: Settings
    token_prices: TokenPrices
    draws: int
    at_once: int = 1
    seed: int | None = 0
    scorer: Scorer | None = None
    score_price: int = 0

    def seed_of(self, question: str, draw: int) -> int | None:
        """The seed of a draw, or of a call whose first draw it is.

        Each question has seeds of its own: with the same ones, a draw would be lucky or unlucky on
        all questions at once, and means over questions would vary far more than they seem to.
        """
        if self.seed is None:
            return None
        own = hashlib.blake2b(f"{self.level}\n{question}".encode(), digest_size=4).digest()
        return (self.seed + int.from_bytes(own, "big") + draw) % SEEDS

    def most(self, prompt_bytes: int, draws: int) -> int:
        """What a call can cost at most, without the scores of its draws."""
        length = self.settings.max_tokens or MOST_TOKENS
        return self.token_prices.max_cost(
            prompt_bytes=prompt_bytes, n_samples=draws, max_tokens=length
        )


def prompt_size(prompt: Prompt) -> int:
    """Bytes of a prompt, and what a server may wrap a message in: no model makes more tokens."""
    if prompt.text is not None:
        return len(prompt.text.encode())
    return sum(
        len(str(message["content"]).encode()) + WRAPPING for message in prompt.messages or ()
    )


@dataclass(frozen=True)
class Plan:
    """What is to be collected: questions, levels, and how they are asked.

    ``adaptive`` is the budget that undecided questions are drawn for, if only these are.
    """

    questions: pa.Table
    levels: tuple[LevelSpec, ...]
    template: Template
    grader: str
    seed: int | None
    concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    most_cost: float | None = None
    scorer: str | None = None
    scorer_prices: TokenPrices = field(default_factory=TokenPrices)
    scorer_api_key_env: str = SCORER_KEY_VARIABLE
    timeouts: Timeouts = field(default_factory=Timeouts)
    adaptive: float | None = None

    def __post_init__(self) -> None:
        load_grader(self.grader)
        _check_amounts(self)
        _check_money(self)
        _check_keys(self)

    def asked(self) -> list[tuple[str, str]]:
        """Ids and texts of the questions."""
        ids, texts = (
            self.questions["question_id"].to_pylist(),
            self.questions["question"].to_pylist(),
        )
        if None in texts:
            raise DataError(f"question {ids[texts.index(None)]!r} has no text to send")
        return list(zip(ids, texts, strict=True))


def read_plan(
    source: str,
    *,
    base_url: str,
    model: str,
    grader: str,
    samples: int = 48,
    adaptive: bool = False,
    budget: float | None = None,
    levels: Sequence[Mapping[str, str]] = (),
    temperature: float = 0.7,
    max_tokens: int = 1024,
    stop: Sequence[str] = (),
    system: str | None = None,
    prompt: str = "{question}",
    few_shot: Path | None = None,
    completion: bool = False,
    max_questions: int | None = None,
    difficulties: Sequence[str] | None = None,
    seed: int = 0,
    token_prices: Path | None = None,
    concurrency: int = 64,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    max_cost: float | None = None,
    timeout: float = 120.0,
    api_key_env: str = KEY_VARIABLE,
    scorer: str | None = None,
    scorer_price: float = 0.0,
    scorer_api_key_env: str = SCORER_KEY_VARIABLE,
) -> Plan:
    """Read questions and check everything that was asked for before anything is paid for."""
    settings = Settings(temperature=temperature, max_tokens=max_tokens, stop=tuple(stop))
    first = LevelSpec("default", model, base_url, api_key_env, samples, settings)
    return Plan(
        questions=_choose(read_question_source(source), max_questions, difficulties, seed),
        levels=_levels(levels, first, token_prices),
        template=Template(prompt, system, _read_few_shot(few_shot), chat=not completion),
        grader=grader,
        seed=seed,
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        most_cost=max_cost,
        scorer=scorer,
        scorer_prices=TokenPrices(call=scorer_price),
        scorer_api_key_env=scorer_api_key_env,
        timeouts=Timeouts(first_byte_s=timeout, total_s=max(600.0, timeout)),
        adaptive=_adaptive(budget, adaptive=adaptive),
    )


def _adaptive(budget: float | None, *, adaptive: bool) -> float | None:
    """Return the budget that is drawn for, if the collection is adaptive."""
    if budget is not None and not adaptive:
        raise ConfigError("a budget says where to draw on: add --adaptive, or leave --budget out")
    if budget is not None and not 1 <= budget < float("inf"):
        raise ConfigError(f"a budget is a number of samples a question from 1 on, not {budget:g}")
    return (BUDGET if budget is None else budget) if adaptive else None


def _check_keys(plan: Plan) -> None:
    """Refuse to look for undecided questions where it is not known what is right."""
    if plan.adaptive is None:
        return
    names = plan.questions["question_id"].to_pylist()
    gold = plan.questions["gold"].to_pylist()
    if None in gold:
        raise ConfigError(
            f"adaptive collection needs the right answer of every question, and "
            f"{names[gold.index(None)]!r} has none: collect without --adaptive"
        )


def _choose(
    table: pa.Table, max_questions: int | None, difficulties: Sequence[str] | None, seed: int
) -> pa.Table:
    if max_questions is None and not difficulties:
        return table
    max_questions = table.num_rows if max_questions is None else max_questions
    return choose_questions(table, max_questions, difficulties=difficulties or None, seed=seed)


def _check_amounts(plan: Plan) -> None:
    """Refuse amounts with which nothing would be drawn, or no limit would hold."""
    amounts = {f"samples of the level {spec.name!r}": spec.samples for spec in plan.levels}
    amounts["calls at once"] = plan.concurrency
    limits = {"requests": plan.requests_per_minute, "tokens": plan.tokens_per_minute}
    amounts |= {f"{name} a minute": most for name, most in limits.items() if most is not None}
    for name, amount in amounts.items():
        if not 1 <= amount <= MAX_LEVEL:
            raise ConfigError(f"{name} are from 1 to {MAX_LEVEL}, not {amount}")
    if plan.most_cost is not None and not 0 < plan.most_cost < float("inf"):
        raise ConfigError(f"a limit on cost is a finite number above 0, not {plan.most_cost}")


def _check_money(plan: Plan) -> None:
    """Refuse prices of what is not asked for, and limits on what has no price."""
    scores = plan.scorer_prices
    if plan.scorer is not None:
        check_url(plan.scorer)
    elif not scores.is_free:
        raise ConfigError("a price of scores needs a scorer: name its URL with --scorer")
    free = scores.is_free and all(spec.token_prices.is_free for spec in plan.levels)
    if free and plan.most_cost is not None:
        raise ConfigError("a limit on cost needs prices: name a file of them with --token-prices")


def _levels(
    given: Sequence[Mapping[str, str]], first: LevelSpec, token_prices: Path | None
) -> tuple[LevelSpec, ...]:
    """The levels asked for, or the default alone, each with its prices."""
    specs = [_level(spec, first) for spec in given] or [first]
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"two levels share a name: {names}")
    if token_prices is not None:
        price_list = parse_token_prices(token_prices)
        specs = [
            replace(spec, token_prices=find_token_prices(price_list, spec.model)) for spec in specs
        ]
    return tuple(specs)


def _level(given: Mapping[str, str], first: LevelSpec) -> LevelSpec:
    """One level as ``--level`` spells it; what it leaves out is the default's."""
    for key in given:
        if key not in LEVEL_KEYS:
            raise ConfigError(f"a level has no {key!r}; it has {', '.join(LEVEL_KEYS)}")
    if "name" not in given:
        raise ConfigError("a level needs a name: name=big,model=…")
    try:
        settings = replace(
            first.settings,
            effort=given.get("effort"),
            max_tokens=int(given.get("max_tokens", first.settings.max_tokens or 0)),
            temperature=float(given.get("temperature", first.settings.temperature)),
        )
        samples = int(given.get("samples", first.samples))
    except ValueError as error:
        raise ConfigError(f"level {given['name']!r}: {error}") from None
    return LevelSpec(
        name=given["name"],
        model=given.get("model", first.model),
        base_url=given.get("base_url", first.base_url),
        api_key_env=given.get("api_key_env", first.api_key_env),
        samples=samples,
        settings=settings,
    )


def _read_few_shot(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Worked examples: lines of JSON with a question and an answer."""
    if path is None:
        return ()
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return tuple((str(row["question"]), str(row["answer"])) for row in rows)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f'{path} must hold lines such as {{"question": "…", "answer": "…"}}'
        ) from None


def estimate_cost(plan: Plan) -> dict[str, Any]:
    """What a collection would need at most, without a single call."""
    asked = plan.asked()
    prompt = sum(prompt_size(plan.template.render(text)) for _, text in asked)
    rows = []
    for spec in plan.levels:
        draws = len(asked) * spec.samples
        tokens = draws * (spec.settings.max_tokens or 0)
        # Four characters a token is usual; a prompt is paid for again with every call.
        once = prompt // 4
        scores = draws * plan.scorer_prices.cost(Usage(0, 0))
        cost, shared = (
            (_cost_of_calls(spec.token_prices, len(asked), calls, once, tokens) + scores) / NANO
            for calls in (spec.samples, -(-spec.samples // MOST_AT_ONCE))
        )
        rows.append(
            {
                "level": spec.name,
                "model": spec.model,
                "samples": draws,
                **_least(plan, spec),
                "calls_at_most": draws,
                "scores": draws if plan.scorer else 0,
                "prompt_tokens": once * spec.samples,
                "completion_tokens_at_most": tokens,
                "cost_at_most": cost,
                "cost_at_most_with_native_n": shared,
            }
        )
    return {"questions": len(asked), "levels": rows}


def _least(plan: Plan, spec: LevelSpec) -> dict[str, int]:
    """What an adaptive collection draws at least."""
    if plan.adaptive is None:
        return {}
    return {"samples_at_least": plan.questions.num_rows * min(INITIAL_SAMPLES, spec.samples)}


def _cost_of_calls(
    token_prices: TokenPrices, questions: int, calls: int, prompt: int, tokens: int
) -> int:
    """Cost of so many calls a question, each with its prompt."""
    fee = TokenPrices(call=token_prices.call).cost(Usage(0, 0))
    once = replace(token_prices, call=0.0).cost(Usage(prompt * calls, tokens))
    return once + fee * questions * calls
