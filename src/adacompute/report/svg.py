"""SVG: turns the SVG of matplotlib into an element for a page.

Styles become attributes, which a strict content security policy allows. Colours of the palette
become classes, so the page can set them for light and dark mode, and black becomes the colour of
the surrounding text. Identifiers get the name of the figure as a prefix, because a page has several
figures. The result refers to nothing outside of itself.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from adacompute.report.plot_style import COLOURS, GREY

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
CLASSES = {colour: str(i) for i, colour in enumerate(COLOURS)} | {GREY: "q", "#b0b0b0": "g"}
"""Class of each colour of the palette, and of the grid."""

TEXT_COLOURS = {"#000000", "#262626", "black"}
OTHER_ATTRIBUTES = {"text-anchor", "font-size", "font-weight", "opacity", "display"}
"""Style properties that are also SVG attributes, besides those of strokes and fills."""


def inline_svg(svg: str, *, name: str, extra: str = "") -> str:
    """Return an SVG element for a page; ``extra`` is trusted markup to append inside it."""
    root = ET.fromstring(svg)  # noqa: S314 - made by matplotlib
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        _convert_style(element)
        _prefix_ids(element, name)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "aria-hidden": "true", "focusable": "false"})
    text = ET.tostring(root, encoding="unicode", short_empty_elements=True)
    head, _, _ = text.rpartition("</svg>")
    return f"{head}{extra}</svg>"


def _convert_style(element: ET.Element) -> None:
    """Turn the style of an element into attributes and classes."""
    style = element.attrib.pop("style", "")
    pairs = [part.split(":", 1) for part in style.split(";") if ":" in part]
    for key, value in ((key.strip(), value.strip()) for key, value in pairs):
        if key == "font":
            size = re.search(r"([\d.]+)px", value)
            element.set("font-size", size[1] if size else "10")
            if "bold" in value or "700" in value:
                element.set("font-weight", "bold")
        elif key.startswith(("stroke", "fill")) or key in OTHER_ATTRIBUTES:
            element.set(key, value)
    classes = []
    for key, letter in (("stroke", "s"), ("fill", "f")):
        colour = element.get(key, "").lower()
        if colour in TEXT_COLOURS:
            element.set(key, "currentColor")
        elif colour in CLASSES:
            classes.append(f"{letter}{CLASSES[colour]}")
    if element.tag == "text" and not element.get("fill"):
        element.set("fill", "currentColor")
    if classes:
        element.set("class", " ".join(classes))


def _prefix_ids(element: ET.Element, name: str) -> None:
    """Prefix identifiers, and references to them, with the name of the figure."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    if LINK in element.attrib:
        element.set("href", f"#{name}-{element.attrib.pop(LINK).removeprefix('#')}")
    path = element.get("clip-path")
    if path:
        element.set("clip-path", path.replace("url(#", f"url(#{name}-"))
