"""Gateway over arms, live: a budget in completion tokens, on two prompts of a real small model.

``python -m benchmarks.gateway_arms OUT [QUESTIONS] [TRAINING]`` starts a llama.cpp server. It
collects samples of TRAINING generated problems from two arms, one that answers with the number
alone and one that writes the equation first, and prints which levels are efficient. It trains
``sequential``, calibrates it for a budget in completion tokens, and asks QUESTIONS new problems
with the official client through a gateway. The mean completion tokens are printed beside the
interval that `calibrate` stated, and the gain over the best mixture of levels beside the predicted
one. The mixture is chosen on the training problems and measured on samples of the new ones that are
drawn without the gateway. Its votes count equally, so compare the gain with the sum of the two that
`calibrate` states, ``gain`` and ``gain_by_votes``. The gateway keeps the calibrated price.

Everything is stored in OUT, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.types import FloatArray, IntArray
from adacompute.core.utility import estimate
from adacompute.models.templates import Template
from adacompute.storage.store import Run
from benchmarks.gateway_live import (
    BOOTSTRAPS,
    Case,
    make_questions,
    run_command,
    serve_case,
)
from test_support.arithmetic import FEW_SHOT, Problem
from test_support.llama import LlamaServer, serve_llama

SAMPLES = {"short": 16, "number": 8}
NEW_SAMPLES, SLOTS = 4, 16
LEVELS = "1,2,3,4"
SHOTS = {
    "short": FEW_SHOT,
    "number": tuple((question, answer.split()[-1]) for question, answer in FEW_SHOT),
}
MAX_TOKENS = {"short": 20, "number": 6}
BUDGET = 2.0
"""The default budget, as a multiple of the tokens of one short sample."""


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
        for arm in samples
    ]
    (out / f"{name}.toml").write_text("\n".join(tables))
    run_command(
        *("collect", str(out / f"{name}.parquet"), "--run", str(out / name)),
        *("--base-url", llama.base_url, "--model", llama.model, "--grader", "numeric"),
        *(
            "--config",
            str(out / f"{name}.toml"),
            "--config",
            "completion=true",
            "--config",
            "stop=\n",
        ),
        *("--config", "temperature=0.7", "--config", "concurrency=2"),
    )
    return out / name


def measure_levels(run: Path) -> dict[str, dict[str, float]]:
    """Return the cost and the accuracy of every level of a run, by its name."""
    found = run_command(
        "research", "arms", str(run), "--unit", "tokens", "--config", f"levels={LEVELS}"
    )
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


def measure_questions(run: Path, level: str, ids: list[str]) -> tuple[FloatArray, FloatArray]:
    """Return the accuracy and the completion tokens of a level on each question of a run."""
    arm, _, count = level.partition(" x ")
    recorded = Run(run).encoded_samples()
    rows = np.array([recorded.id.index(one) for one in sorted(ids, key=recorded.id.index)])
    own = recorded.select_arm(recorded.arms.index(arm), rows)
    found = estimate(own.answers, [int(count)], standard_errors=False).utility[:, 0]
    tokens = np.add.reduceat(own.column("completion_tokens"), own.answers.offsets[:-1])
    tokens *= int(count) / np.diff(own.answers.offsets)
    place = [own.id.index(one) for one in ids]
    return found[place], tokens[place]


def summarise(rows: list[dict[str, Any]], run: Path, shares: dict[str, float]) -> dict[str, Any]:
    """Return realised cost and gain over the mixture on the same questions, with its interval.

    The mixture's accuracy is corrected to the realised cost by its slope between the two levels.
    Questions are drawn again with both, so the interval contains the samples of the mixture.
    """
    correct = np.array([row["correct"][0] for row in rows], dtype=np.float64)
    tokens = np.array([row["completion_tokens"] for row in rows], dtype=np.float64)
    ids = [str(row["id"]) for row in rows]
    levels = np.array([measure_questions(run, name, ids) for name in shares])
    share = np.array(list(shares.values()))

    def compare(drawn: IntArray) -> tuple[float, float]:
        accuracy, cost = levels[:, :, drawn].mean(axis=2).T
        width = cost[-1] - cost[0]
        slope = (accuracy[-1] - accuracy[0]) / width if width else 0.0
        mixture = share @ accuracy + slope * (tokens[drawn].mean() - share @ cost)
        return float(mixture), float(correct[drawn].mean() - mixture)

    rng = np.random.default_rng(0)
    again = [compare(rng.integers(0, len(rows), len(rows)))[1] for _ in range(BOOTSTRAPS)]
    low, high = np.percentile(again, [2.5, 97.5])
    mixture, gain = compare(np.arange(len(rows)))
    return {
        "questions": len(rows),
        "accuracy": float(correct.mean()),
        "tokens": float(tokens.mean()),
        "samples": float(np.mean([row["samples"] for row in rows])),
        "mixture_accuracy": mixture,
        "gain": gain,
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
    parser.add_argument("--new-samples", type=int, default=NEW_SAMPLES, help="for the mixture")
    parser.add_argument("--weights", type=Path, help="GGUF file of another model or format")
    parser.add_argument("--threads", type=int, default=1, help="threads of the model's server")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    training, new = make_questions(max(options.questions, options.training))
    training, new = training[: options.training], new[: options.questions]
    server = serve_llama(
        weights=options.weights, threads=options.threads, slots=SLOTS, context_tokens=512
    )
    with server as llama:
        run = collect(out, "training", training, llama, SAMPLES)
        levels = measure_levels(run)
        for name, row in levels.items():
            print(name, f"{row['cost']:.1f} tokens, {row['accuracy']:.3f}", row["efficient"])
        budget = options.budget or round(BUDGET * levels["short x 1"]["cost"], 1)
        bundle = out / "policy"
        known = ("--unit", "tokens", "--config", f"levels={LEVELS}")
        run_command(
            "research", "train", str(run), "--policy", "sequential", *known, "--out", str(bundle)
        )
        stated = run_command(
            *("research", "calibrate", str(run), "--bundle", str(bundle), "--budget", str(budget)),
            *("--config", f"horizon={len(new)}"),
        )
        template = Template(chat=False)  # the gateway adds the examples of each arm
        rows = serve_case(out, llama, bundle, Case(budget, None), new, template=template)
        shares = best_mixture(levels, budget)
        mixed = sorted({name.partition(" x ")[0] for name in shares})
        alone = collect(out, "alone", new, llama, dict.fromkeys(mixed, options.new_samples))
    found = summarise(rows, alone, shares)
    names = ("cost_low", "cost_high", "gain", "gain_low", "gain_high", "gain_by_votes", "verdict")
    found |= {f"calibrated_{name}": stated[name] for name in names}
    print(json.dumps({"budget": budget, "mixture": shares, **found}), flush=True)


if __name__ == "__main__":
    main()
