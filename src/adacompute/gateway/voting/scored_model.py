"""Scored model: the samples of a request with their scores, for a policy that decides by scores.

It calls no scorer itself and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from adacompute.core.signals import SCORE
from adacompute.models.messages import Sample
from adacompute.models.model import Model, OnUsage


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """A model whose samples get a score; ``score`` returns None for a sample that has none."""

    model: Model
    score: Callable[[Sample], Awaitable[float | None]]

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield samples; those of a call are scored at the same time."""
        of_call: list[Sample] = []
        async with aclosing(self.model.sample(prompt, n, arm=arm, on_usage=on_usage)) as samples:
            async for sample in samples:
                of_call.append(sample)
                if len(of_call) == sample.samples_per_call:
                    for one in await self._score_all(of_call):
                        yield one
                    of_call = []
        for one in await self._score_all(of_call):
            yield one

    async def _score_all(self, samples: list[Sample]) -> list[Sample]:
        scores = await asyncio.gather(*map(self.score, samples))
        return [
            sample if score is None else replace(sample, signals={SCORE: score})
            for sample, score in zip(samples, scores, strict=True)
        ]
