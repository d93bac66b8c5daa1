"""Ask and tell: let a policy decide how often to call your own model.

Run it with ``python examples/ask_and_tell.py``. It needs only the base install: the policy ships
with the package, and the model is a function that answers correctly two times out of three.
Replace ``call_model`` with your own client, and "example" with the path of your own bundle.
"""

from __future__ import annotations

import random

import adacompute

QUESTIONS = ("What is 17 + 25?", "What is half of 90?", "What is 12 * 3?")
GENERATOR = random.Random(1)  # noqa: S311 - a fake model, not a secret


def call_model(question: str) -> str:
    """Return one sample for a question."""
    correct = {"What is 17 + 25?": 42, "What is half of 90?": 45, "What is 12 * 3?": 36}[question]
    return f"The answer is {correct + GENERATOR.choice((0, 0, 1))}."


def main() -> None:
    """Answer each question with as many samples as are worth their price."""
    policy = adacompute.load_policy("example", grader="numeric")
    for question in QUESTIONS:
        session = policy.start(question, budget=4.0)
        while request := session.ask():
            session.tell([call_model(question) for _ in range(request.n)])
        print(f"{question} {session.answer} ({session.n_samples} samples)")


if __name__ == "__main__":
    main()
