"""Fixtures that call the command line, and small runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.cli import main as cli
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run

Rows = list[dict[str, Any]]


class Called(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=_refuse_constant)

    def refused(self, code: int = 1) -> str:
        """Return the one sentence with which the command failed."""
        assert (self.code, self.out) == (code, ""), self
        (sentence,) = self.err.strip().splitlines()
        assert sentence.startswith("adacompute: ")
        assert sentence.isprintable()
        return sentence

    def misused(self) -> str:
        """Return the message of a usage error."""
        assert (self.code, self.out) == (2, ""), self
        assert "Traceback" not in self.err
        return self.err


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Call = Callable[..., Called]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """Return how the command line is called in this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["adacompute", *_split(arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Called(ended.value.code, *capsys.readouterr())

    return run


def _split(arguments: tuple[object, ...]) -> list[str]:
    """Return the words of a call; the first argument may be a command of two words."""
    words = list(map(str, arguments))
    return [*" ".join(words[:1]).split(), *words[1:]]


def _execute(*arguments: object, before: str = "", **environment: str) -> Called:
    """Call the command line in a process of its own, after some lines of Python."""
    code = f"import sys\n{before}\nfrom adacompute.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *_split(arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    return Called(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def execute() -> Call:
    """Return how the command line is called as a process."""
    return _execute


def _population(questions: int = 12, samples: int = 4, **columns: Any) -> Rows:
    """Return samples of questions of which a third each is easy, fair and hopeless."""
    kinds = ["7777", "7897", "8989"]
    return [
        {
            "question_id": f"q{question}",
            "question": f"What is {question} and {question}?",
            "gold": "7",
            "sample": number,
            "answer": kinds[question % 3][number % 4],
            "correct": kinds[question % 3][number % 4] == "7",
            "completion_chars": 10 + number,
            "completion_tokens": 3 + number,
            "mean_logprob": -0.1 * number,
            "latency_s": 1.0 + number / 4,
            **columns,
        }
        for question in range(questions)
        for number in range(samples)
    ]


def _write(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def population() -> Callable[..., Rows]:
    """Return how small populations are made."""
    return _population


@pytest.fixture
def write_samples() -> Callable[[Path, Rows], Path]:
    """Return how samples are written."""
    return _write


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return _write(tmp_path / "source.parquet", _population())


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Path:
    """Return a run that was imported."""
    place = tmp_path / "run"
    import_samples(source, place)
    return place


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is made in passing where pytest clears it away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run that is large enough to calibrate on, and a bundle trained on it."""
    place = tmp_path_factory.mktemp("trained")
    import_samples(_write(place / "many.parquet", _population(45)), place / "run")
    train_run(place / "run", policy="mixture", out=place / "bundle", levels=(1, 2))
    return place / "run", place / "bundle"
