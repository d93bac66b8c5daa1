"""Paper panels: pieces that the paper's figures share.

Colours of levels, axes of levels and prices, stacked bars, heat maps with numbers, and legends
below an axis, and how a figure is saved. It knows nothing of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.report.plot_style import encode_figure

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.report.plot_style import Axes, Figure

LIGHT, DARK = (0.90, 0.93, 0.95), (0.02, 0.22, 0.34)
WHITE_TEXT_ABOVE = 0.5
"""Shares above this have a dark background, so their number is white."""


def scale_colour(index: int, size: int) -> tuple[float, float, float]:
    """Return colour ``index`` of ``size`` colours from light to dark."""
    part = index / max(1, size - 1)
    red, green, blue = (low + part * (high - low) for low, high in zip(LIGHT, DARK, strict=True))
    return red, green, blue


def set_level_axis(axis: Axes, levels: Sequence[int]) -> None:
    """Make the x axis logarithmic, with a tick per level."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(levels), [str(level) for level in levels])
    axis.minorticks_off()
    axis.set_xlabel("level (samples that vote)")


def set_price_axis(axis: Axes, price: FloatArray) -> None:
    """Make the x axis one of prices: logarithmic, and including 0."""
    axis.set_xscale("symlog", linthresh=float(price[1]))
    axis.set_xlim(0, float(price[-1]))
    axis.set_xlabel("price λ (accuracy per sample)")


def stack_bars(axis: Axes, names: Sequence[str], shares: FloatArray, levels: Sequence[int]) -> None:
    """Plot the shares of the levels, (names, K), as one stacked bar per name."""
    bottom = np.zeros(len(names))
    x = np.arange(len(names))
    for k, level in enumerate(levels):
        colour = scale_colour(k, len(levels))
        axis.bar(x, shares[:, k], bottom=bottom, color=colour, width=0.8, label=str(level))
        bottom += shares[:, k]
    axis.set_xticks(x, list(names))
    axis.set_ylim(0, 1)
    axis.set_ylabel("share of questions")
    axis.grid(visible=False)


def draw_matrix(axis: Axes, shares: FloatArray) -> None:
    """Plot a matrix of shares as coloured cells with their numbers."""
    rows, columns = shares.shape
    colours = np.array([[scale_colour(round(100 * share), 101) for share in row] for row in shares])
    axis.imshow(colours, aspect="auto", interpolation="nearest")
    axis.grid(visible=False)
    for edge in ("left", "bottom"):
        axis.spines[edge].set_visible(False)
    axis.tick_params(length=0)
    for i in range(rows):
        for j in range(columns):
            colour = "white" if shares[i, j] > WHITE_TEXT_ABOVE else "#333333"
            text = f"{shares[i, j]:.2f}"
            axis.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)


def shorten(text: str, max_chars: int = 18) -> str:
    """Shorten a long name to its end, which usually differs more than its beginning."""
    return text if len(text) <= max_chars else f"…{text[-max_chars + 1 :]}"


def add_legend_below(axis: Axes, columns: int, *, title: str | None = None) -> None:
    """Put the legend below the axis, where it covers nothing."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, title=title)


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as SVG and as PDF, and return the two paths."""
    saved = []
    formats: tuple[tuple[str, dict[str, Any]], ...] = (
        ("svg", {"Date": None, "Creator": None}),
        ("pdf", {"CreationDate": None, "Creator": None, "Producer": None}),
    )
    for extension, metadata in formats:
        file = path.with_suffix(f".{extension}")
        file.write_bytes(encode_figure(figure, extension, metadata))
        saved.append(file)
    return saved
