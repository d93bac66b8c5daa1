from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from adacompute.core.errors import ConfigError
from adacompute.testing.fake_answers import read_recorded
from adacompute.testing.fake_openai import FakeSettings, main, serve_fake

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=20)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        return json.load(answer)


def test_the_official_client_understands_it() -> None:
    with serve_fake(FakeSettings(completion_tokens=6)) as fake, client(fake.base_url) as official:
        chat = official.chat.completions.create(
            model="m", messages=HELLO, n=3, seed=1, logprobs=True, max_tokens=5
        )
        assert len({choice.message.content for choice in chat.choices}) == 3
        assert chat.choices[0].finish_reason == "length"
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 15
        assert chat.choices[0].logprobs is not None
        assert len(chat.choices[0].logprobs.content or []) == 5
        text = official.completions.create(model="m", prompt="hello", logprobs=1)
        assert text.choices[0].text.startswith("The answer is ")
        assert [model.id for model in official.models.list()] == ["fake"]


def test_the_official_client_understands_its_streams() -> None:
    with serve_fake(FakeSettings()) as fake, client(fake.base_url) as official:
        whole = official.chat.completions.create(model="m", messages=HELLO, seed=2)
        parts = list(
            official.chat.completions.create(
                model="m",
                messages=HELLO,
                seed=2,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        said = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert said == whole.choices[0].message.content
        assert parts[-1].usage == whole.usage


def test_answers_depend_on_prompt_and_seed_only() -> None:
    def text(official: openai.OpenAI, **fields: Any) -> str:
        reply: Any = official.chat.completions.create(model="m", messages=HELLO, **fields)
        return str(reply.choices[0].message.content)

    with serve_fake() as fake, serve_fake(FakeSettings(seed=9)) as other:
        one, two = client(fake.base_url), client(other.base_url)
        with one, two:
            assert text(one, seed=1) == text(two, seed=1)
            assert text(one, seed=1) != text(one, seed=2)
            assert text(one, temperature=0) == text(two, temperature=0, seed=5)
            assert text(one) != text(one)


@pytest.mark.parametrize(
    ("settings", "fields", "said"),
    [
        (FakeSettings(n="rejected"), {"n": 2}, "between 1 <= value <= 1"),
        (FakeSettings(n="limit:4"), {"n": 5}, "between 1 <= value <= 4"),
        (FakeSettings(n_at_temperature_0="rejected"), {"n": 2, "temperature": 0}, "greedy"),
        (FakeSettings(reasoning_effort="none"), {"reasoning_effort": "low"}, "Unknown parameter"),
    ],
)
def test_what_it_refuses_is_a_bad_request(
    settings: FakeSettings, fields: dict[str, Any], said: str
) -> None:
    with serve_fake(settings) as fake, client(fake.base_url) as official:
        with pytest.raises(openai.BadRequestError, match=said):
            official.chat.completions.create(model="m", messages=HELLO, **fields)
        assert (fake.stats()["rejected"], fake.stats()["choices"]) == (1, 0)


def test_counts_are_right_under_concurrency_and_shown() -> None:
    faults = {"429": 0.1, "few": 0.1}
    with serve_fake(FakeSettings(latency_s=0.005, fault_rates=faults)) as fake:
        official = client(fake.base_url)

        def call(_: int) -> int:
            try:
                reply = official.chat.completions.create(model="m", messages=HELLO, n=4)
            except openai.RateLimitError:
                return 0
            return len(reply.choices)

        with official, ThreadPoolExecutor(16) as threads:
            got = list(threads.map(call, range(200)))
        stats = get(fake.base_url.removesuffix("/v1") + "/stats")
        assert stats == fake.stats()
        assert (stats["calls"], stats["open"]) == (200, 0)
        assert stats["faults"] == {"429": got.count(0), "few": got.count(2)}
        assert stats["choices"] == sum(got)
        assert stats["answered"] == 200 - got.count(0)
        assert stats["peak"] > 1


def test_faults_are_the_same_for_the_same_seed() -> None:
    def met(seed: int) -> list[int]:
        faults = {"500": 0.3, "502": 0.3}
        with (
            serve_fake(FakeSettings(fault_rates=faults, seed=seed)) as fake,
            client(fake.base_url) as one,
        ):
            statuses = []
            for _ in range(20):
                try:
                    one.chat.completions.create(model="m", messages=HELLO)
                    statuses.append(200)
                except openai.APIStatusError as error:
                    statuses.append(error.status_code)
            return statuses

    assert met(1) == met(1)
    assert met(1) != met(2)
    assert set(met(1)) == {200, 500, 502}


@pytest.mark.parametrize(("cancel", "waits"), [("honoured", False), ("ignored", True)])
def test_a_lost_connection_frees_its_slot_only_where_that_is_honoured(
    cancel: Any, *, waits: bool
) -> None:
    async def hang_up(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = json.dumps({"messages": HELLO}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(asked)}"
        writer.write(head.encode() + b"\r\n\r\n" + asked)
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()
        await writer.wait_closed()
        del reader

    settings = FakeSettings(latency_s=1.5, max_concurrency=1, cancel=cancel)
    with serve_fake(settings) as fake:
        asyncio.run(hang_up(fake.port))
        begun = time.monotonic()
        with client(fake.base_url) as official:
            official.chat.completions.create(model="m", messages=HELLO)
        taken = time.monotonic() - begun
        assert fake.stats()["cancelled"] == 1
        assert (taken > 2.1) == waits


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault_rates": {"x": 0.1}},
        {"fault_script": ("x",)},
        {"fault_rates": {"429": 1.1}},
        {"n": "limit:"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FakeSettings(**wrong)


def test_other_paths_and_bodies_are_refused() -> None:
    with (
        serve_fake(FakeSettings(endpoints=("completions",))) as fake,
        client(fake.base_url) as official,
    ):
        with pytest.raises(openai.NotFoundError):
            official.chat.completions.create(model="m", messages=HELLO)
        assert get(fake.base_url.removesuffix("/v1") + "/health") == {"status": "ok"}
        request = urllib.request.Request(f"{fake.base_url}/completions", b"no json")  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - loopback
        caught.value.close()


def test_it_runs_as_a_process_that_prints_its_port() -> None:
    options = [
        "--n",
        "limit:2",
        "--completion-tokens",
        "3",
        "--fault-rates",
        "429=0,few=0.0",
        "--stream-usage",
        "no",
    ]
    command = [
        sys.executable,
        "-m",
        "adacompute.testing.fake_openai",
        *options,
        "--fault-script",
        "ok,500",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with client(f"http://127.0.0.1:{port}/v1") as official:
                reply = official.chat.completions.create(model="m", messages=HELLO, n=2)
                assert [choice.message.content for choice in reply.choices] == ["The answer is"] * 2
                with pytest.raises(openai.InternalServerError):
                    official.chat.completions.create(model="m", messages=HELLO)
            stats = get(f"http://127.0.0.1:{port}/stats")
            assert (stats["calls"], stats["choices"], stats["faults"]) == (2, 2, {"500": 1})
        finally:
            process.terminate()


def test_options_that_do_not_exist_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--no-such"])
    assert "--no-such" in capsys.readouterr().err


RECORDED = "What is 6 + 3?"
RECORDED_PROMPT = f"Question: What is half of 18?\nAnswer: 9\n\nQuestion: {RECORDED}\nAnswer:"


def test_recorded_answers_are_samples_of_the_question_that_was_asked() -> None:
    known: dict[str, list[int]] = {}
    for text, n_tokens in read_recorded()[RECORDED]:
        known.setdefault(text, []).append(n_tokens)
    with (
        serve_fake(FakeSettings(recorded=True)) as fake,
        openai.OpenAI(base_url=fake.base_url, api_key="none", max_retries=0) as client,
    ):
        reply = client.completions.create(model="any", prompt=RECORDED_PROMPT, n=5, seed=1)
        again = client.completions.create(model="any", prompt=RECORDED_PROMPT, n=5, seed=1)
        message: Any = {"role": "user", "content": RECORDED}
        chat = client.chat.completions.create(model="any", messages=[message])
        streamed = client.chat.completions.create(model="any", messages=[message], stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
        with pytest.raises(openai.NotFoundError, match="Who"):
            client.completions.create(model="any", prompt="Question: Who?\nAnswer:")
    texts = [choice.text for choice in reply.choices]
    assert len(texts) == 5
    assert set(texts) <= set(known)
    assert [choice.text for choice in again.choices] == texts
    assert reply.usage is not None
    low, high = (sum(end(known[text]) for text in texts) for end in (min, max))
    assert low - 2.5 <= reply.usage.completion_tokens <= high + 2.5  # five times a rounded mean
    answer = chat.choices[0].message.content
    assert answer is not None
    assert chat.usage is not None
    assert chat.usage.completion_tokens in known[answer]
    assert "".join(pieces) in known
