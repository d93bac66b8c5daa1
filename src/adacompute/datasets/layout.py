"""Layout: which column of a file holds what, guessed from its names.

Files call their columns otherwise than we do. A question may be the last message of the user in a
list of chat messages, and a wide file has one row per question, with its samples in several
columns (``answer_1``, ``answer_2``) or in lists. What is guessed can be given instead: ``columns``
maps our names to those of the file. This module reads no files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from adacompute.core.errors import ConfigError
from adacompute.core.signals import PREFIX
from adacompute.core.types import replace_surrogates
from adacompute.datasets.columns import QUESTION_COLUMNS, SAMPLE_COLUMNS
from adacompute.datasets.records import parse_list

logger = logging.getLogger(__name__)

ALIASES: Mapping[str, tuple[str, ...]] = {
    "question_id": (
        *("id", "qid", "problem_id", "task_id", "prompt_id", "example_id", "doc_id", "item_id"),
        *("custom_id", "key"),
    ),
    "question": (
        "prompt",
        "query",
        "input",
        "instruction",
        "problem",
        "user_message",
        "user_prompt",
        "text",
    ),
    "completion": (
        *("response", "output", "reply", "generation", "model_output", "model_response"),
        *("assistant", "text", "sample"),
    ),
    "answer": ("prediction", "predicted_answer", "extracted_answer", "model_answer", "pred"),
    "gold": (
        *("label", "target", "reference", "reference_answer", "expected", "expected_answer"),
        *("ground_truth", "correct_answer", "gold_answer", "answer"),
    ),
    "correct": ("is_correct", "right", "is_right", "passed", "correctness"),
    "sample": ("sample_index", "sample_idx", "sample_number"),
    "difficulty": ("level",),
    "arm": ("operating_level",),
    "model": ("model_name", "model_id"),
    "mean_logprob": ("logprob", "avg_logprob", "average_logprob"),
    "score": ("rating", "reward"),
    "completion_tokens": ("output_tokens",),
    "prompt_tokens": ("input_tokens",),
    "cost": ("cost_usd",),
}
"""Other names of our columns, the likeliest first; ``sample`` holds texts where a file is wide."""

KNOWN = tuple(dict.fromkeys([*ALIASES, *SAMPLE_COLUMNS, *QUESTION_COLUMNS, "decision_id"]))
"""All columns, in the order in which names are looked for."""

OF_QUESTIONS = {*QUESTION_COLUMNS, "group", "model", "arm", "sample"}
"""Columns that have one value per row of a wide file."""

MAX_UNUSED = 8
"""Number of columns that are listed as not read."""

CONTENT = frozenset({"answer", "completion", "correct"})
"""Columns without which a file holds no samples."""

CHATS = frozenset({"messages", "conversation", "conversations", "chat"})
CHAT = pa.struct([("question", pa.string()), ("completion", pa.string())])
"""What a list of chat messages is read as."""

PUBLIC_NAMES = {("difficulty", "level"), ("arm", "operating_level")}
"""Names of public data files, which are no guess."""


@dataclass(frozen=True)
class Layout:
    """The columns of a file that hold each of ours; several hold the samples of a wide file.

    ``lists`` are those of ours that are lists, and ``chat`` is the column of chat messages.
    ``guessed`` are those of ours that were not given and have another name in the file.
    """

    columns: Mapping[str, tuple[str, ...]]
    lists: frozenset[str] = frozenset()
    chat: str | None = None
    guessed: frozenset[str] = frozenset()

    @property
    def is_wide(self) -> bool:
        """Whether a row holds several samples."""
        return bool(self.lists) or any(len(names) > 1 for names in self.columns.values())

    def find_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the type of each column of the file that holds something of a schema."""
        types: dict[str, pa.DataType] = {}
        for ours, names in self.columns.items():
            if ours in schema.names:
                kind = schema.field(ours).type
                types |= dict.fromkeys(names, pa.list_(kind) if ours in self.lists else kind)
        return types if self.chat is None else {**types, self.chat: CHAT}

    def add_names(self, names: Iterable[str]) -> Layout:
        """Return the layout with columns that were found later, under our own names."""
        used = {*self.columns, *(name for own in self.columns.values() for name in own)}
        more = [name for name in names if name not in used and is_ours(name)]
        return replace(self, columns={**self.columns, **{name: (name,) for name in more}})

    @property
    def holds_samples(self) -> bool:
        """Whether there are samples, or only questions and perhaps their answers."""
        return self.is_wide or bool({"sample", "completion", "correct"} & self.columns.keys())

    def of_questions(self) -> Layout:
        """Return the columns of questions; an answer in a set of questions is the reference."""
        columns = {ours: own for ours, own in self.columns.items() if ours in QUESTION_COLUMNS}
        guessed = self.guessed
        if not self.holds_samples and "answer" in self.columns and "gold" not in columns:
            columns["gold"] = self.columns["answer"]
            guessed |= {"gold"}
        return replace(self, columns=columns, lists=frozenset(), guessed=guessed)

    def list_unused(self, names: Iterable[str]) -> list[str]:
        """Return those of the columns of a file that hold nothing of ours."""
        used = {self.chat, *(name for own in self.columns.values() for name in own)}
        return [name for name in names if name not in used and not is_ours(name)]

    def describe(self, known: Collection[str]) -> list[str]:
        """Return what was guessed of some of our columns, as it can be given."""
        pairs = [
            f"{ours}={names[0] if len(names) == 1 else f'{names[0]}…{names[-1]}'}"
            for ours, names in self.columns.items()
            if ours in self.guessed and ours in known
        ]
        if self.chat is not None and "question" not in self.columns:
            pairs.append(f"question={self.chat} (last message of the user)")
        return pairs


def is_ours(name: str) -> bool:
    """Whether a column has one of our names, or that of a signal."""
    return name in KNOWN or name.startswith(PREFIX)


def find_layout(examples: Mapping[str, Any], columns: Mapping[str, str] | None = None) -> Layout:
    """Return which columns hold what.

    ``examples`` has one value of each column of a file, and ``columns`` maps our names to its.

    >>> find_layout({"id": 1, "Prompt": "1 + 1?", "reply_1": "2", "reply_2": "3"}).columns
    {'completion': ('reply_1', 'reply_2'), 'question_id': ('id',), 'question': ('Prompt',)}
    """
    given = check_columns(columns)
    free = {name: plain_name(name) for name in examples if name not in given.values()}
    lists = {name for name, value in examples.items() if isinstance(value, list)}
    chats = [name for name, plain in free.items() if plain in CHATS]
    asked = given.get("question")
    if asked is not None and (asked in lists or plain_name(asked) in CHATS):
        chats = [given.pop("question")]
    chat = chats[0] if chats else None
    free.pop(chat or "", None)
    found, in_lists = _find_wide(examples, free, given, lists)
    is_wide = bool(found)
    for ours, theirs in given.items():
        found.setdefault(ours, (theirs,))
    known = (*KNOWN, *(name for name in free if name.startswith(PREFIX)))
    used = {name for names in found.values() for name in names}
    for ours in known:
        if ours not in found and not (is_wide and ours not in OF_QUESTIONS and ours in KNOWN):
            rest = {name: plain for name, plain in free.items() if name not in used | lists}
            if (name := _find_name(ours, rest)) is not None:
                found[ours] = (name,)
                used.add(name)
    guessed = {
        ours
        for ours, names in found.items()
        if ours not in given and names != (ours,) and (ours, names[0]) not in PUBLIC_NAMES
    }
    return Layout(found, frozenset(in_lists), chat, frozenset(guessed))


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the given names of columns; ConfigError if one of ours is unknown."""
    for ours in columns or {}:
        if not is_ours(ours):
            raise ConfigError(
                f"columns: there is no column {ours!r} to be read from {(columns or {})[ours]!r}; "
                f"there are {', '.join(KNOWN)}"
            )
    return dict(columns or {})


def plain_name(name: str) -> str:
    """Return a name of a column in small letters with underscores.

    >>> plain_name("isCorrect"), plain_name(" Model Answer")
    ('is_correct', 'model_answer')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


def _find_name(ours: str, free: Mapping[str, str]) -> str | None:
    """Return the column that has our name, or else the likeliest other name."""
    if ours in free:
        return ours
    names = [ours, *(name for name in ALIASES.get(ours, ()) if name != "sample")]
    return next((name for own in names for name, plain in free.items() if plain == own), None)


def _find_wide(
    examples: Mapping[str, Any],
    free: Mapping[str, str],
    given: Mapping[str, str],
    lists: set[str],
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return the columns that hold several samples of a question, and those of ours in lists."""
    if ("sample" in examples and "sample" not in lists) or "sample" in given:
        return {}, set()
    families: dict[str, list[str]] = {}
    for name, plain in free.items():
        if (key := re.sub(r"_?\d+", "", plain, count=1)) != plain and not name.startswith(PREFIX):
            families.setdefault(key.removeprefix("sample_") or key, []).append(name)
    found: dict[str, tuple[str, ...]] = {}
    in_lists = set()
    for ours in (name for name in KNOWN if name not in OF_QUESTIONS):
        theirs = given.get(ours)
        names = [theirs] if theirs is not None else [ours, *ALIASES.get(ours, ())]
        own = [name for name in lists if name in names or _singular(plain_name(name)) in names]
        numbered = next((families[name] for name in names if len(families.get(name, ())) > 1), [])
        if own and not any(own[0] in used for used in found.values()):
            found[ours] = (own[0],)
            in_lists.add(ours)
        elif numbered and theirs not in examples:
            found[ours] = tuple(sorted(numbered, key=_number_of))
    return (found, in_lists) if found.keys() & CONTENT else ({}, set())


def _number_of(name: str) -> int:
    """Return the first number in a name."""
    found = re.search(r"\d{1,9}", name)
    return int(found[0]) if found else 0


def _singular(name: str) -> str:
    """Return a name without the end of its plural."""
    return f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")


def split_chat(value: Any) -> dict[str, str | None]:  # noqa: ANN401 - any JSON
    """Return the last message of the user in a chat, and the reply after it.

    A text that is no list of messages is the question itself.

    >>> split_chat([{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}])
    {'question': '1 + 1?', 'completion': '2'}
    """
    messages = parse_list(value) if isinstance(value, str) else value
    if messages is None and isinstance(value, str):
        return {"question": value, "completion": None}
    found: dict[str, str | None] = {"question": None, "completion": None}
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict):
            who = message.get("role") or message.get("from")
            text = _text_of(message.get("content") or message.get("value"))
            if who in ("user", "human"):
                found = {"question": text, "completion": None}
            elif who in ("assistant", "gpt") and found["completion"] is None:
                found["completion"] = text
    if found["question"] is None:
        raise ValueError("holds no message of a user")
    return found


def _text_of(content: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return replace_surrogates(content) if isinstance(content, str) else None


def report(source: object, guesses: list[str], unused: Sequence[str]) -> None:
    """Log in one line what was guessed of a source, and which of its columns were not read."""
    if guesses:
        more = ", …" if len(unused) > MAX_UNUSED else ""
        rest = [f"not read: {', '.join(unused[:MAX_UNUSED])}{more}"] if unused else []
        logger.info("%s: read as %s", source, "; ".join([*guesses, *rest]))
