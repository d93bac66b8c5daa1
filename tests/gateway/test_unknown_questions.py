"""Prompts in which no question is found are decided by the votes alone, at their own price."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.types import hash_text
from adacompute.datasets.example import find_example, locate_bundle
from adacompute.datasets.rows import read_samples
from adacompute.gateway.accounting import account
from adacompute.gateway.settings.config import make_config
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.sampling.session import ParsedAnswer, Session
from adacompute.testing.fake_openai import serve_fake
from test_support import gateways

ROOT = Path(__file__).parents[2]
N_REQUESTS = 25


@pytest.fixture(scope="module")
def shipped() -> Bundle:
    return load_bundle(locate_bundle(Path("example")))


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A gateway with the policy of the README, at the fixed price of its budget."""
    model = {"bundle": "example", "budget": 2, "accept_verdict": True, "pacing": False}
    with serve_fake() as fake:
        content = {
            "base_url": fake.base_url,
            "models": {"SmolLM2-135M-Instruct": model},
            "probe": False,
            "state_directory": str(tmp_path),
            "decision_log": "answers",
        }
        with gateways.serve_gateway(make_config(content)) as found:
            yield found


def readme_body() -> dict[str, Any]:
    """Return the body of the request in the README."""
    command = (ROOT / "README.md").read_text().partition("/v1/completions ")[2]
    body: dict[str, Any] = json.loads(command.partition("-d '")[2].partition("'\n```")[0])
    return body


def ask(port: int, body: dict[str, Any]) -> tuple[int, str]:
    data = json.dumps(body).encode()
    reply = gateways.send(port, "POST", "/v1/completions", body=data)
    assert reply.status == 200
    (n_samples,), (source,) = (
        reply.values(f"x-adacompute-{name}") for name in ("samples", "question")
    )
    return int(n_samples), source


def test_the_prompt_of_the_readme_is_sampled_adaptively(port: int) -> None:
    found = [ask(port, readme_body()) for _ in range(N_REQUESTS)]
    assert {source for _, source in found} == {"template"}
    numbers = [n for n, _ in found]
    assert min(numbers) > 1
    assert len(set(numbers)) > 1


def test_a_prompt_without_a_question_is_sampled_adaptively(port: int) -> None:
    body = {**readme_body(), "prompt": "7 + 8 ="}
    found = [ask(port, body) for _ in range(2 * N_REQUESTS)]
    assert {source for _, source in found} == {"none"}
    numbers = [n for n, _ in found]
    assert min(numbers) == 1  # the same prompt is not always sampled alike
    assert max(numbers) > 2


def test_the_price_without_a_question_is_calibrated(shipped: Bundle) -> None:
    pooled = shipped.pooled
    assert pooled is not None
    samples = read_samples(find_example())
    question, answer = (samples[name].to_numpy() for name in ("question_id", "answer"))
    by_question = [answer[question == one] for one in np.unique(question)]
    for budget in (1.5, 2.0, 3.0):
        drawn = []
        for number, answers in enumerate(by_question * 4):
            session = Session(
                pooled, None, price=shipped.pooled_price_for(budget), key=hash_text(str(number))
            )
            while request := session.ask():
                some = answers[session.n_samples :][: request.n]
                session.tell(ParsedAnswer(None if one is None else str(one)) for one in some)
            drawn.append(session.n_samples)
        assert np.mean(drawn) == pytest.approx(budget, rel=0.15)


def test_a_bundle_that_is_not_calibrated_has_no_policy_for_unknown_questions(
    shipped: Bundle,
) -> None:
    assert shipped.pooled is not None
    assert shipped.pooled.pooled is None
    assert shipped.pooled.pooled_price_for(2.0) == shipped.pooled.price_for(2.0)


def test_unknown_questions_are_warned_of_once_per_minute(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**readme_body(), "prompt": "7 + 8 ="}
    with caplog.at_level(logging.WARNING, "adacompute.gateway"):
        for _ in range(3):
            ask(port, body)
        assert len(caplog.records) == 1
        monkeypatch.setattr(account, "WARN_S", 0.0)  # as if a minute had passed
        ask(port, body)
    assert len(caplog.records) == 2
