"""Reports: the stage that reads a run, computes what it lacks, and writes its page.

What the page says is kept in the run as one document, so that the page of the same samples is made
again at once. An evaluation that the run holds is shown as it is; without one, a fast choice of
policies is scored beside the one that the page is about.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, DataError, check_installed
from adacompute.evaluation.costs import COST_COLUMNS, CostModel, read_token_prices
from adacompute.evaluation.factories import POLICY_FACTORIES, Experiment
from adacompute.report.page import render
from adacompute.report.study import study_policy
from adacompute.report.summary import MAX_NAME, QuestionData, summarise
from adacompute.report.wording import clean_text, headline
from adacompute.stages.evaluate import EVALUATION
from adacompute.stages.inputs import (
    DEFAULT_BUDGETS,
    DEFAULT_LEVELS,
    LEARNED,
    check_levels,
    check_seed,
    choose_policy,
    describe_source,
    missing_extra,
    no_progress,
    read_pool,
)
from adacompute.storage.manifest import write_atomically
from adacompute.storage.store import GRADES, SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.pool import Pool
    from adacompute.storage.store import SampleSet

REPORT = "report.json"
FORMAT = 5
"""Version of the document that is kept in the run."""

PERMUTATIONS = 20
FAST = ("retry", "early-stopping", "adaptive-consistency", "oracle")
UNIFORM = ("fixed", "mixture", "random")
"""What others are compared with."""

DRAWS = 2.0
"""Draws a question that a budget is for unless it is named."""


def report_run(
    run: Path,
    *,
    out: Path,
    budget: float | None = None,
    policy: str | None = None,
    policies: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    unit: str = "samples",
    token_prices: Path | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Write the page of a run: what a policy gains at a budget, and all that supports it."""
    check_extra()
    if out.is_dir():
        raise ConfigError(f"{out} is a directory: name a file for the page, such as report.html")
    if permutations < 1:
        raise ConfigError(f"samples are replayed in at least one order, not {permutations}")
    place, costs = Run(run), CostModel(unit, read_token_prices(token_prices, [unit]))
    evaluation = _find_evaluation(place, costs)
    arguments = {
        "format": FORMAT,
        "version": version("adacompute"),
        "path": str(run),
        "budget": _check_budget(budget),
        **_choose(policy, policies, evaluation),
        "levels": _levels(levels, evaluation),
        "unit": unit,
        **costs.to_dict(),
        "permutations": permutations,
        "seed": check_seed(seed),
    }
    inputs = place.hashes([SAMPLES, GRADES, *([EVALUATION] if evaluation else [])])
    if done := place.find_finished("report", arguments, inputs):
        document = json.loads(place.file(REPORT).read_text(encoding="utf-8"))
        result = done.result
    else:
        document = _document(place, costs, arguments, evaluation, progress)
        result = _result(document)
        outputs = {REPORT: document}
        place.finish("report", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    progress("page")
    page = render(document).encode(errors="replace")  # a path may be no text
    write_atomically(out, page)
    return {"out": str(out), "bytes": len(page), **result}


def check_extra() -> None:
    """Refuse where a page cannot be made, before minutes are spent on what it says."""
    check_installed("jinja2", "matplotlib", extra="report")


def _result(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the command says of a page."""
    point = document["operating_points"][document["selected"]]
    return {
        "sentence": headline(document).replace("\u00a0", " "),
        "verdict": document["verdict"],
        "policy": document["policy"],
        "budget": document["budget"],
        "unit": document["unit"],
        "gain": point["gain"],
        "gain_low": point["gain_low"],
        "gain_high": point["gain_high"],
        "price": point["price"],
        "cost": point["cost"],
        "questions": document["questions"],
        "skipped": document["skipped"],
    }


def _find_evaluation(place: Run, costs: CostModel) -> dict[str, Any] | None:
    """Return the evaluation that a run holds, if it is of these samples and costs."""
    manifest = place.manifest("evaluate")
    if manifest is None or manifest.inputs != place.hashes([SAMPLES, GRADES]):
        return None
    if place.hashes(list(manifest.outputs)) != manifest.outputs:
        return None
    wanted = {
        "protocol": "held-out",
        "drop_unparsed": False,
        "rounds": None,
        "resort": None,
        "tie_break": "first",
        "unit": costs.unit,
        **json.loads(json.dumps(costs.to_dict())),
    }
    fits = all(manifest.arguments.get(name) == value for name, value in wanted.items())
    return manifest.result if fits else None


def _check_budget(budget: float | None) -> float | None:
    if budget is not None and not (np.isfinite(budget) and budget > 0):
        raise ConfigError(f"a budget is a finite number above 0, not {budget}")
    return budget


def _levels(levels: Sequence[int] | None, evaluation: dict[str, Any] | None) -> list[int]:
    """Levels as asked for, or as the run was evaluated with, or the usual ones."""
    if levels is None:
        levels = DEFAULT_LEVELS if evaluation is None else evaluation["levels"]
    return list(check_levels(levels))


def _choose(
    policy: str | None, policies: Sequence[str] | None, evaluation: dict[str, Any] | None
) -> dict[str, Any]:
    """Choose the policy that the page is about and those beside it, and say what is left out."""
    missing = missing_extra()
    if policy is None:
        policy, _ = choose_policy()
    main = [name for name in POLICY_FACTORIES if name not in UNIFORM]
    if policy not in main:
        raise ConfigError(f"a page is about one of {', '.join(main)}, not {policy!r}")
    known = [*POLICY_FACTORIES, "oracle"]
    for name in policies or ():
        if name not in known:
            raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
    beside = list(dict.fromkeys(FAST if policies is None else policies))
    skipped = {name: missing for name in LEARNED if missing} if policies is None else {}
    if evaluation:
        skipped = evaluation["skipped"]
    return {
        "policy": policy,
        "policies": [name for name in beside if name not in (policy, "mixture")],
        "skipped": skipped,
    }


def _document(
    place: Run,
    costs: CostModel,
    arguments: dict[str, Any],
    evaluation: dict[str, Any] | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compute all that the page says."""
    progress(arguments["policy"])
    recorded = encode_samples(place.samples())
    pool = read_pool(place, costs=costs).equalise()
    experiment = Experiment(
        pool,
        _within(pool, arguments["levels"]),
        DEFAULT_BUDGETS,
        n_permutations=arguments["permutations"],
        seed=arguments["seed"],
    )
    budget = arguments["budget"]
    if budget is None:
        budget = DRAWS * experiment.sample_cost(np.arange(len(pool)))
    study = study_policy(experiment, arguments["policy"])
    return summarise(
        study,
        _question_data(place, recorded, pool, arguments),
        budget=float(budget),
        policies=arguments["policies"],
        evaluation=evaluation,
        progress=progress,
    )


def _within(pool: Pool, levels: Sequence[int]) -> tuple[int, ...]:
    """Levels up to half of the samples: the oracle chooses by one half and is scored by the other.

    A dial needs two levels to turn between.
    """
    recorded = int(pool.answers.n_samples[0])
    kept = tuple(level for level in levels if level <= recorded // 2)
    if len(kept) < 2:  # noqa: PLR2004
        raise DataError(
            f"{recorded} samples a question leave levels up to {recorded // 2}, fewer than two of "
            f"{', '.join(map(str, levels))}: collect more samples, or name other levels"
        )
    return kept


def _question_data(
    place: Run, recorded: SampleSet, pool: Pool, arguments: dict[str, Any]
) -> QuestionData:
    """Return what is known about the scored questions and about the run."""
    rows = np.flatnonzero(np.isin(recorded.key, pool.key))
    known = describe_source(place)
    run = {name: arguments[name] for name in ("version", "path", "unit", "skipped")}
    run["has_token_prices"] = arguments["token_prices"] is not None
    usual = arguments["levels"] == list(DEFAULT_LEVELS)
    run["custom_levels"] = None if usual else arguments["levels"]
    run["name"] = clean_text(place.path.resolve().name, MAX_NAME)
    for name in ("model", "grader"):
        run[name] = clean_text(str(known[name]), MAX_NAME) if known.get(name) else None
    return QuestionData(
        id=[recorded.id[q] for q in rows],
        text=[recorded.text[q] for q in rows],
        difficulty=[recorded.difficulty[q] for q in rows],
        rates={"samples": np.ones(len(rows)), **_rates(recorded, pool, arguments["unit"], rows)},
        run=run,
    )


def _rates(recorded: SampleSet, pool: Pool, unit: str, rows: IntArray) -> dict[str, FloatArray]:
    """Mean amount a sample of each question: in the unit, in tokens and money where recorded."""
    answers, found = recorded.answers, {}
    for name in ("tokens", "money"):
        values = recorded.column(COST_COLUMNS[name])
        if np.isfinite(values).all() and (values > 0).any():
            total = np.bincount(answers.question, values, minlength=len(answers))
            found[name] = (total / np.maximum(1, answers.n_samples))[rows]
    if unit != "samples":
        found[unit] = pool.mean_sample_cost()
    return found
