from __future__ import annotations

import copy
import json
import random
import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.datasets.logs.harness import AnswerRecipe, make_answer_recipe
from adacompute.datasets.logs.lm_eval_logs import find_lm_eval_logs, read_lm_eval_logs
from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.graders.grader import grade
from adacompute.graders.numeric import NumericGrader

LOGS = Path(__file__).parents[1] / "data" / "lm_eval"
[SUMS, EACH] = find_lm_eval_logs(LOGS)
[RESULTS] = LOGS.rglob("results_*.json")
LINES: list[dict[str, Any]] = [
    json.loads(line) for line in SUMS.read_text(encoding="utf-8").splitlines()
]


def write_log(directory: Path, lines: list[Any], *, results: dict[str, Any] | None = None) -> Path:
    path = directory / SUMS.name
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    if results is not None:
        (directory / RESULTS.name).write_text(json.dumps(results), encoding="utf-8")
    return path


def configured(**changes: Any) -> dict[str, Any]:
    """Return the real results with parts of the task's configuration changed."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    results["configs"]["sums"] |= changes
    return results


def with_one_response(**changes: Any) -> list[dict[str, Any]]:
    lines = copy.deepcopy(LINES[:10])
    for line in lines:
        line["resps"] = [line["resps"][0][:1]]
        line.update(changes)
    return lines


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_lm_eval_logs(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_real_log_gives_ten_questions_four_times() -> None:
    table = read_lm_eval_logs(SUMS)
    assert table.schema.equals(SAMPLE_SCHEMA)
    assert table["question_id"].to_pylist() == [f"sums/{i}" for i in range(10) for _ in range(4)]
    assert table["sample"].to_pylist() == [0, 1, 2, 3] * 10
    assert set(table["model"].to_pylist()) == {"smollm2-135m"}
    assert set(table["difficulty"].to_pylist()) == {"add1", "sub1", "mul1", "add2", "mul2"}
    first = table.slice(0, 1).to_pylist()[0]
    assert first["question"] == "What is 7 + 6?"
    assert first["gold"] == "13"
    assert first["completion"] == LINES[0]["resps"][0][0]
    assert first["temperature"] == pytest.approx(0.7)


@pytest.mark.parametrize("path", [SUMS, EACH])
def test_answers_agree_with_the_responses(path: Path) -> None:
    for row in read_lm_eval_logs(path).to_pylist():
        if row["answer"] is None:
            assert "= " not in row["completion"]
        else:
            assert f"= {row['answer']}" in row["completion"]
        assert row["correct"] == (row["answer"] == row["gold"])


def test_accuracies_agree_with_what_the_harness_says() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    first = read_lm_eval_logs(SUMS).to_pylist()[::4]
    assert sum(row["correct"] for row in first) / 10 == results["sums"]["exact_match,score-first"]
    each = read_lm_eval_logs(EACH)["correct"].to_pylist()
    assert sum(each) / 40 == results["sums_each"]["exact_match,each"]


def test_a_directory_gives_the_samples_of_all_its_tasks() -> None:
    whole = read_lm_eval_logs(LOGS)
    assert whole.num_rows == 80
    assert whole.slice(40).equals(read_lm_eval_logs(EACH))


def test_without_the_results_only_answers_to_each_response_can_be_judged(tmp_path: Path) -> None:
    alone = Path(shutil.copy(EACH, tmp_path))
    here = read_lm_eval_logs(EACH).drop_columns(["model"])
    assert read_lm_eval_logs(alone).drop_columns(["model"]).equals(here)
    alone = Path(shutil.copy(SUMS, tmp_path))
    assert "name a grader" in refusal(alone)


def test_a_grader_judges_what_the_log_does_not_tell(tmp_path: Path) -> None:
    table = read_lm_eval_logs(write_log(tmp_path, LINES), grade=partial(grade, NumericGrader()))
    assert table.num_rows == 40
    told = read_lm_eval_logs(SUMS)
    assert sum(table["correct"].to_pylist()) >= sum(told["correct"].to_pylist())


@pytest.mark.parametrize(
    "changes",
    [
        {"process_results": "def process_results(doc, results): ..."},
        {"filter_list": [{"name": "score-first", "filter": [{"function": "custom"}]}]},
        {"filter_list": [{"name": "other", "filter": [{"function": "take_first"}]}]},
        {"filter_list": [{"name": "score-first", "filter": "regex"}]},
        {"filter_list": [{"name": "score-first", "filter": [{"function": "take_first"}]}]},
        {
            "filter_list": [
                {"name": "score-first", "filter": [{"function": "regex", "regex_pattern": "("}]}
            ]
        },
        {"metric_list": [{"metric": "bleu"}]},
        {"metric_list": None},
    ],
)
def test_a_recipe_that_is_not_known_or_disagrees_with_the_log_is_not_used(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = write_log(tmp_path, LINES, results=configured(**changes))
    assert "name a grader" in refusal(path)


def test_a_judgement_that_disagrees_with_the_log_is_not_used(tmp_path: Path) -> None:
    lines = copy.deepcopy(LINES)
    lines[3]["exact_match"] = 1.0 - lines[3]["exact_match"]
    assert "name a grader" in refusal(write_log(tmp_path, lines, results=configured()))


def test_one_response_is_judged_as_the_harness_did(tmp_path: Path) -> None:
    table = read_lm_eval_logs(write_log(tmp_path, with_one_response()))
    assert table.num_rows == 10
    first = read_lm_eval_logs(SUMS).to_pylist()[::4]
    assert table["answer"].to_pylist() == [row["answer"] for row in first]
    assert table["correct"].to_pylist() == [row["correct"] for row in first]


def test_another_metric_counts_where_there_is_no_exact_match(tmp_path: Path) -> None:
    lines = with_one_response(metrics=["math_verify"], math_verify=1, filtered_resps=[["x"]])
    for line in lines:
        del line["exact_match"]
    assert all(read_lm_eval_logs(write_log(tmp_path, lines))["correct"].to_pylist())
    for line in lines:
        del line["math_verify"]
    assert "name a grader" in refusal(write_log(tmp_path, lines))


def test_a_right_response_whose_answer_was_not_read_stands_for_itself(tmp_path: Path) -> None:
    lines = with_one_response(filtered_resps=["[invalid]"], exact_match=1.0)
    table = read_lm_eval_logs(write_log(tmp_path, lines))
    answers = [text.strip() for text in table["completion"].to_pylist()]
    assert table["answer"].to_pylist() == answers


def test_targets_of_gsm8k_lose_their_solution(tmp_path: Path) -> None:
    lines = with_one_response(target="2 * 600 = 1200\n#### 1,200", doc={"problem": "How much?"})
    table = read_lm_eval_logs(write_log(tmp_path, lines))
    assert set(table["gold"].to_pylist()) == {"1200"}
    assert set(table["question"].to_pylist()) == {"How much?"}
    lines = with_one_response(doc={})
    prompts = read_lm_eval_logs(write_log(tmp_path, lines))["question"].to_pylist()
    assert all(prompt.startswith("Question: What is 5 + 3?") for prompt in prompts)


def test_a_file_of_another_name_is_its_own_task(tmp_path: Path) -> None:
    path = write_log(tmp_path, with_one_response()).rename(tmp_path / "mine.jsonl")
    assert read_lm_eval_logs(path)["question_id"].to_pylist()[0] == "mine/0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resps": [[["-1.5", "False"]], [["-2.5", "True"]]]}, "no sampled texts"),
        ({"resps": []}, "no sampled texts"),
        ({"resps": None}, "no sampled texts"),
        ({"doc_id": None}, "has no doc_id"),
    ],
)
def test_a_line_without_samples_is_refused_by_its_number(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = write_log(tmp_path, [LINES[0], LINES[1] | change], results=configured())
    with pytest.raises(DataError, match=f"line 2 of .*{said}"):
        read_lm_eval_logs(path)
    refusal(path)


def test_half_a_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SUMS.name
    path.write_bytes(SUMS.read_bytes()[:-300])
    assert "line 20 of" in (said := refusal(path))
    assert "cannot be read as JSON" in said


def test_half_of_the_results_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, LINES)
    (tmp_path / RESULTS.name).write_bytes(RESULTS.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"results_.*\.json cannot be read as JSON"):
        read_lm_eval_logs(path)


def test_other_files_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "samples_other.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    assert find_lm_eval_logs(tmp_path) == []
    assert "holds no sample log" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("step", "response", "answer"),
    [
        ({"function": "regex"}, "so #### 1,200", "1,200"),
        ({"function": "regex"}, "so 1,200", "[invalid]"),
        ({"function": "regex", "regex_pattern": r"\d+", "group_select": -1}, "1 2 3", "3"),
        ({"function": "regex", "regex_pattern": r"(a)|(b)"}, "xb", "b"),
        ({"function": "regex", "regex_pattern": r"(a)?(b)?x", "fallback": "?"}, "x", "?"),
        ({"function": "remove_whitespace"}, " x ", "x"),
        ({"function": "lowercase"}, "X", "x"),
        ({"function": "uppercase"}, "x", "X"),
        ({"function": "take_first"}, "x", "x"),
    ],
)
def test_steps_read_as_the_harness_does(step: dict[str, Any], response: str, answer: str) -> None:
    assert AnswerRecipe([step]).extract(response) == answer


def test_choosing_and_comparing_follow_the_harness() -> None:
    config = {
        "filter_list": [
            {
                "name": "maj@3",
                "filter": [
                    {"function": "take_first_k", "k": 3},
                    {"function": "lowercase"},
                    {"function": "majority_vote"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [
            {
                "metric": "exact_match",
                "ignore_case": True,
                "ignore_punctuation": True,
                "ignore_numbers": True,
            }
        ],
    }
    recipe = make_answer_recipe(config, "maj@3")
    assert recipe is not None
    assert recipe.select(["B", "a", "A", "b", "b"]) == "a"
    assert recipe.select(["B", "a"]) == "b"
    assert recipe.score("a.1", "A!") == 1.0
    assert recipe.score(["a", "b"], "A") == 0.5


def lose_fields(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.02:
        return chance.choice([None, 7, "text", [], {}, True])
    if isinstance(value, dict):
        kept = (key for key in value if chance.random() < 0.98)
        return {key: lose_fields(value[key], chance) for key in kept}
    if isinstance(value, list):
        return [lose_fields(item, chance) for item in value]
    return value


def outcome(path: Path) -> str:
    """Return the name of a log that could be read, or the sentence in which it was refused."""
    try:
        read_lm_eval_logs(path, grade=partial(grade, NumericGrader()))
    except DataError as error:
        return str(error)
    return str(path)


@given(st.integers(0, 2**32))
def test_a_log_that_lost_fields_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        lines = [lose_fields(line, chance) for line in LINES[:3]]
        path = write_log(Path(directory), lines, results=lose_fields(configured(), chance))
        assert "\n" not in outcome(path)
