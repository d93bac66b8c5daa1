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
from adacompute.graders.grader import Graded, grade, load
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import SAMPLES, Run, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    key: str | None = None
    left_out: dict[str, int] = {}
    if gold is None and not (grader and is_tidy(source) and holds_key(source)):
        table = read_source(source, grade=_grading(grader))
        read = hash_path(source)
    else:
        read = "+".join(map(hash_path, find_logged(source)))  # before more is logged
        table, left_out = _read_ungraded(source, gold, grader)
        key = hash_path(Path(gold)) if gold and Path(gold).exists() else gold
    arguments = {"source": read, "model": model, "grader": grader, "gold": key}
    done = place.finished("import", arguments, {})
    if done:
        return done.result
    if place.file(SAMPLES).exists() and not place.holds(SAMPLES, table):
        raise DataError(
            f"{run} already holds samples of another source, which may have cost money: "
            "name another directory"
        )
    recorded = encode_samples(table)
    result = {
        "questions": len(recorded.answers),
        "samples": table.num_rows,
        **left_out,
        "unreadable": int(table["answer"].null_count),
        "correct": int(recorded.answers.correct.sum()),
        "model": model or _only(table["model"]),
        "grader": grader,
    }
    place.finish("import", arguments=arguments, inputs={}, outputs={SAMPLES: table}, result=result)
    return result


def _read_ungraded(
    source: Path, gold: str | None, grader: str | None
) -> tuple[pa.Table, dict[str, int]]:
    """Grade samples by a key, or by their own; how many questions and samples it leaves out."""
    if grader is None:
        raise ConfigError("a key of reference answers needs --grader, to compare answers with it")
    key = None if gold is None else read_question_source(gold)
    found = read_ungraded(source, key, partial(grade, load(grader)))
    left_out = {"left_out": found.left_out, "left_out_samples": found.left_out_samples}
    return found.samples, left_out


def _only(names: pa.ChunkedArray) -> str | None:
    """Return the one name that all rows have."""
    found: list[str | None] = names.unique().to_pylist()
    return found[0] if len(found) == 1 else None


def _grading(grader: str | None) -> Callable[[Sequence[str | None], str | None], Graded] | None:
    """How to grade what a log does not say is right."""
    return None if grader is None else partial(grade, load(grader))
