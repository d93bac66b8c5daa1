"""How sure answers are: what the gateway says, what it does not send, and what clients grade."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai

from adacompute.cli.results import print_graded_log
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.evidence import measure_evidence
from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.correctness import Correctness, Curve, Ranking
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.sequential.description import VOTE_SHARE, width
from adacompute.policies.uniform import FixedRule
from adacompute.stages.research.grade_log import grade_log
from adacompute.storage.decisions import read_decisions
from adacompute.storage.grades import Grade, append_grade, read_grades
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply

JSON = [("Content-Type", "application/json")]
PRICE, QUESTION = 0.1, [{"role": "user", "content": "2 + 2?"}]
AGREED, SPLIT = ("It is 4", "4.0", "= 4"), ("4", "5", "6")


def save(
    path: Path, *, threshold: float | None = 0.8, prices: tuple[float, float] = (0.05, 0.2)
) -> Path:
    """Save a policy of three samples whose answers are as likely right as they agree."""
    size = width(1) + 1
    weights = np.zeros(size + 1)
    weights[1 + VOTE_SHARE] = 1.0
    ranking = Ranking(np.zeros(size), np.ones(size), weights, 0)
    curve = Curve((0.0, 1.0), (-3.0, 3.0))
    correctness = Correctness(ranking, curve, 0.5, True, threshold, prices)
    frontier = (FrontierPoint(3.0, PRICE, 3.0, 3.0, 3.0, 0.5, 0.4, 0.6, 1.0),)
    policy = RulePolicy("test", make_levels((1, 3)), (FixedRule(3),), PriceSchedule((PRICE,)))
    save_bundle(Bundle(policy, frontier=frontier, correctness=correctness), path)
    return path


def streamed(text: str) -> ScriptedReply:
    ends: list[dict[str, Any]] = [{"content": text}, {}]
    choices = [
        {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in ends
    ]
    parts = [
        b"data: %s\n\n" % json.dumps({"id": "s", "choices": [one]}).encode() for one in choices
    ]
    events = [("Content-Type", "text/event-stream")]
    return ScriptedReply(200, events, [*parts, b"data: [DONE]\n\n"], framing="chunked")


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[tuple[ScriptedServer, int]]:
    model = {"bundle": str(path), "budget": 3.0, "pacing": False}
    model |= {
        name: options.pop(name) for name in ("unsure", "shadow", "grade_share") if name in options
    }
    with gateways.serve_scripted_gateway(model, **options) as served:
        yield served


def client_of(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ask(port: int, **options: Any) -> gateways.GatewayReply:
    body = json.dumps({"model": "virtual", "messages": QUESTION, **options}).encode()
    return gateways.send(port, "POST", "/v1/chat/completions", headers=JSON, body=body)


@pytest.mark.parametrize(
    ("texts", "sure", "low", "high"),
    [(AGREED, "yes", 0.94, 0.97), (SPLIT, "no", 0.2, 0.4)],
    ids=["agreed", "split"],
)
def test_headers_say_how_likely_the_answer_is_right(
    tmp_path: Path, texts: tuple[str, ...], sure: str, low: float, high: float
) -> None:
    log = tmp_path / "state"
    with serving(save(tmp_path / "p"), state_directory=str(log), decision_log="answers") as (
        upstream,
        port,
    ):
        upstream.answer(*map(chat_reply, texts))
        answer = ask(port, adacompute={"debug": True})
    assert answer.status == 200
    (chance,) = map(float, answer.values("x-adacompute-p-correct"))
    assert low < chance < high
    assert answer.values("x-adacompute-sure") == [sure]
    debug = json.loads(answer.values("x-adacompute-debug")[0])
    assert debug["p_correct"] == pytest.approx(chance, abs=1e-4)
    assert debug["sure"] is (sure == "yes")
    (logged,) = read_decisions(log / "decisions").to_pylist()
    assert logged["p_correct"] == debug["p_correct"]
    assert logged["sure"] == debug["sure"]


def test_a_price_that_was_not_tested_is_not_judged(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p", prices=(0.2, 0.4))) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        answer = ask(port)
    assert answer.values("x-adacompute-sure") == ["not judged"]


def test_without_a_model_nothing_is_said(tmp_path: Path) -> None:
    path = save(tmp_path / "p")
    document = json.loads((path / "bundle.json").read_text()) | {"correctness": None}
    (path / "bundle.json").write_text(json.dumps(document))
    with serving(path) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        answer = ask(port)
    assert answer.values("x-adacompute-p-correct") == []
    assert answer.values("x-adacompute-sure") == []


@pytest.mark.parametrize("stream", [False, True])
def test_unsure_answers_are_refused_and_sure_ones_are_sent(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    with serving(save(tmp_path / "p"), unsure="refuse") as (upstream, port), client_of(port) as c:
        upstream.answer(*map(streamed if stream else chat_reply, (*SPLIT, *AGREED)))
        known: dict[str, Any] = {"model": "virtual", "messages": QUESTION}
        if stream:
            with pytest.raises(openai.APIError, match="not sure enough") as failure:
                list(c.chat.completions.create(**known, stream=True))
            assert failure.value.code == "not_sure"
            events = list(c.chat.completions.create(**known, stream=True))
            assert "4" in "".join(one.choices[0].delta.content or "" for one in events)
        else:
            with pytest.raises(openai.UnprocessableEntityError, match="not sure enough") as error:
                c.chat.completions.create(**known)
            assert error.value.code == "not_sure"
            sent = c.chat.completions.create(**known)
            assert "4" in (sent.choices[0].message.content or "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("unsure", ["refuse", "refuse-with-answer"])
def test_a_refused_answer_is_described_and_shown_only_if_configured(
    tmp_path: Path,
    unsure: str,
    stream: bool,  # noqa: FBT001
) -> None:
    with serving(save(tmp_path / "p"), unsure=unsure) as (upstream, port), client_of(port) as c:
        upstream.answer(*map(streamed if stream else chat_reply, SPLIT))
        known: dict[str, Any] = {"model": "virtual", "messages": QUESTION}
        with pytest.raises(openai.APIError) as failure:
            list(c.chat.completions.create(**known, stream=stream))
    assert isinstance(failure.value.body, dict)
    refused = failure.value.body["refused"]
    assert 0 < refused.pop("p_correct") < 0.8
    assert len(refused.pop("decision")) > 10
    if unsure == "refuse-with-answer":
        assert refused.pop("answer") == refused.pop("completion") in SPLIT
    assert refused == {}


def test_a_refused_answer_is_charged_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "state"
    options = {"state_directory": str(log), "decision_log": "answers", "unsure": "refuse"}
    with serving(save(tmp_path / "p"), **options) as (upstream, port):
        upstream.answer(*map(chat_reply, SPLIT))
        assert ask(port).status == 422
        metrics = gateways.send(port, "GET", "/metrics").body.decode()
    (logged,) = read_decisions(log / "decisions").to_pylist()
    assert (logged["samples_used"], logged["sure"]) == (3, False)
    assert 'adacompute_p_correct_count{model="virtual"} 1.0' in metrics


def test_an_answer_that_nothing_could_parse_is_refused(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p"), unsure="refuse") as (upstream, port):
        upstream.answer(*map(chat_reply, ("no", "number", "here")))
        answer = ask(port)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "not_sure")


def test_shadow_mode_refuses_nothing(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p"), unsure="refuse", shadow=True) as (upstream, port):
        upstream.answer(chat_reply("5"))
        assert ask(port).status == 200


def test_refusing_needs_a_guarantee(tmp_path: Path) -> None:
    path = save(tmp_path / "p", threshold=None)
    for unsure, message in (
        ("refuse", "guarantees no precision"),
        ("hide", "unsure must be flag or refuse"),
    ):
        with pytest.raises(ConfigError, match=message), serving(path, unsure=unsure):
            pass


@contextmanager
def logging_to(state: Path, path: Path, **options: Any) -> Iterator[tuple[ScriptedServer, int]]:
    known = {"state_directory": str(state), "decision_log": "answers", **options}
    with serving(path, **known) as served:
        yield served


def grade(port: int, key: str | None = None, **fields: Any) -> gateways.GatewayReply:
    headers = JSON if key is None else [*JSON, ("Authorization", f"Bearer {key}")]
    body = json.dumps(fields).encode()
    return gateways.send(port, "POST", "/adacompute/feedback", headers=headers, body=body)


def read_metrics(port: int) -> str:
    return gateways.send(port, "GET", "/metrics").body.decode()


def test_feedback_is_counted_and_kept(tmp_path: Path) -> None:
    path = save(tmp_path / "p")
    document = json.loads((path / "bundle.json").read_text())
    document["notes"] = {"calibration": {"precision": {"target": 0.9, "threshold": 0.8}}}
    (path / "bundle.json").write_text(json.dumps(document))
    with logging_to(tmp_path, path) as (upstream, port):
        upstream.answer(*map(chat_reply, (*AGREED, *AGREED)))
        ids = [ask(port).values("x-adacompute-decision")[0] for _ in range(2)]
        right = grade(port, id=ids[0], answer="The answer is 4.00")
        wrong = grade(port, id=ids[1], correct=False)
        again = grade(port, id=ids[1], correct=True)
        metrics = read_metrics(port)
    assert (right.status, json.loads(right.body)) == (202, {"id": ids[0], "correct": True})
    assert (wrong.status, again.status) == (202, 202)
    name = "adacompute_feedback_total"
    assert f'{name}{{correct="yes",model="virtual",sure="yes"}} 1.0' in metrics
    assert f'{name}{{correct="no",model="virtual",sure="yes"}} 1.0' in metrics
    expected = measure_evidence(1, 1, 0.9)
    (shown,) = re.findall(r'adacompute_precision_evidence\{model="virtual"\} (\S+)', metrics)
    assert float(shown) == pytest.approx(expected)
    grades = read_grades(tmp_path / "decisions" / "grades.jsonl")
    assert [one.correct for one in grades.values()] == [True, True]  # the last one counts
    found = grade_log(tmp_path / "decisions", None)
    assert (found["graded"], found["unknown"], found["sure"]["right"]) == (2, 0, 1.0)
    file = tmp_path / "grades.csv"
    file.write_text(f"id,correct\n{ids[0]},yes\n{ids[1]},0\nother,true\n")
    found = grade_log(tmp_path / "decisions", file)
    assert (found["graded"], found["unknown"], found["all"]["right"]) == (2, 1, 0.5)
    assert found["all"]["right_low"] < 0.5 < found["all"]["right_high"]
    file.write_text("id,correct\nx,perhaps\n")
    with pytest.raises(DataError, match="line 2: correct must be"):
        grade_log(tmp_path / "decisions", file)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"correct": True}, "id must be"),
        ({"id": "../../x", "correct": True}, "id must be"),
        ({"id": "0" * 18}, "either correct"),
        ({"id": "0" * 18, "correct": True, "answer": "4"}, "either correct"),
        ({"id": "0" * 18, "correct": "yes"}, "true or false"),
        ({"id": "0" * 18, "answer": "4" * 10_001}, "at most 10000"),
        ({"id": "0" * 18, "correct": True, "client": "other"}, "has the fields"),
    ],
    ids=str,
)
def test_wrong_feedback_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with logging_to(tmp_path, save(tmp_path / "p")) as (_, port):
        answer = grade(port, **fields)
        metrics = read_metrics(port)
    assert answer.status == 400
    assert named in json.loads(answer.body)["error"]["message"]
    assert "adacompute_feedback_total{" not in metrics
    assert not (tmp_path / "decisions" / "grades.jsonl").exists()


def test_feedback_is_limited_in_size(tmp_path: Path) -> None:
    with logging_to(tmp_path, save(tmp_path / "p")) as (_, port):
        assert grade(port, id="0" * 18, answer="x" * 70_000).status == 413


def test_a_client_grades_only_its_own_requests(tmp_path: Path) -> None:
    keys = {
        name: hashlib.sha256(f"{name} of the test, with enough characters".encode()).hexdigest()
        for name in "ab"
    }
    with logging_to(tmp_path, save(tmp_path / "p"), client_keys=keys) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        body = json.dumps({"model": "virtual", "messages": QUESTION}).encode()
        headers = [*JSON, ("Authorization", "Bearer a of the test, with enough characters")]
        made = gateways.send(port, "POST", "/v1/chat/completions", headers=headers, body=body)
        (number,) = made.values("x-adacompute-decision")
        own = grade(port, "a of the test, with enough characters", id=number, correct=True)
        other = grade(port, "b of the test, with enough characters", id=number, correct=False)
        nobody = grade(port, id=number, correct=False)
    assert (own.status, other.status, nobody.status) == (202, 400, 401)
    (kept,) = read_grades(tmp_path / "decisions" / "grades.jsonl").values()
    assert (kept.client, kept.correct) == ("a", True)


def test_a_grade_that_cannot_be_written_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.storage.grades.MAX_BYTES", 10)
    with logging_to(tmp_path, save(tmp_path / "p")) as (_, port):
        answer = grade(port, id="0" * 18, correct=True)
        metrics = read_metrics(port)
    code = "grade_not_written"
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, code)
    assert f'adacompute_rejected_requests_total{{reason="{code}"}} 1.0' in metrics
    assert read_grades(tmp_path / "decisions" / "grades.jsonl") == {}


def test_a_line_that_was_cut_off_costs_no_other_grade(tmp_path: Path) -> None:
    first, last = (Grade(str(i) * 18, "a", True, None, 1.0) for i in range(2))
    append_grade(tmp_path, first)
    with (tmp_path / "grades.jsonl").open("a") as file:
        file.write('{"id": "cut')
    append_grade(tmp_path, last)
    assert list(read_grades(tmp_path / "grades.jsonl").values()) == [first, last]


def test_a_random_share_is_written_for_grading_and_its_grades_are_shown_apart(
    tmp_path: Path,
) -> None:
    log = tmp_path / "decisions"
    with logging_to(tmp_path, save(tmp_path / "p"), grade_share=0.3) as (upstream, port):
        upstream.answer(*map(chat_reply, [text for _ in range(60) for text in SPLIT]))
        ids = [ask(port).values("x-adacompute-decision")[0] for _ in range(60)]
        for number in ids[:30]:
            assert grade(port, id=number, correct=False).status == 202
    file = log / "to_grade.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    chosen = [json.loads(line) for line in file.read_text().splitlines()]
    assert 5 < len(chosen) < 35
    assert [one["id"] for one in chosen] == sorted({one["id"] for one in chosen}, key=ids.index)
    assert {one["question"] for one in chosen} == {QUESTION[0]["content"]}
    assert all(one["completion"] == one["answer"] in SPLIT for one in chosen)
    n_sent = len({one["id"] for one in chosen} & set(ids[:30]))
    found = grade_log(log, None)
    assert (found["all"]["graded"], found["random"]["graded"]) == (30, n_sent)
    graded = tmp_path / "graded.jsonl"
    graded.write_text("".join(json.dumps(one | {"correct": True}) + "\n" for one in chosen[1:]))
    found = grade_log(log, graded)
    assert (found["chosen"], found["random"]["graded"]) == (len(chosen), len(chosen) - 1)
    assert (found["random"]["right"], found["random_sure"]["graded"]) == (1.0, 0)
    print_graded_log(found)


def test_a_share_for_grading_needs_a_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="needs a decision_log"),
        serving(save(tmp_path / "p"), grade_share=0.5),
    ):
        pass


def test_a_full_file_for_grading_costs_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.gateway.accounting.account.MAX_TO_GRADE_BYTES", 10)
    with logging_to(tmp_path, save(tmp_path / "p"), grade_share=1.0) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        assert ask(port).status == 200
    assert (tmp_path / "decisions" / "to_grade.jsonl").read_bytes() == b""


def test_feedback_needs_a_decision_log(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p")) as (_, port):
        answer = grade(port, id="0" * 18, correct=True)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "no_decision_log")
