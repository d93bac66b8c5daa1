"""Evaluate: the stage that scores policies on questions they were not fitted to.

The scores stay in the run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, MissingExtra, check_installed
from adacompute.core.progress import no_progress
from adacompute.evaluation.arm_levels import list_arms
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.factories import ROUTER
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.recorded_data import RecordedData
from adacompute.evaluation.registry import find_obstacle, has_registered, list_policies
from adacompute.evaluation.run_results import RunResults
from adacompute.evaluation.scoring.scores import evaluate, make_experiment
from adacompute.options.definition import takes
from adacompute.options.main import EvaluateOptions
from adacompute.options.shared import ALL_EVIDENCE
from adacompute.stages.calibrate import check_settings, tolerance_of
from adacompute.stages.inputs import (
    add_level,
    check_choices,
    describe_subsample,
    make_pool,
    read_recorded,
    resolve_budgets,
    resolve_today,
    token_prices_of,
)
from adacompute.storage.store import SAMPLES, Run, SampleSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import Experiment
    from adacompute.evaluation.scoring.frontier import CalibrationSettings
    from adacompute.evaluation.scoring.today import Today

    Share = Callable[[Experiment], Experiment]


EVALUATION = "evaluation.json"
FORMAT = 9
"""Version of the scores in the run."""

TEXT_POLICIES = (ROUTER, "longest-first")
"""Policies that decide by the text of a question alone."""


@takes(EvaluateOptions)
def evaluate_run(
    run: Path,
    options: EvaluateOptions,
    *,
    results: RunResults | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Score policies on held-out questions; costs: see `CostModel`."""
    store, unit = Run(run), options.unit
    rounds, evidence = options.max_rounds, options.evidence
    costs = CostModel(unit, token_prices_of(options, run), options.native_n)
    recorded, today = read_recorded(store), options.today
    about = _describe_run(recorded, costs, rounds=rounds, evidence=evidence)
    names, skipped = _select_policies(options.policies, about)
    arguments = {
        "format": FORMAT,
        "budgets": list(resolve_budgets(recorded, costs, options.budgets)),
        "levels": list(add_level(options.levels, today)),
        "today": today and asdict(today),
        "policies": names,
        "drop_unparsed": options.drop_unparsed,
        "unit": unit,
        "rounds": _check_rounds(rounds),
        **costs.to_dict(),
        **check_choices(evidence=evidence, seed=options.seed),
    }
    inputs = store.hashes([SAMPLES])
    if finished := not has_registered(names) and store.find_finished("evaluate", arguments, inputs):
        return finished.result
    pool = make_pool(recorded, costs=costs)
    now = resolve_today(today, recorded, unit=unit), check_settings(tolerance=tolerance_of(today))
    result = _score(pool, arguments, *now, (results or RunResults.of(run)).share, progress)
    result |= {"skipped": skipped, **describe_subsample(recorded), "arms": None}
    if about.has_arms:
        equal = make_pool(recorded, costs=CostModel(unit, costs.token_prices)).equalise()
        found = list_arms(equal, recorded.arms, arguments["levels"], progress)
        result["arms"] = {"unit": unit, **found}
    files = {EVALUATION: result}
    store.finish("evaluate", arguments=arguments, inputs=inputs, outputs=files, result=result)
    return result


@dataclass(frozen=True)
class _Recorded:
    """What decides which policies of a run can be scored."""

    has_texts: bool
    arms: tuple[str, ...]
    data: RecordedData

    @property
    def has_arms(self) -> bool:
        return len(self.arms) > 1

    def find_obstacle(self, name: str) -> str | None:
        """Return why a policy cannot be scored; None if it can."""
        if name in TEXT_POLICIES and not self.has_texts:
            return "the run has no question texts"
        return find_obstacle(name, self.data)


def _describe_run(
    recorded: SampleSet, costs: CostModel, *, rounds: int | None, evidence: str
) -> _Recorded:
    """Return what a run has recorded, and which options registered policies may not support."""
    lengths = [recorded.column(name) for name in ("completion_tokens", "completion_chars")]
    return _Recorded(
        has_texts=any(text is not None for text in recorded.text),
        arms=recorded.arms,
        data=RecordedData(
            has_logprobs=bool(np.isfinite(recorded.column("mean_logprob")).any()),
            has_lengths=_has_lengths(*lengths),
            use_confidence=evidence == ALL_EVIDENCE,
            has_rounds=rounds is not None or costs.native_n,
        ),
    )


def _has_lengths(tokens: FloatArray, characters: FloatArray) -> bool:
    """Whether all samples have a length: in tokens if some have one, else in characters."""
    return bool(np.isfinite(characters if np.isnan(tokens).all() else tokens).all())


def _check_rounds(rounds: int | None) -> int | None:
    """Return the maximum number of rounds, if it is valid."""
    if rounds is not None and rounds < 1:
        raise ConfigError(f"max-rounds must be at least 1, got {rounds}")
    return rounds


def _score(
    pool: Pool,
    arguments: dict[str, Any],
    today: Today | None,
    settings: CalibrationSettings,
    share: Share,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Score the policies, and describe the samples."""
    options = {name: arguments[name] for name in ("budgets", "levels", "drop_unparsed", "seed")}
    options |= {"use_confidence": arguments["evidence"] == ALL_EVIDENCE}
    options |= {"max_rounds": arguments["rounds"], "progress": progress}
    experiment = share(make_experiment(pool, **options))
    known: dict[str, Any] = {"today": today, "settings": settings, "progress": progress}
    scores = evaluate(experiment, arguments["policies"], **known)
    return {
        "unit": arguments["unit"],
        "drop_unparsed": arguments["drop_unparsed"],
        "questions": scores.n_questions,
        "independent_questions": scores.n_independent,
        "excluded": scores.n_excluded,
        "samples": scores.n_samples,
        "fold_assignments": scores.n_assignments,
        "levels": list(scores.levels),
        "levels_excluded": list(scores.levels_excluded),
        "rows": scores.rows,
        "today": scores.today,
        "unparsed_share": float((pool.answers.answer == UNPARSED).mean()),
    }


def _select_policies(
    policies: Sequence[str] | None, recorded: _Recorded
) -> tuple[list[str], dict[str, str]]:
    """Return the policies to score, and those that are skipped with the reason."""
    known = list_policies(recorded.arms)
    if policies is not None:
        for name in policies:
            if name not in known:
                raise ConfigError(f"there is no policy {name!r}; there are {', '.join(known)}")
            if reason := recorded.find_obstacle(name):
                raise ConfigError(f"{name} cannot be scored: {reason}")
        return list(dict.fromkeys(policies)), {}
    reasons = {name: _find_missing(name) or recorded.find_obstacle(name) for name in known}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    if recorded.has_arms:
        others = [name for name in list_policies() if name not in known]
        skipped |= dict.fromkeys(others, "for one arm, and the run has several")
    return [name for name in known if name not in skipped], skipped


def _find_missing(policy: str) -> str | None:
    """Return one sentence on the extra that a policy cannot be fitted without; None if none is."""
    try:
        check_installed(*(["xgboost"] if policy == ROUTER else []), extra="router")
    except MissingExtra as error:
        return str(error)
    return None
