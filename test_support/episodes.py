"""Episodes: the sample that answers each question, found apart from the code that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.votes import winner

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from adacompute.core.types import IntArray
    from adacompute.policies.episode import Episode


def find_winner(episode: Episode) -> IntArray:
    """Return the sample that answers each question, −1 if no answer could be parsed.

    It is the first sample of the leading class.
    """
    observed = episode.state.observed
    answer = observed.samples.answer[observed.row]
    votes_now = np.arange(answer.shape[1]) < observed.n_samples[:, None]
    return winner(np.where(votes_now, answer, UNPARSED))


def number_classes(answers: Iterable[Hashable | None]) -> list[int]:
    """Number the answers of a question in the order of appearance; None is unparsed."""
    number: dict[Hashable, int] = {}
    return [UNPARSED if a is None else number.setdefault(a, len(number)) for a in answers]
