"""Inline: a figure's SVG made fit to stand inside a page.

Styles become attributes, which a strict security policy allows and a page can restyle; colours of
the palette become classes, so that the page chooses them for light and dark; black becomes the
colour of the text around. Identifiers get the figure's name before them, since a page holds several
figures. Nothing in it refers to anything outside.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from adacompute.report.plot_style import COLOURS, QUIET

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
CLASSES = {colour: str(i) for i, colour in enumerate(COLOURS)} | {QUIET: "q"}
CURRENT = {"#000000", "#262626", "black"}
GRID = {"#b0b0b0": "g"}
ANCHORS = {"text-anchor", "fill", "stroke", "opacity", "display"}
"""Beside those of lines: properties that are attributes too."""


def inline_svg(svg: str, *, name: str, extra: str = "") -> str:
    """Return an SVG element for a page; ``extra`` is markup of ours that goes into its end."""
    root = ET.fromstring(svg)  # noqa: S314 - drawn by us
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        _restyle(element)
        _rename(element, name)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "aria-hidden": "true", "focusable": "false"})
    text = ET.tostring(root, encoding="unicode", short_empty_elements=True)
    head, _, _ = text.rpartition("</svg>")
    return f"{head}{extra}</svg>"


def _restyle(element: ET.Element) -> None:
    """Turn a style into attributes and classes."""
    style = element.attrib.pop("style", "")
    pairs = [part.split(":", 1) for part in style.split(";") if ":" in part]
    for key, value in ((key.strip(), value.strip()) for key, value in pairs):
        if key == "font":
            size = re.search(r"([\d.]+)px", value)
            element.set("font-size", size[1] if size else "10")
            if "bold" in value or "700" in value:
                element.set("font-weight", "bold")
        elif key.startswith(("stroke", "fill", "font-size")) or key in ANCHORS:
            element.set(key, value)
    classes = []
    for key, letter in (("stroke", "s"), ("fill", "f")):
        colour = element.get(key, "").lower()
        known = CLASSES | GRID
        if colour in CURRENT:
            element.set(key, "currentColor")
        elif colour in known:
            classes.append(f"{letter}{known[colour]}")
    if element.tag == "text" and not element.get("fill"):
        element.set("fill", "currentColor")
    if classes:
        element.set("class", " ".join(classes))


def _rename(element: ET.Element, name: str) -> None:
    """Put the figure's name before identifiers and what refers to them."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    if LINK in element.attrib:
        element.set("href", f"#{name}-{element.attrib.pop(LINK).removeprefix('#')}")
    path = element.get("clip-path")
    if path:
        element.set("clip-path", path.replace("url(#", f"url(#{name}-"))
