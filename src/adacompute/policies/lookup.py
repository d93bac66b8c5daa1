"""Lookup: decisions about single questions, remembered by what they depend on.

A decision of a block of arrays takes as long for one question as for 64. Rules and sequential
policies depend on little: the answers so far, and a number per question. So what a policy says
about a state is asked once, of the policy itself, and then found in a dictionary. Which policies
can be looked up is for them to say.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from adacompute.policies.policy import ObservedSamples, SampleMatrix


class Lookup(Protocol):
    """Decides about one question at a time as its policy does in blocks.

    ``feature`` is the first of the features that the policy prepared. ``next_cost`` is the cost of
    the next level from here.
    """

    def decide(
        self,
        answers: tuple[int, ...],
        level: int,
        *,
        price: float,
        key: int,
        feature: float,
        next_cost: float,
    ) -> int:
        """Return the next level; the current level means stop."""


MAX_REMEMBERED = 1 << 14
"""Entries of a lookup; when there are more, the least recently used are forgotten."""


def observe(answers: tuple[int, ...]) -> ObservedSamples:
    """Return the answers of one question as a block."""
    samples = SampleMatrix(np.array([answers], dtype=np.int64).reshape(1, len(answers)))
    return ObservedSamples(samples, np.zeros(1, dtype=np.int64), np.array([len(answers)]))
