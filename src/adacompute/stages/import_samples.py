"""Import: the stage that brings recorded samples into a run.

Samples come from a file, from logs, or from the example set of the package; or from one of these
per arm. Samples without grades are graded by a question set, or by their own reference answers; a
run without any grades is made only where that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.example import find_grader
from adacompute.datasets.layout import report
from adacompute.datasets.records import Problems
from adacompute.datasets.rows import (
    SAMPLE_SCHEMA,
    UNGRADED,
    RecordedRows,
    check_samples,
    finish_samples,
    read_rows,
)
from adacompute.datasets.sources import (
    is_tidy_file,
    read_question_source,
    read_source,
    resolve_source,
)
from adacompute.datasets.ungraded import (
    GradedSamples,
    find_answers,
    grade_rows,
)
from adacompute.graders.grader import Grader, canonicalise, grade, load_grader
from adacompute.options.definition import takes
from adacompute.storage.decisions import check_format, find_files, has_decisions, read_today
from adacompute.storage.manifest import hash_path
from adacompute.storage.store import SAMPLES, Run, encode_samples, name_arms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.storage.store import SampleSet


MIN_TODAY = 100
"""Requests answered as today that a decision log must hold to be read."""

GRADES_IN_NAME = "correct"
"""A column with this in its name probably holds grades."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """How samples are read and graded; ``arms`` names a source for each arm."""

    arms: Mapping[str, str | Path] | None = None
    columns: Mapping[str, str] | None = None
    grader: str | None = None
    gold: str | None = None
    model: str | None = None


@takes(ImportOptions)
def import_samples(
    source: Path | None, run: Path, options: ImportOptions, *, allow_ungraded: bool = False
) -> dict[str, Any]:
    """Import recorded samples into a run, and return counts.

    They come from ``source``, or from one source for each name in ``arms``. With ``gold`` they are
    graded by that question set. Otherwise tidy samples without grades are graded by their own
    reference answers. An answer that is graded both correct and wrong within one question is
    refused.
    ``allow_ungraded`` accepts a source without grades and reference answers.
    """
    arms, grader, gold = options.arms, options.grader, options.gold
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is not a directory, so it cannot be a run: choose another path")
    store, sources = Run(run), _resolve_sources(source, arms)
    if grader is None and source is not None:
        grader = find_grader(sources[None])
    loaded = load_grader(grader) if grader else None
    # Hashed before they are read: a gateway may log more in the meantime.
    hashes = {name: _hash_source(path) for name, path in sources.items()}
    graded = read_arms(
        sources, loaded, gold, columns=options.columns, allow_ungraded=allow_ungraded
    )
    gold_hash = hash_path(Path(gold)) if gold and Path(gold).exists() else gold
    arguments: dict[str, Any] = {"model": options.model, "grader": grader, "gold": gold_hash}
    arguments["source"] = hashes if arms else hashes[None]
    arguments |= {"columns": dict(options.columns)} if options.columns else {}
    finished = store.find_finished("import", arguments, {})
    if finished:
        return finished.result
    _check_run(store, graded.samples)
    recorded = encode_samples(graded.samples)
    if grader is not None or graded.samples["correct"].null_count:
        check_parsed(recorded)
    check_grades(recorded)
    named = {"model": options.model or find_model(graded.samples), "grader": grader}
    result: dict[str, Any] = {**_count(recorded), **_count_excluded(graded), **named}
    result |= {"arms": _count_arms(recorded)}
    outputs = {SAMPLES: graded.samples}
    store.finish("import", arguments=arguments, inputs={}, outputs=outputs, result=result)
    return result


def _resolve_sources(
    source: Path | None, arms: Mapping[str, str | Path] | None
) -> dict[str | None, Path]:
    """Return the path of each arm; the one of None is a source of its own."""
    if (source is None) == (not arms):
        raise ConfigError(
            "samples come from one source or from arms: give SOURCE, or --arm NAME=FILE for every "
            "arm, and not both"
        )
    if source is not None:
        return {None: resolve_source(source)}
    return {name: resolve_source(Path(path)) for name, path in (arms or {}).items()}


def _hash_source(source: Path) -> str:
    """Return the hash of a source; of a gateway's log, of its files."""
    files = find_files(source) if has_decisions(source) else [source]
    return "+".join(map(hash_path, files))


def _check_run(store: Run, table: pa.Table) -> None:
    """Refuse a run that holds other samples."""
    if store.file(SAMPLES).exists() and not store.has_artifact(SAMPLES, table):
        raise DataError(
            f"{store.path} already holds samples of another source, which may have cost money: "
            "choose another directory, or delete this one if its samples were only imported"
        )


def _count_excluded(graded: GradedSamples) -> dict[str, int]:
    """Count the questions without a reference answer, if samples were graded by such answers."""
    if graded.excluded is None:
        return {}
    n_samples = sum(graded.excluded.values())
    return {"excluded": len(graded.excluded), "excluded_samples": n_samples}


def _count_arms(recorded: SampleSet) -> list[dict[str, Any]]:
    """Count the samples of each arm, on the questions that it has."""
    counts = []
    for code, name in enumerate(recorded.arms):
        own = recorded.answers.keep(recorded.arm == code)
        n_samples = own.n_samples[own.n_samples > 0]
        counts.append(
            {
                "arm": name,
                "questions": len(n_samples),
                "samples": int(n_samples.sum()),
                "min_samples": int(n_samples.min()),
                "max_samples": int(n_samples.max()),
                "unparsed": int((own.answer == UNPARSED).sum()),
            }
        )
    return counts


def _count(recorded: SampleSet) -> dict[str, int | None]:
    """Count questions and samples, and what may surprise: unequal numbers and missing texts."""
    answers, has_grades = recorded.answers, not recorded.columns["correct"].null_count
    return {
        "questions": len(answers),
        "independent_questions": recorded.n_groups,
        "samples": len(answers.answer),
        "min_samples": int(answers.n_samples.min(initial=len(answers.answer))),
        "max_samples": int(answers.n_samples.max(initial=0)),
        "without_text": sum(text is None for text in recorded.text),
        "unparsed": int((answers.answer == UNPARSED).sum()),
        "correct": int(answers.correct.sum()) if has_grades else None,
        **({} if has_grades else {"graded": False}),
    }


def check_parsed(recorded: SampleSet) -> None:
    """Refuse samples of which not one has an answer: a column has probably another name."""
    answer = recorded.answers.answer
    if len(answer) and not (answer != UNPARSED).any():
        raise DataError(
            f"none of {len(answer)} samples has an answer: does the grader fit them, and is the "
            "column of their texts read (--columns completion=COLUMN or answer=COLUMN)?"
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
            "wrong: grade them again, or write the answers apart"
        )


def read_arms(
    sources: Mapping[str | None, Path],
    grader: Grader | None,
    gold: str | None,
    *,
    columns: Mapping[str, str] | None = None,
    allow_ungraded: bool = False,
) -> GradedSamples:
    """Read the samples of each arm into one table, graded where they have no grades.

    The source of None keeps the arms that it records. A grader writes equal answers of several
    arms alike. With ``allow_ungraded``, samples may have no grades.
    """
    tables: list[pa.Table] = []
    excluded: dict[str, int] | None = None
    for name, path in sources.items():
        graded = read_graded(path, grader, gold, columns=columns, allow_ungraded=allow_ungraded)
        tables.append(graded.samples if name is None else _set_arm(graded.samples, name))
        if graded.excluded is not None:
            excluded = {} if excluded is None else excluded
            for question, count in graded.excluded.items():
                excluded[question] = excluded.get(question, 0) + count
    table = tables[0]
    if None not in sources:
        table = check_samples(
            pa.concat_tables(tables, promote_options="permissive"),
            " and ".join(map(str, sources.values())),
        )
    return GradedSamples(pool_arms(table, grader), excluded)


def _set_arm(table: pa.Table, name: str) -> pa.Table:
    """Return samples that all belong to one arm."""
    index = SAMPLE_SCHEMA.get_field_index("arm")
    arm = pa.array([name] * table.num_rows, pa.string())
    return table.set_column(index, SAMPLE_SCHEMA.field(index), arm)


def pool_arms(table: pa.Table, grader: Grader | None) -> pa.Table:
    """Write equal answers of several arms alike, and grade them where there is a gold answer.

    Samples of one arm, and all samples without a grader, are returned unchanged.
    """
    if grader is None or len(name_arms(table).unique()) == 1:
        return table
    answer, correct = table["answer"].to_pylist(), table["correct"].to_pylist()
    gold = table["gold"].to_pylist()
    questions: dict[str, list[int]] = {}
    for row, name in enumerate(table["question_id"].to_pylist()):
        questions.setdefault(name, []).append(row)
    for name, rows in questions.items():
        own = [answer[row] for row in rows]
        reference = next((gold[row] for row in rows if gold[row] is not None), None)
        try:
            grades = None if reference is None else grade(grader, own, reference)
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        written = canonicalise(grader, own) if grades is None else grades.answer
        for i, row in enumerate(rows):
            is_correct = correct[row] if grades is None else grades.correct[i]
            answer[row], correct[row] = written[i], is_correct and written[i] is not None
    for name, values in (("answer", answer), ("correct", correct)):
        index = SAMPLE_SCHEMA.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(values, field.type))
    return table


def read_graded(
    source: Path | pa.Table,
    grader: Grader | None,
    gold: str | None,
    *,
    columns: Mapping[str, str] | None = None,
    allow_ungraded: bool = False,
) -> GradedSamples:
    """Read samples and grade those without grades; count what the question set excludes.

    ``gold`` names a question set. Without it, samples are graded by their own reference answers.
    """
    grading = None if grader is None else partial(grade, grader)
    if isinstance(source, Path):
        is_log = source.is_dir() and has_decisions(source)
        if not is_log and not is_tidy_file(source):
            return GradedSamples(read_source(source, grade=grading))
        check_format(source)
        rows = _read_log(source, columns) if is_log else read_rows(source, UNGRADED, columns)
    else:
        rows = read_rows(source, UNGRADED, columns)
    has_grades, has_gold = (
        rows.table[name].null_count < len(rows.table) for name in ("correct", "gold")
    )
    if gold is not None or (has_gold and not has_grades and grading is not None):
        if grading is None:
            raise ConfigError(
                "reference answers need a grader to compare answers with them: pass grader= or "
                "--grader"
            )
        key = None if gold is None else read_question_source(gold)
        return grade_rows(rows, key, grading)
    if not has_grades and allow_ungraded:
        _check_similar(rows)
    if not has_grades or rows.table["answer"].null_count == len(rows.table):
        rows = _find_answers(rows, grader)
    return GradedSamples(finish_samples(rows, may_lack_grades=allow_ungraded))


def _read_log(log: Path, columns: Mapping[str, str] | None) -> RecordedRows:
    """Read the requests of a gateway's log that were answered as today: all of today's samples."""
    samples, n_kept, n_logged = read_today(log)
    if n_kept < MIN_TODAY:
        raise DataError(
            f"{log} has {n_kept} requests that were answered as today, of {n_logged}, and at least "
            f"{MIN_TODAY} are needed: set today_share of the model, and wait"
        )
    report(log, [f"the {n_kept} of {n_logged} requests that were answered as today"], [])
    rows = read_rows(samples, UNGRADED, columns)
    rows.problems.check()
    return rows._replace(problems=Problems(log))


def _find_answers(rows: RecordedRows, grader: Grader | None) -> RecordedRows:
    """Return samples with the answers that the grader finds in their texts."""
    if grader is not None:
        return find_answers(rows, partial(canonicalise, grader))
    table = rows.table
    is_unparsed = "answer" in rows.layout.columns and table["correct"].null_count < len(table)
    if (
        not is_unparsed
        and table["answer"].null_count == len(table) > table["completion"].null_count
    ):
        rows.problems.add(
            "there are completions and no answers: give --grader (grader=) numeric, math, choice, "
            "exact or cmd:COMMAND, to find the answers in them, or --columns answer=COLUMN if they "
            "are answers",
            "answer",
        )
    return rows


def _check_similar(rows: RecordedRows) -> None:
    """Refuse samples without grades that have another column whose name says that it holds some."""
    if similar := [name for name in sorted(rows.problems.names) if GRADES_IN_NAME in name.lower()]:
        raise DataError(
            f"{rows.problems.source} has no grades in a column 'correct', but a column "
            f"{similar[0]!r}: give --columns correct={similar[0]} (columns= in Python), or remove "
            "it if these are no grades"
        )


def find_model(table: pa.Table) -> str | None:
    """Return the model of the samples; None if there are several, or none is recorded."""
    found: list[str | None] = table["model"].unique().to_pylist()
    return found[0] if len(found) == 1 else None
