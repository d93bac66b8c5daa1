"""Estimator: time and variance of exact subsets, for 1,000 questions × 50 samples × 5 levels.

Run it with ``python -m benchmarks.estimator``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from adacompute.research import Answers, estimate

LEVELS = (1, 2, 4, 8, 16)
REPEATS = 200


def make_population(n_questions: int, rng: np.random.Generator) -> np.typing.NDArray[np.float64]:
    """Return the answer probabilities of questions; class 0 is correct."""
    return rng.dirichlet([1.0, 0.8, 0.5, 0.3, 0.2], n_questions)


def draw(
    probability: np.typing.NDArray[np.float64], n_samples: int, rng: np.random.Generator
) -> Answers:
    """Draw samples of every question."""
    uniform = rng.random((len(probability), n_samples))
    answer = (uniform[:, :, None] > np.cumsum(probability, axis=1)[:, None, :-1]).sum(axis=2)
    offsets = np.arange(len(probability) + 1) * n_samples
    return Answers(offsets, answer.ravel(), (answer == 0).ravel())


def main() -> None:
    """Print seconds, and the variance of the window estimator over that of exact subsets."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    rng = np.random.default_rng(0)
    answers = draw(make_population(1000, rng), 50, rng)
    for standard_errors in (False, True):
        start = time.perf_counter()
        estimate(answers, LEVELS, standard_errors=standard_errors)
        elapsed_s = time.perf_counter() - start
        label = "with standard errors" if standard_errors else "without standard errors"
        print(f"1,000 x 50 x 5, {label:24} {elapsed_s:6.3f} s")
    probability = make_population(200, rng)
    exact, windows = [], []
    for _ in range(REPEATS):
        answers = draw(probability, 48, rng)
        exact.append(estimate(answers, (16,), standard_errors=False).utility[:, 0])
        windows.append(estimate(answers, (16,), method="windows").utility[:, 0])
    ratio = np.var(windows, axis=0).mean() / np.var(exact, axis=0).mean()
    print(f"variance at R = 48, b = 16: windows / exact subsets = {ratio:.2f}")


if __name__ == "__main__":
    main()
