"""A share of the requests answered as today, and what the others save, as the gateway logs it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.cli.spending import _print_live_saving
from adacompute.core.errors import ConfigError
from adacompute.core.types import make_levels
from adacompute.options.shared import TodayOptions
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.stages.fit import fit_run
from adacompute.stages.spend import sum_spend
from adacompute.storage.decisions import read_decisions
from test_support import gateways
from test_support.scripted import ScriptedReply, chat_reply

JSON = [("Content-Type", "application/json")]
TODAY = {"wanted_samples": 4, "arm": None, "votes": "equal"}
PRICE, N_REQUESTS = 0.1, 80


def save(path: Path, today: dict[str, Any] | None) -> Path:
    """Save a policy of two samples that was compared with what is run today."""
    frontier = (FrontierPoint(2.0, PRICE, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 1.0),)
    policy = RulePolicy("test", make_levels((2, 6)), (FixedRule(2),), PriceSchedule((PRICE,)))
    notes = {"calibration": {"today": today}}
    save_bundle(Bundle(policy, frontier=frontier, notes=notes), path)
    return path


def reply(number: int) -> ScriptedReply:
    """Return a reply with an answer of its own, so that no vote is decided early."""
    return chat_reply(f"It is {number}")


def ask_often(
    state: Path, bundle: Path, share: float, count: int, *, agree: bool = False
) -> list[str]:
    """Return the number of samples of each request, as their headers say."""
    model = {"bundle": str(bundle), "budget": 2.0, "today_share": share}
    options = {"state_directory": str(state), "decision_log": "answers"}
    body = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}]}
    with gateways.serve_scripted_gateway(model, **options) as (upstream, port):
        upstream.answer(*map(reply, [7] * 4 * count if agree else range(4 * count)))
        found = [
            gateways.send(
                port, "POST", "/v1/chat/completions", headers=JSON, body=json.dumps(body).encode()
            )
            for _ in range(count)
        ]
        assert {one.status for one in found} == {200}
        assert len(upstream.received) == sum(
            int(one.values("x-adacompute-samples")[0]) for one in found
        )
    return [one.values("x-adacompute-samples")[0] for one in found]


@pytest.mark.parametrize(("share", "samples"), [(1.0, "4"), (0.0, "2")])
def test_all_or_no_requests_are_answered_as_today(
    tmp_path: Path, share: float, samples: str
) -> None:
    assert set(ask_often(tmp_path, save(tmp_path / "p", TODAY), share, 6)) == {samples}
    rows = read_decisions(tmp_path / "decisions").to_pylist()
    assert {row["today"] for row in rows} == {share == 1.0}
    assert {row["rounds"] for row in rows} == {1}


def test_all_samples_of_today_are_drawn_where_the_vote_is_decided(tmp_path: Path) -> None:
    assert ask_often(tmp_path, save(tmp_path / "p", TODAY), 1.0, 3, agree=True) == ["4"] * 3


def test_what_the_others_save_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = ask_often(tmp_path, save(tmp_path / "p", TODAY), 0.5, N_REQUESTS)
    assert 20 < drawn.count("4") < 60
    (row,) = sum_spend(tmp_path)["savings"]
    counts = (row["today_requests"], row["policy_requests"])
    assert counts == (drawn.count("4"), drawn.count("2"))
    assert (row["today_samples_used"], row["policy_samples_used"]) == (4.0, 2.0)
    assert row["saving_samples_used"] == 0.5
    assert row["policy_latency_s_high"] is None  # too few requests for a bound
    assert row["policy_latency_s_low"] <= row["policy_latency_s"]
    assert "saving_cost" not in row  # there are no token prices
    _print_live_saving(row)
    printed = capsys.readouterr().out
    assert "50 %" in printed
    assert "requests as today" in printed


def test_fit_reads_the_requests_that_were_answered_as_today(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = {"bundle": str(save(tmp_path / "p", TODAY)), "budget": 2.0, "today_share": 1.0}
    options = {"state_directory": str(tmp_path), "decision_log": "answers"}
    rng, questions = np.random.default_rng(0), [f"{n} + 2?" for n in range(150)]
    with gateways.serve_scripted_gateway(model, **options) as (upstream, port):
        for number, text in enumerate(questions):
            wrong = rng.random(4) < 0.1 * (number % 3)
            upstream.answer(*(reply(number + 3 if one else number + 2) for one in wrong))
            body = {"model": "virtual", "messages": [{"role": "user", "content": text}]}
            data = json.dumps(body).encode()
            gateways.send(port, "POST", "/v1/chat/completions", headers=JSON, body=data)
        gold = tmp_path / "gold.csv"
        lines = (f"q{n},{text},{n + 2}" for n, text in enumerate(questions))
        gold.write_text("\n".join(["question_id,question,gold", *lines]) + "\n")
        log, today = str(tmp_path / "decisions"), TodayOptions("4")
        graded = {"grader": "numeric", "gold": str(gold), "policy": "mixture"}
        with caplog.at_level(logging.INFO, "adacompute.datasets.layout"):
            found = fit_run(log, out=tmp_path / "graded", today=today, **graded)
    assert "the 150 of 150 requests that were answered as today" in caplog.text
    assert found["today"]["samples"] == 4
    assert fit_run(log, out=tmp_path / "ungraded", today=today)["today"]["samples"] == 4


def test_without_requests_as_today_nothing_is_compared(tmp_path: Path) -> None:
    ask_often(tmp_path, save(tmp_path / "p", TODAY), 0.0, 2)
    assert sum_spend(tmp_path)["savings"] == []


@pytest.mark.parametrize(
    ("today", "message"),
    [
        (None, "does not say what is run today"),
        (TODAY | {"arm": "big"}, "only equal votes of one arm"),
        (TODAY | {"votes": "weighted"}, "only equal votes of one arm"),
    ],
)
def test_what_cannot_be_served_as_today_is_refused(
    tmp_path: Path, today: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ask_often(tmp_path, save(tmp_path / "p", today), 0.5, 1)
    with pytest.raises(ConfigError, match="today_share must be a share from 0 to 1"):
        ask_often(tmp_path, save(tmp_path / "q", TODAY), 1.5, 1)
