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
from adacompute.models.messages import Capabilities, Prompt, Retries, Settings
from adacompute.models.openai import Upstream
from adacompute.models.probe import MOST_CHOICES, describe, load_cached, probe, save_cached
from adacompute.testing.fake_openai import FakeSettings, serve
from adacompute.testing.llama import Llama, missing, serve_llama

QUICK = Retries(attempts=6, first_s=0.005, longest_s=0.1)

RIGHT = Capabilities(
    chat="present",
    completions="present",
    n="native",
    n_limit=None,
    n_at_zero="accepted",
    seed="repeatable",
    seed_with_n="distinct",
    logprobs="given",
    usage_counts="all",
    stream_usage="given",
    cancel="unknown",  # a fake with slots without end cannot be slowed down
    max_tokens="honoured",
    max_completion_tokens="honoured",
    effort="ignored",
)
ALONE: dict[str, Any] = {"n_at_zero": "unknown", "seed_with_n": "unknown"}


def found(settings: FakeSettings) -> Capabilities:
    async def main(base_url: str) -> Capabilities:
        async with Upstream(base_url, "m", retries=QUICK) as upstream:
            return await probe(upstream)

    tokens = 40 if settings.tokens == FakeSettings.tokens else settings.tokens
    with serve(dataclasses.replace(settings, tokens=tokens)) as fake:
        capabilities = asyncio.run(main(fake.base_url))
        assert fake.stats()["calls"] < 60
    return capabilities


@pytest.mark.parametrize(
    ("settings", "differences"),
    [
        pytest.param(FakeSettings(), {}, id="does everything right"),
        pytest.param(FakeSettings(n="ignored"), {"n": "ignored", **ALONE}, id="n ignored"),
        pytest.param(FakeSettings(n="refused"), {"n": "refused", **ALONE}, id="n refused"),
        pytest.param(FakeSettings(n="limit:2"), {"n": "limited", "n_limit": 2}, id="2 slots"),
        pytest.param(FakeSettings(n="limit:4"), {"n": "limited", "n_limit": 4}, id="4 slots"),
        pytest.param(FakeSettings(n="limit:63"), {"n": "limited", "n_limit": 63}, id="63 slots"),
        pytest.param(FakeSettings(n="limit:64"), {}, id="as many slots as are tried"),
        pytest.param(FakeSettings(zero_with_n="refused"), {"n_at_zero": "refused"}, id="n at 0"),
        pytest.param(FakeSettings(usage="one"), {"usage_counts": "one"}, id="usage of one choice"),
        pytest.param(
            FakeSettings(usage="one", logprobs=False),
            {"usage_counts": "one", "logprobs": "absent"},
            id="usage of one choice, no logprobs",
        ),
        pytest.param(
            FakeSettings(usage="none"),
            {"usage_counts": "absent", "stream_usage": "absent"},
            id="no usage",
        ),
        pytest.param(FakeSettings(stream_usage=False), {"stream_usage": "absent"}, id="stream"),
        pytest.param(FakeSettings(logprobs=False), {"logprobs": "absent"}, id="no logprobs"),
        pytest.param(
            FakeSettings(max_completion_tokens=False),
            {"max_completion_tokens": "ignored"},
            id="max_completion_tokens unknown",
        ),
        pytest.param(FakeSettings(seeds="ignored"), {"seed": "ignored"}, id="seed ignored"),
        pytest.param(
            FakeSettings(seeds="identical"), {"seed_with_n": "identical"}, id="copies of one seed"
        ),
        pytest.param(FakeSettings(effort="none"), {"effort": "refused"}, id="no effort"),
        pytest.param(FakeSettings(effort="changes"), {"effort": "changes"}, id="effort matters"),
        pytest.param(
            FakeSettings(refuses=("seed",)),
            {"seed": "refused", "seed_with_n": "unknown"},
            id="seed refused",
        ),
        pytest.param(
            FakeSettings(refuses=("logprobs",)), {"logprobs": "refused"}, id="logprobs refused"
        ),
        pytest.param(
            FakeSettings(refuses=("stream_options",)),
            {"stream_usage": "refused"},
            id="usage in streams refused",
        ),
        pytest.param(
            FakeSettings(refuses=("stream",)), {"stream_usage": "refused"}, id="streams refused"
        ),
        pytest.param(
            FakeSettings(refuses=("max_tokens",)), {"max_tokens": "refused"}, id="new limit only"
        ),
        pytest.param(
            FakeSettings(refuses=("max_completion_tokens",)),
            {"max_completion_tokens": "refused"},
            id="old limit only",
        ),
        pytest.param(
            FakeSettings(refuses=("max_tokens", "max_completion_tokens")),
            {"max_tokens": "refused", "max_completion_tokens": "refused"},
            id="no limit at all",
        ),
        pytest.param(
            FakeSettings(refuses=("stream",), max_completion_tokens=False),
            {"stream_usage": "refused", "max_completion_tokens": "ignored"},
            id="streams refused, new limit ignored",
        ),
        pytest.param(
            FakeSettings(logprobs=False, usage="one", tokens=3),
            {
                "logprobs": "absent",
                "usage_counts": "one",
                "seed": "unknown",
                "seed_with_n": "identical",
            },
            id="short answers that never differ",
        ),
        pytest.param(
            FakeSettings(endpoints=("chat/completions",)), {"completions": "absent"}, id="chat only"
        ),
        pytest.param(
            FakeSettings(endpoints=("completions",)),
            {"chat": "absent", "effort": "unknown"},
            id="completions only",
        ),
        pytest.param(
            FakeSettings(
                n="limit:3",
                usage="one",
                seeds="identical",
                max_completion_tokens=False,
                zero_with_n="refused",
            ),
            {
                "n": "limited",
                "n_limit": 3,
                "usage_counts": "one",
                "seed_with_n": "identical",
                "max_completion_tokens": "ignored",
                "n_at_zero": "refused",
            },
            id="slots, usage of one, copies, old limit",
        ),
        pytest.param(
            FakeSettings(n="ignored", usage="none", logprobs=False, seeds="ignored"),
            {
                "n": "ignored",
                "usage_counts": "absent",
                "stream_usage": "absent",
                "logprobs": "absent",
                "seed": "ignored",
                **ALONE,
            },
            id="a bare server",
        ),
        pytest.param(
            FakeSettings(n="refused", faults={"429": 0.1, "500": 0.1, "reset": 0.1, "half": 0.05}),
            {"n": "refused", **ALONE},
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
    settings = FakeSettings(tokens=600, token_s=0.002, slots=1, cancel=cancel, n=n, usage="one")
    capabilities = found(settings)
    assert capabilities.cancel == told
    assert capabilities.n == n
    assert capabilities.usage_counts == ("one" if n == "native" else "all")


def test_a_story_that_ends_too_soon_tells_nothing() -> None:
    assert found(FakeSettings(tokens=40, token_s=0.002, slots=1)).cancel == "unknown"


def test_what_was_found_is_enough_to_draw() -> None:
    settings = FakeSettings(n="limit:3", usage="one", seeds="identical", zero_with_n="refused")

    async def main(base_url: str) -> tuple[int, int, int]:
        async with Upstream(base_url, "m", retries=QUICK) as upstream:
            upstream.capabilities = await probe(upstream)
            prompt = Prompt(text="6 x 7 =")
            one = await upstream.draw(prompt, Settings(), count=7)
            two = await upstream.draw(prompt, Settings(temperature=0), count=4)
            three = await upstream.draw(prompt, Settings(), count=5, seed=1)
            return len(one), len(two), len({draw.text for draw in three})

    with serve(settings) as fake:
        assert asyncio.run(main(fake.base_url)) == (7, 4, 5)


def test_a_server_without_either_endpoint_is_refused() -> None:
    with pytest.raises(RequestRejected, match="404"):
        found(FakeSettings(endpoints=()))


def test_a_server_that_only_fails_is_an_error() -> None:
    with pytest.raises(ModelError, match="500"):
        found(FakeSettings(faults={"500": 1.0}))


# What people read


def test_every_finding_has_its_sentences() -> None:
    rows = describe(Capabilities())
    assert len(rows) == len(dataclasses.fields(Capabilities)) - 1  # n_limit stands with n
    assert all(all(part for part in row) for row in rows)
    assert all(found == "could not be told" for _, found, _ in rows)
    limited = describe(Capabilities(n="limited", n_limit=4))
    assert ("several choices a call (n)", "up to 4", "one call brings up to 4 draws") in limited


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
def llama() -> Iterator[Llama]:
    if reason := missing():
        pytest.skip(reason)
    with serve_llama(slots=4) as server:
        yield server


@pytest.mark.slow
def test_a_real_server_is_probed(llama: Llama) -> None:
    async def main() -> Capabilities:
        async with Upstream(llama.base_url, llama.model) as upstream:
            return await probe(upstream)

    capabilities = asyncio.run(main())
    for row in describe(capabilities):
        print("{:27} {:32} {}".format(*row))  # noqa: T201 - the table is the result
    sure = dataclasses.replace(capabilities, cancel="unknown")  # timing, on a busy machine
    assert sure == dataclasses.replace(RIGHT, n="limited", n_limit=4, usage_counts="one")
    assert capabilities.cancel in {"stops", "unknown"}
    assert capabilities.n_limit is not None
    assert capabilities.n_limit < MOST_CHOICES


@pytest.mark.slow
def test_a_real_server_is_drawn_from(llama: Llama) -> None:
    known = dataclasses.replace(RIGHT, n="limited", n_limit=4, usage_counts="one")
    shots = "Question: What is 2 + 3?\nAnswer: 2 + 3 = 5\nQuestion: What is 7 + 6?\nAnswer:"

    async def main() -> list[Any]:
        async with Upstream(llama.base_url, llama.model, capabilities=known) as upstream:
            settings = Settings(max_tokens=10, stop=("\n",))
            return await upstream.draw(Prompt(text=shots), settings, count=6, seed=1)

    draws = asyncio.run(main())
    assert [draw.shared for draw in draws] == [4] * 4 + [2] * 2
    assert all(1 <= draw.completion_tokens <= 10 for draw in draws)
    assert all(draw.logprob < 0 and not draw.estimated for draw in draws)
    assert len({draw.text for draw in draws}) > 1 or draws[0].text.strip() == "7 + 6 = 13"
