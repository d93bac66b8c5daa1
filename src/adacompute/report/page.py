"""Page: the document of a report as one HTML file that needs nothing else; the only door to jinja2.

All text is escaped where it is written. The page's security policy allows its own style sheet and
its own script, by their hashes, and nothing from anywhere: no request can leave it. The same
document makes the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from adacompute.core.errors import require
from adacompute.report.breakdown import KINDS
from adacompute.report.figures import (
    Drawing,
    Spot,
    draw_curves,
    draw_frontier,
    draw_kinds,
    draw_sensitivity,
)
from adacompute.report.wording import (
    UNITS,
    between,
    counted,
    headline,
    next_steps,
    number,
    one_of,
    outlook,
    per_question,
    percent,
    points,
    redrawing,
    support,
    verdict,
)

SHOWN = 10
CENTS = 0.1
"""Money from which two places say it well enough."""

TEMPLATE, STYLE, SCRIPT = "page.html.jinja", "page.css", "page.js"
FILTERS = {"number": number, "percent": percent, "points": points, "counted": counted}
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""What could end a script or start markup, as JSON spells it harmlessly."""


def render(document: dict[str, Any]) -> str:
    """Make the page of a document."""
    jinja2 = require("jinja2", extra="report")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    environment.globals["between"] = between
    markup = environment.filters["safe"]
    style, script = _read(STYLE), _read(SCRIPT)
    curves, spots = draw_curves(document)
    drawings = [curves, draw_kinds(document), draw_frontier(document), draw_sensitivity(document)]
    page: str = environment.from_string(_read(TEMPLATE)).render(
        report=document,
        here=document["stops"][document["at"]],
        headline=headline(document),
        support=support(document),
        steps=next_steps(document),
        outlook=outlook(document),
        verdict=verdict(document),
        budget=per_question(document["budget"], document["unit"]),
        noun=UNITS[document["unit"]],
        one=one_of(document["unit"]),
        redrawing=redrawing(document),
        shown=_thin(document),
        kinds=KINDS,
        readings=[read_stop(document, stop) for stop in document["stops"]],
        figures={drawing.name: _markup(drawing, markup) for drawing in drawings},
        policy=markup(_security(style, script)),
        style=markup(style),
        script=markup(script),
        data=markup(_embed(document, spots)),
    )
    return page


def _thin(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return about so many stops as a table holds, the one asked for among them."""
    stops, at = document["stops"], document["at"]
    every = max(1, round(len(stops) / SHOWN))
    return [stop for i, stop in enumerate(stops) if (i - at) % every == 0]


def _read(name: str) -> str:
    return resources.files("adacompute.report").joinpath(name).read_text(encoding="utf-8")


def _markup(drawing: Drawing, markup: Any) -> dict[str, Any]:  # noqa: ANN401 - jinja2's own
    """Return the SVG of a figure as markup, and its words as text."""
    return {
        "wide": markup(drawing.wide),
        "narrow": markup(drawing.narrow),
        "label": drawing.label,
    }


def _security(style: str, script: str) -> str:
    """Return a security policy that allows this style and this script, and nothing else."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src 'sha256-{_digest(style)}'",
            f"script-src 'sha256-{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read_stop(document: dict[str, Any], stop: dict[str, Any]) -> dict[str, Any]:
    """Say what a stop reads, word for word: the page's script only puts it in place."""
    unit = document["unit"]
    return {
        "budget": per_question(stop["budget"], unit),
        "cost": number(stop["cost"]),
        "gain": f"{points(stop['gain'])} points",
        "gain_interval": between(stop["gain_low"], stop["gain_high"]),
        "accuracy": percent(stop["accuracy"]),
        "accuracy_interval": between(stop["accuracy_low"], stop["accuracy_high"]),
        "price": number(stop["price"]),
        "bill": ", ".join(_bill(name, amount) for name, amount in stop["bill"].items()),
        "level_shares": [
            {
                "share": percent(level["share"], 0),
                "width": f"{100 * level['share']:.1f}",
                "budget_share": percent(level["budget_share"], 0),
                "budget_width": f"{100 * level['budget_share']:.1f}",
            }
            for level in stop["level_shares"]
        ],
    }


def _bill(name: str, amount: float) -> str:
    """Say an amount of a bill; money is in the currency of the recorded costs or the token prices.

    >>> _bill("samples", 2010.4), _bill("money", 0.5), _bill("money", 0.000597)
    ('2,010 samples', '0.50 of money', '0.000597 of money')
    """
    if name != "money":
        return f"{number(amount)} {name}"
    return f"{amount:,.2f} of money" if amount >= CENTS else f"{number(amount)} of money"


def _embed(document: dict[str, Any], spots: dict[str, list[Spot]]) -> str:
    """Return the data of the slider as JSON that is safe inside a script element."""
    stops = [
        {
            "text": read_stop(document, stop),
            "spots": {shape: found[i].attributes for shape, found in spots.items()},
        }
        for i, stop in enumerate(document["stops"])
    ]
    text = json.dumps({"at": document["at"], "stops": stops}, separators=(",", ":"))
    for character, spelled in UNSAFE.items():
        text = text.replace(character, spelled)
    return text
