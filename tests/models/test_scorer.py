from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ConfigError, ModelError, ModelTimeout, RequestRejected
from adacompute.models.calls import UNTRACKED
from adacompute.models.formats.openai_format import MalformedReply
from adacompute.models.messages import RetryPolicy, Timeouts
from adacompute.models.scorer import HttpScorer, parse_score
from adacompute.testing.fake_answers import fake_score
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.upstreams import with_limits

SOON = RetryPolicy(max_attempts=3, initial_wait_s=0.001, max_wait_s=0.01)


def score(fake: FakeUpstream, path: str = "score", **options: Any) -> float:
    async def ask() -> float:
        url = f"{fake.base_url}/{path}"
        given = with_limits({"retries": SOON, "tracker": UNTRACKED, **options})
        async with HttpScorer(url, **given) as scorer:
            return await scorer.score("What is 6 x 7?", "It is 42.")

    return asyncio.run(ask())


def test_a_text_is_scored() -> None:
    with serve_fake() as fake:
        assert score(fake) == fake_score("It is 42.")
        assert fake.stats()["calls"] == 1


@pytest.mark.parametrize("fault", ["429", "500", "reset", "half", "garbled", "shape", "type"])
def test_what_passes_is_tried_again(fault: str) -> None:
    heard: list[str] = []
    with serve_fake(FakeSettings(fault_script=(fault, fault))) as fake:
        found = score(fake, on_event=lambda event, _: heard.append(event))
        assert (found, fake.stats()["calls"]) == (fake_score("It is 42."), 3)
    assert heard == ["retry", "retry"]


def test_what_does_not_pass_is_one_of_our_errors() -> None:
    with serve_fake(FakeSettings(fault_rates={"500": 1.0})) as fake:
        with pytest.raises(
            ModelError, match=rf"{fake.base_url}/score answered 500: the fake fails"
        ):
            score(fake)
        assert fake.stats()["calls"] == 3
        with pytest.raises(RequestRejected, match="there is no /v1/nowhere"):
            score(fake, "nowhere")
    with (
        serve_fake(FakeSettings(fault_script=("stall",))) as fake,
        pytest.raises(ModelTimeout, match="did not begin"),
    ):
        score(fake, timeouts=Timeouts(first_byte_s=0.05), retries=RetryPolicy(max_attempts=1))


def test_the_address_is_asked_to_the_letter() -> None:
    with serve_fake() as fake, pytest.raises(RequestRejected, match="there is no /v1/score/"):
        score(fake, "score/")
    with pytest.raises(ConfigError, match="base URL"):
        HttpScorer("scorer")


@pytest.mark.parametrize("document", [1, 1.5, -2, {"score": 0}, {"score": 1e9, "why": "good"}])
def test_a_score_is_a_number_or_an_object_with_one(document: Any) -> None:
    assert parse_score(document) == (
        document if not isinstance(document, dict) else document["score"]
    )


@pytest.mark.parametrize(
    "document",
    [
        None,
        True,
        "1",
        [1],
        {},
        {"score": "1"},
        {"score": None},
        float("nan"),
        -float("inf"),
        10**400,
    ],
)
def test_nothing_else_is_a_score(document: object) -> None:
    with pytest.raises(MalformedReply, match="neither a number"):
        parse_score(document)
