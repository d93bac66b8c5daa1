"""Choice: the sample that answers a request, and the scores of samples where there is a scorer.

A scorer that fails costs nothing but its scores. It decides on no further samples.
"""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np

from adacompute.core.errors import ModelError
from adacompute.core.signals import SCORE
from adacompute.gateway.accounting.call_log import CallRecorder
from adacompute.gateway.voting.decision import Decision
from adacompute.gateway.voting.request_model import RequestModel
from adacompute.models.messages import Sample
from adacompute.models.model import Model
from adacompute.models.scorer import HttpScorer
from adacompute.sampling.adapters import ScoredModel


class Chooser:
    """Chooses the samples of a virtual model, and scores them if there is a scorer."""

    def __init__(self, scorer: HttpScorer | None) -> None:
        self._scorer = scorer

    def with_scores(self, model: RequestModel, decision: Decision) -> Model:
        """Return the model of a request, whose samples get scores if the policy uses them."""
        confidence = decision.session.progress.bundle.policy.confidence
        if confidence is None or SCORE not in confidence.given:
            return model
        return ScoredModel(model, partial(self.score, decision, model.recorder))

    async def choose(self, decision: Decision, recorder: CallRecorder | None) -> Sample:
        """Return the first sample of the winning class.

        If no answer was parsed, it is the sample that the scorer prefers, or the first.
        """
        session = decision.session
        decision.chosen = -1 if session.chosen is None else session.chosen
        decision.judge()
        if decision.chosen < 0 and self._scorer is not None and session.question is not None:
            score = partial(self.score, decision, recorder)
            found = await asyncio.gather(*map(score, session.samples))
            scores = [one for one in found if one is not None]
            if len(scores) == len(found):
                decision.chosen = int(np.argmax(scores))
        return session.samples[max(0, decision.chosen)]

    async def score(
        self, decision: Decision, recorder: CallRecorder | None, sample: Sample
    ) -> float | None:
        """Return the score of a sample; None if there is no scorer, or if it fails."""
        question, scorer = decision.session.question, self._scorer
        known = sample.signals.get(SCORE)
        if known is not None or question is None or scorer is None:
            return known
        tracker = recorder and recorder.for_scorer(scorer.base_url)
        try:
            return await scorer.score(question, sample.text, tracker=tracker)
        except ModelError as error:
            decision.scorer_error = str(error)
            return None
