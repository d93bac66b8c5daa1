from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ModelError, RequestRejected
from adacompute.models.calls import UNTRACKED, StartedCall
from adacompute.models.capabilities_cache import describe, load_cached, save_cached
from adacompute.models.messages import Capabilities, Prompt, RetryPolicy, Sample, Settings
from adacompute.models.probe import (
    MAX_CALLS,
    MAX_CHOICES,
    MAX_COMPLETION_TOKENS,
    MAX_PROMPT_TOKENS,
    probe,
)
from adacompute.spending.attempts import CallBound
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from adacompute.testing.llama import missing_requirement
from test_support.llama import LlamaServer, serve_llama
from test_support.upstreams import draw_samples, open_upstream

QUICK = RetryPolicy(max_attempts=6, initial_wait_s=0.005, max_wait_s=0.1)

RIGHT = Capabilities(
    chat="available",
    completions="available",
    n="native",
    max_n=None,
    n_at_temperature_0="accepted",
    seed="reproducible",
    seed_with_n="distinct",
    logprobs="returned",
    usage="all",
    stream_usage="returned",
    cancel="unknown",  # a fake with slots without end cannot be slowed down
    max_tokens="honoured",
    max_completion_tokens="honoured",
    reasoning_effort="ignored",
)
ALONE: dict[str, Any] = {"n_at_temperature_0": "unknown", "seed_with_n": "unknown"}


def found(settings: FakeSettings) -> Capabilities:
    bounds: list[CallBound] = []

    class Tracker:
        async def start(self, path: str, payload: bytes, attempt: int) -> StartedCall:
            if attempt == 1:
                bounds.append(CallBound.read(path, payload))
            return await UNTRACKED.start(path, payload, attempt)

    async def main(base_url: str) -> Capabilities:
        async with open_upstream(base_url, "m", retries=QUICK, tracker=Tracker()) as upstream:
            return await probe(upstream)

    tokens = (
        40
        if settings.completion_tokens == FakeSettings.completion_tokens
        else settings.completion_tokens
    )
    with serve_fake(dataclasses.replace(settings, completion_tokens=tokens)) as fake:
        capabilities = asyncio.run(main(fake.base_url))
        assert fake.stats()["calls"] < 60
    assert len(bounds) <= MAX_CALLS
    assert sum(one.prompt_tokens for one in bounds) <= MAX_PROMPT_TOKENS
    limited = [one.completion_tokens for one in bounds if one.is_limited]
    assert sum(limited) <= MAX_COMPLETION_TOKENS
    return capabilities


@pytest.mark.parametrize(
    ("settings", "differences"),
    [
        pytest.param(FakeSettings(), {}, id="does everything right"),
        pytest.param(FakeSettings(n="ignored"), {"n": "ignored", **ALONE}, id="n ignored"),
        pytest.param(FakeSettings(n="rejected"), {"n": "rejected", **ALONE}, id="n refused"),
        pytest.param(FakeSettings(n="limit:2"), {"n": "limited", "max_n": 2}, id="2 slots"),
        pytest.param(FakeSettings(n="limit:4"), {"n": "limited", "max_n": 4}, id="4 slots"),
        pytest.param(FakeSettings(n="limit:63"), {"n": "limited", "max_n": 63}, id="63 slots"),
        pytest.param(FakeSettings(n="limit:64"), {}, id="as many slots as are tried"),
        pytest.param(
            FakeSettings(n_at_temperature_0="rejected"),
            {"n_at_temperature_0": "rejected"},
            id="n at 0",
        ),
        pytest.param(FakeSettings(usage="one"), {"usage": "one"}, id="usage of one choice"),
        pytest.param(
            FakeSettings(usage="one", logprobs=False),
            {"usage": "one", "logprobs": "missing"},
            id="usage of one choice, no logprobs",
        ),
        pytest.param(
            FakeSettings(usage="none"),
            {"usage": "missing", "stream_usage": "missing"},
            id="no usage",
        ),
        pytest.param(FakeSettings(stream_usage=False), {"stream_usage": "missing"}, id="stream"),
        pytest.param(FakeSettings(logprobs=False), {"logprobs": "missing"}, id="no logprobs"),
        pytest.param(
            FakeSettings(max_completion_tokens=False),
            {"max_completion_tokens": "ignored"},
            id="max_completion_tokens unknown",
        ),
        pytest.param(FakeSettings(seed_support="ignored"), {"seed": "ignored"}, id="seed ignored"),
        pytest.param(
            FakeSettings(seed_support="identical"),
            {"seed_with_n": "identical"},
            id="copies of one seed",
        ),
        pytest.param(
            FakeSettings(reasoning_effort="none"), {"reasoning_effort": "rejected"}, id="no effort"
        ),
        pytest.param(
            FakeSettings(reasoning_effort="changes"),
            {"reasoning_effort": "effective"},
            id="effort matters",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("seed",)),
            {"seed": "rejected", "seed_with_n": "unknown"},
            id="seed refused",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("logprobs",)),
            {"logprobs": "rejected"},
            id="logprobs refused",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("stream_options",)),
            {"stream_usage": "rejected"},
            id="usage in streams refused",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("stream",)),
            {"stream_usage": "rejected"},
            id="streams refused",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("max_tokens",)),
            {"max_tokens": "rejected"},
            id="new limit only",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("max_completion_tokens",)),
            {"max_completion_tokens": "rejected"},
            id="old limit only",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("max_tokens", "max_completion_tokens")),
            {"max_tokens": "rejected", "max_completion_tokens": "rejected"},
            id="no limit at all",
        ),
        pytest.param(
            FakeSettings(rejected_fields=("stream",), max_completion_tokens=False),
            {"stream_usage": "rejected", "max_completion_tokens": "ignored"},
            id="streams refused, new limit ignored",
        ),
        pytest.param(
            FakeSettings(logprobs=False, usage="one", completion_tokens=3),
            {
                "logprobs": "missing",
                "usage": "one",
                "seed": "unknown",
                "seed_with_n": "identical",
            },
            id="short answers that never differ",
        ),
        pytest.param(
            FakeSettings(endpoints=("chat/completions",)),
            {"completions": "unavailable"},
            id="chat only",
        ),
        pytest.param(
            FakeSettings(endpoints=("completions",)),
            {"chat": "unavailable", "reasoning_effort": "unknown"},
            id="completions only",
        ),
        pytest.param(
            FakeSettings(
                n="limit:3",
                usage="one",
                seed_support="identical",
                max_completion_tokens=False,
                n_at_temperature_0="rejected",
            ),
            {
                "n": "limited",
                "max_n": 3,
                "usage": "one",
                "seed_with_n": "identical",
                "max_completion_tokens": "ignored",
                "n_at_temperature_0": "rejected",
            },
            id="slots, usage of one, copies, old limit",
        ),
        pytest.param(
            FakeSettings(n="ignored", usage="none", logprobs=False, seed_support="ignored"),
            {
                "n": "ignored",
                "usage": "missing",
                "stream_usage": "missing",
                "logprobs": "missing",
                "seed": "ignored",
                **ALONE,
            },
            id="a bare server",
        ),
        pytest.param(
            FakeSettings(
                n="rejected", fault_rates={"429": 0.1, "500": 0.1, "reset": 0.1, "half": 0.05}
            ),
            {"n": "rejected", **ALONE},
            id="a server with faults",
        ),
    ],
)
def test_the_probe_finds_what_a_server_does(
    settings: FakeSettings, differences: dict[str, Any]
) -> None:
    assert found(settings) == dataclasses.replace(RIGHT, **differences)


@pytest.mark.slow
@pytest.mark.parametrize(("cancel", "told"), [("honoured", "stops"), ("ignored", "continues")])
@pytest.mark.parametrize("n", ["native", "ignored"])
def test_the_probe_finds_whether_hanging_up_stops_the_work(cancel: Any, told: str, n: str) -> None:
    settings = FakeSettings(
        completion_tokens=600,
        token_latency_s=0.002,
        max_concurrency=1,
        cancel=cancel,
        n=n,
        usage="one",
    )
    capabilities = found(settings)
    assert capabilities.cancel == told
    assert capabilities.n == n
    assert capabilities.usage == ("one" if n == "native" else "all")


def test_a_story_that_ends_too_soon_tells_nothing() -> None:
    assert (
        found(FakeSettings(completion_tokens=40, token_latency_s=0.002, max_concurrency=1)).cancel
        == "unknown"
    )


def test_probed_capabilities_limit_the_samples_per_call() -> None:
    settings = FakeSettings(
        n="limit:3", usage="one", seed_support="identical", n_at_temperature_0="rejected"
    )

    async def main(base_url: str) -> tuple[int, int, int]:
        async with open_upstream(base_url, "m", retries=QUICK) as upstream:
            upstream.capabilities = await probe(upstream)
            prompt = Prompt(text="6 x 7 =")
            samples = await draw_samples(upstream, prompt, Settings(), count=7)
            greedy = await draw_samples(upstream, prompt, Settings(temperature=0), count=4)
            seeded = await draw_samples(upstream, prompt, Settings(), count=5, seed=1)
            return len(samples), len(greedy), len(seeded)

    with serve_fake(settings) as fake:
        assert asyncio.run(main(fake.base_url)) == (3, 1, 1)


def test_a_server_without_either_endpoint_is_refused() -> None:
    with pytest.raises(RequestRejected, match="404"):
        found(FakeSettings(endpoints=()))


def test_a_server_that_only_fails_is_an_error() -> None:
    with pytest.raises(ModelError, match="500"):
        found(FakeSettings(fault_rates={"500": 1.0}))


# What people read


def test_every_finding_has_its_sentences() -> None:
    rows = describe(Capabilities())
    assert len(rows) == len(dataclasses.fields(Capabilities)) - 1  # max_n is described with n
    assert all(all(part for part in row) for row in rows)
    assert all(found == "unknown" for _, found, _ in rows)
    limited = describe(Capabilities(n="limited", max_n=4))
    assert any(result == "up to 4" for _, result, _ in limited)


# The cache


def test_findings_are_kept_for_a_while(tmp_path: Path) -> None:
    place = save_cached(tmp_path / "new", "http://127.0.0.1:1/v1/", "m", RIGHT)
    assert load_cached(tmp_path / "new", "http://127.0.0.1:1/v1", "m") == RIGHT
    assert load_cached(tmp_path / "new", "http://127.0.0.1:1/v1", "other") is None
    assert load_cached(tmp_path / "new", "http://127.0.0.1:2/v1", "m") is None
    assert load_cached(tmp_path, "http://127.0.0.1:1/v1", "m") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == [place.name]


def test_findings_that_are_too_old_are_forgotten(tmp_path: Path) -> None:
    save_cached(tmp_path, "http://127.0.0.1:1/v1", "m", RIGHT, ttl_s=-1)
    assert load_cached(tmp_path, "http://127.0.0.1:1/v1", "m") is None


@given(st.binary(max_size=20) | st.sampled_from([b"[1]", b'{"model": 1}', b"[" * 10_000]))
def test_a_cache_that_cannot_be_read_is_no_cache(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    directory = tmp_path_factory.mktemp("cache")
    save_cached(directory, "http://127.0.0.1:1/v1", "m", RIGHT).write_bytes(content)
    assert load_cached(directory, "http://127.0.0.1:1/v1", "m") is None


def test_a_cache_of_another_version_is_no_cache(tmp_path: Path) -> None:
    place = save_cached(tmp_path, "http://127.0.0.1:1/v1", "m", RIGHT)
    document = json.loads(place.read_text())
    document["capabilities"]["n"] = "sometimes"
    place.write_text(json.dumps(document))
    assert load_cached(tmp_path, "http://127.0.0.1:1/v1", "m") is None


# A real server


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaServer]:
    if reason := missing_requirement():
        pytest.skip(reason)
    with serve_llama(slots=4) as server:
        yield server


@pytest.mark.slow
def test_a_real_server_is_probed(llama: LlamaServer) -> None:
    async def main() -> Capabilities:
        async with open_upstream(llama.base_url, llama.model) as upstream:
            return await probe(upstream)

    capabilities = asyncio.run(main())
    for row in describe(capabilities):
        print("{:27} {:32} {}".format(*row))  # noqa: T201 - the table is the result
    sure = dataclasses.replace(capabilities, cancel="unknown")  # timing, on a busy machine
    expected = dataclasses.replace(RIGHT, n="limited", max_n=4, usage="one", kind="llama.cpp")
    assert sure == expected
    assert capabilities.cancel in {"stops", "unknown"}
    assert capabilities.max_n is not None
    assert capabilities.max_n < MAX_CHOICES


@pytest.mark.slow
def test_a_real_server_is_drawn_from(llama: LlamaServer) -> None:
    known = dataclasses.replace(RIGHT, n="limited", max_n=4, usage="one")
    few_shot = "Question: What is 2 + 3?\nAnswer: 2 + 3 = 5\nQuestion: What is 7 + 6?\nAnswer:"

    async def main() -> list[Sample]:
        async with open_upstream(llama.base_url, llama.model, capabilities=known) as upstream:
            settings = Settings(max_tokens=10, stop=("\n",))
            first = await draw_samples(upstream, Prompt(text=few_shot), settings, count=6, seed=1)
            return first + await draw_samples(
                upstream, Prompt(text=few_shot), settings, count=2, seed=5
            )

    samples = asyncio.run(main())
    assert [sample.samples_per_call for sample in samples] == [4] * 4 + [2] * 2
    assert all(1 <= (sample.completion_tokens or 0) <= 10 for sample in samples)
    assert all((sample.mean_logprob or 0.0) < 0 and not sample.is_estimated for sample in samples)
    assert len({sample.text for sample in samples}) > 1 or samples[0].text.strip() == "7 + 6 = 13"
