"""A gateway that answers as today when its policy cannot be relied on, until somebody resets it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ConfigError
from adacompute.core.types import IntArray, make_levels
from adacompute.gateway.app import build
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.fallback import (
    FALLBACK,
    FallbackState,
    read_fallbacks,
    reset_fallbacks,
)
from adacompute.gateway.voting.model_loading import make_model
from adacompute.policies.bundles.baseline import Baseline
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.correctness import Correctness, Curve, Ranking
from adacompute.policies.policy import ObservedSamples
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.sequential.description import VOTE_SHARE, width
from adacompute.policies.uniform import FixedRule
from adacompute.spending.registers import update
from adacompute.stages.spend import sum_spend
from adacompute.storage.decisions import read_decisions
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply, serve_scripted

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
PRICE, N_TODAY = 0.1, 4
TODAY = {"wanted_samples": N_TODAY, "arm": None, "votes": "equal"}
QUESTION = [{"role": "user", "content": "2 + 2?"}]
AGREED, SPLIT = ("4", "4", "4"), ("4", "5", "6")
ADMIN_KEY = "an-admin-key-of-the-tests-0123"
ADMIN = [("Authorization", f"Bearer {ADMIN_KEY}")]


class FailingRule(FixedRule):
    """Draws three samples; fails in its first decision, or after its samples, while it is told."""

    decides_once = False
    fails: ClassVar[str] = ""

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        if self.fails == ("later" if observed.n_samples.max() else "at first"):
            raise ZeroDivisionError
        return super().target_samples(observed)


class UnrememberedPolicy(RulePolicy):
    """Asks its rule for every decision."""

    def make_lookup(self) -> None:
        return None


def make_bundle(kind: type[RulePolicy] = RulePolicy, rule: type[FixedRule] = FixedRule) -> Bundle:
    """Return a policy of three samples whose answers are as likely right as they agree."""
    size = width(1) + 1
    weights = np.zeros(size + 1)
    weights[1 + VOTE_SHARE] = 1.0
    ranking = Ranking(np.zeros(size), np.ones(size), weights, 0)
    curve = Curve((0.0, 1.0), (-3.0, 3.0))
    correctness = Correctness(ranking, curve, 0.5, True, 0.8, (0.05, 0.2))
    frontier = (FrontierPoint(3.0, PRICE, 3.0, 3.0, 3.0, 0.9, 0.9, 0.9, 1.0),)
    policy = kind("test", make_levels((1, 3)), (rule(3),), PriceSchedule((PRICE,)))
    notes = {"calibration": {"today": TODAY, "precision": {"target": 0.9, "threshold": 0.8}}}
    return Bundle(policy, frontier=frontier, correctness=correctness, notes=notes)


@contextmanager
def serving(
    state: Path, bundle: Bundle, model: Mapping[str, Any] | None = None
) -> Iterator[tuple[ScriptedServer, int]]:
    """Serve a policy with a fallback; its state is kept in the directory."""
    given = {"bundle": "b", "budget": 3.0, "model": "real", "grader": "numeric", "pacing": False}
    given |= {"fallback": "today", **(model or {})}
    with serve_scripted() as upstream:
        content = {"base_url": upstream.base_url, "models": {"virtual": given}, "probe": False}
        content |= {"state_directory": str(state), "decision_log": "answers", "max_attempts": 1}
        config = make_config(content)
        virtual = make_model(config, "virtual", config.models["virtual"], bundle)
        register = config.open_register()
        with gateways.serve_app(build(config, {"virtual": virtual}, register=register)) as port:
            yield upstream, port


def send(port: int) -> gateways.GatewayReply:
    body = json.dumps({"model": "virtual", "messages": QUESTION}).encode()
    return gateways.send(port, "POST", "/v1/chat/completions", headers=JSON, body=body)


def ask(port: int) -> tuple[str, bool]:
    """Send a request; return its decision, and whether it was answered as today."""
    sent = send(port)
    n_samples = int(sent.values("x-adacompute-samples")[0])  # the policy stops at 2 that agree
    assert n_samples in {2, 3, N_TODAY}
    return sent.values("x-adacompute-decision")[0], n_samples == N_TODAY


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def scrape(port: int) -> str:
    return gateways.send(port, "GET", "/metrics").body.decode()


@pytest.mark.parametrize("fails", ["at first", "later"])
def test_a_request_whose_policy_fails_is_answered_as_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    bundle = make_bundle(UnrememberedPolicy, FailingRule)
    with serving(tmp_path, bundle) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 9))
        assert not ask(port)[1]
        monkeypatch.setattr(FailingRule, "fails", fails)
        assert ask(port)[1]
        monkeypatch.setattr(FailingRule, "fails", "")
        assert ask(port)[1]
        wait_until(lambda: 'adacompute_fallback{model="virtual"} 1.0' in scrape(port))
    rows = read_decisions(tmp_path / "decisions").to_pylist()
    assert [row["today"] for row in rows] == [False, True, True]
    assert [row["fallback"] for row in rows] == [None, "error", "error"]
    assert sum_spend(tmp_path)["savings"] == []


def test_without_a_fallback_the_policy_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(UnrememberedPolicy, FailingRule)
    with serving(tmp_path, bundle, {"fallback": "none"}) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 3))
        monkeypatch.setattr(FailingRule, "fails", "at first")
        assert send(port).status == 500
        monkeypatch.setattr(FailingRule, "fails", "")
        assert not ask(port)[1]


def test_errors_that_are_not_of_the_policy_begin_no_fallback(tmp_path: Path) -> None:
    with serving(tmp_path, make_bundle()) as (upstream, port):
        upstream.answer(ScriptedReply(500, JSON, [b"{}"]))
        assert send(port).status == 502
        upstream.answer(*map(chat_reply, AGREED))
        assert not ask(port)[1]


def test_answers_that_become_less_likely_right_begin_it(tmp_path: Path) -> None:
    with serving(tmp_path, make_bundle()) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 100))
        assert not any(ask(port)[1] for _ in range(100))
        upstream.answer(*map(chat_reply, SPLIT * 100))
        assert 3 < [ask(port)[1] for _ in range(60)].index(True) < 40
    reasons = read_decisions(tmp_path / "decisions", ("fallback",))["fallback"].to_pylist()
    assert set(reasons) == {None, "drift"}


def test_samples_as_today_that_agree_less_begin_it(tmp_path: Path) -> None:
    bundle = replace(make_bundle(), correctness=None, baseline=Baseline((), (), 1.0, 0.0))
    with serving(tmp_path, bundle, {"today_share": 1.0}) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 40))
        for _ in range(30):
            ask(port)
        assert 'adacompute_fallback{model="virtual"} 0.0' in scrape(port)
        upstream.answer(*map(chat_reply, SPLIT * 100))
        for _ in range(30):
            ask(port)
        wait_until(lambda: 'adacompute_fallback{model="virtual"} 1.0' in scrape(port))
    reasons = read_decisions(tmp_path / "decisions", ("fallback",))["fallback"].to_pylist()
    assert reasons[:33] == [None] * 33
    assert reasons[-1] == "drift"


def grade(port: int, number: str, *, correct: bool) -> None:
    body = json.dumps({"id": number, "correct": correct}).encode()
    sent = gateways.send(port, "POST", "/adacompute/feedback", headers=JSON, body=body)
    assert sent.status == 202


def test_a_broken_guarantee_begins_it_and_a_restart_does_not_end_it(tmp_path: Path) -> None:
    with serving(tmp_path, make_bundle()) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 20))
        for _ in range(6):
            grade(port, ask(port)[0], correct=False)
        wait_until(lambda: ask(port)[1])
    with serving(tmp_path, make_bundle()) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 2))
        assert ask(port)[1]


def test_all_workers_follow_it_until_it_is_reset(
    launch: Launch, upstream: ScriptedServer, policies: Path, tmp_path: Path
) -> None:
    save_bundle(make_bundle(), policies / "falls")
    digest = hashlib.sha256(ADMIN_KEY.encode()).hexdigest()
    settings = (
        f'admin_key = "{digest}"\nstate_directory = "{tmp_path}"\ndecision_log = "answers"\n'
        '[serve.models.virtual]\nbundle = "falls"\nbudget = 3\nmodel = "real"\n'
        'grader = "numeric"\nfallback = "today"\npacing = false\n'
    )
    with launch(workers=2, settings=settings) as port:
        upstream.answer(*map(chat_reply, AGREED * 1000))
        for _ in range(6):
            grade(port, ask(port)[0], correct=False)
        wait_until(lambda: all(ask(port)[1] for _ in range(20)))
        admin = port + 1
        assert gateways.send(admin, "GET", "/admin/fallbacks").status == 401
        shown = gateways.send(admin, "GET", "/admin/fallbacks", headers=ADMIN)
        (known,) = json.loads(shown.body)["fallbacks"].values()
        assert (known["reason"], known["right"]) == ("precision", 0)
        assert abs(known["since"] - time.time()) < 60
        reset = gateways.send(admin, "POST", "/admin/reset-fallbacks", headers=ADMIN)
        assert list(json.loads(reset.body)["reset"]) == ["virtual"]
        wait_until(lambda: not any(ask(port)[1] for _ in range(20)))
        shown = gateways.send(admin, "GET", "/admin/fallbacks", headers=ADMIN)
        assert json.loads(shown.body) == {"fallbacks": {}}


@pytest.mark.parametrize("value", ["{}", "[1]", "not json", '{"reason": 1, "later": 2}'])
def test_a_state_that_cannot_be_read_is_shown_until_it_is_reset(
    tmp_path: Path, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config({"base_url": "http://127.0.0.1:1", "state_directory": str(tmp_path)})
    names = ["virtual"]

    async def store() -> None:
        register = config.open_register()
        await update(register, FALLBACK + "virtual", lambda _: (value, None))
        await register.close()

    async def reset() -> list[dict[str, FallbackState]]:
        register = config.open_register()
        shown = [await read_fallbacks(register, names)]
        await reset_fallbacks(register, shown[0])
        shown.append(await read_fallbacks(register, names))
        await register.close()
        return shown

    asyncio.run(store())
    with serving(tmp_path, make_bundle()) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED * 20))
        assert not ask(port)[1]
        assert "fallbacks are those of each process alone" in caplog.text
        assert vars(caplog.records[0])["fields"]["key"] == "fallback/virtual"
        before, after = asyncio.run(reset())
        assert "cannot be read" in before["virtual"].detail
        assert after == {}
        for _ in range(6):
            grade(port, ask(port)[0], correct=False)
        wait_until(lambda: ask(port)[1])
    assert list(asyncio.run(reset())[0]) == names


def test_a_fallback_needs_to_know_what_is_run_today(tmp_path: Path) -> None:
    path = tmp_path / "p"
    save_bundle(Bundle(make_bundle().policy, frontier=make_bundle().frontier), path)
    for fallback, message in (("today", "does not say what is run"), ("stop", "none or today")):
        model = {"bundle": str(path), "budget": 3.0, "fallback": fallback}
        with (
            pytest.raises(ConfigError, match=message),
            gateways.serve_scripted_gateway(model),
        ):
            pass
