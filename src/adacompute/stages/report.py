"""Report: the stage that writes a page on what a policy gains in a run.

The content of the page is kept in the run as one JSON document, so that it can be rendered again
without computing anything. If the run holds an evaluation, the page shows it. Otherwise a fast
selection of policies is scored for comparison.
"""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, check_installed
from adacompute.evaluation.costs import COST_COLUMNS, CostModel, read_token_prices
from adacompute.evaluation.experiment import Experiment, recall
from adacompute.evaluation.factories import POLICY_FACTORIES, RIVALS
from adacompute.evaluation.rival_data import RivalData
from adacompute.evaluation.scores import ONE_ARM_POLICIES, arm_policies, keep_levels
from adacompute.report.page import render
from adacompute.report.study import study_policy
from adacompute.report.summary import MAX_NAME, QuestionData, summarise
from adacompute.report.wording import clean_text, headline
from adacompute.stages.arms import describe_levels
from adacompute.stages.evaluate import EVALUATION
from adacompute.stages.evaluate import FORMAT as EVALUATION_FORMAT
from adacompute.stages.inputs import (
    BASE_POLICY,
    BEST_POLICY,
    DEFAULT_BUDGETS,
    DEFAULT_LEVELS,
    LEARNED,
    TRAINING,
    check_levels,
    check_seed,
    describe_source,
    missing_extra,
    no_progress,
    read_pool,
    resolve_budgets,
)
from adacompute.storage.manifest import write_atomically
from adacompute.storage.store import GRADES, SAMPLES, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.pool import Pool
    from adacompute.storage.store import SampleSet

REPORT = "report.json"
FORMAT = 7
"""Version of the document in the run."""

FAST = ("retry", "early-stopping", "adaptive-consistency", "oracle")
UNIFORM = ("fixed", "mixture", "random")
"""Policies that a page cannot be about, because they are the comparison."""

ARM_POLICY = "sequential"
"""The policy of a page on a run with several arms."""

ONE_ARM_ONLY = "for one arm, and the run has several"
"""Why a policy is skipped in a run with several arms."""

DEFAULT_SAMPLES = 2.0
"""Default budget, in samples per question, of a run with one arm."""


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
    price_as: Mapping[str, str] | None = None,
    seed: int = 0,
    all_policies: bool = False,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Write a page on what a policy gains at a budget; ``all_policies`` draws all in its chart."""
    check_extra()
    if out.is_dir():
        raise ConfigError(f"{out} is a directory: give a file for the page, such as report.html")
    prices = read_token_prices(token_prices, [unit], price_as, run=run)
    store, costs = Run(run), CostModel(unit, prices)
    evaluation = _find_evaluation(store, costs)
    arguments = {
        "format": FORMAT,
        "version": version("adacompute"),
        "path": str(run),
        "budget": _check_budget(budget),
        **_find_choice(store)(policy, policies, evaluation),
        "levels": _resolve_levels(levels, evaluation),
        "unit": unit,
        **costs.to_dict(),
        "seed": check_seed(seed),
    }
    inputs = store.hashes([SAMPLES, GRADES, *([EVALUATION] if evaluation else [])])
    if finished := store.find_finished("report", arguments, inputs):
        document = json.loads(store.file(REPORT).read_text(encoding="utf-8"))
        result = finished.result
    else:
        document = _document(store, costs, arguments, evaluation, progress)
        result = _result(document)
        outputs = {REPORT: document}
        store.finish("report", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    progress("page")
    page = render(document, all_policies=all_policies).encode(
        errors="replace"
    )  # a path may not be valid text
    write_atomically(out, page)
    return {"out": str(out), "bytes": len(page), **result}


def check_extra() -> None:
    """Refuse to start without the extra `report`, before anything is computed."""
    check_installed("jinja2", "matplotlib", extra="report")


def _result(document: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the command."""
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
        "rounds": point["rounds"],
        "latency_p50_s": document["latency_p50_s"],
        "latency_p95_s": document["latency_p95_s"],
        "questions": document["questions"],
        "skipped": document["skipped"],
    }


def _find_evaluation(store: Run, costs: CostModel) -> dict[str, Any] | None:
    """Return the evaluation of a run, if it is of the same samples and costs."""
    manifest = store.manifest("evaluate")
    if manifest is None or manifest.inputs != store.hashes([SAMPLES, GRADES]):
        return None
    if store.hashes(list(manifest.outputs)) != manifest.outputs:
        return None
    expected = {
        "format": EVALUATION_FORMAT,
        "drop_unparsed": False,
        "rounds": None,
        "tie_break": "first",
        "unit": costs.unit,
        **json.loads(json.dumps(costs.to_dict())),
    }
    fits = all(manifest.arguments.get(name) == value for name, value in expected.items())
    return manifest.result if fits else None


def _check_budget(budget: float | None) -> float | None:
    if budget is not None and not (np.isfinite(budget) and budget > 0):
        raise ConfigError(f"budget must be a finite number above 0, got {budget}")
    return budget


def _resolve_levels(levels: Sequence[int] | None, evaluation: dict[str, Any] | None) -> list[int]:
    """Return the given levels, or those of the evaluation, or the default ones."""
    if levels is None:
        levels = DEFAULT_LEVELS if evaluation is None else evaluation["levels"]
    return list(check_levels(levels))


def _find_choice(store: Run) -> Callable[..., dict[str, Any]]:
    """Return how the policies of a page are chosen, which differs for a run with several arms."""
    arms = store.encoded_samples().arms
    return partial(_choose_for_arms, arms) if len(arms) > 1 else _choose


def _choose(
    policy: str | None, policies: Sequence[str] | None, evaluation: dict[str, Any] | None
) -> dict[str, Any]:
    """Choose the policy of the page and those to compare it with; list what is skipped."""
    missing = missing_extra()
    if policy is None:
        policy = BASE_POLICY if missing else BEST_POLICY
    main = [name for name in POLICY_FACTORIES if name not in UNIFORM]
    if policy not in main:
        raise ConfigError(f"policy must be one of {', '.join(main)}, got {policy!r}")
    known = [*POLICY_FACTORIES, *RIVALS, "oracle"]
    for name in policies or ():
        if name not in known:
            raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
    compared = list(dict.fromkeys(FAST if policies is None else policies))
    skipped = {name: missing for name in LEARNED if missing} if policies is None else {}
    if evaluation:
        skipped = evaluation["skipped"]
    return {
        "policy": policy,
        "policies": [name for name in compared if name not in (policy, "mixture")],
        "skipped": skipped,
    }


def _choose_for_arms(
    arms: tuple[str, ...],
    policy: str | None,
    policies: Sequence[str] | None,
    evaluation: dict[str, Any] | None,
) -> dict[str, Any]:
    """Choose the policies of a page on several arms, for which few policies are scored."""
    if policy is None:
        check_installed(*TRAINING, extra="train")
    policy, known = policy or ARM_POLICY, arm_policies(arms)
    if policy != ARM_POLICY:
        raise ConfigError(
            f"policy must be {ARM_POLICY} for a run with several arms, got {policy!r}"
        )
    for name in policies or ():
        if name not in known:
            named = ", ".join(known)
            raise ConfigError(f"for several arms there is no policy {name!r}; there are {named}")
    skipped = {name: ONE_ARM_ONLY for name in ONE_ARM_POLICIES if name not in known}
    compared = list(dict.fromkeys(("oracle",) if policies is None else policies))
    return {
        "policy": policy,
        "policies": [name for name in compared if name not in (policy, "mixture")],
        "skipped": evaluation["skipped"] if evaluation else skipped,
    }


def _document(
    store: Run,
    costs: CostModel,
    arguments: dict[str, Any],
    evaluation: dict[str, Any] | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compute the content of the page."""
    progress(arguments["policy"])
    recorded = store.encoded_samples()
    pool = read_pool(store, costs=costs).equalise()
    levels, seed = keep_levels(pool, arguments["levels"]), arguments["seed"]
    experiment = recall(Experiment(pool, levels, DEFAULT_BUDGETS, seed=seed))
    pool = experiment.pool
    _check_data(experiment, arguments["policies"])
    budget = arguments["budget"]
    if budget is None and pool.has_arms:
        budgets = resolve_budgets(recorded, costs, None)
        budget = budgets[len(budgets) // 2]
    if budget is None:
        budget = DEFAULT_SAMPLES * experiment.sample_cost(np.arange(len(pool)))
    study = study_policy(experiment, arguments["policy"])
    rows = describe_levels(pool, recorded.arms, experiment.levels) if pool.has_arms else []
    for row in rows:
        row["arm"] = clean_text(row["arm"], MAX_NAME)
    return {"arm_levels": rows} | summarise(
        study,
        _question_data(store, recorded, pool, arguments),
        budget=float(budget),
        policies=arguments["policies"],
        evaluation=evaluation,
        progress=progress,
    )


def _check_data(experiment: Experiment, policies: Sequence[str]) -> None:
    """Refuse policies that need more than what was recorded."""
    data = RivalData.of(experiment)
    for name in policies:
        if reason := data.find_obstacle(name):
            raise ConfigError(f"{name} cannot be scored: {reason}")


def _question_data(
    store: Run, recorded: SampleSet, pool: Pool, arguments: dict[str, Any]
) -> QuestionData:
    """Return what is known about the scored questions and about the run."""
    rows, unit = np.flatnonzero(np.isin(recorded.key, pool.key)), arguments["unit"]
    rates = {"samples": np.ones(len(rows))}
    if not pool.has_arms:
        rates |= _rates(recorded, pool, unit, rows)
    known = describe_source(store)
    run = {name: arguments[name] for name in ("version", "path", "unit", "skipped")}
    run["has_token_prices"] = arguments["token_prices"] is not None
    is_default = arguments["levels"] == list(DEFAULT_LEVELS)
    run["custom_levels"] = None if is_default else arguments["levels"]
    run["name"] = clean_text(store.path.resolve().name, MAX_NAME)
    for name in ("model", "grader"):
        run[name] = clean_text(str(known[name]), MAX_NAME) if known.get(name) else None
    return QuestionData(
        id=[recorded.id[q] for q in rows],
        text=[recorded.text[q] for q in rows],
        difficulty=[recorded.difficulty[q] for q in rows],
        rates=rates,
        run=run,
    )


def _rates(recorded: SampleSet, pool: Pool, unit: str, rows: IntArray) -> dict[str, FloatArray]:
    """Return the mean cost per sample of each question: in the unit, and in tokens and money."""
    answers, found = recorded.answers, {}
    for name in ("tokens", "money"):
        values = recorded.column(COST_COLUMNS[name])
        if np.isfinite(values).all() and (values > 0).any():
            total = np.bincount(answers.question, values, minlength=len(answers))
            found[name] = (total / np.maximum(1, answers.n_samples))[rows]
    if unit != "samples":
        found[unit] = pool.mean_sample_cost()
    return found
