"""Estimate: the stage that computes the utility of every level on every question.

It reads graded samples and writes the utility table, with standard errors and mean costs. It does
not choose levels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.posterior import fit_posterior
from adacompute.core.utility import DIGITS, Estimate, estimate
from adacompute.evaluation.costs import describe_token_prices, level_costs, read_token_prices
from adacompute.stages.inputs import (
    DEFAULT_LEVELS,
    check_levels,
)
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UTILITY = "utility.parquet"


def estimate_run(
    run: Path,
    *,
    levels: Sequence[int] = DEFAULT_LEVELS,
    method: str = "exact",
    vote: str = "majority",
    unit: str = "samples",
    token_prices: Path | None = None,
    price_as: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Estimate the utility of each level on each question, and its mean cost."""
    store, prices = Run(run), read_token_prices(token_prices, [unit], price_as, runs=[run])
    levels = check_levels(levels)
    arguments = {
        "levels": list(levels),
        "method": method,
        "vote": vote,
        "unit": unit,
        "prices": describe_token_prices(prices),
    }
    inputs = store.hashes([SAMPLES, GRADES])
    if finished := store.find_finished("estimate", arguments, inputs):
        return finished.result
    recorded = store.encoded_samples()
    answers = _with_scores(recorded, vote) if vote in ("weighted", "best-of") else recorded.answers
    found = _estimate(answers, levels, method, vote)
    columns: dict[str, Any] = {"question_id": recorded.id}
    for k, level in enumerate(levels):
        columns[f"utility_{level}"] = found.utility[:, k]
        columns[f"error_{level}"] = found.standard_error[:, k]
    cost = np.broadcast_to(level_costs(recorded, unit, levels, prices), found.utility.shape)
    rows = [
        {
            "level": level,
            "cost": float(cost[:, k].mean()),
            "utility": float(found.utility[:, k].mean()),
            "standard_error": _standard_error(found.utility[:, k], recorded.group),
        }
        for k, level in enumerate(levels)
    ]
    result = {"questions": len(answers), "method": method, "vote": vote, "unit": unit}
    result["levels"] = rows
    store.finish(
        "estimate",
        arguments=arguments,
        inputs=inputs,
        outputs={UTILITY: pa.table(columns)},
        result=result,
    )
    return result


def _estimate(answers: Answers, levels: tuple[int, ...], method: str, vote: str) -> Estimate:
    """Estimate utilities from each question's own samples, or from those of all questions."""
    if method != "posterior":
        return estimate(answers, levels, method=method, vote=vote)
    if vote != "majority":
        raise ConfigError(f"the method 'posterior' supports the vote 'majority' only, got {vote!r}")
    utility = np.round(fit_posterior(answers, levels).utility, DIGITS)
    return Estimate(utility, np.full(utility.shape, np.nan))


def _with_scores(recorded: SampleSet, vote: str) -> Answers:
    """Return the answers with their scores, or, without any, their mean log-probabilities.

    A weighted vote uses scores as they are, and log-probabilities as probabilities.
    """
    answers = recorded.answers
    parsed = answers.answer != UNPARSED
    column, score = "score", recorded.column("score")
    if np.isnan(score[parsed]).all():
        column, score = "mean_logprob", recorded.column("mean_logprob")
    missing = int(np.isnan(score[parsed]).sum())
    if missing:
        raise DataError(
            f"vote {vote!r} needs {column} for every parsed sample, and {missing} have none: "
            "use another vote"
        )
    if vote == "weighted" and column == "score" and bool((score[parsed] < 0).any()):
        raise DataError("votes cannot be weighted by a score below 0: use the vote best-of")
    if vote == "weighted" and column == "mean_logprob":
        with np.errstate(over="ignore"):  # an infinite score is refused later
            score = np.exp(score)
    return replace(answers, score=score)


def _standard_error(
    values: np.typing.NDArray[np.float64], group: np.typing.NDArray[np.uint64]
) -> float | None:
    """Return the standard error of a mean over questions, clustered by text."""
    _, inverse = np.unique(group, return_inverse=True)
    groups = int(inverse.max()) + 1
    if groups < 2:  # noqa: PLR2004 - one question has no standard error
        return None
    sums = np.bincount(inverse, values - values.mean(), minlength=groups)
    return float(np.sqrt((sums**2).sum() * groups / (groups - 1)) / len(values))
