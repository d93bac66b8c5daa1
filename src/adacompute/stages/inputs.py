"""Inputs: what several stages read or check before they start.

The samples of a run as policies see them, the options that commands share, and API keys from the
environment. It computes no result of its own.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.signals import SCORE, is_given
from adacompute.core.types import MAX_LEVEL
from adacompute.evaluation.costs import (
    COUNT_SAMPLES,
    CostModel,
    check_budgets,
    read_token_prices,
)
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.today import CALLS, Today, find_arm, read_today
from adacompute.features.text import extract_features, feature_names
from adacompute.graders.grader import record_grader
from adacompute.options.shared import ALL_EVIDENCE, DEFAULT_LEVELS, CostOptions, TodayOptions
from adacompute.policies.bundles.arm_settings import ArmSettings, read_settings, read_template
from adacompute.policies.confidence import LIKELIHOODS, SIGNALS
from adacompute.storage.sample_blocks import MAX_SAMPLES_IN_MEMORY, count_samples, read_subsample
from adacompute.storage.store import SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from adacompute.core.types import FloatArray
    from adacompute.models.messages import Settings
    from adacompute.models.templates import Template
    from adacompute.spending.token_prices import TokenPriceList
    from adacompute.storage.store import SampleSet


DEFAULT_BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
"""In samples; in another unit, multiples of the cost of a sample."""

MAX_SUBSAMPLE = 100_000
"""Questions of a run larger than memory that policies are fitted to and scored on, about."""

N_ARM_BUDGETS = 5
SEEDS = 2**32
BEST_POLICY = "sequential"

VOTES = "votes"
EVIDENCE = (ALL_EVIDENCE, VOTES)
"""What decisions and votes use: all that was recorded about samples, or the votes alone."""


def token_prices_of(options: CostOptions, run: Path) -> TokenPriceList | None:
    """Return the token prices of a command, whose unit must need them."""
    return read_token_prices(options.token_prices, [options.unit], options.price_as, run=run)


def read_api_key(variable: str) -> str | None:
    """The one store where an API key is read."""
    return os.environ.get(variable) or None


def read_pool(
    store: Run,
    *,
    costs: CostModel = COUNT_SAMPLES,
    features: str = "paper",
) -> Pool:
    """Return the samples of a run as a pool."""
    return make_pool(read_recorded(store), costs=costs, features=features)


def read_recorded(store: Run, *, need_grades: bool = True) -> SampleSet:
    """Return the samples of a run as arrays; of a run larger than memory, those of a subsample.

    DataError if they have no grades and grades are needed.
    """
    n_samples = count_samples(store)
    if n_samples <= MAX_SAMPLES_IN_MEMORY:
        return store.encoded_samples(need_grades=need_grades)
    table, n_questions = read_subsample(store, MAX_SUBSAMPLE, need_grades=need_grades)
    recorded = encode_samples(table)
    return replace(recorded, subsample_of=n_questions)


def describe_subsample(recorded: SampleSet) -> dict[str, int]:
    """Return the number of questions that a subsample is from; nothing if it is all of them."""
    return {} if recorded.subsample_of is None else {"subsample_of": recorded.subsample_of}


def make_pool(
    recorded: SampleSet,
    *,
    costs: CostModel = COUNT_SAMPLES,
    features: str = "paper",
) -> Pool:
    """Return recorded samples with everything that a policy may know about their questions."""
    text = pa.array(recorded.text, pa.string())
    sample_cost, round_cost = costs.split(recorded)
    latency = recorded.column("latency_s")
    return Pool(
        answers=recorded.answers,
        key=recorded.key,
        group=recorded.group,
        features=extract_features(text, features=features),
        sample_cost=sample_cost,
        round_cost=round_cost,
        prompt_cost=None if len(recorded.arms) > 1 else costs.prompt_cost(recorded),
        prompt_per_round=costs.native_n,
        latency_s=latency if len(latency) and bool(np.isfinite(latency).all()) else None,
        **_read_signals(recorded),
        length_feature=feature_names(features).index("prompt_length_chars"),
        sequential_features=extract_features(text, features="words"),
    )


def _read_signals(recorded: SampleSet) -> dict[str, Any]:
    """Return what was recorded about the confidence of samples, and their arms.

    A score that tells every correct answer from every wrong one is a grade: it is left out.
    """
    length = recorded.column("completion_tokens")
    if np.isnan(length).all():
        length = recorded.column("completion_chars")
    columns = [recorded.column(name) for name in LIKELIHOODS]
    given = {
        name: recorded.column(name) for name in recorded.columns.column_names if is_given(name)
    }
    if SCORE in given and _is_grade(given[SCORE], recorded.answers):
        del given[SCORE]
    given = {name: column for name, column in given.items() if not np.isnan(column).all()}
    return {
        "arm": recorded.arm if len(recorded.arms) > 1 else None,
        "arms": recorded.arms,
        "signal_names": (*SIGNALS, *given),
        "signals": np.column_stack([*columns, np.log1p(np.maximum(length, 0.0)), *given.values()]),
    }


def _is_grade(score: FloatArray, answers: Answers) -> bool:
    """Whether scores of all correct answers are above those of all wrong ones."""
    known = (answers.answer != UNPARSED) & ~np.isnan(score)
    right, wrong = (score[known & own] for own in (answers.correct, ~answers.correct))
    return bool(len(right) and len(wrong) and right.min() > wrong.max())


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return levels as a tuple; refuse levels that do not increase from 1 or more."""
    checked = tuple(levels)
    are_whole = all(isinstance(level, Integral) for level in checked)
    is_increasing = are_whole and list(checked) == sorted(set(checked))
    if not checked or not is_increasing or checked[0] < 1 or checked[-1] > MAX_LEVEL:
        raise ConfigError(
            f"levels must be increasing whole numbers from 1 to {MAX_LEVEL}, got {list(levels)}"
        )
    return checked


def check_goal(budget: float | None, today: object, *, unit: str) -> None:
    """Refuse to fit a policy for nothing, or for a budget that cannot be."""
    if budget is not None:
        check_budgets([budget], unit=unit)
    elif today is None:
        raise ConfigError(
            "give --budget, the mean cost per question, or --today, what you run now, such as 5"
        )


def add_level(levels: Sequence[int], today: TodayOptions | None) -> tuple[int, ...]:
    """Return the levels; to the default ones, the number of samples of today is added."""
    if today is None or tuple(levels) != DEFAULT_LEVELS:
        return check_levels(levels)
    return check_levels(sorted({*levels, read_today(today.today).n_samples}))


def resolve_today(
    today: TodayOptions | None, source: Run | SampleSet, *, unit: str
) -> Today | None:
    """Return what is run today, and how it is sent; by default as the samples were recorded."""
    if today is None:
        return None
    found = read_today(today.today, today.calls)
    recorded = read_recorded(source) if isinstance(source, Run) else source
    find_arm(found, recorded.arms)
    if unit == "money" and found.calls is None:
        found = replace(found, calls=CALLS[0] if has_native_n(recorded) else CALLS[1])
    return found


def has_native_n(recorded: SampleSet) -> bool:
    """Whether calls returned several samples, so that they paid for one prompt."""
    shared = recorded.column("samples_per_call")
    return bool((np.nan_to_num(shared, nan=1.0) > 1).any())


def check_evidence(evidence: str) -> str:
    """Return the evidence, if there is such a one."""
    if evidence not in EVIDENCE:
        raise ConfigError(f"evidence must be {' or '.join(EVIDENCE)}, got {evidence!r}")
    return evidence


def check_seed(seed: int) -> int:
    """Return the seed, if every random generator accepts it."""
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed must be from 0 to {SEEDS - 1}, got {seed}")
    return seed


def check_choices(*, evidence: str, seed: int) -> dict[str, Any]:
    """Return options that several stages take, if all are valid."""
    return {"evidence": check_evidence(evidence), "seed": check_seed(seed)}


def resolve_budgets(
    source: Run | SampleSet, costs: CostModel, budgets: Sequence[float] | None
) -> tuple[float, ...]:
    """Return the given budgets; by default, multiples of the mean cost of a sample."""
    if budgets is not None:
        return check_budgets(budgets)
    recorded = read_recorded(source) if isinstance(source, Run) else source
    if len(recorded.arms) > 1:
        return _arm_budgets(make_pool(recorded, costs=costs))
    if costs.unit == "samples":
        return DEFAULT_BUDGETS
    return check_budgets(costs.cost_of(recorded, DEFAULT_BUDGETS))


def _arm_budgets(pool: Pool) -> tuple[float, ...]:
    """Return budgets from the cost of one sample of the cheapest arm to that of the last."""
    cost = pool.arm_cost().mean(axis=0)
    steps = np.geomspace(1.2 * float(cost.min()), 1.2 * float(cost.max()), N_ARM_BUDGETS)
    return tuple(float(f"{step:.3g}") for step in steps)


def describe_source(store: Run) -> dict[str, Any]:
    """Return the model of a run and the grader that graded it, as recorded."""
    imported = store.manifest(store.source)
    known = dict(imported.result) if imported else {}
    for name in ("model", "grader"):
        if not isinstance(known.get(name), str | None):
            raise DataError(f"the manifests of {store.path} are damaged: {name} must be a text")
    return known | {"grader": record_grader(known.get("grader"))}


def find_template(source: dict[str, Any]) -> Template | None:
    """Return the prompt template that samples were collected with, if they were."""
    template = source.get("template")
    with _as_recorded():
        return None if template is None else read_template(template)


def find_settings(source: dict[str, Any]) -> Settings | None:
    """Return the sampling settings that samples were collected with, if they were."""
    settings = source.get("settings")
    with _as_recorded():
        return None if settings is None else read_settings(settings)


def find_arms(source: dict[str, Any], names: Sequence[str]) -> tuple[ArmSettings, ...]:
    """Return how arms were collected, in the order of their names; nothing if it is not known."""
    with _as_recorded():
        known = {arm["arm"]: arm for arm in source.get("arms", ()) if "settings" in arm}
        if len(names) < 2 or not set(names) <= set(known):  # noqa: PLR2004 - several
            return ()
        return tuple(
            ArmSettings(
                name,
                known[name]["model"],
                read_template(known[name]["template"]),
                read_settings(known[name]["settings"]),
            )
            for name in names
        )


@contextmanager
def _as_recorded() -> Iterator[None]:
    """Raise DataError if a manifest does not hold what a collection writes."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the manifest of a collection is damaged ({error!r})") from None


def hash_run(store: Run) -> str:
    """Hash the samples of a run."""
    return "+".join(store.hashes([SAMPLES]).values())
