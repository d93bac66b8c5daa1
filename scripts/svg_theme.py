"""SVG theme: the colours of the pictures in the documentation, in light and in dark mode.

Pages show pictures with ``![text](../_static/NAME.svg)``, which becomes an ``img`` element. A
picture has both sets of colours and chooses with ``prefers-color-scheme``. In an ``img`` that is
the ``color-scheme`` of the element, so ``docs/_static/site.css`` sets it to the theme that the
reader chose in Furo. A browser that does not pass it on uses the setting of the system. Each
picture therefore has a background of its own, and can be read on any page, also on GitHub.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from adacompute.report.plot_style import COLOURS, to_svg
from adacompute.report.svg import inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#57606a",
    "line": "#d0d5db",
    "edge": "#7b818a",
    "wash": "#f3f5f7",
    "tint": "#e3f1f7",
    "accent": "#0b6e99",
    "quiet": "#7b818a",
}
DARK = {
    "paper": "#14181c",
    "ink": "#e6e9ec",
    "soft": "#b3bac2",
    "line": "#343b43",
    "edge": "#8b939d",
    "wash": "#20272e",
    "tint": "#12384a",
    "accent": "#4db6e2",
    "quiet": "#959ca6",
}
LINES = {
    "light": (
        "#0b6e99",
        "#c23b4e",
        "#4f772d",
        "#7f5c91",
        "#a86400",
        "#30638e",
        "#6b6b6b",
        "#00737f",
    ),
    "dark": (
        "#4db6e2",
        "#f0808e",
        "#93c572",
        "#c6a3d8",
        "#f0ad4e",
        "#8ab8e6",
        "#b5b5b5",
        "#4fc3cf",
    ),
}
"""Colours of the lines of charts, in the order of the palette in ``report/plot_style.py``."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def theme_css() -> str:
    """Return the colours as custom properties, those of dark mode in a media query."""

    def properties(colours: dict[str, str], mode: str) -> str:
        lines = {f"c{i}": colour for i, colour in enumerate(LINES[mode])}
        return "".join(f"--{name}:{value};" for name, value in (colours | lines).items())

    return (
        f":root{{{properties(LIGHT, 'light')}}}\n"
        f"@media (prefers-color-scheme: dark){{:root{{{properties(DARK, 'dark')}}}}}\n"
        f"text{{font-family:{FONT}}}\n"
    )


def write_svg(
    body: str, *, size: tuple[float, float], shown: float, title: str, description: str, css: str
) -> str:
    """Return an SVG document; ``size`` is its view box, ``shown`` its width in pixels."""
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' width="{shown:g}" height="{shown * height / width:g}" role="img"'
        f' aria-labelledby="title description">\n'
        f'<title id="title">{escape(title)}</title>\n'
        f'<desc id="description">{escape(description)}</desc>\n'
        f"<style>\n{theme_css()}{css}</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="var(--paper)"/>\n'
        f"{body}\n</svg>\n"
    )


def figure_svg(figure: Figure, *, shown: float, title: str, description: str) -> str:
    """Return a figure of matplotlib as an SVG document with both sets of colours."""
    inline = inline_svg(to_svg(figure), name="chart")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', inline)
    assert box  # noqa: S101 - matplotlib writes one
    body = inline[inline.index(">") + 1 : inline.rindex("</svg>")]
    rules = [f".s{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}\n" for i in range(len(COLOURS))]
    css = "svg{color:var(--ink)}\n.sq{stroke:var(--quiet)}.fq{fill:var(--quiet)}\n"
    css += "path{stroke-linejoin:round}.sg{stroke:var(--line);stroke-opacity:1}\n" + "".join(rules)
    return write_svg(
        body,
        size=(float(box[1]), float(box[2])),
        shown=shown,
        title=title,
        description=description,
        css=css,
    )
