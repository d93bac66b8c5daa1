"""Costs: what each recorded sample cost, in the unit that a budget is in.

A column that is needed and was not recorded ends in one sentence. Money is what was paid when the
samples were collected, or what their tokens cost by token prices: a prompt is then shared by the
samples of its call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import probability_of_best
from adacompute.spending.token_prices import (
    TokenPriceList,
    TokenPrices,
    find_token_prices,
    parse_token_prices,
)

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray
    from adacompute.storage.store import SampleSet

UNITS = ("samples", "tokens", "characters", "money", "seconds")
COLUMNS = {
    "tokens": "completion_tokens",
    "characters": "completion_chars",
    "money": "cost",
    "seconds": "latency_s",
    "latency": "latency_s",
}
MILLION = 1e6


@dataclass(frozen=True)
class Costs:
    """What samples and rounds cost: a unit, token prices if it is money, and a cost per round.

    With ``native_n`` a round is one call, whose prompt is paid once; else every sample costs what
    it did when it was collected.
    """

    unit: str = "samples"
    prices: TokenPriceList | None = None
    native_n: bool = False
    round_cost: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.round_cost) and self.round_cost >= 0):
            raise ConfigError(f"a round costs a finite number from 0 on, not {self.round_cost}")
        if self.native_n and self.prices is None:
            raise ConfigError(
                "with native n a prompt is paid once a round, and its price is not known: "
                "add --unit money and --token-prices"
            )

    def describe(self) -> dict[str, Any]:
        """Return what a manifest or a bundle keeps of them, the unit aside."""
        prices = describe_token_prices(self.prices)
        return {"prices": prices, "native_n": self.native_n, "round_cost": self.round_cost}

    @staticmethod
    def read(unit: str, kept: Mapping[str, Any]) -> Costs:
        """Build from what was kept."""
        prices = kept["prices"]
        known = prices and {name: TokenPrices(**own) for name, own in prices.items()}
        return Costs(unit, known, bool(kept["native_n"]), float(kept["round_cost"]))

    def split(self, recorded: SampleSet) -> tuple[FloatArray, float | FloatArray]:
        """Return the cost of every sample, and that of a round beside its draws."""
        if not self.native_n or self.prices is None:
            return sample_costs(recorded, self.unit, self.prices), self.round_cost
        draws, prompts = call_costs(recorded, self.prices)
        return draws, prompts + self.round_cost

    def multiply(self, recorded: SampleSet, samples: Collection[float]) -> tuple[float, ...]:
        """Return what so many samples cost on average, to three digits, and a round of draws."""
        draws, rounds = self.split(recorded)
        each, fee = float(np.mean(draws)), float(np.mean(rounds))
        if each == 0:
            raise DataError("the samples cost nothing at all: use another unit")
        return tuple(float(f"{count * each:.3g}") + fee for count in samples)


BY_SAMPLES = Costs()


def check_budgets(budgets: Collection[float]) -> tuple[float, ...]:
    """Return budgets by rising size, or refuse them."""
    for budget in budgets:
        if not (np.isfinite(budget) and budget > 0):
            raise ConfigError(f"a budget is a finite number above 0, not {budget}")
    if not budgets:
        raise ConfigError("no budget is given: name at least one")
    return tuple(sorted({float(budget) for budget in budgets}))


def read_token_prices(token_prices: Path | None, units: Collection[str]) -> TokenPriceList | None:
    """Read the token prices that costs in these units are counted by, if any."""
    if token_prices is None:
        return None
    if "money" not in units:
        raise ConfigError("token prices is for costs in money: add --unit money")
    return parse_token_prices(token_prices)


def describe_token_prices(
    prices: TokenPriceList | None,
) -> dict[str, dict[str, float | None]] | None:
    """Prices as a manifest names them: with others, a stage is run again."""
    return None if prices is None else {name: asdict(own) for name, own in prices.items()}


def sample_costs(
    recorded: SampleSet, unit: str, prices: TokenPriceList | None = None
) -> FloatArray:
    """Cost of every sample, in the order of the answers; these add up."""
    if unit == "samples":
        return np.ones(len(recorded.answers.answer))
    if unit not in UNITS:
        raise ConfigError(
            f"a unit is one of {', '.join(UNITS)}, or latency for a limit, not {unit!r}"
        )
    if unit == "money" and prices is not None:
        prompt, completion = _priced(recorded, prices)
        return prompt / np.maximum(_counts(recorded, "samples_per_call"), 1) + completion
    if unit == "money" and not np.nan_to_num(recorded.column("cost")).any():
        raise ConfigError(
            "a cost in money needs prices of tokens, and none was recorded with the samples: "
            "name a file of prices with --token-prices, or use another unit"
        )
    return _recorded_costs(recorded, unit)


def call_costs(recorded: SampleSet, prices: TokenPriceList) -> tuple[FloatArray, FloatArray]:
    """Money of every sample without its prompt, and of a call's prompt by question, (N,).

    With native n a round is one call: its prompt is paid once, however many draws it asks for.
    """
    prompt, completion = _priced(recorded, prices)
    answers = recorded.answers
    total = np.bincount(answers.question, prompt, minlength=len(answers))
    return completion, np.asarray(total / np.maximum(1, answers.n_samples))


def _recorded_costs(recorded: SampleSet, unit: str) -> FloatArray:
    """Read a column of costs, and refuse what cannot be spent."""
    column = COLUMNS[unit]
    values = recorded.column(column)
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(values)} samples have no {column}, so they cannot be "
            f"counted in {unit}: use another unit"
        )
    wrong = values[(values < 0) | np.isinf(values)]
    if len(wrong):
        raise DataError(f"{column} holds {wrong[0]:g}: a cost is a finite number from 0 on")
    return values


def _priced(recorded: SampleSet, prices: TokenPriceList) -> tuple[FloatArray, FloatArray]:
    """What the prompt of every sample's call cost, and its own completion, by the token prices."""
    tokens = {
        name: _counts(recorded, f"{name}_tokens")
        for name in ("prompt", "cached", "completion", "reasoning")
    }
    prompt, completion = (np.zeros(len(recorded.answers.answer)) for _ in range(2))
    for token_prices, rows in _prices_by_model(recorded, prices):
        needed = {
            "prompt": max(token_prices.input, token_prices.cached_input or 0),
            "completion": max(token_prices.output, token_prices.reasoning or 0),
        }
        for name in (name for name in needed if needed[name]):
            _refuse_missing(recorded.column(f"{name}_tokens")[rows], f"{name}_tokens")
        own = {name: values[rows] for name, values in tokens.items()}
        none, cached = np.zeros(int(rows.sum())), np.minimum(own["cached"], own["prompt"])
        reasoning = np.minimum(own["reasoning"], own["completion"])
        paid = token_prices.token_cost(own["prompt"], cached, none, none)
        prompt[rows] = token_prices.call + paid / MILLION
        completion[rows] = (
            token_prices.token_cost(none, none, own["completion"], reasoning) / MILLION
        )
    return prompt, completion


def _counts(recorded: SampleSet, column: str) -> FloatArray:
    """A column of counts, 0 where there is none."""
    values = np.nan_to_num(recorded.column(column), nan=0.0)
    if len(wrong := values[values < 0]):
        raise DataError(f"{column} holds {wrong[0]:g}: a count is a number from 0 on")
    return values


def _refuse_missing(values: FloatArray, column: str) -> None:
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(values)} samples have no {column}, so token prices cannot say what "
            "they cost: use another unit"
        )


def _prices_by_model(
    recorded: SampleSet, prices: TokenPriceList
) -> list[tuple[TokenPrices, BoolArray]]:
    """The token prices of the samples' models, and which samples each is for."""
    names = np.asarray(recorded.columns["model"].to_pylist(), dtype=object)[recorded.order]
    found = []
    for model in dict.fromkeys(names.tolist()):
        if model is None and len(prices) > 1:
            raise DataError(
                "some samples do not say which model they are of, and there are token prices of "
                f"{', '.join(prices)}: keep the one that is theirs"
            )
        token_prices = (
            next(iter(prices.values())) if model is None else find_token_prices(prices, model)
        )
        found.append((token_prices, np.asarray(names == model)))
    return found


def level_costs(
    recorded: SampleSet, unit: str, samples: tuple[int, ...], prices: TokenPriceList | None = None
) -> FloatArray:
    """Expected cost of each level on each question: (K,) for samples, else (N, K).

    Costs add up over samples, but latency is that of the slowest of them, drawn at once.
    """
    if unit == "samples":
        return np.asarray(samples, dtype=np.float64)
    if unit == "latency":
        values = _recorded_costs(recorded, unit)
        return np.stack([_slowest(recorded, values, size) for size in samples], axis=1)
    values, answers = sample_costs(recorded, unit, prices), recorded.answers
    total = np.bincount(answers.question, values, minlength=len(answers))
    return np.asarray((total / answers.n_samples)[:, None] * np.asarray(samples))


def _slowest(recorded: SampleSet, values: FloatArray, size: int) -> FloatArray:
    """Expected maximum over a random subset of each question's samples."""
    result = np.empty(len(recorded.answers))
    for rows, index in recorded.answers.groups():
        ranked = np.sort(values[index], axis=1)
        result[rows] = ranked @ probability_of_best(index.shape[1], size)
    return result
