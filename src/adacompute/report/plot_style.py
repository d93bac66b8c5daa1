"""Canvas: how every figure looks, and the only door to matplotlib.

One palette that is told apart in print and by colour-blind readers, one set of sizes, text that
stays text in SVG. A figure is made without any global state and saved as SVG or PDF that does not
change from one day to the next. It knows nothing of what is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - for other modules
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - for other modules

COLOURS = ("#0b6e99", "#d1495b", "#4f772d", "#8d6a9f", "#c77700", "#30638e", "#7a7a7a", "#00798c")
"""Of lines, in this order; each has a marker of its own too."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
QUIET = "#8a8f98"
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "adacompute",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.use": True,
}


@contextmanager
def panels(
    rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 3.8
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Give a figure and its axes, row by row, in our style; width and height are of one panel."""
    matplotlib = require("matplotlib", extra="report")
    figure_module = require("matplotlib.figure", extra="report")
    with matplotlib.rc_context(SETTINGS):
        figure = figure_module.Figure(figsize=(width * columns, height * rows))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.ravel())


def to_svg(figure: Figure) -> str:
    """Write a figure as SVG that can stand inside a page."""
    return _save(figure, "svg", {"Date": None, "Creator": None}).decode()


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as SVG and PDF beside each other; returns their paths."""
    saved = []
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("svg", {"Date": None, "Creator": None}),
        ("pdf", {"CreationDate": None, "Creator": None, "Producer": None}),
    )
    for kind, about in kinds:
        place = path.with_suffix(f".{kind}")
        place.write_bytes(_save(figure, kind, about))
        saved.append(place)
    return saved


def _save(figure: Figure, kind: str, about: dict[str, Any]) -> bytes:
    matplotlib = require("matplotlib", extra="report")
    held = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(held, format=kind, metadata=about, transparent=True)
    return held.getvalue()
