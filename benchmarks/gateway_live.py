"""Gateway, live: gain over the best mixture on a real model, through the gateway.

``python benchmarks/gateway_live.py BUNDLE OUT [QUESTIONS] [PASSES]`` starts a llama.cpp server and
a gateway. With the official client it asks 300 generated questions that the policy was not trained
on, three times at each budget. The mixture of uniform numbers of samples is computed from 16
samples per question, drawn without the gateway, at equal completion tokens. Answers are stored in
OUT, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
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
from adacompute.testing.arithmetic import FEW_SHOT, Problem, generate_problems
from adacompute.testing.llama import LlamaServer, serve_llama

NEW_SEED = 20_261_115
CONCURRENCY, N_SAMPLES = 2, 16
FORM = Template(form="Question: {question}\nAnswer:", few_shot=tuple(FEW_SHOT), chat=False)
CASES = {"B=2": (2.0, None), "B=4": (4.0, None), "B=4, 2 rounds": (4.0, 2)}
RESAMPLINGS = 2000


def make_questions(count: int) -> list[Problem]:
    """Generate questions that are not in the example set, equally many of each kind."""
    known = set(pq.read_table(find_example(), columns=["question"])["question"].to_pylist())
    by_kind: dict[str, list[Problem]] = {}
    for problem in generate_problems(4 * count, seed=NEW_SEED):
        if problem.question not in known:
            by_kind.setdefault(problem.class_name, []).append(problem)
    turns = zip_longest(*by_kind.values())
    return [problem for turn in turns for problem in turn if problem][:count]


def read_stored(path: Path) -> list[dict[str, Any]]:
    """Return the answers of an interrupted run."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def ask_all(
    base_url: str, model: str, questions: list[Problem], path: Path, *, n: int | None = None
) -> list[dict[str, Any]]:
    """Ask every question that has no stored answer, and store the answers."""
    done = read_stored(path)
    known = {row["id"] for row in done}
    client = AsyncOpenAI(base_url=base_url, api_key="none", timeout=300, max_retries=3)
    grader, limit = load_grader("numeric"), asyncio.Semaphore(CONCURRENCY)

    async def ask(question: Problem) -> None:
        async with limit:
            prompt = FORM.render(question.question).text
            raw = await client.completions.with_raw_response.create(
                model=model, prompt=str(prompt), n=n, temperature=0.7, max_tokens=20, stop=["\n"]
            )
        reply = raw.parse()
        gold = grader.extract(question.gold)
        answers = [grader.extract(choice.text) for choice in reply.choices]
        usage = reply.usage
        assert usage is not None
        row = {
            "id": question.id,
            "correct": [a is not None and grader.equal(a, str(gold)) for a in answers],
            "answers": answers,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "samples": int(raw.headers.get("x-adacompute-samples", n or 1)),
        }
        done.append(row)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    async with client:
        new = (question for question in questions if question.id not in known)
        await asyncio.gather(*(ask(question) for question in new))
    return sorted(done, key=lambda row: str(row["id"]))


def make_answers(rows: list[dict[str, Any]]) -> Answers:
    """Return stored answers as the estimator needs them."""
    classes = [{a: i for i, a in enumerate(dict.fromkeys(row["answers"]))} for row in rows]
    answer = [
        -1 if a is None else known[a]
        for row, known in zip(rows, classes, strict=True)
        for a in row["answers"]
    ]
    correct = [correct for row in rows for correct in row["correct"]]
    offsets = np.arange(len(rows) + 1) * N_SAMPLES
    return Answers(offsets=offsets, answer=np.array(answer), correct=np.array(correct))


def tokens_per_sample(passes: list[list[dict[str, Any]]]) -> np.ndarray[Any, Any]:
    """Completion tokens per sample of each question, from calls with one choice.

    The server reports the tokens of only one choice per call, so calls with more cannot be used.
    """
    tokens = [[row["completion_tokens"] / row["samples"] for row in rows] for rows in passes]
    return np.asarray(np.mean(tokens, axis=0))


def compare(
    passes: list[list[dict[str, Any]]], base: list[dict[str, Any]], tokens: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """Return the gain over the best mixture at equal completion tokens, with its interval."""
    levels = list(range(1, N_SAMPLES + 1))
    utility = estimate(make_answers(base), levels, standard_errors=False).utility
    correct = np.mean([[row["correct"][0] for row in rows] for rows in passes], axis=0)
    spent = np.mean([[row["completion_tokens"] for row in rows] for rows in passes], axis=0)
    rng = np.random.default_rng(0)
    gains = []
    for i in range(RESAMPLINGS + 1):
        rows = np.arange(len(base)) if i == 0 else rng.integers(0, len(base), len(base))
        cost = np.outer(tokens[rows], levels).mean(axis=0)
        hull = upper_hull(cost, utility[rows].mean(axis=0))
        gains.append(correct[rows].mean() - np.interp(spent[rows].mean(), *hull))
    low, high = np.percentile(gains[1:], [2.5, 97.5])
    all_rows = [row for rows in passes for row in rows]
    return {
        "accuracy": float(correct.mean()),
        "samples": float(np.mean([row["samples"] for row in all_rows])),
        "completion_tokens": float(spent.mean()),
        "prompt_tokens": float(np.mean([row["prompt_tokens"] for row in all_rows])),
        "gain": float(gains[0]),
        "gain_low": float(low),
        "gain_high": float(high),
    }


def upper_hull(
    cost: np.ndarray[Any, Any], value: np.ndarray[Any, Any]
) -> tuple[list[float], list[float]]:
    """Return the costs and values of the vertices of the best mixtures."""
    kept: list[int] = []
    for i in range(len(cost)):
        while len(kept) > 1 and (value[kept[-1]] - value[kept[-2]]) * (
            cost[i] - cost[kept[-2]]
        ) <= (value[i] - value[kept[-2]]) * (cost[kept[-1]] - cost[kept[-2]]):
            kept.pop()
        kept.append(i)
    return [float(cost[i]) for i in kept], [float(value[i]) for i in kept]


def start_gateway(
    bundle: str, llama: LlamaServer, budget: float, max_rounds: int | None, out: Path
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a gateway for a case and wait until it is ready; return its process and URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = out / f"gateway-{port}.toml"
    rounds = "" if max_rounds is None else f"max_rounds = {max_rounds}\n"
    config.write_text(
        f'[serve]\nbase_url = "{llama.base_url}"\nport = {port}\n'
        f'[serve.models."{llama.model}"]\nbundle = "{Path(bundle).resolve()}"\n'
        f'budget = {budget}\ngrader = "numeric"\n{rounds}'
    )
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ, "OPENAI_API_KEY": ""})  # noqa: S603
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/v1"
        time.sleep(0.2)
    raise SystemExit("the gateway did not start")


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", help="the policy to serve")
    parser.add_argument("out", type=Path, help="directory of stored answers")
    parser.add_argument("questions", type=int, nargs="?", default=300)
    parser.add_argument("passes", type=int, nargs="?", default=3, help="per question and case")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    questions = make_questions(options.questions)
    with serve_llama(threads=1, slots=16, context_tokens=512) as llama:
        base = asyncio.run(
            ask_all(llama.base_url, llama.model, questions, out / "base.jsonl", n=N_SAMPLES)
        )
        tokens = None
        for case, (budget, max_rounds) in CASES.items():
            process, url = start_gateway(options.bundle, llama, budget, max_rounds, out)
            try:
                runs = [
                    asyncio.run(ask_all(url, llama.model, questions, out / f"{case}-{i}.jsonl"))
                    for i in range(options.passes)
                ]
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
            tokens = tokens_per_sample(runs) if tokens is None else tokens
            print(case, json.dumps(compare(runs, base, tokens)), flush=True)


if __name__ == "__main__":
    main()
