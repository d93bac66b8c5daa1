"""Evaluate: train a policy on recorded samples and measure what it gains.

Run it with ``python examples/evaluate_samples.py [FILE]``. FILE is a Parquet, JSON lines or CSV
file with one row per sample (docs/reference/files.md). Without one, it uses the samples that ship
with the package. It needs only the base install.
"""

from __future__ import annotations

import sys

import adacompute

BUDGET = 2.0


def main() -> None:
    """Print the verdict and the scores at the budget."""
    samples = adacompute.read_samples(sys.argv[1] if sys.argv[1:] else "example")
    policy = adacompute.AdaptiveConsistency().fit(samples)
    result = adacompute.calibrate(policy, samples, budget=BUDGET)
    print(f"verdict: {result.verdict}")
    print(f"gain: {result.gain:+.3f} [{result.gain_low:+.3f}, {result.gain_high:+.3f}]")
    scores = adacompute.evaluate([policy, "retry", "mixture"], samples, budgets=[BUDGET])
    for row in scores.rows:
        print(f"{row['policy']:24} {row['accuracy']:.3f}")


if __name__ == "__main__":
    main()
