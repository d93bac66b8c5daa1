"""Estimate: the stage that computes the utility of every level on every question.

It reads graded samples and writes the utility table, with standard errors and mean costs. With
several arms, a level is a number of samples of one arm. It does not choose levels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import Estimate, estimate, estimate_windows
from adacompute.evaluation.costs import (
    CostModel,
    describe_token_prices,
    level_costs,
)
from adacompute.evaluation.pool import common_sample_count
from adacompute.options.definition import takes
from adacompute.options.research import EstimateOptions
from adacompute.stages.inputs import (
    check_levels,
    token_prices_of,
)
from adacompute.stages.research.estimate_blocks import estimate_blocks, is_large
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet

if TYPE_CHECKING:
    from adacompute.core.types import IntArray

UTILITY = "utility.parquet"


@takes(EstimateOptions)
def estimate_run(run: Path, options: EstimateOptions) -> dict[str, Any]:
    """Estimate the utility of each level on each question, and its mean cost."""
    method, vote, unit = options.method, options.vote, options.unit
    store, prices = Run(run), token_prices_of(options, run)
    levels = check_levels(options.levels)
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
    if is_large(store):
        known = {"method": method, "vote": vote, "unit": unit}
        return _estimate_large(store, levels, arguments, inputs, known)
    recorded = store.encoded_samples()
    columns, rows = _tabulate(recorded, levels, method, vote, CostModel(unit, prices))
    kept = columns["question_id"]
    result: dict[str, Any] = {"questions": len(kept), "method": method, "vote": vote, "unit": unit}
    if len(recorded.arms) > 1:
        result["excluded"] = len(recorded.id) - len(kept)
    result["levels"] = rows
    store.finish(
        "estimate",
        arguments=arguments,
        inputs=inputs,
        outputs={UTILITY: pa.table(columns)},
        result=result,
    )
    return result


def _estimate_large(
    store: Run,
    levels: tuple[int, ...],
    arguments: dict[str, Any],
    inputs: dict[str, str],
    known: dict[str, str],
) -> dict[str, Any]:
    """Estimate in blocks, and write the manifest."""
    rows = estimate_blocks(store, UTILITY, levels, **known)
    n_questions = pq.read_metadata(store.file(UTILITY)).num_rows
    result: dict[str, Any] = {"questions": n_questions, **known, "levels": rows}
    store.finish_written(
        "estimate", arguments=arguments, names=[UTILITY], result=result, inputs=inputs
    )
    return result


def _tabulate(
    recorded: SampleSet, levels: tuple[int, ...], method: str, vote: str, costs: CostModel
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the columns of the utility table, and one row for each level."""
    kept = common_questions(recorded)
    columns: dict[str, Any] = {"question_id": [recorded.id[q] for q in kept]}
    rows: list[dict[str, Any]] = []
    for one, own_levels in split_arms(recorded, kept, levels):
        found = _estimate(_find_answers(one, vote), own_levels, method, vote)
        cost = level_costs(one, costs.unit, own_levels, costs.token_prices)
        cost = np.broadcast_to(cost, found.utility.shape)
        for k, n in enumerate(own_levels):
            named = _name_level(one, n) if len(recorded.arms) > 1 else {"level": n}
            columns[f"utility_{named['level']}"] = found.utility[:, k]
            columns[f"error_{named['level']}"] = found.standard_error[:, k]
            rows.append(
                {
                    **named,
                    "cost": float(cost[:, k].mean()),
                    "utility": float(found.utility[:, k].mean()),
                    "standard_error": _standard_error(found.utility[:, k], one.group),
                }
            )
    return columns, rows


def common_questions(recorded: SampleSet) -> IntArray:
    """Return the rows of the questions that have enough samples of every arm.

    For each arm that is the number of samples that nine out of ten questions have. With one arm all
    questions are returned.
    """
    if len(recorded.arms) == 1:
        return np.arange(len(recorded.id))
    counts = _count_samples(recorded)
    wanted = np.array([common_sample_count(column) for column in counts.T])
    if (wanted < 1).any():
        name = recorded.arms[int(wanted.argmin())]
        raise DataError(
            f"more than a tenth of the questions have no sample of the arm {name!r}: leave the arm "
            "out, or collect more"
        )
    return np.flatnonzero((counts >= wanted).all(axis=1))


def _count_samples(recorded: SampleSet) -> IntArray:
    """Return the number of samples of each question and arm, (N, arms)."""
    size = len(recorded.arms)
    cell = recorded.answers.question * size + recorded.arm
    return np.bincount(cell, minlength=len(recorded.id) * size).reshape(-1, size)


def split_arms(
    recorded: SampleSet, rows: IntArray, levels: tuple[int, ...]
) -> list[tuple[SampleSet, tuple[int, ...]]]:
    """Return the samples of each arm on some questions, and the levels that they are enough for.

    A single arm is returned with all levels.
    """
    if len(recorded.arms) == 1:
        return [(recorded, levels)]
    fewest = _count_samples(recorded)[rows].min(axis=0)
    found = [
        (recorded.select_arm(arm, rows), tuple(n for n in levels if n <= fewest[arm]))
        for arm in range(len(recorded.arms))
    ]
    if not any(own for _, own in found):
        raise DataError(
            f"no arm has {levels[0]} samples of every question, the lowest level: lower the levels "
            "or collect more samples"
        )
    return [(one, own) for one, own in found if own]


def _name_level(recorded: SampleSet, n_samples: int) -> dict[str, Any]:
    """Return the name, the arm and the number of samples of a level of one arm."""
    (arm,) = recorded.arms
    return {"level": f"{arm} × {n_samples}", "arm": arm, "samples": n_samples}


def _find_answers(recorded: SampleSet, vote: str) -> Answers:
    """Return the answers, with scores if the vote needs them."""
    return _with_scores(recorded, vote) if vote == "best-of" else recorded.answers


def _estimate(answers: Answers, levels: tuple[int, ...], method: str, vote: str) -> Estimate:
    """Estimate utilities from all subsets, or from the paper's windows."""
    if method == "exact":
        return estimate(answers, levels, vote=vote)
    if vote != "majority":
        raise ConfigError(f"the method 'windows' supports the vote 'majority' only, got {vote!r}")
    utility = estimate_windows(answers, levels)
    return Estimate(utility, np.full(utility.shape, np.nan))


def _with_scores(recorded: SampleSet, vote: str) -> Answers:
    """Return the answers with their scores, or, without any, their mean log-probabilities."""
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
