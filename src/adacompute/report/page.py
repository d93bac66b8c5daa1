"""Page: a report as one self-contained HTML file, and the only use of jinja2.

All text is escaped by the template. The blocks of the template are the parts of the page that
depend on the budget: each is made at every budget, and the script of the page exchanges them. The
content security policy of the page allows only its own style sheet and its own script, by their
hashes, so the page cannot send a request. The same document gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

from adacompute.core.errors import needs_extra
from adacompute.core.progress import StepProgress
from adacompute.report.breakdown import ARM_QUESTION_TYPES, QUESTION_TYPES
from adacompute.report.commands import describe_next, next_steps
from adacompute.report.figures import (
    Drawing,
    Markers,
    draw_curves,
    draw_frontier,
    draw_types,
)
from adacompute.report.lines import choose_lines
from adacompute.report.operating_points import at_budget
from adacompute.report.plane import draw_plane, name_level
from adacompute.report.saving_chart import MAX_ROWS, draw_savings, has_arrows, sort_savings
from adacompute.report.sure_chart import describe_sure, draw_sure, has_chart, list_scores
from adacompute.report.wording import (
    UNIT_NOUNS,
    explain_headline,
    explain_retry,
    explain_unsolved,
    explain_verdict,
    format_budget,
    format_costs,
    format_count,
    format_interval,
    format_number,
    format_percent,
    format_points,
    format_shares,
    headline,
    list_savings,
    name_policy,
    name_unit,
    name_verdict,
)

N_TABLE_ROWS = 10
MIN_CENTS = 0.1
"""Amount of money from which two decimal places are enough."""

VERDICT_COLOURS = {
    **dict.fromkeys(("gain", "saves"), "good"),
    **dict.fromkeys(("loss", "no saving"), "bad"),
}
"""Classes of verdicts; that of the others is "open"."""

TEMPLATE, MACROS = "page.html.jinja", "macros.html.jinja"
STYLE, SCRIPT = "page.css", "page.js"
FILTERS = {
    "number": format_number,
    "percent": format_percent,
    "points": format_points,
    "count": format_count,
    "policy": name_policy,
    "level": name_level,
}
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that could end a script or start markup, and how JSON can write them."""


def _make_environment() -> Any:  # noqa: ANN401 - a type of jinja2
    """Return what templates need: filters, formats and the macros of the page."""
    with needs_extra("report"):
        import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(interval=format_interval, costs=format_costs, shares=format_shares)
    for name, macro in vars(environment.from_string(_read(MACROS)).module).items():
        if not name.startswith("_"):
            environment.globals[name] = macro
    return environment


def render(
    document: dict[str, Any],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the page of a document."""
    environment = _make_environment()
    markup = environment.filters["safe"]
    style, script = _read(STYLE), _read(SCRIPT)
    figures, markers = _draw(document, progress)
    fixed = {
        "savings": sort_savings(document),
        "all_savings": len(document["savings"]) <= MAX_ROWS,
        "has_arrows": bool(document["savings"]) and has_arrows(document),
        "rows": _thin(document),
        "all_shown": len(choose_lines(document)) == len(document["curves"]),
        **_describe_sure(document["how_sure"]),
        "types": ARM_QUESTION_TYPES if document["arms"] else QUESTION_TYPES,
        "skipped": _group_skipped(document),
        "figures": {drawing.name: _markup(drawing, markup) for drawing in figures},
        "security": markup(_security_policy(style, script)),
        "style": markup(style),
        "script": markup(script),
        "units": UNIT_NOUNS[document["unit"]],
        "unit": name_unit(document["unit"]),
        "colours": VERDICT_COLOURS,
    }
    template = environment.from_string(_read(TEMPLATE))

    def render_parts(index: int) -> dict[str, list[str]]:
        """Return the lines of each part of the page that depends on the budget."""
        values = fixed | _values(at_budget(document, index))
        context = template.new_context(values)
        return {
            name: "".join(block(context)).split("\n") for name, block in template.blocks.items()
        }

    parts = [render_parts(i) for i in range(len(document["operating_points"]))]
    data = markup(_slider_data(document, parts, markers))
    page: str = template.render(fixed | _values(document), data=data)
    return page


def _draw(
    document: dict[str, Any], progress: Callable[[str], None]
) -> tuple[list[Drawing], dict[str, Markers]]:
    """Draw the figures, and return the markers of operating points by figure."""
    draw: list[Callable[[], Drawing | tuple[Drawing, Markers]]] = [
        lambda: draw_curves(document),
        lambda: draw_types(document),
        lambda: draw_frontier(document),
    ]
    draw += [lambda: draw_plane(document)] if document["arms"] else []
    draw += [lambda: draw_savings(document)] if document["savings"] else []
    draw += [lambda: draw_sure(document["how_sure"])] if has_chart(document["how_sure"]) else []
    drawings, markers = list[Drawing](), dict[str, Markers]()
    for one in draw:
        progress(StepProgress(len(drawings), len(draw)))
        found = one()
        drawing, marked = found if isinstance(found, tuple) else (found, {})
        drawings.append(drawing)
        markers |= {drawing.name: marked} if marked else {}
    return drawings, markers


def _values(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows at the selected budget of a document."""
    point = document["operating_points"][document["selected"]]
    levels = [f"about {format_number(one['level'])}" for one in point["level_shares"]]
    return {
        "report": document,
        "point": point,
        **_header(document),
        "steps": next_steps(document),
        "verdict": explain_verdict(document),
        "budget": format_budget(document["budget"], document["unit"]),
        "retry": explain_retry(document),
        "unsolved": explain_unsolved(document),
        "bill": ", ".join(_format_bill(unit, amount) for unit, amount in point["bill"].items()),
        "level_shares": [
            (name, one["share"], one["budget_share"])
            for name, one in zip(levels, point["level_shares"], strict=True)
        ],
        "arm_shares": [
            (one["arm"], one["share"], one["cost_share"]) for one in point["arm_shares"]
        ],
        "type_shares": [
            (one["name"], one["share"], one["budget_share"]) for one in point["question_types"]
        ],
    }


def _describe_sure(how_sure: dict[str, Any] | None) -> dict[str, Any]:
    """Return what is said of how sure answers are, and the rows of its table, share by share."""
    if how_sure is None:
        return {"sure": []}
    scores = list_scores(how_sure)
    return {
        "sure": describe_sure(how_sure),
        "sure_budget": format_budget(how_sure["budget"], how_sure["unit"]),
        "sure_scores": list(scores),
        "sure_rows": list(zip(*scores.values(), strict=True)),
    }


def _header(document: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of the header: what is saved or gained, its details and what to run next."""
    text, command = describe_next(document)
    return {
        "lead": name_verdict(document),
        "headline": headline(document).removeprefix(name_verdict(document)),
        "details": list_savings(document)[1:],
        "explanation": explain_headline(document),
        "next": text,
        "command": command,
    }


def _group_skipped(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return the policies that were skipped by reason."""
    groups: dict[str, list[str]] = {}
    for name, reason in document["skipped"].items():
        groups.setdefault(reason, []).append(name)
    return groups


def _thin(document: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return about N_TABLE_ROWS operating points by their index, the selected one among them."""
    points, selected = document["operating_points"], document["selected"]
    step = max(1, round(len(points) / N_TABLE_ROWS))
    return [(i, point) for i, point in enumerate(points) if (i - selected) % step == 0]


def _read(name: str) -> str:
    return resources.files("adacompute.report").joinpath(name).read_text(encoding="utf-8")


def _markup(drawing: Drawing, markup: Any) -> dict[str, Any]:  # noqa: ANN401 - a type of jinja2
    """Return the SVG of a figure as markup, and its description as text."""
    return {
        "name": drawing.name,
        "wide": markup(drawing.wide),
        "narrow": markup(drawing.narrow),
        "description": drawing.description,
    }


def _security_policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this style and this script."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src 'sha256-{_hash(style)}'",
            f"script-src 'sha256-{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _format_bill(unit: str, amount: float) -> str:
    """Write an amount; money is in the currency of the recorded costs or of the token prices.

    >>> _format_bill("samples", 2010.4), _format_bill("money", 0.5), _format_bill("money", 0.00059)
    ('2,010 samples', '0.50 currency units', '0.00059 currency units')
    """
    has_cents = unit == "money" and amount >= MIN_CENTS
    text = f"{amount:,.2f}" if has_cents else format_number(amount)
    return f"{text} {UNIT_NOUNS[unit]}"


def _slider_data(
    document: dict[str, Any], parts: list[dict[str, list[str]]], markers: dict[str, Markers]
) -> str:
    """Return the data of the slider as JSON that is safe inside a script element.

    Parts are lists of numbers of lines, because most lines are the same at several budgets.
    """
    number: dict[str, int] = {}
    points = [
        {
            "budget": format_budget(point["budget"], document["unit"]),
            "parts": {
                name: [number.setdefault(line, len(number)) for line in lines]
                for name, lines in parts[i].items()
            },
            "markers": {
                figure: {layout: found[i] for layout, found in by_layout.items()}
                for figure, by_layout in markers.items()
            },
        }
        for i, point in enumerate(document["operating_points"])
    ]
    data = {"selected": document["selected"], "lines": list(number), "points": points}
    text = json.dumps(data, separators=(",", ":"))
    for character, escaped in UNSAFE.items():
        text = text.replace(character, escaped)
    return text
