"""Fixtures: settings of all tests, and a small run whose truth is known.

A folder of tests imports them in its conftest.

Hypothesis tries the same examples on every run and has no deadline, since CI machines are busy.
``pytest --hypothesis-profile=search`` tries more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings

from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.evaluation import experiment
from adacompute.evaluation import run_results as results
from adacompute.evaluation.factories import REGISTERED
from adacompute.stages.import_samples import import_samples

settings.register_profile("adacompute", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=500)
settings.load_profile("adacompute")

ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))
"""Programs that tests start find test_support and reproduction too."""

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the accounts of gateways that tests start out of the user's directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


N_ASSIGNMENTS = experiment.N_ASSIGNMENTS


@pytest.fixture(autouse=True, scope="session")
def one_assignment() -> Iterator[None]:
    """Score on one assignment of questions to folds, which takes a third of the time.

    Tests of the means over several, and the pages of the documentation, use ``all_assignments``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "N_ASSIGNMENTS", 1)
        yield


@pytest.fixture
def all_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score on as many assignments of questions to folds as users get."""
    monkeypatch.setattr(experiment, "N_ASSIGNMENTS", N_ASSIGNMENTS)


@pytest.fixture
def own_policies() -> Iterator[None]:
    """Forget the policies that a test registers when it ends."""
    with mock.patch.dict(REGISTERED):
        yield


@pytest.fixture
def shared_results(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep results of all runs in one place, so that tests share what is computed on samples.

    It is for tests of commands in this process, and not for those of the results themselves.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    monkeypatch.setattr(results, "DIRECTORY", str(shared / "kept"))  # absolute, so in no run


KINDS: dict[str, list[str | None]] = {
    "easy": ["7"] * 8,
    "fair": ["7", "8", "7", "7", "8", "7", "8", "7"],
    "slow": ["9", "7", None, "7", "8", "7", None, "9"],
    "hopeless": ["8", "9", "8", None, "8", "6", "8", "8"],
}
"""Answers of the four kinds of questions; 7 is right."""


def _sample(question: int, kind: str, number: int, answer: str | None) -> dict[str, Any]:
    said = "I cannot tell." if answer is None else f"Adding up, the answer is {answer}."
    return {
        "question_id": f"{kind}/{question}",
        "question": f"What is {question} and some more, the {kind} way?"
        + " Think." * (question % 5),
        "gold": "7",
        "level": kind,
        "sample": number,
        "answer": answer,
        "correct": answer == "7",
        "completion": said,
        "completion_chars": 10 + question + number,
        "completion_tokens": 2 + number,
        "mean_logprob": -0.1 * (number + 1) - (0.05 if answer != "7" else 0.0),
        "latency_s": 0.5 + ((question + 3 * number) % 7) / 4,
    }


@pytest.fixture(scope="session")
def rows() -> Rows:
    """Return 24 questions with 8 samples each, six of every kind."""
    return [
        _sample(question, kind, number, answer)
        for question in range(6)
        for kind, answers in KINDS.items()
        for number, answer in enumerate(answers)
    ]


@pytest.fixture(scope="session")
def write() -> Callable[[Path, Rows], Path]:
    """Return how rows are written as a tidy file."""
    schema = pa.schema([field.with_nullable(True) for field in SAMPLE_SCHEMA])
    schema = schema.set(schema.get_field_index("difficulty"), pa.field("level", pa.string()))

    def write_rows(path: Path, rows: Rows) -> Path:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return path

    return write_rows


@pytest.fixture
def source(tmp_path: Path, rows: Rows, write: Callable[[Path, Rows], Path]) -> Path:
    """Return the file of the population."""
    return write(tmp_path / "source.parquet", rows)


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Path:
    """Return a run into which the population was imported."""
    place = tmp_path / "run"
    import_samples(source, place)
    return place


@pytest.fixture
def make_run(tmp_path: Path, write: Callable[[Path, Rows], Path]) -> Callable[[Rows], Path]:
    """Return how a run is made of any rows."""

    def make(rows: Rows) -> Path:
        place = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        import_samples(write(tmp_path / f"{place.name}.parquet", rows), place)
        return place

    return make
