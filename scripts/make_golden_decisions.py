"""Golden decisions: the decisions of every policy on recorded samples, stored for comparison.

``python -m scripts.make_golden_decisions OUT`` writes ``OUT/decisions.json``. It fits every policy
to the first 80 % of the questions of each recording and runs it on the rest, at five prices, with
their samples in recorded order. It also replays the requests of ``OUT/gateway_log.jsonl`` at three
budgets. With ``--record-log`` it first records a new log, with a gateway in front of a scripted
upstream that answers with the shipped samples. A new log differs from the old one: it contains
times and random ids, and parallel samples arrive in any order. ``tests/test_golden_decisions.py``
computes the same decisions with the functions below and compares them with the stored ones.

Fitted policies depend on the versions of numpy, scikit-learn and xgboost, and so do the decisions.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core import votes
from adacompute.core.types import IntArray
from adacompute.datasets.example import EXAMPLE, find_example, locate_bundle
from adacompute.datasets.rows import read_samples
from adacompute.evaluation.costs import CostModel
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import POLICY_FACTORIES
from adacompute.evaluation.pool import Pool
from adacompute.gateway.config import make_config
from adacompute.models.templates import Template
from adacompute.policies.bundle import Bundle, load_bundle
from adacompute.policies.episode import (
    FIRST_SEEN,
    LOGPROB,
    UNLIMITED_ROUNDS,
    Episode,
    run_episode,
)
from adacompute.policies.policy import SampleMatrix
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import read_pool
from adacompute.stages.replay import decide_again, replay_log, request_prices
from adacompute.storage.decisions import read_decisions
from adacompute.storage.store import Run
from test_support import gateways, scripted

DATA = Path(__file__).parents[1] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
DECISIONS, LOG = "decisions.json", "gateway_log.jsonl"

PRICES = (0.1, 0.0316, 0.01, 0.00316, 0.001)
LEVELS = (1, 2, 4, 8, 16)
BUDGETS = (1.5, 2.0, 3.0, 4.0, 6.0)
PERMUTATIONS, SEED = 40, 0
TRAINING_SHARE = 0.8


@dataclass(frozen=True)
class Recording:
    """A file of recorded samples."""

    path: Path
    has_logprobs: bool = False


@dataclass(frozen=True)
class Variant:
    """A policy, and the conditions under which it is fitted and run."""

    policy: str
    max_rounds: int = UNLIMITED_ROUNDS
    round_cost: float = 0.0
    tie_break: str = FIRST_SEEN


RECORDINGS = {
    "example": Recording(find_example(), has_logprobs=True),
    "mcqa": Recording(DATA / "samples" / "mcqa-comprehensive100__gpt-3.5-turbo.parquet"),
    "svamp": Recording(
        DATA / "samples" / "svamp141__qwen2.5-coder-1.5b.parquet", has_logprobs=True
    ),
}
VARIANTS = {
    **{name: Variant(name) for name in POLICY_FACTORIES},
    "sequential-two-rounds": Variant("sequential", max_rounds=2),
    "sequential-round-cost": Variant("sequential", round_cost=1.0),
    "sequential-logprob": Variant("sequential", tie_break=LOGPROB),
}


def list_variants(recording: str) -> list[str]:
    """Return the names of the variants for which a recording has the data."""
    files = RECORDINGS[recording]
    return [
        name
        for name, variant in VARIANTS.items()
        if variant.tie_break == FIRST_SEEN or files.has_logprobs
    ]


@lru_cache
def load_pool(path: Path, round_cost: float = 0.0, tie_break: str = FIRST_SEEN) -> Pool:
    """Import a file of samples into a run and return its pool."""
    with tempfile.TemporaryDirectory() as directory:
        import_samples(path, Path(directory, "run"))
        costs = CostModel(round_cost=round_cost)
        return read_pool(Run(Path(directory, "run")), costs=costs, tie_break=tie_break).equalise()


@lru_cache
def make_experiment(recording: str, variant: Variant) -> Experiment:
    """Return what a variant is fitted to; policies under the same conditions share it."""
    files = RECORDINGS[recording]
    pool = load_pool(files.path, variant.round_cost, variant.tie_break)
    known: dict[str, Any] = {"max_rounds": variant.max_rounds, "use_confidence": False}
    return Experiment(pool, LEVELS, BUDGETS, PERMUTATIONS, SEED, **known)


@lru_cache
def fit(recording: str, name: str) -> tuple[Experiment, FittedPolicy]:
    """Fit a variant to the first questions of a recording."""
    variant = VARIANTS[name]
    experiment = make_experiment(recording, replace(variant, policy=""))
    train = np.arange(int(TRAINING_SHARE * len(experiment.pool)))
    return experiment, POLICY_FACTORIES[variant.policy](experiment, train)


def run_recording(
    recording: str, name: str, prices: Sequence[float] = PRICES
) -> dict[str, dict[str, str]]:
    """Fit a variant, run it on the questions held out, and return its decisions by price."""
    experiment, fitted = fit(recording, name)
    variant, rows = VARIANTS[name], np.arange(len(experiment.pool))
    held_out = rows[int(TRAINING_SHARE * len(rows)) :]
    pool, policy = experiment.pool.take(held_out), fitted.policy
    start: dict[str, Any] = {
        "key": pool.key,
        "features": fitted.prepared_features[held_out],
        "cost": np.repeat(Bundle(policy).level_cost, len(held_out), axis=0),
        "samples": make_samples(pool),
        "max_rounds": variant.max_rounds,
    }
    decisions = {}
    for price in prices:
        episode = run_episode(Episode.start(policy, price, **start).decide())
        decisions[f"{price:g}"] = {
            "samples_used": join(episode.state.observed.n_samples),
            "winner": join(episode.winner(tie_break=variant.tie_break)),
            "rounds": join(variant.max_rounds - episode.state.rounds_left),
        }
    return decisions


def make_samples(pool: Pool) -> SampleMatrix:
    """Return the samples of every question in recorded order."""
    shape = (len(pool), int(pool.answers.n_samples[0]))
    logprob = None if pool.logprob is None else pool.logprob.reshape(shape)
    return SampleMatrix(pool.answers.answer.reshape(shape), logprob=logprob)


def join(numbers: IntArray) -> str:
    """Write integers in one line."""
    return " ".join(map(str, numbers.tolist()))


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
        summaries = {f"{b:g}": replay_log(Path(directory), path, budget=b) for b in budgets}
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


N_REQUESTS = 64
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
            "log": {"directory": directory},
        }
        with gateways.serve_gateway(make_config(config)) as port:
            for number, question in enumerate(questions):
                path, body = make_request(number, question, template)
                texts = completions[question][: max(LEVELS)]
                upstream.answer(*(make_reply(text, path) for text in texts))
                sent = json.dumps(body).encode()
                answer = gateways.send(port, "POST", path, body=sent)
                if answer.status != 200:
                    raise ValueError(f"request {number} was rejected: {answer.body!r}")
                time.sleep(0.2)  # an audit after the answer needs this question's replies
            # Read the log before the gateway stops and turns it into tables.
            (active,) = Path(directory).glob("active-*.jsonl")
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
    golden = {
        "recordings": {
            recording: {name: run_recording(recording, name) for name in list_variants(recording)}
            for recording in RECORDINGS
        },
        "gateway_log": replay_gateway_log(log),
    }
    (options.out / DECISIONS).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
