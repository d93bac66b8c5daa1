"""Estimator: exact subsets of 1,000 questions × 50 samples × 5 levels, and its variance.

Run it with ``python benchmarks/estimator.py``.
"""

from __future__ import annotations

import time

import numpy as np

from adacompute import Answers, estimate

LEVELS = (1, 2, 4, 8, 16)


def population(questions: int, rng: np.random.Generator) -> np.typing.NDArray[np.float64]:
    """Answer probabilities of questions, class 0 right."""
    return rng.dirichlet([1.0, 0.8, 0.5, 0.3, 0.2], questions)


def draw(chance: np.typing.NDArray[np.float64], samples: int, rng: np.random.Generator) -> Answers:
    """Draw samples of every question."""
    uniform = rng.random((len(chance), samples))
    answer = (uniform[:, :, None] > np.cumsum(chance, axis=1)[:, None, :-1]).sum(axis=2)
    offsets = np.arange(len(chance) + 1) * samples
    return Answers(offsets, answer.ravel(), (answer == 0).ravel())


def main() -> None:
    """Print seconds, and the variance of the window estimator over that of exact subsets."""
    rng = np.random.default_rng(0)
    answers = draw(population(1000, rng), 50, rng)
    for errors in (False, True):
        seconds = -time.perf_counter()
        estimate(answers, LEVELS, standard_errors=errors)
        seconds += time.perf_counter()
        what = "with standard errors" if errors else "utilities alone"
        print(f"1,000 x 50 x 5, {what:22} {seconds:6.3f} s")
    chance = population(200, rng)
    exact, windows = [], []
    for _ in range(200):
        drawn = draw(chance, 48, rng)
        exact.append(estimate(drawn, (16,), standard_errors=False).utility[:, 0])
        windows.append(estimate(drawn, (16,), method="windows").utility[:, 0])
    ratio = np.var(windows, axis=0).mean() / np.var(exact, axis=0).mean()
    print(f"variance at R = 48, b = 16: windows / exact subsets = {ratio:.2f}")


if __name__ == "__main__":
    main()
