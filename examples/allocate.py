"""Allocate: spend a mean budget of two samples per question on three questions.

Run it with ``python examples/allocate.py``. It needs only the base install.

Each row of ``UTILITY`` is one question and each column one level: the probability that a majority
vote over 1, 2 or 4 samples is correct. Replace it with your own estimates, or let ``adacompute
estimate`` measure them from recorded samples.
"""

from __future__ import annotations

import numpy as np

from adacompute import UtilityTable, solve

SAMPLES = np.array([1, 2, 4])
UTILITY = np.array(
    [
        [0.90, 0.90, 0.90],  # easy: the first sample is almost always correct
        [0.40, 0.60, 0.85],  # responsive: more samples help
        [0.05, 0.05, 0.06],  # hopeless: more samples do not help
    ]
)


def main() -> None:
    """Print the number of samples for each question, and how good the allocation is."""
    allocation = solve(UtilityTable(UTILITY, cost=SAMPLES), budget=2.0)
    print(f"samples per question: {SAMPLES[allocation.choice].tolist()}")
    print(f"mean accuracy: {allocation.utility:.3f}")
    print(f"no other allocation is better by more than {allocation.gap:.3f}")


if __name__ == "__main__":
    main()
