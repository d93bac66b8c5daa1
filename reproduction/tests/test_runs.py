"""`reproduce` makes what it lists, from runs and from files, and says what it left out."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import AdaComputeError, ConfigError, DataError
from adacompute.datasets.example import find_example
from adacompute.stages.import_samples import import_samples
from reproduction.exhibits import EXHIBITS
from reproduction.runs import (
    find_sources,
    name_sources,
    open_run,
    read_run_data,
    reproduce_runs,
)
from test_support.populations import ARCHETYPES, make_population


def write_samples(path: Path, questions: int = 30, samples: int = 8) -> Path:
    """Write the samples of a population as a file."""
    population, kind = make_population(questions, feature_signal=1.0)
    answers = population.sample(samples, seed=0)
    rows = [
        {
            "question_id": f"q{question}",
            "question": f"Is {question} of kind {kind[question]}?",
            "level": list(ARCHETYPES)[kind[question]],
            "sample": number % samples,
            "answer": str(answer),
            "correct": answer == 0,
        }
        for number, (question, answer) in enumerate(
            zip(answers.question.tolist(), answers.answer.tolist(), strict=True)
        )
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.slow
def test_all_listed_files_exist(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "a set_1.parquet")
    import_samples(source, tmp_path / "run")
    said: list[str] = []
    made = reproduce_runs(
        [source, tmp_path / "run"], out=tmp_path / "out", full_runs=1, progress=said.append
    )
    assert (made["runs"], made["complete"]) == (2, ["a-set_1"])
    paths = [Path(path) for path in made["paths"]]
    assert all(path.stat().st_size > 0 for path in paths)
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == set(paths)
    index = (tmp_path / "out" / "index.md").read_text()
    for path in paths[:-1]:
        assert f"](<{path.relative_to(tmp_path / 'out').as_posix()}>)" in index
    excluded = {one["exhibit"] for one in made["excluded"]}
    for exhibit in EXHIBITS:
        assert (exhibit.caption in index) == (exhibit.name not in excluded)
        kinds = {p.suffix for p in paths if p.stem == exhibit.name and p.parent.name == "a-set_1"}
        assert kinds >= ({".svg", ".pdf"} if exhibit.draw else set())
        assert kinds >= ({".csv", ".md"} if exhibit.is_table else {".csv"})
    with (tmp_path / "out" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    first, second = rows
    assert [first.pop("run"), second.pop("run")] == ["a-set_1", "run"]
    assert first == second  # the same samples, by way of a file or of a run
    assert said[0].startswith("a-set_1 (1 of 2)")
    again = reproduce_runs([source, tmp_path / "run"], out=tmp_path / "again", full_runs=1)
    for path in paths:
        other = tmp_path / "again" / path.relative_to(tmp_path / "out")
        assert other.read_bytes() == path.read_bytes(), path.name
    assert again["comparison"] == made["comparison"]


def test_runs_are_only_compared_with_zero_full_runs(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "some.parquet")
    made = reproduce_runs([source], out=tmp_path / "out", full_runs=0)
    assert {Path(path).name for path in made["paths"]} == {
        *(f"{name}.{kind}" for name in ("comparison",) for kind in KINDS),
        "index.md",
    }
    row = made["comparison"][0]
    assert row["static oracle (paper)"] >= row["mixture"]


KINDS = ("csv", "md")


def test_small_run_is_excluded_with_the_reason(tmp_path: Path) -> None:
    small = write_samples(tmp_path / "small.parquet", questions=4)
    large = write_samples(tmp_path / "large.parquet")
    made = reproduce_runs([small, large], out=tmp_path / "out", full_runs=0)
    (one,) = made["excluded"]
    assert (one["run"], one["exhibit"]) == ("small", "comparison")
    assert "too few" in one["reason"]
    assert "small, comparison: " in (tmp_path / "out" / "index.md").read_text()
    with pytest.raises(DataError, match="4 independent questions"):
        reproduce_runs([small], out=tmp_path / "none", full_runs=0)


def test_directories_are_searched_for_runs_and_files(tmp_path: Path) -> None:
    first = write_samples(tmp_path / "sets" / "a.parquet", 12, 2)
    deep = write_samples(tmp_path / "sets" / "deep" / "b.parquet", 12, 2)
    import_samples(first, tmp_path / "sets" / "run")
    assert find_sources(tmp_path / "sets") == [tmp_path / "sets" / "run", first, deep]
    assert find_sources(tmp_path / "sets" / "run") == [tmp_path / "sets" / "run"]
    assert find_sources(first) == [first]
    (tmp_path / "empty").mkdir()
    assert find_sources(tmp_path / "empty") == [tmp_path / "empty"]


def test_example_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_sources(Path("example")) == [find_example()]
    (tmp_path / "example").mkdir()
    assert find_sources(Path("example")) == [Path("example")]


def test_names_are_unique_and_valid_file_names() -> None:
    named = name_sources([Path("/x/a.parquet"), Path("/y/a.parquet"), Path("/z/b c:d")])
    assert list(named) == ["a", "a-2", "b-c-d"]
    assert list(name_sources([Path("/x/..parquet")])) == ["run"]


@pytest.mark.parametrize("what", ["missing", "empty", "text"])
def test_source_without_samples_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / what
    if what == "empty":
        place.mkdir()
    elif what == "text":
        place.write_text("nothing")
    with pytest.raises(AdaComputeError, match=what):
        reproduce_runs([place], out=tmp_path / "out", full_runs=0)


def test_negative_full_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-1"):
        reproduce_runs([tmp_path], out=tmp_path / "out", full_runs=-1)


def test_temporary_run_of_a_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = write_samples(tmp_path / "a.parquet")
    with open_run(source) as run:
        run_data = read_run_data(run, "a")
        kept: list[Any] = list((tmp_path / "temporary").iterdir())
    assert len(kept) == 1
    assert list((tmp_path / "temporary").iterdir()) == []
    assert set(run_data.bands.names) == set(ARCHETYPES)
    assert (len(run_data), run_data.n_samples, run_data.ids[0]) == (30, 8, "q0")
