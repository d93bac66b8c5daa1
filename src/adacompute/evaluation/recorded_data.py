"""Recorded data: what a run has recorded, which decides whether a registered policy can be scored.

It does not know any policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.policies.confidence import LENGTH, LIKELIHOODS

if TYPE_CHECKING:
    from adacompute.evaluation.experiment import Experiment


@dataclass(frozen=True)
class RecordedData:
    """What was recorded about samples, and the options that a registered policy may not support.

    ``has_logprobs`` is for some samples, ``has_lengths`` for all of them. ``use_confidence`` is
    False where only votes may be used, and ``has_rounds`` True where rounds are limited or cost
    something.
    """

    has_logprobs: bool
    has_lengths: bool
    use_confidence: bool = True
    has_rounds: bool = False

    @staticmethod
    def of(experiment: Experiment) -> RecordedData:
        """Return what an experiment has."""
        pool = experiment.pool
        columns: dict[str, np.ndarray] = {}
        if pool.signals is not None:
            columns = dict(zip(pool.signal_names, pool.signals.T, strict=True))
        unknown = np.full(1, np.nan)
        return RecordedData(
            has_logprobs=bool(np.isfinite(columns.get(LIKELIHOODS[0], unknown)).any()),
            has_lengths=bool(np.isfinite(columns.get(LENGTH, unknown)).all()),
            use_confidence=experiment.use_confidence,
            has_rounds=experiment.max_rounds < max(experiment.levels)
            or bool(pool.round_costs.any()),
        )
