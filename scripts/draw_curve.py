"""Curve: the figure at the top of the README, drawn from the table in docs/research/results.md.

Run it with ``python -m scripts.draw_curve`` after the table has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

from adacompute.report.plot_style import COLOURS, GREY, panels
from scripts.svg_theme import figure_svg

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "_static" / "curve.svg"
CURVES = {
    "sequential": ("sequential: one price for every sample", COLOURS[0], "-", 2.6),
    "adaptive-consistency": ("Adaptive-Consistency", COLOURS[1], "-", 1.6),
    "early-stopping": ("early stopping (ESC)", COLOURS[4], "-", 1.6),
    "mixture": ("best mixture of uniform n", GREY, "-", 1.6),
    "router": ("the paper's router", COLOURS[3], "--", 1.6),
    "oracle, cross-fitted": ("oracle that knows every question's curve", "#000000", ":", 1.4),
}
"""Label, colour, line style and line width of each policy in the figure."""

SIZE = 12.5
"""Of all text: 11 pixels on a phone."""


def read_table(name: str) -> tuple[list[float], dict[str, list[float]]]:
    """Return the budgets and, by policy, the accuracies of a table of the results page."""
    text = (ROOT / "docs" / "research" / "results.md").read_text()
    table = text.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0]
    head, _, *rows = [
        [cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    number = re.compile(r"\d+\.\d+")
    values = {row[0]: [float(number.findall(cell)[0]) for cell in row[1:]] for row in rows}
    return [float(budget) for budget in head[1:]], values


def draw() -> str:
    """Return the figure as an SVG document."""
    budgets, accuracy = read_table("drop-unparsed")
    with panels(width=5.4, height=5.6) as (figure, (axes,)):
        for name, (label, colour, line, width) in CURVES.items():
            value = [100 * one for one in accuracy[name]]
            axes.plot(budgets, value, line, color=colour, linewidth=width, label=label)
        axes.set_xlabel("mean samples per question", fontsize=SIZE)
        axes.set_ylabel("held-out accuracy, %", fontsize=SIZE)
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.tick_params(labelsize=SIZE)
        title = "900 of 1,000 exam questions,\ngpt-3.5-turbo, unparsed samples removed"
        axes.set_title(title, fontsize=SIZE + 0.5)
        figure.legend(loc="outside lower left", fontsize=SIZE)
        return figure_svg(
            figure,
            shown=560,
            title="Held-out accuracy by mean samples per question",
            description="On 900 of 1,000 exam questions with gpt-3.5-turbo, unparsed samples"
            " removed, the sequential policy lies above stopping rules, the best uniform mixture"
            " and the paper's router, and below the oracle that knows every question's curve.",
        )


def main() -> None:
    """Write the figure."""
    OUT.write_text(draw())


if __name__ == "__main__":
    main()
