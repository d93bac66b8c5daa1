"""Inspect logs: samples from the logs of Inspect AI, .eval or .json, with their epochs.

    question_id      the task and the sample's id, such as sums/add-1
    question         the input (the last user message, if there are several) and the choices
    gold             the target; the first of several, or all of them for multiple choice
    answer, correct  of the first scorer; C, yes, true and scores from 0.5
                     on are correct, and so is P, which counts as 0.5
    tokens, time     of the last call to the model; prompt tokens include cached ones

An empty answer is unparsed, and so is a missing one if the scorer records answers at all; otherwise
the completion is the answer. Samples that failed or were not scored are left out. The logs of a
directory are read as one: a sample in two logs (of a retried run) counts once, and further runs of
a task add samples. Events, tools and agents are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.logs.eval_files import read_header, read_sample_documents
from adacompute.datasets.logs.log_rows import GradeFunction, Row, make_log_samples, parse_difficulty
from adacompute.datasets.records import as_number, as_text, get_in, parse_json, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MIN_CORRECT_SCORE = 0.5
"""Smallest score that counts as correct."""

_SNIFFED_BYTES = 4096
_ATTACHMENT = "attachment://"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SCORES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_INPUT_SUFFIXES = ("", "_cache_read", "_cache_write")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?")
_FINISH_REASONS = {"max_tokens": "length", "model_length": "length"}


@dataclass(frozen=True)
class InspectLog:
    """A log: the header, which describes its run, and its samples."""

    path: Path
    header: dict[str, Any]
    samples: Iterable[Any]


def find_inspect_logs(path: Path) -> list[Path]:
    """Find Inspect logs: the path itself, or those below a directory."""
    if not path.is_dir():
        return [path] if path.suffix == ".eval" or _looks_like_log(path) else []
    documents = (file for file in path.rglob("*.json") if _looks_like_log(file))
    return sorted([*path.rglob("*.eval"), *documents])


def _looks_like_log(path: Path) -> bool:
    """Whether a file begins like a log; reads only its start."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
    return all(name in start for name in (b'"version"', b'"eval"', b'"task"'))


def read_inspect_logs(path: Path, *, grade: GradeFunction | None = None) -> pa.Table:
    """Read a log, or the logs below a directory, as samples.

    Of several scorers, the first one counts. ``grade`` grades the completions of logs without
    scores.
    """
    files = find_inspect_logs(path)
    if not files:
        raise DataError(f"{path} holds no Inspect log: neither an .eval file nor a .json log")
    logs = sorted((_read_log(file) for file in files), key=lambda log: _created(log.header))
    seen: set[str] = set()
    rows = [row for log in logs for row in _rows(log, seen)]
    return make_log_samples(rows, path, grade=grade, ungraded="they were not scored")


def _created(header: dict[str, Any]) -> str:
    return as_text(get_in(header, "eval", "created")) or ""


def _read_log(path: Path) -> InspectLog:
    """Read the header of a log; its samples are read when iterated over."""
    samples: Iterable[Any]
    if path.suffix == ".eval":
        header, samples = read_header(path), read_sample_documents(path)
    else:
        header = parse_json(read_bytes(path), str(path))
        found = get_in(header, "samples")
        samples = found if isinstance(found, list) else []
    if not isinstance(header, dict) or as_text(get_in(header, "eval", "task")) is None:
        raise DataError(f"{path} is not an Inspect log: it names no task")
    return InspectLog(path, header, samples)


def _rows(log: InspectLog, seen: set[str]) -> list[Row]:
    """Make rows of the samples that are not in ``seen``, by question and epoch."""
    ids = get_in(log.header, "eval", "dataset", "sample_ids")
    rank = {str(name): i for i, name in enumerate(ids if isinstance(ids, list) else [])}
    samples: list[_ScoredSample] = []
    for sample in log.samples:
        name, epoch = as_text(get_in(sample, "id")), as_number(get_in(sample, "epoch"))
        if name is None or epoch is None:
            raise DataError(f"{log.path} holds a sample without an id or an epoch")
        uuid = as_text(sample.get("uuid")) or f"{log.path}/{name}/{epoch}"
        if uuid not in seen:
            seen.add(uuid)
            row = _row(log.header, name, sample)
            scores, has_failed = sample.get("scores"), sample.get("error") is not None
            scores = scores if isinstance(scores, dict) else {}
            order = (rank.get(name, len(rank)), name, epoch)
            samples.append(_ScoredSample(order, row, scores, has_failed))
    samples.sort(key=lambda sample: sample.order)
    return _select_scores(log.path, samples)


@dataclass(frozen=True)
class _ScoredSample:
    """A sample with the scores of all scorers."""

    order: tuple[int, str, float]
    row: Row
    scores: dict[str, Any]
    has_failed: bool


def _row(header: dict[str, Any], name: str, sample: dict[str, Any]) -> Row:
    output, metadata = sample.get("output"), sample.get("metadata")
    usage = get_in(output, "usage")
    choice = get_in(output, "choices", 0)
    stop_reason = as_text(get_in(choice, "stop_reason"))
    settings = (get_in(header, "plan", "config"), get_in(header, "eval", "model_generate_config"))
    temperatures = (as_number(get_in(part, "temperature")) for part in settings)
    inputs = [as_number(get_in(usage, f"input_tokens{suffix}")) for suffix in _INPUT_SUFFIXES]
    return {
        "question_id": f"{as_text(get_in(header, 'eval', 'task'))}/{name}",
        "question": _question(sample),
        "gold": _gold(sample),
        "difficulty": parse_difficulty(get_in(metadata, "difficulty"))
        or parse_difficulty(get_in(metadata, "level")),
        "completion": _completion(sample),
        "completion_tokens": as_number(get_in(usage, "output_tokens")),
        "mean_logprob": _mean_logprob(get_in(choice, "logprobs", "content")),
        "temperature": next((value for value in temperatures if value is not None), None),
        "latency_s": as_number(get_in(output, "time")),
        "model": as_text(get_in(header, "eval", "model")),
        "prompt_tokens": None if inputs[0] is None else sum(part or 0 for part in inputs),
        "cached_tokens": inputs[1],
        "reasoning_tokens": as_number(get_in(usage, "reasoning_tokens")),
        "finish_reason": _FINISH_REASONS.get(stop_reason, stop_reason) if stop_reason else None,
        "cost": as_number(get_in(usage, "total_cost")),
        "answer": None,
        "correct": None,
    }


def _question(sample: dict[str, Any]) -> str | None:
    """Return the text of a question: the last user message, without few-shot examples before it."""
    content: Any = sample.get("input")
    if isinstance(content, list):
        user = [message for message in content if get_in(message, "role") == "user"]
        content = get_in(user[-1], "content") if user else None
    text = _content(content, sample)
    choices = sample.get("choices")
    if text is None or not isinstance(choices, list):
        return text
    lettered = zip(_LETTERS, choices, strict=False)
    return "\n".join([text, *(f"{letter}) {as_text(choice)}" for letter, choice in lettered)])


def _gold(sample: dict[str, Any]) -> str | None:
    target = sample.get("target")
    if not isinstance(target, list):
        return as_text(target)
    texts = [text for text in map(as_text, target) if text is not None]
    return ", ".join(texts) if sample.get("choices") else next(iter(texts), None)


def _completion(sample: dict[str, Any]) -> str | None:
    output = sample.get("output")
    completion = _content(get_in(output, "completion"), sample)
    return completion or _content(get_in(output, "choices", 0, "message", "content"), sample)


def _content(content: Any, sample: dict[str, Any]) -> str | None:  # noqa: ANN401 - any JSON
    """Return a text, or the joined text parts of a message; long texts may be attachments."""
    if isinstance(content, list):
        parts = [_content(get_in(part, "text"), sample) for part in content]
        return "\n".join(part for part in parts if part is not None)
    text = as_text(content)
    if text is not None and text.startswith(_ATTACHMENT):
        return as_text(get_in(sample, "attachments", text.removeprefix(_ATTACHMENT))) or text
    return text


def _mean_logprob(tokens: Any) -> float | None:  # noqa: ANN401 - any JSON
    logprobs = [as_number(get_in(t, "logprob")) for t in tokens] if isinstance(tokens, list) else []
    known = [value for value in logprobs if value is not None]
    return sum(known) / len(known) if known and len(known) == len(logprobs) else None


def _select_scores(path: Path, samples: list[_ScoredSample]) -> list[Row]:
    """Return rows with the answers and scores of one scorer; samples without a score are left out.

    If no sample has scores, all samples that did not fail are returned.
    """
    names = list(dict.fromkeys(name for sample in samples for name in sample.scores))
    if not names:
        return [sample.row for sample in samples if not sample.has_failed]
    name = names[0]
    scored = [
        (sample.row, value, as_text(get_in(sample.scores, name, "answer")))
        for sample in samples
        if (value := _score(path, name, get_in(sample.scores, name, "value"))) is not None
    ]
    records_answers = any(answer is not None for _, _, answer in scored)
    for row, value, answer in scored:
        row["correct"] = value >= MIN_CORRECT_SCORE  # the score is a grade: no one knows it later
        use_completion = not records_answers or (row["correct"] and not answer)
        row["answer"] = ((row["completion"] if use_completion else answer) or "").strip() or None
        row["correct"] = row["correct"] and row["answer"] is not None
    return [row for row, _, _ in scored]


def _score(path: Path, scorer: str, value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Convert a score to a number as Inspect does; None if there is none."""
    if isinstance(value, bool):
        return float(value)
    if value is None or isinstance(value, int | float):
        return as_number(value)
    if isinstance(value, str) and value in _SCORES:
        return _SCORES[value]
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    raise DataError(
        f"{path}: the scorer {scorer!r} gives {str(value)[:50]!r}, which is not a single grade: "
        "score the samples again by one grade"
    )
