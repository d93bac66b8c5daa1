"""Scorer: an HTTP endpoint that rates a text as an answer to a question.

The request is ``{"question": …, "text": …}``; the reply is a JSON number, or an object with a
number as its ``score``. Higher is better. There is one request per sample, retried like every
endpoint's. The scorer knows nothing of models, votes or prices.
"""

from __future__ import annotations

from typing import Any

from adacompute.core.signals import MAX_VALUE
from adacompute.models.calls import CallTracker
from adacompute.models.connection.endpoint import Endpoint, ReplyReader
from adacompute.models.formats.failures import Failure
from adacompute.models.formats.openai_format import MalformedReply
from adacompute.models.model import CallUsage, parse_usage


class HttpScorer(Endpoint):
    """A scorer at a URL; use it as an asynchronous context manager."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401 - an endpoint's own
        super().__init__(url, **options)
        self.base_url = url  # unchanged: some servers distinguish /score from /score/

    async def score(self, question: str, text: str, *, tracker: CallTracker | None = None) -> float:
        """Score a text as an answer to a question; ``tracker`` is notified of every attempt."""
        body = {"question": question, "text": text}
        try:
            reader = ReplyReader(_read_score, usage_of=lambda result: result[1])
            score, _ = await self._send("", body, reader, tracker=tracker)
        except Failure as failure:
            raise self._to_error(failure) from None
        return score


def _read_score(document: object, _: float) -> tuple[float, CallUsage]:
    return parse_score(document), CallUsage.of(parse_usage(document))


def parse_score(document: object, _: float = 0.0) -> float:
    """Return the score in a reply.

    >>> parse_score({"score": 0.5}), parse_score(2)
    (0.5, 2.0)
    """
    score: Any = document.get("score") if isinstance(document, dict) else document
    if type(score) not in {int, float} or not abs(score) <= MAX_VALUE:
        raise MalformedReply("its reply is neither a number nor an object with a numeric score")
    return float(score)
