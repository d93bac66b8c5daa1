r"""Prompts: named prompt templates and few-shot examples.

A named prompt asks for the final answer in the form that the run's grader finds: ``cot`` asks for
reasoning step by step, then for "The answer is" and a number (`numeric`) or for ``\boxed{}``
(`math`). Few-shot examples are read from a file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from adacompute.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

COT = "cot"

COT_FORMS = {
    "numeric": (
        "{question}\n\nThink step by step. Keep the steps short. End with one line that says "
        '"The answer is" and then the final answer as a single number.'
    ),
    "math": (
        "{question}\n\nThink step by step. Keep the steps short. End with the final answer in "
        r"\boxed{}."
    ),
}
"""Chain-of-thought prompts by the grader that reads the answers."""


def find_form(prompt: str, grader: str) -> str:
    r"""Return the form of a named prompt for this grader; any other text is itself a form.

    >>> find_form("Question: {question}\nAnswer:", "numeric")
    'Question: {question}\nAnswer:'
    """
    if prompt != COT:
        return prompt
    if grader not in COT_FORMS:
        known = " and ".join(COT_FORMS)
        raise ConfigError(
            f"prompt={COT} is for the graders {known}, not {grader!r}: write a template with "
            "{question}"
        )
    return COT_FORMS[grader]


def read_few_shot(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Read few-shot examples, lines of JSON with a question and an answer; none without a file."""
    if path is None:
        return ()
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return tuple((str(row["question"]), str(row["answer"])) for row in rows)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f'{path} must hold lines such as {{"question": "…", "answer": "…"}}'
        ) from None
