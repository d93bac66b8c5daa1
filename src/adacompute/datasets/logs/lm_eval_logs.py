"""lm-eval logs: samples from the logs of lm-evaluation-harness, written with ``--log_samples``.

A file ``samples_TASK_DATE.jsonl`` has one line per question and filter. A line has all responses
but only one score, that of the response which the filter selected. For a task with repeats, each
response is therefore scored again with the task's configuration in ``results_DATE.json``, if that
reproduces what the harness recorded for every line; otherwise a grader is needed. Answers are those
of the first filter, or of the named one. An unparsed answer ("[invalid]") is null here, although
the harness counts it as a vote.

    question_id      the task and the number of the document, such as sums/0
    question         the document's question, problem, query, input or text, else the whole prompt
    gold             the target, without what the comparison ignores

A log has neither tokens nor times. Note that the harness sends API models the SAME seed for every
repeat. A server that uses it returns the same response each time, unless the task sets another seed
in ``generation_kwargs`` (such as -1 for llama.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.logs.harness import METRIC, AnswerRecipe, make_answer_recipe
from adacompute.datasets.logs.log_rows import GradeFunction, Row, make_log_samples, parse_difficulty
from adacompute.datasets.records import (
    as_number,
    as_text,
    get_in,
    parse_json,
    read_bytes,
    read_examples,
    read_records,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MIN_CORRECT_SCORE = 0.5
"""Smallest value of a metric that counts as correct."""

QUESTION_FIELDS = ("question", "problem", "query", "input", "text")

MARK = "####"
"""Marker before the final answer of a solution of GSM8K."""

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)")
_LOG_KEYS = frozenset({"doc_id", "doc", "resps", "filtered_resps"})
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Task:
    """A task: its name, the model, and its configuration."""

    name: str
    model: str | None
    config: dict[str, Any]


def find_lm_eval_logs(path: Path) -> list[Path]:
    """Find sample logs: the path itself, or those below a directory."""
    files = sorted(path.rglob("samples_*.jsonl")) if path.is_dir() else [path]
    return [
        file
        for file in files
        if file.suffix == ".jsonl" and read_examples(file).keys() >= _LOG_KEYS
    ]


def read_lm_eval_logs(path: Path, *, grade: GradeFunction | None = None) -> pa.Table:
    """Read a log, or the logs below a directory, as samples.

    Of several filters, the first one counts. ``grade`` grades responses whose grades cannot be
    derived from the log.
    """
    files = find_lm_eval_logs(path)
    if not files:
        raise DataError(f"{path} holds no sample log of lm-evaluation-harness (samples_*.jsonl)")
    rows = [row for file in files for row in _read_log(file)]
    reason = (
        "the harness scores one response per question, and the scores of the others cannot be "
        "computed from the results beside the log"
    )
    return make_log_samples(rows, path, grade=grade, ungraded=reason)


def _read_log(path: Path) -> list[Row]:
    task = _read_task(path)
    recipes: dict[str, AnswerRecipe | None] = {}
    rows: list[Row] = []
    for where, record in read_records(path):
        name = as_text(record.get("filter")) or "none"
        if name not in recipes:
            recipes[name] = make_answer_recipe(task.config, name)
        if name == next(iter(recipes)):
            rows += _rows(f"{where} of {path}", task, record, recipes[name])
    return rows


def _read_task(path: Path) -> _Task:
    """Read the task of a log from the results file beside it."""
    match = _NAME.fullmatch(path.stem)
    if match is None:
        return _Task(path.stem.removeprefix("samples_"), None, {})
    name = match["task"]
    results_path = path.with_name(f"results_{match['date']}.json")
    if not results_path.is_file():
        return _Task(name, None, {})
    results = parse_json(read_bytes(results_path), str(results_path))
    config = get_in(results, "configs", name)
    model = get_in(results, "model_name") or get_in(results, "config", "model")
    return _Task(name, as_text(model), config if isinstance(config, dict) else {})


def _rows(
    location: str, task: _Task, record: dict[str, Any], recipe: AnswerRecipe | None
) -> list[Row]:
    """Make one row per response to a question."""
    number, responses = as_text(record.get("doc_id")), _responses(location, record)
    document, target = record.get("doc"), as_text(record.get("target")) or ""
    settings = get_in(record, "arguments", "gen_args_0", "arg_1")
    if number is None:
        raise DataError(f"{location} has no doc_id")
    texts = (as_text(get_in(document, name)) for name in QUESTION_FIELDS)
    prompt = as_text(get_in(record, "arguments", "gen_args_0", "arg_0"))
    gold = (recipe or AnswerRecipe()).canonical(target)
    columns = {
        "question_id": f"{task.name}/{number}",
        "question": next((text for text in texts if text is not None), prompt),
        "gold": gold.rpartition(MARK)[2].strip().replace(",", "") or None
        if MARK in gold
        else gold or None,
        "difficulty": parse_difficulty(get_in(document, "difficulty"))
        or parse_difficulty(get_in(document, "level")),
        "temperature": as_number(get_in(settings, "temperature")),
        "model": task.model,
    }
    grades = _grade(record, responses, target, recipe)
    return [
        columns | {"completion": response, "answer": answer, "correct": correct}
        for response, (answer, correct) in zip(responses, grades, strict=True)
    ]


def _responses(location: str, record: dict[str, Any]) -> list[str]:
    """Return the sampled texts of a question."""
    requests = record.get("resps")
    texts = get_in(requests, 0)
    has_texts = isinstance(requests, list) and len(requests) == 1 and isinstance(texts, list)
    if not has_texts or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{location} has no sampled texts: only tasks that generate (generate_until) are "
            "supported, not those that compare the likelihood of choices"
        )
    return [as_text(text) or "" for text in texts]


AnswerGrades = list[tuple[str | None, bool | None]]
"""The answer of each response, and whether it is correct; None if that is unknown."""


def _grade(
    record: dict[str, Any], responses: list[str], target: str, recipe: AnswerRecipe | None
) -> AnswerGrades:
    """Grade each response as the harness would."""
    selected = get_in(record, "filtered_resps", 0)
    if len(responses) == 1:
        return [_grade_single(record, responses[0], selected, recipe or AnswerRecipe())]
    has_all = isinstance(selected, list) and len(selected) == len(responses)
    has_all = has_all and all(isinstance(answer, str) for answer in selected)
    recipe = recipe or (AnswerRecipe() if has_all else None)
    score = as_number(record.get(METRIC))
    unknown: AnswerGrades = [(None, None)] * len(responses)
    if recipe is None or score is None:
        return unknown
    try:
        reproduced = selected if has_all else recipe.select(responses)
        answers = selected if has_all else [recipe.extract(response) for response in responses]
    except IndexError:
        return unknown
    if reproduced != selected or abs(recipe.score(reproduced, target) - score) > _TOLERANCE:
        return unknown
    gold = recipe.canonical(target)
    canonical = [None if recipe.is_unparsed(one) else recipe.canonical(one) for one in answers]
    return [(answer, answer is not None and answer == gold) for answer in canonical]


def _grade_single(
    record: dict[str, Any],
    response: str,
    selected: Any,  # noqa: ANN401 - any JSON
    recipe: AnswerRecipe,
) -> tuple[str | None, bool | None]:
    """Return the harness's own grade of the only response."""
    metrics = record.get("metrics")
    names = [METRIC, *(metrics if isinstance(metrics, list) else [])]
    score = next((s for name in names if (s := as_number(record.get(str(name)))) is not None), None)
    answer = as_text(get_in(selected, 0) if isinstance(selected, list) else selected)
    if score is None:
        return None, None
    correct = score >= MIN_CORRECT_SCORE
    if answer is None or recipe.is_unparsed(answer):
        return (response.strip() or None, True) if correct and response.strip() else (None, False)
    return recipe.canonical(answer), correct
