"""Log-probabilities: what those of a sample's tokens tell about its certainty.

A server reports the log-probability of each token and, on request, of the most likely tokens in its
place. The mean of the former is kept, and of the latter the mean entropy, each as one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOP_LOGPROBS = 5
"""Most likely tokens that are requested in the place of each token."""

_MIN_ALTERNATIVES = 2
_MIN_LOGPROB = -1e6
_MAX_LOGPROB = 1.0  # above 0, because some servers round up


@dataclass(frozen=True)
class TokenLogprobs:
    """Summary of the log-probabilities of a sample's tokens; None where they were not reported.

    ``entropy`` is the mean entropy of the tokens, from 0 to 1. It is known only if at least two
    tokens were reported in the place of each; ``top_logprobs`` is how many.
    """

    n_tokens: int | None = None
    mean_logprob: float | None = None
    entropy: float | None = None
    top_logprobs: int | None = None


def parse_logprobs(raw: object) -> TokenLogprobs:
    """Parse the log-probabilities of a choice of a chat or of a completion."""
    fields = raw if isinstance(raw, dict) else {}
    values, tops = fields.get("token_logprobs"), fields.get("top_logprobs")
    if not isinstance(values, list):
        tokens = [t if isinstance(t, dict) else {} for t in _as_list(fields.get("content"))]
        values = [token.get("logprob") for token in tokens]
        tops = [token.get("top_logprobs") for token in tokens]
    valid = _valid(values)
    known = [_valid(_values_of(top))[:TOP_LOGPROBS] for top in _as_list(tops)]
    known = [top for top in known if top]
    size = max(map(len, known), default=0)
    has_entropy = size >= _MIN_ALTERNATIVES
    return TokenLogprobs(
        n_tokens=len(values) or None,
        mean_logprob=math.fsum(valid) / len(valid) if valid else None,
        entropy=mean_entropy(known) if has_entropy else None,
        top_logprobs=size if has_entropy else None,
    )


def mean_entropy(tops: Sequence[Sequence[float]]) -> float:
    """Return the mean entropy of tokens, divided by its maximum, from their top log-probabilities.

    The probability that is left after the reported tokens counts as one more token.

    >>> round(mean_entropy([[math.log(0.5), math.log(0.25)]]), 3)
    0.946
    """
    size = max(map(len, tops))
    total = math.fsum(_entropy(top) for top in tops)
    return min(1.0, total / len(tops) / math.log(size + 1))


def _entropy(top: Sequence[float]) -> float:
    probability = [math.exp(min(value, 0.0)) for value in top]
    rest = max(0.0, 1.0 - math.fsum(probability))
    return -math.fsum(p * math.log(p) for p in (*probability, rest) if p > 0)


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _values_of(top: object) -> list[Any]:
    """Return the log-probabilities of a list of tokens (chat) or of a mapping (completion)."""
    if isinstance(top, dict):
        return list(top.values())
    return [item.get("logprob") for item in _as_list(top) if isinstance(item, dict)]


def _valid(values: Sequence[object]) -> list[float]:
    return [
        float(value)
        for value in values
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and _MIN_LOGPROB <= value <= _MAX_LOGPROB
    ]
