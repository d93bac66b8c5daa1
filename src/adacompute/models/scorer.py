"""Scorer: any HTTP endpoint that says how good a text answers a question.

It is sent ``{"question": …, "text": …}`` and replies with a JSON number, or an object with a
``score``; higher is better. It is asked once a sample, and retried as every endpoint is. It knows
nothing of models, votes or prices.
"""

from __future__ import annotations

from typing import Any

from adacompute.models.endpoint import Endpoint
from adacompute.models.failures import Failure
from adacompute.models.openai_format import MalformedReply

MOST = 1e300
"""More is no score, and neither is what is not a number."""


class HttpScorer(Endpoint):
    """A scorer at a URL; use it as an asynchronous context manager."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401 - an endpoint's own
        super().__init__(url, **options)
        self.base_url = url  # to the letter: some servers tell /score from /score/

    async def score(self, question: str, text: str) -> float:
        """Score a text as an answer to a question."""
        try:
            return await self._send("", {"question": question, "text": text}, read_score)
        except Failure as failure:
            raise self._final(failure) from None


def read_score(document: object, _: float = 0.0) -> float:
    """Read a score from what came back.

    >>> read_score({"score": 0.5}), read_score(2)
    (0.5, 2.0)
    """
    score: Any = document.get("score") if isinstance(document, dict) else document
    if type(score) not in {int, float} or not abs(score) < MOST:
        raise MalformedReply(
            "its reply is neither a number nor an object with a number as its score"
        )
    return float(score)
