"""Calibration: how often answers are right by ``p_correct``, from docs/research/results.md.

Run it with ``python -m scripts.draw_calibration`` after the table has changed.
"""

from __future__ import annotations

from pathlib import Path

from adacompute.report.plot_style import COLOURS, GREY, panels
from scripts.svg_theme import figure_svg

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "_static" / "calibration.svg"
TABLE = "calibration"
SIZE = 12.5
"""Of all text: 11 pixels on a phone."""


def read_bins() -> list[list[float]]:
    """Return the probability, the share that is right, and its ends, by bin."""
    text = (ROOT / "docs" / "research" / "results.md").read_text()
    table = text.split(f"<!-- {TABLE}: begin -->\n")[1].split(f"<!-- {TABLE}: end -->")[0]
    _, _, *rows = table.splitlines()
    return [[float(cell) for cell in row.strip("|").split("|")][1:] for row in rows]


def draw() -> str:
    """Return the figure as an SVG document."""
    chance, right, low, high = zip(*read_bins(), strict=True)
    with panels(width=5.4, height=5.4) as (figure, (axes,)):
        axes.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.6, label="perfectly calibrated")
        for x, bottom, top in zip(chance, low, high, strict=True):
            axes.plot([x, x], [bottom, top], "-", color=COLOURS[0], linewidth=2)
        axes.plot(
            chance, right, "o", color=COLOURS[0], markersize=7, label="a tenth of the answers"
        )
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("p_correct", fontsize=SIZE)
        axes.set_ylabel("share of right answers", fontsize=SIZE)
        axes.set_title("the shipped example, 2 samples per question", fontsize=SIZE + 0.5)
        axes.tick_params(labelsize=SIZE)
        figure.legend(loc="outside lower left", fontsize=SIZE)
        return figure_svg(
            figure,
            shown=560,
            title="How often answers are right, by p_correct",
            description="Held-out answers of the example set in ten equally filled bins: the share "
            "that is right is close to p_correct, with 95 % intervals.",
        )


def main() -> None:
    """Write the figure."""
    OUT.write_text(draw())


if __name__ == "__main__":
    main()
