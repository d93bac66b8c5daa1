from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, DataError, MissingExtra
from adacompute.datasets.logs.inspect_logs import read_inspect_logs
from adacompute.datasets.logs.lm_eval_logs import read_lm_eval_logs
from adacompute.datasets.rows import QUESTION_SCHEMA
from adacompute.datasets.sources import choose_questions, read_question_source, read_source
from adacompute.graders.grader import grade
from adacompute.graders.numeric import NumericGrader

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("ADACOMPUTE_DATA", ROOT.parent / "shared" / "data"))
LOGS = Path(__file__).parents[1] / "data"
SAMPLE = {"question_id": "q", "question": "1 + 1?", "sample": 0, "answer": "2", "correct": True}
GSM8K = {"question": "1 + 1?", "answer": "It is 2.\n#### 2"}
MATH = {"problem": "1 + 1?", "solution": r"\boxed{2}", "level": "Level 1", "type": "Algebra"}
TIDY = {"question_id": "q", "question": "1 + 1?", "gold": "2"}


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_tidy_samples_are_read_in_every_form(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([SAMPLE]), tmp_path / "s.parquet")
    pa.csv.write_csv(pa.Table.from_pylist([SAMPLE]), tmp_path / "s.csv")
    write_lines(tmp_path / "s.jsonl", SAMPLE)
    write_lines(tmp_path / "s.ndjson", SAMPLE)
    tables = [read_source(tmp_path / f"s.{end}") for end in ("parquet", "csv", "jsonl", "ndjson")]
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0]["answer"].to_pylist() == ["2"]


@pytest.mark.parametrize("name", ["inspect", "inspect/sums.eval", "inspect/choices.json"])
def test_logs_of_inspect_are_known_by_what_they_are(name: str) -> None:
    assert read_source(LOGS / name).equals(read_inspect_logs(LOGS / name))


def test_logs_of_the_harness_are_known_by_what_they_are() -> None:
    whole = read_source(str(LOGS / "lm_eval"))
    assert whole.equals(read_lm_eval_logs(LOGS / "lm_eval"))
    for path in (LOGS / "lm_eval").rglob("samples_*.jsonl"):
        assert read_source(path).equals(read_lm_eval_logs(path))


def test_a_grader_is_used_only_where_the_source_does_not_tell(tmp_path: Path) -> None:
    log = next((LOGS / "lm_eval").rglob("samples_sums_2*.jsonl"))
    grading = partial(grade, NumericGrader())
    assert read_source(log, grade=grading).equals(read_source(log))
    alone = shutil.copy(log, tmp_path)
    with pytest.raises(DataError, match="name a grader"):
        read_source(alone)
    assert read_source(alone, grade=grading).num_rows == 40


@pytest.mark.parametrize("end", ["parquet", "jsonl"])
def test_the_questions_of_tidy_samples_can_be_asked_again(tmp_path: Path, end: str) -> None:
    rows = [
        {**SAMPLE, "gold": "2", "question_id": name, "sample": i} for name in "ba" for i in (1, 0)
    ]
    path = tmp_path / f"s.{end}"
    if end == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_lines(path, *rows)
    asked = read_question_source(path)
    assert asked["question_id"].to_pylist() == ["b", "a"]
    assert asked["gold"].to_pylist() == ["2", "2"]
    assert asked.schema.equals(QUESTION_SCHEMA)


@pytest.mark.parametrize("name", ["notes.txt", "log.json", "table.xlsx", "empty"])
def test_what_is_no_source_is_refused_with_the_forms_that_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "empty":
        path.mkdir()
    else:
        path.write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(DataError, match=r"tidy samples .* Inspect .* lm-evaluation-harness"):
        read_source(path)
    with pytest.raises(DataError, match=r"tidy questions .* GSM8K .* MATH .* hf:OWNER/NAME"):
        read_question_source(path)


@pytest.mark.parametrize("read", [read_source, read_question_source])
def test_what_is_not_there_is_refused(tmp_path: Path, read: partial[pa.Table]) -> None:
    with pytest.raises(DataError, match=r"there is no file or directory .*nowhere"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [read_source, read_question_source])
@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.csv", "x.eval"])
def test_what_is_damaged_is_refused_with_the_reason(
    tmp_path: Path, name: str, read: partial[pa.Table]
) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"question_id": "half\xff')
    with pytest.raises(DataError, match=rf"{name} .*(cannot be read|is not UTF-8|no column)"):
        read(path)


@pytest.mark.parametrize("row", [TIDY, GSM8K, MATH])
@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".json"])
def test_question_sets_are_known_by_their_first_record(
    tmp_path: Path, row: dict[str, str], ending: str
) -> None:
    path = tmp_path / f"test{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif ending == ".json" and row is not TIDY:
        path.write_text(json.dumps([row], indent=2), encoding="utf-8")
    else:
        write_lines(path.with_suffix(".jsonl"), row)
        path = path.with_suffix(".jsonl")
    [found] = read_question_source(path).to_pylist()
    assert (found["question"], found["gold"]) == ("1 + 1?", "2")


def test_a_tree_and_a_csv_of_questions_are_known(tmp_path: Path) -> None:
    (tmp_path / "MATH" / "algebra").mkdir(parents=True)
    text = json.dumps(MATH, indent=4)
    (tmp_path / "MATH" / "algebra" / "1.json").write_text(text, encoding="utf-8")
    assert read_question_source(tmp_path / "MATH")["gold"].to_pylist() == ["2"]
    pa.csv.write_csv(pa.Table.from_pylist([TIDY]), tmp_path / "q.csv")
    assert read_question_source(tmp_path / "q.csv")["gold"].to_pylist() == ["2"]


def test_a_log_gives_the_questions_that_it_asked(tmp_path: Path) -> None:
    table = read_question_source(LOGS / "inspect" / "sums.eval")
    assert table.schema.equals(QUESTION_SCHEMA)
    assert table.num_rows == 10
    assert table["gold"].to_pylist()[:3] == ["13", "9", "6"]
    assert table["difficulty"].to_pylist()[:3] == ["add1", "add1", "sub1"]
    log = next((LOGS / "lm_eval").rglob("samples_sums_2*.jsonl"))
    alone = Path(shutil.copy(log, tmp_path))
    assert read_question_source(alone)["gold"].to_pylist() == table["gold"].to_pylist()


@pytest.mark.skipif(not DATA.is_dir(), reason="no recorded data here; see ADACOMPUTE_DATA")
def test_recorded_data_are_read() -> None:
    for path in sorted((DATA / "questions").glob("*.parquet")):
        assert read_question_source(path).num_rows > 0
    path = DATA / "samples" / "arith110__smollm2-135m.parquet"
    assert read_source(path).num_rows == 110 * 32


def test_the_hub_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"this needs huggingface_hub, .*adacompute\[hub\]"):
        read_question_source("hf:openai/gsm8k")


class Hub:
    """What is used of the library: a dataset of some files, or no network at all."""

    def __init__(self, root: Path, *, reachable: bool = True) -> None:
        self.root, self.reachable = root, reachable

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
        functions = {"HfApi": lambda: self, "hf_hub_download": self.download}
        vars(hub).update(functions)
        vars(errors)["HfHubHTTPError"] = ConnectionError
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)

    def list_repo_files(self, name: str, *, repo_type: str) -> list[str]:
        assert repo_type == "dataset"
        self.connect()
        files = (path for path in (self.root / name).rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root / name).as_posix() for path in files)

    def download(self, name: str, file: str, *, repo_type: str) -> str:
        assert repo_type == "dataset"
        self.connect()
        return str(self.root / name / file)

    def connect(self) -> None:
        if not self.reachable:
            raise ConnectionRefusedError("Name or service\nnot known")


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    for name in ("openai/gsm8k/main/test-00000-of-00001.parquet", "a/b/data/test.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([GSM8K]), tmp_path / name)
    write_lines(tmp_path / "a" / "b" / "train.jsonl", GSM8K, GSM8K)
    return Hub(tmp_path)


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("hf:openai/gsm8k", ["gsm8k-test/0"]),
        ("hf:a/b", ["gsm8k-test/0"]),
        ("hf:a/b:train.jsonl", ["gsm8k-train/0", "gsm8k-train/1"]),
    ],
)
def test_a_file_of_the_hub_is_read_as_any_other(
    monkeypatch: pytest.MonkeyPatch, hub: Hub, source: str, ids: list[str]
) -> None:
    hub.install(monkeypatch)
    assert read_question_source(source)["question_id"].to_pylist() == ids


def test_a_dataset_of_several_files_asks_which(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    write_lines(hub.root / "a" / "b" / "test.jsonl", GSM8K)
    hub.install(monkeypatch)
    with pytest.raises(DataError, match=r"hf:a/b:FILE, of data/test\.parquet, test\.jsonl"):
        read_question_source("hf:a/b")


@pytest.mark.parametrize("source", ["hf:openai/gsm8k", "hf:a/b"])
def test_without_a_network_the_hub_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, hub: Hub, source: str
) -> None:
    hub.reachable = False
    hub.install(monkeypatch)
    with pytest.raises(DataError, match=rf"^{source} cannot be downloaded"):
        read_question_source(source)


def questions(*difficulties: str | None) -> pa.Table:
    rows = [{"question_id": f"q{i}", "difficulty": d} for i, d in enumerate(difficulties)]
    return pa.Table.from_pylist(rows, schema=QUESTION_SCHEMA)


LEVELS = st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=30)


@given(LEVELS, st.integers(1, 40), st.integers(0, 2**64), st.randoms(use_true_random=False))
def test_a_choice_depends_on_the_ids_and_the_seed_alone(
    levels: list[str | None], count: int, seed: int, chance: Random
) -> None:
    table = questions(*levels)
    order = list(range(len(levels)))
    chance.shuffle(order)
    for stratify in (False, True):
        choose = partial(choose_questions, stratify=stratify, seed=seed)
        chosen = choose(table, count)
        assert chosen.equals(choose(table.take(pa.array(order)), count))
        larger = choose(table, count + 3)
        assert larger.slice(0, chosen.num_rows).equals(chosen)


@given(LEVELS, st.integers(1, 40), st.integers(0, 2**64))
def test_a_choice_is_as_equal_as_the_difficulties_allow(
    levels: list[str | None], count: int, seed: int
) -> None:
    chosen = choose_questions(questions(*levels), count, stratify=True, seed=seed)
    assert chosen.num_rows == min(count, len(levels))
    ids = chosen["question_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    there, taken = Counter(levels), Counter(chosen["difficulty"].to_pylist())
    most = max(taken.values())
    assert all(taken[level] >= most - 1 or taken[level] == there[level] for level in there)


def test_default_choice_is_a_plain_random_sample() -> None:
    table = questions(*["1"] * 900, *["2"] * 100)
    count = sum(
        choose_questions(table, 100, seed=seed)["difficulty"].to_pylist().count("2")
        for seed in range(20)
    )
    assert 150 < count < 250  # a tenth of 2,000; stratified it would be half


def test_seeds_choose_differently() -> None:
    table = questions(*["1"] * 50)
    choices = {
        tuple(choose_questions(table, 5, seed=s)["question_id"].to_pylist()) for s in range(9)
    }
    assert len(choices) == 9


def test_difficulties_can_be_named() -> None:
    table = questions("1", "1", "2", None, "3")
    chosen = choose_questions(table, 3, difficulties=["1", "3"], seed=0)
    assert sorted(chosen["difficulty"].to_pylist()) == ["1", "1", "3"]
    with pytest.raises(ConfigError, match=r"no difficulty '5'; there are \['1', '2', '3'\]"):
        choose_questions(table, 3, difficulties=["1", "5"], seed=0)
    with pytest.raises(ConfigError, match="1 or more"):
        choose_questions(table, 0, seed=0)
