"""Grade: the stage that grades the samples of a run, for the first time or again.

It grades completions if all samples have one, and recorded answers otherwise. The samples of a
question are graded together, or those of each arm where the run does not pool answers. The samples
do not change: grades are an artifact of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.progress import no_progress
from adacompute.graders.grader import grade, load_grader
from adacompute.options.definition import takes
from adacompute.options.research import GradeOptions
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet, encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.core.types import IntArray


@takes(GradeOptions)
def grade_run(
    run: Path, options: GradeOptions, *, progress: Callable[[str], None] = no_progress
) -> dict[str, Any]:
    """Grade the samples of a run, and return counts."""
    store, grader = Run(run), options.grader
    samples = store.recorded_samples()
    arguments, inputs = {"grader": grader}, store.hashes([SAMPLES])
    finished = store.find_finished("grade", arguments, inputs)
    if finished and not grader.startswith("cmd:"):  # the user's program may have changed
        return finished.result
    recorded = encode_samples(samples, pool_answers=store.pool_answers)
    column = "completion" if samples["completion"].null_count == 0 else "answer"
    answers, correct = _grade_all(
        grader, samples, recorded, column, progress, pool_answers=store.pool_answers
    )
    back = np.argsort(recorded.order)
    table = pa.table(
        {"answer": pa.array(answers, pa.string()), "correct": pa.array(correct, pa.bool_())}
    ).take(pa.array(back))
    before = np.asarray(samples["correct"])
    result = {
        "samples": len(answers),
        "correct": int(sum(correct)),
        "unparsed": answers.count(None),
        "unparsed_share": answers.count(None) / max(1, len(answers)),
        "changed": int((np.asarray(table["correct"]) != before).sum()),
        "from": column,
    }
    store.finish(
        "grade", arguments=arguments, inputs=inputs, outputs={GRADES: table}, result=result
    )
    return result


def _grade_all(
    grader: str,
    samples: pa.Table,
    recorded: SampleSet,
    column: str,
    progress: Callable[[str], None],
    *,
    pool_answers: bool,
) -> tuple[list[str | None], list[bool]]:
    """Return the answer of every sample, and whether it is correct."""
    loaded = load_grader(grader)
    texts: list[str | None] = samples[column].take(pa.array(recorded.order)).to_pylist()
    starts = _group_starts(recorded, pool_answers=pool_answers)
    gold = samples["gold"].take(pa.array(recorded.order[starts])).to_pylist()
    answers: list[str | None] = []
    correct: list[bool] = []
    ends = [*starts[1:].tolist(), len(texts)]
    for i, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        question = int(recorded.answers.question[start])
        name = recorded.id[question]
        progress(f"{question + 1} of {len(recorded.id)} questions")
        try:
            graded = grade(loaded, texts[start:end], gold[i])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        answers += graded.answer
        correct += graded.correct
    return answers, correct


def _group_starts(recorded: SampleSet, *, pool_answers: bool) -> IntArray:
    """Return the first sample of each question, or of each arm of each question."""
    if pool_answers:
        return recorded.first_samples()
    group = recorded.answers.question * len(recorded.arms) + recorded.arm
    return np.flatnonzero(np.diff(group, prepend=-1))
