"""Stages: the line on a run directory, one function a command.

Each stage reads the artifacts of those before it and writes one of its own, its manifest last; a
stage that already ran with the same arguments on the same inputs is not run again, and returns what
it returned then. The keyword arguments are the configuration. It knows nothing of terminals.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.limits import solve_limits
from adacompute.core.oracle import solve
from adacompute.core.posterior import fit_posterior
from adacompute.core.types import MAX_LEVEL, Allocation, UtilityTable
from adacompute.core.utility import DIGITS, Estimate, estimate
from adacompute.datasets.sources import is_tidy, locate, read_question_source, read_source
from adacompute.datasets.ungraded import find_logged, holds_key, read_ungraded
from adacompute.evaluation.costs import describe_token_prices, level_costs, read_token_prices
from adacompute.graders.grader import Graded, grade, load
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

UTILITY, ALLOCATION = "utility.parquet", "allocation.parquet"
DEFAULT_LADDER = (1, 2, 4, 8, 16)


def no_progress(_: str) -> None:
    """Report nothing."""


def import_samples(
    source: Path,
    run: Path,
    *,
    model: str | None = None,
    grader: str | None = None,
    gold: str | None = None,
) -> dict[str, Any]:
    """Bring recorded samples into a run, graded by the question set ``gold`` where one is given.

    Tidy samples that have no grade are graded by the reference answers that they hold themselves.
    """
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is no directory, so it cannot be a run: name another place")
    place, source = Run(run), locate(source)
    key: str | None = None
    left_out: dict[str, int] = {}
    if gold is None and not (grader and is_tidy(source) and holds_key(source)):
        table = read_source(source, grade=_grading(grader))
        read = hash_path(source)
    else:
        read = "+".join(map(hash_path, find_logged(source)))  # before more is logged
        table, left_out = _read_ungraded(source, gold, grader)
        key = hash_path(Path(gold)) if gold and Path(gold).exists() else gold
    arguments = {"source": read, "model": model, "grader": grader, "gold": key}
    done = place.finished("import", arguments, {})
    if done:
        return done.result
    if place.file(SAMPLES).exists() and not place.holds(SAMPLES, table):
        raise DataError(
            f"{run} already holds samples of another source, which may have cost money: "
            "name another directory"
        )
    recorded = encode_samples(table)
    result = {
        "questions": len(recorded.answers),
        "samples": table.num_rows,
        **left_out,
        "unreadable": int(table["answer"].null_count),
        "correct": int(recorded.answers.correct.sum()),
        "model": model or _only(table["model"]),
        "grader": grader,
    }
    place.finish("import", arguments=arguments, inputs={}, outputs={SAMPLES: table}, result=result)
    return result


def _read_ungraded(
    source: Path, gold: str | None, grader: str | None
) -> tuple[pa.Table, dict[str, int]]:
    """Grade samples by a key, or by their own; how many questions and samples it leaves out."""
    if grader is None:
        raise ConfigError("a key of reference answers needs --grader, to compare answers with it")
    key = None if gold is None else read_question_source(gold)
    found = read_ungraded(source, key, partial(grade, load(grader)))
    left_out = {"left_out": found.left_out, "left_out_samples": found.left_out_samples}
    return found.samples, left_out


def _only(names: pa.ChunkedArray) -> str | None:
    """Return the one name that all rows have."""
    found: list[str | None] = names.unique().to_pylist()
    return found[0] if len(found) == 1 else None


def _grading(grader: str | None) -> Callable[[Sequence[str | None], str | None], Graded] | None:
    """How to grade what a log does not say is right."""
    return None if grader is None else partial(grade, load(grader))


def grade_run(
    run: Path, *, grader: str, progress: Callable[[str], None] = no_progress
) -> dict[str, Any]:
    """Grade the samples again, from their completions where these are recorded."""
    place = Run(run)
    samples = place.drawn()
    arguments, inputs = {"grader": grader}, place.hashes([SAMPLES])
    done = place.finished("grade", arguments, inputs)
    if done and not grader.startswith("cmd:"):  # a program of the user's own may have changed
        return done.result
    recorded = encode_samples(samples)
    column = "completion" if samples["completion"].null_count == 0 else "answer"
    answers, right = _judge(grader, samples, recorded, column, progress)
    back = np.argsort(recorded.order)
    table = pa.table(
        {"answer": pa.array(answers, pa.string()), "correct": pa.array(right, pa.bool_())}
    ).take(pa.array(back))
    before = np.asarray(samples["correct"])
    result = {
        "samples": len(answers),
        "correct": int(sum(right)),
        "unreadable": answers.count(None),
        "unreadable_share": answers.count(None) / max(1, len(answers)),
        "changed": int((np.asarray(table["correct"]) != before).sum()),
        "from": column,
    }
    place.finish(
        "grade", arguments=arguments, inputs=inputs, outputs={GRADES: table}, result=result
    )
    return result


def _judge(
    grader: str,
    samples: pa.Table,
    recorded: SampleSet,
    column: str,
    progress: Callable[[str], None],
) -> tuple[list[str | None], list[bool]]:
    """Grade every question's texts: their answers, and whether they are right."""
    judge = load(grader)
    texts: list[str | None] = samples[column].take(pa.array(recorded.order)).to_pylist()
    gold = samples["gold"].take(pa.array(recorded.order[recorded.first_samples()])).to_pylist()
    answers: list[str | None] = []
    right: list[bool] = []
    offsets = recorded.answers.offsets
    for i, name in enumerate(recorded.id):
        progress(f"{i + 1} of {len(recorded.id)} questions")
        try:
            graded = grade(judge, texts[offsets[i] : offsets[i + 1]], gold[i])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        answers += graded.answer
        right += graded.right
    return answers, right


def estimate_run(
    run: Path,
    *,
    levels: Sequence[int] = DEFAULT_LADDER,
    method: str = "exact",
    vote: str = "majority",
    unit: str = "samples",
    tariff: Path | None = None,
) -> dict[str, Any]:
    """Estimate what each level is worth on each question, and what it costs on the average."""
    place, prices = Run(run), read_token_prices(tariff, [unit])
    levels = check_levels(levels)
    arguments = {
        "levels": list(levels),
        "method": method,
        "vote": vote,
        "unit": unit,
        "prices": describe_token_prices(prices),
    }
    inputs = place.hashes([SAMPLES, GRADES])
    done = place.finished("estimate", arguments, inputs)
    if done:
        return done.result
    recorded = encode_samples(place.samples())
    answers = _scored(recorded, vote) if vote in ("weighted", "best-of") else recorded.answers
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
            "standard_error": _spread(found.utility[:, k], recorded.group),
        }
        for k, level in enumerate(levels)
    ]
    result = {"questions": len(answers), "method": method, "vote": vote, "unit": unit}
    result["levels"] = rows
    place.finish(
        "estimate",
        arguments=arguments,
        inputs=inputs,
        outputs={UTILITY: pa.table(columns)},
        result=result,
    )
    return result


def _estimate(answers: Answers, levels: tuple[int, ...], method: str, vote: str) -> Estimate:
    """Estimate utilities from the samples of each question alone, or from all together."""
    if method != "posterior":
        return estimate(answers, levels, method=method, vote=vote)
    if vote != "majority":
        raise ConfigError(f"the method 'posterior' knows the vote 'majority' only, not {vote!r}")
    utility = np.round(fit_posterior(answers, levels).utility, DIGITS)
    return Estimate(utility, np.full(utility.shape, np.nan))


def _scored(recorded: SampleSet, vote: str) -> Answers:
    """Answers with their scores, or without any, their mean log-probabilities.

    As weights of votes, scores are taken as they are and log-probabilities as probabilities.
    """
    answers = recorded.answers
    read = answers.answer != UNPARSED
    column, score = "score", recorded.numbers("score")
    if np.isnan(score[read]).all():
        column, score = "mean_logprob", recorded.numbers("mean_logprob")
    missing = int(np.isnan(score[read]).sum())
    if missing:
        raise DataError(
            f"vote {vote!r} needs {column} of every sample that could be read, and {missing} "
            "have none: use another vote"
        )
    if vote == "weighted" and column == "score" and bool((score[read] < 0).any()):
        raise DataError("votes cannot be weighed by a score below 0: use --vote best-of")
    if vote == "weighted" and column == "mean_logprob":
        with np.errstate(over="ignore"):  # what is infinite is refused as a score
            score = np.exp(score)
    return replace(answers, score=score)


def _spread(
    values: np.typing.NDArray[np.float64], group: np.typing.NDArray[np.uint64]
) -> float | None:
    """Standard error of a mean over questions, copies of one text counted together."""
    _, inverse = np.unique(group, return_inverse=True)
    groups = int(inverse.max()) + 1
    if groups < 2:  # noqa: PLR2004 - one question has no spread
        return None
    sums = np.bincount(inverse, values - values.mean(), minlength=groups)
    return float(np.sqrt((sums**2).sum() * groups / (groups - 1)) / len(values))


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels as rising numbers of samples, or refuse them."""
    checked = tuple(levels)
    rising = list(checked) == sorted(set(checked))
    if not checked or not rising or checked[0] < 1 or checked[-1] > MAX_LEVEL:
        raise ConfigError(
            f"levels are rising whole numbers from 1 to {MAX_LEVEL}, not {list(levels)}"
        )
    return checked


def solve_run(
    run: Path,
    *,
    budget: float,
    unit: str = "samples",
    limits: Mapping[str, float] | None = None,
    method: str = "exact",
    tariff: Path | None = None,
) -> dict[str, Any]:
    """Compute the best allocation within a budget, and the proof of how good it is."""
    if limits and method != "exact":
        raise ConfigError(f"limits are solved by the method 'exact' only, not by {method!r}")
    place, prices = Run(run), read_token_prices(tariff, [unit, *(limits or {})])
    arguments = {
        "budget": budget,
        "unit": unit,
        "limits": dict(limits or {}),
        "method": method,
        "prices": describe_token_prices(prices),
    }
    utility = place.table(UTILITY, stage="estimate", inputs=[SAMPLES, GRADES])
    inputs = place.hashes([SAMPLES, GRADES, UTILITY])
    done = place.finished("solve", arguments, inputs)
    if done:
        return done.result
    recorded = encode_samples(place.samples())
    names = [name for name in utility.column_names if name.startswith("utility_")]
    levels = tuple(int(name.removeprefix("utility_")) for name in names)
    table = UtilityTable(
        np.stack([np.asarray(utility[name]) for name in names], axis=1),
        level_costs(recorded, unit, levels, prices),
        recorded.key,
        extra_costs={name: level_costs(recorded, name, levels, prices) for name in limits or {}},
    )
    found = solve_limits(table, budget, limits) if limits else solve(table, budget, method=method)
    result = {**_describe(found, recorded.id, levels), "unit": unit}
    if limits:
        result["limits"] = {
            name: {"limit": limits[name], "price": found.prices[name], "cost": found.costs[name]}
            for name in limits
        }
    chosen = pa.table(
        {"question_id": recorded.id, "level": np.asarray(levels, dtype=np.int64)[found.choice]}
    )
    place.finish(
        "solve", arguments=arguments, inputs=inputs, outputs={ALLOCATION: chosen}, result=result
    )
    return result


def _describe(found: Allocation, ids: list[str], levels: tuple[int, ...]) -> dict[str, Any]:
    """Say what an allocation is, by the names of its levels and questions."""
    shares, split = found.shares(len(levels)), found.split
    return {
        "price": found.price,
        "cost": found.cost,
        "utility": found.utility,
        "bound": found.bound,
        "gap": found.gap,
        "shares": {str(level): float(share) for level, share in zip(levels, shares, strict=True)},
        "split": [
            {"question": ids[q], "level": levels[k], "probability": float(p)}
            for q, k, p in zip(split.question, split.level, split.probability, strict=True)
        ],
        "mixed_cost": found.mixed_cost,
        "mixed_utility": found.mixed_utility,
    }
