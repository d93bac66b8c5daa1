"""The mean cost of requests is held at the budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.storage.decisions import read_decisions
from test_support import gateways
from test_support.scripted import ScriptedReply

JSON = [("Content-Type", "application/json")]
N_REQUESTS = 400


def make_bundle(path: Path) -> Path:
    """Save a policy of one or four samples; three of four decide, and calibration counted two."""
    prices = (0.1, 0.05)
    frontier = tuple(
        FrontierPoint(cost, price, cost, cost, cost, 0.5, 0.4, 0.6, 1.0)
        for cost, price in zip((1.0, 2.0), prices, strict=True)
    )
    rules = (FixedRule(1), FixedRule(4))
    policy = RulePolicy("test", make_levels((1, 2, 3, 4)), rules, PriceSchedule(prices))
    save_bundle(Bundle(policy, frontier=frontier), path)
    return path


@contextmanager
def serving(tmp_path: Path, model: dict[str, Any], **settings: Any) -> Iterator[int]:
    own = {"bundle": str(make_bundle(tmp_path / "policy")), "budget": 2.0, **model}
    settings = {"state_directory": str(tmp_path), "decision_log": "answers", **settings}
    with gateways.serve_scripted_gateway(own, **settings) as (upstream, port):
        message = {"role": "assistant", "content": "4"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        document = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        upstream.answer(ScriptedReply(200, JSON, [json.dumps(document).encode()]))
        yield port


def ask(port: int, number: int, **body: Any) -> int:
    """Ask a question; return how many samples answered it."""
    message = {"role": "user", "content": f"{number} + 2?"}
    content = {"model": "virtual", "messages": [message], **body}
    data = json.dumps(content).encode()
    reply = gateways.send(port, "POST", "/v1/chat/completions", headers=JSON, body=data)
    assert reply.status == 200
    return int(reply.values("x-adacompute-samples")[0])


def ask_all(port: int) -> list[int]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: ask(port, n), range(N_REQUESTS)))


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def test_the_mean_is_held_where_a_fixed_price_costs_more_than_the_budget(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as port:
        held = ask_all(port)
        shown = gateways.fetch(f"http://127.0.0.1:{port}/metrics")
    with serving(tmp_path / "fixed", {"pacing": False}) as port:
        assert mean(ask_all(port)) == 3.0
    assert mean(held[100:]) == pytest.approx(2.0, rel=0.1)
    assert 'adacompute_debt{model="virtual"}' in shown
    prices = [row["price"] for row in read_decisions(tmp_path / "decisions").to_pylist()]
    assert len(set(prices)) > 10


def test_requests_with_their_own_budget_are_not_counted(tmp_path: Path) -> None:
    with serving(tmp_path, {"max_budget": 2.0}) as port:
        own = [ask(port, n, adacompute={"budget": 2.0}) for n in range(50)]
        assert set(own) == {3}
        assert ask(port, 1) == 3  # nothing was learned from them
