"""Several addresses of one upstream, and upstreams of arms: where requests go, with which key."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import ConfigError
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.connection.addresses import MAX_FAILURES, Addresses, prompt_key
from adacompute.models.messages import Capabilities
from adacompute.stages.serve import check_serving, configure
from adacompute.storage.calls import FILES, read_calls
from adacompute.testing.fake_openai import FakeSettings, FakeUpstream, serve_fake
from test_support.arm_policies import CAREFUL, QUICK, escalating_policy, save_arms
from test_support.gateways import GatewayReply, fetch, free_port, send, serve_gateway
from test_support.recorded_upstream import UpstreamProcess
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply, serve_scripted
from test_support.spend import compare_spend

for library in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(library, reason="needs the extra 'serve'")

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
CHAT = "/v1/chat/completions"
URL = "http://127.0.0.1:9/v1"
KEYS = {"own": "sk-own-0123456789", "quick": "sk-quick-0123456789", "careful": "sk-careful-012345"}


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(text: str, model: str = "other", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": [user(text)], **more}).encode()


def ask(port: int, body: bytes, path: str = CHAT) -> GatewayReply:
    return send(port, "POST", path, headers=JSON, body=body)


@contextmanager
def serve_scripted_servers(n: int) -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(serve_scripted()) for _ in range(n)]
        for server in servers:
            server.answer(chat_reply("It is 4."))
        yield servers


def settings_of(policies: Path, urls: list[str], **more: Any) -> Any:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    own = {"base_urls": urls, "probe": False, "max_attempts": 1, "models": {"thrifty": model}}
    return make_config({**own, **more})


def prompt_for(urls: list[str], first: str) -> str:
    """Return a text that goes to an address as long as that works."""
    addresses = Addresses(urls)
    texts = (f"What is {i} + {i}?" for i in range(1000))
    return next(one for one in texts if addresses.choose(prompt_key(chat(one))).url == first)


def test_a_conversation_and_the_samples_of_a_question_stay_at_one_address(policies: Path) -> None:
    with serve_scripted_servers(3) as servers:
        urls = [server.base_url for server in servers]
        with serve_gateway(settings_of(policies, urls)) as port:
            for i in range(30):
                turns = [{"role": "system", "content": "Be brief."}, user(f"Question {i}")]
                for model in ("other", "thrifty"):
                    for n_turns in range(2):
                        messages = [*turns, {"role": "assistant", "content": "4"}, user("And?")]
                        body = {"model": model, "messages": messages[: 2 + 2 * n_turns]}
                        assert ask(port, json.dumps(body).encode()).status == 200
        by_question = Counter[str]()
        for server in servers:
            asked = [json.loads(one.body)["messages"][1]["content"] for one in server.received]
            by_question.update(set(asked))
            assert len(asked) >= 2 * 6  # its share: of each question, 2 forwarded and 4 sampled
        assert len(by_question) == 30
        assert set(by_question.values()) == {1}


@pytest.mark.parametrize(("model", "purposes"), [("other", ["forward"]), ("thrifty", ["vote"] * 2)])
def test_a_request_without_connection_goes_to_the_next_address_and_is_paid_once(
    model: str, purposes: list[str], policies: Path, tmp_path: Path
) -> None:
    with serve_scripted_servers(1) as (server,):
        dead = f"http://127.0.0.1:{free_port()}/v1"
        urls = [dead, server.base_url]
        text = prompt_for(urls, dead)
        with serve_gateway(settings_of(policies, urls, state_directory=str(tmp_path))) as port:
            assert ask(port, chat(text, model)).status == 200
            assert ask(port, chat(text, model)).status == 200
            metrics = send(port, "GET", "/metrics").body.decode()
        assert len(server.received) == 2 * len(purposes)
    rows = list(read_calls(tmp_path))
    assert [row["purpose"] for row in rows if row["completion_tokens"]] == 2 * purposes
    name, n = dead.split("/")[2], float(len(purposes))  # then it is passed over
    assert f'adacompute_address_failures_total{{address="{name}"}} {n}' in metrics


def test_models_are_listed_by_an_address_that_works(policies: Path) -> None:
    with serve_scripted_servers(1) as (server,):
        dead = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(3)]
        with serve_gateway(settings_of(policies, [*dead, server.base_url])) as port:
            listed = send(port, "GET", "/v1/models")
    assert listed.status == 200
    assert b"thrifty" in listed.body


@contextmanager
def two_fakes(first: FakeSettings, second: FakeSettings) -> Iterator[list[FakeUpstream]]:
    with serve_fake(first) as one, serve_fake(second) as other:
        yield [one, other]


def test_a_request_that_may_have_been_processed_is_not_sent_to_another_address(
    policies: Path,
) -> None:
    resets = FakeSettings(fault_script=("reset",))
    with two_fakes(resets, resets) as fakes:
        urls = [fake.base_url for fake in fakes]
        with serve_gateway(settings_of(policies, urls)) as port:
            assert ask(port, chat("2 + 2?")).status == 502
        assert sorted(fake.stats()["calls"] for fake in fakes) == [0, 1]


def test_a_retry_of_a_sample_goes_to_another_address(policies: Path) -> None:
    with two_fakes(FakeSettings(fault_rates={"500": 1.0}), FakeSettings()) as (broken, working):
        urls = [broken.base_url, working.base_url]
        text = prompt_for(urls, broken.base_url)
        with serve_gateway(settings_of(policies, urls, max_attempts=2)) as port:
            assert ask(port, chat(text, "thrifty")).status == 200
        assert broken.stats()["calls"] == working.stats()["answered"] == 2


def test_an_address_that_answers_errors_is_passed_over(policies: Path) -> None:
    with two_fakes(FakeSettings(fault_rates={"503": 1.0}), FakeSettings()) as (broken, working):
        urls = [broken.base_url, working.base_url]
        text = prompt_for(urls, broken.base_url)
        with serve_gateway(settings_of(policies, urls)) as port:
            statuses = [ask(port, chat(text)).status for _ in range(MAX_FAILURES + 3)]
    assert statuses == [503] * MAX_FAILURES + [200] * 3


class Load:
    """Threads with the official client that ask until they are stopped."""

    def __init__(self, port: int, n_threads: int = 4) -> None:
        openai = pytest.importorskip("openai")
        self._openai = openai
        url = f"http://127.0.0.1:{port}/v1"
        self._client = openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=30)
        self._stopping = threading.Event()
        self.ended: list[tuple[float, float, str]] = []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        n = 0
        while not self._stopping.is_set():
            n += 1
            model, name = ("thrifty", "real")[n % 2], f"{number}-{n}"
            start, problem = time.monotonic(), ""
            try:
                self._client.chat.completions.create(
                    model=model,
                    messages=[user(f"What is {number} + {n}?")],
                    extra_headers={"x-request-id": name},
                )
            except self._openai.OpenAIError as error:
                problem = f"{name}: {error}"
            self.ended.append((start, time.monotonic(), problem))

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=60)
        self._client.close()


def test_a_killed_address_costs_only_requests_in_flight_and_gets_its_share_back(
    launch: Launch, tmp_path: Path
) -> None:
    upstreams = [UpstreamProcess(tmp_path / f"calls-{i}.jsonl") for i in range(3)]
    state = tmp_path / "state"
    try:
        urls = [one.base_url for one in upstreams]
        settings = (
            f'state_directory = "{state}"\n[serve.upstreams.unused]\n'
            f'base_urls = ["{URL}"]\nupstream_api_key = "${{UNUSED_KEY}}"\n'
        )
        with launch(base_urls=urls, settings=settings, UNUSED_KEY=KEYS["quick"]) as port:
            load = Load(port)
            time.sleep(2)
            killed_at = time.monotonic()
            upstreams[0].kill()
            time.sleep(3)
            n_before = [len(one.calls()) for one in upstreams]
            upstreams[0].start()
            time.sleep(6)
            n_after = [len(one.calls()) for one in upstreams]
            load.stop()
            metrics = fetch(f"http://127.0.0.1:{port + 1}/metrics")
    finally:
        for one in upstreams:
            one.kill()
    failed = [one for one in load.ended if one[2]]
    assert all(start < killed_at + 0.05 and end > killed_at for start, end, _ in failed), failed
    assert len(failed) <= 4
    assert len(load.ended) > 100
    gained = [after - before for before, after in zip(n_before, n_after, strict=True)]
    assert gained[0] > 0.15 * sum(gained)
    assert any(state.glob(FILES))
    comparison = compare_spend(read_calls(state), [call for u in upstreams for call in u.calls()])
    assert comparison.is_right, comparison
    assert comparison.n_exact > 100
    name = urls[0].split("/")[2]
    assert f'address_failures_total{{address="{name}"}}' in metrics
    assert f'address_failures_total{{address="{urls[1].split("/")[2]}"}}' not in metrics


@contextmanager
def serve_arms(path: Path, **more: Any) -> Iterator[tuple[dict[str, ScriptedServer], int]]:
    """A gateway with an upstream of its own, and one for each arm."""
    bundle = save_arms(escalating_policy(), path / "arms", arms=(QUICK, CAREFUL))
    with serve_scripted_servers(3) as servers:
        named = dict(zip(KEYS, servers, strict=True))
        model = {
            "bundle": str(bundle),
            "budget": 2,
            "grader": "numeric",
            "arm_upstreams": {"quick": "fast", "careful": "slow"},
        }
        config = make_config(
            {
                "base_url": named["own"].base_url,
                "upstream_api_key": KEYS["own"],
                "upstreams": {
                    "fast": {
                        "base_url": named["quick"].base_url,
                        "upstream_api_key": KEYS["quick"],
                    },
                    "slow": {
                        "base_urls": [named["careful"].base_url],
                        "upstream_api_key": KEYS["careful"],
                    },
                },
                "models": {"virtual": model},
                "probe": False,
                "max_attempts": 1,
                **more,
            }
        )
        assert not any(key in repr(config) for key in KEYS.values())
        with serve_gateway(config) as port:
            yield named, port


@pytest.mark.parametrize("forward_key", [False, True])
def test_each_arm_is_sampled_at_its_upstream_with_its_key_only(
    tmp_path: Path, *, forward_key: bool
) -> None:
    with serve_arms(tmp_path, forward_key=forward_key) as (named, port):
        headers = [*JSON, ("Authorization", "Bearer sk-client-0123"), ("x-api-key", "sk-client-2")]
        voted = send(port, "POST", CHAT, headers=headers, body=chat("2 + 2?", "virtual"))
        other = send(port, "POST", CHAT, headers=headers, body=chat("2 + 2?"))
        tools = chat("2 + 2?", "virtual", tools=[{"type": "function"}])
        forwarded = send(port, "POST", CHAT, headers=headers, body=tools)
        assert [voted.status, other.status, forwarded.status] == [200, 200, 200]
        received = {arm: server.received for arm, server in named.items()}
    models = {arm: [json.loads(one.body)["model"] for one in got] for arm, got in received.items()}
    assert models == {"own": ["other"], "quick": ["small", "small"], "careful": ["large"]}
    for arm, key in KEYS.items():
        is_clients = forward_key and arm == "own"
        for one in received[arm]:
            expected = "Bearer sk-client-0123" if is_clients else f"Bearer {key}"
            assert one.values("authorization") == [expected]
            others = [other for other in KEYS.values() if other != key]
            foreign = others if is_clients else [*others, "sk-client"]
            assert not any(secret.encode() in one.head + one.body for secret in foreign)


def test_errors_of_an_arm_show_neither_its_key_nor_its_address(tmp_path: Path) -> None:
    with serve_arms(tmp_path) as (named, port):
        for status in (400, 500):
            text = f"the key {KEYS['quick']} is wrong"
            document = json.dumps({"error": {"message": text}}).encode()
            named["quick"].answer(ScriptedReply(status, JSON, [document]))
            failed = ask(port, chat("2 + 2?", "virtual"))
            assert failed.status == (400 if status == 400 else 502)
            assert b"***" in failed.body
            assert KEYS["quick"].encode() not in failed.body
            assert str(named["quick"].port).encode() not in failed.body


def test_capabilities_are_those_of_the_upstream_of_each_arm(tmp_path: Path) -> None:
    urls = {"own": "http://127.0.0.1:9/v1", "slow": "http://127.0.0.2:9/v1"}
    known = Capabilities(n="native")
    save_cached(cache_path(), urls["slow"], "large", known)
    bundle = save_arms(escalating_policy(), tmp_path / "arms", arms=(QUICK, CAREFUL))
    model = {"bundle": str(bundle), "budget": 2, "grader": "numeric"}
    content = {"base_url": urls["own"], "upstreams": {"slow": {"base_url": urls["slow"]}}}
    models = {"virtual": {**model, "arm_upstreams": {"careful": "slow"}}}
    virtual = load_models(make_config({**content, "models": models}))["virtual"]
    assert (virtual.upstream, virtual.capabilities) == (None, Capabilities())
    found = {arm: (one.upstream, one.capabilities) for arm, one in virtual.arm_models.items()}
    assert found == {"careful": ("slow", known)}
    whole = {"virtual": {**model, "upstream": "slow", "model": "large"}}
    virtual = load_models(make_config({**content, "models": whole}))["virtual"]
    assert (virtual.upstream, virtual.capabilities, virtual.arm_models) == ("slow", known, {})


def test_the_probe_goes_to_an_address_that_works_and_counts_for_all(policies: Path) -> None:
    with serve_fake() as fake:
        urls = [f"http://127.0.0.1:{free_port()}/v1", fake.base_url]
        config = settings_of(policies, urls, probe=True)
        with serve_gateway(config) as port:
            end = time.monotonic() + 60
            while send(port, "GET", "/ready").status != 200 and time.monotonic() < end:
                time.sleep(0.1)
        found = load_models(config)["thrifty"].capabilities
    assert found.n == "native"


SLOW = {"slow": {"base_url": URL}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"base_url": URL, "base_urls": [URL]}, "'base_url'.*'base_urls'"),
        ({"base_urls": []}, "'base_url'.*'base_urls'"),
        ({"base_urls": [URL, f"{URL}/"]}, "twice"),
        ({"base_urls": [URL, "x"]}, "http://host:port/v1, not 'x'"),
        ({"base_urls": URL}, "list of strings"),
        ({"base_urls": [URL, "http://127.0.0.1:8000/v1"]}, "this gateway itself"),
        ({"base_url": URL, "upstreams": {"slow": {}}}, "upstreams.slow.*'base_url'"),
        (
            {"base_url": URL, "upstreams": {"slow": {"base_url": URL, "upstream_api_key": 7}}},
            "str, not int",
        ),
        (
            {"base_url": URL, "upstreams": {"slow": {"base_url": URL, "upstream_api_key": "a\n"}}},
            "upstream_api_key",
        ),
        ({"base_url": URL, "model": {"upstream": "fast"}}, "'fast'.*serve.upstreams.fast"),
        ({"base_url": URL, "model": {"arm_upstreams": {"a": "fast"}}}, "'fast'"),
        ({"base_url": URL, "model": {"arm_upstreams": "fast"}}, "must be a table"),
        (
            {"base_url": URL, "upstreams": SLOW, "model": {"arm_upstreams": {"a": "slow"}}},
            "names 'a'; the arms of the bundle: none",
        ),
    ],
)
def test_wrong_addresses_are_refused(content: dict[str, Any], why: str, policies: Path) -> None:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    given = {name: value for name, value in content.items() if name != "model"}
    own = {"models": {"m": {**model, **content["model"]}}} if "model" in content else {}
    with pytest.raises(ConfigError, match=why):
        load_models(make_config({**given, **own}))


def test_check_asks_every_address(policies: Path, tmp_path: Path) -> None:
    with serve_scripted_servers(2) as (one, other):
        other.answer(ScriptedReply(401, JSON, [b"{}"]))
        path = tmp_path / "gateway.toml"
        path.write_text(
            f'[serve]\nbase_url = "{URL}"\n'
            f'[serve.upstreams.slow]\nbase_url = "{other.base_url}"\n'
            'upstream_api_key = "${SLOW_KEY}"\n'
            f'[serve.models.m]\nbundle = "{policies / "two"}"\nbudget = 2\nmodel = "real"\n'
            'grader = "numeric"\n'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLOW_KEY", KEYS["careful"])
            dead = f"http://127.0.0.1:{free_port()}/v1"
            config = configure(config=[str(path)], base_urls=[one.base_url, dead])
            told = check_serving(config)["upstreams"]
        assert [row["base_url"] for row in told] == [one.base_url, dead, other.base_url]
        assert [row["upstream"] for row in told] == [None, None, "slow"]
        assert told[0]["problem"] is None
        assert "failed" in told[1]["problem"]
        assert "401" in told[2]["problem"]
        assert other.received[0].values("authorization") == [f"Bearer {KEYS['careful']}"]
        assert one.received[0].values("authorization") == []
