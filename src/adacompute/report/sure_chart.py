"""Sure chart: the accuracy of the surest answers, by the share of the questions that are answered.

What was learned is drawn beside the scores that need no learning, on the same questions. It draws
what a calibration found and computes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from adacompute.evaluation.scoring.correctness import AGREEMENT, LEARNED, LOGPROB
from adacompute.evaluation.scoring.precision import Precision, describe_p_correct
from adacompute.report.figures import (
    ACCURACY_LABEL,
    Drawing,
    draw_line,
    draw_svg,
    fit_accuracy_axis,
    no_overlay,
)
from adacompute.report.lines import MIXTURE, POLICY, RIVAL
from adacompute.report.wording import format_percent, keep_together

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes

STYLES = {LEARNED: POLICY, LOGPROB: replace(RIVAL, is_banded=True), AGREEMENT: MIXTURE}
"""The line of each score."""

TICKS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the questions that are marked on the axis."""


def has_chart(how_sure: dict[str, Any] | None) -> bool:
    """Whether there is something to draw: right answers can be separated from wrong ones."""
    return how_sure is not None and bool(how_sure["p_correct"]["is_informative"])


def list_scores(how_sure: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the accuracy of each score at each share, in the order of the figure."""
    rows = how_sure["p_correct"]["curves"]
    found = {name: [row for row in rows if row["score"] == name] for name in STYLES}
    return {name: points for name, points in found.items() if points}


def describe_sure(how_sure: dict[str, Any]) -> list[str]:
    """Say how well right and wrong answers are separated, and what is guaranteed, if anything."""
    text = describe_p_correct(how_sure["p_correct"])
    found = [text[0].upper() + text[1:]]
    if how_sure["precision"]:
        found.append(str(Precision(**how_sure["precision"])))
    return [keep_together(sentence) for sentence in found]


def draw_sure(how_sure: dict[str, Any]) -> Drawing:
    """Draw the accuracy of the surest answers by each score, with its intervals."""
    scores = list_scores(how_sure)

    def draw(axes: list[Axes], n_columns: int) -> None:
        (one,) = axes
        for name, points in scores.items():
            draw_line(one, {"policy": name, "points": points}, STYLES[name], against="share")
        fit_accuracy_axis(one)
        one.set_xticks(TICKS, [f"{100 * tick:.0f}" for tick in TICKS])
        one.set_xlabel("share answered, the surest first (%)")
        one.set_ylabel(ACCURACY_LABEL)
        one.figure.legend(loc="outside lower left", handlelength=2.6, ncols=n_columns)

    wide = draw_svg("sure-w", 1, 1, (6.6, 4.0), partial(draw, n_columns=3), no_overlay)
    narrow = draw_svg("sure-n", 1, 1, (3.9, 4.2), partial(draw, n_columns=1), no_overlay)
    first = "; ".join(
        f"{name}, {format_percent(points[0]['accuracy'], 0)}" for name, points in scores.items()
    )
    description = (
        "Accuracy of the surest answers against the share of the questions that are answered. "
        f"Of the surest {format_percent(next(iter(scores.values()))[0]['share'], 0)}: {first}. "
        "The numbers are in the table below."
    )
    return Drawing("sure", wide, narrow, description)
