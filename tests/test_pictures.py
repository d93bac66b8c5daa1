"""The pictures of the documentation are what the scripts write, and people can read them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts import draw_calibration, draw_curve, draw_diagrams, draw_savings, svg_theme

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
DRAW = {
    **draw_diagrams.DIAGRAMS,
    "calibration": draw_calibration.draw,
    "curve": draw_curve.draw,
    "savings": draw_savings.draw,
}
PICTURES = sorted(STATIC.glob("*.svg"))
PHONE_PX = 358
"""Width of a picture on a phone of 390 pixels."""


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", DRAW)
def test_the_file_is_what_the_script_writes(name: str) -> None:
    assert (STATIC / f"{name}.svg").read_text() == DRAW[name]()


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_both_themes_and_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    root = ET.fromstring(text)  # noqa: S314 - our own files
    names = [child.tag.rpartition("}")[2] for child in root]
    assert names[:2] == ["title", "desc"]
    assert all(root[i].text for i in range(2))
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|@font-face|url\((?!#)", text)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_text_is_legible_on_a_phone(path: Path) -> None:
    text = path.read_text()
    (box,) = re.findall(r'<svg[^>]* viewBox="([^"]+)"', text)
    width = float(box.split()[2])
    sizes = re.findall(r'font-size[:=]"?([\d.]+)', text)
    assert sizes
    assert min(map(float, sizes)) * PHONE_PX / width > 10.9


@pytest.mark.parametrize("colours", [svg_theme.LIGHT, svg_theme.DARK], ids=["light", "dark"])
def test_colours_have_enough_contrast(colours: dict[str, str]) -> None:
    for text, ground in product(("ink", "soft"), ("paper", "wash", "tint")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark, ground in product(("edge", "accent", "quiet"), ("paper", "wash")):
        assert contrast(colours[mark], colours[ground]) >= 3, (mark, ground)


def test_every_picture_is_found() -> None:
    assert {path.stem for path in PICTURES} == {*DRAW}
