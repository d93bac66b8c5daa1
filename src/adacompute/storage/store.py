"""Store: a run directory, one artifact a stage, and its samples as numbers.

    samples.parquet      what was imported or collected, one row a sample
    grades.parquet       what a grader made of it, when it was graded again
    utility.parquet      what each level is worth on each question
    allocation.parquet   the oracle's choice
    evaluation.json      the scores of the policies

Beside each lies its manifest. Strings become numbers here: ids become keys, answers become classes
within their question. It knows nothing of how an artifact is made.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.answers import UNPARSED, Answers, number_classes_by_question
from adacompute.core.errors import DataError
from adacompute.core.types import FloatArray, IntArray, KeyArray
from adacompute.storage.manifest import (
    Manifest,
    hash_bytes,
    hash_file,
    read_manifest,
    write_atomically,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAMPLES, GRADES = "samples.parquet", "grades.parquet"
COMMANDS = {
    "import": "import SOURCE --run {run}",
    "collect": "collect QUESTIONS --run {run}",
    "grade": "grade {run} --grader GRADER",
    "estimate": "estimate {run}",
}
"""How to run the stages whose tables others read."""


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path

    def file(self, name: str) -> Path:
        """Path of an artifact."""
        return self.path / name

    def table(self, name: str, *, stage: str, inputs: Sequence[str] = ()) -> pa.Table:
        """Read a stage's table, or say which command makes it.

        It counts only with a manifest that names it as it is, made from the inputs as they are:
        what a stopped stage left, what was altered since and what is out of date are refused.
        """
        path, command = self.file(name), COMMANDS[stage].format(run=self.path)
        if self.path.is_file():
            raise DataError(
                f"{self.path} is a file, not a run: first 'adacompute import {self.path} --run DIR'"
            )
        if not path.is_file():
            raise DataError(f"{self.path} has no {name}: first run 'adacompute {command}'")
        manifest = self.manifest(stage)
        if manifest is None or manifest.outputs.get(name) != hash_file(path):
            raise DataError(
                f"{path} is not what its stage made when it last finished: "
                f"run 'adacompute {command}' again"
            )
        if manifest.inputs != self.hashes(inputs):
            raise DataError(
                f"{path} was made from other samples or grades: run 'adacompute {command}' again"
            )
        try:
            return pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{path} cannot be read ({reason}): run 'adacompute {command}' again"
            ) from None

    def manifest(self, stage: str) -> Manifest | None:
        """Manifest of a stage, if it finished."""
        return read_manifest(self.file(f"{stage}.manifest.json"))

    def holds(self, name: str, content: pa.Table) -> bool:
        """Whether an artifact is there already, byte for byte."""
        path = self.file(name)
        return path.is_file() and path.read_bytes() == _bytes(content)

    def hashes(self, names: Sequence[str]) -> dict[str, str]:
        """Hashes of those of these artifacts that are there."""
        return {name: hash_file(self.file(name)) for name in names if self.file(name).is_file()}

    def finished(
        self, stage: str, arguments: dict[str, Any], inputs: dict[str, str]
    ) -> Manifest | None:
        """Manifest of a stage that ran with these arguments on inputs of these hashes, if any."""
        manifest = self.manifest(stage)
        if manifest is None or manifest.arguments != _plain(arguments):
            return None
        whole = self.hashes(list(manifest.outputs)) == manifest.outputs
        return manifest if whole and manifest.inputs == inputs else None

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

        ``inputs`` are the hashes from before the stage read them: they may have changed since.
        """
        content = {name: _bytes(output) for name, output in outputs.items()}
        for name, data in content.items():
            write_atomically(self.file(name), data)
        manifest = Manifest(
            stage=stage,
            arguments=_plain(arguments),
            inputs=inputs,
            outputs={name: hash_bytes(data) for name, data in content.items()},
            result=_plain(result),
        )
        write_manifest(self.file(f"{stage}.manifest.json"), manifest)

    def keep(
        self, stage: str, *, arguments: dict[str, Any], names: Sequence[str], result: dict[str, Any]
    ) -> None:
        """Write the manifest of a stage whose artifacts were written as they were made."""
        manifest = Manifest(
            stage=stage,
            arguments=_plain(arguments),
            inputs={},
            outputs=self.hashes(names),
            result=_plain(result),
        )
        write_manifest(self.file(f"{stage}.manifest.json"), manifest)

    @property
    def source(self) -> str:
        """Stage that the samples came from: they were imported or collected."""
        return "collect" if self.file("collect.manifest.json").is_file() else "import"

    def drawn(self) -> pa.Table:
        """Read the samples as they came."""
        return self.table(SAMPLES, stage=self.source)

    def samples(self) -> pa.Table:
        """Read the samples as they were graded last."""
        samples = self.drawn()
        if not self.file(GRADES).is_file():
            return samples
        grades = self.table(GRADES, stage="grade", inputs=[SAMPLES])
        for name in ("answer", "correct"):
            at = samples.column_names.index(name)
            samples = samples.set_column(at, samples.schema.field(name), grades[name])
        return samples


def _bytes(content: pa.Table | dict[str, Any]) -> bytes:
    if isinstance(content, dict):
        return (json.dumps(content, indent=2) + "\n").encode()
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as they come back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
    return plain


def key_strings(values: Sequence[str]) -> KeyArray:
    """Name strings by 64 bits that do not depend on their order or on the process."""
    digests = b"".join(
        hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for value in values
    )
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, eq=False)
class SampleSet:
    """Recorded samples as numbers: one entry a question, samples sorted by question and index."""

    id: list[str]
    text: list[str | None]
    difficulty: list[str | None]
    key: KeyArray
    group: KeyArray
    answers: Answers
    order: IntArray
    columns: pa.Table

    def numbers(self, name: str) -> FloatArray:
        """Return a column of the samples in the order of the answers, NaN where it is null."""
        column = self.columns[name].to_numpy(zero_copy_only=False)
        return np.asarray(column, dtype=np.float64)[self.order]

    def first_samples(self) -> IntArray:
        """Row of each question's first sample in the order of the answers."""
        return self.answers.offsets[:-1]


def encode_samples(table: pa.Table) -> SampleSet:
    """Turn a table of samples into numbers.

    Questions keep the order of their first row; copies of a text share a group, so that folds can
    keep them together; a question without text is a group of its own.
    """
    coded = table["question_id"].combine_chunks().dictionary_encode()
    question = np.asarray(coded.indices, dtype=np.int64)
    names: list[str] = coded.dictionary.to_pylist()
    sample = np.asarray(table["sample"], dtype=np.int64)
    order = np.lexsort((sample, question))
    answer_codes = table["answer"].combine_chunks().dictionary_encode().indices
    answer = np.asarray(answer_codes.fill_null(UNPARSED), dtype=np.int64)[order]
    question = question[order]
    right = np.asarray(table["correct"], dtype=np.bool_)[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(question, minlength=len(names)))])
    answers = Answers(offsets.astype(np.int64), number_classes_by_question(question, answer), right)
    first = pa.array(order[offsets[:-1]])
    text: list[str | None] = table["question"].take(first).to_pylist()
    difficulty: list[str | None] = table["difficulty"].take(first).to_pylist()
    same = [name if t is None else t for name, t in zip(names, text, strict=True)]
    return SampleSet(
        id=names,
        text=text,
        difficulty=difficulty,
        key=key_strings(names),
        group=key_strings(same),
        answers=answers,
        order=order,
        columns=table,
    )
