"""Gateway, live: what calibrated budgets cost and gain on a real model, through the gateway.

``python -m benchmarks.gateway_live OUT [QUESTIONS]`` starts a llama.cpp server. It collects 24
samples of each of QUESTIONS generated problems, trains ``sequential``, and calibrates it for each
of four cases: a budget of 2 or 4, any number of rounds or at most two. As many new questions are
asked once per case with the official client, through a gateway that serves the case's bundle. Each
case prints the mean cost beside the interval that `calibrate` stated, and the gain over the best
mixture of uniform numbers of samples at equal completion tokens. The mixture is computed from 8
samples per question, drawn without the gateway.

Everything is stored in OUT, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from openai import AsyncOpenAI

from adacompute.core.allocation.oracle import frontier
from adacompute.core.answers import Answers
from adacompute.core.types import FloatArray, UtilityTable
from adacompute.core.utility import estimate
from adacompute.graders.grader import load_grader
from adacompute.models.templates import Template
from test_support.arithmetic import FEW_SHOT, Problem, generate_problems
from test_support.gateways import free_port
from test_support.llama import LlamaServer, serve_llama

SEED, MAX_QUESTIONS = 20_261_116, 1500
CONCURRENCY, TRAINING_SAMPLES, MIXTURE_SAMPLES, MAX_TOKENS = 2, 24, 8, 20
FORM = "Question: {question}\nAnswer:"
TEMPLATE = Template(form=FORM, few_shot=tuple(FEW_SHOT), chat=False)
LEVELS = "1,2,3,4,5,6,8,10,12"
BOOTSTRAPS = 2000


class Case(NamedTuple):
    """A budget, a limit of rounds, and whether the gateway adjusts the calibrated price."""

    budget: float
    max_rounds: int | None
    pacing: bool = False

    @property
    def bundle_name(self) -> str:
        """Name of the bundle that is calibrated for the case."""
        return f"budget-{self.budget:g}-rounds-{self.max_rounds or 'any'}"

    @property
    def name(self) -> str:
        """Name of the case's files."""
        return self.bundle_name + ("-paced" if self.pacing else "")


CASES = [Case(2.0, None), Case(4.0, None), Case(2.0, 2), Case(4.0, 2)]


def run_command(*arguments: str) -> dict[str, Any]:
    """Run an adacompute command and return its JSON document."""
    command = [sys.executable, "-m", "adacompute", *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603
    return dict(json.loads(done.stdout))


def make_questions(count: int) -> tuple[list[Problem], list[Problem]]:
    """Return the first questions to train on and as many new ones, from the same distribution."""
    problems = generate_problems(2 * MAX_QUESTIONS, seed=SEED)
    random.Random(SEED).shuffle(problems)  # noqa: S311 - no secrets
    return problems[:count], problems[MAX_QUESTIONS : MAX_QUESTIONS + count]


def collect_training(
    out: Path,
    problems: list[Problem],
    llama: LlamaServer,
    *,
    template: Template = TEMPLATE,
    samples: int = TRAINING_SAMPLES,
    max_tokens: int = MAX_TOKENS,
) -> Path:
    """Collect the samples to train on into a run; return its directory."""
    run = out / "run"
    rows = [
        {"question_id": q.id, "question": q.question, "gold": q.gold, "level": q.class_name}
        for q in problems
    ]
    pq.write_table(pa.Table.from_pylist(rows), out / "questions.parquet")
    shots = [json.dumps({"question": q, "answer": a}) for q, a in template.few_shot]
    (out / "shots.jsonl").write_text("\n".join(shots) + "\n")
    run_command(
        *("collect", str(out / "questions.parquet"), "--run", str(run)),
        *("--base-url", llama.base_url, "--model", llama.model, "--grader", "numeric"),
        *(
            "--samples",
            str(samples),
            "--config",
            "completion=true",
            "--config",
            f"prompt={template.form}",
        ),
        *("--config", f"few-shot={out / 'shots.jsonl'}", "--config", "stop=\n"),
        *("--config", f"max-tokens={max_tokens}"),
        *("--config", "temperature=0.7", "--config", f"concurrency={CONCURRENCY}"),
    )
    return run


def make_bundle(out: Path, run: Path, case: Case, horizon: int) -> tuple[Path, dict[str, Any]]:
    """Train a policy, if that is not done, and calibrate it for a case."""
    trained, bundle = out / "policy", out / case.bundle_name
    if not trained.exists():
        policy = ("--policy", "sequential", "--levels", LEVELS)
        run_command("research", "train", str(run), *policy, "--out", str(trained))
    shutil.copytree(trained, bundle, dirs_exist_ok=True)
    rounds = () if case.max_rounds is None else ("--config", f"max-rounds={case.max_rounds}")
    result = run_command(
        *("research", "calibrate", str(run), "--bundle", str(bundle), "--budget", str(case.budget)),
        *("--config", f"horizon={horizon}", *rounds),
    )
    (out / f"{case.bundle_name}.json").write_text(json.dumps(result))
    return bundle, result


def read_stored(path: Path) -> list[dict[str, Any]]:
    """Return the answers of an interrupted run."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def ask_all(
    base_url: str,
    model: str,
    questions: list[Problem],
    path: Path,
    *,
    n: int | None = None,
    template: Template = TEMPLATE,
    max_tokens: int = MAX_TOKENS,
) -> list[dict[str, Any]]:
    """Ask every question that has no stored answer, and store the answers as they arrive."""
    done = read_stored(path)
    known = {row["id"] for row in done}
    client = AsyncOpenAI(base_url=base_url, api_key="none", timeout=300, max_retries=3)
    grader, limit = load_grader("numeric"), asyncio.Semaphore(CONCURRENCY)
    extra = {"adacompute": {"debug": True}} if n is None else {}

    async def ask(question: Problem) -> None:
        async with limit:
            raw = await client.completions.with_raw_response.create(
                model=model,
                prompt=str(template.render(question.question).text),
                n=n,
                temperature=0.7,
                max_tokens=max_tokens,
                stop=["\n"],
                extra_body=extra,
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
            "decision": raw.headers.get("x-adacompute-decision"),
            "samples": int(raw.headers.get("x-adacompute-samples", n or 1)),
            "debug": json.loads(raw.headers.get("x-adacompute-debug", "{}")),
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
    offsets = np.arange(len(rows) + 1) * MIXTURE_SAMPLES
    return Answers(offsets=offsets, answer=np.array(answer), correct=np.array(correct))


def compare(
    rows: list[dict[str, Any]], mixture: list[dict[str, Any]], tokens: FloatArray
) -> dict[str, Any]:
    """Return the gain over the best mixture at equal completion tokens, with its interval."""
    levels = list(range(1, MIXTURE_SAMPLES + 1))
    utility = estimate(make_answers(mixture), levels, standard_errors=False).utility
    correct = np.array([row["correct"][0] for row in rows], dtype=np.float64)
    samples = np.array([row["samples"] for row in rows], dtype=np.float64)
    spent = samples * tokens
    rng = np.random.default_rng(0)
    gains = []
    for i in range(BOOTSTRAPS + 1):
        drawn = np.arange(len(rows)) if i == 0 else rng.integers(0, len(rows), len(rows))
        cost = tokens[drawn].mean() * np.array(levels, dtype=np.float64)
        mixtures = frontier(UtilityTable(utility[drawn].mean(axis=0)[None, :], cost))
        gains.append(correct[drawn].mean() - mixtures.utility_at(float(spent[drawn].mean())))
    low, high = np.percentile(gains[1:], [2.5, 97.5])
    return {
        "accuracy": float(correct.mean()),
        "mean_cost": float(samples.mean()),
        "completion_tokens": float(spent.mean()),
        "prompt_tokens": float(np.mean([row["prompt_tokens"] for row in rows])),
        "gain": float(gains[0]),
        "gain_low": float(low),
        "gain_high": float(high),
    }


def state_directory(out: Path, case: Case) -> Path:
    """Return where the gateway of a case keeps its account and its log."""
    return out.resolve() / f"{case.name}-state"


def start_gateway(
    bundle: Path, llama: LlamaServer, case: Case, out: Path, settings: str = ""
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a gateway for a case and wait until it is ready; return its process and URL.

    Its account is in OUT, so that pacing goes on where an interrupted run ended. ``settings`` are
    lines of its configuration.
    """
    port = free_port()
    config = out / f"gateway-{case.name}.toml"
    rounds = "" if case.max_rounds is None else f"max_rounds = {case.max_rounds}\n"
    config.write_text(
        f'[serve]\nbase_url = "{llama.base_url}"\nport = {port}\n'
        f'state_directory = "{state_directory(out, case)}"\n{settings}'
        f'[serve.models."{llama.model}"]\nbundle = "{bundle.resolve()}"\n'
        f'budget = {case.budget}\ngrader = "numeric"\naccept_verdict = true\n{rounds}'
        f"pacing = {str(case.pacing).lower()}\n"
    )
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    process = subprocess.Popen(command, env={**os.environ, "OPENAI_API_KEY": ""})  # noqa: S603
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/v1"
        time.sleep(0.2)
    raise SystemExit("the gateway did not start")


def serve_case(
    out: Path,
    llama: LlamaServer,
    bundle: Path,
    case: Case,
    questions: list[Problem],
    *,
    template: Template = TEMPLATE,
    max_tokens: int = MAX_TOKENS,
) -> list[dict[str, Any]]:
    """Ask every new question once through a gateway that serves the bundle."""
    process, url = start_gateway(bundle, llama, case, out)
    path = out / f"{case.name}.jsonl"
    known: dict[str, Any] = {"template": template, "max_tokens": max_tokens}
    try:
        return asyncio.run(ask_all(url, llama.model, questions, path, **known))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def main() -> None:
    """Print one JSON line per case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of everything that is stored")
    parser.add_argument("questions", type=int, nargs="?", default=MAX_QUESTIONS)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    training, new = make_questions(options.questions)
    with serve_llama(threads=1, slots=TRAINING_SAMPLES, context_tokens=256) as llama:
        run = collect_training(out, training, llama)
        bundles = {case: make_bundle(out, run, case, len(new)) for case in CASES}
        alone = ask_all(llama.base_url, llama.model, new, out / "new.jsonl", n=MIXTURE_SAMPLES)
        mixture = asyncio.run(alone)
        served = {
            case: serve_case(out, llama, bundle, case, new) for case, (bundle, _) in bundles.items()
        }
    # The server counts the tokens of only one choice per call: single calls alone tell them.
    single = [rows for case, rows in served.items() if case.max_rounds is None]
    tokens = np.mean(
        [[row["completion_tokens"] / row["samples"] for row in rows] for rows in single], axis=0
    )
    for case, rows in served.items():
        stated = {
            f"calibrated_{name}": bundles[case][1][name]
            for name in ("cost_low", "cost_high", "gain", "gain_low", "gain_high", "verdict")
        }
        print(case.name, json.dumps(compare(rows, mixture, tokens) | stated), flush=True)


if __name__ == "__main__":
    main()
