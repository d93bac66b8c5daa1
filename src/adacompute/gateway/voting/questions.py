"""Questions: where in a request the question is, whose text the policy knows, and its features.

Without a question, the votes alone decide. It makes no decision.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import numpy as np

from adacompute.core.types import Float32Array, replace_surrogates
from adacompute.gateway.requests.chat_messages import last_user_text
from adacompute.gateway.voting.decision import QuestionSource
from adacompute.models.messages import Prompt
from adacompute.policies.bundles.arm_settings import find_question
from adacompute.policies.bundles.bundle import Bundle
from adacompute.sampling.blocks import question_block_features


@dataclass(eq=False)
class Question:
    """The text of a question, None if there is none, where it was found, and its features."""

    text: str | None
    source: QuestionSource
    features: Float32Array | None = None


class QuestionReader:
    """Reads the questions of requests for one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._waiting: list[Question] = []

    def find(self, prompt: Prompt) -> Question:
        """Find the question of a prompt: by the bundle's template, or as the last message."""
        template, arms = self._bundle.template, self._bundle.arms
        extract = partial(find_question, arms) if template is None else template.extract_question
        if (found := extract(prompt)) is not None:
            return Question(replace_surrogates(found), "template")
        if prompt.messages is not None and (text := last_user_text(prompt.messages)):
            return Question(replace_surrogates(text), "message")
        if template is None and prompt.text:
            return Question(replace_surrogates(prompt.text), "message")
        return Question(None, "none")

    async def read(self, prompt: Prompt) -> Question:
        """Find a question, and compute its features together with those that arrive with it."""
        question = self.find(prompt)
        if question.text is None:
            return question
        self._waiting.append(question)
        await asyncio.sleep(0)  # until every request that has arrived waits here
        if question.features is None:  # the first to go on computes for all
            block, self._waiting = self._waiting, []
            found = question_block_features(self._bundle, [one.text or "" for one in block])
            for one, features in zip(block, found, strict=True):
                one.features = features[np.newaxis]
        return question
