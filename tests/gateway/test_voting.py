"""Decisions, samples and votes of a gateway in front of a scripted upstream."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai

from adacompute.core.types import make_levels
from adacompute.gateway.requests.openai_requests import VirtualRequest
from adacompute.gateway.voting import voting
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.request_model import RequestModel, Target
from adacompute.models.formats.body import Body
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.baseline import Baseline
from adacompute.policies.bundles.bundle import (
    Bundle,
    FrontierPoint,
    load_bundle,
    save_bundle,
)
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.blocks import question_features
from adacompute.storage.decisions import DecisionLog, read_decisions
from test_support import gateways, scripted
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply

ROOT = Path(__file__).resolve().parent.parent.parent
JSON = [("Content-Type", "application/json")]
EVENTS = [("Content-Type", "text/event-stream")]


def bundle(path: Path, *rules: Rule, template: Template | None = None) -> Path:
    """A policy whose setting i costs i + 1 by its frontier."""
    prices = tuple(0.1 / 2**i for i in range(len(rules)))
    frontier = tuple(
        FrontierPoint(i + 1.0, price, i + 1.0, i + 1.0, i + 1.0, 0.5, 0.4, 0.6, 1.0)
        for i, price in enumerate(prices)
    )
    policy = RulePolicy("test", make_levels((1, 2, 3, 4)), rules, PriceSchedule(prices))
    save_bundle(Bundle(policy, frontier=frontier, template=template), path)
    return path


SLOW = ScriptedReply(200, JSON, [5.0, b"{}"])
SERVER_ERROR = ScriptedReply(500, JSON, [b'{"error": {}}'])


def late(first: ScriptedReply) -> ScriptedReply:
    return ScriptedReply(first.status, first.headers, [0.3, *first.parts])


def stream(*words: str, usage: bool = True) -> ScriptedReply:
    deltas: list[dict[str, Any]] = [{"content": word} for word in words]
    events: list[dict[str, Any]] = [
        {"id": "s", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    events.append({"id": "s", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        bill = {"prompt_tokens": 7, "completion_tokens": len(words)}
        events.append({"id": "s", "choices": [], "usage": bill})
    parts = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return ScriptedReply(200, EVENTS, [*parts, b"data: [DONE]\n\n"], framing="chunked")


@contextmanager
def serving(policy: Path, **options: Any) -> Iterator[tuple[ScriptedServer, int]]:
    own = {name: options.pop(name) for name in list(options) if name in OWN}
    model = {"bundle": str(policy), "budget": 1.0, **own}
    with gateways.serve_scripted_gateway(model, **options) as served:
        yield served


OWN = (
    "budget",
    "max_budget",
    "max_rounds",
    "deadline_s",
    "grader",
    "scorer",
    "token_prices",
)


def ask(port: int, **options: Any) -> gateways.GatewayReply:
    headers = [*JSON, *options.pop("headers", ())]
    body = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}], **options}
    path = "/v1/chat/completions"
    return gateways.send(port, "POST", path, headers=headers, body=json.dumps(body).encode())


def texts(answer: gateways.GatewayReply) -> str:
    content: str = json.loads(answer.body)["choices"][0]["message"]["content"]
    return content


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return bundle(tmp_path / "p", FixedRule(3))


def test_the_first_sample_of_the_winning_class_answers_and_all_usage_is_reported(
    three: Path,
) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(
            chat_reply("It is 5"), late(chat_reply("= 4.0")), late(chat_reply("The answer is 4"))
        )
        answer = ask(port, temperature=0.7)
    # Draws count in the order in which they come; both 4s are one class.
    assert texts(answer) in {"= 4.0", "The answer is 4"}
    usage = json.loads(answer.body)["usage"]
    assert usage == {
        "prompt_tokens": 21,
        "completion_tokens": 15,
        "total_tokens": 36,
        "num_calls": 3,
    }
    assert answer.values("x-adacompute-samples") == ["3"]
    assert len(upstream.received) == 3


def test_a_sample_sends_the_clients_body_with_the_model_replaced(three: Path) -> None:
    sent = b'{"model":"virtual",  "messages":[{"role":"user","content":"2+2"}], "top_p": 0.50,'
    sent += b' "seed": 9, "adacompute": {"budget": 1}}'
    with serving(three) as (upstream, port):
        upstream.answer(*(chat_reply(str(n)) for n in (4, 5, 6)))  # no vote is decided early
        gateways.send(port, "POST", "/v1/chat/completions", body=sent)
    bodies = sorted(received.body for received in upstream.received)
    assert bodies == [
        b'{"model":"real",  "messages":[{"role":"user","content":"2+2"}], "top_p": 0.50,'
        b' "seed": %d}' % seed
        for seed in (10, 11, 9)
    ]


@pytest.mark.parametrize(
    ("where", "drawn"),
    [
        ({}, 1),
        ({"adacompute": {"budget": 3}}, 3),
        ({"headers": [("x-adacompute-budget", "4")], "adacompute": {"budget": 3}}, 4),
    ],
)
def test_a_request_may_set_its_own_budget(
    tmp_path: Path, where: dict[str, Any], drawn: int
) -> None:
    policy = bundle(tmp_path / "p", FixedRule(1), FixedRule(2), FixedRule(3), FixedRule(4))
    with serving(policy, max_budget=4) as (upstream, port):
        upstream.answer(*(chat_reply(str(n)) for n in range(4)))
        assert ask(port, **where).values("x-adacompute-samples") == [str(drawn)]
        assert len(upstream.received) == drawn


def test_models_of_one_bundle_have_budgets_of_their_own(tmp_path: Path) -> None:
    policy = bundle(tmp_path / "p", FixedRule(1), FixedRule(2), FixedRule(3))
    own = {"bundle": str(policy), "model": "real", "grader": "numeric", "max_budget": 3.0}
    models = {name: {**own, "budget": budget} for name, budget in (("cheap", 1), ("dear", 3))}
    with serving(policy, models=models) as (upstream, port):
        upstream.answer(*(chat_reply(str(n)) for n in range(4)))
        for model, drawn in (("cheap", "1"), ("dear", "3")):
            assert ask(port, model=model).values("x-adacompute-samples") == [drawn]
        assert len(upstream.received) == 4


@pytest.mark.parametrize(("settings", "drawn"), [({"max_samples": 2}, 2), ({}, 64)])
def test_a_vote_draws_no_more_samples_than_allowed(
    tmp_path: Path, settings: dict[str, Any], drawn: int
) -> None:
    policy = RulePolicy("test", make_levels((1, 70)), (FixedRule(70),), PriceSchedule((0.1,)))
    frontier = (FrontierPoint(1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 0.4, 0.6, 1.0),)
    save_bundle(Bundle(policy, frontier=frontier), tmp_path / "p")
    with serving(tmp_path / "p", **settings) as (upstream, port):
        upstream.answer(*(chat_reply(str(n)) for n in range(70)))
        assert ask(port).values("x-adacompute-samples") == [str(drawn)]
        assert len(upstream.received) == drawn


def test_a_sample_sends_the_clients_headers_and_query(three: Path) -> None:
    given = [("OpenAI-Organization", "org-1"), ("Authorization", "Bearer mine"), ("X-Trace", "t")]
    body = b'{"model": "virtual", "messages": [{"role": "user", "content": "2?"}]}'
    with serving(three) as (upstream, port):
        upstream.answer(chat_reply("4"))
        path = "/v1/chat/completions?api-version=7&provider=mine"
        gateways.send(port, "POST", path, headers=[*JSON, *given], body=body)
    (received, *_) = upstream.received
    assert received.target.endswith("?api-version=7")
    assert received.values("openai-organization") == []
    assert received.values("x-trace") == ["t"]
    assert received.values("authorization") == []


def test_samples_send_no_idempotency_key(three: Path) -> None:
    names = ["Idempotency-Key", "X-Idempotency-Key"]
    with serving(three) as (upstream, port):
        upstream.answer(chat_reply("4"))
        ask(port, headers=[(name, "k") for name in names])
    assert len(upstream.received) > 1  # the third may be cancelled: two equal votes decide
    assert not any(r.values(name.lower()) for r in upstream.received for name in names)


def test_samples_are_requested_without_compression(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(chat_reply("4"))
        ask(port, headers=[("Accept-Encoding", "br, gzip")])
    asked_for = {one for r in upstream.received for one in r.values("accept-encoding")}
    assert asked_for == {"identity"}


TOLD = {
    "x-request-id": "req_{}",
    "openai-processing-ms": "1{}",
    "x-ratelimit-remaining-tokens": "{}",
}


def test_an_answer_has_the_headers_of_the_chosen_sample(three: Path) -> None:
    def numbered(number: int, text: str) -> ScriptedReply:
        own = [(name, value.format(number)) for name, value in TOLD.items()]
        odd = [("Set-Cookie", "a=1"), ("X-Request-Id", "a\x01b"), ("Keep-Alive", "5")]
        packed = gzip.compress(chat_reply(text).body)
        return ScriptedReply(200, [*JSON, *own, *odd, ("Content-Encoding", "gzip")], [packed])

    with serving(three) as (upstream, port):
        upstream.answer(*(numbered(i, text) for i, text in enumerate(("5", "is 6", "is 6"))))
        answer = ask(port)
    assert texts(answer) == "is 6"
    number = answer.values("x-request-id")[0].removeprefix("req_")
    assert number in {"1", "2"}
    for name, value in TOLD.items():
        assert answer.values(name) == [value.format(number)]
    assert answer.values("content-length") == [str(len(answer.body))]
    shown = {name for name, _ in answer.headers}
    assert not shown & {"set-cookie", "keep-alive", "content-encoding"}


@pytest.mark.parametrize("budget", ["0.5", "nan", "-1", "many", "1e999"])
def test_a_budget_below_the_minimum_is_a_client_error(three: Path, budget: str) -> None:
    with serving(three) as (_, port):
        answer = ask(port, headers=[("x-adacompute-budget", budget)])
    assert answer.status == 400
    assert "budget" in json.loads(answer.body)["error"]["message"]


def test_a_stopping_rule_stops_when_the_answers_agree(tmp_path: Path) -> None:
    policy = bundle(tmp_path / "p", AdaptiveConsistencyRule(0.8, 4))
    with serving(policy) as (upstream, port):
        upstream.answer(chat_reply("4"), chat_reply("4"), chat_reply("5"))
        answer = ask(port, adacompute={"debug": True})
    told = json.loads(answer.values("x-adacompute-debug")[0])
    assert told["answers"] == ["4"] * len(told["answers"])
    assert told["rounds"] == len(told["answers"]) == len(upstream.received) < 4


def test_samples_that_cannot_change_the_answer_are_cancelled_and_charged_in_full(
    tmp_path: Path,
) -> None:
    policy = bundle(tmp_path / "p", FixedRule(3))
    slow = ScriptedReply(200, JSON, [3.0, b"{}"])
    with serving(policy) as (upstream, port):
        upstream.answer(chat_reply("4"), chat_reply("4"), slow)
        begun = time.monotonic()
        answer = ask(port, max_tokens=100)
        assert time.monotonic() - begun < 2.0
        seen = gateways.send(port, "GET", "/metrics").body.decode()
    usage = json.loads(answer.body)["usage"]
    assert usage["completion_tokens"] == 5 + 5 + 100
    labels = 'kind="completion",model="virtual",purpose="vote"'
    assert f"adacompute_estimated_tokens_total{{{labels}}} 100.0" in seen


def test_a_failed_sample_leaves_the_others_usable(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(chat_reply("4"), ScriptedReply(500, JSON, [b"{}"]), chat_reply("5"))
        answer = ask(port, adacompute={"debug": True})
    assert texts(answer) in {"4", "5"}
    assert json.loads(answer.values("x-adacompute-debug")[0])["incomplete"]


def test_a_rejection_is_forwarded_as_the_upstream_wrote_it(three: Path) -> None:
    said = b'{"error": {"message": "too long", "type": "t", "code": "context_length_exceeded"}}'
    with serving(three) as (upstream, port):
        upstream.answer(ScriptedReply(400, JSON, [said]))
        answer = ask(port)
    assert answer.status == 400
    assert json.loads(answer.body) == json.loads(said)


@pytest.mark.parametrize(("status", "code"), [(429, 429), (500, 502), (503, 502)])
def test_an_upstream_failure_is_reported_in_openais_format(
    three: Path, status: int, code: int
) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(ScriptedReply(status, JSON, [b'{"error": {"message": "no"}}']))
        answer = ask(port)
    assert answer.status == code
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


def test_a_stream_of_one_sample_is_forwarded_live_and_byte_true(tmp_path: Path) -> None:
    with serving(bundle(tmp_path / "p", FixedRule(1))) as (upstream, port):
        sent = stream("The ", "answer ", "is 4", usage=False)
        upstream.answer(sent)
        answer = ask(port, stream=True)
    assert answer.body == sent.body


def test_a_voted_stream_has_the_chosen_samples_events_and_one_usage(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(stream("It is ", "4"), stream("5"), stream("is ", "6"))
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        with client:
            chunks = list(
                client.chat.completions.create(
                    model="virtual",
                    messages=[{"role": "user", "content": "2 + 2?"}],
                    stream=True,
                    stream_options={"include_usage": True},
                )
            )
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said in {"It is 4", "5", "is 6"}
    bills = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert [bill.completion_tokens for bill in bills] == [5]
    assert bills[0].prompt_tokens == 21


@pytest.mark.parametrize("wanted", [True, False])
def test_usage_in_the_last_choice_is_not_sent_twice(
    three: Path,
    wanted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    bill = b', "usage": {"prompt_tokens": 7, "completion_tokens": 2}'
    first, *_ = stream("4").parts
    assert isinstance(first, bytes)
    last = b'data: {"x": 1.50, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]%b'
    told = ScriptedReply(
        200, EVENTS, [first, last % bill + b"}\n\ndata: [DONE]\n\n"], framing="chunked"
    )
    with serving(three) as (upstream, port):
        upstream.answer(told)
        answer = ask(port, stream=True, stream_options={"include_usage": wanted})
    assert last % b', "id"' in answer.body
    assert answer.body.count(b'"usage"') == wanted
    told_tokens = re.findall(rb'"prompt_tokens":(\d+)', answer.body)
    assert len(told_tokens) == wanted  # a draw that was cut off once two agree counts for more
    assert all(int(tokens) >= 21 for tokens in told_tokens)


def test_a_waiting_client_gets_keepalive_comments(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voting, "KEEP_ALIVE_S", 0.1)
    slow = chat_reply("4")
    slow = ScriptedReply(200, EVENTS, [0.7, *stream("4").parts], framing="chunked")
    with serving(three) as (upstream, port):
        upstream.answer(slow)
        answer = ask(port, stream=True)
    assert answer.body.count(b": still sampling") >= 2
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_an_upstream_that_fails_in_a_voted_stream_ends_it_in_an_error_event(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(ScriptedReply(500, JSON, [b"{}"]))
        answer = ask(port, stream=True)
    last = answer.body.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["type"] == "upstream_error"


def test_the_question_is_extracted_by_the_template(tmp_path: Path) -> None:
    form = Template("Q: {question}\nA:", system="Be brief.")
    policy = bundle(tmp_path / "p", FixedRule(1), template=form)
    messages = [dict(message) for message in form.render("2 + 2?").messages or ()]
    with serving(policy) as (upstream, port):
        upstream.answer(chat_reply("4"))
        whole = ask(port, messages=messages, adacompute={"debug": True})
        other = ask(port, adacompute={"debug": True})
        none = ask(port, messages=[{"role": "system", "content": "2"}], adacompute={"debug": True})
    found = [
        json.loads(a.values("x-adacompute-debug")[0])["question_source"]
        for a in (whole, other, none)
    ]
    assert found == ["template", "message", "none"]


@pytest.mark.parametrize(
    ("replies", "deadline_s", "n_samples"),
    [
        ([chat_reply("4"), SLOW, SLOW], 0.3, 1),  # the deadline ends the round
        ([chat_reply("4"), chat_reply("4"), SLOW], None, 2),  # the third cannot change the answer
        ([chat_reply("4"), SERVER_ERROR, SERVER_ERROR], None, 1),  # two calls fail
    ],
)
def test_a_request_can_end_before_all_samples_have_arrived(
    replies: list[ScriptedReply],
    deadline_s: float | None,
    n_samples: int,
    three: Path,
    tmp_path: Path,
) -> None:
    options = {
        "deadline_s": deadline_s,
        "state_directory": str(tmp_path),
        "decision_log": "answers",
    }
    with serving(three, **options) as (upstream, port):
        upstream.answer(*replies, chat_reply("7"))
        ask(port)
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert row["samples_used"] == len(row["answers"]) == n_samples


def test_a_request_whose_deadline_passes_between_rounds_is_incomplete(tmp_path: Path) -> None:
    policy = bundle(tmp_path / "p", AdaptiveConsistencyRule(0.99, 4))
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with serving(policy, deadline_s=0.2, **log) as (upstream, port):
        upstream.answer(late(chat_reply("4")))
        ask(port)
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert (row["samples_used"], row["incomplete"]) == (1, True)


def metrics(port: int) -> str:
    return gateways.send(port, "GET", "/metrics").body.decode()


def value_of(name: str, port: int) -> float:
    found = re.findall(rf'adacompute_{name}{{model="virtual"[^}}]*}} (\S+)', metrics(port))
    assert found
    return sum(map(float, found))


def score(value: float) -> ScriptedReply:
    return ScriptedReply(200, JSON, [json.dumps({"score": value}).encode()])


def test_the_best_scored_sample_answers_if_none_can_be_parsed(three: Path, tmp_path: Path) -> None:
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with (
        scripted.serve_scripted() as scorer,
        serving(three, scorer=f"{scorer.base_url}/score", **log) as (upstream, port),
    ):
        scorer.answer(score(0.1), score(0.9), score(0.2))
        upstream.answer(chat_reply("none"), late(chat_reply("no idea")))
        assert ask(port).status == 200
    best = json.loads(scorer.received[1].body)["text"]
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert (row["chosen"] >= 0, row["scorer_error"]) == (True, None)
    assert best in {"none", "no idea"}


def test_a_failing_scorer_does_not_fail_the_request(three: Path, tmp_path: Path) -> None:
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with (
        scripted.serve_scripted() as scorer,
        serving(three, scorer=f"{scorer.base_url}/score", **log) as (upstream, port),
    ):
        scorer.answer(score(0.1), ScriptedReply(500, JSON, [b'{"error": "out of memory"}']))
        upstream.answer(chat_reply("none"), late(chat_reply("no idea")))
        answer = ask(port)
        seen = metrics(port)
    assert (answer.status, texts(answer)) == (200, "none")
    assert 'adacompute_scorer_failures_total{model="virtual"} 1.0' in seen
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert (row["samples_used"], row["chosen"]) == (3, -1)
    assert "out of memory" in row["scorer_error"]


def slow_down(*after: str, status: int = 429) -> ScriptedReply:
    return ScriptedReply(status, [*JSON, *(("Retry-After", one) for one in after)], [b"{}"])


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ([slow_down("7")], "7"),
        ([slow_down("3"), slow_down("20"), late(ScriptedReply(500, JSON, [b"{}"]))], "20"),
        ([slow_down()], "1"),
        ([slow_down("0.2")], "1"),
        ([slow_down("soon")], "1"),
    ],
)
def test_a_rate_limit_is_forwarded_with_retry_after(
    three: Path, replies: list[ScriptedReply], told: str
) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(*replies)
        answer = ask(port)
    assert (answer.status, answer.values("retry-after")) == (429, [told])


@pytest.mark.parametrize("status", [500, 503])
def test_a_temporary_failure_is_forwarded_with_retry_after(three: Path, status: int) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(slow_down("3"), slow_down("20", status=status))
        answer = ask(port)
    assert (answer.status, answer.values("retry-after")) == (503, ["20"])
    assert json.loads(answer.body)["error"]["type"] == "upstream_error"


def test_a_rejection_is_reported_before_a_temporary_failure(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(slow_down("7"), ScriptedReply(400, JSON, [b"{}"]), late(slow_down("7")))
        assert ask(port).status == 400


def test_a_redirect_of_the_upstream_is_not_forwarded(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(ScriptedReply(307, [("Location", "http://127.0.0.1:1/v2")], []))
        assert ask(port).status == 502


def test_failures_are_counted_under_the_models_name(three: Path) -> None:
    with serving(three) as (upstream, port):
        upstream.answer(ScriptedReply(500, JSON, [b"{}"]))
        ask(port)
        ask(port, adacompute={"budget": 0.1})
        seen = metrics(port)
    path = 'path="chat/completions"'
    assert f'requests_total{{model="virtual",{path},status="502"}} 1.0' in seen
    assert f'requests_total{{model="virtual",{path},status="400"}} 1.0' in seen


def test_after_the_deadline_the_samples_so_far_answer(three: Path) -> None:
    with serving(three, deadline_s=0.3) as (upstream, port):
        upstream.answer(chat_reply("4"), SLOW)
        begun = time.monotonic()
        answer = ask(port, adacompute={"debug": True})
        assert 0.25 < time.monotonic() - begun < 3
    assert texts(answer) == "4"
    told = json.loads(answer.values("x-adacompute-debug")[0])
    assert (told["answers"], told["incomplete"], told["calls"]) == (["4"], True, 3)


@pytest.mark.parametrize("options", [{}, {"model": "real"}, {"stream": True}])
def test_a_request_has_one_deadline_however_many_calls_it_makes(
    options: dict[str, Any], three: Path
) -> None:
    with serving(three, timeout_s=1.0, max_attempts=3) as (upstream, port):
        upstream.answer(SLOW)
        begun = time.monotonic()
        answer = ask(port, **options)
        assert 0.9 < time.monotonic() - begun < 3
        assert "not answered within 1 s" in answer.body.decode()
        assert f'status="{504}"' in metrics(port)
    assert answer.status == (200 if options.get("stream") else 504)


def test_shortly_before_its_deadline_a_request_is_answered_with_what_came(three: Path) -> None:
    with serving(three, timeout_s=2.0) as (upstream, port):
        upstream.answer(chat_reply("4"), SLOW)
        answer = ask(port)
    assert (answer.status, texts(answer)) == (200, "4")


def test_samples_are_counted_if_the_client_disconnects_during_a_stream(
    three: Path, tmp_path: Path
) -> None:
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    body = b'{"model": "virtual", "stream": true, "messages": [{"role": "user", "content": "2"}]}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with serving(three, **log) as (upstream, port):
        upstream.answer(stream("4", *["x" * 1_000_000] * 8))
        with socket.socket() as plug:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plug.connect(("127.0.0.1", port))
            plug.sendall(head % len(body) + body)
            while b"xxxx" not in plug.recv(4096):
                pass
            time.sleep(0.3)  # nothing more is read, and writing has to wait
        end = time.monotonic() + 10
        while 'status="200"' not in metrics(port) and time.monotonic() < end:
            time.sleep(0.05)
        assert 'adacompute_samples_total{model="virtual"} ' in metrics(port)
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert row["samples_used"] >= 2


def test_requests_without_an_answer_are_logged_with_what_they_cost(
    three: Path, tmp_path: Path
) -> None:
    (tmp_path / "prices.toml").write_text("[models.real]\ninput = 1.0\noutput = 2.0\n")
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    prices = str(tmp_path / "prices.toml")
    body = b'{"model": "virtual", "messages": [{"role": "user", "content": "2"}], "max_tokens": 9}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with serving(three, **log, token_prices=prices) as (upstream, port):
        upstream.answer(chat_reply("4"), chat_reply("5"), chat_reply("6"))
        ask(port)
        before = value_of("cost_total", port)
        upstream.answer(chat_reply("4"), ScriptedReply(200, JSON, [5.0, b"{}"]))
        with socket.create_connection(("127.0.0.1", port)) as plug:
            plug.sendall(head % len(body) + body)
            time.sleep(0.5)
        end = time.monotonic() + 10
        while 'status="499"' not in metrics(port) and time.monotonic() < end:
            time.sleep(0.05)
        upstream.answer(ScriptedReply(400, JSON, [b"{}"]))
        ask(port)  # costs nothing, so it is not logged
        samples, cost = value_of("samples_total", port), value_of("cost_total", port)
    answered, abandoned = read_decisions(tmp_path / "decisions").to_pylist()
    assert (answered["samples_used"], abandoned["answers"]) == (3, [])
    assert samples == 3 + abandoned["samples_used"] == 4
    assert cost - before == pytest.approx(abandoned["cost"])
    assert cost > before > 0


def test_drift_is_shown_only_after_enough_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.gateway.accounting.account.MIN_DRIFT_REQUESTS", 3)
    own = load_bundle(bundle(tmp_path / "p", FixedRule(2)))
    drifts = ("feature_drift{", "agreement_drift{")
    save_bundle(dataclasses.replace(own, baseline=Baseline((), (), 0.5, 0.0)), tmp_path / "p")
    with serving(tmp_path / "p") as (upstream, port):
        upstream.answer(chat_reply("4"))
        for _ in range(2):
            ask(port)
        assert not any(name in metrics(port) for name in drifts)
        ask(port)
        assert all(name in metrics(port) for name in drifts)
        assert value_of("agreement_drift", port) == 2.0


@pytest.mark.parametrize(("std", "is_logged"), [(0.01, True), (1e6, True), (None, False)])
def test_a_drift_beyond_the_threshold_is_logged_once_per_minute(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    std: float | None,
    *,
    is_logged: bool,
) -> None:
    monkeypatch.setattr("adacompute.gateway.accounting.account.MIN_DRIFT_REQUESTS", 3)
    own = load_bundle(bundle(tmp_path / "p", FixedRule(2)))
    n = question_features(own, "2").shape[1]
    n_known = 0 if std is None else n  # without features, the drift is 1
    baseline = Baseline((-1.0,) * n_known, (std or 0.0,) * n_known, 0.5, 0.0)
    save_bundle(dataclasses.replace(own, baseline=baseline), tmp_path / "p")
    with serving(tmp_path / "p") as (upstream, port):
        upstream.answer(chat_reply("4"))
        for _ in range(6):
            ask(port)
        assert (0.5 <= value_of("feature_drift", port) <= 2) != is_logged
    assert caplog.text.count("differ from the training questions") == is_logged


def test_a_live_stream_without_usage_is_charged_for_its_prompt(tmp_path: Path) -> None:
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with serving(bundle(tmp_path / "p", FixedRule(1)), **log) as (upstream, port):
        upstream.answer(stream("is ", "4", usage=False))
        ask(port, stream=True)
        sent = len(upstream.received[0].body)
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert (row["prompt_tokens"], row["estimated"]) == (sent, True)


def test_a_header_that_is_sent_twice_is_not_lost(three: Path) -> None:
    given = [("OpenAI-Beta", "a=1"), ("OpenAI-Beta", "b=2"), ("Accept", "application/json")]
    with serving(three) as (upstream, port):
        upstream.answer(chat_reply("4"))
        ask(port, headers=given)
        received = upstream.received[0]
    assert received.values("openai-beta") == ["a=1, b=2"]


def test_a_log_that_cannot_be_rotated_does_not_fail_the_request(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with serving(three, **log) as (upstream, port), monkeypatch.context() as patch:

        def fail(_: DecisionLog) -> None:
            raise FileNotFoundError("it is gone")

        patch.setattr(DecisionLog, "rotate", fail)
        patch.setattr(DecisionLog, "append", lambda *_: True)
        upstream.answer(chat_reply("4"))
        assert ask(port).status == 200


def test_a_gateway_warms_up_before_it_is_ready(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, opened = Engine.open, []

    def watch(engine: Engine, asked: VirtualRequest) -> Any:
        opened.append(asked)
        return begin(engine, asked)

    monkeypatch.setattr(Engine, "open", watch)
    with serving(three) as (upstream, port):
        assert gateways.send(port, "GET", "/ready").status == 200
        assert len(opened) == 1
        assert upstream.received == []
        assert "adacompute_samples_total{" not in metrics(port)


def sample(
    upstream: ScriptedServer, known: Capabilities, n: int, **options: Any
) -> tuple[list[str], RequestModel]:
    """Texts of the samples of a request, without a gateway around it."""
    content = {"model": "virtual", "messages": [], **options.pop("body", {})}
    body = Body.parse(json.dumps(content).encode())
    assert body is not None
    asked = VirtualRequest(body, "chat/completions", "virtual", None, debug=False)

    async def main() -> tuple[list[str], RequestModel]:
        async with Upstream(upstream.base_url, "real", capabilities=known) as server:
            model = RequestModel({None: Target(server)}, asked, "real", **options)
            samples = model.sample("", n, on_usage=model.calls.append)
            return [one.text async for one in samples], model

    return asyncio.run(main())


def test_missing_choices_are_requested_one_by_one() -> None:
    with scripted.serve_scripted() as upstream:
        upstream.answer(chat_reply("4", "5"), chat_reply("6"))
        texts, model = sample(upstream, Capabilities(n="native"), 4)
    assert texts == ["4", "5", "6", "6"]
    assert [json.loads(one.body).get("n") for one in upstream.received] == [4, None, None]
    assert (len(model.calls), model.n_received) == (3, 4)


@pytest.mark.parametrize(
    ("known", "asked"), [("returned", True), ("rejected", None), ("missing", None)]
)
def test_log_probabilities_are_requested_where_the_server_returns_them(
    known: Any,
    asked: bool | None,  # noqa: FBT001 - a parameter of the test
) -> None:
    with scripted.serve_scripted() as upstream:
        upstream.answer(chat_reply("4"))
        sample(upstream, Capabilities(logprobs=known), 1, want_logprobs=True)
    assert json.loads(upstream.received[0].body).get("logprobs") is asked


@pytest.mark.parametrize(
    ("seed", "sent"), [(9, [9, 10]), (-1, [-1, -1]), (2**40, [1, 2**40]), (None, [None, None])]
)
def test_samples_have_different_seeds_if_the_client_sets_one(
    seed: int | None, sent: list[int | None]
) -> None:
    with scripted.serve_scripted() as upstream:
        upstream.answer(chat_reply("4"))
        sample(upstream, Capabilities(), 2, body={} if seed is None else {"seed": seed})
    found = [json.loads(one.body).get("seed") for one in upstream.received]
    assert sorted(found, key=str) == sorted(sent, key=str)
