"""Gateway, live: new questions to a real model through the gateway, against the best mixture.

``python benchmarks/gateway_live.py BUNDLE OUT [QUESTIONS] [PASSES]`` starts a llama.cpp server and
a gateway, and asks 300 generated questions that the policy has not seen, three times over at each
budget, with the official client. The mixture of uniform numbers of samples is read from 16 samples
of each question, drawn past the gateway, at equal completion tokens. What came is kept in OUT, so
that a run that was stopped goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from openai import AsyncOpenAI

from adacompute.core.answers import Answers
from adacompute.core.utility import estimate
from adacompute.datasets.example import find_example
from adacompute.graders.grader import load_grader
from adacompute.models.templates import Template
from adacompute.testing.arithmetic import SHOTS, Problem, generate
from adacompute.testing.llama import Llama, serve_llama

NEW_SEED = 20_261_115
AT_ONCE, SAMPLES = 2, 16
FORM = Template(form="Question: {question}\nAnswer:", shots=tuple(SHOTS), chat=False)
CASES = {"B=2": (2.0, None), "B=4": (4.0, None), "B=4, 2 rounds": (4.0, 2)}
RESAMPLINGS = 2000


def choose_new(count: int) -> list[Problem]:
    """Generate questions that the example set does not hold, equally many of each class."""
    known = set(pq.read_table(find_example(), columns=["question"])["question"].to_pylist())
    new = [asked for asked in generate(4 * count, seed=NEW_SEED) if asked.question not in known]
    by_class: dict[str, list[Problem]] = {}
    for asked in new:
        by_class.setdefault(asked.kind, []).append(asked)
    turns = [asked for turn in zip_longest(*by_class.values()) for asked in turn if asked]
    return turns[:count]


def kept(place: Path) -> list[dict[str, Any]]:
    """Answers of an earlier run that was stopped."""
    return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []


async def ask_all(
    base_url: str, model: str, questions: list[Problem], place: Path, *, n: int | None = None
) -> list[dict[str, Any]]:
    """Ask every question that is not answered yet, and keep the answers."""
    done = kept(place)
    known = {row["id"] for row in done}
    client = AsyncOpenAI(base_url=base_url, api_key="none", timeout=300, max_retries=3)
    grader, places = load_grader("numeric"), asyncio.Semaphore(AT_ONCE)

    async def ask(question: Problem) -> None:
        async with places:
            prompt = FORM.render(question.question).text
            raw = await client.completions.with_raw_response.create(
                model=model, prompt=str(prompt), n=n, temperature=0.7, max_tokens=20, stop=["\n"]
            )
        reply = raw.parse()
        gold = grader.extract(question.gold)
        found = [grader.extract(choice.text) for choice in reply.choices]
        usage = reply.usage
        assert usage is not None
        row = {
            "id": question.id,
            "right": [answer is not None and grader.equal(answer, str(gold)) for answer in found],
            "answers": found,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "samples": int(raw.headers.get("x-adacompute-samples", n or 1)),
        }
        done.append(row)
        with place.open("a") as file:
            file.write(json.dumps(row) + "\n")

    async with client:
        new = (question for question in questions if question.id not in known)
        await asyncio.gather(*(ask(question) for question in new))
    return sorted(done, key=lambda row: str(row["id"]))


def recorded(rows: list[dict[str, Any]]) -> Answers:
    """Recorded answers as the estimator takes them."""
    classes = [{a: i for i, a in enumerate(dict.fromkeys(row["answers"]))} for row in rows]
    answer = [
        -1 if a is None else known[a]
        for row, known in zip(rows, classes, strict=True)
        for a in row["answers"]
    ]
    right = [ok for row in rows for ok in row["right"]]
    offsets = np.arange(len(rows) + 1) * SAMPLES
    return Answers(offsets=offsets, answer=np.array(answer), correct=np.array(right))


def tokens_each(passes: list[list[dict[str, Any]]]) -> np.ndarray[Any, Any]:
    """Completion tokens of one sample of each question, from calls of one draw.

    The server bills only one of the choices of a call, so calls of several do not tell.
    """
    each = [[row["completion_tokens"] / row["samples"] for row in rows] for rows in passes]
    return np.asarray(np.mean(each, axis=0))


def compare(
    passes: list[list[dict[str, Any]]], base: list[dict[str, Any]], each: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """Gain over the best mixture at equal completion tokens, with its interval."""
    answers = recorded(base)
    levels = list(range(1, SAMPLES + 1))
    utility = estimate(answers, levels, standard_errors=False).utility
    right = np.mean([[row["right"][0] for row in rows] for rows in passes], axis=0)
    spent = np.mean([[row["completion_tokens"] for row in rows] for rows in passes], axis=0)
    rng = np.random.default_rng(0)
    gains = []
    for i in range(RESAMPLINGS + 1):
        rows = np.arange(len(base)) if i == 0 else rng.integers(0, len(base), len(base))
        cost = np.outer(each[rows], levels).mean(axis=0)
        hull = upper_hull(cost, utility[rows].mean(axis=0))
        gains.append(right[rows].mean() - np.interp(spent[rows].mean(), *hull))
    low, high = np.percentile(gains[1:], [2.5, 97.5])
    flat = [row for rows in passes for row in rows]
    return {
        "accuracy": float(right.mean()),
        "samples": float(np.mean([row["samples"] for row in flat])),
        "completion_tokens": float(spent.mean()),
        "prompt_tokens": float(np.mean([row["prompt_tokens"] for row in flat])),
        "gain": float(gains[0]),
        "low": float(low),
        "high": float(high),
    }


def upper_hull(
    cost: np.ndarray[Any, Any], value: np.ndarray[Any, Any]
) -> tuple[list[float], list[float]]:
    """Vertices of the best mixtures."""
    kept: list[int] = []
    for i in range(len(cost)):
        while len(kept) > 1 and (value[kept[-1]] - value[kept[-2]]) * (
            cost[i] - cost[kept[-2]]
        ) <= (value[i] - value[kept[-2]]) * (cost[kept[-1]] - cost[kept[-2]]):
            kept.pop()
        kept.append(i)
    return [float(cost[i]) for i in kept], [float(value[i]) for i in kept]


def start_gateway(
    bundle: str, llama: Llama, budget: float, rounds: int | None, out: Path
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a gateway of its own for a case, and wait until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = out / f"gateway-{port}.toml"
    most = "" if rounds is None else f"max_rounds = {rounds}\n"
    config.write_text(
        f'[serve]\nbase_url = "{llama.base_url}"\nport = {port}\n'
        f'[serve.models."{llama.model}"]\nbundle = "{Path(bundle).resolve()}"\n'
        f'budget = {budget}\ngrader = "numeric"\n{most}'
    )
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ, "OPENAI_API_KEY": ""})  # noqa: S603
    for _ in range(600):
        with socket.socket() as plug:
            if plug.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/v1"
        time.sleep(0.2)
    raise SystemExit("the gateway did not start")


def main() -> None:
    """Print a row a case."""
    bundle, out = sys.argv[1], Path(sys.argv[2])
    count, passes = (int(given) for given in (*sys.argv[3:5], "300", "3")[:2])
    out.mkdir(parents=True, exist_ok=True)
    questions = choose_new(count)
    with serve_llama(threads=1, slots=16, context=512) as llama:
        base = asyncio.run(
            ask_all(llama.base_url, llama.model, questions, out / "base.jsonl", n=SAMPLES)
        )
        each = None
        for case, (budget, rounds) in CASES.items():
            process, url = start_gateway(bundle, llama, budget, rounds, out)
            try:
                runs = [
                    asyncio.run(ask_all(url, llama.model, questions, out / f"{case}-{i}.jsonl"))
                    for i in range(passes)
                ]
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
            each = tokens_each(runs) if each is None else each
            print(case, json.dumps(compare(runs, base, each)), flush=True)


if __name__ == "__main__":
    main()
