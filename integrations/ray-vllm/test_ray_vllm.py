"""Test of the rounds on a real Ray, with a function in place of vLLM, which is too large here.

What vLLM's stage returns is tested on rows of its form. `README.md` says how a run with vLLM ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import pytest
import ray
import ray.data
from adaptive_rounds import Question, Row, answer_in_rounds, make_processor, read_sample

import adacompute as ada


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def make_questions(n: int, budget: float) -> list[Question]:
    policy = ada.load_policy("example")
    texts = [f"What is {i} + {i * i % 97}?" for i in range(n)]
    return [Question(f"q{i}", policy.start(text, budget=budget)) for i, text in enumerate(texts)]


class Upstream:
    """Answers every second question always alike, and the others at random."""

    def __init__(self) -> None:
        self.n_rows = 0

    def __call__(self, rows: ray.data.Dataset) -> ray.data.Dataset:
        """Answer the rows of a round."""
        self.n_rows += rows.count()

        def draw(row: Row) -> Row:
            import random

            number = row["number"]
            answer = number if number % 2 else random.randrange(1000)  # noqa: S311
            return {"number": number, "text": f"The answer is {answer}", "mean_logprob": -0.3}

        return rows.map(draw)


def test_every_question_is_answered_and_the_total_is_kept() -> None:
    upstream = Upstream()
    rows = answer_in_rounds(make_questions(40, 3.0), upstream, 120)
    assert [row["question_id"] for row in rows] == [f"q{i}" for i in range(40)]
    assert upstream.n_rows == sum(row["n_samples"] for row in rows) <= 120
    same = [row["n_samples"] for row in rows[1::2]]
    other = [row["n_samples"] for row in rows[::2]]
    assert sum(same) < sum(other)
    assert all(row["answer"] == str(i) for i, row in enumerate(rows) if i % 2)


def test_a_small_total_stops_questions_and_says_so() -> None:
    upstream = Upstream()
    rows = answer_in_rounds(make_questions(20, 6.0), upstream, 25)
    assert upstream.n_rows == 25
    assert all(row["n_samples"] for row in rows)
    assert "limited" in {row["status"] for row in rows}


def test_the_configuration_of_vllm_is_valid() -> None:
    pytest.importorskip("vllm", reason="needs vLLM, which is installed by hand")
    assert callable(make_processor("model", gpus=1, max_tokens=8))


def test_a_row_of_vllm_is_read_and_a_failed_one_is_an_empty_sample() -> None:
    logprobs = [{5: {"logprob": -0.5}, 7: {"logprob": -1.5}}, {9: {"logprob": -0.1}}]
    row = {"number": 3, "generated_text": "42", "generated_tokens": [5, 9], "logprobs": logprobs}
    assert read_sample(row) == {"number": 3, "text": "42", "mean_logprob": pytest.approx(-0.3)}
    assert read_sample({"number": 4, "__inference_error__": "too long"}) == {
        "number": 4,
        "text": "",
        "mean_logprob": None,
    }
