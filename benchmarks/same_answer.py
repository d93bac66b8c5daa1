"""Votes that stop early, with the grades hidden: what they save, and what accuracy really does.

For each recorded set: the share of answers that are those of all N samples, its lower bound, what
is saved, and the true change of accuracy on the same orders beside the bound that needs no grades.
With ``--halves`` the rule and its bound come from one half of the questions, and the change is that
of the other half.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from adacompute.core.answers import order_samples
from adacompute.core.errors import DataError
from adacompute.datasets.rows import read_samples
from adacompute.evaluation.experiment import N_PERMUTATIONS
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.evaluation.replay import Replay
from adacompute.evaluation.scoring.same_answer import answer_of, compare_with_today
from adacompute.policies.stopping import VoteLeadRule
from adacompute.stages.inputs import make_pool
from adacompute.storage.store import encode_samples

DATA = Path(os.environ.get("ADACOMPUTE_DATA", "../shared/data")) / "samples"
HEADER = (
    *("set", "questions", "lead", "same answer, %", "at least, %", "saving", "of decided votes"),
    *("change of accuracy, points", "bound", "two runs agree"),
)


def hide_grades(pool: Pool) -> Pool:
    """Return a pool in which no sample is correct."""
    answers = pool.answers
    return replace(pool, answers=replace(answers, correct=np.zeros_like(answers.correct)))


def measure_change(pool: Pool, lead: int, n_samples: int) -> float:
    """Return the accuracy at the stop minus that of all samples, with ties to the first answer."""
    kept = pool.take(pool.answers.n_samples >= n_samples)
    known = {"n_orders": N_PERMUTATIONS, "length": n_samples, "seed": 0}
    index = order_samples(kept.answers, kept.key, **known).reshape(-1, n_samples)
    answer, accuracy = kept.answers.answer[index], kept.answers.class_accuracy[index]
    stop, _ = Replay(kept, N_PERMUTATIONS, n_samples).play_rule(VoteLeadRule(lead, n_samples))
    today, now = (
        np.where(answer == answer_of(answer, count)[:, None], accuracy, 0.0).max(axis=1).mean()
        for count in (None, stop)
    )
    return float(now - today)


def score(name: str, pool: Pool, n_samples: int, *, halves: bool) -> list[str]:
    """Return one row of the table."""
    fitted = scored = pool
    if halves:
        fold = assign_folds(pool.group, 2)
        fitted, scored = pool.take(fold == 0), pool.take(fold == 1)
    found = compare_with_today(hide_grades(fitted), n_samples)
    change = measure_change(scored, found["lead"], n_samples)
    is_within = abs(change) <= found["difference_bound"]
    return [
        name,
        str(found["questions"]),
        "decided" if found["is_decided_vote"] else str(found["lead"]),
        f"{100 * found['same_answer']:.1f}",
        f"{100 * found['same_answer_low']:.1f}",
        f"{100 * found['delivered_saving']:.0f} %",
        f"{100 * found['leads'][-1]['saving']:.0f} %",
        f"{100 * change:+.2f}",
        f"{100 * found['difference_bound']:.2f}{'' if is_within else ', below the change'}",
        f"{100 * found['repeat_agreement']:.0f} %",
    ]


def main() -> None:
    """Print the table of all sets with enough samples."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", nargs="?", type=Path, default=DATA, help="directory of sets")
    parser.add_argument("--today", type=int, default=5, help="samples per question")
    parser.add_argument("--halves", action="store_true", help="score on other questions")
    given = parser.parse_args()
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    for path in sorted(given.samples.glob("**/*.parquet")):
        try:
            pool = make_pool(encode_samples(read_samples(path)))
            row = score(path.stem, pool, given.today, halves=given.halves)
        except DataError as error:
            print(f"{path.stem}: {error}")
            continue
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
