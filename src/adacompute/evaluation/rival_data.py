"""Rival data: which rivals can be scored with what a run has recorded, and why others cannot.

Rivals for one arm decide after every sample or once, so they are left out where rounds are limited
or cost something. It does not know how rivals work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.evaluation.factories import RIVALS
from adacompute.policies.confidence import LENGTH, LIKELIHOODS

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import Experiment

NEEDS_LOGPROBS = ("weighted-consistency", "confidence-stopping")
NEEDS_LENGTHS = ("shortest-majority",)


@dataclass(frozen=True)
class RivalData:
    """What was recorded about samples, and which options rivals do not support.

    ``has_logprobs`` is for some samples, ``has_lengths`` for all of them.
    """

    has_logprobs: bool
    has_lengths: bool
    use_confidence: bool = True
    has_rounds: bool = False
    breaks_ties: bool = False

    @staticmethod
    def of(experiment: Experiment) -> RivalData:
        """Return what an experiment has."""
        pool = experiment.pool
        columns: dict[str, np.ndarray] = {}
        if pool.signals is not None:
            columns = dict(zip(pool.signal_names, pool.signals.T, strict=True))
        unknown = np.full(1, np.nan)
        return RivalData(
            has_logprobs=bool(np.isfinite(columns.get(LIKELIHOODS[0], unknown)).any()),
            has_lengths=bool(np.isfinite(columns.get(LENGTH, unknown)).all()),
            use_confidence=experiment.use_confidence,
            has_rounds=experiment.max_rounds < max(experiment.levels)
            or bool(pool.round_costs.any()),
            breaks_ties=pool.logprob is not None,
        )

    def find_obstacle(self, policy: str) -> str | None:
        """Return why a policy cannot be scored; None if it can, or if it is no rival."""
        if policy not in RIVALS:
            return None
        if self.has_rounds:
            return "it does not plan for rounds that are limited or cost something"
        if self.breaks_ties:
            return "it does not break ties by log-probability"
        if policy in (*NEEDS_LOGPROBS, *NEEDS_LENGTHS) and not self.use_confidence:
            return "it needs more than the votes"
        return self._find_missing(policy)

    def _find_missing(self, policy: str) -> str | None:
        if policy in NEEDS_LOGPROBS and not self.has_logprobs:
            return "the run has no log-probabilities"
        if policy in NEEDS_LENGTHS and not self.has_lengths:
            return "the run does not record how long samples are"
        return None
