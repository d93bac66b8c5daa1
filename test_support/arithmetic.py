"""Arithmetic: generated word problems in classes from easy to hopeless for a very small model.

There are twelve classes with known answers. For a model of 135 million parameters some are easy,
some improve with more samples, and some are hopeless. All questions are generated: the same seed
gives the same questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ian", "Jo", "Kim", "Leo")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets")


@dataclass(frozen=True)
class Problem:
    """One generated question with its answer and class."""

    id: str
    question: str
    gold: str
    class_name: str


def _add(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(rng: random.Random) -> tuple[str, int]:
        a, b = rng.randint(low, high), rng.randint(low, high)
        return f"What is {a} + {b}?", a + b

    return make


def _subtract(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(rng: random.Random) -> tuple[str, int]:
        b, a = sorted((rng.randint(low, high), rng.randint(low, high)))
        return f"What is {a} - {b}?", a - b

    return make


def _multiply(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(rng: random.Random) -> tuple[str, int]:
        a, b = rng.randint(low, high), rng.randint(2, 9)
        return f"What is {a} * {b}?", a * b

    return make


def _half(rng: random.Random) -> tuple[str, int]:
    a = 2 * rng.randint(2, 40)
    return f"What is half of {a}?", a // 2


def _largest(rng: random.Random) -> tuple[str, int]:
    numbers = rng.sample(range(2, 99), 3)
    return f"Which is the largest of {numbers[0]}, {numbers[1]} and {numbers[2]}?", max(numbers)


def _one_step(rng: random.Random) -> tuple[str, int]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(3, 20), rng.randint(2, 12)
    if rng.choice((True, False)):
        return f"{name} has {a} {thing} and gets {b} more. How many {thing} now?", a + b
    a += b
    return f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?", a - b


def _two_steps(rng: random.Random) -> tuple[str, int]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b, c = rng.randint(10, 30), rng.randint(2, 9), rng.randint(2, 9)
    text = (
        f"{name} has {a} {thing}, buys {b} more and then gives away {c}. How many {thing} are left?"
    )
    return text, a + b - c


def _price(rng: random.Random) -> tuple[str, int]:
    thing = rng.choice(THINGS)
    a, b = rng.randint(2, 9), rng.randint(2, 12)
    return f"{a} {thing} cost {b} euros each. How many euros do they cost together?", a * b


CLASSES: dict[str, Callable[[random.Random], tuple[str, int]]] = {
    "add-1": _add(1, 9),
    "subtract-1": _subtract(1, 18),
    "multiply-1": _multiply(2, 9),
    "half": _half,
    "largest": _largest,
    "word-1": _one_step,
    "price": _price,
    "add-2": _add(10, 99),
    "subtract-2": _subtract(20, 99),
    "word-2": _two_steps,
    "multiply-2": _multiply(11, 99),
    "add-3": _add(100, 999),
}

MAX_TRIES = 1000
"""A class has no more questions if this many in a row are repetitions."""

FEW_SHOT = (
    ("What is 7 + 6?", "7 + 6 = 13"),
    ("Tom has 9 pears and eats 4. How many pears are left?", "9 - 4 = 5"),
    ("What is half of 18?", "18 / 2 = 9"),
    ("Which is the largest of 3, 21 and 8?", "largest = 21"),
)
"""Few-shot examples that show the format of an answer."""


def generate_problems(count: int, *, seed: int) -> list[Problem]:
    """Generate distinct problems, the same number of each class unless a class has too few."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    problems: list[Problem] = []
    used = {question for question, _ in FEW_SHOT}
    n_made = dict.fromkeys(CLASSES, 0)
    while len(problems) < count and n_made:
        for name in list(n_made):
            tries = (CLASSES[name](rng) for _ in range(MAX_TRIES))
            new = next((pair for pair in tries if pair[0] not in used), None)
            if new is None:  # this class has no more
                del n_made[name]
            elif len(problems) < count:
                question, answer = new
                used.add(question)
                problems.append(Problem(f"{name}/{n_made[name]}", question, str(answer), name))
                n_made[name] += 1
    return problems
