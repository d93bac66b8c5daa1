"""Plot style: how all figures look, and the only use of matplotlib.

One palette that colour-blind readers and readers of a printed page can tell apart, one set of
sizes, and text that stays text in SVG. Figures of the page use no global state, and the same figure
gives the same bytes. It knows nothing about what is drawn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - for other modules
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - for other modules

COLOURS = ("#0b6e99", "#d1495b", "#4f772d", "#8d6a9f", "#c77700", "#30638e", "#7a7a7a", "#00798c")
"""Colours of lines, in this order."""

GREY = "#8a8f98"
SETTINGS: dict[Any, Any] = {
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


def round_ticks(lowest: float, highest: float) -> list[float]:
    """Return round numbers between two positive ones, for a logarithmic axis.

    >>> round_ticks(900, 12000)
    [1000.0, 2000.0, 5000.0, 10000.0]
    """
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if lowest <= tick <= highest]


def spread(values: list[float], distance: float) -> list[float]:
    """Return values at least a distance apart, lower ones moved down.

    >>> spread([100.0, 98.0, 20.0], 8.0)
    [100.0, 92.0, 20.0]
    """
    found, limit = list(values), float("inf")
    for i in sorted(range(len(values)), key=lambda i: -values[i]):
        found[i] = min(values[i], limit)
        limit = found[i] - distance
    return found


@contextmanager
def panels(
    rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 3.8
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure and its axes, row by row; width and height are those of one panel."""
    with needs_extra("report"):
        import matplotlib as mpl
        from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width * columns, height * rows))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.ravel())


@contextmanager
def styled_axes(
    axes: Axes | None = None, *, width: float = 6.6, height: float = 4.3
) -> Iterator[Axes]:
    """Yield the given axes, or those of a new figure that a notebook shows, to be drawn on.

    The style holds for what is drawn meanwhile; the settings of matplotlib are restored.
    """
    with needs_extra("report"):
        import matplotlib as mpl
        from matplotlib import pyplot as plt

    with mpl.rc_context(SETTINGS):
        yield plt.subplots(figsize=(width, height))[1] if axes is None else axes


def fix_layout(figure: Figure) -> None:
    """Place the axes of a figure for good, before anything is drawn."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG without a date, for use inside a page."""
    return encode_figure(figure, "svg", {"Date": None, "Creator": None}).decode()


def encode_figure(figure: Figure, extension: str, metadata: dict[str, Any]) -> bytes:
    """Return a figure in a format of matplotlib; metadata can leave out what changes each time."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context(SETTINGS):
        figure.savefig(buffer, format=extension, metadata=metadata, transparent=True)
    return buffer.getvalue()
