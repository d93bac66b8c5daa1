"""Paper claims, archetypes: claims about the curves of the four kinds of questions.

Each has its judge. Clusters come from one half of the samples and are measured on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reproduction.verdicts import (
    HALF,
    ExhibitData,
    Judgement,
    NotMeasurable,
    PaperClaim,
    decide,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from reproduction.archetypes import Archetypes

EASY, HARD = 0.75, 0.25
"""Accuracies from which a question is easy, and up to which it is hard."""

MAX_RISE, MIN_RISE = 0.1, 0.3
"""A nearly flat curve rises by less than the first, a responsive one by at least the second."""


def judge_easy_archetype(data: ExhibitData) -> Judgement:
    """Judge the curve of the easy archetype: high and nearly flat."""
    return _judge_curve(data, "easy", lambda c: c[0] >= EASY and abs(c[-1] - c[0]) < MAX_RISE)


def judge_responsive_archetype(data: ExhibitData) -> Judgement:
    """Judge the curve of the responsive archetype: it rises by much, and ends high."""
    return _judge_curve(data, "responsive", lambda c: c[-1] - c[0] >= MIN_RISE and c[-1] >= EASY)


def judge_diminishing_archetype(data: ExhibitData) -> Judgement:
    """Judge the curve of the diminishing archetype: most of its rise comes in the first half."""

    def saturates(curve: FloatArray) -> bool:
        rise, early = curve[-1] - curve[0], curve[len(curve) // 2] - curve[0]
        return bool(rise > 0 and early >= HALF * rise)

    return _judge_curve(data, "diminishing", saturates)


def judge_hard_archetype(data: ExhibitData) -> Judgement:
    """Judge the curve of the hard archetype: it stays low."""
    return _judge_curve(data, "hard", lambda c: c.max() < HARD)


def _judge_curve(
    data: ExhibitData, name: str, has_shape: Callable[[FloatArray], object]
) -> Judgement:
    archetypes: Archetypes = data["archetypes"]
    if name not in archetypes.names or name not in archetypes.half_names:
        raise NotMeasurable(f"no cluster is {name}")
    curve = archetypes.curve[archetypes.names.index(name)]
    other = archetypes.other_curve[archetypes.half_names.index(name)]
    paper, held_out = (f"{c[0]:.2f} to {c[-1]:.2f}" for c in (curve, other))
    return Judgement(paper, held_out, decide(has_shape(other)))


ARCHETYPE_CLAIMS = (
    PaperClaim(
        "Easy questions start at 0.75 or above and stay flat",
        "Figure 7a",
        "≥ 0.75, nearly flat",
        "the mean on other samples does so, within 0.1",
        judge_easy_archetype,
    ),
    PaperClaim(
        "Responsive questions rise from about 0.35 to 0.9",
        "Figure 7a",
        "0.35 to 0.9",
        "the mean on other samples rises by at least 0.3, to at least 0.75",
        judge_responsive_archetype,
    ),
    PaperClaim(
        "Diminishing questions gain moderately and saturate early",
        "Figure 7a",
        "saturates early",
        "half of the rise on other samples comes by the middle level",
        judge_diminishing_archetype,
    ),
    PaperClaim(
        "Hard questions stay below 0.25",
        "Figure 7a",
        "below 0.25",
        "the mean on other samples is below 0.25 at every level",
        judge_hard_archetype,
    ),
)
"""In the order of the archetypes."""
