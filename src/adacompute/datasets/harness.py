"""Harness: the filters and the exact match of lm-evaluation-harness, applied to each response.

The harness judges one answer a question, however many responses it drew: its filters keep the first
or the most frequent. A recipe is what a task's configuration says of reading and comparing answers;
without the steps that choose among responses it reads each of them. Only steps that depend on
nothing but the response are known, and whoever uses a recipe should check it against what the
harness recorded. It knows nothing of files.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adacompute.datasets.records import dig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INVALID = "[invalid]"
"""What the harness writes for an answer that could not be read."""

METRIC = "exact_match"

_CHOOSING = ("take_first", "take_first_k", "majority_vote")
_TRANSFORMING: dict[str, Callable[[str], str]] = {
    "remove_whitespace": str.strip,
    "lowercase": str.lower,
    "uppercase": str.upper,
}
_IGNORED = {"ignore_punctuation": string.punctuation, "ignore_numbers": string.digits}


@dataclass(frozen=True)
class Recipe:
    """How a task reads an answer from a response and compares it with the target."""

    steps: Sequence[dict[str, Any]] = ()
    matching: dict[str, Any] = field(default_factory=dict)

    def read(self, response: str) -> str:
        """Read the answer of one response."""
        for step in self.steps:
            if step["function"] not in _CHOOSING:
                response = _apply(step, response)
        return response

    def choose(self, responses: Sequence[str]) -> str | list[str]:
        """Do what the harness does with all responses to a question."""
        kept = list(responses)
        for step in self.steps:
            match step["function"]:
                case "take_first":
                    return kept[0]
                case "take_first_k":
                    kept = kept[: step["k"]]
                case "majority_vote":
                    kept = [Counter(kept).most_common(1)[0][0]]
                case _:
                    kept = [_apply(step, one) for one in kept]
        return kept

    def canonical(self, answer: str) -> str:
        """Drop what the comparison ignores."""
        for pattern in self.matching.get("regexes_to_ignore") or ():
            answer = re.sub(pattern, "", answer)
        if self.matching.get("ignore_case"):
            answer = answer.lower()
        for name, characters in _IGNORED.items():
            if self.matching.get(name):
                answer = answer.translate(str.maketrans("", "", characters))
        return answer

    def score(self, chosen: str | list[str], target: str) -> float:
        """Score what was chosen as the harness does: the share that equals the target."""
        answers = [chosen] if isinstance(chosen, str) else chosen
        gold = self.canonical(target)
        return sum(self.canonical(answer) == gold for answer in answers) / max(1, len(answers))

    def unread(self, answer: str) -> bool:
        """Whether an answer stands for none."""
        fallbacks = {INVALID, *(str(step.get("fallback", INVALID)) for step in self.steps)}
        return answer in fallbacks or not answer.strip()


def make_recipe(config: dict[str, Any], name: str) -> Recipe | None:
    """Make the recipe of a filter from a task's configuration, if every part of it is known."""
    filters = config.get("filter_list") or [{"name": name, "filter": [{"function": "take_first"}]}]
    metrics = config.get("metric_list")
    if config.get("process_results") or not isinstance(filters, list | tuple):
        return None
    steps = next((dig(one, "filter") for one in filters if dig(one, "name") == name), None)
    listed = metrics if isinstance(metrics, list) else []
    matching = next((one for one in listed if dig(one, "metric") == METRIC), None)
    if matching is None or not isinstance(steps, list) or not all(map(_known, steps)):
        return None
    if any(step["function"] == "take_first" for step in steps[:-1]):
        return None  # what follows would be done to letters
    ignored = matching.get("regexes_to_ignore") or []
    known = isinstance(ignored, list) and all(map(_is_pattern, ignored))
    return Recipe(steps, matching) if known else None


def _known(step: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether a step of a filter is one that can be applied."""
    function = dig(step, "function")
    if function == "regex":
        select = step.get("group_select", 0)
        return _is_pattern(step.get("regex_pattern", "")) and isinstance(select, int)
    if function == "take_first_k":
        return isinstance(step.get("k"), int)
    return isinstance(function, str) and function in (*_CHOOSING, *_TRANSFORMING)


def _is_pattern(pattern: Any) -> bool:  # noqa: ANN401 - any JSON
    try:
        re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError):
        return False
    return isinstance(pattern, str)


def _apply(step: dict[str, Any], response: str) -> str:
    """Apply a step to one response; IndexError where its regex matches too few times."""
    if transform := _TRANSFORMING.get(step["function"]):
        return transform(response)
    fallback = str(step.get("fallback", INVALID))
    found = re.findall(step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)"), response)
    if not found:
        return fallback
    chosen = found[step.get("group_select", 0)]
    if isinstance(chosen, tuple):
        chosen = next((group for group in chosen if group), fallback)
    return str(chosen).strip()
