"""Inspect logs: samples from the logs of Inspect AI, .eval or .json, with their epochs.

    question_id      the task and the id, such as sums/add-1
    question         the input, of several messages the last of the user, and the choices
    gold             the target; of several the first, and of a choice all
    answer, correct  those of the first scorer, or of the one that is named; C, yes, true and what
                     is at least 0.5 are right, and so is P, which counts 0.5
    tokens, time     those of the last call to the model; prompt tokens count cached ones too

An empty answer could not be read, and neither could a missing one, if the scorer records answers at
all; else the completion stands for the answer. Samples that failed or were not scored are left out.
Logs in a directory are read as one: a sample in two logs (of a run that was retried) counts once,
and further runs of a task add samples. It knows nothing of events, tools and agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import DataError
from adacompute.datasets.competition_math import level_of
from adacompute.datasets.eval_files import read_header, read_sample_documents
from adacompute.datasets.log_rows import Grading, Row, tidy
from adacompute.datasets.records import dig, number_of, parse_json, read_bytes, text_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

RIGHT = 0.5
"""A score from here on is right."""

_SNIFFED = 4096
_ATTACHMENT = "attachment://"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SCORES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_INPUTS = ("", "_cache_read", "_cache_write")
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?")
_STOPS = {"max_tokens": "length", "model_length": "length"}


@dataclass(frozen=True)
class Log:
    """What a log says of its run, and its samples."""

    path: Path
    header: dict[str, Any]
    samples: Iterable[Any]


def find_inspect_logs(path: Path) -> list[Path]:
    """Find the logs that a path names: itself, or those below a directory."""
    if not path.is_dir():
        return [path] if path.suffix == ".eval" or _looks_like_log(path) else []
    documents = (file for file in path.rglob("*.json") if _looks_like_log(file))
    return sorted([*path.rglob("*.eval"), *documents])


def _looks_like_log(path: Path) -> bool:
    """Whether a document starts as a log does, without reading all of it."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(_SNIFFED)
    return all(name in start for name in (b'"version"', b'"eval"', b'"task"'))


def read_inspect_logs(
    path: Path, *, scorer: str | None = None, grade: Grading | None = None
) -> pa.Table:
    """Read a log, or the logs below a directory, as samples.

    ``scorer`` names one of several scores; ``grade`` grades the completions of logs that were not
    scored.
    """
    found = find_inspect_logs(path)
    if not found:
        raise DataError(f"{path} holds no Inspect log: neither an .eval file nor a .json log")
    logs = sorted((_read_log(file) for file in found), key=lambda log: _created(log.header))
    seen: set[str] = set()
    rows = [row for log in logs for row in _rows(log, seen, scorer)]
    return tidy(rows, path, grade=grade, ungraded="they were not scored")


def _created(header: dict[str, Any]) -> str:
    return text_of(dig(header, "eval", "created")) or ""


def _read_log(path: Path) -> Log:
    """Read the header of a log; its samples are read when they are asked for."""
    samples: Iterable[Any]
    if path.suffix == ".eval":
        header, samples = read_header(path), read_sample_documents(path)
    else:
        header = parse_json(read_bytes(path), str(path))
        found = dig(header, "samples")
        samples = found if isinstance(found, list) else []
    if not isinstance(header, dict) or text_of(dig(header, "eval", "task")) is None:
        raise DataError(f"{path} is no log of Inspect: it names no task")
    return Log(path, header, samples)


def _rows(log: Log, seen: set[str], scorer: str | None) -> list[Row]:
    """Make rows of a log's samples that no other log had, by question and epoch."""
    ids = dig(log.header, "eval", "dataset", "sample_ids")
    place = {str(name): i for i, name in enumerate(ids if isinstance(ids, list) else [])}
    drawn: list[_Drawn] = []
    for sample in log.samples:
        name, epoch = text_of(dig(sample, "id")), number_of(dig(sample, "epoch"))
        if name is None or epoch is None:
            raise DataError(f"{log.path} holds a sample without an id or an epoch")
        uuid = text_of(sample.get("uuid")) or f"{log.path}/{name}/{epoch}"
        if uuid not in seen:
            seen.add(uuid)
            row = _row(log.header, name, sample)
            scores, failed = sample.get("scores"), sample.get("error") is not None
            scores = scores if isinstance(scores, dict) else {}
            drawn.append(_Drawn((place.get(name, len(place)), name, epoch), row, scores, failed))
    drawn.sort(key=lambda one: one.order)
    return _score(log.path, drawn, scorer)


@dataclass(frozen=True)
class _Drawn:
    """A sample before it is known which of its scores counts."""

    order: tuple[int, str, float]
    row: Row
    scores: dict[str, Any]
    failed: bool


def _row(header: dict[str, Any], name: str, sample: dict[str, Any]) -> Row:
    output, metadata = sample.get("output"), sample.get("metadata")
    usage = dig(output, "usage")
    choice = dig(output, "choices", 0)
    stop = text_of(dig(choice, "stop_reason"))
    settings = (dig(header, "plan", "config"), dig(header, "eval", "model_generate_config"))
    temperatures = (number_of(dig(part, "temperature")) for part in settings)
    inputs = [number_of(dig(usage, f"input_tokens{kind}")) for kind in _INPUTS]
    return {
        "question_id": f"{text_of(dig(header, 'eval', 'task'))}/{name}",
        "question": _question(sample),
        "gold": _gold(sample),
        "difficulty": level_of(dig(metadata, "difficulty")) or level_of(dig(metadata, "level")),
        "completion": _completion(sample),
        "completion_tokens": number_of(dig(usage, "output_tokens")),
        "mean_logprob": _mean_logprob(dig(choice, "logprobs", "content")),
        "temperature": next((value for value in temperatures if value is not None), None),
        "latency_s": number_of(dig(output, "time")),
        "model": text_of(dig(header, "eval", "model")),
        "prompt_tokens": None if inputs[0] is None else sum(part or 0 for part in inputs),
        "cached_tokens": inputs[1],
        "reasoning_tokens": number_of(dig(usage, "reasoning_tokens")),
        "finish_reason": _STOPS.get(stop, stop) if stop else None,
        "cost": number_of(dig(usage, "total_cost")),
        "answer": None,
        "correct": None,
    }


def _question(sample: dict[str, Any]) -> str | None:
    """Return the text of a question; few-shot examples before the last message are not its own."""
    asked: Any = sample.get("input")
    if isinstance(asked, list):
        users = [dig(message, "content") for message in asked if dig(message, "role") == "user"]
        asked = users[-1] if users else None
    text = _content(asked, sample)
    choices = sample.get("choices")
    if text is None or not isinstance(choices, list):
        return text
    lettered = zip(_LETTERS, choices, strict=False)
    return "\n".join([text, *(f"{letter}) {text_of(choice)}" for letter, choice in lettered)])


def _gold(sample: dict[str, Any]) -> str | None:
    target = sample.get("target")
    if not isinstance(target, list):
        return text_of(target)
    texts = [text for text in map(text_of, target) if text is not None]
    return ", ".join(texts) if sample.get("choices") else next(iter(texts), None)


def _completion(sample: dict[str, Any]) -> str | None:
    output = sample.get("output")
    written = _content(dig(output, "completion"), sample)
    return written or _content(dig(output, "choices", 0, "message", "content"), sample)


def _content(content: Any, sample: dict[str, Any]) -> str | None:  # noqa: ANN401 - any JSON
    """Return a text, or the texts among the parts of a message; long ones may lie apart."""
    if isinstance(content, list):
        parts = [_content(dig(part, "text"), sample) for part in content]
        return "\n".join(part for part in parts if part is not None)
    text = text_of(content)
    if text is not None and text.startswith(_ATTACHMENT):
        return text_of(dig(sample, "attachments", text.removeprefix(_ATTACHMENT))) or text
    return text


def _mean_logprob(tokens: Any) -> float | None:  # noqa: ANN401 - any JSON
    found = [number_of(dig(t, "logprob")) for t in tokens] if isinstance(tokens, list) else []
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _score(path: Path, drawn: list[_Drawn], scorer: str | None) -> list[Row]:
    """Put the answers and scores of one scorer in the rows, and leave out what has none."""
    names = list(dict.fromkeys(name for one in drawn for name in one.scores))
    if scorer is not None and scorer not in names:
        raise DataError(f"{path} has no scorer {scorer!r}; it has {names}")
    if not names:
        return [one.row for one in drawn if not one.failed]
    name = scorer or names[0]
    scored = [
        (one.row, value, text_of(dig(one.scores, name, "answer")))
        for one in drawn
        if (value := _value(path, name, dig(one.scores, name, "value"))) is not None
    ]
    records_answers = any(answer is not None for _, _, answer in scored)
    for row, value, answer in scored:
        row["score"], row["correct"] = value, value >= RIGHT
        stands = not records_answers or (row["correct"] and not answer)
        row["answer"] = ((row["completion"] if stands else answer) or "").strip() or None
        row["correct"] = row["correct"] and row["answer"] is not None
    return [row for row, _, _ in scored]


def _value(path: Path, scorer: str, value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Return a score as a number as Inspect does; None where there is none."""
    if isinstance(value, bool):
        return float(value)
    if value is None or isinstance(value, int | float):
        return number_of(value)
    if isinstance(value, str) and value in _SCORES:
        return _SCORES[value]
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    raise DataError(
        f"{path}: the scorer {scorer!r} gives {str(value)[:50]!r}, "
        "which is not one right or wrong: name another scorer"
    )
