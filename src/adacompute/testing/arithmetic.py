"""Arithmetic: generated questions in classes from trivial to hopeless for a very small model.

Twelve classes with known answers, so that a model of 135 million parameters finds some easy, some
responsive to more samples and some hopeless. Questions are made, not taken from anywhere; the same
seed gives the same questions, and another seed gives others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ian", "Jo", "Kim", "Leo")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets")


@dataclass(frozen=True)
class Problem:
    """One generated question, its answer and its class."""

    id: str
    question: str
    gold: str
    kind: str


def _add(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(dice: random.Random) -> tuple[str, int]:
        a, b = dice.randint(low, high), dice.randint(low, high)
        return f"What is {a} + {b}?", a + b

    return make


def _subtract(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(dice: random.Random) -> tuple[str, int]:
        b, a = sorted((dice.randint(low, high), dice.randint(low, high)))
        return f"What is {a} - {b}?", a - b

    return make


def _multiply(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def make(dice: random.Random) -> tuple[str, int]:
        a, b = dice.randint(low, high), dice.randint(2, 9)
        return f"What is {a} * {b}?", a * b

    return make


def _half(dice: random.Random) -> tuple[str, int]:
    a = 2 * dice.randint(2, 40)
    return f"What is half of {a}?", a // 2


def _largest(dice: random.Random) -> tuple[str, int]:
    numbers = dice.sample(range(2, 99), 3)
    return f"Which is the largest of {numbers[0]}, {numbers[1]} and {numbers[2]}?", max(numbers)


def _one_step(dice: random.Random) -> tuple[str, int]:
    name, thing = dice.choice(NAMES), dice.choice(THINGS)
    a, b = dice.randint(3, 20), dice.randint(2, 12)
    if dice.choice((True, False)):
        return f"{name} has {a} {thing} and gets {b} more. How many {thing} now?", a + b
    a += b
    return f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?", a - b


def _two_steps(dice: random.Random) -> tuple[str, int]:
    name, thing = dice.choice(NAMES), dice.choice(THINGS)
    a, b, c = dice.randint(10, 30), dice.randint(2, 9), dice.randint(2, 9)
    text = (
        f"{name} has {a} {thing}, buys {b} more and then gives away {c}. How many {thing} are left?"
    )
    return text, a + b - c


def _price(dice: random.Random) -> tuple[str, int]:
    thing = dice.choice(THINGS)
    a, b = dice.randint(2, 9), dice.randint(2, 12)
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

TRIES = 1000
"""So many repetitions in a row mean that a class is used up."""

SHOTS = (
    ("What is 7 + 6?", "7 + 6 = 13"),
    ("Tom has 9 pears and eats 4. How many pears are left?", "9 - 4 = 5"),
    ("What is half of 18?", "18 / 2 = 9"),
    ("Which is the largest of 3, 21 and 8?", "largest = 21"),
)
"""Worked examples that show the form of an answer."""


def generate(count: int, *, seed: int) -> list[Problem]:
    """Make different questions, equally many of each class as far as they go."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    made: dict[str, Problem] = {}
    known = {shot for shot, _ in SHOTS}
    left = dict.fromkeys(CLASSES, 0)
    while len(made) < count and left:
        for kind in list(left):
            found = (CLASSES[kind](dice) for _ in range(TRIES))
            new = next((pair for pair in found if pair[0] not in known), None)
            if new is None:  # this class has no more
                del left[kind]
            elif len(made) < count:
                known.add(new[0])
                made[new[0]] = Problem(f"{kind}/{left[kind]}", new[0], str(new[1]), kind)
                left[kind] += 1
    return list(made.values())
