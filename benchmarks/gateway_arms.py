"""Gateway over arms, live: a budget in completion tokens, on two prompts of a real small model.

``python -m benchmarks.gateway_arms OUT [QUESTIONS] [TRAINING]`` starts a llama.cpp server. It
collects samples of TRAINING generated problems from two arms, one that answers in a line and one
that is shown worked steps, and prints which levels are efficient. It trains ``sequential``,
calibrates it for a budget between the two arms, and asks QUESTIONS new problems with the official
client through a gateway. The mean completion tokens are printed beside the interval that
`calibrate` stated, and the gain over the best mixture of levels beside the predicted one. The
mixture is chosen on the training problems and measured on samples of the new ones that are drawn
without the gateway.

Everything is stored in OUT, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.gateway_live import (
    BOOTSTRAPS,
    Case,
    ask_all,
    make_questions,
    run_command,
    start_gateway,
)

from adacompute.models.templates import Template
from adacompute.testing.arithmetic import Problem
from adacompute.testing.llama import LlamaServer, serve_llama

SAMPLES = {"short": 8, "steps": 8}
NEW_SAMPLES = 4
LEVELS = "1,2,3,4"
SHOTS = {
    "short": (
        ("What is 7 + 6?", "7 + 6 = 13"),
        ("Tom has 9 pears and eats 4. How many pears are left?", "9 - 4 = 5"),
        ("What is half of 18?", "18 / 2 = 9"),
        ("Which is the largest of 3, 21 and 8?", "largest = 21"),
    ),
    "steps": (
        ("What is 17 + 26?", "17 + 20 = 37. 37 + 6 = 43. The answer is 43"),
        ("Tom has 9 pears and eats 4. How many pears are left?", "9 - 4 = 5. The answer is 5"),
        ("What is half of 18?", "18 / 2 = 9. The answer is 9"),
        ("Which is the largest of 3, 21 and 8?", "21 > 3. 21 > 8. The answer is 21"),
        ("What is 23 * 4?", "20 * 4 = 80. 3 * 4 = 12. 80 + 12 = 92. The answer is 92"),
    ),
}
MAX_TOKENS = {"short": 20, "steps": 60}


def make_form(arm: str) -> str:
    """Return the prompt of an arm: its worked examples, and a place for the question."""
    shots = [f"Question: {question}\nAnswer: {answer}" for question, answer in SHOTS[arm]]
    return "\n\n".join([*shots, "Question: {question}\nAnswer:"])


def collect(
    out: Path, name: str, problems: list[Problem], llama: LlamaServer, samples: dict[str, int]
) -> Path:
    """Collect samples of both arms into a run; return its directory."""
    rows = [{"question_id": q.id, "question": q.question, "gold": q.gold} for q in problems]
    pq.write_table(pa.Table.from_pylist(rows), out / f"{name}.parquet")
    tables = [
        f'[[collect.arm]]\nname = "{arm}"\nsamples = {samples[arm]}\n'
        f"max_tokens = {MAX_TOKENS[arm]}\nprompt = {json.dumps(make_form(arm))}\n"
        for arm in SHOTS
    ]
    (out / f"{name}.toml").write_text("\n".join(tables))
    run_command(
        *("collect", str(out / f"{name}.parquet"), "--run", str(out / name)),
        *("--base-url", llama.base_url, "--model", llama.model, "--grader", "numeric"),
        *("--config", str(out / f"{name}.toml"), "--completion", "--stop", "\n"),
        *("--temperature", "0.7", "--concurrency", "2"),
    )
    return out / name


def measure_levels(run: Path) -> dict[str, dict[str, float]]:
    """Return the cost and the accuracy of every level of a run, by its name."""
    found = run_command("arms", str(run), "--unit", "tokens", "--levels", LEVELS, "--all")
    return {f"{row['arm']} x {row['samples']}": row for row in found["rows"]}


def best_mixture(levels: dict[str, dict[str, float]], cost: float) -> dict[str, float]:
    """Return the shares of the two levels whose mixture is the most accurate at a mean cost."""
    best, shares = -1.0, dict[str, float]()
    for below, first in levels.items():
        for above, second in levels.items():
            if not first["cost"] <= cost <= second["cost"]:
                continue
            width = second["cost"] - first["cost"]
            share = (cost - first["cost"]) / width if width else 0.0
            value = (1 - share) * first["accuracy"] + share * second["accuracy"]
            if value > best:
                best, shares = value, {below: 1 - share, above: share}
    return shares


def serve(
    out: Path, llama: LlamaServer, bundle: Path, budget: float, questions: list[Problem]
) -> list[dict[str, Any]]:
    """Ask every new question once through a gateway that serves the bundle."""
    process, url = start_gateway(bundle, llama, Case(budget, None), out)
    template = Template(form=make_form("short"), chat=False)
    try:
        return asyncio.run(
            ask_all(url, llama.model, questions, out / "served.jsonl", template=template)
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def summarise(
    rows: list[dict[str, Any]], levels: dict[str, dict[str, float]], shares: dict[str, float]
) -> dict[str, Any]:
    """Return realised cost and gain over the mixture on the new questions, with its interval.

    The mixture's accuracy is corrected to the realised cost by its slope between the two levels.
    """
    correct = np.array([row["correct"][0] for row in rows], dtype=np.float64)
    tokens = np.array([row["completion_tokens"] for row in rows], dtype=np.float64)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(rows), (BOOTSTRAPS, len(rows)))
    value = sum(share * levels[name]["accuracy"] for name, share in shares.items())
    cost = sum(share * levels[name]["cost"] for name, share in shares.items())
    ends = [levels[name] for name in shares]
    width = ends[-1]["cost"] - ends[0]["cost"]
    slope = (ends[-1]["accuracy"] - ends[0]["accuracy"]) / width if width else 0.0
    gains = correct[drawn].mean(axis=1) - value - slope * (tokens[drawn].mean(axis=1) - cost)
    low, high = np.percentile(gains, [2.5, 97.5])
    return {
        "questions": len(rows),
        "accuracy": float(correct.mean()),
        "tokens": float(tokens.mean()),
        "samples": float(np.mean([row["samples"] for row in rows])),
        "mixture_accuracy": float(value + slope * (tokens.mean() - cost)),
        "gain": float(correct.mean() - value - slope * (tokens.mean() - cost)),
        "gain_low": float(low),
        "gain_high": float(high),
    }


def main() -> None:
    """Print the levels, and one JSON line of what was stated and what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of everything that is stored")
    parser.add_argument("questions", type=int, nargs="?", default=600)
    parser.add_argument("training", type=int, nargs="?", default=300)
    parser.add_argument("--budget", type=float, help="completion tokens per question")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    training, new = make_questions(max(options.questions, options.training))
    training, new = training[: options.training], new[: options.questions]
    with serve_llama(threads=1, slots=8, context_tokens=512) as llama:
        run = collect(out, "training", training, llama, SAMPLES)
        levels = measure_levels(run)
        for name, row in levels.items():
            print(name, f"{row['cost']:.1f} tokens, {row['accuracy']:.3f}", row["efficient"])
        budget = options.budget or round(1.2 * levels["steps x 1"]["cost"], 1)
        bundle = out / "policy"
        known = ("--unit", "tokens", "--levels", LEVELS)
        run_command("train", str(run), "--policy", "sequential", *known, "--out", str(bundle))
        stated = run_command(
            *("calibrate", str(run), "--bundle", str(bundle), "--budget", str(budget)),
            *("--horizon", str(len(new))),
        )
        rows = serve(out, llama, bundle, budget, new)
        alone = collect(out, "alone", new, llama, dict.fromkeys(SHOTS, NEW_SAMPLES))
    shares = best_mixture(levels, budget)
    found = summarise(rows, measure_levels(alone), shares)
    names = ("cost_low", "cost_high", "gain", "gain_low", "gain_high", "verdict")
    found |= {f"calibrated_{name}": stated[name] for name in names}
    print(json.dumps({"budget": budget, "mixture": shares, **found}), flush=True)


if __name__ == "__main__":
    main()
