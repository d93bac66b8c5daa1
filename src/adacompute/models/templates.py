"""Templates: from a question to the prompt that is sent, and back.

A chat template has a system message, worked examples as turns, and a form for the question; a
completion template puts all of it in one text. It knows nothing of models or of answers.
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
    r"""How a question is asked: ``form`` holds ``{question}`` once.

    >>> Template(form="Question: {question}\nAnswer:", chat=False).render("2 + 2?").text
    'Question: 2 + 2?\nAnswer:'
    """

    form: str = FIELD
    system: str | None = None
    shots: tuple[tuple[str, str], ...] = ()
    chat: bool = True

    def __post_init__(self) -> None:
        if self.form.count(FIELD) != 1:
            raise ConfigError(f"a prompt must hold {FIELD} once: {self.form[:80]!r}")

    def fill(self, question: str) -> str:
        """Put a question into the form; braces in either mean nothing else."""
        before, after = self.form.split(FIELD)
        return before + question + after

    def render(self, question: str) -> Prompt:
        """Return the prompt for a question."""
        if self.chat:
            turns: list[dict[str, str]] = []
            if self.system is not None:
                turns.append({"role": "system", "content": self.system})
            for asked, answered in self.shots:
                turns.append({"role": "user", "content": self.fill(asked)})
                turns.append({"role": "assistant", "content": answered})
            turns.append({"role": "user", "content": self.fill(question)})
            return Prompt(messages=tuple(turns))
        parts = [] if self.system is None else [self.system]
        joint = "" if self.form.endswith((" ", "\n")) else " "
        parts += [self.fill(asked) + joint + answered for asked, answered in self.shots]
        return Prompt(text="\n\n".join([*parts, self.fill(question)]))

    def find(self, prompt: Prompt) -> str | None:
        r"""Take the form off a prompt: the question it was made of, None where it is another form.

        >>> Template(form="Question: {question}\nAnswer:").find(
        ...     Template(form="Question: {question}\nAnswer:").render("2 + 2?"))
        '2 + 2?'
        """
        mark = "\x00"  # no text that is sent holds it
        form = self.render(mark)
        if (form.text is None) != (prompt.text is None):
            return None
        if form.messages is None or prompt.messages is None:
            return _cut(form.text or "", prompt.text or "", mark)
        *before, last = form.messages
        *given, asked = prompt.messages
        if before != given or asked.get("role") != "user":
            return None
        content = asked.get("content")
        return _cut(last["content"], content, mark) if isinstance(content, str) else None

    @property
    def name(self) -> str:
        """A short hash that changes when anything about the prompt does."""
        content = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _cut(form: str, text: str, mark: str) -> str | None:
    """What stands in a text where a form has its mark; None where the rest differs."""
    before, _, after = form.partition(mark)
    long_enough = len(text) >= len(before) + len(after)
    if not (long_enough and text.startswith(before) and text.endswith(after)):
        return None
    return text[len(before) : len(text) - len(after)]
