"""Import: the stage that brings recorded samples into a run.

Samples come from a file, from logs or from the set that ships with the package. They are graded
by a question set or by their own reference answers where they have no grades. It knows nothing of
terminals.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.sources import is_tidy, locate, read_question_source, read_source
from adacompute.datasets.ungraded import find_logged, holds_key, read_ungraded
from adacompute.graders.grader import Grader, grade, load_grader
from adacompute.storage.decisions import check_format
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    import pyarrow as pa


def import_samples(
    source: Path,
    run: Path,
    *,
    model: str | None = None,
    grader: str | None = None,
    gold: str | None = None,
) -> dict[str, Any]:
    """Bring recorded samples into a run, graded by the question set ``gold`` where one is given.

    Tidy samples that have no grade are graded by the reference answers that they hold themselves.
    """
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is no directory, so it cannot be a run: name another place")
    place, source = Run(run), locate(source)
    judge = load_grader(grader) if grader else None
    # Hashed before they are read: a gateway may log more in the meantime.
    graded = _has_grades(source, judge, gold)
    read = hash_path(source) if graded else "+".join(map(hash_path, find_logged(source)))
    table, excluded = read_graded(source, judge, gold)
    key = hash_path(Path(gold)) if gold and Path(gold).exists() else gold
    arguments = {"source": read, "model": model, "grader": grader, "gold": key}
    done = place.find_finished("import", arguments, {})
    if done:
        return done.result
    if place.file(SAMPLES).exists() and not place.has_artifact(SAMPLES, table):
        raise DataError(
            f"{run} already holds samples of another source, which may have cost money: "
            "name another directory"
        )
    recorded = encode_samples(table)
    result = {
        "questions": len(recorded.answers),
        "samples": table.num_rows,
        **excluded,
        "unparsed": int(table["answer"].null_count),
        "correct": int(recorded.answers.correct.sum()),
        "model": model or find_model(table),
        "grader": grader,
    }
    place.finish("import", arguments=arguments, inputs={}, outputs={SAMPLES: table}, result=result)
    return result


def read_graded(
    source: Path, grader: Grader | None, gold: str | None
) -> tuple[pa.Table, dict[str, int]]:
    """Read samples and grade those that have no grade; count what a question set leaves out.

    ``gold`` names a question set. Without it, samples are graded by their own reference answers.
    """
    grading = None if grader is None else partial(grade, grader)
    if _has_grades(source, grader, gold):
        return read_source(source, grade=grading), {}
    if grading is None:
        raise ConfigError("a key of reference answers needs --grader, to compare answers with it")
    check_format(source)
    key = None if gold is None else read_question_source(gold)
    found = read_ungraded(source, key, grading)
    return found.samples, {"excluded": found.excluded, "excluded_samples": found.excluded_samples}


def _has_grades(source: Path, grader: Grader | None, gold: str | None) -> bool:
    """Whether samples have grades already, or are logs, which are graded as they are read."""
    return gold is None and not (grader and is_tidy(source) and holds_key(source))


def find_model(table: pa.Table) -> str | None:
    """Return the model of the samples, None where they are of several or do not say."""
    found: list[str | None] = table["model"].unique().to_pylist()
    return found[0] if len(found) == 1 else None
