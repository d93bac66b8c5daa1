"""Paper panels: pieces that the drawings of the paper's figures share.

Shades of levels, axes of levels and prices, stacked bars, tiles with their numbers, legends below.
It knows nothing of what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.report.plot_style import Axes

PALE, DEEP = (0.90, 0.93, 0.95), (0.02, 0.22, 0.34)
DARK = 0.5
"""Shares above this are written in white."""


def price_jitter(place: int, places: int) -> tuple[float, float, float]:
    """Colour of a level: the more samples, the deeper."""
    part = place / max(1, places - 1)
    red, green, blue = (low + part * (high - low) for low, high in zip(PALE, DEEP, strict=True))
    return red, green, blue


def mark_levels(axis: Axes, levels: Sequence[int]) -> None:
    """Put the levels on a logarithmic axis."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(levels), [str(level) for level in levels])
    axis.minorticks_off()
    axis.set_xlabel("level (samples that vote)")


def mark_prices(axis: Axes, price: FloatArray) -> None:
    """Put prices on an axis that begins at none."""
    axis.set_xscale("symlog", linthresh=float(price[1]))
    axis.set_xlim(0, float(price[-1]))
    axis.set_xlabel("price λ (accuracy a sample must buy)")


def stack(axis: Axes, names: Sequence[str], shares: FloatArray, levels: Sequence[int]) -> None:
    """Stack the shares of the levels, (names, K), in bars."""
    bottom = np.zeros(len(names))
    place = np.arange(len(names))
    for k, level in enumerate(levels):
        colour = price_jitter(k, len(levels))
        axis.bar(place, shares[:, k], bottom=bottom, color=colour, width=0.8, label=str(level))
        bottom += shares[:, k]
    axis.set_xticks(place, list(names))
    axis.set_ylim(0, 1)
    axis.set_ylabel("share of questions")
    axis.grid(visible=False)


def tile(axis: Axes, shares: FloatArray, *, write: bool = True) -> None:
    """Draw shares as shaded tiles, with their numbers."""
    rows, columns = shares.shape
    colours = np.array([[price_jitter(round(100 * share), 101) for share in row] for row in shares])
    axis.imshow(colours, aspect="auto", interpolation="nearest")
    axis.grid(visible=False)
    for edge in ("left", "bottom"):
        axis.spines[edge].set_visible(False)
    axis.tick_params(length=0)
    if write:
        for i in range(rows):
            for j in range(columns):
                colour = "white" if shares[i, j] > DARK else "#333333"
                text = f"{shares[i, j]:.2f}"
                axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)


def shorten(text: str, most: int = 18) -> str:
    """Cut a long name: its end tells more than its beginning."""
    return text if len(text) <= most else f"…{text[-most + 1 :]}"


def legend_below(axis: Axes, columns: int, *, title: str | None = None) -> None:
    """Put the legend below the axis, where it covers nothing."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, title=title)
