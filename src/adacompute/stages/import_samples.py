"""Import: the stage that brings recorded samples into a run.

Samples come from a file, from logs, or from the example set of the package. Samples without grades
are graded by a question set, or by their own reference answers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.sources import (
    is_tidy_file,
    read_question_source,
    read_source,
    resolve_source,
)
from adacompute.datasets.ungraded import find_log_files, has_gold_only, read_ungraded
from adacompute.graders.grader import Grader, grade, load_grader
from adacompute.storage.decisions import check_format
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    import pyarrow as pa

    from adacompute.storage.store import SampleSet


def import_samples(
    source: Path,
    run: Path,
    *,
    model: str | None = None,
    grader: str | None = None,
    gold: str | None = None,
    allow_inconsistent_grades: bool = False,
) -> dict[str, Any]:
    """Import recorded samples into a run, and return counts.

    With ``gold`` they are graded by that question set. Otherwise tidy samples without grades are
    graded by their own reference answers. An answer that is graded both correct and wrong within
    one question is refused unless ``allow_inconsistent_grades`` is set.
    """
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is not a directory, so it cannot be a run: choose another path")
    store, source = Run(run), resolve_source(source)
    loaded = load_grader(grader) if grader else None
    # Hashed before they are read: a gateway may log more in the meantime.
    has_grades = _has_grades(source, loaded, gold)
    source_hash = (
        hash_path(source) if has_grades else "+".join(map(hash_path, find_log_files(source)))
    )
    table, excluded = read_graded(source, loaded, gold)
    gold_hash = hash_path(Path(gold)) if gold and Path(gold).exists() else gold
    arguments = {"source": source_hash, "model": model, "grader": grader, "gold": gold_hash}
    finished = store.find_finished("import", arguments, {})
    if finished:
        return finished.result
    if store.file(SAMPLES).exists() and not store.has_artifact(SAMPLES, table):
        raise DataError(
            f"{run} already holds samples of another source, which may have cost money: "
            "choose another directory, or delete this one if its samples were only imported"
        )
    recorded = encode_samples(table)
    if grader is not None:
        check_parsed(recorded)
    if not allow_inconsistent_grades:
        check_grades(recorded)
    named = {"model": model or find_model(table), "grader": grader}
    result = {**_count(recorded), **excluded, **named}
    store.finish("import", arguments=arguments, inputs={}, outputs={SAMPLES: table}, result=result)
    return result


def _count(recorded: SampleSet) -> dict[str, int]:
    """Count questions and samples, and what may surprise: unequal numbers and missing texts."""
    answers = recorded.answers
    return {
        "questions": len(answers),
        "samples": len(answers.answer),
        "min_samples": int(answers.n_samples.min(initial=len(answers.answer))),
        "max_samples": int(answers.n_samples.max(initial=0)),
        "without_text": sum(text is None for text in recorded.text),
        "unparsed": int((answers.answer == UNPARSED).sum()),
        "correct": int(answers.correct.sum()),
    }


def check_parsed(recorded: SampleSet) -> None:
    """Refuse samples of which not one has an answer: a column has probably another name."""
    answer = recorded.answers.answer
    if len(answer) and not (answer != UNPARSED).any():
        raise DataError(
            f"none of {len(answer)} samples has an answer: is the column of the texts named "
            "'completion', or that of the answers 'answer', and does the grader fit them?"
        )


def check_grades(recorded: SampleSet) -> None:
    """Refuse samples of one question that have the same answer and different grades."""
    answers = recorded.answers
    share = answers.class_accuracy
    mixed = np.flatnonzero((answers.answer != UNPARSED) & (share > 0) & (share < 1))
    if len(mixed):
        question = recorded.id[int(answers.question[mixed[0]])]
        raise DataError(
            f"question {question!r} has samples with the same answer, some graded correct and some "
            "wrong: grade them again, or allow it (allow_inconsistent_grades= or "
            "--allow-inconsistent-grades)"
        )


def read_graded(
    source: Path, grader: Grader | None, gold: str | None
) -> tuple[pa.Table, dict[str, int]]:
    """Read samples and grade those without grades; count what the question set excludes.

    ``gold`` names a question set. Without it, samples are graded by their own reference answers.
    """
    grading = None if grader is None else partial(grade, grader)
    if _has_grades(source, grader, gold):
        return read_source(source, grade=grading), {}
    if grading is None:
        raise ConfigError(
            "reference answers need a grader to compare answers with them: pass grader= or --grader"
        )
    check_format(source)
    reference = None if gold is None else read_question_source(gold)
    found = read_ungraded(source, reference, grading)
    return found.samples, {"excluded": found.excluded, "excluded_samples": found.excluded_samples}


def _has_grades(source: Path, grader: Grader | None, gold: str | None) -> bool:
    """Return whether samples have grades, or are logs that are graded as they are read."""
    return gold is None and not (grader and is_tidy_file(source) and has_gold_only(source))


def find_model(table: pa.Table) -> str | None:
    """Return the model of the samples; None if there are several, or none is recorded."""
    found: list[str | None] = table["model"].unique().to_pylist()
    return found[0] if len(found) == 1 else None
