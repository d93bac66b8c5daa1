"""States: the vote states of single questions, to compare sums over many questions with."""

from __future__ import annotations

from adacompute.core.answers import Answers
from adacompute.core.states import StateMeasure, measure_counts


def measure_states(answers: Answers, max_samples: int) -> StateMeasure:
    """Measure the states of up to ``max_samples`` samples, over all subsets of recorded samples."""
    counts, kind = answers.count_kinds()
    return measure_counts(counts, max_samples).map(lambda table: table[:, kind])
