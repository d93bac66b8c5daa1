"""Harness: the filters and exact match of lm-evaluation-harness, applied to each response.

The harness scores one answer per question, however many responses it sampled: its filters keep the
first or the most frequent one. A recipe is how a task's configuration extracts and compares
answers. Without the steps that select a response, it extracts an answer from each of them. Only
steps that depend on the response alone are supported; callers should check the result against what
the harness recorded. This module reads no files.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adacompute.datasets.records import get_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INVALID = "[invalid]"
"""What the harness records for an unparsed answer."""

METRIC = "exact_match"

_SELECTING = ("take_first", "take_first_k", "majority_vote")
_TRANSFORMING: dict[str, Callable[[str], str]] = {
    "remove_whitespace": str.strip,
    "lowercase": str.lower,
    "uppercase": str.upper,
}
_IGNORED = {"ignore_punctuation": string.punctuation, "ignore_numbers": string.digits}


@dataclass(frozen=True)
class AnswerRecipe:
    """How a task extracts an answer from a response and compares it with the target.

    ``steps`` are those of the filter, and ``matching`` are the options of the metric.
    """

    steps: Sequence[dict[str, Any]] = ()
    matching: dict[str, Any] = field(default_factory=dict)

    def extract(self, response: str) -> str:
        """Extract the answer of one response."""
        for step in self.steps:
            if step["function"] not in _SELECTING:
                response = _apply(step, response)
        return response

    def select(self, responses: Sequence[str]) -> str | list[str]:
        """Apply all steps to the responses to a question, as the harness does."""
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
        """Remove what the comparison ignores."""
        for pattern in self.matching.get("regexes_to_ignore") or ():
            answer = re.sub(pattern, "", answer)
        if self.matching.get("ignore_case"):
            answer = answer.lower()
        for name, characters in _IGNORED.items():
            if self.matching.get(name):
                answer = answer.translate(str.maketrans("", "", characters))
        return answer

    def score(self, selected: str | list[str], target: str) -> float:
        """Return the share of selected answers that equal the target, as the harness does."""
        answers = [selected] if isinstance(selected, str) else selected
        gold = self.canonical(target)
        return sum(self.canonical(answer) == gold for answer in answers) / max(1, len(answers))

    def is_unparsed(self, answer: str) -> bool:
        """Whether an answer is blank or one that the filter gives if nothing matches."""
        fallbacks = {INVALID, *(str(step.get("fallback", INVALID)) for step in self.steps)}
        return answer in fallbacks or not answer.strip()


def make_answer_recipe(config: dict[str, Any], name: str) -> AnswerRecipe | None:
    """Make the recipe of a filter from a task's configuration; None if a part is not supported."""
    filters = config.get("filter_list") or [{"name": name, "filter": [{"function": "take_first"}]}]
    metrics = config.get("metric_list")
    if config.get("process_results") or not isinstance(filters, list | tuple):
        return None
    steps = next((get_in(one, "filter") for one in filters if get_in(one, "name") == name), None)
    listed = metrics if isinstance(metrics, list) else []
    matching = next((one for one in listed if get_in(one, "metric") == METRIC), None)
    if matching is None or not isinstance(steps, list) or not all(map(_is_supported, steps)):
        return None
    if any(step["function"] == "take_first" for step in steps[:-1]):
        return None  # the steps after it would apply to single characters
    ignored = matching.get("regexes_to_ignore") or []
    are_patterns = isinstance(ignored, list) and all(map(_is_pattern, ignored))
    return AnswerRecipe(steps, matching) if are_patterns else None


def _is_supported(step: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether a step of a filter can be applied to one response."""
    function = get_in(step, "function")
    if function == "regex":
        select = step.get("group_select", 0)
        return _is_pattern(step.get("regex_pattern", "")) and isinstance(select, int)
    if function == "take_first_k":
        return isinstance(step.get("k"), int)
    return isinstance(function, str) and function in (*_SELECTING, *_TRANSFORMING)


def _is_pattern(pattern: Any) -> bool:  # noqa: ANN401 - any JSON
    try:
        re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError):
        return False
    return isinstance(pattern, str)


def _apply(step: dict[str, Any], response: str) -> str:
    """Apply a step to one response; IndexError if its regex matches too few times."""
    if transform := _TRANSFORMING.get(step["function"]):
        return transform(response)
    fallback = str(step.get("fallback", INVALID))
    matches = re.findall(step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)"), response)
    if not matches:
        return fallback
    selected = matches[step.get("group_select", 0)]
    if isinstance(selected, tuple):
        selected = next((group for group in selected if group), fallback)
    return str(selected).strip()
