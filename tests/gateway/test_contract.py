"""The contract: no field of any request bypasses a cap or a limit."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from adacompute.gateway.requests.contract import Limits, Terms
from adacompute.gateway.requests.fields import (
    CHAT,
    COMPLETIONS,
    DESCRIBED,
    EMBEDDINGS,
    chat_length_fields,
    describe,
)
from adacompute.gateway.requests.reading import Arrival, ReadRequest, read_request
from adacompute.gateway.requests.refusals import BadRequest, Forbidden
from adacompute.gateway.requests.rules import CapRule, ModelRules, Rules
from adacompute.gateway.settings.model_settings import UpstreamConfig
from adacompute.models.formats.responses_format import RESPONSES
from adacompute.models.messages import Capabilities, UpstreamKind
from test_support.gateways import GatewayReply, send
from test_support.scripted import ScriptedReply, ScriptedServer

LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict")
NUMBERS = ("n", "n_cmpl", "best_of")
UNLIMITED = 100_000
"""Tokens of a completion whose length is not limited in the one spelling that is honoured."""

MAX_COPIES = 1_000
_WHOLE = TypeAdapter(int)


class Served(NamedTuple):
    """What a request makes a server generate, and by what its price is multiplied."""

    n_samples: int
    tokens: int
    factor: int = 1


def coerce(value: object) -> int | None:
    """Return a value as an integer, as pydantic does; None if it is none."""
    try:
        return _WHOLE.validate_python(value)
    except ValidationError:
        return None


def count_served(body: bytes, *, honoured: str = "max_tokens") -> Served:
    """Return what a request is served at most: of fields that occur twice, the dearest counts."""
    fields = json.loads(body, object_pairs_hook=lambda pairs: [("object", pairs)])[0][1]
    names: dict[str, list[object]] = {}
    for name, value in fields:
        names.setdefault(name, []).append(_plain(value))
    spellings = itertools.product(*([(name, one) for one in names[name]] for name in names))
    every = [_count(dict(one), honoured) for one in itertools.islice(spellings, MAX_COPIES)]
    return max(every, key=lambda one: one.tokens * one.factor)


def _plain(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: _plain(inner) for name, inner in value[0][1]}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _count(fields: Mapping[str, Any], honoured: str) -> Served:
    n_samples = max(1, *(coerce(fields.get(name)) or 1 for name in NUMBERS))
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
        n_samples *= max(1, len(prompt))
    given = [coerce(fields[name]) for name in LENGTHS if fields.get(name) is not None]
    length = coerce(fields.get(honoured))
    lengths = [UNLIMITED if one is None or one < 0 else one for one in given]
    longest = max([UNLIMITED if length is None else length, *lengths])
    tools = [one for one in fields.get("tools") or () if isinstance(one, dict)]
    hosted = [one for one in tools if one.get("type", "function") not in {"function", "custom"}]
    is_dearer = fields.get("service_tier") not in {None, "auto", "default", "flex"}
    return Served(n_samples, n_samples * longest, 10 if hosted or is_dearer else 1)


@contextmanager
def serve_coercing(*, honoured: str = "max_tokens") -> Iterator[tuple[str, list[Served]]]:
    """Serve on a free port; yields the address, and the list of what was served."""
    served: list[Served] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            found = count_served(self.rfile.read(size), honoured=honoured)
            served.append(found)
            usage = {"prompt_tokens": 1, "completion_tokens": found.tokens}
            message = {"role": "assistant", "content": "The answer is 4."}
            choice = {"index": 0, "message": message, "text": "4", "finish_reason": "stop"}
            data = json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", served
    finally:
        server.shutdown()
        server.server_close()


for name in ("aiohttp", "starlette", "uvicorn", "prometheus_client", "msgspec"):
    pytest.importorskip(name, reason="needs the extra 'serve'")

Launch = Callable[..., AbstractContextManager[int]]
KINDS: tuple[UpstreamKind, ...] = get_args(UpstreamKind)
MAX_SAMPLES, MAX_TOKENS = 8, 50
KNOWN = (Capabilities(), Capabilities(max_tokens="honoured", max_completion_tokens="ignored"))
HOSTILE: tuple[Any, ...] = (
    "60",
    60,
    60.0,
    1e9,
    -1,
    0,
    True,
    "true",
    "1000000",
    2**63,
    10**400,
    [],
    {},
    [60],
    {"a": 1},
    "priority",
    ["a"] * 50,
    [[1, 2], [3]] * 20,
    ["a", 1],
    [{"prompt_string": "a"}] * 50,
    [{"type": "web_search"}],
    [{"type": "mcp", "server_url": "http://127.0.0.1:1"}],
    [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
    None,
)
QUESTION: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "2 + 2?"}]},
    COMPLETIONS: {"prompt": "2 + 2?"},
    RESPONSES: {"input": "2 + 2?"},
    EMBEDDINGS: {"input": "2 + 2?"},
}


def rules(kind: UpstreamKind = "generic", **limits: Any) -> Rules:
    return Rules(
        Limits(**{"max_samples": MAX_SAMPLES, "max_output_tokens": MAX_TOKENS, **limits}),
        {"virtual": ModelRules()},
        [CapRule(None, bounds_prompt=True)],
        terms=Terms(kind, chat_length_fields(kind, KNOWN[kind == "generic"])),
    )


def read(path: str, data: bytes | dict[str, Any], given: Rules | None = None) -> ReadRequest:
    if isinstance(data, dict):
        data = json.dumps({"model": "other", **QUESTION.get(path, {}), **data}).encode()
    return read_request(given or rules(), Arrival("POST", f"/v1/{path}"), data)


def test_every_kind_describes_every_endpoint() -> None:
    for kind in KINDS:
        for path in DESCRIBED:
            known = describe(kind, path)
            assert {"model", "n", "max_tokens", "n_predict", "service_tier", "user"} <= set(known)
            assert set(known) <= set(describe("generic", path))


@pytest.mark.parametrize("path", DESCRIBED)
@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_any_field_exceeds_what_is_reserved(kind: UpstreamKind, path: str) -> None:
    given, n_accepted = rules(kind), 0
    honoured = {COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}.get(
        path, given.terms.length_fields[0]
    )
    for name in [*describe(kind, path), "anything"]:
        for value in HOSTILE:
            body = json.dumps({"model": "other", **QUESTION[path], name: value}).encode()
            twice = body[:-1] + f', "{name}": 1}}'.encode()
            escaped = body[:-1] + f', "\\u{ord(name[0]):04x}{name[1:]}": 1}}'.encode()
            for data in (body, twice, escaped):
                try:
                    found = read(path, data, given=given)
                except BadRequest:
                    continue
                n_accepted += 1
                assert data == body or name not in json.loads(body)
                sent, bound = found.for_upstream(data)
                assert bound is not None
                if path == EMBEDDINGS:
                    continue
                served = count_served(sent, honoured=honoured)
                assert served.n_samples <= min(bound.n_samples, MAX_SAMPLES), (name, value)
                assert served.tokens <= bound.completion_tokens, (name, value)
                assert served.factor == 1, (name, value)
                assert bound.completion_tokens <= MAX_SAMPLES * MAX_TOKENS
    assert n_accepted > 100


UNBOUNDED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "video_url"}]},
    {"role": "user", "content": [{"video_url": "http://127.0.0.1:1"}]},
    {"role": "user", "content": [{"type": "text", "text": "x", "video_url": "http://127.0.0.1:1"}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]},
    {"role": "user", "content": [{"type": []}]},
    {"role": "user", "content": [["x"]]},
    {"role": "user", "content": {"type": "video_url"}},
    {"role": "user", "content": "x", "images": ["x"]},
]
"""Messages whose tokens are not known."""


@pytest.mark.parametrize(
    ("path", "fields", "param", "status"),
    [
        (CHAT, {"n": "60"}, "n", 400),
        (CHAT, {"n": 2.0}, "n", 400),
        (CHAT, {"n": True}, "n", 400),
        (CHAT, {"n": 0}, "n", 400),
        (CHAT, {"n_cmpl": 60}, "n", 403),
        (CHAT, {"max_tokens": "300"}, "max_tokens", 400),
        (COMPLETIONS, {"prompt": [{"prompt_string": "a"}]}, "prompt", 400),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt", 400),
        (COMPLETIONS, {"prompt": ["a"] * 9}, "prompt", 403),
        (COMPLETIONS, {"prompt": ["a"] * 3, "n": 3}, "prompt", 403),
        (COMPLETIONS, {"best_of": 9}, "n", 403),
        (CHAT, {"service_tier": "priority"}, "service_tier", 403),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools", 403),
        (CHAT, {"web_search_options": {}}, "web_search_options", 403),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities", 403),
        (CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction", 403),
        (CHAT, {"models": ["dear"]}, "models", 403),
        (CHAT, {"fallbacks": ["dear"]}, "fallbacks", 403),
        (CHAT, {"api_base": "http://127.0.0.1:1"}, "api_base", 403),
        (CHAT, {"chat_template": "{% for i in range(9) %}x{% endfor %}"}, "chat_template", 403),
        (CHAT, {"use_beam_search": True}, "use_beam_search", 403),
        (CHAT, {"anything": 1}, "anything", 400),
        (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", 403),
        (CHAT, {"chat_template_kwargs": {"documents": ["x"]}}, "chat_template_kwargs", 400),
        (CHAT, {"thinking": {"budget_tokens": 9_000}}, "thinking", 403),
        (CHAT, {"reasoning": {"max_tokens": 9_000}}, "reasoning", 403),
        (CHAT, {"n": 10**400}, "n", 400),
        (CHAT, {"model": "tool:web_search"}, "model", 400),
        (RESPONSES, {"tools": [{"type": []}]}, "tools", 403),
        (RESPONSES, {"tools": [{"googleSearch": {}}]}, "tools", 403),
        (CHAT, {"tools": [{"type": "function", "googleSearch": {}}]}, "tools", 403),
        (RESPONSES, {"input": [{"type": []}, "x"]}, "input", 400),
        (EMBEDDINGS, {"input": [{"image": "http://127.0.0.1:1"}]}, "prompt", 400),
        *((CHAT, {"messages": [one]}, "content", 403) for one in UNBOUNDED),
    ],
)
def test_a_judged_request_is_refused_by_the_name_of_the_field(
    path: str, fields: dict[str, Any], param: str, status: int
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(path, fields)
    assert caught.value.param == param
    assert isinstance(caught.value, Forbidden) == (status == 403)


@pytest.mark.parametrize(
    ("path", "fields", "sent"),
    [
        (CHAT, {}, {"max_tokens": 50}),
        (CHAT, {"n_predict": 300}, {"max_tokens": 50}),
        (CHAT, {"max_completion_tokens": 1}, {"max_tokens": 1}),
        (CHAT, {"max_tokens": 300, "max_completion_tokens": 20}, {"max_tokens": 20}),
        (CHAT, {"max_tokens": -1}, {"max_tokens": 50}),
        (CHAT, {"max_tokens": 0}, {"max_tokens": 1}),
        (CHAT, {"thinking_budget": 900}, {"thinking_budget": 50, "max_tokens": 50}),
        (CHAT, {"n": 3, "max_tokens": 7}, {"n": 3, "max_tokens": 7}),
        (CHAT, {"n_cmpl": 3}, {"n": 3, "max_tokens": 50}),
        (RESPONSES, {"max_tokens": 9}, {"max_output_tokens": 9}),
        (COMPLETIONS, {"prompt": [1, 2, 3] * 30}, {"prompt": [1, 2, 3] * 30, "max_tokens": 50}),
        (CHAT, {"service_tier": "flex"}, {"service_tier": "flex", "max_tokens": 50}),
        (
            CHAT,
            {"user": "u", "metadata": {"a": "b"}, "store": False, "top_k": 4},
            {"user": "u", "metadata": {"a": "b"}, "store": False, "top_k": 4, "max_tokens": 50},
        ),
    ],
)
def test_number_and_length_are_written_in_one_spelling(
    path: str, fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    data = json.dumps({"model": "other", **QUESTION[path], **fields}).encode()
    body, bound = read(path, data).for_upstream(data)
    expected = {"model": "other", **QUESTION[path], **sent}
    assert json.loads(body) == expected
    assert bound is not None
    limit = next(sent[name] for name in ("max_tokens", "max_output_tokens") if name in sent)
    assert bound.completion_tokens == limit * sent.get("n", 1)


def test_names_in_another_case_are_no_way_around_a_limit() -> None:
    data = b'{"model": "other", "messages": [], "max_tokens": 9, "MAX_TOKENS": null}'
    with pytest.raises(BadRequest):
        read(CHAT, data)
    data = b'{"model": "other", "messages": [], "max_to\\u212aens": null}'
    sent, _ = read(CHAT, data).for_upstream(data)
    assert json.loads(sent) == {"model": "other", "messages": [], "max_tokens": 50}
    with pytest.raises(BadRequest):
        read(CHAT, b'{"model": "other", "MODEL": "dear"}')
    with pytest.raises(Forbidden):
        read(RESPONSES, {"Previous_Response_ID": "resp_1"}, given=Rules())


def test_a_request_without_limits_is_not_judged() -> None:
    data = b'{"model":"other", "n": "60", "anything": 1, "anything": 2}'
    found = read(CHAT, data, given=Rules())
    assert found.judged is None
    assert found.for_upstream(data) == (data, None)


STORED = [
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_1"},
    {"prompt": {"id": "pmpt_1"}},
    {"background": True},
    {"input": [{"type": "item_reference", "id": "msg_1"}]},
    {"input": [{"id": "msg_1"}]},
    {"input": [{"id": "msg_1", "type": "message", "role": "user", "content": None}]},
    {"vector_store_ids": ["vs_1"]},
    {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
    {"input": [{"type": "image_generation_call", "id": "ig_1"}]},
    {"tools": [{"type": "retrieval", "parameters": {"container": "c_1"}}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
    {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
    {"tools": [{"type": "mcp", "server_url": "http://127.0.0.1:1", "server_label": "x"}]},
    {"tools": [{"type": "mcp", "connector_id": "c", "server_label": "x"}]},
]


@pytest.mark.parametrize("fields", STORED, ids=str)
def test_references_to_stored_data_are_refused_at_any_depth(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read(RESPONSES, fields)
    with pytest.raises(Forbidden) as caught:
        read(RESPONSES, fields, given=Rules())  # nothing else is judged
    assert caught.value.code == "stored_member"
    read(RESPONSES, fields, given=Rules(Limits(allows_stored=True)))


def test_names_that_a_client_defines_are_no_references() -> None:
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}}}
    tool = {"type": "function", "name": "f", "parameters": schema}
    items = [
        {"role": "user", "content": "2?"},
        {"type": "function_call", "id": "fc_1", "name": "f", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "file_id"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "text"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "screenshot"}},
    ]
    read(RESPONSES, {"tools": [tool], "input": items}, given=Rules())
    items = items[:-1]
    read(RESPONSES, {"tools": [tool], "input": items})
    read(CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
    parsed = {"role": "assistant", "content": "x", "parsed": {"uuid": "u"}}
    read(CHAT, {"messages": [parsed], "guided_json": schema})
    read(CHAT, {"messages": [parsed], "guided_json": schema}, given=Rules())


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "file", "file": {"file_id": "file-1"}}]},
        {"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
        {"content": [{"type": "image_url", "image_url": {"url": "gs://bucket/x"}}]},
        {"content": [{"type": "image_url", "uuid": "cached"}]},
        {"content": None, "audio": {"id": "audio_1"}},
    ],
    ids=str,
)
def test_a_chat_does_not_refer_to_stored_data(message: dict[str, Any]) -> None:
    with pytest.raises(Forbidden):
        read(CHAT, {"messages": [{"role": "user", **message}]}, given=Rules())


STORED_BODY = '{"model": "other", "input": "2?", "previous_response_id": "resp_1"}'


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + STORED_BODY.encode(),
        STORED_BODY.encode("utf-16"),
        STORED_BODY.encode("utf-16-le"),
        STORED_BODY.replace('"2?"', "NaN").encode(),
        STORED_BODY.replace('"2?"', "1" * 5_000).encode(),
        STORED_BODY.replace("2?", "\t").encode(),
        STORED_BODY.encode() + b"x",
        b"\xff" + STORED_BODY.encode(),
    ],
)
def test_a_body_that_others_may_understand_is_refused_where_something_is_restricted(
    data: bytes,
) -> None:
    with pytest.raises(BadRequest):
        read(RESPONSES, data, given=Rules())
    capped = Rules(models={"other": ModelRules()}, caps=[CapRule("other", bounds_prompt=True)])
    with pytest.raises(BadRequest):
        read(CHAT, data, given=capped)
    for path in (RESPONSES, CHAT):
        arrival = Arrival("POST", f"/v1/{path}", coding="gzip")
        with pytest.raises(BadRequest, match="compressed"):
            read_request(Rules(), arrival, STORED_BODY.encode())


def test_stored_prompts_have_no_bound_under_a_cap() -> None:
    with pytest.raises(Forbidden):
        read(RESPONSES, {"previous_response_id": "resp_1"}, given=rules(allows_stored=True))


def test_openai_is_known_by_its_address() -> None:
    assert UpstreamConfig("https://api.openai.com/v1").is_openai
    assert UpstreamConfig("https://x.openai.azure.com/openai/v1").is_openai
    assert not UpstreamConfig("http://127.0.0.1:1/v1").is_openai
    assert chat_length_fields("openai", KNOWN[0]) == ("max_completion_tokens",)


def test_both_spellings_are_written_while_it_is_not_known_which_is_honoured() -> None:
    known = Capabilities()
    assert chat_length_fields("generic", known) == ("max_tokens", "max_completion_tokens")
    given = Rules(Limits(max_output_tokens=5), terms=Terms(length_fields=("a", "b")))
    data = b'{"model": "other", "messages": []}'
    sent, _ = read(CHAT, data, given=given).for_upstream(data)
    assert json.loads(sent) == {"model": "other", "messages": [], "a": 5, "b": 5}


def test_a_tier_and_a_hosted_tool_are_allowed_at_their_price() -> None:
    priced = Terms(tool_costs={"web_search": 7}, tiers={"other": {"priority"}})
    given = Rules(Limits(max_output_tokens=5), terms=priced)
    data = b'{"model": "other", "input": "2?", "service_tier": "priority"}'
    _, bound = read(RESPONSES, data, given=given).for_upstream(data)
    assert bound is not None
    assert bound.model == "other@priority"
    data = b'{"model": "other", "input": "2?", "tools": [{"type": "web_search"}]}'
    sent, bound = read(RESPONSES, data, given=given).for_upstream(data)
    assert bound is not None
    n_calls = json.loads(sent)["max_tool_calls"]
    assert (n_calls, bound.extra_cost) == (8, 7 * 8)
    assert bound.prompt_tokens >= 8 * 16_384


def test_an_operator_may_allow_a_field() -> None:
    given = Rules(Limits(max_samples=2), terms=Terms(allowed_fields=frozenset({"anything"})))
    read(CHAT, {"anything": 1}, given=given)
    read(CHAT, {"another": None}, given=given)


def test_an_image_counts_as_many_tokens_of_the_prompt() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    asked = {"messages": [{"role": "user", "content": [part, part]}]}
    data = json.dumps({"model": "other", **asked}).encode()
    _, bound = read(CHAT, data).for_upstream(data)
    assert bound is not None
    assert bound.prompt_tokens > 100_000


# Against a gateway.

KEY = "sk-ann-fedcba9876543210"
CAP = 0.01
PRICE = 100.0
"""Per million tokens: 100 tokens cost the cap."""


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.toml"
    tables = [f'[models."{name}"]\ninput = 0\noutput = {PRICE}\n' for name in ("other", "real")]
    path.write_text("\n".join(tables))
    return path


def ask(port: int, fields: dict[str, Any], path: str = CHAT, **headers: str) -> GatewayReply:
    asked = QUESTION[path.partition("?")[0]]
    data = json.dumps({"model": "other", **asked, **fields}).encode()
    given = [("Authorization", f"Bearer {KEY}"), ("Content-Type", "application/json")]
    given += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return send(port, "POST", f"/v1/{path}", headers=given, body=data)


def test_no_request_makes_the_server_exceed_a_cap(launch: Launch, prices: Path) -> None:
    """The money is what the server counted, and it takes every value that it can coerce."""
    with serve_coercing() as (base_url, served):
        settings = f"""max_samples = {MAX_SAMPLES}
        max_output_tokens = {MAX_TOKENS}
        token_prices = "{prices}"
        caps = [{{ amount = {CAP}, unit = "money" }}]
        bearer_tokens = ["{KEY}"]
        """
        with launch(settings=settings, base_url=base_url) as port:
            for path in (CHAT, COMPLETIONS, RESPONSES):
                for name in ("n", "n_predict", "max_tokens", "best_of", "service_tier", "prompt"):
                    for value in HOSTILE:
                        ask(port, {name: value, "model": "other"}, path)
                        ask(port, {name: value, "model": "thrifty"}, path)
    spent = sum(one.tokens * one.factor for one in served) * PRICE / 1e6
    assert served
    assert spent <= CAP


@pytest.fixture(scope="module")
def judging(launch: Launch) -> Iterator[int]:
    settings = f'max_output_tokens = {MAX_TOKENS}\nbearer_tokens = ["{KEY}"]'
    with launch(settings=settings) as port:
        yield port


OK = ScriptedReply(
    200,
    [("Content-Type", "application/json")],
    [b'{"choices":[{"index":0,"message":{"role":"assistant","content":"4"}}]}'],
)


def test_headers_that_choose_a_payer_or_target_are_removed(
    judging: int, upstream: ScriptedServer
) -> None:
    upstream.answer(OK)
    chosen = {
        "OpenAI_Project": "p",
        "OpenAI_Organization": "o",
        "Helicone_Target_Url": "http://127.0.0.1:1",
        "x_portkey_config": "c",
        "X_Trace": "kept",
    }
    assert ask(judging, {}, f"{CHAT}?provider=x&api-version=7&beta=1", **chosen).status == 200
    (received,) = upstream.received
    assert received.target == f"/v1/{CHAT}?api-version=7&beta=1"
    metrics = send(judging + 1, "GET", "/metrics").body.decode()
    (removed,) = re.findall(r"^adacompute_removed_headers_total (\S+)$", metrics, re.MULTILINE)
    assert float(removed) >= 5  # four headers and a parameter
    names = {name.lower() for name, _ in received.headers}
    assert "x-trace" in names
    assert received.values("content-type") == ["application/json"]
    assert not names & {name.lower().replace("_", "-") for name in chosen} - {"x-trace"}
