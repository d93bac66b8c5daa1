"""Costs: what each recorded sample cost, in the unit that a budget is in.

A column that is needed and was not recorded ends in one sentence. Money is what was paid when the
samples were collected, or what their tokens cost by a tariff: a prompt is then shared by the
samples of its call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import chance_of_best
from adacompute.spending.tariffs import Tariff, find_tariff, read_tariffs

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray
    from adacompute.storage.store import Recorded

UNITS = ("samples", "tokens", "characters", "money", "seconds")
COLUMNS = {
    "tokens": "completion_tokens",
    "characters": "completion_chars",
    "money": "cost",
    "seconds": "latency_s",
    "latency": "latency_s",
}
MILLION = 1e6

Prices = Mapping[str, Tariff]
"""Tariffs by the names of models."""


def read_prices(tariff: Path | None, units: Collection[str]) -> dict[str, Tariff] | None:
    """Read the tariffs that costs in these units are counted by, if any."""
    if tariff is None:
        return None
    if "money" not in units:
        raise ConfigError("a tariff is for costs in money: add --unit money")
    return read_tariffs(tariff)


def describe_prices(prices: Prices | None) -> dict[str, dict[str, float | None]] | None:
    """Prices as a manifest names them: with others, a stage is run again."""
    return None if prices is None else {name: asdict(own) for name, own in prices.items()}


def draw_costs(recorded: Recorded, unit: str, prices: Prices | None = None) -> FloatArray:
    """Cost of every sample, in the order of the answers; these add up."""
    if unit == "samples":
        return np.ones(len(recorded.answers.answer))
    if unit not in UNITS:
        raise ConfigError(
            f"a unit is one of {', '.join(UNITS)}, or latency for a limit, not {unit!r}"
        )
    if unit == "money" and prices is not None:
        return _priced(recorded, prices)
    if unit == "money" and not np.nan_to_num(recorded.numbers("cost")).any():
        raise ConfigError(
            "a cost in money needs prices of tokens, and none was recorded with the samples: "
            "name a file of prices with --tariff, or use another unit"
        )
    return _recorded_costs(recorded, unit)


def _recorded_costs(recorded: Recorded, unit: str) -> FloatArray:
    """Read a column of costs, and refuse what cannot be spent."""
    column = COLUMNS[unit]
    values = recorded.numbers(column)
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


def _priced(recorded: Recorded, prices: Prices) -> FloatArray:
    """What the tokens of every sample cost, its model's tariff applied."""
    shared = np.maximum(_counts(recorded, "shared"), 1)
    tokens = {
        name: _counts(recorded, f"{name}_tokens")
        for name in ("prompt", "cached", "completion", "reasoning")
    }
    result = np.zeros(len(shared))
    for tariff, rows in _tariffs(recorded, prices):
        needed = {
            "prompt": max(tariff.input, tariff.cached_input or 0),
            "completion": max(tariff.output, tariff.reasoning or 0),
        }
        for name in (name for name in needed if needed[name]):
            _refuse_missing(recorded.numbers(f"{name}_tokens")[rows], f"{name}_tokens")
        own = {name: values[rows] for name, values in tokens.items()}
        prompt, completion = own["prompt"] / shared[rows], own["completion"]
        result[rows] = tariff.call / shared[rows] + (
            tariff.tokens(
                prompt,
                np.minimum(own["cached"] / shared[rows], prompt),
                completion,
                np.minimum(own["reasoning"], completion),
            )
            / MILLION
        )
    return result


def _counts(recorded: Recorded, column: str) -> FloatArray:
    """A column of counts, 0 where there is none."""
    values = np.nan_to_num(recorded.numbers(column), nan=0.0)
    if len(wrong := values[values < 0]):
        raise DataError(f"{column} holds {wrong[0]:g}: a count is a number from 0 on")
    return values


def _refuse_missing(values: FloatArray, column: str) -> None:
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(values)} samples have no {column}, so a tariff cannot say what "
            "they cost: use another unit"
        )


def _tariffs(recorded: Recorded, prices: Prices) -> list[tuple[Tariff, BoolArray]]:
    """The tariffs of the samples' models, and which samples each is for."""
    names = np.asarray(recorded.columns["model"].to_pylist(), dtype=object)[recorded.order]
    found = []
    for model in dict.fromkeys(names.tolist()):
        if model is None and len(prices) > 1:
            raise DataError(
                "some samples do not say which model they are of, and there are tariffs of "
                f"{', '.join(prices)}: keep the one that is theirs"
            )
        tariff = next(iter(prices.values())) if model is None else find_tariff(prices, model)
        found.append((tariff, np.asarray(names == model)))
    return found


def level_costs(
    recorded: Recorded, unit: str, samples: tuple[int, ...], prices: Prices | None = None
) -> FloatArray:
    """Expected cost of each level on each question: (K,) for samples, else (N, K).

    Costs add up over samples, but latency is that of the slowest of them, drawn at once.
    """
    if unit == "samples":
        return np.asarray(samples, dtype=np.float64)
    if unit == "latency":
        values = _recorded_costs(recorded, unit)
        return np.stack([_slowest(recorded, values, size) for size in samples], axis=1)
    values, answers = draw_costs(recorded, unit, prices), recorded.answers
    total = np.bincount(answers.question, values, minlength=len(answers))
    return np.asarray((total / answers.samples)[:, None] * np.asarray(samples))


def _slowest(recorded: Recorded, values: FloatArray, size: int) -> FloatArray:
    """Expected maximum over a random subset of each question's samples."""
    result = np.empty(len(recorded.answers))
    for rows, index in recorded.answers.groups():
        ranked = np.sort(values[index], axis=1)
        result[rows] = ranked @ chance_of_best(index.shape[1], size)
    return result
