"""Harness logs: samples from the logs that lm-evaluation-harness writes with ``--log_samples``.

A file ``samples_TASK_DATE.jsonl`` has one line for each question and filter, with all responses but
one judgement: that of the response which the filter chose. For a task with repeats each response is
therefore read and compared again as ``results_DATE.json`` beside it says of the task, provided that
this gives for every line what the harness recorded; else a grader is needed. Answers are those of
the first filter, or of the one that is named; what could not be read ("[invalid]") is null here,
though the harness counts it as a vote.

    question_id      the task and the number of the document, such as sums/0
    question         the document's question, problem, query, input or text, else the whole prompt
    gold             the target, without what the comparison ignores

A log holds neither tokens nor times. Beware: to API models the harness sends ONE seed with every
repeat, so that a server which heeds it gives the same response each time, unless the task's
``generation_kwargs`` hold a seed of their own (such as -1 for llama.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.competition_math import level_of
from adacompute.datasets.gsm8k import MARK, final_answer
from adacompute.datasets.harness import METRIC, Recipe, make_recipe
from adacompute.datasets.log_rows import Grading, Row, tidy
from adacompute.datasets.records import (
    dig,
    find_names,
    number_of,
    parse_json,
    read_bytes,
    read_records,
    text_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

RIGHT = 0.5
"""A metric from here on is right."""

QUESTION_FIELDS = ("question", "problem", "query", "input", "text")

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)")
_MARKS = frozenset({"doc_id", "doc", "resps", "filtered_resps"})
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Task:
    """What is known of a task and its run."""

    name: str
    model: str | None
    config: dict[str, Any]


def find_lm_eval_logs(path: Path) -> list[Path]:
    """Find the sample logs that a path names: itself, or those below a directory."""
    files = sorted(path.rglob("samples_*.jsonl")) if path.is_dir() else [path]
    return [file for file in files if file.suffix == ".jsonl" and find_names(file) >= _MARKS]


def read_lm_eval_logs(
    path: Path, *, filter_name: str | None = None, grade: Grading | None = None
) -> pa.Table:
    """Read a log, or the logs below a directory, as samples.

    ``filter_name`` names one of several filters; ``grade`` grades the responses of which the log
    does not tell whether they are right.
    """
    found = find_lm_eval_logs(path)
    if not found:
        raise DataError(f"{path} holds no sample log of lm-evaluation-harness (samples_*.jsonl)")
    rows = [row for file in found for row in _read_log(file, filter_name)]
    reason = (
        "the harness judges one response a question, and how it would judge the others cannot be "
        "told from the results beside the log"
    )
    return tidy(rows, path, grade=grade, ungraded=reason)


def _read_log(path: Path, filter_name: str | None) -> list[Row]:
    task = _read_task(path)
    recipes: dict[str, Recipe | None] = {}
    rows: list[Row] = []
    for line, record in read_records(path):
        name = text_of(record.get("filter")) or "none"
        if name not in recipes:
            recipes[name] = make_recipe(task.config, name)
        if name == (filter_name or next(iter(recipes))):
            rows += _rows(f"line {line} of {path}", task, record, recipes[name])
    if not rows:
        raise DataError(f"{path} has no filter {filter_name!r}; it has {list(recipes)}")
    return rows


def _read_task(path: Path) -> _Task:
    """Read what the results beside a log say of its task."""
    named = _NAME.fullmatch(path.stem)
    if named is None:
        return _Task(path.stem.removeprefix("samples_"), None, {})
    name = named["task"]
    beside = path.with_name(f"results_{named['date']}.json")
    if not beside.is_file():
        return _Task(name, None, {})
    results = parse_json(read_bytes(beside), str(beside))
    config = dig(results, "configs", name)
    model = dig(results, "model_name") or dig(results, "config", "model")
    return _Task(name, text_of(model), config if isinstance(config, dict) else {})


def _rows(place: str, task: _Task, record: dict[str, Any], recipe: Recipe | None) -> list[Row]:
    """Make a row of each response to a question."""
    number, responses = text_of(record.get("doc_id")), _responses(place, record)
    document, target = record.get("doc"), text_of(record.get("target")) or ""
    settings = dig(record, "arguments", "gen_args_0", "arg_1")
    if number is None:
        raise DataError(f"{place} has no doc_id")
    texts = (text_of(dig(document, name)) for name in QUESTION_FIELDS)
    prompt = text_of(dig(record, "arguments", "gen_args_0", "arg_0"))
    gold = (recipe or Recipe()).canonical(target)
    asked = {
        "question_id": f"{task.name}/{number}",
        "question": next((text for text in texts if text is not None), prompt),
        "gold": (final_answer(gold) if MARK in gold else gold) or None,
        "difficulty": level_of(dig(document, "difficulty")) or level_of(dig(document, "level")),
        "temperature": number_of(dig(settings, "temperature")),
        "model": task.model,
    }
    judged = _judge(record, responses, target, recipe)
    return [
        asked | {"completion": response, "answer": answer, "correct": right}
        for response, (answer, right) in zip(responses, judged, strict=True)
    ]


def _responses(place: str, record: dict[str, Any]) -> list[str]:
    """Return the texts that were drawn for a question."""
    drawn = record.get("resps")
    texts = dig(drawn, 0)
    single = isinstance(drawn, list) and len(drawn) == 1 and isinstance(texts, list) and texts
    if not single or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{place} holds no sampled texts: only tasks that generate (generate_until) are read, "
            "not those that compare the likelihood of choices"
        )
    return [text_of(text) or "" for text in texts]


Judged = list[tuple[str | None, bool | None]]


def _judge(
    record: dict[str, Any], responses: list[str], target: str, recipe: Recipe | None
) -> Judged:
    """Return the answer of each response, and whether it is right; None where nobody can tell."""
    chosen = dig(record, "filtered_resps", 0)
    if len(responses) == 1:
        return [_judge_one(record, responses[0], chosen, recipe or Recipe())]
    each = isinstance(chosen, list) and len(chosen) == len(responses)
    each = each and all(isinstance(one, str) for one in chosen)
    recipe = recipe or (Recipe() if each else None)
    score = number_of(record.get(METRIC))
    unknown: Judged = [(None, None)] * len(responses)
    if recipe is None or score is None:
        return unknown
    try:
        told = chosen if each else recipe.choose(responses)
        answers = chosen if each else [recipe.read(one) for one in responses]
    except IndexError:
        return unknown
    if told != chosen or abs(recipe.score(told, target) - score) > _TOLERANCE:
        return unknown
    gold = recipe.canonical(target)
    canonical = [None if recipe.unread(one) else recipe.canonical(one) for one in answers]
    return [(one, one is not None and one == gold) for one in canonical]


def _judge_one(
    record: dict[str, Any],
    response: str,
    chosen: Any,  # noqa: ANN401 - any JSON
    recipe: Recipe,
) -> tuple[str | None, bool | None]:
    """Return what the harness itself made of the only response."""
    metrics = record.get("metrics")
    names = [METRIC, *(metrics if isinstance(metrics, list) else [])]
    score = next((s for name in names if (s := number_of(record.get(str(name)))) is not None), None)
    answer = text_of(dig(chosen, 0) if isinstance(chosen, list) else chosen)
    if score is None:
        return None, None
    right = score >= RIGHT
    if answer is None or recipe.unread(answer):
        return (response.strip() or None, True) if right and response.strip() else (None, False)
    return recipe.canonical(answer), right
