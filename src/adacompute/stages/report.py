"""Report: the stage that writes a page on what a policy gains in a run.

The content of the page is kept in the run as one JSON document, so that it can be rendered again
without computing anything. If the run holds an evaluation, the page shows it. Otherwise a fast
selection of policies is scored for comparison.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError, check_installed
from adacompute.core.progress import no_progress
from adacompute.evaluation.arm_levels import describe_levels
from adacompute.evaluation.costs import COST_COLUMNS, CostModel, read_token_prices
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import TRAINABLE
from adacompute.evaluation.kept_results import remember
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.registry import check_policies, has_registered, list_policies
from adacompute.evaluation.run_results import RunResults
from adacompute.evaluation.scoring.scores import keep_levels
from adacompute.evaluation.scoring.today import Today
from adacompute.evaluation.scoring.verdict import round_up
from adacompute.options.definition import takes
from adacompute.options.main import (
    ReportOptions,
)
from adacompute.options.shared import ALL_EVIDENCE, DEFAULT_LEVELS
from adacompute.report.operating_points import MAX_NAME, QuestionData
from adacompute.report.page import render
from adacompute.report.study import Study, study_policy
from adacompute.report.summary import summarise
from adacompute.report.wording import clean_text, headline
from adacompute.stages.calibrate import check_settings
from adacompute.stages.evaluate import EVALUATION
from adacompute.stages.evaluate import FORMAT as EVALUATION_FORMAT
from adacompute.stages.inputs import (
    BEST_POLICY,
    check_choices,
    describe_source,
    make_pool,
    read_recorded,
    resolve_budgets,
    resolve_today,
)
from adacompute.stages.report_options import (
    check_budget,
    find_bundle,
    find_sure,
    resolve_levels,
    resolve_options,
)
from adacompute.storage.manifest import hash_bytes
from adacompute.storage.regular_files import write_atomically
from adacompute.storage.store import SAMPLES, Run, SampleSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.pool import Pool

REPORT = "report.json"
FORMAT = 12
"""Version of the document in the run."""

FAST = ("retry", "early-stopping", "adaptive-consistency", "oracle")
UNDRAWN = ("mixture-votes", "oracle-in-sample")
UNIFORM = "mixture"
"""The policy that a page cannot be about, because it is the comparison."""

ARM_POLICY = "sequential"
"""The policy of a page on a run with several arms."""

ONE_ARM_ONLY = "for one arm, and the run has several"
"""Why a policy is skipped in a run with several arms."""

DEFAULT_SAMPLES = 2.0
"""Default budget, in samples per question, of a run with one arm."""


@takes(ReportOptions)
def report_run(
    run: Path,
    options: ReportOptions,
    *,
    results: RunResults | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Write a page on what a policy gains at a budget.

    Options that are not given are those of the last `fit` on this run.
    """
    check_extra()
    out = options.out
    if out.is_dir():
        raise ConfigError(f"{out} is a directory: give a file for the page, such as report.html")
    store, results = Run(run), results or RunResults.of(run)
    known = resolve_options(store, options)
    unit, prices, today = (known[name] for name in ("unit", "token_prices", "today"))
    prices = read_token_prices(prices and Path(prices), [unit], known["price_as"], run=run)
    costs, recorded = CostModel(unit, prices, known["native_n"]), read_recorded(store)
    evaluation = _find_evaluation(store, costs)
    arguments = {
        "format": FORMAT,
        "version": version("adacompute"),
        "path": str(run),
        "budget": check_budget(known["budget"]),
        **_find_choice(recorded)(known["policy"], options.policies, evaluation),
        "levels": resolve_levels(known["levels"], evaluation, today),
        "unit": unit,
        **costs.to_dict(),
        **check_choices(evidence=known["evidence"], seed=known["seed"]),
        "today": today and asdict(today),
    }
    bundle = find_bundle(run, arguments["policy"])
    arguments |= {"bundle": bundle and str(bundle), "how_sure": find_sure(bundle)}
    inputs = store.hashes([SAMPLES, *([EVALUATION] if evaluation else [])])
    finished = store.find_finished("report", arguments, inputs)
    if finished and not has_registered(arguments["policies"]):
        document, result = json.loads(store.file(REPORT).read_text("utf-8")), finished.result
    else:
        now = resolve_today(today, recorded, unit=unit)
        page_inputs = _PageInputs(store, recorded, costs, evaluation, now)
        document = _document(page_inputs, arguments, results.share, progress)
        result = _result(document)
        outputs = {REPORT: document}
        store.finish("report", arguments=arguments, inputs=inputs, outputs=outputs, result=result)
    progress("page")
    page = _render(document, results, progress)
    write_atomically(out, page)
    return {"out": str(out), "bytes": len(page), **result}


def _render(
    document: dict[str, Any], results: RunResults, progress: Callable[[str], None]
) -> bytes:
    """Return the page of a document, which is drawn once."""

    def compute() -> dict[str, np.ndarray]:
        page = render(document, progress=progress)
        # A path may not be valid text.
        return {"page": np.frombuffer(page.encode(errors="replace"), dtype=np.uint8)}

    content = hash_bytes(json.dumps(document).encode())
    return remember(results.files, f"page of {content}", compute)["page"].tobytes()


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
        "today": document["today"],
        "gain": point["gain"],
        "gain_low": point["gain_low"],
        "gain_high": point["gain_high"],
        "price": point["price"],
        "cost": point["cost"],
        "rounds": point["rounds"],
        "latency_p50_s": document["latency_p50_s"],
        "latency_p95_s": document["latency_p95_s"],
        "questions": document["questions"],
        "independent_questions": document["independent_questions"],
        "skipped": document["skipped"],
    }


def _find_evaluation(store: Run, costs: CostModel) -> dict[str, Any] | None:
    """Return the evaluation of a run, if it is of the same samples and costs."""
    manifest = store.manifest("evaluate")
    if manifest is None or manifest.inputs != store.hashes([SAMPLES]):
        return None
    if store.hashes(list(manifest.outputs)) != manifest.outputs:
        return None
    expected = {
        "format": EVALUATION_FORMAT,
        "drop_unparsed": False,
        "rounds": None,
        "unit": costs.unit,
        **json.loads(json.dumps(costs.to_dict())),
    }
    fits = all(manifest.arguments.get(name) == value for name, value in expected.items())
    return manifest.result if fits else None


def _find_choice(recorded: SampleSet) -> Callable[..., dict[str, Any]]:
    """Return how the policies of a page are chosen, which differs for a run with several arms."""
    arms = recorded.arms
    return partial(_choose_for_arms, arms) if len(arms) > 1 else _choose


def _choose(
    policy: str | None, policies: Sequence[str] | None, evaluation: dict[str, Any] | None
) -> dict[str, Any]:
    """Choose the policy of the page and those to compare it with; list what is skipped."""
    policy = policy or BEST_POLICY
    main = [name for name in TRAINABLE if name != UNIFORM]
    if policy not in main:
        raise ConfigError(f"policy must be one of {', '.join(main)}, got {policy!r}")
    known = [name for name in list_policies() if name not in UNDRAWN]
    for name in policies or ():
        if name not in known:
            raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
    compared = list(dict.fromkeys(FAST if policies is None else policies))
    return {
        "policy": policy,
        "policies": [name for name in compared if name not in (policy, "mixture")],
        "skipped": evaluation["skipped"] if evaluation else {},
    }


def _choose_for_arms(
    arms: tuple[str, ...],
    policy: str | None,
    policies: Sequence[str] | None,
    evaluation: dict[str, Any] | None,
) -> dict[str, Any]:
    """Choose the policies of a page on several arms, for which few policies are scored."""
    policy, known = policy or ARM_POLICY, list_policies(arms)
    if policy != ARM_POLICY:
        raise ConfigError(
            f"policy must be {ARM_POLICY} for a run with several arms, got {policy!r}"
        )
    for name in policies or ():
        if name not in known:
            named = ", ".join(known)
            raise ConfigError(f"for several arms there is no policy {name!r}; there are {named}")
    skipped = {name: ONE_ARM_ONLY for name in list_policies() if name not in known}
    compared = list(dict.fromkeys(("oracle",) if policies is None else policies))
    return {
        "policy": policy,
        "policies": [name for name in compared if name not in (policy, "mixture")],
        "skipped": evaluation["skipped"] if evaluation else skipped,
    }


@dataclass(frozen=True, eq=False)
class _PageInputs:
    """What a page is computed from: the run, its samples and what is run today."""

    store: Run
    recorded: SampleSet
    costs: CostModel
    evaluation: dict[str, Any] | None
    today: Today | None


def _document(
    inputs: _PageInputs,
    arguments: dict[str, Any],
    share: Callable[[Experiment], Experiment],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compute the content of the page."""
    progress(arguments["policy"])
    recorded, costs = inputs.recorded, inputs.costs
    pool = make_pool(recorded, costs=costs).equalise()
    levels, budgets = (
        keep_levels(pool, arguments["levels"]),
        resolve_budgets(recorded, costs, None),
    )
    known = {"seed": arguments["seed"], "use_confidence": arguments["evidence"] == ALL_EVIDENCE}
    experiment = share(Experiment(pool, levels, budgets, progress=progress, **known))
    pool = experiment.pool
    check_policies(arguments["policies"], RecordedData.of(experiment))
    about = arguments["today"]
    settings = check_settings(tolerance=about and about["tolerance"])
    study = study_policy(experiment, arguments["policy"], settings, inputs.today)
    rows = describe_levels(pool, recorded.arms, experiment.levels) if pool.has_arms else []
    for row in rows:
        row["arm"] = clean_text(row["arm"], MAX_NAME)
    document = summarise(
        study,
        _question_data(inputs.store, recorded, pool, arguments),
        budget=_choose_budget(study, arguments["budget"], budgets),
        policies=arguments["policies"],
        evaluation=inputs.evaluation,
        progress=progress,
    )
    given = about and about | {"today": clean_text(str(about["today"]), MAX_NAME)}
    own = {"arm_levels": rows, "today_options": given, "how_sure": arguments["how_sure"]}
    return own | document


def _choose_budget(study: Study, budget: float | None, budgets: Sequence[float]) -> float:
    """Return the budget of the page: the given one, or the cost that saves, or a default."""
    experiment = study.experiment
    if budget is not None:
        return float(budget)
    if study.saving:
        return round_up(study.saving[0].cost)
    if experiment.pool.has_arms:
        return budgets[len(budgets) // 2]
    return DEFAULT_SAMPLES * experiment.sample_cost(np.arange(len(experiment.pool)))


def _question_data(
    store: Run, recorded: SampleSet, pool: Pool, arguments: dict[str, Any]
) -> QuestionData:
    """Return what is known about the scored questions and about the run."""
    rows, unit = np.flatnonzero(np.isin(recorded.key, pool.key)), arguments["unit"]
    rates = {"samples": np.ones(len(rows))}
    if not pool.has_arms:
        rates |= _rates(recorded, pool, unit, rows)
    known = describe_source(store)
    run = {name: arguments[name] for name in ("version", "path", "bundle", "unit", "skipped")}
    run["has_token_prices"] = arguments["token_prices"] is not None
    is_default = arguments["levels"] == list(DEFAULT_LEVELS)
    run["custom_levels"] = None if is_default else arguments["levels"]
    run["samples_path"] = str(store.file(SAMPLES))
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
