"""Costs: the cost of each recorded sample, in the unit of a budget.

Money is what was paid when the samples were collected, or what their tokens cost by token prices;
the samples of a call then share the cost of its prompt. If a column that a unit needs was not
recorded, an error names the column; where only a few values are missing, the mean of the question's
other samples takes their place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.spending.token_prices import (
    PUBLIC_SUFFIX,
    TokenPriceList,
    TokenPrices,
    find_token_prices,
    parse_token_prices,
)
from adacompute.storage.store import Run

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray
    from adacompute.storage.store import SampleSet

UNITS = ("samples", "tokens", "money")
COST_COLUMNS = {"tokens": "completion_tokens", "money": "cost"}
MILLION = 1e6
MAX_MISSING = 0.01
"""Share of samples without a recorded cost up to which the mean of their question is used."""


@dataclass(frozen=True)
class CostModel:
    """How samples and rounds are priced: a unit, and token prices for money.

    With ``native_n`` a round is one call and its prompt is paid once. Otherwise every sample costs
    what it cost when it was collected.
    """

    unit: str = "samples"
    token_prices: TokenPriceList | None = None
    native_n: bool = False

    def __post_init__(self) -> None:
        if self.native_n and self.token_prices is None:
            raise ConfigError(
                "with native n the prompt is paid once per round, and its price is not known: "
                "use the unit money and give token prices (token_prices= or --token-prices)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the unit as JSON values, for manifests and bundles."""
        prices = self.token_prices
        listed = None if prices is None else {model: asdict(one) for model, one in prices.items()}
        return {"token_prices": listed, "native_n": self.native_n}

    @staticmethod
    def from_dict(unit: str, content: Mapping[str, Any]) -> CostModel:
        """Build a cost model from a unit and the values of ``to_dict``."""
        stored = content["token_prices"]
        prices = stored and {model: TokenPrices(**one) for model, one in stored.items()}
        return CostModel(unit, prices, bool(content["native_n"]))

    def split(self, recorded: SampleSet) -> tuple[FloatArray, float | FloatArray]:
        """Return the cost of every sample, and the cost of a round besides its samples."""
        if not self.native_n or self.token_prices is None:
            return sample_costs(recorded, self.unit, self.token_prices), 0.0
        return call_costs(recorded, self.token_prices)

    def prompt_cost(self, recorded: SampleSet) -> FloatArray | None:
        """Return what the prompt of a call costs on each question, (N,); None without prices."""
        return None if self.token_prices is None else call_costs(recorded, self.token_prices)[1]

    def cost_of(self, recorded: SampleSet, counts: Collection[float]) -> tuple[float, ...]:
        """Return the mean cost of these numbers of samples, to three digits, plus one round."""
        samples, rounds = self.split(recorded)
        sample, per_round = float(np.mean(samples)), float(np.mean(rounds))
        if sample == 0:
            raise DataError("the samples cost nothing in this unit: use another unit")
        return tuple(float(f"{count * sample:.3g}") + per_round for count in counts)


COUNT_SAMPLES = CostModel()
"""The cost model in which every sample costs 1."""


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and bool(np.isfinite(float(value)))


def check_budgets(budgets: Collection[float], *, unit: str | None = None) -> tuple[float, ...]:
    """Return the budgets in rising order, and refuse those that are not finite and above 0.

    In samples, a budget below 1 is infeasible whatever the questions are.
    """
    for budget in budgets:
        if not _is_finite(budget) or budget <= 0:
            raise ConfigError(f"a budget must be a finite number above 0, not {budget!r}")
        if unit == "samples" and budget < 1:
            raise InfeasibleBudget(
                f"a budget of {budget:g} samples per question is below 1, and every question needs "
                "one sample: use a larger budget"
            )
    if not budgets:
        raise ConfigError("no budget is given: name at least one")
    return tuple(sorted({float(budget) for budget in budgets}))


def read_token_prices(
    path: Path | None,
    units: Collection[str],
    price_as: Mapping[str, str] | None = None,
    *,
    run: Path,
) -> TokenPriceList | None:
    """Read a file of token prices, which at least one of the units must need.

    ``price_as`` gives models the prices of listed ones. Of a public list, which has thousands of
    models, only those of the run are kept.
    """
    if path is None and price_as:
        raise ConfigError("price-as names a listed model: give the list with --token-prices")
    if path is None:
        return None
    if "money" not in units:
        raise ConfigError("token prices are for costs in money: use the unit money")
    price_list = parse_token_prices(path, price_as)
    if path.suffix.lower() != PUBLIC_SUFFIX:
        return price_list
    models = Run(run).recorded_samples()["model"].unique().to_pylist()
    return select_token_prices(price_list, path, [*models, *(price_as or {})])


def select_token_prices(
    price_list: TokenPriceList, path: Path, models: Collection[str | None]
) -> TokenPriceList:
    """Return the prices of these models if the file is a public list, else all prices."""
    if path.suffix.lower() != PUBLIC_SUFFIX:
        return price_list
    named = sorted({model for model in models if model is not None})
    if not named:
        raise ConfigError(
            f"the samples record no model, so their prices cannot be found in {path}: name the "
            "listed model that they are from (--config price-as=MODEL=LISTED)"
        )
    return {model: find_token_prices(price_list, model) for model in named}


def sample_costs(
    recorded: SampleSet, unit: str, prices: TokenPriceList | None = None
) -> FloatArray:
    """Return the cost of every sample in a unit that adds up, in the order of the answers."""
    if unit == "samples":
        return np.ones(len(recorded.answers.answer))
    if unit not in UNITS:
        raise ConfigError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    if unit == "money" and prices is not None:
        prompt, completion = _token_costs(recorded, prices)
        return prompt / np.maximum(_counts(recorded, "samples_per_call"), 1) + completion
    if unit == "money" and not np.nan_to_num(recorded.column("cost")).any():
        raise ConfigError(
            "no cost was recorded with the samples, so costs in money need token prices: "
            "give them (token_prices= or --token-prices), or use another unit"
        )
    return _recorded_costs(recorded, unit)


def call_costs(recorded: SampleSet, prices: TokenPriceList) -> tuple[FloatArray, FloatArray]:
    """Return the money for each sample without its prompt, and for the prompt of a call, (N,).

    With native n a round is one call, so its prompt is paid once for all of its samples.
    """
    prompt, completion = _token_costs(recorded, prices)
    return completion, _mean_by_question(recorded, prompt)


def _mean_by_question(recorded: SampleSet, values: FloatArray) -> FloatArray:
    """Return the mean of the samples of each question, (N,)."""
    answers = recorded.answers
    total = np.bincount(answers.question, values, minlength=len(answers))
    return np.asarray(total / np.maximum(1, answers.n_samples))


def _recorded_costs(recorded: SampleSet, unit: str) -> FloatArray:
    """Return the column of a unit, and refuse negative, infinite and many missing values."""
    column = COST_COLUMNS[unit]
    values = recorded.column(column)
    if unit != "money":  # what was paid is recorded for every sample or not known
        values = _fill_few(recorded, values)
    _refuse_missing(values, column, f"cannot be counted in {unit}")
    wrong = values[(values < 0) | np.isinf(values)]
    if len(wrong):
        raise DataError(f"{column} contains {wrong[0]:g}: a cost is a finite number from 0")
    return values


def _fill_few(recorded: SampleSet, values: FloatArray) -> FloatArray:
    """Replace a few missing values by the mean of their question; leave more of them as they are.

    A call that failed leaves an unparsed sample whose cost is unknown.
    """
    known, question = ~np.isnan(values), recorded.answers.question
    if known.all() or known.mean() < 1 - MAX_MISSING:
        return values
    n_questions = len(recorded.answers)
    count = np.bincount(question[known], minlength=n_questions)
    total = np.bincount(question[known], values[known], minlength=n_questions)
    mean = np.where(count > 0, total / np.maximum(count, 1), values[known].mean())
    return np.where(known, values, mean[question])


def _token_costs(recorded: SampleSet, prices: TokenPriceList) -> tuple[FloatArray, FloatArray]:
    """Return the cost of the prompt of each sample's call, and of its own completion."""
    tokens = {
        name: _counts(recorded, f"{name}_tokens")
        for name in ("prompt", "cached", "completion", "reasoning")
    }
    prompt, completion = (np.zeros(len(recorded.answers.answer)) for _ in range(2))
    for price, rows in _prices_by_model(recorded, prices):
        needed = {
            "prompt": max(price.input, price.cached_input or 0),
            "completion": max(price.output, price.reasoning or 0),
        }
        for column in (f"{name}_tokens" for name in needed if needed[name]):
            _refuse_missing(recorded.column(column)[rows], column, "have no cost by token prices")
        own = {name: values[rows] for name, values in tokens.items()}
        none, cached = np.zeros(int(rows.sum())), np.minimum(own["cached"], own["prompt"])
        reasoning = np.minimum(own["reasoning"], own["completion"])
        paid = price.token_cost(own["prompt"], cached, none, none)
        prompt[rows] = price.call + paid / MILLION
        completion[rows] = price.token_cost(none, none, own["completion"], reasoning) / MILLION
    return prompt, completion


def _counts(recorded: SampleSet, column: str) -> FloatArray:
    """Return a column of counts, with 0 for missing values."""
    values = np.nan_to_num(recorded.column(column), nan=0.0)
    if len(wrong := values[values < 0]):
        raise DataError(f"{column} contains {wrong[0]:g}: a count is a number from 0")
    return values


def _refuse_missing(values: FloatArray, column: str, consequence: str) -> None:
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(values)} samples have no {column}, so they {consequence}: "
            "use another unit"
        )


def _prices_by_model(
    recorded: SampleSet, prices: TokenPriceList
) -> list[tuple[TokenPrices, BoolArray]]:
    """Return the token prices of each model of the samples, and a mask of its samples."""
    names = np.asarray(recorded.columns["model"].to_pylist(), dtype=object)[recorded.order]
    found = []
    for model in dict.fromkeys(names.tolist()):
        if model is None and len(prices) > 1:
            raise DataError(
                "some samples have no model, and there are token prices of "
                f"{', '.join(prices)}: keep only the prices of their model"
            )
        price = next(iter(prices.values())) if model is None else find_token_prices(prices, model)
        found.append((price, np.asarray(names == model)))
    return found
