"""Log-probabilities: what those of a sample's tokens tell about its certainty.

A server reports the log-probability of each token and, on request, of the most likely tokens in its
place. Of the former the mean and the lowest mean of a window are kept, and of the latter the mean
entropy, each as one number. The tokens of the text are kept in packed form as well, so that those
of the answer can be found once a grader has extracted it.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOP_LOGPROBS = 5
"""Most likely tokens that are requested in the place of each token."""

WINDOW = 16
"""Consecutive tokens whose mean log-probability is compared to find the least certain passage."""

_PACKED = struct.Struct("<If")
"""A token in packed form: where it ends, in bytes of the text, and its log-probability."""

_MIN_ALTERNATIVES = 2
_MIN_LOGPROB = -1e6
_MAX_LOGPROB = 1.0  # above 0, because some servers round up


@dataclass(frozen=True)
class TokenLogprobs:
    """Summary of the log-probabilities of a sample's tokens; None where they were not reported.

    ``min_logprob_window`` is the lowest mean over 16 consecutive tokens. ``entropy`` is the mean
    entropy of the tokens, from 0 to 1. It is known only if at least two tokens were reported in the
    place of each; ``top_logprobs`` is how many. ``packed`` holds the tokens of the text; None if
    the reported tokens do not spell the text.
    """

    n_tokens: int | None = None
    mean_logprob: float | None = None
    min_logprob_window: float | None = None
    packed: bytes | None = None
    entropy: float | None = None
    top_logprobs: int | None = None


_NO_LOGPROBS = TokenLogprobs()


def parse_logprobs(raw: object, text: str = "") -> TokenLogprobs:
    """Parse the log-probabilities of a choice of a chat or of a completion with this text."""
    if not raw:
        return _NO_LOGPROBS
    fields = raw if isinstance(raw, dict) else {}
    values, tops = fields.get("token_logprobs"), fields.get("top_logprobs")
    tokens = _as_list(fields.get("tokens"))
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
        min_logprob_window=min_window(valid) if valid else None,
        packed=pack_tokens(text, tokens, values),
        entropy=mean_entropy(known) if has_entropy else None,
        top_logprobs=size if has_entropy else None,
    )


def min_window(values: Sequence[float]) -> float:
    """Return the lowest mean over ``WINDOW`` consecutive values, or over all if there are fewer.

    >>> min_window([-1.0, -3.0])
    -2.0
    """
    size = min(WINDOW, len(values))
    sums = [0.0, *itertools.accumulate(values)]
    return min(after - before for before, after in zip(sums, sums[size:], strict=False)) / size


def pack_tokens(text: str, tokens: Sequence[object], values: Sequence[object]) -> bytes | None:
    """Pack the ends and log-probabilities of the tokens that spell a text.

    Tokens before and after the text, such as reasoning and stop sequences, are left out. None if
    the tokens do not spell the text.
    """
    spelled = [_bytes_of(token) for token in tokens]
    encoded = _encode(text)
    start = b"".join(spelled).rfind(encoded)
    if not encoded or start < 0 or len(tokens) != len(values):
        return None
    packed = []
    end = -start
    for token, value in zip(spelled, values, strict=True):
        begin, end = end, end + len(token)
        if end > 0 and begin < len(encoded):
            packed.append(_PACKED.pack(end, next(iter(_valid([value])), math.nan)))
    return b"".join(packed)


def answer_logprob(text: str, answer: str | None, packed: bytes | None) -> float | None:
    """Return the mean log-probability of the tokens that spell the last occurrence of an answer.

    None if there is no answer, if the text does not contain it as it is written, or if the tokens
    of the text are not known.
    """
    span = None if not answer or packed is None else _find_last(text, answer)
    if span is None or packed is None:
        return None
    first, last = (len(_encode(text[:i])) for i in span)
    begin, values = 0, []
    for end, value in _PACKED.iter_unpack(packed):
        if begin < last and end > first and not math.isnan(value):
            values.append(value)
        begin = end
    return math.fsum(values) / len(values) if values else None


def _find_last(text: str, answer: str) -> tuple[int, int] | None:
    """Return where an answer occurs last, if possible not within a longer word or number."""
    whole = rf"(?<!\w)(?<!\d[.,]){re.escape(answer)}(?!\w|[.,]\d)"
    start = max((match.start() for match in re.finditer(whole, text)), default=text.rfind(answer))
    return None if start < 0 else (start, start + len(answer))


def _bytes_of(token: object) -> bytes:
    """Return the bytes of a token: chats report them besides a text that may be incomplete."""
    if isinstance(token, str):
        return _encode(token)
    fields = token if isinstance(token, dict) else {}
    listed = fields.get("bytes")
    if isinstance(listed, list) and listed:
        valid = all(type(one) is int and 0 <= one < 256 for one in listed)  # noqa: PLR2004
        return bytes(listed) if valid else b""
    text = fields.get("token")
    return _encode(text) if isinstance(text, str) else b""


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


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
