"""Costs: what each recorded sample cost, in the unit that a budget is in.

A column that is needed and was not recorded ends in one sentence. It knows recorded columns, not
prices of tokens: those are the tariffs'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import chance_of_best

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.storage.store import Recorded

UNITS = ("samples", "tokens", "characters", "money", "seconds")
COLUMNS = {
    "tokens": "completion_tokens",
    "characters": "completion_chars",
    "seconds": "latency_s",
    "latency": "latency_s",
}


def draw_costs(recorded: Recorded, unit: str) -> FloatArray:
    """Cost of every sample, in the order of the answers; these add up."""
    if unit == "samples":
        return np.ones(len(recorded.answers.answer))
    if unit == "money":
        raise ConfigError(
            "a budget in money needs prices of tokens, and this version has none: "
            "use --unit tokens or characters"
        )
    if unit not in UNITS:
        raise ConfigError(
            f"a unit is one of {', '.join(UNITS)}, or latency for a limit, not {unit!r}"
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


def level_costs(recorded: Recorded, unit: str, samples: tuple[int, ...]) -> FloatArray:
    """Expected cost of each level on each question: (K,) for samples, else (N, K).

    Costs add up over samples, but latency is that of the slowest of them, drawn at once.
    """
    if unit == "samples":
        return np.asarray(samples, dtype=np.float64)
    if unit == "latency":
        values = _recorded_costs(recorded, unit)
        return np.stack([_slowest(recorded, values, size) for size in samples], axis=1)
    values, answers = draw_costs(recorded, unit), recorded.answers
    total = np.bincount(answers.question, values, minlength=len(answers))
    return np.asarray((total / answers.samples)[:, None] * np.asarray(samples))


def _slowest(recorded: Recorded, values: FloatArray, size: int) -> FloatArray:
    """Expected maximum over a random subset of each question's samples."""
    result = np.empty(len(recorded.answers))
    for rows, index in recorded.answers.groups():
        ranked = np.sort(values[index], axis=1)
        result[rows] = ranked @ chance_of_best(index.shape[1], size)
    return result
