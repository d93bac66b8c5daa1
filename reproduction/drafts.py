"""Drafts: the feature ``entropy_estimate`` of the paper's router, from one sample of a question.

It is the mean entropy of the sample's tokens where the server reported the likeliest tokens in each
place. Where only the log-probability of the chosen tokens is recorded, the surprise 1 − exp(mean
log-probability) stands in for it. Both lie between 0 and 1. The two are never mixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.features.text import FEATURES

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, KeyArray
    from adacompute.evaluation.pool import Pool
    from adacompute.storage.store import SampleSet


@dataclass(frozen=True, eq=False)
class Drafts:
    """The uncertainty of the first sample of each question, NaN where it is unknown."""

    key: KeyArray
    value: FloatArray
    description: str


def read_drafts(recorded: SampleSet, pool: Pool) -> Drafts | None:
    """Estimate the uncertainty of first samples from what is recorded; None if nothing is.

    The entropy is used if every sample with a log-probability has one, from equally many tokens.
    ``pool`` holds all questions of the recorded samples.
    """
    entropy, tops, logprob = map(recorded.column, ("entropy", "top_logprobs", "mean_logprob"))
    has_entropy, has_logprob = np.isfinite(entropy), np.isfinite(logprob)
    sizes = np.unique(tops[has_entropy])
    if has_entropy.any() and bool((has_entropy >= has_logprob).all()) and len(sizes) == 1:
        value = entropy
        said = f"normalised entropy of a draft, from its {int(sizes[0])} likeliest tokens"
    elif has_logprob.any():
        value = 1.0 - np.exp(np.minimum(logprob, 0.0))
        said = (
            "a stand-in: 1 − exp(mean log-probability) of a draft, because only the "
            "log-probabilities of chosen tokens are recorded"
        )
    else:
        return None
    has_samples = np.flatnonzero(pool.answers.n_samples)
    first = pool.answers.offsets[:-1][has_samples]
    return Drafts(pool.key[has_samples], value[first], said)


def add_free_draft(pool: Pool, drafts: Drafts | None) -> Pool:
    """Return the pool with the uncertainty of each first sample as a feature that costs nothing."""
    if drafts is None:
        return pool
    order = drafts.key.argsort()
    row = order[drafts.key[order].searchsorted(pool.key)]
    features = pool.features.copy()
    features[:, FEATURES.index("entropy_estimate")] = np.nan_to_num(drafts.value[row])
    return replace(pool, features=features)
