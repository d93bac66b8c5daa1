r"""Prompts: named prompt templates.

A named prompt asks for the final answer in the form that the run's grader finds: ``cot`` asks for
reasoning step by step, then for "The answer is" and a number (`numeric`) or for ``\boxed{}``
(`math`).
"""

from __future__ import annotations

from adacompute.core.errors import ConfigError

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
            f"--prompt {COT} is for the graders {known}, not {grader!r}: write a template with "
            "{question}"
        )
    return COT_FORMS[grader]
