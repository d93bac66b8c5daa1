"""Templates: turn a question into a prompt, and a prompt back into its question.

A chat template has a system message, few-shot examples as turns, and a form for the question; a
completion template joins all of it in one text. Templates know nothing of models or answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from adacompute.core.errors import ConfigError
from adacompute.models.messages import Prompt

FIELD = "{question}"


@dataclass(frozen=True)
class Template:
    r"""How a question is put into a prompt: ``form`` contains ``{question}`` once.

    >>> Template(form="Question: {question}\nAnswer:", chat=False).render("2 + 2?").text
    'Question: 2 + 2?\nAnswer:'
    """

    form: str = FIELD
    system: str | None = None
    few_shot: tuple[tuple[str, str], ...] = ()
    chat: bool = True

    def __post_init__(self) -> None:
        if self.form.count(FIELD) != 1:
            raise ConfigError(f"a prompt must contain {FIELD} once: {self.form[:80]!r}")

    def fill(self, question: str) -> str:
        """Put a question into the form; other braces are ordinary text."""
        before, after = self.form.split(FIELD)
        return before + question + after

    def render(self, question: str) -> Prompt:
        """Return the prompt for a question."""
        if self.chat:
            turns: list[dict[str, str]] = []
            if self.system is not None:
                turns.append({"role": "system", "content": self.system})
            for example, answer in self.few_shot:
                turns.append({"role": "user", "content": self.fill(example)})
                turns.append({"role": "assistant", "content": answer})
            turns.append({"role": "user", "content": self.fill(question)})
            return Prompt(messages=tuple(turns))
        parts = [] if self.system is None else [self.system]
        separator = "" if self.form.endswith((" ", "\n")) else " "
        parts += [self.fill(example) + separator + answer for example, answer in self.few_shot]
        return Prompt(text="\n\n".join([*parts, self.fill(question)]))

    def extract_question(self, prompt: Prompt) -> str | None:
        r"""Return the question of a prompt that this template made; None for any other prompt.

        >>> template = Template(form="Question: {question}\nAnswer:")
        >>> template.extract_question(template.render("2 + 2?"))
        '2 + 2?'
        """
        marker = "\x00"  # does not occur in texts that are sent
        rendered = self.render(marker)
        if (rendered.text is None) != (prompt.text is None):
            return None
        if rendered.messages is None or prompt.messages is None:
            return _text_at_marker(rendered.text or "", prompt.text or "", marker)
        *own_turns, own_last = rendered.messages
        *turns, last = prompt.messages
        if own_turns != turns or last.get("role") != "user":
            return None
        content = last.get("content")
        if not isinstance(content, str):
            return None
        return _text_at_marker(own_last["content"], content, marker)

    @property
    def name(self) -> str:
        """A short hash of everything in the template."""
        content = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _text_at_marker(form: str, text: str, marker: str) -> str | None:
    """The part of a text at the form's marker; None if the rest of the two differs."""
    before, _, after = form.partition(marker)
    is_long_enough = len(text) >= len(before) + len(after)
    if not (is_long_enough and text.startswith(before) and text.endswith(after)):
        return None
    return text[len(before) : len(text) - len(after)]
