"""A gateway exchanges the same bytes with its upstream and its clients as when they were stored.

This guards against unintended changes. After an intended one, make the file again with the script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.connection.exchange import Exchange
from adacompute.models.connection.relay import Relay
from adacompute.models.formats.body import Body
from scripts import make_golden_bytes as script

GOLDEN = Path(__file__).parent / "data" / "golden" / script.BYTES
golden: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))

Exchanged = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def exchanged() -> Iterator[Exchanged]:
    """Return how a case is sent to gateways that all cases share."""
    with script.serve() as (upstream, ports):

        def send(name: str) -> dict[str, Any]:
            case = script.CASES[name]
            return script.exchange(case, upstream, ports[case.gateway])

        yield send


def _lines(side: str | list[str]) -> list[str]:
    requests = [side] if isinstance(side, str) else side
    return [repr(line) for one in requests for line in one.splitlines(keepends=True)]


def differences(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    """Return what differs on each side, in lines."""
    told = {}
    for side in ("upstream", "client"):
        if expected[side] != found[side]:
            old, new = _lines(expected[side]), _lines(found[side])
            told[side] = "\n".join(unified_diff(old, new, side, side, n=1))
    return told


def test_every_case_is_stored() -> None:
    assert list(golden) == list(script.CASES)


@pytest.mark.parametrize("name", script.CASES)
def test_bytes_are_unchanged(name: str, exchanged: Exchanged) -> None:
    told = differences(golden[name], exchanged(name))
    assert not told, "\n".join(told.values())


def add_header(self: Relay, headers: Any, known: Any = Relay.request_headers) -> Any:
    return [*known(self, headers), ("x-a", "1")]


def add_space(self: Body, changes: Any, known: Any = Body.edit) -> bytes:
    return bytes(known(self, changes)) + b" "


async def start_longer(
    self: Exchange, status: int, headers: Any, known: Any = Exchange.start
) -> None:
    await known(self, status, [*headers, (b"x-a", b"1")])


async def write_longer(
    self: Exchange, data: bytes, *, more: bool = True, known: Any = Exchange.write
) -> None:
    await known(self, data + b" " if data and self._is_stream else data, more=more)


async def reply_longer(
    self: Exchange, status: int, headers: Any, data: bytes, known: Any = Exchange.reply
) -> None:
    await known(self, status, headers, data + b" ")


async def reply_with_header(
    self: Exchange, status: int, headers: Any, data: bytes, known: Any = Exchange.reply
) -> None:
    await known(self, status, [*headers, (b"x-a", b"1")], data)


@pytest.mark.parametrize(
    ("name", "owner", "method", "changed", "side"),
    [
        ("forwarded chat", Relay, "request_headers", add_header, "upstream"),
        ("forwarded get", Relay, "request_headers", add_header, "upstream"),
        ("forwarded n-of-voted", Body, "edit", add_space, "upstream"),
        ("voted chat", Body, "edit", add_space, "upstream"),
        ("voted n", Body, "edit", add_space, "upstream"),
        ("voted responses-stream", Body, "edit", add_space, "upstream"),
        ("forwarded stream-cut", Exchange, "start", start_longer, "client"),
        ("forwarded 429", Exchange, "reply", reply_with_header, "client"),
        ("voted 500", Exchange, "reply", reply_with_header, "client"),
        ("forwarded responses", Exchange, "reply", reply_longer, "client"),
        ("voted completions", Exchange, "reply", reply_longer, "client"),
        ("forwarded stream-cut", Exchange, "write", write_longer, "client"),
        ("voted completions-stream", Exchange, "write", write_longer, "client"),
    ],
)
def test_one_byte_or_header_more_is_found(
    name: str,
    owner: type,
    method: str,
    changed: Callable[..., Any],
    side: str,
    exchanged: Exchanged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, changed)
    assert side in differences(golden[name], exchanged(name))
