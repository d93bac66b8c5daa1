"""Lines: which policies the main chart shows, and how each line looks.

By default there are at most five: the policy, the mixture, the best rival, the static oracle and
the current point. Every two of them differ in colour or in their dash pattern, also for readers who
cannot tell some colours apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from adacompute.evaluation.factories import is_single_arm
from adacompute.report.plot_style import COLOURS, GREY

Dashes = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class LineStyle:
    """Colour, dash pattern and width of a line; a banded one is drawn with its intervals."""

    colour: str
    dashes: Dashes
    width: float
    zorder: float = 2.0
    is_banded: bool = False


INK = "#000000"
"""The colour of text: black on a light page, white on a dark one."""

POLICY = LineStyle(COLOURS[0], "-", 2.4, zorder=4, is_banded=True)
MIXTURE = LineStyle(GREY, "-", 2.0, zorder=3, is_banded=True)
RIVAL = LineStyle(COLOURS[4], "--", 1.6)
ORACLE = LineStyle(INK, ":", 1.4)
CURRENT_POINT = LineStyle(COLOURS[0], "none", 0.0, zorder=5)

OTHER_DASHES: tuple[Dashes, ...] = (
    "-.",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (7, 2)),
    (0, (2, 2)),
)
OTHER = LineStyle(COLOURS[1], "-.", 1.3)
NO_RIVALS = ("fixed", "random", "mixture", "mixture-votes", "oracle", "oracle-in-sample")
"""Uniform policies and references, which are no alternatives to a policy."""

SEQUENTIAL = ("sequential", "sequential-votes")
"""Variants of one policy, which are no rivals of each other."""


def choose_lines(
    document: dict[str, Any], *, all_policies: bool = False
) -> list[tuple[dict[str, Any], LineStyle]]:
    """Return the curves to draw with their styles, the less important ones last."""
    curves = {curve["policy"]: curve for curve in document["curves"]}
    rival = find_rival(document)
    styles = {document["policy"]: POLICY, "mixture": MIXTURE, rival: RIVAL, "oracle": ORACLE}
    chosen = [(curves[name], style) for name, style in styles.items() if name in curves]
    if not all_policies:
        return chosen
    others = [curve for name, curve in curves.items() if name not in styles]
    colours = [colour for colour in COLOURS if colour not in (POLICY.colour, RIVAL.colour)]
    return chosen + [
        (
            curve,
            replace(
                OTHER,
                colour=colours[i % len(colours)],
                # Another dash pattern each time that the colours begin again.
                dashes=OTHER_DASHES[(i + i // len(colours)) % len(OTHER_DASHES)],
            ),
        )
        for i, curve in enumerate(others)
    ]


def is_alternative(name: str) -> bool:
    """Whether a curve is that of another method, and not of a uniform level or a reference."""
    return name not in NO_RIVALS and not is_single_arm(name)


def find_rival(document: dict[str, Any]) -> str | None:
    """Return the other policy with the highest mean difference to the mixture, if there is one.

    The mixture is the one of the chart. Stored differences can be to a mixture that votes like the
    policy, which others are not compared with.
    """
    policy, curves = document["policy"], document["curves"]
    family = SEQUENTIAL if policy in SEQUENTIAL else (policy,)
    uniform = next(curve["points"] for curve in curves if curve["policy"] == "mixture")
    cost, accuracy = ([point[key] for point in uniform] for key in ("cost", "accuracy"))
    means = {
        curve["policy"]: fmean(
            point["accuracy"] - float(np.interp(point["cost"], cost, accuracy))
            for point in curve["points"]
        )
        for curve in curves
        if is_alternative(curve["policy"]) and curve["policy"] not in family and curve["points"]
    }
    return max(means, key=lambda name: means[name]) if means else None
