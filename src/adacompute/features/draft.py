"""Draft: the feature ``entropy_estimate``, from one sample of a question.

It is the mean entropy of the sample's tokens where the server reported the likeliest tokens in each
place. Where only the log-probability of the chosen tokens is recorded, the surprise 1 − exp(mean
log-probability) stands in for it. Both lie between 0 and 1. The two are never mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray

ENTROPY, SURPRISE, NOT_RECORDED = "entropy", "surprise", "not recorded"


@dataclass(frozen=True)
class DraftSource:
    """What the uncertainty of a sample is estimated from.

    ``source`` is ``entropy``, ``surprise`` (the stand-in) or ``not recorded``; ``top_logprobs`` is
    the number of tokens in each place that the entropy is estimated from.
    """

    source: str
    top_logprobs: int | None = None

    def measure(
        self, entropy: float | None, top_logprobs: int | None, mean_logprob: float | None
    ) -> float | None:
        """Return the uncertainty of one sample, None if the server did not report enough.

        >>> DraftSource(ENTROPY, 5).measure(0.25, 5, -0.1)
        0.25
        """
        if self.source == ENTROPY:
            return entropy if top_logprobs == self.top_logprobs else None
        if self.source == SURPRISE and mean_logprob is not None:
            return -math.expm1(min(mean_logprob, 0.0))
        return None


@dataclass(frozen=True, eq=False)
class DraftUncertainty:
    """Uncertainty of samples, NaN where it is unknown, and what it was estimated from."""

    value: FloatArray
    source: str
    top_logprobs: int | None = None

    def __getitem__(self, samples: BoolArray | IntArray) -> DraftUncertainty:
        """Return the uncertainty of these samples only."""
        return replace(self, value=self.value[samples])

    @property
    def is_known(self) -> bool:
        """Whether anything is recorded."""
        return self.source != NOT_RECORDED

    def describe(self) -> str:
        """Return one sentence on what the feature is."""
        if self.source == ENTROPY:
            return f"normalised entropy of a draft, from its {self.top_logprobs} likeliest tokens"
        if self.source == SURPRISE:
            return (
                "a stand-in: 1 − exp(mean log-probability) of a draft, because only the "
                "log-probabilities of chosen tokens are recorded"
            )
        return "left out: no log-probabilities are recorded"


def measure_uncertainty(
    entropy: FloatArray, top_logprobs: FloatArray, mean_logprob: FloatArray
) -> DraftUncertainty:
    """Estimate the uncertainty of samples from what is recorded, NaN where it is not.

    The entropy is used if every sample with a log-probability has one, from equally many tokens.

    >>> nothing = np.array([np.nan])
    >>> measure_uncertainty(nothing, nothing, np.array([-0.5])).source
    'surprise'
    """
    has_entropy, has_logprob = np.isfinite(entropy), np.isfinite(mean_logprob)
    sizes = np.unique(top_logprobs[has_entropy])
    if has_entropy.any() and bool((has_entropy >= has_logprob).all()) and len(sizes) == 1:
        return DraftUncertainty(entropy, ENTROPY, int(sizes[0]))
    if has_logprob.any():
        return DraftUncertainty(1.0 - np.exp(np.minimum(mean_logprob, 0.0)), SURPRISE)
    return DraftUncertainty(np.full(len(entropy), np.nan), NOT_RECORDED)
