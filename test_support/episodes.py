"""Episodes: the sample that answers each question, found apart from the code that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.votes import winner
from adacompute.policies.episode import FIRST_SEEN, LOGPROB

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from adacompute.core.types import IntArray
    from adacompute.policies.episode import Episode


def find_winner(episode: Episode, *, tie_break: str = FIRST_SEEN) -> IntArray:
    """Return the sample that answers each question, −1 if no answer could be parsed.

    It is the first sample of the leading class. ``tie_break`` says which class leads of tied ones.
    """
    observed = episode.state.observed
    answer = observed.samples.answer[observed.row]
    votes_now = np.arange(answer.shape[1]) < observed.n_samples[:, None]
    logprob = observed.samples.logprob if tie_break == LOGPROB else None
    if logprob is not None:
        logprob = np.where(votes_now, logprob[observed.row], -np.inf)
    return winner(np.where(votes_now, answer, UNPARSED), logprob=logprob)


def number_classes(answers: Iterable[Hashable | None]) -> list[int]:
    """Number the answers of a question in the order of appearance; None is unparsed."""
    number: dict[Hashable, int] = {}
    return [UNPARSED if a is None else number.setdefault(a, len(number)) for a in answers]
