from __future__ import annotations

import http.client
import threading

import pytest

from test_support.gateways import open_connection, send, send_raw
from test_support.scripted import ScriptedReply, serve_scripted

BODY = b'{"a": 1.50}'


def test_what_is_received_is_kept_to_the_last_byte() -> None:
    with serve_scripted() as upstream:
        send(upstream.port, "POST", "/v1/x?y=%20", headers=[("X-A", "é"), ("X-A", "")], body=BODY)
        (received,) = upstream.received
    assert (received.method, received.target, received.body) == ("POST", "/v1/x?y=%20", BODY)
    assert received.values("x-a") == ["é", ""]


def test_chunks_of_a_request_are_put_together() -> None:
    with serve_scripted() as upstream:
        head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        send_raw(upstream.port, head + b"2\r\n{ \r\n1\r\n}\r\n0\r\n\r\n", timeout_s=0.5)
        assert [received.body for received in upstream.received] == [b"{ }"]


def test_replies_come_in_turn_and_the_last_one_stays() -> None:
    with serve_scripted() as upstream:
        upstream.answer(
            ScriptedReply(500), ScriptedReply(201, [("X-A", "1"), ("X-A", "2")], [b"a", b"b"])
        )
        answers = [send(upstream.port, "GET", "/v1/x") for _ in range(3)]
    assert [answer.status for answer in answers] == [500, 201, 201]
    assert answers[1].values("x-a") == ["1", "2"]
    assert answers[1].body == b"ab"


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_every_framing_ends(framing: str) -> None:
    with serve_scripted() as upstream:
        upstream.answer(ScriptedReply(200, (), [b"a", 0.001, b"b"], framing))  # type: ignore[arg-type]
        assert send(upstream.port, "GET", "/v1/x").body == b"ab"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_cut_reply_is_seen_to_be_cut(framing: str) -> None:
    with serve_scripted() as upstream:
        upstream.answer(ScriptedReply(200, (), [b"ab"], framing, cut=True))  # type: ignore[arg-type]
        with pytest.raises(http.client.IncompleteRead):
            send(upstream.port, "GET", "/v1/x")


def test_an_event_holds_the_rest_back() -> None:
    hold = threading.Event()
    with serve_scripted() as upstream, open_connection(upstream.port, 10) as connection:
        upstream.answer(ScriptedReply(200, (), [b"first", hold, b"second"], "chunked"))
        connection.request("GET", "/v1/x")
        response = connection.getresponse()
        assert response.read1() == b"first"
        hold.set()
        assert response.read() == b"second"


def test_a_function_chooses_the_reply_to_each_request() -> None:
    with serve_scripted() as upstream:
        upstream.answer(lambda received: ScriptedReply(200, (), [received.body[::-1]]))
        assert send(upstream.port, "POST", "/v1/x", body=b"ab").body == b"ba"
        assert upstream.received[0].head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: ")
        upstream.answer(ScriptedReply(201))
        assert send(upstream.port, "GET", "/v1/x").status == 201
