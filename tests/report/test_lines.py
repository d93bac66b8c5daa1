"""Lines of the main chart: at most five, and readers with any colour vision can tell them apart."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from adacompute.report.lines import (
    CURRENT_POINT,
    MIXTURE,
    ORACLE,
    POLICY,
    RIVAL,
    choose_lines,
    find_rival,
)
from adacompute.report.plot_style import COLOURS, GREY

# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# Linear RGB to XYZ, and the white point D65 (IEC 61966-2-1).
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
MIN_DISTANCE = 20.0

MAIN_STYLES = (POLICY, MIXTURE, RIVAL, ORACLE, CURRENT_POINT)
"""Styles of the lines that are shown by default."""


def to_lab(colour: str, vision: str) -> np.ndarray[Any, Any]:
    """Return a colour as somebody with this vision sees it, in CIELAB (CIE 1976)."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    ratio = TO_XYZ @ seen / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def palettes() -> dict[str, dict[str, str]]:
    """Return what each colour of the palette looks like: as drawn, on a light and a dark page."""
    style = resources.files("adacompute.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks[:2])
    classes = {colour: f"c{i}" for i, colour in enumerate(COLOURS)}
    classes |= {GREY: "quiet", "#000000": "ink"}
    return {
        "drawn": {colour: colour for colour in classes},
        "light": {colour: light[name] for colour, name in classes.items()},
        "dark": {colour: dark[name] for colour, name in classes.items()},
    }


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("page", ["drawn", "light", "dark"])
def test_any_two_lines_differ_in_dashes_or_in_colour(page: str, vision: str) -> None:
    palette = palettes()[page]
    for a, b in combinations(MAIN_STYLES, 2):
        distance = float(
            np.linalg.norm(to_lab(palette[a.colour], vision) - to_lab(palette[b.colour], vision))
        )
        assert a.dashes != b.dashes or distance >= MIN_DISTANCE, (a, b, distance)


@pytest.mark.parametrize("vision", VISION)
def test_lines_of_the_policy_the_mixture_and_the_rival_differ_in_colour_too(vision: str) -> None:
    for name, palette in palettes().items():
        colours = [palette[one.colour] for one in (POLICY, MIXTURE, RIVAL)]
        for a, b in combinations(colours, 2):
            distance = np.linalg.norm(to_lab(a, vision) - to_lab(b, vision))
            assert distance >= MIN_DISTANCE, (name, a, b)


def test_known_colours_in_cielab() -> None:
    assert to_lab("#ffffff", "normal") == pytest.approx([100, 0, 0], abs=0.05)
    assert to_lab("#ff0000", "normal") == pytest.approx([53.2, 80.1, 67.2], abs=0.1)


def document(policy: str, **differences: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "curves": [
            {
                "policy": name.replace("_", "-"),
                "points": [
                    # The differences that are stored can be to other mixtures.
                    {"cost": cost, "accuracy": cost / 10 + value, "difference": -value}
                    for cost in (1.0, 2.0, 3.0)
                ],
            }
            for name, value in differences.items()
        ],
    }


CONTENT = document(
    "sequential",
    mixture=0.0,
    sequential=0.03,
    sequential_votes=0.028,
    retry=0.001,
    early_stopping=0.02,
    fixed=0.5,
    mixture_votes=0.4,
    oracle=0.1,
    oracle_in_sample=0.2,
)


def test_by_default_there_are_four_curves_and_the_current_point() -> None:
    lines = choose_lines(CONTENT)
    names = [curve["policy"] for curve, _ in lines]
    assert names == ["sequential", "mixture", "early-stopping", "oracle"]
    assert len({(style.colour, style.dashes) for _, style in lines}) == len(lines)


def test_all_policies_on_request_without_repeated_styles() -> None:
    more = document("", **{f"method_{i}": 0.0 for i in range(20)})["curves"]
    content = {**CONTENT, "curves": [*CONTENT["curves"], *more]}
    lines = choose_lines(content, all_policies=True)
    assert len(lines) == len(content["curves"])
    assert len({(style.colour, style.dashes) for _, style in lines}) == len(lines)


def test_a_variant_is_no_rival_of_its_policy_but_of_others() -> None:
    assert find_rival(CONTENT) == "early-stopping"
    assert find_rival({**CONTENT, "policy": "early-stopping"}) == "sequential"
    assert find_rival(document("sequential", mixture=0.0, sequential=0.1, oracle=0.2)) is None


def test_a_single_arm_is_no_rival() -> None:
    content = document("sequential", mixture=0.0, sequential=0.1, agreement_cascade=-0.2)
    single = {"policy": "only high", "points": content["curves"][1]["points"]}
    content["curves"].append(single)
    assert find_rival(content) == "agreement-cascade"


def test_the_rival_is_compared_at_its_own_costs() -> None:
    content = document("sequential", mixture=0.0, sequential=0.1, cheap=0.02, expensive=0.01)
    content["curves"][2]["points"].pop()  # its most accurate point
    assert find_rival(content) == "cheap"
