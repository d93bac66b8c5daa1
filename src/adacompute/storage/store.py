"""Store: a run directory with one artifact per stage, and its samples encoded as integers.

    samples.parquet      imported or collected samples, one row per sample
    evaluation.json      scores of the policies
    report.json          content of the page

Each artifact has a manifest beside it. Encoding turns question ids into 64-bit keys, answers into
class numbers within their question, and the names of arms into codes. This module knows nothing of
how an artifact is made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.answers import UNPARSED, Answers, number_classes_by_question
from adacompute.core.errors import DataError
from adacompute.core.question_groups import group_questions
from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray, hash_strings
from adacompute.storage.manifest import (
    Manifest,
    hash_bytes,
    hash_file,
    read_manifest,
    write_manifest,
)
from adacompute.storage.regular_files import check_regular, read_table, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAMPLES = "samples.parquet"
COMMANDS = {
    "import": "fit SOURCE --run {run} --out DIR",
    "collect": "collect QUESTIONS --run {run}",
}
"""Commands that make the samples of a run, for error messages."""

DEFAULT_ARM = "default"
"""Name of the arm of samples that record neither an arm nor a model."""


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path

    def file(self, name: str) -> Path:
        """Path of an artifact; DataError if it is a symbolic link, which leaves the directory."""
        return check_regular(self.path / name)

    def check_samples(self) -> Path:
        """Return the path of the samples.

        DataError, naming the command to run, if there are none or they were altered.
        """
        stage, path = self.source, self.file(SAMPLES)
        command = COMMANDS[stage].format(run=self.path)
        if self.path.is_file():
            raise DataError(
                f"{self.path} is a file, not a run: first 'adacompute fit {self.path} --out DIR', "
                "then use DIR"
            )
        if not path.is_file():
            raise DataError(f"{self.path} has no {SAMPLES}: first run 'adacompute {command}'")
        manifest = self.manifest(stage)
        if manifest is None or manifest.outputs.get(SAMPLES) != hash_file(path):
            raise DataError(
                f"{path} was altered, or its stage did not finish: run 'adacompute {command}' again"
            )
        return path

    def manifest(self, stage: str) -> Manifest | None:
        """Manifest of a stage; None if it has not finished."""
        return read_manifest(self.file(f"{stage}.manifest.json"))

    def has_artifact(self, name: str, content: pa.Table) -> bool:
        """Whether an artifact exists with exactly this content."""
        path = self.file(name)
        return path.is_file() and path.read_bytes() == _bytes(content)

    def hashes(self, names: Sequence[str]) -> dict[str, str]:
        """Hashes of these artifacts; absent ones are left out."""
        return {name: hash_file(self.file(name)) for name in names if self.file(name).is_file()}

    def find_finished(
        self, stage: str, arguments: dict[str, Any], inputs: dict[str, str]
    ) -> Manifest | None:
        """Manifest of a stage that finished with these arguments and input hashes, if it did."""
        manifest = self.manifest(stage)
        if manifest is None or manifest.arguments != _to_json(arguments):
            return None
        is_complete = self.hashes(list(manifest.outputs)) == manifest.outputs
        return manifest if is_complete and manifest.inputs == inputs else None

    def finish(
        self,
        stage: str,
        *,
        arguments: dict[str, Any],
        inputs: dict[str, str],
        outputs: dict[str, pa.Table | dict[str, Any]],
        result: dict[str, Any],
    ) -> None:
        """Write the artifacts of a stage, and then its manifest.

        ``inputs`` are hashes taken before the stage read the inputs, which may change meanwhile.
        """
        content = {name: _bytes(output) for name, output in outputs.items()}
        for name, data in content.items():
            write_atomically(self.file(name), data)
        hashes = {name: hash_bytes(data) for name, data in content.items()}
        self._write_manifest(stage, arguments, inputs, hashes, result)

    def finish_written(
        self,
        stage: str,
        *,
        arguments: dict[str, Any],
        names: Sequence[str],
        result: dict[str, Any],
    ) -> None:
        """Write the manifest of a stage that has already written its artifacts."""
        self._write_manifest(stage, arguments, {}, self.hashes(names), result)

    def _write_manifest(
        self,
        stage: str,
        arguments: dict[str, Any],
        inputs: dict[str, str],
        outputs: dict[str, str],
        result: dict[str, Any],
    ) -> None:
        manifest = Manifest(stage, _to_json(arguments), inputs, outputs, _to_json(result))
        write_manifest(self.file(f"{stage}.manifest.json"), manifest)

    @property
    def source(self) -> str:
        """Stage that made the samples: ``import`` or ``collect``."""
        return "collect" if self.file("collect.manifest.json").is_file() else "import"

    def recorded_samples(self) -> pa.Table:
        """Read the samples with their recorded answers and grades."""
        path = self.check_samples()
        try:
            return read_table(path)
        except DataError as error:
            command = COMMANDS[self.source].format(run=self.path)
            raise DataError(f"{error}: run 'adacompute {command}' again") from None

    def samples(self, *, need_grades: bool = True) -> pa.Table:
        """Read the samples; DataError if they have no grades and those are needed."""
        samples = self.recorded_samples()
        return self.check_grades(samples) if need_grades else samples

    def check_grades(self, samples: pa.Table) -> pa.Table:
        """Return samples of the run; DataError if they have no grades."""
        if "correct" in samples.column_names and samples["correct"].null_count:
            raise DataError(
                f"the samples of {self.path} have no grades, which this needs: fit them with "
                "reference answers (--gold and --grader) into another directory; without grades, "
                "'adacompute fit SOURCE --today N' says what you save"
            )
        return samples

    @property
    def is_graded(self) -> bool:
        """Whether the samples have grades."""
        manifest = self.manifest(self.source)
        return manifest is None or bool(manifest.result.get("graded", True))

    def encoded_samples(self, *, need_grades: bool = True) -> SampleSet:
        """Read the samples as arrays."""
        return encode_samples(self.samples(need_grades=need_grades))


def hash_table(table: pa.Table) -> str:
    """Hash a table as the file that it would be in a run."""
    return hash_bytes(_bytes(table))


def _bytes(content: pa.Table | dict[str, Any]) -> bytes:
    if isinstance(content, dict):
        return (json.dumps(content, indent=2) + "\n").encode()
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _to_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as they would be read back from JSON."""
    parsed: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
    return parsed


@dataclass(frozen=True, eq=False)
class SampleSet:
    """Recorded samples as arrays: one entry per question, samples sorted by question, arm, number.

    ``group_name`` is the group that the samples of a question record, if they do. ``order`` gives
    the row of ``columns`` for each sample. ``arms`` are the names of the arms in the order of their
    first rows, and ``arm`` is the index into them of each sample. ``subsample_of`` is the number of
    questions that these were chosen from; None if they are all.
    """

    id: list[str]
    text: list[str | None]
    difficulty: list[str | None]
    key: KeyArray
    group_name: list[str | None]
    answers: Answers
    order: IntArray
    columns: pa.Table
    arms: tuple[str, ...]
    arm: IntArray
    subsample_of: int | None = None

    def column(self, name: str) -> FloatArray:
        """A numeric column in the order of the answers, NaN where it is null or not recorded."""
        if name not in self.columns.column_names:
            return np.full(len(self.order), np.nan)
        column = self.columns[name].to_numpy(zero_copy_only=False)
        return np.asarray(column, dtype=np.float64)[self.order]

    @cached_property
    def group(self) -> KeyArray:
        """Group of each question, equal for copies; it is found when it is first needed."""
        return group_questions(self.text, self.id, self.group_name)

    @property
    def n_groups(self) -> int:
        """Number of independent questions: copies count once."""
        return len(np.unique(self.group))

    def find_seen(self, other: SampleSet) -> BoolArray:
        """Return which questions are in another set, or copies of one that is."""
        group = group_questions(
            [*self.text, *other.text],
            [*self.id, *other.id],
            [*self.group_name, *other.group_name],
        )
        return np.isin(group[: len(self.id)], group[len(self.id) :])


def name_arms(table: pa.Table) -> pa.Array:
    """Return the arm of each sample; a null arm is named by its model, or else "default"."""
    names = [table[name] for name in ("arm", "model") if name in table.column_names]
    default = pa.array([DEFAULT_ARM] * table.num_rows, pa.string())
    return pc.coalesce(*(name.combine_chunks() for name in names), default)


def encode_samples(table: pa.Table) -> SampleSet:
    """Encode a table of samples as arrays.

    Questions keep the order of their first row. Copies of a question share a group, so that folds
    can keep them together: see ``core.question_groups``. A grade that is null is false here:
    ``Run`` gives such samples only to those who need no grades.
    """
    encoded = table["question_id"].combine_chunks().dictionary_encode()
    question = np.asarray(encoded.indices, dtype=np.int64)
    ids: list[str] = encoded.dictionary.to_pylist()
    sample = np.asarray(table["sample"], dtype=np.int64)
    arm_names = name_arms(table).dictionary_encode()
    arm = np.asarray(arm_names.indices, dtype=np.int64)
    order = np.lexsort((sample, arm, question))
    answer_codes = table["answer"].combine_chunks().dictionary_encode().indices
    answer = np.asarray(answer_codes.fill_null(UNPARSED), dtype=np.int64)[order]
    question, arm = question[order], arm[order]
    correct = np.asarray(table["correct"].fill_null(False), dtype=np.bool_)[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(question, minlength=len(ids)))])
    classes = number_classes_by_question(question, answer)
    answers = Answers(offsets.astype(np.int64), classes, correct)
    first = pa.array(order[offsets[:-1]])
    text: list[str | None] = table["question"].take(first).to_pylist()
    difficulty: list[str | None] = table["difficulty"].take(first).to_pylist()
    return SampleSet(
        id=ids,
        text=text,
        difficulty=difficulty,
        key=hash_strings(ids),
        group_name=_read_group_names(table, ids, question, order),
        answers=answers,
        order=order,
        columns=table,
        arms=tuple(arm_names.dictionary.to_pylist()),
        arm=arm,
    )


def _read_group_names(
    table: pa.Table, ids: list[str], question: IntArray, order: IntArray
) -> list[str | None]:
    """Return the group that is recorded for each question; DataError if its samples disagree."""
    if "group" not in table.column_names:
        return [None] * len(ids)
    encoded = table["group"].combine_chunks().dictionary_encode()
    code = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)[order]
    first = code[np.searchsorted(question, np.arange(len(ids)))]
    names: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    if len(differs := np.flatnonzero(code != first[question])):
        row = int(differs[0])
        found = f"{names[first[question[row]]]!r} and {names[code[row]]!r}"
        raise DataError(
            f"question {ids[question[row]]!r} has samples with the groups {found}: give all "
            "samples of a question the same group, or none"
        )
    return [names[i] for i in first.tolist()]
