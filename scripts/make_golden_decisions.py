"""Golden decisions: the decisions of every policy on recorded samples, stored for comparison.

``python -m scripts.make_golden_decisions tests/data/golden`` writes ``decisions.json`` there. It
fits every policy to small sets of recorded samples, see ``test_support.golden_sets``, and runs it
at five prices through each path that decides, see ``test_support.decision_paths``; it calibrates
the policies as well. It also replays the requests of ``gateway_log.jsonl`` at three budgets. With
``--record-log`` it first records a new log, with a gateway in front of a scripted upstream that
answers with the shipped samples. A new log differs from the old one: it contains times and random
ids, and parallel samples arrive in any order. ``tests/test_golden_decisions.py`` computes the same
with the functions below and compares it with what is stored.

Fitted policies depend on the versions of numpy, scikit-learn and xgboost, and so do the decisions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core import votes
from adacompute.core.types import IntArray
from adacompute.datasets.example import EXAMPLE, find_example, locate_bundle
from adacompute.datasets.rows import read_samples
from adacompute.evaluation import experiment
from adacompute.evaluation.factories import only_arms
from adacompute.gateway.settings.config import make_config
from adacompute.models.templates import Template
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages.research.replay import decide_again, replay_log, request_prices
from adacompute.storage.decisions import read_decisions
from reproduction.registered_rivals import ARM_RIVALS, RIVALS
from test_support import decision_paths, gateways, scripted
from test_support.decision_paths import Decided, DecidingGateway, join
from test_support.golden_sets import SETS

DECISIONS, LOG = "decisions.json", "gateway_log.jsonl"
GATEWAY, CALIBRATE, RIVAL = "gateway", "calibrate", "rival"
FACTORIES = RIVALS | ARM_RIVALS


def run_rival(name: str, rival: str) -> Decided:
    """Replay a method of the literature, or a single arm, on a set."""
    return decision_paths.run_rival(name, FACTORIES.get(rival, rival))


PATHS = {
    "replay": decision_paths.run_replay,
    "session": decision_paths.run_sessions,
    "sampler": decision_paths.run_sampler,
    "batch": decision_paths.run_batch,
    CALIBRATE: decision_paths.run_calibration,
    RIVAL: run_rival,
}
"""Paths that decide, beside that of a gateway."""

RIVALS_OF = {
    "arith110": tuple(RIVALS),
    "svamp144": (*ARM_RIVALS, *only_arms(SETS["svamp144"].arms)),
}
"""Policies that can only be replayed, and the sets on which they are."""

Serve = Callable[[str], DecidingGateway]
"""Returns a gateway that serves a set."""


def list_paths(name: str, variant: str) -> list[str]:
    """Return the paths whose decisions are stored for a variant of a set, or for a rival."""
    if variant in RIVALS_OF.get(name, ()):
        return [RIVAL]
    left_out = {RIVAL} if variant in SETS[name].calibrated else {RIVAL, CALIBRATE}
    return [path for path in (*PATHS, GATEWAY) if path not in left_out]


def decide(path: str, name: str, variant: str, serve: Serve) -> Decided:
    """Run a variant of a set through a path; return what was decided."""
    return serve(name).run(variant) if path == GATEWAY else PATHS[path](name, variant)


def decide_all() -> dict[str, dict[str, dict[str, Decided]]]:
    """Run every variant of every set through every path."""
    with ExitStack() as stack:
        serve = cache(lambda name: stack.enter_context(decision_paths.serve_deciding(name)))
        return {
            name: {
                variant: {
                    path: decide(path, name, variant, serve) for path in list_paths(name, variant)
                }
                for variant in (*golden.variants, *RIVALS_OF.get(name, ()))
            }
            for name, golden in SETS.items()
        }


LOG_BUDGETS = (1.5, 2.0, 4.0)
SUMMARY = ("requests", "cost", "served_cost", "saved", "saved_of_served", "agreement")
"""Fields of the result of ``replay_log`` that are stored."""


def replay_gateway_log(log: Path, budgets: Sequence[float] = LOG_BUDGETS) -> dict[str, Any]:
    """Replay the voted requests of a log, at their own prices and at other budgets."""
    path = locate_bundle(Path(EXAMPLE))
    bundle = load_bundle(path)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "full-0.jsonl").write_bytes(log.read_bytes())
        rows = [row for row in read_decisions(Path(directory)).to_pylist() if not row["shadow"]]
        summaries = {f"{b:g}": replay_log(Path(directory), bundle=path, budget=b) for b in budgets}
    prices = {"own": [row["price"] for row in rows]}
    prices |= {f"{b:g}": request_prices(bundle, rows, b) for b in budgets}
    decisions: dict[str, Any] = {}
    for name, row_prices in prices.items():
        used = decide_again(bundle, rows, row_prices)
        decisions[name] = {"samples_used": join(used), "winner": join(vote(rows, used))}
        if name in summaries:
            decisions[name]["summary"] = {field: summaries[name][field] for field in SUMMARY}
    return decisions


def vote(rows: list[dict[str, Any]], used: IntArray) -> IntArray:
    """Return the sample that wins among those used of each request, −1 where none is used."""
    answers = [np.array([row["answers"][:n]]) for row, n in zip(rows, used.tolist(), strict=True)]
    winners = [votes.winner(a)[0] if n > 0 else -1 for a, n in zip(answers, used, strict=True)]
    return np.array(winners, dtype=np.int64)


N_REQUESTS, N_TEXTS = 64, 16
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"budget": 2.0},
    "audited": {"budget": 4.0, "audit_share": 1.0, "audit_max_share": 1.0},
    "two-rounds": {"budget": 3.0, "max_rounds": 2},
    "plain-too": {"budget": 1.5},
    "shadowed": {"budget": 2.0, "shadow": True},
}
REQUEST_BUDGETS = (None, None, 3.0)
"""Budgets that the requests themselves ask for, in turn."""


def record_log() -> list[str]:
    """Serve questions of the shipped samples with the shipped policy; return the log's lines."""
    bundle = locate_bundle(Path(EXAMPLE))
    template = load_bundle(bundle).template or Template(chat=False)
    completions: dict[str, list[str]] = {}
    for row in read_samples(find_example()).to_pylist():
        completions.setdefault(row["question"], []).append(row["completion"])
    questions = list(completions)[:: len(completions) // N_REQUESTS][:N_REQUESTS]
    settings = {"bundle": str(bundle), "model": "small", "grader": "numeric"}
    with tempfile.TemporaryDirectory() as directory, scripted.serve_scripted() as upstream:
        config = {
            "base_url": upstream.base_url,
            "probe": False,
            "models": {name: settings | own for name, own in MODELS.items()},
            "state_directory": directory,
            "decision_log": "answers",
        }
        with gateways.serve_gateway(make_config(config)) as port:
            for number, question in enumerate(questions):
                path, body = make_request(number, question, template)
                texts = completions[question][:N_TEXTS]
                upstream.answer(*(make_reply(text, path) for text in texts))
                sent = json.dumps(body).encode()
                answer = gateways.send(port, "POST", path, body=sent)
                if answer.status != 200:
                    raise ValueError(f"request {number} was rejected: {answer.body!r}")
                time.sleep(0.2)  # an audit after the answer needs this question's replies
            # Read the log before the gateway stops and turns it into tables.
            (active,) = Path(directory, "decisions").glob("active-*.jsonl")
            return active.read_text(encoding="utf-8").splitlines()


def make_request(number: int, question: str, template: Template) -> tuple[str, dict[str, Any]]:
    """Ask with the bundle's template, in a chat message, or in a form the gateway does not know."""
    names = list(MODELS)
    body: dict[str, Any] = {"model": names[number % len(names)], "temperature": 0.7}
    if budget := REQUEST_BUDGETS[number % len(REQUEST_BUDGETS)]:
        body["adacompute"] = {"budget": budget}
    if number % 8 == 3:
        return "/v1/completions", body | {"prompt": f"Q: {question}"}
    if number % 4 == 1:
        message = {"role": "user", "content": question}
        return "/v1/chat/completions", body | {"messages": [message]}
    return "/v1/completions", body | {"prompt": template.render(question).text}


def make_reply(text: str, path: str) -> scripted.ScriptedReply:
    """Return an upstream's reply with one choice."""
    is_chat = "chat" in path
    content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    document = {
        "id": "x",
        "choices": [{"index": 0, **content, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48},
    }
    headers = [("Content-Type", "application/json")]
    return scripted.ScriptedReply(200, headers, [json.dumps(document).encode()])


def main() -> None:
    """Write the golden files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of the golden files")
    parser.add_argument("--record-log", action="store_true", help="record a new gateway log first")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / LOG
    if options.record_log:
        log.write_text("".join(f"{line}\n" for line in record_log()), encoding="utf-8")
    experiment.N_ASSIGNMENTS = 1  # as in the tests
    golden = {"sets": decide_all(), "gateway_log": replay_gateway_log(log)}
    (options.out / DECISIONS).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
