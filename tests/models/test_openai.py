from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from adacompute.core.errors import (
    ConfigError,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRejected,
)
from adacompute.models.connection.relay import ConnectionInterrupted, Relay
from adacompute.models.connection.retry_budget import RetryBudget
from adacompute.models.messages import Capabilities, Prompt, RetryPolicy, Sample, Settings, Timeouts
from adacompute.models.model import CallUsage
from adacompute.models.openai import Upstream
from adacompute.spending.attempts import CallBound, UsageTracker
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.upstreams import draw_samples, open_upstream

T = TypeVar("T")

CHAT = Prompt(messages=({"role": "user", "content": "6 x 7?"},))
PLAIN = Settings(max_tokens=64)
QUICK = RetryPolicy(max_attempts=4, initial_wait_s=0.01, max_wait_s=2.0)
NATIVE = Capabilities(n="native", seed="reproducible", seed_with_n="distinct", usage="all")
KEY = "sk-0123456789abcdef0123456789abcdef"


def ask(
    settings: FakeSettings, use: Callable[[Upstream, FakeUpstream], Awaitable[T]], **options: Any
) -> tuple[T, dict[str, Any]]:
    """Run one use of a client against a fake, and return what the fake counted too."""

    async def main(fake: FakeUpstream) -> T:
        async with open_upstream(fake.base_url, "m", **{"retries": QUICK, **options}) as upstream:
            return await use(upstream, fake)

    with serve_fake(settings) as fake:
        return asyncio.run(main(fake)), fake.stats()


async def one(upstream: Upstream, fake: FakeUpstream) -> Sample:
    del fake
    (draw,) = await draw_samples(upstream, CHAT, PLAIN, seed=1)
    return draw


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - it happens in another thread
            await asyncio.sleep(0.01)


@asynccontextmanager
async def canned(*replies: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each connection with the next of these bytes, and keeps what it got."""
    asked: list[bytes] = []
    left = list(replies)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked


@asynccontextmanager
async def forgetful(second: bytes = b"", *, after_s: float = 0.0) -> AsyncIterator[str]:
    """A server that keeps every connection, and ends it when a second request comes.

    To a client that is one that closed it just before; `second` is what it says first.
    """

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (GOOD.replace(b"Connection: close\r\n", b""), second):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(after_s if answer is second else 0)
            writer.write(answer)
            await writer.drain()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client left
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def reply(status: str, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


GOOD = reply(
    "200 OK", '{"choices": [{"message": {"content": "42"}}]}', "Content-Type: application/json"
)


# What passes


@pytest.mark.parametrize(
    "fault", ["429", "500", "502", "503", "reset", "half", "garbled", "shape", "type"]
)
def test_what_may_pass_is_tried_again(fault: str) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    draw, stats = ask(
        FakeSettings(fault_script=(fault, fault)),
        one,
        on_event=lambda name, fields: events.append((name, fields)),
    )
    assert draw.text.startswith("The answer is")
    assert stats["faults"] == {fault: 2}
    assert (stats["calls"], stats["answered"], stats["choices"]) == (3, 1, 1)
    assert [name for name, _ in events] == ["retry", "retry"]
    assert [fields["attempt"] for _, fields in events] == [1, 2]


def test_calls_share_a_budget_of_retries() -> None:
    events: list[str] = []
    budget = RetryBudget(0.5, reserve=4)

    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        for _ in range(20):
            with pytest.raises(ModelError):
                await one(upstream, fake)

    _, stats = ask(
        FakeSettings(fault_rates={"500": 1.0}),
        fail,
        retry_budget=budget,
        on_event=lambda name, _: events.append(name),
    )
    # Four at first, then half as many as calls; without a budget it would be three for each call.
    assert 12 <= events.count("retry") <= 14
    assert stats["calls"] == 20 + events.count("retry")
    assert events.count("failed") == 20
    assert events.count("retry_refused") >= 15


def test_a_server_that_says_nothing_is_asked_again_after_the_time_for_a_first_byte() -> None:
    draw, stats = ask(
        FakeSettings(fault_script=("stall",)), one, timeouts=Timeouts(first_byte_s=0.2)
    )
    assert draw.latency_s < 0.2
    assert (stats["calls"], stats["cancelled"]) == (2, 1)


def test_the_first_lost_connection_is_tried_again_at_once() -> None:
    patient = RetryPolicy(max_attempts=2, initial_wait_s=30, max_wait_s=60)
    begun = time.monotonic()
    _, stats = ask(FakeSettings(fault_script=("reset",)), one, retries=patient)
    assert stats["calls"] == 2
    assert time.monotonic() - begun < 10


async def asked_in_turn(url: str, count: int) -> tuple[int, list[str]]:
    """Attempts of which no usage is known, and events, of so many requests one after the other."""
    usage: list[CallUsage] = []
    tracker = UsageTracker(usage.append, CallBound("m", 1, 0))  # a reply counts two bytes
    events: list[str] = []
    async with open_upstream(
        url, "m", retries=QUICK, on_event=lambda name, _: events.append(name)
    ) as upstream:
        for _ in range(count):
            got = await upstream.post_bytes("x", b"{}", tracker=tracker)
            assert got.status == 200
    return sum(one.is_estimated and one.prompt_tokens == 1 for one in usage), events


def test_what_a_closed_connection_was_given_is_no_retry_but_may_be_billed() -> None:
    async def main() -> tuple[int, list[str]]:
        async with forgetful() as url:
            return await asked_in_turn(url, 6)

    n_unknown, events = asyncio.run(main())
    assert events == []
    assert n_unknown > 0


@pytest.mark.parametrize("size", [2, 2_000_000])
def test_what_passes_to_a_closed_connection_is_passed_again(size: int) -> None:
    async def main() -> list[int]:
        async with forgetful() as url, Relay(url) as relay:
            got = []
            for _ in range(4):
                async with relay.send("POST", "x", [], b" " * size) as relayed:
                    got.append(relayed.status)
                    assert [chunk async for chunk in relayed.chunks]
            return got

    assert asyncio.run(main()) == [200] * 4


def test_what_passes_is_not_passed_again_where_it_may_have_been_served() -> None:
    async def main() -> None:
        async with canned(b"") as (url, asked), Relay(url) as relay:
            with pytest.raises(ConnectionInterrupted):
                async with relay.send("POST", "x", [], b"{}"):
                    pass
            assert len(asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("second", "after_s"), [(b"HT", 0.0), (b"garbage\r\n\r\n", 0.0), (b"", 1.2)]
)
def test_a_connection_that_answered_or_took_its_time_may_have_served(
    second: bytes, after_s: float
) -> None:
    async def main() -> tuple[int, list[str]]:
        async with forgetful(second, after_s=after_s) as url:
            return await asked_in_turn(url, 2)

    assert asyncio.run(main()) == (1, ["retry"])


def test_a_new_connection_that_is_lost_may_have_served() -> None:
    async def main() -> tuple[int, list[str]]:
        async with canned(b"", GOOD) as (url, _):
            return await asked_in_turn(url, 1)

    assert asyncio.run(main()) == (1, ["retry"])


@pytest.mark.parametrize(("date", "least_s"), [(False, 0.7), (True, 1.0)])
def test_retry_after_is_honoured(*, date: bool, least_s: float) -> None:
    settings = FakeSettings(
        fault_script=("429",), retry_after_s=2.0 if date else 0.7, retry_after_date=date
    )

    async def timed(upstream: Upstream, fake: FakeUpstream) -> float:
        begun = time.monotonic()
        await one(upstream, fake)
        return time.monotonic() - begun

    taken, stats = ask(
        settings, timed, retries=RetryPolicy(max_attempts=2, initial_wait_s=0.01, max_wait_s=5)
    )
    assert least_s <= taken < 3.5
    assert stats["calls"] == 2


# What does not pass


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("500", ModelError, "answered 500: the fake fails"),
        ("429", RateLimited, "answered 429: the fake asks to slow down"),
        ("reset", ModelError, "lost the connection"),
        ("shape", ModelError, "holds no choices"),
        ("stall", ModelTimeout, "did not begin to answer within 0.05 s"),
    ],
)
def test_attempts_are_bounded_and_the_last_failure_is_told(
    fault: str, error: type[ModelError], said: str
) -> None:
    events: list[str] = []

    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        with pytest.raises(error, match=said) as caught:
            await one(upstream, fake)
        assert type(caught.value) is error
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
        assert fake.base_url in str(caught.value)

    _, stats = ask(
        FakeSettings(fault_rates={fault: 1.0}),
        fail,
        timeouts=Timeouts(first_byte_s=0.05 if fault == "stall" else 10),
        on_event=lambda name, _: events.append(name),
    )
    assert stats["faults"] == {fault: QUICK.max_attempts}
    assert events == ["retry"] * (QUICK.max_attempts - 1) + ["failed"]


def test_a_reply_that_begins_and_does_not_end_is_not_paid_for_twice() -> None:
    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        with pytest.raises(ModelTimeout, match=r"began to answer, then .* took 0\.3 s"):
            await one(upstream, fake)

    _, stats = ask(FakeSettings(fault_script=("hang",)), fail, timeouts=Timeouts(total_s=0.3))
    assert stats["calls"] == 1


def test_a_refusal_is_not_asked_again_and_says_what_the_server_said() -> None:
    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        del fake
        with pytest.raises(RequestRejected, match=r"answered 400: Field 'n': .* <= 4, but got 5"):
            await draw_samples(upstream, CHAT, PLAIN, count=5)

    _, stats = ask(FakeSettings(n="limit:4"), fail, capabilities=NATIVE)
    assert stats["calls"] == 1


@pytest.mark.parametrize("fault", ["429", "503"])
def test_a_server_that_wants_a_longer_wait_than_allowed_is_given_up_at_once(fault: str) -> None:
    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        with pytest.raises(RateLimited) as caught:
            await one(upstream, fake)
        assert pickle.loads(pickle.dumps(caught.value)).retry_after_s == 3600  # noqa: S301 - our own

    _, stats = ask(FakeSettings(fault_rates={fault: 1.0}, retry_after_s=3600), fail)
    assert stats["calls"] == 1


def test_a_server_that_is_not_there_is_an_error_of_ours() -> None:
    async def main() -> None:
        async with canned(GOOD) as (url, _):
            pass
        async with open_upstream(url, "m", retries=QUICK) as upstream:
            with pytest.raises(ModelError, match=r"cannot be reached .*is the server running"):
                await draw_samples(upstream, CHAT, PLAIN)

    asyncio.run(main())


def test_a_redirection_is_not_followed() -> None:
    async def main() -> int:
        moved = reply("302 Found", "", "Location: http://127.0.0.1:1/")
        async with canned(moved) as (url, asked), open_upstream(url, "m", api_key=KEY) as upstream:
            with pytest.raises(RequestRejected, match="moved to"):
                await draw_samples(upstream, CHAT, PLAIN)
            return len(asked)

    assert asyncio.run(main()) == 1


# The key


def test_the_key_is_sent_only_where_there_is_one() -> None:
    async def main(key: str | None) -> bytes:
        async with canned(GOOD) as (url, asked), open_upstream(url, "m", api_key=key) as upstream:
            await draw_samples(upstream, CHAT, PLAIN)
            return asked[0].lower()

    assert f"authorization: bearer {KEY}".encode() in asyncio.run(main(KEY))
    assert b"authorization" not in asyncio.run(main(None))
    assert b"authorization" not in asyncio.run(main(""))


@pytest.mark.parametrize("status", ["401 Unauthorized", "503 Busy", "501 No", "200 OK"])
@pytest.mark.parametrize("pad", [0, 285, 400])
def test_the_key_is_never_shown_not_even_cut_off(status: str, pad: int) -> None:
    said: list[str] = []

    async def main() -> None:
        body = f'{{"error": {{"message": "{"x" * pad} wrong key {KEY}, try again"}}}}'
        async with (
            canned(reply(status, body)) as (url, _),
            open_upstream(
                url,
                "m",
                api_key=KEY,
                retries=dataclasses.replace(QUICK, max_attempts=2),
                on_event=lambda _, fields: said.append(str(fields)),
            ) as upstream,
        ):
            with pytest.raises(ModelError) as caught:
                await draw_samples(upstream, CHAT, PLAIN)
            said.append(str(caught.value))
            if status.startswith("401"):
                said.append((await upstream.post("completions", {})).message)

    asyncio.run(main())
    assert all(KEY[:8] not in text for text in said)
    assert all(len(text) < 400 for text in said)


@pytest.mark.parametrize("key", ["sk-1\nX: y", " sk-1", "sk-é"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_upstream("http://127.0.0.1:1/v1", "m", api_key=key)
    assert key not in str(caught.value)


# Use


def test_cancelling_a_call_closes_its_connection() -> None:
    async def cancel(upstream: Upstream, fake: FakeUpstream) -> None:
        task = asyncio.create_task(draw_samples(upstream, CHAT, PLAIN))
        await until(lambda: fake.stats()["open"] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: fake.stats()["open"] == 0)

    _, stats = ask(FakeSettings(latency_s=60), cancel)
    assert (stats["cancelled"], stats["open"], stats["answered"]) == (1, 0, 0)


# Tokens, as they come over the wire


@pytest.mark.parametrize("usage", ["all", "one", "none"])
def test_tokens_are_right_whatever_the_bill_counts(usage: Any) -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> list[Sample]:
        del fake
        return await draw_samples(upstream, CHAT, PLAIN, count=4)

    draws, stats = ask(FakeSettings(usage=usage, completion_tokens=9), use, capabilities=NATIVE)
    assert [draw.completion_tokens for draw in draws] == [9] * 4
    assert stats["tokens"] == 36
    assert not any(draw.is_estimated for draw in draws)
    assert all((draw.prompt_tokens is None) == (usage == "none") for draw in draws)


@pytest.mark.parametrize(("usage", "counts"), [("all", "all"), ("one", "one")])
def test_without_logprobs_tokens_add_up_and_are_marked(usage: Any, counts: Any) -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> list[Sample]:
        del fake
        return await draw_samples(upstream, CHAT, PLAIN, count=4)

    known = dataclasses.replace(NATIVE, usage=counts)
    draws, stats = ask(
        FakeSettings(usage=usage, completion_tokens=9, logprobs=False), use, capabilities=known
    )
    spent = sum(draw.completion_tokens or 0 for draw in draws)
    assert all(draw.is_estimated for draw in draws)
    assert spent == stats["tokens"] if usage == "all" else abs(spent - stats["tokens"]) < 18


def test_hidden_reasoning_counts_and_a_draw_it_ate_has_failed() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> tuple[Sample, Sample]:
        del fake
        (full,) = await draw_samples(upstream, CHAT, PLAIN)
        (eaten,) = await draw_samples(upstream, CHAT, Settings(max_tokens=20))
        return full, eaten

    (full, eaten), _ = ask(FakeSettings(reasoning_tokens=30), use)
    assert (full.completion_tokens, full.reasoning_tokens, full.ran_out_of_tokens) == (
        34,
        30,
        False,
    )
    assert (eaten.completion_tokens, eaten.reasoning_tokens, eaten.ran_out_of_tokens) == (
        20,
        20,
        True,
    )


# Several samples


def sample(
    count: int, seed: int | None = 5
) -> Callable[[Upstream, FakeUpstream], Awaitable[list[Sample]]]:
    """Call until there are enough samples, each call with seeds of its own."""

    async def use(upstream: Upstream, fake: FakeUpstream) -> list[Sample]:
        del fake
        samples: list[Sample] = []
        while len(samples) < count:
            next_seed = None if seed is None else seed + len(samples)
            missing = count - len(samples)
            samples += await draw_samples(upstream, CHAT, PLAIN, count=missing, seed=next_seed)
        return samples

    return use


def test_capabilities_change_the_calls_but_not_the_samples() -> None:
    limited = dataclasses.replace(NATIVE, n="limited", max_n=3)
    ways: list[tuple[Capabilities, str, int]] = [
        (NATIVE, "native", 1),
        (limited, "limit:3", 3),
        (Capabilities(), "ignored", 8),
        (Capabilities(n="rejected"), "rejected", 8),
        (NATIVE, "ignored", 8),  # the capabilities are wrong
    ]
    texts = []
    for known, behaviour, calls in ways:
        samples, stats = ask(FakeSettings(n=behaviour), sample(8), capabilities=known)
        assert (len(samples), stats["calls"], stats["choices"]) == (8, calls, 8)
        texts.append(sorted(sample.text for sample in samples))
    assert all(text == texts[0] for text in texts)
    assert len(set(texts[0])) == 8


def test_one_seed_is_not_used_for_several_choices_if_they_are_copies() -> None:
    known = dataclasses.replace(NATIVE, seed_with_n="identical")
    fake = FakeSettings(seed_support="identical")
    samples, stats = ask(fake, sample(6), capabilities=known)
    assert (len({sample.text for sample in samples}), stats["calls"]) == (6, 6)
    samples, stats = ask(fake, sample(6, None), capabilities=known)
    assert (len({sample.text for sample in samples}), stats["calls"]) == (6, 1)


def test_a_rejection_is_not_retried() -> None:
    async def fail(upstream: Upstream, fake: FakeUpstream) -> None:
        del fake
        with pytest.raises(RequestRejected, match="400"):
            await draw_samples(upstream, CHAT, Settings(extra={"n": 2}), count=4)

    _, stats = ask(FakeSettings(n="rejected"), fail)
    assert (stats["calls"], stats["answered"]) == (1, 0)


# Load


def test_faults_under_load_lose_no_draw_and_pay_for_none_twice() -> None:
    faults = {"429": 0.1, "500": 0.1, "reset": 0.05, "half": 0.05, "garbled": 0.05, "type": 0.05}

    async def use(upstream: Upstream, fake: FakeUpstream) -> list[list[Sample]]:
        del fake
        calls = (draw_samples(upstream, CHAT, PLAIN, seed=seed) for seed in range(300))
        return await asyncio.gather(*calls)

    answers, stats = ask(
        FakeSettings(latency_s=0.01, fault_rates=faults),
        use,
        retries=RetryPolicy(max_attempts=12, initial_wait_s=0.01, max_wait_s=0.2),
    )
    assert len(answers) == stats["answered"] == stats["choices"] == 300
    assert stats["calls"] == 300 + sum(stats["faults"].values())
    assert set(stats["faults"]) == set(faults)


def test_no_more_connections_are_used_than_allowed() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> list[list[Sample]]:
        del fake
        return await asyncio.gather(*(draw_samples(upstream, CHAT, PLAIN) for _ in range(40)))

    answers, stats = ask(
        FakeSettings(latency_s=0.02), use, max_connections=5, timeouts=Timeouts(first_byte_s=0.15)
    )
    assert (len(answers), stats["peak"], stats["calls"]) == (40, 5, 40)
    assert all(draw.latency_s < 0.15 for (draw,) in answers)


# Streams


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "6 x 7?"}], **fields}


def test_a_stream_gives_its_events_and_its_opening_is_retried() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> list[Mapping[str, Any]]:
        del fake
        asked = body(stream=True, stream_options={"include_usage": True})
        async with upstream.stream("chat/completions", asked) as events:
            return [event async for event in events]

    events, stats = ask(FakeSettings(fault_script=("reset", "503")), use)
    assert (len(events), stats["calls"]) == (6, 3)
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_leaving_a_stream_closes_its_connection() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> None:
        async with upstream.stream("chat/completions", body(stream=True)) as events:
            async for _ in events:
                break
        await until(lambda: fake.stats()["open"] == 0)

    _, stats = ask(FakeSettings(completion_tokens=1000, token_latency_s=0.02), use)
    assert (stats["cancelled"], stats["open"]) == (1, 0)


def test_errors_of_whoever_reads_a_stream_stay_theirs() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> None:
        del fake
        with pytest.raises(OSError, match="disk full"):
            async with upstream.stream("chat/completions", body(stream=True)):
                raise OSError("disk full")

    ask(FakeSettings(), use)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (reply("400 Bad", "no streams"), RequestRejected, "no streams"),
        (reply("200 OK", "data: [1]\n\n"), ModelError, "cannot be parsed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: {}\n\n", ModelError, "lost"),
    ],
)
def test_what_goes_wrong_with_a_stream_is_an_error_of_ours(
    answer: bytes, error: type[ModelError], said: str
) -> None:
    async def main() -> None:
        async with canned(answer) as (url, _), open_upstream(url, "m", retries=QUICK) as upstream:
            with pytest.raises(error, match=said):
                async with upstream.stream("completions", {}) as events:
                    assert [event async for event in events]

    asyncio.run(main())


def test_any_body_can_be_posted_and_a_refusal_is_a_reply() -> None:
    async def use(upstream: Upstream, fake: FakeUpstream) -> tuple[int, int, bool, str]:
        del fake
        good = await upstream.post("chat/completions", body())
        bad = await upstream.post("chat/completions", {"model": "m"})
        return good.status, bad.status, bad.is_rejected, bad.message

    (good, bad, refused, said), _ = ask(FakeSettings(), use)
    assert (good, bad, refused) == (200, 400, True)
    assert said.startswith("answered 400:")
