"""Attacks on the graders of a gateway: nothing that they do may hold it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support import gateways
from test_support.gateways import GatewayReply
from test_support.scripted import ScriptedServer, chat_reply

ROOT = Path(__file__).resolve().parent.parent.parent

MODEL = """
[serve.models.graded]
bundle = "two"
budget = 2
model = "real"
grader = "{grader}"
"""


def ask(port: int, model: str) -> GatewayReply:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "How much?"}],
        "adacompute": {"debug": True},
    }
    return gateways.send(port, "POST", "/v1/chat/completions", body=json.dumps(body).encode())


def answers(found: GatewayReply) -> list[str | None]:
    assert found.status == 200
    values: list[str | None] = json.loads(found.values("x-adacompute-debug")[0])["answers"]
    return values


def test_expressions_that_sympy_does_not_finish_hold_nobody(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer
) -> None:
    pytest.importorskip("math_verify")
    hostile: list[list[str | None]] = []
    with launch(settings=MODEL.format(grader="math")) as port:
        threads = []
        for number in range(4):
            first = f"{95 + number}^{{99!}}"
            upstream.answer(chat_reply(first), chat_reply("y+1"))
            thread = threading.Thread(target=lambda: hostile.append(answers(ask(port, "graded"))))
            thread.start()
            threads.append(thread)
            while len(upstream.received) < 2:
                time.sleep(0.01)
            time.sleep(0.1)
        upstream.answer(chat_reply("4"))
        slowest = 0.0
        for _ in range(20):
            begun = time.monotonic()
            assert answers(ask(port, "thrifty")) == ["4", "4"]
            assert answers(ask(port, "graded")) == ["4", "4"]  # equal as texts
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 2
        for thread in threads:
            thread.join(timeout=30)
        assert len(hostile) == 4
        assert all(values[1] is None for values in hostile)
        upstream.answer(chat_reply(r"\boxed{\frac{1}{2}}"), chat_reply(r"\boxed{0.5}"))
        end = time.monotonic() + 40
        while time.monotonic() < end:
            upstream.answer(chat_reply(r"\boxed{\frac{1}{2}}"), chat_reply(r"\boxed{0.5}"))
            if answers(ask(port, "graded")) == [r"\frac{1}{2}"] * 2:
                break
            time.sleep(0.2)
        else:
            pytest.fail("the grader does not work any more")
        metrics = gateways.send(port + 1, "GET", "/metrics").body.decode()
    assert 'adacompute_grader_failures_total{grader="math"' in metrics


def test_a_stalled_program_does_not_cost_every_request_its_time_limit(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer, tmp_path: Path
) -> None:
    program = tmp_path / "stalled.py"
    program.write_text("import sys, time\nfor line in sys.stdin:\n    time.sleep(600)\n")
    upstream.answer(chat_reply("4"))
    with launch(settings=MODEL.format(grader=f"cmd:{sys.executable} {program}")) as port:
        ask(port, "graded")
        begun = time.monotonic()
        for _ in range(20):
            assert answers(ask(port, "graded")) == [None, None]
        assert time.monotonic() - begun < 5
        metrics = gateways.send(port + 1, "GET", "/metrics").body.decode()
    assert 'reason="circuit_open"' in metrics


def test_a_grader_program_inherits_no_secret(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer, tmp_path: Path
) -> None:
    secret, program, note = "sk-a-secret-of-the-environment", tmp_path / "g.py", tmp_path / "note"
    program.write_text(
        "import json, os, sys\n"
        f"open({str(note)!r}, 'w').write(str(dict(os.environ)))\n"
        "for line in sys.stdin:\n    print(json.dumps({'answer': '4'}), flush=True)\n"
    )
    upstream.answer(chat_reply("4"))
    settings = 'allowed_hosts = ["${A_SECRET}"]\n' + MODEL
    settings = settings.replace("{grader}", f"cmd:{sys.executable} {program}")
    with launch(settings=settings, A_SECRET=secret, ANOTHER="inherited") as port:
        assert answers(ask(port, "graded")) == ["4", "4"]
    assert "inherited" in note.read_text()
    assert secret not in note.read_text()
