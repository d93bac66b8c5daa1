"""Pacing with a real small model: the mean cost of questions whose mix changes half-way.

``python -m benchmarks.pacing_model OUT [QUESTIONS]`` starts a llama.cpp server. It collects 16
samples of each of 300 generated problems, two thirds of cheap kinds and one third of an expensive
kind, and trains ``sequential``. For budgets of 2 and 4 samples it calibrates the policy and asks
QUESTIONS new problems with the official client through a gateway: first only cheap kinds, and after
half of them only expensive ones. Each budget is served twice, with pacing and at the calibrated
price. The answers are only a number, so that a sample takes about three tokens.

Each case prints one JSON line: the mean cost of both halves and of all questions, its deviation
from the budget in percent, and the accuracy. Everything is stored in OUT, the accounts of the
gateways too, so an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.models.templates import Template
from benchmarks.gateway_live import (
    FORM,
    SEED,
    Case,
    collect_training,
    make_bundle,
    read_stored,
    serve_case,
)
from test_support.arithmetic import FEW_SHOT, Problem, generate_problems
from test_support.llama import serve_llama

CHEAP = ("add-3", "subtract-2", "word-2")
EXPENSIVE = ("largest",)
"""Kinds on which more samples gain little, and on which they gain much: so they cost more."""

N_GENERATED, N_TRAINING, N_NEW = 12_000, 300, 2000
TRAINING_SAMPLES, MAX_TOKENS, SLOTS = 16, 6, 8
SHOTS = tuple((question, answer.split()[-1]) for question, answer in FEW_SHOT)
TEMPLATE = Template(form=FORM, few_shot=SHOTS, chat=False)
BUDGETS = (2.0, 4.0)


def make_stream(n_questions: int) -> tuple[list[Problem], list[Problem]]:
    """Return the questions to train on, and new ones: cheap kinds first, then expensive ones."""
    problems = generate_problems(N_GENERATED, seed=SEED)
    random.Random(SEED).shuffle(problems)  # noqa: S311 - no secrets
    cheap = [one for one in problems if one.class_name in CHEAP]
    expensive = [one for one in problems if one.class_name in EXPENSIVE]
    n_expensive = N_TRAINING // 3
    n_cheap = N_TRAINING - n_expensive
    half = n_questions // 2
    new = cheap[n_cheap : n_cheap + half]
    new += expensive[n_expensive : n_expensive + n_questions - half]
    return cheap[:n_cheap] + expensive[:n_expensive], new


def summarise(case: Case, rows: list[dict[str, Any]], half: int) -> dict[str, Any]:
    """Return what a case cost, from its answers in the order in which they arrived."""
    cost = np.array([row["samples"] for row in rows], dtype=np.float64)
    return {
        "budget": case.budget,
        "pacing": case.pacing,
        "questions": len(rows),
        "mean_cost_first_half": float(cost[:half].mean()),
        "mean_cost_second_half": float(cost[half:].mean()),
        "mean_cost": float(cost.mean()),
        "deviation_percent": 100 * (float(cost.mean()) / case.budget - 1),
        "accuracy": float(np.mean([row["correct"][0] for row in rows])),
    }


def main() -> None:
    """Print one JSON line per case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of everything that is stored")
    parser.add_argument("questions", type=int, nargs="?", default=N_NEW)
    parser.add_argument("--budget", type=float, action="append", help="by default 2 and 4")
    parser.add_argument("--pacing", choices=("both", "yes", "no"), default="both")
    parser.add_argument("--weights", type=Path, help="GGUF file of another model or format")
    parser.add_argument("--threads", type=int, default=1, help="threads of the model's server")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    training, new = make_stream(options.questions)
    modes = {"both": (True, False), "yes": (True,), "no": (False,)}[options.pacing]
    form: dict[str, Any] = {"template": TEMPLATE, "max_tokens": MAX_TOKENS}
    server = serve_llama(
        weights=options.weights, threads=options.threads, slots=SLOTS, context_tokens=256
    )
    with server as llama:
        run = collect_training(out, training, llama, samples=TRAINING_SAMPLES, **form)
        for budget in options.budget or BUDGETS:
            bundle, stated = make_bundle(out, run, Case(budget, None), len(new))
            for pacing in modes:
                case = Case(budget, None, pacing=pacing)
                serve_case(out, llama, bundle, case, new, **form)
                found = summarise(case, read_stored(out / f"{case.name}.jsonl"), len(new) // 2)
                names = ("cost_low", "cost_high", "verdict")
                found |= {f"calibrated_{name}": stated[name] for name in names}
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
