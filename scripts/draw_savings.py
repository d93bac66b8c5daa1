"""Savings: the figure at the top of the README, drawn from a table in docs/research/results.md.

Run it with ``python -m scripts.draw_savings`` after the table has changed. Every dot is the mean
number of samples per question at which a policy is as accurate as five samples.
"""

from __future__ import annotations

import re
from pathlib import Path

from adacompute.report.plot_style import COLOURS, GREY, panels
from benchmarks.savings_table import IN_README
from scripts.svg_theme import figure_svg

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "_static" / "savings.svg"
TABLE = "savings 5, as recorded"
TODAY = 5.0
LARGEST = 7.0
"""Costs above it are not shown."""

POLICIES = {
    "sequential": ("sequential: one price for every sample", COLOURS[0]),
    "Adaptive-Consistency": ("Adaptive-Consistency", COLOURS[1]),
    "baseline": ("best uniform mixture, weighted votes", GREY),
}
SIZE = 12.5
"""Of all text: 11 pixels on a phone."""


def read_costs() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the cost at equal accuracy and the ends of its interval, by set and policy."""
    text = (ROOT / "docs" / "research" / "results.md").read_text()
    table = text.split(f"<!-- {TABLE}: begin -->\n")[1].split(f"<!-- {TABLE}: end -->")[0]
    head, _, *rows = [
        [cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        name = row[0].rpartition(" (")[0]
        for policy, cell in zip(head[1:], row[1:], strict=True):
            numbers = re.findall(r"\d+\.\d+|–", cell)
            if policy in POLICIES and numbers:
                cost, low, high = (LARGEST if one == "–" else float(one) for one in numbers)
                found.setdefault(name, {})[policy] = cost, low, high
    return found


def draw() -> str:
    """Return the figure as an SVG document."""
    costs, step = read_costs(), 0.22
    with panels(width=5.4, height=5.8) as (figure, (axes,)):
        for place, name in enumerate(IN_README):
            for i, (policy, (_, colour)) in enumerate(POLICIES.items()):
                if policy not in costs[name]:
                    continue
                cost, low, high = costs[name][policy]
                y = place + (i - 1) * step
                axes.plot([low, min(high, LARGEST)], [y, y], "-", color=colour, linewidth=2)
                axes.plot([cost], [y], "o", color=colour, markersize=6)
        for label, colour in POLICIES.values():
            axes.plot([], [], "o-", color=colour, label=label)
        axes.axvline(TODAY, color="#000000", linewidth=1.4, linestyle=":")
        axes.set_yticks(range(len(IN_README)), [name.replace(", ", "\n") for name in IN_README])
        axes.invert_yaxis()
        axes.set_xlim(1, 6)
        axes.set_xlabel("samples at the accuracy of 5", fontsize=SIZE)
        axes.tick_params(labelsize=SIZE)
        figure.legend(loc="outside lower left", fontsize=SIZE)
        return figure_svg(
            figure,
            shown=560,
            title="Samples per question at the accuracy of five samples",
            description="On six sets the sequential policy is as accurate as five samples per "
            "question with 1.7 to 3.5 samples on average, with 95 % intervals. A dotted line marks "
            "five samples.",
        )


def main() -> None:
    """Write the figure."""
    OUT.write_text(draw())


if __name__ == "__main__":
    main()
